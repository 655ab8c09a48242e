//! The network device: it writes what was received into pinned buffers and reads what is sent from
//! them, through an IOMMU, while the program's own system calls say how much and when.
//!
//! The driver takes the buffers of the device's queue when the first connection moves data, and
//! keeps them: this is memory that Linux cannot move, and that only hardware can. Receiving: the device
//! writes lines into the last level (Intel's Data Direct I/O), then the core that made the call
//! reads them there to copy them to the program. Sending: the core writes them, the device reads
//! them. What the kernel does beside that copy is in the costs of a system call. The program's side
//! of every copy, of sockets and files, takes the program's TLBs and caches.
//!
//! The device has addresses of its own: its buffers stay mapped, and pages of direct I/O are mapped
//! for one transfer ([`super::iommu`]).
//!
//! Files that were opened with `O_DIRECT` are not copied: a device reads and writes the program's
//! pages, which are pinned meanwhile. It takes no time of its own, and the call ends with it.

use contigua_cache::AccessKind;
use contigua_cache::coherent::CoreRequest;
use contigua_frames::FrameClass;
use contigua_program::syscall::{Call, DescriptorKind};
use contigua_program::wire::ThreadId;
use contigua_translation::Access;
use contigua_units::{Cycles, Frame, LINE_BYTES, PAGE_BYTES, PhysAddr, VirtRange};

use super::Engine;
use super::iommu::{DevicePage, Iommu};
use super::timing::Asked;
use crate::Error;
use crate::port::pass;
use crate::report::DeviceReport;

/// Buffers that the device's queues go round: of a queue of 512 descriptors, 2 KB each.
const RING: usize = 256;
/// Misses of a copy loop that overlap: a core's line-fill buffers, as far as a loop fills them.
const OVERLAP: u64 = 8;

/// The device, its queue and its translations.
#[derive(Default, contigua_state::Plain)]
pub(crate) struct Devices {
    /// Frames of the queue, in turn; none before the first connection.
    buffers: Vec<Frame>,
    /// Their addresses.
    pages: Vec<DevicePage>,
    next: usize,
    /// Bytes of the current buffer that are used.
    used: u64,
    iommu: Iommu,
    counters: DeviceReport,
}

impl Devices {
    /// One of the buffers in use.
    pub(super) fn buffer(&self, choice: u64) -> Option<Frame> {
        let count = self.buffers.len() as u64;
        (count > 0).then(|| self.buffers[(choice % count) as usize])
    }

    /// Leaves the queue only its first buffers.
    #[cfg(test)]
    pub(super) fn shrink_ring(&mut self, buffers: usize) {
        self.buffers.truncate(buffers);
        self.pages.truncate(buffers);
        self.next = self.next.min(buffers - 1);
    }

    /// A buffer has moved: its entry is written, and an invalidation queued that takes so long.
    pub(super) fn moved(&mut self, from: Frame, to: Frame, now: Cycles, latency: Cycles) {
        for (buffer, &page) in self.buffers.iter_mut().zip(&self.pages) {
            if *buffer == from {
                *buffer = to;
                self.iommu.remap(page, to, now, latency, &mut self.counters);
            }
        }
    }

    /// Ends the invalidations that are due.
    pub(super) fn work_queue(&mut self, now: Cycles) {
        self.iommu.work(now, &mut self.counters);
    }

    /// When the next invalidation ends.
    pub(super) fn due(&self) -> Option<Cycles> {
        self.iommu.due()
    }

    /// When the invalidations of a buffer will have ended; nothing if they have.
    pub(super) fn settles(&self, buffer: Frame) -> Option<Cycles> {
        let at = self.buffers.iter().position(|&held| held == buffer)?;
        self.iommu.settles(self.pages[at])
    }

    pub(super) fn reset_counters(&mut self) {
        self.counters = DeviceReport::default();
    }

    pub(crate) fn report(&self) -> DeviceReport {
        self.counters
    }
}

impl Engine {
    /// Moves the data of a call: through the device's buffers, when it went through a socket, and
    /// between the kernel and the program. Where nothing is simulated but the operating system, only
    /// the program's pages are touched.
    pub(super) fn move_data(
        &mut self,
        thread: ThreadId,
        call: &Call,
        simulated: bool,
    ) -> Result<(), Error> {
        let (bytes, buffer, descriptor, receives) = match *call {
            Call::Receive {
                bytes,
                buffer,
                descriptor,
                ..
            } => (bytes, buffer, descriptor, true),
            Call::Send {
                bytes,
                buffer,
                descriptor,
                ..
            } => (bytes, buffer, descriptor, false),
            _ => return Ok(()),
        };
        let asked = Asked::Data {
            instruction: 0,
            store: receives,
        };
        if simulated {
            let kind = self.kernel.descriptor(thread, descriptor);
            if kind == Some(DescriptorKind::DirectFile) {
                return buffer.map_or(Ok(()), |buffer| self.transfer_directly(buffer, asked));
            }
            if matches!(
                kind,
                Some(DescriptorKind::Socket | DescriptorKind::Accepted)
            ) {
                self.move_through_device(bytes, receives);
            } else {
                // Which frames of the page cache are copied is not known.
                let page = self.config.machine.kernel.copy_4k_cycles.get();
                self.charge(Cycles::new(bytes * page / PAGE_BYTES));
            }
            buffer.map_or(Ok(()), |buffer| self.copy_program(buffer, asked))
        } else {
            buffer.map_or(Ok(()), |buffer| self.pass_over_all(buffer, asked.access()))
        }
    }

    /// Direct I/O: the pages are pinned, a device reads or writes them, and they are let go.
    fn transfer_directly(&mut self, buffer: VirtRange, asked: Asked) -> Result<(), Error> {
        self.complete_pending_migrations();
        let first = buffer.start.align_down(PAGE_BYTES);
        let mut latency = Cycles::ZERO;
        let mut page = first;
        while page < buffer.end {
            latency += self.translate_for_kernel(page, asked)?.1;
            page = page + PAGE_BYTES;
        }
        let pinning = self.kernel.pin_range(buffer, &mut self.mmus);
        self.charge(latency + pinning);
        self.interrupt_shootdown_targets();
        let writes = asked.access() == Access::Write;
        let mut mapped = Vec::new();
        page = first;
        while page < buffer.end {
            let from = buffer.start.max(page) - page;
            let to = buffer.end.min(page + PAGE_BYTES) - page;
            if let Some(frame) = self.kernel.frame_of(page) {
                // Without memory for its tables, the device takes the page's own address.
                let at = self.map_for_device(frame).and_then(|at| {
                    mapped.push(at);
                    self.translate_for_device(at)
                });
                self.transfer_page(at.unwrap_or(frame), from, to, writes);
            }
            page = page + PAGE_BYTES;
        }
        let iommu = &self.config.machine.iommu;
        let latency = iommu.invalidation(self.config.machine.clock);
        let waiting =
            self.devices
                .iommu
                .unmap(&mapped, iommu.strict, latency, &mut self.devices.counters);
        // Each page's entry was written and cleared.
        let entry = self.kernel.costs().page_table_entry_cycles.get();
        self.charge(waiting + Cycles::new(2 * entry * mapped.len() as u64));
        let bytes = buffer.end - buffer.start;
        if writes {
            self.devices.counters.bytes_received += bytes;
        } else {
            self.devices.counters.bytes_sent += bytes;
        }
        let unpinning = self.kernel.unpin_all(&mut self.mmus);
        self.charge(unpinning);
        self.interrupt_shootdown_targets();
        Ok(())
    }

    /// Gives a frame an address for the device; none without memory for tables.
    fn map_for_device(&mut self, frame: Frame) -> Option<DevicePage> {
        let kernel = &mut self.kernel;
        self.devices
            .iommu
            .map(frame, || kernel.take_for_device(FrameClass::KernelOther))
    }

    /// Translates a page for the device, which may use an old translation while an invalidation is
    /// in the queue.
    fn translate_for_device(&mut self, page: DevicePage) -> Option<Frame> {
        let now = self.now();
        let Devices {
            iommu, counters, ..
        } = &mut self.devices;
        iommu.work(now, counters);
        let memory = &mut self.memory;
        iommu.translate(page, &self.config.machine.iommu, counters, |entry| {
            let memory = memory.as_mut();
            memory.map_or(Cycles::ZERO, |memory| {
                memory.device(entry, false, now, pass)
            })
        })
    }

    /// Takes the buffers of the device's queue, as many as there is memory for.
    fn fill_ring(&mut self) {
        for _ in 0..RING {
            let Some(frame) = self.kernel.take_for_device(FrameClass::NetworkBuffer) else {
                return;
            };
            let Some(page) = self.map_for_device(frame) else {
                self.kernel.free_frame(frame);
                return;
            };
            self.devices.buffers.push(frame);
            self.devices.pages.push(page);
        }
    }

    /// The device reads or writes a part of a page.
    fn transfer_page(&mut self, frame: Frame, from: u64, to: u64, writes: bool) {
        let now = self.now();
        let Some(memory) = &mut self.memory else {
            return;
        };
        for line in from / LINE_BYTES..to.div_ceil(LINE_BYTES) {
            let address = PhysAddr::new(frame.address().get() + line * LINE_BYTES);
            memory.device(address, writes, now, pass);
        }
    }

    /// The program's side of a copy: the kernel uses the program's addresses, so its loads and
    /// stores take the TLBs, fault, and go through the caches as the program's do.
    fn copy_program(&mut self, buffer: VirtRange, asked: Asked) -> Result<(), Error> {
        let mut at = buffer.start.align_down(LINE_BYTES);
        let (mut cycles, mut page) = (0, None);
        while at < buffer.end {
            let number = at.align_down(PAGE_BYTES);
            let frame = match page {
                Some((known, frame)) if known == number => frame,
                _ => {
                    let (frame, latency) = self.translate_for_kernel(number, asked)?;
                    cycles += latency.get();
                    page = Some((number, frame));
                    frame
                }
            };
            let address = PhysAddr::new(frame.get() + (at - number));
            let request = CoreRequest::new(self.current, address, asked.kind(), self.now());
            self.note_program(at);
            if let Some(memory) = &mut self.memory {
                cycles += memory.access(&request, pass).get();
            }
            at = at + LINE_BYTES;
        }
        self.charge(Cycles::new(cycles / OVERLAP));
        Ok(())
    }

    /// Moves data through the device's buffers.
    fn move_through_device(&mut self, bytes: u64, receives: bool) {
        if self.memory.is_none() || bytes == 0 {
            return;
        }
        if self.devices.buffers.is_empty() {
            self.fill_ring();
        }
        if self.devices.buffers.is_empty() {
            return;
        }
        if receives {
            self.devices.counters.bytes_received += bytes;
        } else {
            self.devices.counters.bytes_sent += bytes;
        }
        let mut left = bytes;
        let mut cycles = 0;
        while left > 0 {
            let frame = self.devices.buffers[self.devices.next];
            let page = self.devices.pages[self.devices.next];
            let translated = self.translate_for_device(page);
            let device = translated.expect("buffers stay mapped");
            debug_assert!(
                device == frame || self.is_moving(device),
                "the device uses a frame from which its buffer has moved"
            );
            let from = self.devices.used;
            let part = left.min(PAGE_BYTES - from);
            cycles += self.copy_buffer(frame, device, from, part, receives);
            left -= part;
            self.devices.used += part;
            if self.devices.used == PAGE_BYTES {
                self.devices.used = 0;
                self.devices.next = (self.devices.next + 1) % self.devices.buffers.len();
            }
        }
        self.charge(Cycles::new(cycles / OVERLAP));
    }

    /// Lets the device and the core access a part of a buffer, each by its own translation;
    /// returns the cycles of the core's accesses, one after the other.
    fn copy_buffer(
        &mut self,
        frame: Frame,
        device: Frame,
        from: u64,
        bytes: u64,
        receives: bool,
    ) -> u64 {
        let now = self.now();
        let core = self.current;
        let Some(memory) = &mut self.memory else {
            return 0;
        };
        let (first, of_device) = (frame.address().get(), device.address().get());
        let hit = memory.first_level_latency().get();
        let mut cycles = 0;
        for line in from / LINE_BYTES..(from + bytes).div_ceil(LINE_BYTES) {
            let address = PhysAddr::new(first + line * LINE_BYTES);
            let from_device = PhysAddr::new(of_device + line * LINE_BYTES);
            let kind = if receives {
                AccessKind::Read
            } else {
                AccessKind::Write
            };
            if receives {
                memory.device(from_device, true, now, pass);
            }
            let request = CoreRequest::new(core, address, kind, now);
            cycles += hit + memory.access(&request, pass).get();
            if !receives {
                memory.device(from_device, false, now, pass);
            }
        }
        cycles
    }
}
