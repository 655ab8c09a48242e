//! Demand for whole huge pages: how many are worth keeping.
//!
//! Free memory that is needed again within Δ was not free (Contiguitas measures unavailable memory in the same
//! way: what returns within its scheduling period). Used memory alone does not tell: requests above a huge page
//! need huge pages in a row, so a heap may need more memory than its program uses.

use crate::early::{MEMORY, TOLERATED};

/// Sizes of the heap at one moment, in heap pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub used: u64,
    pub mapped: u64,
    /// Given back so far, as whole huge pages.
    pub released: u64,
    /// Of those, backed again so far.
    pub returned: u64,
    /// Requests so far that free huge pages did not serve because they were not in a row.
    pub scattered: u64,
}

/// The largest demand within the last window, and how long that is. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Largest demand in the open window and in the one before, and the present demand.
    peaks: [u64; 2],
    level: u64,
    /// When the open window ends, how long it is, and until when it may be longer than the shortest.
    end: u64,
    window: u64,
    longer_until: u64,
    /// Totals of the last call.
    released: u64,
    returned: u64,
    scattered: u64,
    /// Heap pages released between `began` and Δ before `until`, and of those the pages that returned.
    gone: u64,
    back: u64,
    began: u64,
    until: u64,
}

impl Demand {
    pub(crate) const fn new() -> Self {
        Self {
            peaks: [0; 2],
            level: 0,
            end: 0,
            window: 0,
            longer_until: 0,
            released: 0,
            returned: 0,
            scattered: 0,
            gone: 0,
            back: 0,
            began: 0,
            until: 0,
        }
    }

    /// Notes the sizes after a change of the heap. The window is `shortest` unless memory returned, and at most
    /// `longest` (Δ).
    #[inline]
    pub(crate) fn note(&mut self, now: u64, sizes: Sizes, shortest: u64, longest: u64) {
        if now >= self.end {
            self.advance(now, shortest, longest);
        }
        self.level = sizes.used;
        self.peaks[0] = self.peaks[0].max(self.level);
        let same = sizes.released == self.released
            && sizes.returned == self.returned
            && sizes.scattered == self.scattered;
        if !same {
            self.follow(now, sizes, longest);
        }
    }

    /// Opens the window of `now`.
    #[cold]
    fn advance(&mut self, now: u64, shortest: u64, longest: u64) {
        if self.is_over(now) {
            self.window = shortest;
        }
        if now >= self.until {
            (self.gone, self.back) = (0, 0);
        }
        let next = self.end.saturating_add(self.window);
        let adjacent = now < next;
        self.peaks = [
            self.level,
            if adjacent { self.peaks[0] } else { self.level },
        ];
        self.window = self.window.max(shortest).min(longest).max(1);
        self.end = if adjacent {
            next
        } else {
            now.saturating_add(self.window)
        };
    }

    /// Follows memory that is given back and memory that returns.
    #[cold]
    fn follow(&mut self, now: u64, sizes: Sizes, longest: u64) {
        let gone = sizes.released - self.released;
        let back = sizes.returned - self.returned;
        (self.released, self.returned) = (sizes.released, sizes.returned);
        if gone > 0 {
            if self.gone == 0 || now >= self.until {
                (self.gone, self.back, self.began) = (0, 0, now);
            }
            self.gone += gone;
            self.until = now.saturating_add(longest);
        }
        let returns = back > 0 && now < self.until;
        if returns || sizes.scattered != self.scattered {
            self.scattered = sizes.scattered;
            // The heap grew although memory was free, so that was part of the demand. It is bounded, because
            // pieces may be too small for ever.
            let demand = sizes.mapped.min(sizes.used.saturating_mul(2));
            self.peaks[0] = self.peaks[0].max(demand);
        }
        if returns {
            self.back += back;
            if self.gone > 0 && self.back >= self.gone.div_ceil(TOLERATED) {
                let absence = self.window.saturating_add(now - self.began);
                let window = absence.saturating_mul(2).min(longest);
                self.longer_until = now.saturating_add(longest.saturating_mul(MEMORY));
                self.end = self.end.max(now.saturating_add(window));
                self.window = window;
                (self.gone, self.back) = (0, 0);
            }
        }
    }

    /// The largest demand within the last window, in heap pages.
    pub(crate) fn peak(&self, now: u64) -> u64 {
        let [open, before] = self.peaks;
        if now < self.end {
            open.max(before)
        } else if now < self.end.saturating_add(self.window) {
            open.max(self.level)
        } else {
            self.level
        }
    }

    /// Returns true if a longer window is no longer justified: no released memory returned, or that
    /// was long ago.
    const fn is_over(&self, now: u64) -> bool {
        now >= self.longer_until || self.gone > 0 && now >= self.until
    }

    /// Returns true if no memory that was released lately returned.
    pub(crate) const fn is_steady(&self, now: u64, shortest: u64) -> bool {
        self.window <= shortest || self.is_over(now)
    }
}
