//! Whole huge pages: addresses from the system, the cache of free ones, runs of them.

use super::{PageHeap, Refusal, Supply};
use crate::bits::Bits;
use crate::lists::Queue;
use crate::os::Os;
use crate::slab::{Directory, Huge, SLAB_HUGE, SLAB_SHIFT, State};
use crate::{HUGE_BYTES, HUGE_PAGES, PAGE_BYTES};
use core::ops::Range;

/// Addresses are taken from the system in pieces of this size, or smaller ones if it has none: few
/// calls, and runs of huge pages that large requests fit in. 1 GB, as page tables have it.
const RESERVE_BYTES: usize = 1 << SLAB_SHIFT;

/// All addresses.
const ANYWHERE: Range<usize> = 0..usize::MAX;

/// Free huge pages that a search considers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Backing {
    /// Those that have memory.
    Cached,
    /// Those that have or had memory.
    Known,
    /// All.
    Any,
}

impl<O: Os> PageHeap<O> {
    /// Checks that the hard limit lets mapped memory grow by `pages` heap pages.
    pub(super) fn check_limit(&self, pages: u64) -> Result<(), Refusal> {
        let limit = self.config.hard_limit / PAGE_BYTES as u64;
        let after = self.counts.mapped + self.counts.arriving + pages;
        if pages > 0 && after > limit {
            Err(Refusal::Limit(after - limit))
        } else {
            Ok(())
        }
    }

    /// Takes `count` free huge pages in a row, at a multiple of `align` bytes, backs them, and makes
    /// them `Large`. The address of the first.
    pub(super) fn take_run(&mut self, count: u32, align: usize) -> Result<usize, Refusal> {
        let known = |heap: &Self| {
            heap.find_run(count, align, ANYWHERE, Backing::Known)
                .ok_or(Refusal::Memory)
        };
        let mut address = if matches!(self.supply, Supply::Known | Supply::Nowhere) {
            known(self)?
        } else {
            self.find_or_reserve(count, align)?
        };
        match self.take_at(address, count) {
            // A limit on what is usable (strict overcommit, `RLIMIT_DATA`) counts addresses from when
            // they become so until they are given up, with or without memory. Below such a limit only
            // those that were usable can be so again.
            Err(Refusal::Memory) if self.supply == Supply::Direct => {
                address = known(self)?;
                self.take_at(address, count)?;
            }
            taken => taken?,
        }
        Ok(address)
    }

    /// Takes the `count` free huge pages at an address.
    pub(super) fn take_at(&mut self, address: usize, count: u32) -> Result<(), Refusal> {
        let hugepages = || (0..count as usize).map(|i| address + i * HUGE_BYTES);
        let mut missing = 0;
        for huge in hugepages().filter_map(|at| self.directory.find(at)) {
            missing += u64::from(self.directory.released(huge));
        }
        self.check_limit(missing)?;
        if missing > 0 && count > 1 && self.counts.cached >= u64::from(count * HUGE_PAGES) {
            self.counts.scattered += 1;
        }
        self.require(address, address + count as usize * HUGE_BYTES)?;
        let direct = self.supply == Supply::Direct;
        for at in hugepages().filter(|_| direct) {
            // Without contents, a broken huge page becomes whole by losing the rest of its memory.
            if let Some(huge) = self.directory.find(at)
                && self.directory.is_broken(huge)
            {
                self.release_whole(huge);
            }
        }
        let mut at = address;
        let end = address + count as usize * HUGE_BYTES;
        while at < end {
            let mut to = at;
            while to < end && self.state_at(to) == State::Unbacked {
                to += HUGE_BYTES;
            }
            if to > at && !self.os.back(at, to - at) {
                return Err(Refusal::Memory);
            }
            for at in (at..to).step_by(HUGE_BYTES) {
                if let Some(huge) = self.directory.find(at) {
                    self.mark_backed(huge);
                    self.cache(huge);
                }
            }
            at = to + HUGE_BYTES;
        }
        for at in hugepages() {
            if let Some(huge) = self.directory.find(at) {
                self.uncache(huge);
                self.directory.set_state(huge, State::Large);
                // Only if the system refused to take the rest of a broken one.
                self.fault_in(huge, Bits::ALL);
            }
        }
        Ok(())
    }

    fn state_at(&self, address: usize) -> State {
        self.directory
            .find(address)
            .map_or(State::Foreign, |huge| self.directory.state(huge))
    }

    /// Notes that a huge page without memory has got it.
    pub(super) fn mark_backed(&mut self, huge: Huge) {
        if self.directory.set_known(huge) {
            self.counts.returned += u64::from(HUGE_PAGES);
        }
        self.counts.backed_huge += 1;
        self.counts.backed_total += u64::from(HUGE_PAGES);
        self.counts.mapped += u64::from(HUGE_PAGES);
        self.directory.record_mut(huge).released = Bits::NONE;
        self.directory.slab_mut(huge.slab()).released[huge.place()] = 0;
    }

    /// Notes that pages will have memory when they are touched.
    #[inline]
    pub(super) fn fault_in(&mut self, huge: Huge, bits: Bits) {
        if self.directory.released(huge) == 0 {
            return;
        }
        let record = self.directory.record_mut(huge);
        let pages = record.released.and(bits).count();
        record.released = record.released.without(bits);
        self.directory.slab_mut(huge.slab()).released[huge.place()] -= pages as u16;
        self.counts.mapped += u64::from(pages);
        self.counts.refaulted += u64::from(pages);
    }

    /// Puts a free huge page that has memory into the cache.
    pub(super) fn cache(&mut self, huge: Huge) {
        self.directory.set_state(huge, State::Cached);
        self.counts.cached += u64::from(HUGE_PAGES - self.directory.released(huge));
        let (queue, directory) = self.queue(huge);
        queue.push(directory, huge);
    }

    /// Takes a huge page out of the cache; its state is to be set.
    pub(super) fn uncache(&mut self, huge: Huge) {
        self.counts.cached -= u64::from(HUGE_PAGES - self.directory.released(huge));
        let (queue, directory) = self.queue(huge);
        queue.remove(directory, huge);
    }

    /// The queue of a huge page of the cache.
    fn queue(&mut self, huge: Huge) -> (&mut Queue, &mut Directory) {
        let queue = if self.primary_range().contains(&self.directory.address(huge)) {
            &mut self.primary
        } else if self.directory.is_broken(huge) {
            &mut self.broken
        } else {
            &mut self.intact
        };
        (queue, &mut self.directory)
    }

    /// Gives back a huge page of the cache or of a region that is entirely free. How many heap pages
    /// that were; 0 if the system refused.
    pub(super) fn release_whole(&mut self, huge: Huge) -> u64 {
        let address = self.directory.address(huge);
        if self.is_pinned(address) || !self.os.release(address, HUGE_BYTES) {
            return 0;
        }
        self.note_whole(huge)
    }

    /// Notes that a huge page of the cache or of a region has no memory any more. How many heap pages
    /// went.
    pub(super) fn note_whole(&mut self, huge: Huge) -> u64 {
        let mapped = u64::from(HUGE_PAGES - self.directory.released(huge));
        if self.directory.state(huge) == State::Cached {
            self.uncache(huge);
            self.directory.set_state(huge, State::Unbacked);
        } else {
            self.counts.region_whole -= mapped;
        }
        self.mend(huge);
        let zeroes = self.os.release_zeroes();
        let record = self.directory.record_mut(huge);
        record.released = Bits::ALL;
        record.clean = if zeroes { Bits::ALL } else { Bits::NONE };
        self.directory.slab_mut(huge.slab()).released[huge.place()] = HUGE_PAGES as u16;
        self.counts.backed_huge -= 1;
        self.counts.mapped -= mapped;
        self.counts.released_whole += mapped;
        mapped
    }

    /// Notes that a huge page is whole, or has no memory at all.
    pub(super) fn mend(&mut self, huge: Huge) {
        if self.directory.is_broken(huge) {
            self.directory.set_broken(huge, false);
            self.counts.broken_huge -= 1;
        }
    }

    /// The address of free huge pages, if need be of new ones: the primary region's first, then
    /// those that have memory, then those that do not.
    pub(super) fn find_or_reserve(&mut self, count: u32, align: usize) -> Result<usize, Refusal> {
        if let Some(address) = self.find_free(count, align) {
            return Ok(address);
        }
        self.reserve(count, align)?;
        self.find_free(count, align).ok_or(Refusal::Addresses)
    }

    fn find_free(&self, count: u32, align: usize) -> Option<usize> {
        let primary = self.primary_range();
        if !primary.is_empty() {
            if count == 1
                && align <= HUGE_BYTES
                && let Some(huge) = self.primary.newest()
            {
                return Some(self.directory.address(huge));
            }
            if let Some(address) = self.find_run(count, align, primary, Backing::Any) {
                return Some(address);
            }
        }
        if count == 1 && align <= HUGE_BYTES {
            let cached = self.intact.newest().or(self.broken.newest());
            if let Some(huge) = cached {
                return Some(self.directory.address(huge));
            }
        } else if self.counts.cached >= u64::from(count) * u64::from(HUGE_PAGES)
            && let Some(address) = self.find_run(count, align, ANYWHERE, Backing::Cached)
        {
            return Some(address);
        }
        self.find_run(count, align, ANYWHERE, Backing::Any)
    }

    /// The lowest run of `count` free huge pages at a multiple of `align` bytes in a range.
    pub(super) fn find_run(
        &self,
        count: u32,
        align: usize,
        within: Range<usize>,
        backing: Backing,
    ) -> Option<usize> {
        let bytes = count as usize * HUGE_BYTES;
        // The run that ends where the search is.
        let (mut start, mut end) = (0, 0);
        let mut known = [0; SLAB_HUGE / 64];
        for &number in self.directory.order() {
            let slab = self.directory.slab(number as usize);
            if slab.base >= within.end || slab.base + RESERVE_BYTES <= within.start {
                continue;
            }
            let words = match backing {
                Backing::Cached => &slab.cached,
                Backing::Known => {
                    for (known, (free, had)) in
                        known.iter_mut().zip(slab.free.iter().zip(&slab.known))
                    {
                        *known = free & had;
                    }
                    &known
                }
                Backing::Any => &slab.free,
            };
            let mut place = 0;
            while place < SLAB_HUGE {
                let (word, bit) = (words[place / 64] >> (place % 64), place % 64);
                if word & 1 == 0 {
                    place += (word.trailing_zeros() as usize).min(64 - bit);
                    continue;
                }
                let ones = (word.trailing_ones() as usize).min(64 - bit);
                let from = (slab.base + place * HUGE_BYTES).max(within.start);
                let to = (slab.base + (place + ones) * HUGE_BYTES).min(within.end);
                place += ones;
                if from >= to {
                    continue;
                }
                if from != end {
                    start = from.next_multiple_of(align);
                }
                end = to;
                if end >= start && end - start >= bytes {
                    return Some(start);
                }
            }
        }
        None
    }

    /// Gets addresses for at least `count` huge pages at a multiple of `align` bytes.
    fn reserve(&mut self, count: u32, align: usize) -> Result<(), Refusal> {
        let need = count as usize * HUGE_BYTES;
        let mut bytes = need.next_multiple_of(RESERVE_BYTES);
        let mut alignment = align.max(self.os.reserve_align());
        loop {
            if let Some(address) = self.os.reserve(bytes, alignment) {
                if !self.directory.add(&mut self.os, address, bytes) {
                    return Err(Refusal::Addresses);
                }
                self.counts.reserved += (bytes / PAGE_BYTES) as u64;
                return Ok(());
            }
            if bytes == need && alignment == align {
                return Err(Refusal::Addresses);
            }
            bytes = (bytes / 2).next_multiple_of(HUGE_BYTES).max(need);
            alignment = align;
        }
    }
}
