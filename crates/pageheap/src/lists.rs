//! Lists of huge pages, linked through their records.
//!
//! The filler wants the huge page with the shortest free run that still fits, and of those the
//! fullest (as `TCMalloc`'s filler does): then huge pages with long runs keep them for long requests,
//! and huge pages that are nearly empty become empty. Both go into one list number, so the search
//! is for the lowest number above a bound, in a bitmap of lists that are not empty.

use crate::HUGE_PAGES;
use crate::arena::{Block, Zeroed};
use crate::os::Os;
use crate::slab::{Directory, Huge};

/// Steps of fullness within one longest run.
const STEPS: u32 = 8;
/// Lists of a set.
const LISTS: usize = ((HUGE_PAGES + 1) * STEPS) as usize;
const WORDS: usize = LISTS.div_ceil(64);

// SAFETY: a missing `NonZeroU32` is zero.
unsafe impl Zeroed for Option<Huge> {}

/// Sets of huge pages in the order in which the filler uses them: those that lost nothing, since
/// using them costs nothing; tails of large allocations, which go when those go; those that were
/// broken, where every page has to be faulted in again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    Intact,
    Donated,
    Broken,
}

impl Set {
    pub(crate) const ALL: [Self; 3] = [Self::Intact, Self::Donated, Self::Broken];
}

/// All huge pages of the filler.
pub(crate) struct Lists {
    heads: Block<Option<Huge>>,
    /// Of each set, a bit for each list that is not empty, and one for each such word.
    words: [[u64; WORDS]; 3],
    summary: [u64; 3],
}

impl Lists {
    pub(crate) const fn new() -> Self {
        const { assert!(WORDS <= 64) };
        Self {
            heads: Block::EMPTY,
            words: [[0; WORDS]; 3],
            summary: [0; 3],
        }
    }

    /// Bytes of metadata.
    pub(crate) const BYTES: usize = 3 * LISTS * size_of::<Option<Huge>>();

    pub(crate) fn prepare<O: Os>(&mut self, os: &mut O) -> bool {
        Block::new(os, 3 * LISTS).is_some_and(|heads| {
            self.heads = heads;
            true
        })
    }

    /// The list of a huge page with this longest free run and use.
    #[inline]
    fn list(set: Set, longest_free: u32, used: u32) -> u16 {
        let fullness = used * STEPS / (HUGE_PAGES + 1);
        let list = longest_free * STEPS + (STEPS - 1 - fullness);
        (set as usize * LISTS) as u16 + list as u16
    }

    /// Set and list of a huge page.
    #[inline]
    pub(crate) fn home(directory: &Directory, huge: Huge) -> u16 {
        let record = directory.record(huge);
        let set = if directory.is_broken(huge) {
            Set::Broken
        } else if record.donated {
            Set::Donated
        } else {
            Set::Intact
        };
        Self::list(set, u32::from(record.longest_free), directory.used(huge))
    }

    /// The first of the lists whose huge pages have a free run of `pages`.
    #[inline]
    pub(crate) fn find(&self, set: Set, pages: u32) -> Option<Huge> {
        let words = &self.words[set as usize];
        let from = (pages * STEPS) as usize;
        let mut word = from / 64;
        let mut bits = words[word] & (u64::MAX << (from % 64));
        if bits == 0 {
            let later = self.summary[set as usize] & (u64::MAX << word) & !(1 << word);
            if later == 0 {
                return None;
            }
            word = later.trailing_zeros() as usize;
            bits = words[word];
        }
        let list = word * 64 + bits.trailing_zeros() as usize;
        self.heads[set as usize * LISTS + list]
    }

    /// Puts a huge page in its list.
    #[inline]
    pub(crate) fn insert(&mut self, directory: &mut Directory, huge: Huge) {
        let list = Self::home(directory, huge);
        let head = self.heads[list as usize];
        let record = directory.record_mut(huge);
        (record.list, record.next, record.previous) = (list, head, None);
        if let Some(head) = head {
            directory.record_mut(head).previous = Some(huge);
        } else {
            let (set, list) = (list as usize / LISTS, list as usize % LISTS);
            self.words[set][list / 64] |= 1 << (list % 64);
            self.summary[set] |= 1 << (list / 64);
        }
        self.heads[list as usize] = Some(huge);
    }

    /// Takes a huge page out of its list.
    #[inline]
    pub(crate) fn remove(&mut self, directory: &mut Directory, huge: Huge) {
        let record = directory.record(huge);
        let (list, next, previous) = (record.list, record.next, record.previous);
        if let Some(next) = next {
            directory.record_mut(next).previous = previous;
        }
        if let Some(previous) = previous {
            directory.record_mut(previous).next = next;
            return;
        }
        self.heads[list as usize] = next;
        if next.is_none() {
            let (set, list) = (list as usize / LISTS, list as usize % LISTS);
            self.words[set][list / 64] &= !(1 << (list % 64));
            if self.words[set][list / 64] == 0 {
                self.summary[set] &= !(1 << (list / 64));
            }
        }
    }

    /// Moves a huge page whose use or set changed to the list where it belongs now.
    #[inline]
    pub(crate) fn update(&mut self, directory: &mut Directory, huge: Huge) {
        if Self::home(directory, huge) != directory.record(huge).list {
            self.remove(directory, huge);
            self.insert(directory, huge);
        }
    }

    /// Number of huge pages in the lists, if every link and every list number is right.
    pub(crate) fn count(&self, directory: &Directory) -> Option<u64> {
        let mut count = 0;
        for (list, &head) in self.heads.iter().enumerate() {
            let (set, within) = (list / LISTS, list % LISTS);
            let flagged = self.words[set][within / 64] >> (within % 64) & 1 == 1;
            let summed = self.summary[set] >> (within / 64) & 1 == 1;
            if flagged != head.is_some() || flagged && !summed {
                return None;
            }
            let (mut previous, mut at) = (None, head);
            while let Some(huge) = at {
                let record = directory.record(huge);
                let here = usize::from(record.list) == list && record.previous == previous;
                if !here || Self::home(directory, huge) != record.list {
                    return None;
                }
                count += 1;
                (previous, at) = (at, record.next);
            }
        }
        Some(count)
    }
}

/// Whole free huge pages that have memory, last in first out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    head: Option<Huge>,
    tail: Option<Huge>,
    pub(crate) count: u32,
}

impl Queue {
    pub(crate) const fn new() -> Self {
        Self {
            head: None,
            tail: None,
            count: 0,
        }
    }

    /// The one that was freed last, whose memory is the likeliest to be in a CPU's cache.
    pub(crate) const fn newest(&self) -> Option<Huge> {
        self.head
    }

    /// The one that has been free for the longest time.
    pub(crate) const fn oldest(&self) -> Option<Huge> {
        self.tail
    }

    pub(crate) fn push(&mut self, directory: &mut Directory, huge: Huge) {
        let record = directory.record_mut(huge);
        (record.next, record.previous) = (self.head, None);
        match self.head {
            Some(head) => directory.record_mut(head).previous = Some(huge),
            None => self.tail = Some(huge),
        }
        self.head = Some(huge);
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, directory: &mut Directory, huge: Huge) {
        let record = directory.record(huge);
        let (next, previous) = (record.next, record.previous);
        match next {
            Some(next) => directory.record_mut(next).previous = previous,
            None => self.tail = previous,
        }
        match previous {
            Some(previous) => directory.record_mut(previous).next = next,
            None => self.head = next,
        }
        self.count -= 1;
    }
}
