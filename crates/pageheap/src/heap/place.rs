//! Placement of a request: in the filler, a region, or huge pages of its own.

use super::{PageHeap, Refusal, pieces};
use crate::bits::Bits;
use crate::lists::Set;
use crate::os::Os;
use crate::slab::{Huge, State};
use crate::{Allocated, HUGE_BYTES, HUGE_PAGES, PAGE_BYTES, Span};

/// A request would waste too much of huge pages of its own if its last one stayed empty by this
/// share of all of them, 1/8 (our choice): a tail of which the filler can make use when it needs
/// room, but which nobody may ever need.
const WASTE_SHARE: u64 = 8;

/// Retries of a refused request after a release. What makes room may change where the request goes
/// and so how much room it needs; more than twice was never seen.
const ATTEMPTS: u32 = 4;

impl<O: Os> PageHeap<O> {
    /// Serves a request as things are.
    pub(super) fn place(&mut self, pages: u32, align_pages: u32) -> Result<Allocated, Refusal> {
        if pages < HUGE_PAGES
            && let Some((huge, page)) = self.find_in_filler(pages, align_pages)
        {
            let bits = Bits::range(page, page + pages);
            if self.directory.released(huge) > 0 {
                let record = self.directory.record(huge);
                self.check_limit(u64::from(record.released.and(bits).count()))?;
            }
            self.directory.record_mut(huge).donated = false;
            let zeroed = self.take_pages(huge, bits);
            let address = self.directory.page_address(huge, page);
            let span = Span { address, pages };
            let mut allocated = Allocated::new(span);
            if !zeroed {
                allocated.soil(address, span.bytes());
            }
            return Ok(allocated);
        }
        if pages > HUGE_PAGES / 2 && align_pages == 1 && self.wastes(pages) {
            match self.place_in_region(pages) {
                // Other huge pages may be free without asking the system.
                Err(Refusal::Addresses | Refusal::Memory) => {}
                answer => return answer,
            }
        }
        // What can never succeed does not cost addresses and records first.
        let limit = self.config.hard_limit / PAGE_BYTES as u64;
        let least = self.counts.used + u64::from(pages);
        if least > limit {
            return Err(Refusal::Limit(least - limit));
        }
        let align = (align_pages as usize).saturating_mul(PAGE_BYTES);
        let count = pages.div_ceil(HUGE_PAGES);
        let address = self.take_run(count, align.max(HUGE_BYTES))?;
        let span = Span { address, pages };
        let mut allocated = Allocated::new(span);
        for (address, bits) in pieces(span) {
            if let Some(huge) = self.directory.find(address)
                && !self.occupy(huge, bits, pages > HUGE_PAGES)
            {
                allocated.soil(address, bits.count() as usize * PAGE_BYTES);
            }
        }
        Ok(allocated)
    }

    /// Serves a request that was refused, if giving back free memory makes room for it.
    #[cold]
    pub(super) fn place_after_release(
        &mut self,
        pages: u32,
        align_pages: u32,
        mut refusal: Refusal,
    ) -> Result<Allocated, Refusal> {
        for _ in 0..ATTEMPTS {
            let (whole, partial) = self.release_pages(self.wanted(pages, refusal));
            if whole + partial == 0 {
                break;
            }
            self.counts.released_for_limit += whole + partial;
            match self.place(pages, align_pages) {
                Ok(allocated) => return Ok(allocated),
                Err(again) => refusal = again,
            }
        }
        Err(refusal)
    }

    /// Heap pages of free memory that have to go back before a request that was refused can be served.
    pub(super) fn wanted(&self, pages: u32, refusal: Refusal) -> u64 {
        let limit = self.config.hard_limit / PAGE_BYTES as u64;
        match refusal {
            // Free memory is not given up for what would fail all the same.
            Refusal::Limit(_) if self.counts.used + u64::from(pages) > limit => 0,
            Refusal::Limit(excess) => excess,
            Refusal::Memory => u64::from(pages),
            Refusal::Addresses | Refusal::Needs(_) => 0,
        }
    }

    /// Heap pages by which mapped memory is above the soft or the hard limit.
    pub fn excess(&self) -> u64 {
        let limit = self.config.soft_limit.min(self.config.hard_limit) / PAGE_BYTES as u64;
        self.counts.mapped.saturating_sub(limit)
    }

    /// Counts heap pages that went back in steps because of a limit.
    pub fn count_for_limit(&mut self, pages: u64) {
        self.counts.released_for_limit += pages;
    }

    /// Gives free memory back while mapped memory is above the soft or the hard limit.
    pub(super) fn keep_soft_limit(&mut self) {
        let excess = self.excess();
        if excess > 0 {
            let (whole, partial) = self.release_pages(excess);
            self.counts.released_for_limit += whole + partial;
        }
    }

    /// Makes a span longer where it is.
    pub(super) fn grow(&mut self, span: Span, pages: u32) -> Result<Span, Refusal> {
        let elsewhere = Refusal::Addresses;
        let added = Span {
            address: span.end(),
            pages: pages - span.pages,
        };
        let end = added.address.checked_add(added.bytes()).ok_or(elsewhere)?;
        let mut missing = 0;
        let mut fresh = None;
        let mut count = 0;
        for (address, bits) in pieces(added) {
            let huge = self.directory.find(address).ok_or(elsewhere)?;
            let record = self.directory.record(huge);
            match self.directory.state(huge) {
                State::Filler | State::Region if record.free().contains(bits) => {
                    missing += u64::from(record.released.and(bits).count());
                    // A region's huge page may have no memory yet; what its first page brings is
                    // all of it.
                    if self.directory.released(huge) == HUGE_PAGES {
                        missing += u64::from(HUGE_PAGES - bits.count());
                    }
                }
                State::Unbacked | State::Cached if pages > HUGE_PAGES / 2 => {
                    missing += u64::from(self.directory.released(huge));
                    fresh = fresh.or(Some(address));
                    count += 1;
                }
                _ => return Err(elsewhere),
            }
        }
        self.check_limit(missing)?;
        // Free huge pages need not be in one row: a region's may lie between them. Then it is not
        // worth it.
        if let Some(first) = fresh {
            let row = (0..count).all(|i| {
                let huge = self.directory.find(first + i as usize * HUGE_BYTES);
                huge.is_some_and(|huge| {
                    matches!(self.directory.state(huge), State::Unbacked | State::Cached)
                })
            });
            if !row {
                return Err(elsewhere);
            }
        }
        self.require(added.address & !(HUGE_BYTES - 1), end)?;
        for (address, _) in pieces(added) {
            let huge = self.directory.find(address).ok_or(elsewhere)?;
            if self.directory.state(huge) == State::Region && !self.back_in_region(huge) {
                return Err(Refusal::Memory);
            }
        }
        if let Some(first) = fresh {
            self.take_at(first, count)?;
        }
        for (address, bits) in pieces(added) {
            let huge = self.directory.find(address).ok_or(elsewhere)?;
            if self.directory.state(huge) == State::Large {
                self.occupy(huge, bits, true);
            } else {
                self.take_pages(huge, bits);
            }
        }
        Ok(Span { pages, ..span })
    }

    /// A huge page of the filler with room, and the page where it is.
    #[inline]
    fn find_in_filler(&self, pages: u32, align_pages: u32) -> Option<(Huge, u32)> {
        // Any run of this length has an aligned one in it.
        let need = pages.saturating_add(align_pages - 1);
        if need > HUGE_PAGES {
            return None;
        }
        let huge = Set::ALL
            .into_iter()
            .find_map(|set| self.lists.find(set, need))?;
        let starts = self.directory.record(huge).free().starts(pages);
        let mut page = starts.next(0);
        while !page.is_multiple_of(align_pages) {
            page = starts.next(page + 1);
        }
        Some((huge, page))
    }

    /// Returns true if a request would leave much of its huge pages unused while the filler has
    /// more room than it needs.
    fn wastes(&self, pages: u32) -> bool {
        let own = u64::from(pages).next_multiple_of(u64::from(HUGE_PAGES));
        let counts = &self.counts;
        let slack = counts.mapped - counts.used - counts.cached - counts.region_whole;
        own - u64::from(pages) >= own / WASTE_SHARE
            && slack * PAGE_BYTES as u64 >= self.config.region_slack
    }

    /// Gives pages of a huge page that was just taken to a request; the rest, if there is one, to
    /// the filler. Whether the pages are zero.
    fn occupy(&mut self, huge: Huge, bits: Bits, donated: bool) -> bool {
        if bits != Bits::ALL {
            self.directory.set_state(huge, State::Filler);
            self.directory.record_mut(huge).donated = donated;
            self.lists.insert(&mut self.directory, huge);
        }
        self.take_pages(huge, bits)
    }

    /// Marks free pages of a huge page used. Whether they are zero.
    #[inline]
    pub(super) fn take_pages(&mut self, huge: Huge, bits: Bits) -> bool {
        let state = self.directory.state(huge);
        if state == State::Region {
            self.enter_region(huge, bits.count());
        }
        self.fault_in(huge, bits);
        let record = self.directory.record_mut(huge);
        let zeroed = record.clean.contains(bits);
        record.clean = record.clean.without(bits);
        let free = record.free();
        record.used = record.used.or(bits);
        // Only a request from a longest run can have made the longest run shorter.
        let page = bits.next(0);
        let below = free.run_below(page);
        let run = below + (free.not().next(page) - page);
        if run >= u32::from(record.longest_free) {
            record.longest_free = record.free().longest_run() as u16;
        }
        let count = bits.count();
        self.directory.slab_mut(huge.slab()).used[huge.place()] += count as u16;
        self.counts.used += u64::from(count);
        if state == State::Filler {
            self.count_filler(huge, i64::from(count));
            self.lists.update(&mut self.directory, huge);
        }
        zeroed
    }

    /// Marks used pages of a huge page free.
    #[inline]
    pub(super) fn give_pages(&mut self, huge: Huge, bits: Bits) {
        let mut state = self.directory.state(huge);
        if state == State::Large && bits != Bits::ALL {
            self.share(huge);
            state = State::Filler;
        }
        let record = self.directory.record_mut(huge);
        record.used = record.used.without(bits);
        let free = record.free();
        let page = bits.next(0);
        let run = free.run_below(page) + (free.not().next(page) - page);
        record.longest_free = record.longest_free.max(run as u16);
        let count = bits.count();
        let used = &mut self.directory.slab_mut(huge.slab()).used[huge.place()];
        *used -= count as u16;
        let empty = *used == 0;
        self.counts.used -= u64::from(count);
        match state {
            State::Filler => {
                self.count_filler(huge, -i64::from(count));
                if empty {
                    self.lists.remove(&mut self.directory, huge);
                    self.cache(huge);
                } else {
                    self.lists.update(&mut self.directory, huge);
                }
            }
            State::Region => self.leave_region(huge, count),
            _ => self.cache(huge),
        }
    }

    /// Makes a huge page of one large allocation one of the filler's, because the allocation gives
    /// up a part of it.
    #[cold]
    fn share(&mut self, huge: Huge) {
        self.directory.set_state(huge, State::Filler);
        self.directory.record_mut(huge).donated = true;
        self.lists.insert(&mut self.directory, huge);
        self.count_filler(huge, i64::from(HUGE_PAGES));
    }

    /// Adds to the filler's used memory.
    #[inline]
    pub(super) fn count_filler(&mut self, huge: Huge, pages: i64) {
        let counts = &mut self.counts;
        counts.filler_used = counts.filler_used.wrapping_add_signed(pages);
        if !self.directory.is_broken(huge) {
            counts.filler_used_intact = counts.filler_used_intact.wrapping_add_signed(pages);
        }
    }
}
