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
//! Files that were opened with `O_DIRECT` are not copied: a device reads and writes the program's
//! pages, which are pinned meanwhile. It takes no time of its own, and the call ends with it.

use contigua_cache::AccessKind;
use contigua_cache::coherent::CoreRequest;
use contigua_program::syscall::{Call, DescriptorKind};
use contigua_program::wire::ThreadId;
use contigua_translation::Access;
use contigua_units::{Cycles, Frame, LINE_BYTES, PAGE_BYTES, PhysAddr, VirtRange};

use super::Engine;
use super::timing::Asked;
use crate::Error;
use crate::port::pass;
use crate::report::DeviceReport;

/// Entries of the IOMMU's TLB: 64, as measured on Intel's (Amit et al., WIOSCA 2010, section 4.2).
const IOTLB_ENTRIES: usize = 64;
/// Buffers that the device's queues go round: of a queue of 512 descriptors, 2 KB each.
const RING: usize = 256;
/// Misses of a copy loop that overlap: a core's line-fill buffers, as far as a loop fills them.
const OVERLAP: u64 = 8;

/// The device, its queue and its translations.
#[derive(Default, contigua_state::Plain)]
pub(crate) struct Devices {
    /// Frames of the queue, in turn; none before the first connection.
    buffers: Vec<Frame>,
    next: usize,
    /// Bytes of the current buffer that are used.
    used: u64,
    /// Least recently used first.
    iotlb: Vec<Frame>,
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
        self.next = self.next.min(buffers - 1);
    }

    /// A buffer has moved: the queue and the translations follow.
    pub(super) fn moved(&mut self, from: Frame, to: Frame) {
        for buffer in &mut self.buffers {
            if *buffer == from {
                *buffer = to;
            }
        }
        let before = self.iotlb.len();
        self.iotlb.retain(|&frame| frame != from);
        self.counters.iotlb_invalidations += (before - self.iotlb.len()) as u64;
    }

    fn translate(&mut self, frame: Frame) {
        self.counters.iotlb_lookups += 1;
        if let Some(at) = self.iotlb.iter().position(|&held| held == frame) {
            let frame = self.iotlb.remove(at);
            self.iotlb.push(frame);
            return;
        }
        self.counters.iotlb_misses += 1;
        if self.iotlb.len() == IOTLB_ENTRIES {
            self.iotlb.remove(0);
        }
        self.iotlb.push(frame);
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
        page = first;
        while page < buffer.end {
            let from = buffer.start.max(page) - page;
            let to = buffer.end.min(page + PAGE_BYTES) - page;
            if let Some(frame) = self.kernel.frame_of(page) {
                self.devices.translate(frame);
                self.transfer_page(frame, from, to, writes);
            }
            page = page + PAGE_BYTES;
        }
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
            self.devices.buffers = self.kernel.take_network_buffers(RING);
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
            self.devices.translate(frame);
            let from = self.devices.used;
            let part = left.min(PAGE_BYTES - from);
            cycles += self.copy_buffer(frame, from, part, receives);
            left -= part;
            self.devices.used += part;
            if self.devices.used == PAGE_BYTES {
                self.devices.used = 0;
                self.devices.next = (self.devices.next + 1) % self.devices.buffers.len();
            }
        }
        self.charge(Cycles::new(cycles / OVERLAP));
    }

    /// Lets the device and the core access a part of a buffer; returns the cycles of the core's
    /// accesses, one after the other.
    fn copy_buffer(&mut self, frame: Frame, from: u64, bytes: u64, receives: bool) -> u64 {
        let now = self.now();
        let core = self.current;
        let Some(memory) = &mut self.memory else {
            return 0;
        };
        let first = frame.address().get();
        let hit = memory.first_level_latency().get();
        let mut cycles = 0;
        for line in from / LINE_BYTES..(from + bytes).div_ceil(LINE_BYTES) {
            let address = PhysAddr::new(first + line * LINE_BYTES);
            let kind = if receives {
                AccessKind::Read
            } else {
                AccessKind::Write
            };
            if receives {
                memory.device(address, true, now, pass);
            }
            let request = CoreRequest::new(core, address, kind, now);
            cycles += hit + memory.access(&request, pass).get();
            if !receives {
                memory.device(address, false, now, pass);
            }
        }
        cycles
    }
}
