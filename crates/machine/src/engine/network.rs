//! The network device: it writes what is received into pinned buffers and reads what is sent from them,
//! at the rate of its link, while processors go on. The program's own system calls say how much.
//!
//! The driver takes the buffers of a queue for each direction when the first connection moves data,
//! and keeps them: this is memory that Linux cannot move, and that only hardware can.
//!
//! Sending: the core writes buffers and rings the queue; the device reads them later. Where no buffer
//! is free, the core waits. Receiving: requests come in as fast as the link has them. While the
//! program works, the device writes the next one, as long as the last, into the last level (Intel's
//! Data Direct I/O); the core that asks for it reads it there, and waits if it is not all there yet.
//! The rest of the kernel's work is in the costs of a system call.
//!
//! The device's requests are of 256 bytes; each takes the link's time for them, and a walk of the
//! IOMMU delays those behind it. They are made when a core enters the kernel for the device or
//! looks after migrations, at the times at which they were due.

use contigua_cache::AccessKind;
use contigua_cache::coherent::CoreRequest;
use contigua_frames::FrameClass;
use contigua_units::{Cycles, Frame, LINE_BYTES, PAGE_BYTES, PhysAddr};

use super::Engine;
use super::iommu::DevicePage;
use crate::port::pass;

/// Buffers of a queue: 256 descriptors of 2 KB each, as Linux's `igb` has by default.
const BUFFERS: usize = 128;
/// Bytes of a request of a device: the usual largest payload on `PCIe` (Neugebauer et al., SIGCOMM
/// 2018, section 3).
const REQUEST: u64 = 256;
/// Misses of a copy loop that overlap: a core's line-fill buffers, as far as a loop fills them.
pub(super) const OVERLAP: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Receive,
    Send,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Its number among the queue's buffers.
    buffer: usize,
    /// Offset in the buffer.
    from: u64,
    bytes: u64,
}

/// Buffers that are used in turn, as one stream of bytes goes through them.
#[derive(Default, contigua_state::Plain)]
struct Queue {
    buffers: Vec<Frame>,
    /// Their addresses.
    pages: Vec<DevicePage>,
    /// Bytes that the device was told of since the beginning.
    told: u64,
    /// Bytes that it has read or written.
    moved: u64,
    /// Bytes whose buffers it may use again: taken by a core, or read.
    released: u64,
    /// Bytes of its last request.
    last: u64,
    /// When that one ends and it begins its next.
    next: Cycles,
}

impl Queue {
    fn capacity(&self) -> u64 {
        self.buffers.len() as u64 * PAGE_BYTES
    }

    /// The part from a byte of the stream that lies in one block of so many bytes.
    fn part(&self, at: u64, bytes: u64, block: u64) -> Part {
        Part {
            buffer: (at / PAGE_BYTES % self.buffers.len() as u64) as usize,
            from: at % PAGE_BYTES,
            bytes: bytes.min(block - at % block),
        }
    }

    /// When the device begins its next request, if it has one.
    fn due(&self) -> Option<Cycles> {
        (self.moved < self.told).then_some(self.next)
    }

    /// Tells the device of bytes up to this one; one that has nothing to do begins at `start`.
    fn tell(&mut self, until: u64, start: Cycles) {
        debug_assert!(until <= self.released + self.capacity());
        if self.moved == self.told {
            self.next = self.next.max(start);
        }
        self.told = self.told.max(until);
    }

    /// The device makes its request, which ends then.
    fn advance(&mut self, bytes: u64, ends: Cycles) {
        self.moved += bytes;
        self.last = bytes;
        self.next = ends;
    }

    /// When the device has moved so many bytes since the beginning, if it has begun to.
    fn arrival(&self, bytes: u64) -> Option<Cycles> {
        if bytes <= self.moved.saturating_sub(self.last) {
            return Some(Cycles::ZERO);
        }
        (bytes <= self.moved).then_some(self.next)
    }
}

/// A queue for each direction.
#[derive(Default, contigua_state::Plain)]
pub(super) struct Network {
    receive: Queue,
    send: Queue,
}

impl Network {
    fn queue(&mut self, direction: Direction) -> &mut Queue {
        match direction {
            Direction::Receive => &mut self.receive,
            Direction::Send => &mut self.send,
        }
    }

    fn next(&self) -> Option<(Cycles, Direction)> {
        let receive = self.receive.due().map(|due| (due, Direction::Receive));
        let send = self.send.due().map(|due| (due, Direction::Send));
        receive.into_iter().chain(send).min_by_key(|&(due, _)| due)
    }

    /// When the device makes its next request.
    pub(super) fn due(&self) -> Option<Cycles> {
        self.next().map(|(due, _)| due)
    }

    fn is_up(&self) -> bool {
        !self.receive.buffers.is_empty() && !self.send.buffers.is_empty()
    }

    /// One of the buffers.
    pub(super) fn buffer(&self, choice: u64) -> Option<Frame> {
        let count = (self.receive.buffers.len() + self.send.buffers.len()) as u64;
        let at = choice.checked_rem(count)? as usize;
        let buffers = self.receive.buffers.iter().chain(&self.send.buffers);
        buffers.copied().nth(at)
    }

    /// Leaves each queue its first buffers, and the device nothing to do.
    #[cfg(test)]
    pub(super) fn shrink(&mut self, buffers: usize) {
        for queue in [&mut self.receive, &mut self.send] {
            if queue.buffers.len() > buffers {
                queue.buffers.truncate(buffers);
                queue.pages.truncate(buffers);
                queue.told = queue.moved;
                queue.released = queue.moved;
            }
        }
    }

    /// The address of a buffer.
    pub(super) fn page_of(&self, buffer: Frame) -> Option<DevicePage> {
        [&self.receive, &self.send].into_iter().find_map(|queue| {
            let at = queue.buffers.iter().position(|&held| held == buffer)?;
            Some(queue.pages[at])
        })
    }

    /// A buffer is in another frame from now on; returns its address.
    pub(super) fn moved(&mut self, from: Frame, to: Frame) -> Option<DevicePage> {
        [&mut self.receive, &mut self.send]
            .into_iter()
            .find_map(|queue| {
                let at = queue.buffers.iter().position(|&held| held == from)?;
                queue.buffers[at] = to;
                Some(queue.pages[at])
            })
    }
}

impl Engine {
    /// A core sends from the kernel's buffers what it has copied there, and rings the queue.
    pub(super) fn send(&mut self, bytes: u64) {
        if !self.starts_network(bytes) {
            return;
        }
        let now = self.now();
        self.work_devices(now);
        let mut left = bytes;
        while left > 0 {
            let queue = &self.devices.network.send;
            let at = queue.told;
            let part = queue.part(at, left, PAGE_BYTES);
            let needed = (at + part.bytes).saturating_sub(queue.capacity());
            self.await_device(Direction::Send, needed);
            self.copy_buffer(Direction::Send, part);
            left -= part.bytes;
            self.ring(Direction::Send, at + part.bytes);
        }
        self.devices.counters.doorbells += 1;
    }

    /// A core takes what the device has received.
    pub(super) fn receive(&mut self, bytes: u64) {
        if !self.starts_network(bytes) {
            return;
        }
        let now = self.now();
        self.work_devices(now);
        let mut left = bytes;
        while left > 0 {
            let queue = &self.devices.network.receive;
            let at = queue.released;
            let part = queue.part(at, left, PAGE_BYTES);
            self.ring(Direction::Receive, at + left.min(queue.capacity()));
            self.await_device(Direction::Receive, at + part.bytes);
            self.copy_buffer(Direction::Receive, part);
            left -= part.bytes;
            self.devices.network.receive.released += part.bytes;
        }
        // Free buffers for the next request.
        let queue = &self.devices.network.receive;
        let ahead = bytes.min(queue.capacity() - PAGE_BYTES);
        self.ring(Direction::Receive, queue.released + ahead);
        self.devices.counters.doorbells += 1;
    }

    /// Takes the device's buffers for the first data. False where nothing is simulated.
    fn starts_network(&mut self, bytes: u64) -> bool {
        if self.memory.is_none() || bytes == 0 {
            return false;
        }
        if !self.devices.network.is_up() {
            for _ in 0..BUFFERS {
                for direction in [Direction::Receive, Direction::Send] {
                    self.add_buffer(direction);
                }
            }
        }
        self.devices.network.is_up()
    }

    fn add_buffer(&mut self, direction: Direction) {
        let Some(frame) = self.kernel.take_for_device(FrameClass::NetworkBuffer) else {
            return;
        };
        let Some(page) = self.map_for_device(frame) else {
            self.kernel.free_frame(frame);
            return;
        };
        let queue = self.devices.network.queue(direction);
        queue.buffers.push(frame);
        queue.pages.push(page);
    }

    /// Tells the device of bytes up to this one. It has read their descriptor a message later.
    fn ring(&mut self, direction: Direction, until: u64) {
        let latency = match direction {
            // Descriptors of free buffers are read ahead.
            Direction::Receive => Cycles::ZERO,
            Direction::Send => {
                let machine = &self.config.machine;
                machine.network.latency.at(machine.clock)
            }
        };
        let start = self.now() + latency;
        self.devices.network.queue(direction).tell(until, start);
    }

    /// Waits until the device has moved so many bytes since the beginning.
    fn await_device(&mut self, direction: Direction, bytes: u64) {
        let arrival = loop {
            if let Some(arrival) = self.devices.network.queue(direction).arrival(bytes) {
                break arrival;
            }
            let due = self.devices.network.due().expect("the device was told");
            self.work_devices(due);
        };
        let wait = Cycles::new(arrival.get().saturating_sub(self.now().get()));
        self.devices.counters.wait_cycles += wait;
        self.timing.wait(self.current, arrival);
    }

    /// Makes the requests of the device that are due.
    pub(super) fn work_devices(&mut self, until: Cycles) {
        while let Some((due, direction)) = self.devices.network.next()
            && due <= until
        {
            self.make_request(direction, due);
        }
    }

    /// The device reads or writes a part of a buffer, and has it done when the link has.
    fn make_request(&mut self, direction: Direction, due: Cycles) {
        let queue = self.devices.network.queue(direction);
        let part = queue.part(queue.moved, queue.told - queue.moved, REQUEST);
        let (frame, page) = (queue.buffers[part.buffer], queue.pages[part.buffer]);
        let walked = self.devices.counters.iommu_walk_cycles;
        let translated = self.translate_for_device(page, due);
        let device = translated.expect("buffers stay mapped");
        debug_assert!(
            device == frame || self.is_moving(device),
            "the device uses a frame from which its buffer has moved"
        );
        let walk = self.devices.counters.iommu_walk_cycles - walked;
        let begins = due + walk;
        let writes = direction == Direction::Receive;
        let end = part.from + part.bytes;
        self.transfer_page(device, part.from, end, writes, begins);
        if writes {
            self.devices.counters.bytes_received += part.bytes;
        } else {
            self.devices.counters.bytes_sent += part.bytes;
        }
        let machine = &self.config.machine;
        let next = begins + machine.network.time(part.bytes, machine.clock);
        let queue = self.devices.network.queue(direction);
        queue.advance(part.bytes, next);
        if direction == Direction::Send {
            queue.released = queue.moved;
        }
    }

    /// The core reads or writes a part of a buffer.
    fn copy_buffer(&mut self, direction: Direction, part: Part) {
        let (now, core) = (self.now(), self.current);
        let kind = match direction {
            Direction::Receive => AccessKind::Read,
            Direction::Send => AccessKind::Write,
        };
        let first = self.devices.network.queue(direction).buffers[part.buffer].address();
        let Some(memory) = &mut self.memory else {
            return;
        };
        let hit = memory.first_level_latency().get();
        let mut cycles = 0;
        let end = part.from + part.bytes;
        for line in part.from / LINE_BYTES..end.div_ceil(LINE_BYTES) {
            let address = PhysAddr::new(first.get() + line * LINE_BYTES);
            let request = CoreRequest::new(core, address, kind, now);
            cycles += hit + memory.access(&request, pass).get();
        }
        self.charge(Cycles::new(cycles / OVERLAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue(buffers: u32) -> Queue {
        let mut iommu = super::super::iommu::Iommu::default();
        let mut tables = (1000..).map(Frame::new);
        let mut queue = Queue::default();
        for frame in (0..buffers).map(Frame::new) {
            queue.buffers.push(frame);
            queue
                .pages
                .push(iommu.map(frame, || tables.next()).unwrap());
        }
        queue
    }

    #[test]
    fn a_device_without_work_begins_when_it_is_told_and_one_with_work_goes_on() {
        let mut queue = queue(2);
        queue.tell(300, Cycles::new(50));
        assert_eq!(queue.due(), Some(Cycles::new(50)));
        queue.advance(256, Cycles::new(80));
        queue.tell(400, Cycles::new(500));
        assert_eq!(queue.due(), Some(Cycles::new(80)));
        assert_eq!(queue.arrival(256), Some(Cycles::new(80)));
        assert_eq!(queue.arrival(257), None);
        queue.advance(144, Cycles::new(95));
        assert_eq!(queue.arrival(256), Some(Cycles::ZERO));
        assert_eq!(queue.due(), None);
    }

    proptest! {
        /// Requests take each byte once, in order, and none of them leaves its block or its buffer.
        #[test]
        fn requests_take_each_byte_once(
            buffers in 1_u32..5,
            sizes in proptest::collection::vec(1_u64..5000, 1..40),
        ) {
            let mut queue = queue(buffers);
            let mut stream = 0;
            for bytes in sizes {
                let bytes = bytes.min(queue.capacity());
                queue.tell(queue.told + bytes, Cycles::ZERO);
                while queue.due().is_some() {
                    let part = queue.part(queue.moved, queue.told - queue.moved, REQUEST);
                    prop_assert!(part.bytes > 0);
                    prop_assert_eq!(part.from / REQUEST, (part.from + part.bytes - 1) / REQUEST);
                    let of_stream = part.buffer as u64 * PAGE_BYTES + part.from;
                    prop_assert_eq!(of_stream, stream % queue.capacity());
                    stream += part.bytes;
                    queue.advance(part.bytes, Cycles::ZERO);
                }
                queue.released = queue.moved;
                prop_assert_eq!(queue.moved, queue.told);
            }
        }
    }
}
