//! Giving memory back in three steps, so that a heap behind a lock need not hold it while the system
//! works: the heap says what may go ([`Leaving`]), its caller gives that to the system without the
//! lock, and the heap notes what came of it. Meanwhile nobody gets that memory.

use super::PageHeap;
use crate::bits::Bits;
use crate::os::Os;
use crate::slab::{Huge, SLAB_HUGE, State};
use crate::{HUGE_PAGES, PAGE_BYTES};

/// Free memory of one huge page that is on its way to the system. It must come back to
/// [`PageHeap::end_release`].
#[derive(Debug)]
#[must_use]
pub struct Leaving {
    huge: Huge,
    address: usize,
    bits: Bits,
    whole: bool,
    rank: Rank,
    gone: Bits,
}

/// Order in which partly used huge pages are released: broken ones first, then those that are used
/// least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(bool, u32, usize);

impl Leaving {
    /// Its place in the order, to go on behind it if the system refuses.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Gives each run of bytes to `release`, by address and length, which says whether it went.
    pub fn give(&mut self, mut release: impl FnMut(usize, usize) -> bool) {
        for (from, to) in self.bits.runs() {
            let address = self.address + from as usize * PAGE_BYTES;
            if release(address, (to - from) as usize * PAGE_BYTES) {
                self.gone = self.gone.or(Bits::range(from, to));
            }
        }
    }
}

impl<O: Os> PageHeap<O> {
    /// Takes a whole free huge page that is to be given back, of at most `most` heap pages with memory.
    pub fn begin_whole(&mut self, most: u64) -> Option<Leaving> {
        let huge = self.next_whole()?;
        if u64::from(HUGE_PAGES - self.directory.released(huge)) > most {
            return None;
        }
        if self.directory.state(huge) == State::Region {
            let bits = self.directory.record(huge).free_mapped();
            return Some(self.begin(huge, bits));
        }
        self.uncache(huge);
        self.directory.set_state(huge, State::Leaving);
        Some(Leaving {
            huge,
            address: self.directory.address(huge),
            bits: Bits::ALL,
            whole: true,
            rank: self.rank(huge),
            gone: Bits::NONE,
        })
    }

    /// Takes up to `most` free heap pages of a partly used huge page that are to be given back: of one
    /// that is broken already, else of the one that is used least; behind `after` in this order.
    pub fn begin_part(&mut self, most: u64, after: Option<Rank>) -> Option<Leaving> {
        if most == 0 || self.counts.mapped <= self.counts.used {
            return None;
        }
        let huge = self
            .partly_used()
            .filter(|&huge| after.is_none_or(|after| self.rank(huge) > after))
            .min_by_key(|&huge| self.rank(huge))?;
        let mut left = u32::try_from(most).unwrap_or(u32::MAX);
        let mut bits = Bits::NONE;
        for (from, to) in self.directory.record(huge).free_mapped().runs() {
            let to = to.min(from.saturating_add(left));
            if from == to {
                break;
            }
            left -= to - from;
            bits = bits.or(Bits::range(from, to));
        }
        Some(self.begin(huge, bits))
    }

    fn rank(&self, huge: Huge) -> Rank {
        Rank(
            !self.directory.is_broken(huge),
            self.directory.used(huge),
            huge.slab() * SLAB_HUGE + huge.place(),
        )
    }

    /// Takes free pages with memory.
    fn begin(&mut self, huge: Huge, bits: Bits) -> Leaving {
        let rank = self.rank(huge);
        self.take_pages(huge, bits);
        self.measure(huge);
        self.counts.leaving += u64::from(bits.count());
        Leaving {
            huge,
            address: self.directory.address(huge),
            bits,
            whole: false,
            rank,
            gone: Bits::NONE,
        }
    }

    /// Notes what became of memory that was to be given back. How many heap pages went.
    #[allow(clippy::needless_pass_by_value, reason = "it may be ended once only")]
    pub fn end_release(&mut self, leaving: Leaving) -> u64 {
        let (huge, bits, gone) = (leaving.huge, leaving.bits, leaving.gone);
        let released = if leaving.whole {
            self.cache(huge);
            if gone == bits {
                self.note_whole(huge)
            } else {
                0
            }
        } else {
            self.counts.leaving -= u64::from(bits.count());
            self.give_pages(huge, bits);
            self.measure(huge);
            let nothing = self.directory.used(huge) == 0
                && self.directory.record(huge).released.or(gone) == Bits::ALL;
            if nothing {
                self.note_whole(huge)
            } else {
                self.note_part(huge, gone)
            }
        };
        self.note();
        released
    }

    /// Finds the longest free run anew, which taking and giving pages do for one run only.
    fn measure(&mut self, huge: Huge) {
        let record = self.directory.record_mut(huge);
        record.longest_free = record.free().longest_run() as u16;
        if self.directory.state(huge) == State::Filler {
            self.lists.update(&mut self.directory, huge);
        }
    }

    /// The address of a huge page whose memory is all there again, and which the system is to make
    /// whole. What came of it is for [`end_collapse`](Self::end_collapse).
    pub fn begin_collapse(&mut self) -> Option<usize> {
        self.next_to_collapse()
            .map(|huge| self.directory.address(huge))
    }

    /// Notes that a huge page became whole, unless a part of it was given back meanwhile. Whether it
    /// is.
    pub fn end_collapse(&mut self, address: usize) -> bool {
        self.directory.find(address).is_some_and(|huge| {
            let whole = self.directory.is_broken(huge) && self.directory.released(huge) == 0;
            if whole {
                // It may have been freed meanwhile, and its queue depends on whether it is broken.
                let is_free = self.directory.state(huge) == State::Cached;
                if is_free {
                    self.uncache(huge);
                }
                self.note_collapse(huge);
                if is_free {
                    self.cache(huge);
                }
            }
            whole
        })
    }
}
