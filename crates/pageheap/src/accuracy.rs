//! Was it right not to give memory back? (Adaptive Subrelease, section 4.2)
//!
//! Withheld memory is a slice of the mapped size: from what would have remained to what
//! remains. If demand reaches into the slice within Δ, the part below the demand was rightly kept;
//! what no demand reached when Δ is over was not.
//!
//! No byte may be withheld twice at a time, so a slice begins below those that are still open: had
//! they been given back, the next release would have begun there. Slices are therefore in order of
//! both age and height, the newest is the lowest; demand takes from one end of a queue and time
//! from the other, each slice once.

use crate::arena::{Block, Zeroed};
use crate::os::Os;

/// One slice an epoch of the longest Δ, which the series bounds to fewer epochs than this.
const CAPACITY: usize = 1024;

/// Heap pages that were withheld, from above the first to the second, and the epoch in which they
/// count as wrongly withheld.
#[derive(Clone, Copy, Debug)]
struct Slice {
    bottom: u64,
    top: u64,
    until: u64,
}

// SAFETY: integers.
unsafe impl Zeroed for Slice {}

/// Withheld memory, by whether withholding it proved correct, in heap pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub total: u64,
    pub correct: u64,
    pub incorrect: u64,
}

pub(crate) struct Accuracy {
    slices: Block<Slice>,
    head: usize,
    length: usize,
    /// The bottom of the lowest slice.
    lowest: u64,
    pub(crate) skipped: Skipped,
}

impl Accuracy {
    /// Bytes of metadata.
    pub(crate) const BYTES: usize = CAPACITY * size_of::<Slice>();

    pub(crate) const fn new() -> Self {
        Self {
            slices: Block::EMPTY,
            head: 0,
            length: 0,
            lowest: u64::MAX,
            skipped: Skipped {
                total: 0,
                correct: 0,
                incorrect: 0,
            },
        }
    }

    pub(crate) fn prepare<O: Os>(&mut self, os: &mut O) -> bool {
        Block::new(os, CAPACITY).is_some_and(|slices| {
            self.slices = slices;
            true
        })
    }

    fn newest(&mut self) -> Option<&mut Slice> {
        let last = (self.head + self.length.checked_sub(1)?) % CAPACITY;
        Some(&mut self.slices[last])
    }

    /// Below which mapped size further memory can be withheld, if `mapped` heap pages are mapped.
    pub(crate) fn top(&self, mapped: u64) -> u64 {
        mapped.min(self.lowest)
    }

    /// Notes that `pages` heap pages below [`top`](Self::top) were not given back; demand can
    /// justify it before epoch `until` begins.
    pub(crate) fn withhold(&mut self, pages: u64, mapped: u64, until: u64) {
        if pages == 0 {
            return;
        }
        let top = self.top(mapped);
        let bottom = top.saturating_sub(pages);
        self.skipped.total += top - bottom;
        let full = self.length == CAPACITY;
        match self.newest() {
            Some(slice) if slice.bottom == top && (slice.until == until || full) => {
                slice.bottom = bottom;
            }
            _ => {
                // A full queue cannot be: the series has fewer epochs. It would only lose detail.
                if full {
                    self.expire_oldest();
                }
                let end = (self.head + self.length) % CAPACITY;
                self.slices[end] = Slice { bottom, top, until };
                self.length += 1;
            }
        }
        self.lowest = bottom;
    }

    /// Notes that `used` heap pages are in use.
    #[inline]
    pub(crate) fn demand(&mut self, used: u64) {
        if used > self.lowest {
            self.confirm(used);
        }
    }

    #[cold]
    fn confirm(&mut self, used: u64) {
        let mut correct = 0;
        let mut left = None;
        while let Some(slice) = self.newest() {
            let reached = used.min(slice.top).max(slice.bottom);
            correct += reached - slice.bottom;
            slice.bottom = reached;
            if slice.bottom < slice.top {
                left = Some(slice.bottom);
                break;
            }
            self.length -= 1;
        }
        self.lowest = left.unwrap_or(u64::MAX);
        self.skipped.correct += correct;
    }

    fn expire_oldest(&mut self) {
        let slice = self.slices[self.head];
        self.skipped.incorrect += slice.top - slice.bottom;
        self.head = (self.head + 1) % CAPACITY;
        self.length -= 1;
        if self.length == 0 {
            self.lowest = u64::MAX;
        }
    }

    /// Closes slices whose time is over when epoch `current` has begun.
    pub(crate) fn expire(&mut self, current: u64) {
        while self.length > 0 && self.slices[self.head].until <= current {
            self.expire_oldest();
        }
    }

    /// Makes epochs `factor` times as long.
    pub(crate) fn coarsen(&mut self, factor: u64) {
        for slice in self.slices.iter_mut() {
            slice.until = slice.until.div_ceil(factor);
        }
    }

    /// Withheld and not decided yet, in heap pages.
    pub(crate) fn open(&self) -> u64 {
        (0..self.length)
            .map(|index| self.slices[(self.head + index) % CAPACITY])
            .map(|slice| slice.top - slice.bottom)
            .sum()
    }
}

#[cfg(all(test, feature = "replay"))]
mod tests {
    use super::*;
    use crate::replay::VirtualOs;
    use core::cell::Cell;
    use std::rc::Rc;

    fn accuracy() -> (VirtualOs, Accuracy) {
        let mut os = VirtualOs::new(Rc::new(Cell::new(0)));
        let mut accuracy = Accuracy::new();
        assert!(accuracy.prepare(&mut os));
        (os, accuracy)
    }

    #[test]
    fn the_example_of_the_paper_is_half_right() {
        // Section 4.2: 500 MB withheld above 500 MB; a peak of 750 MB comes, none above.
        let (_os, mut accuracy) = accuracy();
        accuracy.withhold(500, 1000, 61);
        accuracy.demand(750);
        assert_eq!((accuracy.skipped.correct, accuracy.open()), (250, 250));
        accuracy.demand(700);
        accuracy.demand(750);
        assert_eq!(accuracy.skipped.correct, 250);
        accuracy.expire(60);
        assert_eq!(accuracy.skipped.incorrect, 0);
        accuracy.expire(61);
        assert_eq!(accuracy.skipped.incorrect, 250);
        assert_eq!(accuracy.open(), 0);
    }

    #[test]
    fn memory_withheld_each_second_is_counted_anew() {
        let (_os, mut accuracy) = accuracy();
        for epoch in 0..10 {
            accuracy.withhold(10, 1000, epoch + 60);
        }
        assert_eq!(accuracy.skipped.total, 100);
        assert_eq!(accuracy.top(1000), 900);
        // The last slice, 900 to 910, entirely; half of the one before.
        accuracy.demand(915);
        assert_eq!(accuracy.skipped.correct, 15);
        assert_eq!(accuracy.top(1000), 915);
        accuracy.demand(2000);
        assert_eq!(accuracy.skipped.correct, 100);
        assert_eq!(accuracy.top(1000), 1000);
        accuracy.expire(u64::MAX);
        assert_eq!(accuracy.skipped.incorrect, 0);
    }
}
