//! Regions: 128 MB in a row, for requests that would leave much of a huge page unused.
//!
//! Requests of a little more than half a huge page, or than a multiple of one, each leave a tail
//! that the filler can only use if the program makes enough small requests; a program that does not
//! would pay twice for its memory. In a region such requests follow each other without regard to
//! the borders of huge pages.

use super::{PageHeap, Refusal, Supply};
use crate::arena::{Block, Zeroed};
use crate::os::Os;
use crate::slab::{Huge, State};
use crate::{Allocated, HUGE_BYTES, HUGE_PAGES, PAGE_BYTES, Span};

/// Huge pages of a region, 128 MB (our choice; `TCMalloc`'s are 1 GB): longer than any request that
/// goes into one, and few enough bitmaps to search from the beginning.
const REGION_HUGE: u32 = 64;
/// Regions that a heap can have, 512 GB. Requests beyond that get huge pages of their own.
const MAX_REGIONS: usize = 4096;

/// One region.
#[derive(Clone, Copy)]
pub(super) struct Region {
    /// Its first huge page, or nothing if this place is not in use.
    first: Option<Huge>,
    /// Heap pages in use.
    used: u32,
}

// SAFETY: an integer, and an `Option<NonZero>`.
unsafe impl Zeroed for Region {}

/// All regions.
pub(super) struct Regions {
    regions: Block<Region>,
    /// Places that were ever in use.
    count: usize,
}

impl Regions {
    /// Bytes of metadata.
    pub(super) const BYTES: usize = MAX_REGIONS * size_of::<Region>();

    pub(super) const fn new() -> Self {
        Self {
            regions: Block::EMPTY,
            count: 0,
        }
    }

    pub(super) fn prepare<O: Os>(&mut self, os: &mut O) -> bool {
        Block::new(os, MAX_REGIONS).is_some_and(|regions| {
            self.regions = regions;
            true
        })
    }

    /// The regions in use, as the number of each, its first huge page and its used heap pages.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, Huge, u32)> {
        let places = self.regions[..self.count].iter().enumerate();
        places.filter_map(|(number, region)| Some((number, region.first?, region.used)))
    }
}

/// The huge pages of a region. All lie in one slab: regions are aligned to their size.
pub(super) fn hugepages(first: Huge) -> impl Iterator<Item = Huge> {
    (0..REGION_HUGE as usize).map(move |i| Huge::new(first.slab(), first.place() + i))
}

impl<O: Os> PageHeap<O> {
    /// Serves a request from a region. `Addresses` if it is better served elsewhere.
    pub(super) fn place_in_region(&mut self, pages: u32) -> Result<Allocated, Refusal> {
        if matches!(self.supply, Supply::Known | Supply::Nowhere) {
            return Err(Refusal::Memory);
        }
        let found = self
            .regions
            .iter()
            .find_map(|(_, first, used)| self.find_in_region(first, used, pages));
        let (first, start) = match found {
            Some(found) => found,
            None => (self.make_region()?, 0),
        };
        let span = Span {
            address: self.directory.page_address(first, start),
            pages,
        };
        let parts = || super::pieces(span);
        let mut missing = 0;
        for (address, bits) in parts() {
            let huge = self.directory.find(address).ok_or(Refusal::Addresses)?;
            missing += match self.directory.released(huge) {
                0 => 0,
                HUGE_PAGES => HUGE_PAGES,
                _ => self.directory.record(huge).released.and(bits).count(),
            };
        }
        let mut answer = self
            .check_limit(u64::from(missing))
            .and_then(|()| self.require(span.address & !(HUGE_BYTES - 1), span.end()));
        for (address, _) in parts() {
            let huge = self.directory.find(address).ok_or(Refusal::Addresses)?;
            if answer.is_ok() && !self.back_in_region(huge) {
                answer = Err(Refusal::Memory);
            }
        }
        if let Err(refusal) = answer {
            self.dissolve_if_unused(first);
            return Err(refusal);
        }
        let mut allocated = Allocated::new(span);
        for (address, bits) in parts() {
            if let Some(huge) = self.directory.find(address)
                && !self.take_pages(huge, bits)
            {
                allocated.soil(address, bits.count() as usize * PAGE_BYTES);
            }
        }
        Ok(allocated)
    }

    /// The first run of free pages in a region, as the region's first huge page and the number of
    /// heap pages before the run.
    fn find_in_region(&self, first: Huge, used: u32, pages: u32) -> Option<(Huge, u32)> {
        if REGION_HUGE * HUGE_PAGES - used < pages {
            return None;
        }
        // The free pages directly below the huge page that is looked at.
        let mut below = 0;
        for (index, huge) in hugepages(first).enumerate() {
            let base = index as u32 * HUGE_PAGES;
            let free = self.directory.record(huge).free();
            if below + free.not().next(0) >= pages {
                return Some((first, base - below));
            }
            let inside = free.starts(pages.min(HUGE_PAGES + 1)).next(0);
            if pages <= HUGE_PAGES && inside < HUGE_PAGES {
                return Some((first, base + inside));
            }
            let suffix = free.run_below(HUGE_PAGES);
            below = if suffix == HUGE_PAGES {
                below + HUGE_PAGES
            } else {
                suffix
            };
        }
        None
    }

    /// Makes free huge pages a region.
    fn make_region(&mut self) -> Result<Huge, Refusal> {
        let number = self
            .regions
            .regions
            .iter()
            .position(|region| region.first.is_none())
            .ok_or(Refusal::Addresses)?;
        let address = self.find_or_reserve(REGION_HUGE, REGION_HUGE as usize * HUGE_BYTES)?;
        let first = self.directory.find(address).ok_or(Refusal::Addresses)?;
        self.regions.regions[number] = Region {
            first: Some(first),
            used: 0,
        };
        self.regions.count = self.regions.count.max(number + 1);
        for huge in hugepages(first) {
            if self.directory.state(huge) == State::Cached {
                self.uncache(huge);
                let mapped = HUGE_PAGES - self.directory.released(huge);
                self.counts.region_whole += u64::from(mapped);
            }
            self.directory.set_state(huge, State::Region);
            self.directory.record_mut(huge).list = number as u16;
        }
        Ok(first)
    }

    /// Backs a huge page of a region that has no memory. False if the system has none.
    pub(super) fn back_in_region(&mut self, huge: Huge) -> bool {
        if self.directory.released(huge) < HUGE_PAGES {
            return true;
        }
        let backed = self.os.back(self.directory.address(huge), HUGE_BYTES);
        if backed {
            self.mark_backed(huge);
            self.counts.region_whole += u64::from(HUGE_PAGES);
        }
        backed
    }

    /// Notes that pages of a region's huge page are about to be used.
    pub(super) fn enter_region(&mut self, huge: Huge, pages: u32) {
        if self.directory.used(huge) == 0 {
            let mapped = HUGE_PAGES - self.directory.released(huge);
            self.counts.region_whole -= u64::from(mapped);
        }
        let number = self.directory.record(huge).list;
        self.regions.regions[number as usize].used += pages;
    }

    /// Notes that pages of a region's huge page were freed.
    pub(super) fn leave_region(&mut self, huge: Huge, pages: u32) {
        if self.directory.used(huge) == 0 {
            let mapped = HUGE_PAGES - self.directory.released(huge);
            self.counts.region_whole += u64::from(mapped);
        }
        let number = self.directory.record(huge).list;
        let region = &mut self.regions.regions[number as usize];
        region.used -= pages;
        if let Some(first) = region.first {
            self.dissolve_if_unused(first);
        }
    }

    /// Makes the huge pages of a region that nobody uses ordinary free ones.
    fn dissolve_if_unused(&mut self, first: Huge) {
        let number = self.directory.record(first).list as usize;
        if self.regions.regions[number].used > 0 {
            return;
        }
        self.regions.regions[number].first = None;
        for huge in hugepages(first) {
            let mapped = HUGE_PAGES - self.directory.released(huge);
            if mapped == 0 {
                self.directory.set_state(huge, State::Unbacked);
            } else {
                self.counts.region_whole -= u64::from(mapped);
                self.cache(huge);
            }
        }
    }
}
