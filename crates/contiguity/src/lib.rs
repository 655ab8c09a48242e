//! Contiguity of a machine's memory, and its potential after compaction.
//!
//! The measures are those of Contiguitas' authors (Contiguitas, section 2.4, and their public
//! scanner): a block is judged by the frames in it, *free* contiguity counts blocks that are
//! entirely free, *potential* contiguity counts blocks that perfect compaction could empty because
//! no frame in them is unmovable. The same code judges a simulated server and a live one, so it
//! takes a stream of runs in address order, keeps constant state and allocates nothing.

#![no_std]
#![forbid(unsafe_code)]

mod polluters;
mod sliding;

pub use polluters::{Polluted, Polluters};
pub use sliding::{Sample, SlidingMaximum, SlidingMinimum};

use contigua_units::Order;

/// Mobility of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Free.
    Free,
    /// In use, and the kernel can move its contents elsewhere.
    Movable,
    /// In use, and it stays where it is.
    Unmovable,
    /// Not memory that the kernel manages. A block of nothing else counts nowhere.
    Reserved,
}

/// The block sizes that are reported: 2 MB, 4 MB, 32 MB and 1 GB (Contiguitas, figure 4).
pub const ORDERS: [Order; 4] = [
    Order::HUGE_2M,
    Order::BUDDY_MAX,
    Order::BLOCK_32M,
    Order::HUGE_1G,
];

/// Counts of aligned blocks of one size. A block that memory ends within is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blocks {
    /// Blocks with at least one frame that is not reserved.
    pub total: u32,
    /// Blocks of free frames only.
    pub free: u32,
    /// Blocks that could be emptied: no frame is unmovable or reserved.
    pub potential: u32,
    /// Blocks that hold an unmovable frame.
    pub unmovable: u32,
}

/// The measures of one machine at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Contiguity {
    /// Free frames.
    pub free_frames: u64,
    /// Frames in use that can be moved.
    pub movable_frames: u64,
    /// Frames in use that cannot be moved.
    pub unmovable_frames: u64,
    /// Frames that the kernel does not manage.
    pub reserved_frames: u64,
    /// Blocks of 2 MB.
    pub blocks_2m: Blocks,
    /// Blocks of 4 MB.
    pub blocks_4m: Blocks,
    /// Blocks of 32 MB.
    pub blocks_32m: Blocks,
    /// Blocks of 1 GB.
    pub blocks_1g: Blocks,
}

impl Contiguity {
    /// Frames that the kernel manages.
    #[must_use]
    pub const fn managed_frames(&self) -> u64 {
        self.free_frames + self.movable_frames + self.unmovable_frames
    }

    /// Share of 2 MB blocks that hold an unmovable frame, 0 to 1.
    #[must_use]
    pub fn unmovable_block_share(&self) -> f64 {
        f64::from(self.blocks_2m.unmovable) / f64::from(self.blocks_2m.total.max(1))
    }

    /// The blocks of each size, in the order of [`ORDERS`].
    #[must_use]
    pub const fn blocks(&self) -> [(Order, Blocks); ORDERS.len()] {
        [
            (ORDERS[0], self.blocks_2m),
            (ORDERS[1], self.blocks_4m),
            (ORDERS[2], self.blocks_32m),
            (ORDERS[3], self.blocks_1g),
        ]
    }

    /// Measures of two memories together. A block lies in one of them.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = *self;
        sum.free_frames += other.free_frames;
        sum.movable_frames += other.movable_frames;
        sum.unmovable_frames += other.unmovable_frames;
        sum.reserved_frames += other.reserved_frames;
        for (blocks, (_, others)) in sum.blocks_mut().into_iter().zip(other.blocks()) {
            blocks.total += others.total;
            blocks.free += others.free;
            blocks.potential += others.potential;
            blocks.unmovable += others.unmovable;
        }
        sum
    }

    fn blocks_mut(&mut self) -> [&mut Blocks; ORDERS.len()] {
        [
            &mut self.blocks_2m,
            &mut self.blocks_4m,
            &mut self.blocks_32m,
            &mut self.blocks_1g,
        ]
    }
}

/// The block of one size that the scan is in.
#[derive(Clone, Copy, Default)]
struct Open {
    free: u32,
    movable: u32,
    unmovable: u32,
    reserved: u32,
}

impl Open {
    #[inline]
    fn with(mut self, kind: FrameKind, frames: u32) -> Self {
        match kind {
            FrameKind::Free => self.free += frames,
            FrameKind::Movable => self.movable += frames,
            FrameKind::Unmovable => self.unmovable += frames,
            FrameKind::Reserved => self.reserved += frames,
        }
        self
    }
}

/// Computes [`Contiguity`] from runs of frames in address order.
#[derive(Clone, Default)]
pub struct Scan {
    result: Contiguity,
    open: [Open; ORDERS.len()],
    position: u64,
}

impl Scan {
    /// A scan that begins at frame 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next `frames` frames, all of one kind.
    pub fn push(&mut self, kind: FrameKind, frames: u64) {
        let total = match kind {
            FrameKind::Free => &mut self.result.free_frames,
            FrameKind::Movable => &mut self.result.movable_frames,
            FrameKind::Unmovable => &mut self.result.unmovable_frames,
            FrameKind::Reserved => &mut self.result.reserved_frames,
        };
        *total += frames;
        let end = self.position + frames;
        if lies_within_a_block(self.position, end) {
            for open in &mut self.open {
                *open = open.with(kind, frames as u32);
            }
            self.position = end;
            return;
        }
        let open = self.open.iter_mut().zip(self.result.blocks_mut());
        for ((open, blocks), order) in open.zip(ORDERS) {
            for part in parts(self.position, end, order) {
                if let Part::Whole { blocks: count } = part {
                    close(
                        Open::default().with(kind, order.frames()),
                        count,
                        order,
                        blocks,
                    );
                    continue;
                }
                let Part::Piece { frames, ends } = part else {
                    continue;
                };
                *open = open.with(kind, frames);
                if ends {
                    close(core::mem::take(open), 1, order, blocks);
                }
            }
        }
        self.position = end;
    }

    /// The measures of everything that was pushed.
    #[must_use]
    pub fn finish(self) -> Contiguity {
        self.result
    }
}

fn close(open: Open, count: u32, order: Order, blocks: &mut Blocks) {
    let size = order.frames();
    let times = |is: bool| u32::from(is) * count;
    blocks.total += times(open.reserved < size);
    blocks.free += times(open.free == size);
    blocks.potential += times(open.free + open.movable == size);
    blocks.unmovable += times(open.unmovable > 0);
}

/// Part of a run of frames, by the aligned blocks of one size.
enum Part {
    /// Frames within one block.
    Piece {
        /// Number of frames.
        frames: u32,
        /// True if the block ends with them.
        ends: bool,
    },
    /// Blocks that lie within the run as a whole.
    Whole {
        /// Number of blocks.
        blocks: u32,
    },
}

/// Returns true if a run neither ends nor leaves the smallest block, and so no block: most runs of
/// a fragmented memory.
const fn lies_within_a_block(start: u64, end: u64) -> bool {
    start >> ORDERS[0].get() == end >> ORDERS[0].get()
}

/// Divides a run at the borders of blocks: the end of one, whole ones, the beginning of another. A
/// run that spans terabytes costs no more than one frame.
fn parts(start: u64, end: u64, order: Order) -> impl Iterator<Item = Part> {
    let size = u64::from(order.frames());
    let (first, last) = (start.next_multiple_of(size), end - end % size);
    let piece = |from: u64, to: u64| Part::Piece {
        frames: (to - from) as u32,
        ends: to.is_multiple_of(size),
    };
    let (head, whole, tail) = if first > end {
        (Some(piece(start, end)), 0, None)
    } else {
        let head = (start < first).then(|| piece(start, first));
        let tail = (last < end).then(|| piece(last, end));
        (head, (last - first) / size, tail)
    };
    let whole = (whole > 0).then_some(Part::Whole {
        blocks: whole as u32,
    });
    head.into_iter().chain(whole).chain(tail)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const KINDS: [FrameKind; 4] = [
        FrameKind::Free,
        FrameKind::Movable,
        FrameKind::Unmovable,
        FrameKind::Reserved,
    ];

    /// The definitions, read off a list of frames.
    fn naive(frames: &[FrameKind], order: Order) -> Blocks {
        let mut blocks = Blocks::default();
        for block in frames.chunks_exact(order.frames() as usize) {
            let has = |kind| block.contains(&kind);
            let only = |kinds: &[FrameKind]| block.iter().all(|kind| kinds.contains(kind));
            if only(&[FrameKind::Reserved]) {
                continue;
            }
            blocks.total += 1;
            blocks.free += u32::from(only(&[FrameKind::Free]));
            blocks.potential += u32::from(only(&[FrameKind::Free, FrameKind::Movable]));
            blocks.unmovable += u32::from(has(FrameKind::Unmovable));
        }
        blocks
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(32)))]
        #[test]
        fn the_scan_agrees_with_the_definitions(
            runs in proptest::collection::vec((0..4usize, 1..3000usize, 0..12usize), 1..30)
        ) {
            let mut scan = Scan::new();
            let mut frames = Vec::new();
            for (kind, count, huge) in runs {
                let count = count + usize::from(huge == 0) * 300_000;
                scan.push(KINDS[kind], count as u64);
                frames.extend(std::iter::repeat_n(KINDS[kind], count));
            }
            let mut result = scan.finish();
            for (blocks, order) in result.blocks_mut().into_iter().zip(ORDERS) {
                prop_assert_eq!(*blocks, naive(&frames, order));
            }
            let all = result.managed_frames() + result.reserved_frames;
            prop_assert_eq!(all, frames.len() as u64);
        }
    }

    #[test]
    fn one_unmovable_frame_pollutes_a_gigabyte() {
        let mut scan = Scan::new();
        let gigabyte = u64::from(Order::HUGE_1G.frames());
        scan.push(FrameKind::Free, 12_345);
        scan.push(FrameKind::Unmovable, 1);
        scan.push(FrameKind::Movable, gigabyte - 12_346);
        let result = scan.finish();
        assert_eq!(
            result.blocks_1g,
            Blocks {
                total: 1,
                free: 0,
                potential: 0,
                unmovable: 1
            }
        );
        assert_eq!(result.blocks_2m.unmovable, 1);
        assert_eq!(result.blocks_2m.potential, 511);
        assert_eq!(result.blocks_2m.free, 12_345 / 512);
        assert!(result.unmovable_block_share() < 0.002);
    }
}
