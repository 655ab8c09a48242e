//! Free blocks by address: for each order a bitmap with summaries of 64 bits a word above it, so
//! that the lowest or highest free block is found in a few loads whatever the size of memory.

use contigua_units::{Frame, Order};

/// Orders 0 to 10.
pub(crate) const ORDERS: usize = Order::BUDDY_MAX.get() as usize + 1;

const BITS: usize = u64::BITS as usize;
/// Levels for 2^32 frames: 64^6 > 2^32.
const LEVELS: usize = 6;

/// Offsets of the levels of each order in the buffer of words.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub(crate) struct Ordered {
    /// Start of each level; level 0 has a bit for each block, the last one is a single word.
    starts: [[u32; LEVELS]; ORDERS],
    levels: [u8; ORDERS],
}

/// Words that the index of a memory needs.
pub(crate) fn words(frames: usize) -> usize {
    (0..ORDERS)
        .map(|order| sizes(frames >> order).sum::<usize>())
        .sum()
}

/// Words of each level for a number of blocks.
fn sizes(blocks: usize) -> impl Iterator<Item = usize> {
    let mut left = Some(blocks.max(1));
    core::iter::from_fn(move || {
        let words = left?.div_ceil(BITS);
        left = (words > 1).then_some(words);
        Some(words)
    })
}

impl Ordered {
    pub(crate) fn new(frames: usize) -> Self {
        let mut starts = [[0; LEVELS]; ORDERS];
        let mut levels = [0; ORDERS];
        let mut at = 0;
        for (order, (starts, levels)) in starts.iter_mut().zip(&mut levels).enumerate() {
            for (level, size) in sizes(frames >> order).enumerate() {
                starts[level] = at as u32;
                *levels = level as u8 + 1;
                at += size;
            }
        }
        Self { starts, levels }
    }

    fn levels(&self, order: Order) -> &[u32] {
        let order = order.get() as usize;
        &self.starts[order][..self.levels[order] as usize]
    }

    #[inline]
    pub(crate) fn insert(&self, words: &mut [u64], frame: Frame, order: Order) {
        let mut index = frame.index() >> order.get();
        for &start in self.levels(order) {
            let word = &mut words[start as usize + index / BITS];
            let was_empty = *word == 0;
            *word |= 1 << (index % BITS);
            if !was_empty {
                return;
            }
            index /= BITS;
        }
    }

    #[inline]
    pub(crate) fn remove(&self, words: &mut [u64], frame: Frame, order: Order) {
        let mut index = frame.index() >> order.get();
        for &start in self.levels(order) {
            let word = &mut words[start as usize + index / BITS];
            *word &= !(1 << (index % BITS));
            if *word != 0 {
                return;
            }
            index /= BITS;
        }
    }

    /// The free block of an order with the lowest address.
    #[inline]
    pub(crate) fn lowest(&self, words: &[u64], order: Order) -> Option<Frame> {
        self.descend(words, order, u64::trailing_zeros)
    }

    /// The free block of an order with the highest address.
    #[inline]
    pub(crate) fn highest(&self, words: &[u64], order: Order) -> Option<Frame> {
        self.descend(words, order, u64::ilog2)
    }

    /// The free block of an order with the highest address of those that end at `end` or before.
    pub(crate) fn highest_below(&self, words: &[u64], order: Order, end: Frame) -> Option<Frame> {
        let levels = self.levels(order);
        let mut index = end.index() >> order.get();
        for (level, &start) in levels.iter().enumerate() {
            let is_top = level + 1 == levels.len();
            let (word, before) = match (index / BITS, index % BITS) {
                // The end of memory: all of the last level's only word.
                (1, 0) if is_top => (0, words[start as usize]),
                (word, 0) => (word, 0),
                (word, bits) => {
                    let below = (1 << bits) - 1;
                    (word, words[start as usize + word] & below)
                }
            };
            if before != 0 {
                let mut found = word * BITS + before.ilog2() as usize;
                for &start in levels[..level].iter().rev() {
                    found = found * BITS + words[start as usize + found].ilog2() as usize;
                }
                return Some(Frame::new((found << order.get()) as u32));
            }
            index = word;
        }
        None
    }

    fn descend(&self, words: &[u64], order: Order, pick: impl Fn(u64) -> u32) -> Option<Frame> {
        let mut index = 0;
        for &start in self.levels(order).iter().rev() {
            let word = words[start as usize + index];
            if word == 0 {
                return None;
            }
            index = index * BITS + pick(word) as usize;
        }
        Some(Frame::new((index << order.get()) as u32))
    }

    pub(crate) fn contains(&self, words: &[u64], frame: Frame, order: Order) -> bool {
        let index = frame.index() >> order.get();
        let start = self.levels(order)[0] as usize;
        words[start + index / BITS] >> (index % BITS) & 1 == 1
    }

    /// Blocks of an order that are in the index.
    pub(crate) fn count(&self, words: &[u64], order: Order, frames: usize) -> u32 {
        let start = self.levels(order)[0] as usize;
        let length = (frames >> order.get()).max(1).div_ceil(BITS);
        words[start..start + length]
            .iter()
            .map(|word| word.count_ones())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec;

    proptest! {
        #[test]
        fn the_index_agrees_with_a_sorted_set(
            frames in 1..300_000usize,
            order in 0..=10u8,
            changes in proptest::collection::vec((any::<u32>(), any::<bool>()), 1..200),
        ) {
            let order = Order::new(order);
            let index = Ordered::new(frames);
            let mut words = vec![0; super::words(frames)];
            let mut model = BTreeSet::new();
            let blocks = (frames >> order.get()) as u32;
            prop_assume!(blocks > 0);
            for (at, insert) in changes {
                let frame = Frame::new((at % blocks) << order.get());
                if insert {
                    index.insert(&mut words, frame, order);
                    model.insert(frame);
                } else {
                    index.remove(&mut words, frame, order);
                    model.remove(&frame);
                }
                prop_assert_eq!(index.lowest(&words, order), model.first().copied());
                prop_assert_eq!(index.highest(&words, order), model.last().copied());
                for end in [frame, Frame::new(frames as u32), Frame::new(at % frames as u32)] {
                    let last = Frame::new(end.get() >> order.get() << order.get());
                    let below = model.range(..last).next_back().copied();
                    prop_assert_eq!(index.highest_below(&words, order, end), below);
                }
                prop_assert_eq!(index.count(&words, order, frames) as usize, model.len());
                prop_assert_eq!(index.contains(&words, frame, order), insert);
            }
        }
    }
}
