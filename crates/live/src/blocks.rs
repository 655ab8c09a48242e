//! A scan by blocks of 2 MB: what each holds.

use std::io;

use contigua_units::Order;

use crate::census::Frames;
use crate::classify::Class;
use crate::scan::{Run, Sink};

/// Frames in a block.
pub const FRAMES: u64 = Order::HUGE_2M.frames() as u64;
/// Frames in a gigabyte.
const GIGABYTE: u64 = Order::HUGE_1G.frames() as u64;

/// Frames of a 2 MB block, by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first frame.
    pub start: u64,
    /// The zone of the first frame that has one.
    pub zone: Option<u16>,
    /// Frames by class.
    pub frames: Frames,
}

/// Calls a function for each block, in address order. Gigabytes without memory are passed over;
/// beyond memory's end, the last block is filled up with holes.
pub struct ByBlock<F> {
    position: u64,
    open: Block,
    each: F,
}

impl<F: FnMut(&Block) -> io::Result<()>> ByBlock<F> {
    /// Blocks for `each`.
    pub const fn new(each: F) -> Self {
        let open = Block {
            start: 0,
            zone: None,
            frames: Frames::NONE,
        };
        Self {
            position: 0,
            open,
            each,
        }
    }

    /// Hands out the last block.
    ///
    /// # Errors
    /// Those of the function.
    pub fn finish(&mut self) -> io::Result<()> {
        let left = self.position % FRAMES;
        if left > 0 {
            self.take(Run::hole(FRAMES - left))?;
        }
        Ok(())
    }

    fn add(&mut self, run: Run, frames: u64) -> io::Result<()> {
        self.open.frames.add(run.class, frames);
        self.open.zone = self.open.zone.or(run.zone);
        self.position += frames;
        if self.position.is_multiple_of(FRAMES) {
            (self.each)(&self.open)?;
            self.begin();
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.open = Block {
            start: self.position,
            zone: None,
            frames: Frames::NONE,
        };
    }
}

impl<F: FnMut(&Block) -> io::Result<()>> Sink for ByBlock<F> {
    fn take(&mut self, run: Run) -> io::Result<()> {
        let mut left = run.frames;
        while left > 0 {
            if run.class == Class::Hole
                && self.position.is_multiple_of(GIGABYTE)
                && left >= GIGABYTE
            {
                self.position += left - left % GIGABYTE;
                left %= GIGABYTE;
                self.begin();
                continue;
            }
            let here = left.min(FRAMES - self.position % FRAMES);
            self.add(run, here)?;
            left -= here;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_what_runs_bring_and_empty_gigabytes_are_passed_over() {
        let mut seen = Vec::new();
        let mut blocks = ByBlock::new(|block: &Block| {
            seen.push(*block);
            Ok(())
        });
        let run = |class, frames| Run {
            class,
            cgroup: 0,
            zone: Some(3),
            frames,
        };
        blocks.take(run(Class::Free, 500)).unwrap();
        blocks.take(run(Class::Slab, 20)).unwrap();
        blocks.take(Run::hole(5 * GIGABYTE - 520)).unwrap();
        blocks.take(run(Class::Free, 7)).unwrap();
        blocks.finish().unwrap();
        assert_eq!(seen.len(), 512 + 1);
        assert_eq!(seen[0].frames.of(Class::Free), 500);
        assert_eq!(seen[0].frames.of(Class::Slab), 12);
        assert_eq!(seen[1].frames.of(Class::Slab), 8);
        assert_eq!(seen[1].zone, Some(3));
        assert_eq!(seen[2].frames.of(Class::Hole), FRAMES);
        let last = seen[512];
        assert_eq!(last.start, 5 * GIGABYTE);
        assert_eq!(
            last.frames.of(Class::Free) + last.frames.of(Class::Hole),
            FRAMES
        );
    }
}
