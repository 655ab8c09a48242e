//! Devices that read and write memory themselves, through an IOMMU: the network device, whose buffers
//! stay mapped ([`super::network`]), and those that serve files, which map the program's pages for one
//! transfer.
//!
//! Files that were opened with `O_DIRECT` are not copied: a device reads and writes the program's
//! pages, which are pinned meanwhile. It takes no time of its own, and the call ends with it.

use contigua_cache::coherent::CoreRequest;
use contigua_frames::FrameClass;
use contigua_program::syscall::{Call, DescriptorKind};
use contigua_program::wire::ThreadId;
use contigua_translation::Access;
use contigua_units::{Cycles, Frame, LINE_BYTES, PAGE_BYTES, PhysAddr, VirtRange};

use super::Engine;
use super::iommu::{BATCH_TIME, DevicePage, Iommu, Unmapping};
use super::network::{Network, OVERLAP};
use super::timing::Asked;
use crate::Error;
use crate::port::pass;
use crate::report::DeviceReport;

/// Devices and their translations.
#[derive(Default, contigua_state::Plain)]
pub(crate) struct Devices {
    pub(super) network: Network,
    pub(super) iommu: Iommu,
    pub(super) counters: DeviceReport,
}

impl Devices {
    /// A buffer has moved: its entry is written, and an invalidation queued that takes so long.
    pub(super) fn moved(&mut self, from: Frame, to: Frame, now: Cycles, latency: Cycles) {
        if let Some(page) = self.network.moved(from, to) {
            self.iommu.remap(page, to, now, latency, &mut self.counters);
        }
    }

    /// Ends the invalidations that are due.
    pub(super) fn work_queue(&mut self, now: Cycles) {
        self.iommu.work(now, &mut self.counters);
    }

    /// When the next invalidation or the next request of a device is due.
    pub(super) fn due(&self) -> Option<Cycles> {
        let invalidation = self.iommu.due();
        invalidation.into_iter().chain(self.network.due()).min()
    }

    /// When the invalidations of a buffer will have ended; nothing if they have.
    pub(super) fn settles(&self, buffer: Frame) -> Option<Cycles> {
        self.iommu.settles(self.network.page_of(buffer)?)
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
    /// between the kernel and the program, whose vectors name `pieces`. Where nothing is simulated but
    /// the operating system, only the program's pages are touched.
    pub(super) fn move_data(
        &mut self,
        thread: ThreadId,
        call: &Call,
        pieces: &[VirtRange],
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
            Call::Lend { .. } if simulated => return self.lend(pieces),
            _ => return Ok(()),
        };
        let asked = Asked::Data {
            instruction: 0,
            store: receives,
        };
        let buffers = buffer.as_ref().map_or(pieces, core::slice::from_ref);
        if !simulated {
            return buffers
                .iter()
                .try_for_each(|&buffer| self.pass_over_all(buffer, asked.access()));
        }
        let kind = self.kernel.descriptor(thread, descriptor);
        match kind {
            Some(DescriptorKind::DirectFile) => {
                return buffers
                    .iter()
                    .try_for_each(|&buffer| self.transfer_directly(buffer, asked));
            }
            Some(DescriptorKind::Socket | DescriptorKind::Accepted) if receives => {
                self.receive(bytes);
            }
            Some(DescriptorKind::Socket | DescriptorKind::Accepted) => self.send(bytes),
            _ => {
                // Which frames of the page cache are copied is not known.
                let page = self.config.machine.kernel.copy_4k_cycles.get();
                self.charge(Cycles::new(bytes * page / PAGE_BYTES));
            }
        }
        for &buffer in buffers {
            self.copy_program(buffer, asked)?;
        }
        // A pipe has no kind: the call that made it names its descriptors in memory.
        if receives && kind.is_none() {
            let unpinning = self.kernel.read_pipe(bytes, &mut self.mmus);
            self.charge(unpinning);
            self.interrupt_shootdown_targets();
        }
        Ok(())
    }

    /// `vmsplice`: the pages are there, and a pipe holds them from now on.
    fn lend(&mut self, pieces: &[VirtRange]) -> Result<(), Error> {
        self.complete_pending_migrations();
        let asked = Asked::Data {
            instruction: 0,
            store: false,
        };
        for &piece in pieces {
            let latency = self.translate_pages(piece, asked)?;
            let pinning = self.kernel.lend(piece, &mut self.mmus);
            self.charge(latency + pinning);
        }
        self.interrupt_shootdown_targets();
        Ok(())
    }

    /// Translates each page of a range for the kernel, with its fault where there is one.
    fn translate_pages(&mut self, range: VirtRange, asked: Asked) -> Result<Cycles, Error> {
        let mut latency = Cycles::ZERO;
        let mut page = range.start.align_down(PAGE_BYTES);
        while page < range.end {
            latency += self.translate_for_kernel(page, asked)?.1;
            page = page + PAGE_BYTES;
        }
        Ok(latency)
    }

    /// Direct I/O: the pages are pinned, a device reads or writes them, and they are let go.
    fn transfer_directly(&mut self, buffer: VirtRange, asked: Asked) -> Result<(), Error> {
        self.complete_pending_migrations();
        let first = buffer.start.align_down(PAGE_BYTES);
        let latency = self.translate_pages(buffer, asked)?;
        let pinning = self.kernel.pin_range(buffer, &mut self.mmus);
        self.charge(latency + pinning);
        self.interrupt_shootdown_targets();
        let writes = asked.access() == Access::Write;
        let now = self.now();
        let mut mapped = Vec::new();
        let mut page = first;
        while page < buffer.end {
            let from = buffer.start.max(page) - page;
            let to = buffer.end.min(page + PAGE_BYTES) - page;
            if let Some(frame) = self.kernel.frame_of(page) {
                // Without memory for its tables, the device takes the page's own address.
                let at = self.map_for_device(frame).and_then(|at| {
                    mapped.push(at);
                    self.translate_for_device(at, now)
                });
                self.transfer_page(at.unwrap_or(frame), from, to, writes, now);
            }
            page = page + PAGE_BYTES;
        }
        let iommu = &self.config.machine.iommu;
        let latency = iommu.invalidation(self.config.machine.clock);
        let time = Unmapping {
            now,
            latency,
            batched: (!iommu.strict).then(|| BATCH_TIME.at(self.config.machine.clock)),
        };
        let Devices {
            iommu, counters, ..
        } = &mut self.devices;
        let waiting = iommu.unmap(&mapped, time, counters);
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
    pub(super) fn map_for_device(&mut self, frame: Frame) -> Option<DevicePage> {
        let kernel = &mut self.kernel;
        self.devices
            .iommu
            .map(frame, || kernel.take_for_device(FrameClass::KernelOther))
    }

    /// Translates a page for the device, which may use an old translation while an invalidation is
    /// in the queue.
    pub(super) fn translate_for_device(&mut self, page: DevicePage, now: Cycles) -> Option<Frame> {
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

    /// The device reads or writes a part of a page.
    pub(super) fn transfer_page(
        &mut self,
        frame: Frame,
        from: u64,
        to: u64,
        writes: bool,
        now: Cycles,
    ) {
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
}
