//! The network device: it writes what was received into pinned buffers and reads what is sent from
//! them, through an IOMMU, while the program's own system calls say how much and when.
//!
//! The driver takes the buffers of the device's queue when the first connection moves data, and
//! keeps them: this is memory that Linux cannot move, and that only hardware can. Receiving: the device
//! writes lines into the last level (Intel's Data Direct I/O), then the core that made the call
//! reads them there to copy them to the program. Sending: the core writes them, the device reads
//! them. What the kernel does beside that copy is in the costs of a system call.

use contigua_cache::AccessKind;
use contigua_cache::coherent::CoreRequest;
use contigua_program::syscall::Call;
use contigua_program::wire::ThreadId;
use contigua_units::{Cycles, Frame, LINE_BYTES, PAGE_BYTES, PhysAddr};

use super::Engine;
use crate::report::DeviceReport;

/// Entries of the IOMMU's TLB: 64, as measured on Intel's (Amit et al., WIOSCA 2010, section 4.2).
const IOTLB_ENTRIES: usize = 64;
/// Buffers that the device's queues go round: of a queue of 512 descriptors, 2 KB each.
const RING: usize = 256;
/// Misses of a copy loop that overlap: a core's line-fill buffers, as far as a loop fills them.
const OVERLAP: u64 = 8;

/// The device, its queue and its translations.
#[derive(Default)]
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
    /// Moves the data of a call through the device's buffers, when it went through a socket.
    pub(super) fn move_data(&mut self, thread: ThreadId, call: &Call) {
        let (bytes, descriptor, receives) = match *call {
            Call::Receive {
                bytes, descriptor, ..
            } => (bytes, descriptor, true),
            Call::Send {
                bytes, descriptor, ..
            } => (bytes, descriptor, false),
            _ => return,
        };
        if self.memory.is_none() || bytes == 0 || !self.kernel.is_socket(thread, descriptor) {
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

    /// What the device and the core do with a part of a buffer; cycles of the core's accesses, one
    /// after the other.
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
                memory.device(address, true, now, |()| ());
            }
            let request = CoreRequest {
                core,
                address,
                kind,
                time: now,
                instruction: 0,
            };
            cycles += hit + memory.access(&request, |()| ()).get();
            if !receives {
                memory.device(address, false, now, |()| ());
            }
        }
        cycles
    }
}
