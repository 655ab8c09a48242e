//! Pollution by owner: the blocks that each owner has a frame in, and those that it pollutes alone.

use contigua_units::Order;

use crate::{ORDERS, Part, lies_within_a_block, parts};

/// Blocks of one size that an owner's frames lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Polluted {
    /// Blocks with a frame of this owner.
    pub blocks: u32,
    /// Those of them with no other owner's frame: what would be won if this owner went elsewhere.
    pub alone: u32,
}

/// Counts [`Polluted`] blocks from runs of frames in address order.
///
/// Owners are numbers below `OWNERS`, at most 32. Like [`Scan`](crate::Scan) it has constant state,
/// and a block that memory ends within is not counted.
#[derive(Clone)]
pub struct Polluters<const OWNERS: usize> {
    result: [[Polluted; OWNERS]; ORDERS.len()],
    /// Owners in the block of each size that the scan is in, as bits.
    open: [u32; ORDERS.len()],
    position: u64,
}

impl<const OWNERS: usize> Default for Polluters<OWNERS> {
    fn default() -> Self {
        const { assert!(OWNERS <= 32, "owners are bits of a word") };
        Self {
            result: [[Polluted::default(); OWNERS]; ORDERS.len()],
            open: [0; ORDERS.len()],
            position: 0,
        }
    }
}

impl<const OWNERS: usize> Polluters<OWNERS> {
    /// A scan that begins at frame 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next `frames` frames, which pollute blocks for `owner`, or pollute nothing.
    ///
    /// # Panics
    /// When `owner` is not below `OWNERS`.
    pub fn push(&mut self, owner: Option<usize>, frames: u64) {
        let bit = owner.map_or(0, |owner| {
            assert!(owner < OWNERS, "owner {owner} of {OWNERS}");
            1_u32 << owner
        });
        let end = self.position + frames;
        if lies_within_a_block(self.position, end) {
            for open in &mut self.open {
                *open |= bit;
            }
            self.position = end;
            return;
        }
        let orders = self.open.iter_mut().zip(&mut self.result);
        for ((open, result), order) in orders.zip(ORDERS) {
            for part in parts(self.position, end, order) {
                match part {
                    Part::Whole { blocks } => close(bit, blocks, result),
                    Part::Piece { ends, .. } => {
                        *open |= bit;
                        if ends {
                            close(core::mem::take(open), 1, result);
                        }
                    }
                }
            }
        }
        self.position = end;
    }

    /// Polluted blocks of each owner, by block size.
    #[must_use]
    pub fn finish(self) -> [(Order, [Polluted; OWNERS]); ORDERS.len()] {
        core::array::from_fn(|index| (ORDERS[index], self.result[index]))
    }
}

fn close(mut owners: u32, blocks: u32, result: &mut [Polluted]) {
    let is_alone = owners.is_power_of_two();
    while owners != 0 {
        let polluted = &mut result[owners.trailing_zeros() as usize];
        polluted.blocks += blocks;
        polluted.alone += u32::from(is_alone) * blocks;
        owners &= owners - 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(32)))]
        #[test]
        fn polluted_blocks_are_those_with_a_frame_of_the_owner(
            runs in proptest::collection::vec(
                (proptest::option::of(0..3_usize), 1..3000_usize, 0..12_usize), 1..30)
        ) {
            let mut polluters = Polluters::<3>::new();
            let mut frames = Vec::new();
            for (owner, count, huge) in runs {
                let count = count + usize::from(huge == 0) * 300_000;
                polluters.push(owner, count as u64);
                frames.extend(std::iter::repeat_n(owner, count));
            }
            for (order, result) in polluters.finish() {
                let mut expected = [Polluted::default(); 3];
                for block in frames.chunks_exact(order.frames() as usize) {
                    let owners: BTreeSet<usize> = block.iter().copied().flatten().collect();
                    for &owner in &owners {
                        expected[owner].blocks += 1;
                        expected[owner].alone += u32::from(owners.len() == 1);
                    }
                }
                prop_assert_eq!(result, expected);
            }
        }
    }
}
