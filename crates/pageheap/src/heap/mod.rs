//! The heap: what its parts have in common, and what users call.

mod arrive;
mod leave;
mod place;
mod regions;
mod release;
mod space;
mod validate;

use crate::accuracy::Accuracy;
use crate::bits::Bits;
use crate::config::Config;
use crate::demand::{Demand, Sizes};
use crate::early::EarlyRelease;
use crate::lists::{Lists, Queue};
use crate::os::Os;
use crate::series::{Level, Series};
use crate::slab::Directory;
use crate::statistics::{Epoch, Released, Statistics};
use crate::{Allocated, HUGE_BYTES, HUGE_PAGES, PAGE_BYTES, Span};
pub use arrive::{Arrival, Needed, Supply};
use core::ops::Range;
pub use leave::{Leaving, Rank};
use regions::Regions;
pub use release::Plan;

/// Why a request cannot be served as things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It would bring mapped memory above the hard limit, by so many heap pages.
    Limit(u64),
    /// The system has no memory.
    Memory,
    /// The system has no addresses, or the heap no records for them.
    Addresses,
    /// The caller has to get memory first.
    Needs(Needed),
}

/// Result of [`PageHeap::try_allocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The pages, if there are any as things are.
    pub allocated: Option<Allocated>,
    /// Heap pages that are to go back to the system: to get below the soft limit or, if nothing was
    /// allocated, to make room for another attempt; then 0 says that this would not help.
    pub excess: u64,
    /// True if a limit is in the way.
    pub limited: bool,
}

/// The heap's sums, in heap pages unless stated otherwise.
#[derive(Clone, Copy)]
struct Counts {
    /// With what is leaving.
    used: u64,
    /// Free parts of huge pages that are on their way back to the system.
    leaving: u64,
    /// Heap pages by which `mapped` grows when arrivals are over.
    arriving: u64,
    mapped: u64,
    reserved: u64,
    /// Mapped, in whole free huge pages of the cache.
    cached: u64,
    /// Mapped, in whole free huge pages of regions.
    region_whole: u64,
    /// Used, in huge pages of the filler; and in those that are not broken.
    filler_used: u64,
    filler_used_intact: u64,
    /// Huge pages with memory, and those that are broken.
    backed_huge: u64,
    broken_huge: u64,
    broken_total: u64,
    collapsed_total: u64,
    peak_used: u64,
    peak_mapped: u64,
    backed_total: u64,
    /// Backed again, after it was given back.
    returned: u64,
    /// Requests that free huge pages did not serve because they were not in a row.
    scattered: u64,
    refaulted: u64,
    released_whole: u64,
    released_broken: u64,
    released_for_limit: u64,
    limit_failures: u64,
    system_failures: u64,
}

impl Counts {
    const ZERO: Self = Self {
        used: 0,
        leaving: 0,
        arriving: 0,
        mapped: 0,
        reserved: 0,
        cached: 0,
        region_whole: 0,
        filler_used: 0,
        filler_used_intact: 0,
        backed_huge: 0,
        broken_huge: 0,
        broken_total: 0,
        collapsed_total: 0,
        peak_used: 0,
        peak_mapped: 0,
        backed_total: 0,
        returned: 0,
        scattered: 0,
        refaulted: 0,
        released_whole: 0,
        released_broken: 0,
        released_for_limit: 0,
        limit_failures: 0,
        system_failures: 0,
    };
}

/// A heap over an operating system.
///
/// It costs nothing until the first allocation, so that it can be a `static` behind a lock. All
/// operations take constant time, but for: requests of more than half a huge page, which search the
/// bitmaps of free huge pages (16 words for each gigabyte reserved); releases, which read a few
/// kilobytes for each gigabyte and call the system; and what is said at
/// [`validate`](Self::validate).
pub struct PageHeap<O: Os> {
    os: O,
    config: Config,
    ready: bool,
    directory: Directory,
    lists: Lists,
    /// Whole free huge pages with memory: of the primary region, intact, broken.
    primary: Queue,
    intact: Queue,
    broken: Queue,
    regions: Regions,
    series: Series,
    accuracy: Accuracy,
    early: EarlyRelease,
    demand: Demand,
    counts: Counts,
    /// When the release rate last counted.
    last_periodic: u64,
    /// Bytes that were given back in advance, because a huge page is the least that can be.
    debt: u64,
    /// The number of the huge page where the search for one to collapse goes on.
    collapse_cursor: usize,
    /// Source of memory for the present request.
    supply: Supply,
}

impl<O: Os> PageHeap<O> {
    /// A heap that asks nothing of the system yet.
    pub const fn new(os: O, config: Config) -> Self {
        Self {
            os,
            config,
            ready: false,
            directory: Directory::new(),
            lists: Lists::new(),
            primary: Queue::new(),
            intact: Queue::new(),
            broken: Queue::new(),
            regions: Regions::new(),
            series: Series::new(),
            accuracy: Accuracy::new(),
            early: EarlyRelease::new(),
            demand: Demand::new(),
            counts: Counts::ZERO,
            last_periodic: 0,
            debt: 0,
            collapse_cursor: 0,
            supply: Supply::Direct,
        }
    }

    /// The operating system below.
    pub const fn os(&self) -> &O {
        &self.os
    }

    /// Configuration of the heap.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// A run of `pages` heap pages at a multiple of `align_pages` heap pages.
    ///
    /// Nothing if `pages` is 0, `align_pages` no power of two, the hard limit in the way even after
    /// all free memory was given back, or the system out of memory or addresses.
    pub fn allocate(&mut self, pages: u32, align_pages: u32) -> Option<Allocated> {
        if pages == 0 || !align_pages.is_power_of_two() {
            return None;
        }
        match self.attempt(pages, align_pages) {
            Ok(allocated) => Some(allocated),
            Err(refusal) => {
                self.count_failure(matches!(refusal, Refusal::Limit(_)));
                None
            }
        }
    }

    /// Counts a request that failed, because of a limit or not. [`allocate`](Self::allocate) does so itself.
    pub fn count_failure(&mut self, limited: bool) {
        if limited {
            self.counts.limit_failures += 1;
        } else {
            self.counts.system_failures += 1;
        }
    }

    /// As [`allocate`](Self::allocate), but gives nothing back to the system and counts no failure: for
    /// callers who do the first in steps ([`Leaving`]), without the lock that the heap is behind, and
    /// then try again.
    ///
    /// # Errors
    /// The memory that the caller has to get first, unless `supply` is [`Supply::Direct`].
    pub fn try_allocate(
        &mut self,
        pages: u32,
        align_pages: u32,
        supply: Supply,
    ) -> Result<Attempt, Needed> {
        let refused = Attempt {
            allocated: None,
            excess: 0,
            limited: false,
        };
        if pages == 0 || !align_pages.is_power_of_two() || !self.ready && !self.prepare() {
            return Ok(refused);
        }
        let mapped = self.counts.mapped;
        let placed = self.with(supply, |heap| heap.place(pages, align_pages));
        let attempt = match placed {
            Ok(allocated) => Attempt {
                allocated: Some(allocated),
                // An arrival made the heap larger before.
                excess: if self.counts.mapped > mapped || supply != Supply::Deferred {
                    self.excess()
                } else {
                    0
                },
                ..refused
            },
            Err(Refusal::Needs(needed)) => return Err(needed),
            Err(refusal) => Attempt {
                excess: self.wanted(pages, refusal),
                limited: matches!(refusal, Refusal::Limit(_)),
                ..refused
            },
        };
        self.note();
        Ok(attempt)
    }

    /// Does something with memory from elsewhere.
    fn with<R>(&mut self, supply: Supply, act: impl FnOnce(&mut Self) -> R) -> R {
        self.supply = supply;
        let result = act(self);
        self.supply = Supply::Direct;
        result
    }

    fn attempt(&mut self, pages: u32, align_pages: u32) -> Result<Allocated, Refusal> {
        if !self.ready && !self.prepare() {
            return Err(Refusal::Memory);
        }
        let mapped = self.counts.mapped;
        let answer = match self.place(pages, align_pages) {
            Err(refusal) => self.place_after_release(pages, align_pages, refusal),
            placed => placed,
        };
        if self.counts.mapped > mapped {
            self.keep_soft_limit();
        }
        self.note();
        answer
    }

    /// Takes a span back, or a part of one. False, and nothing changes, if some of it is not in
    /// use: freed twice, or never allocated.
    pub fn free(&mut self, span: Span) -> bool {
        // Nearly all spans lie in one huge page, which is then looked up once.
        if let Some((address, bits)) = only_piece(span) {
            let Some(huge) = self.directory.find(address) else {
                return false;
            };
            if !self.directory.record(huge).used.contains(bits) {
                return false;
            }
            self.give_pages(huge, bits);
            self.note();
            return true;
        }
        if !self.is_allocated(span) {
            return false;
        }
        for (address, bits) in pieces(span) {
            if let Some(huge) = self.directory.find(address) {
                self.give_pages(huge, bits);
            }
        }
        self.note();
        true
    }

    /// Returns true if every page of a span is in use.
    #[must_use]
    pub fn is_allocated(&self, span: Span) -> bool {
        let sensible = span.pages > 0
            && span.address.is_multiple_of(PAGE_BYTES)
            && span.address.checked_add(span.bytes()).is_some();
        sensible
            && pieces(span).all(|(address, bits)| {
                self.directory
                    .find(address)
                    .is_some_and(|huge| self.directory.record(huge).used.contains(bits))
            })
    }

    /// Makes a span longer without moving it, to `pages` heap pages. What it had stays as it is.
    ///
    /// Nothing, and nothing changes, if what follows it is in use, the hard limit is in the way,
    /// the system has no memory, or `pages` is not more than it has. A span of at most half a huge
    /// page does not grow into a huge page that is free: it would be cheaper to move it.
    pub fn grow_in_place(&mut self, span: Span, pages: u32) -> Option<Span> {
        self.try_grow(span, pages, Supply::Direct).ok()?
    }

    /// Allocates for callers who get memory themselves.
    ///
    /// # Errors
    /// As [`try_allocate`](Self::try_allocate).
    pub fn try_grow(
        &mut self,
        span: Span,
        pages: u32,
        supply: Supply,
    ) -> Result<Option<Span>, Needed> {
        if pages <= span.pages || !self.is_allocated(span) {
            return Ok(None);
        }
        match self.with(supply, |heap| heap.grow(span, pages)) {
            Err(Refusal::Needs(needed)) => Err(needed),
            grown => {
                self.note();
                Ok(grown.ok())
            }
        }
    }

    /// Makes a span shorter, to `pages` heap pages, by freeing its end. The span as it is, if
    /// `pages` is 0 or not less than it has.
    pub fn shrink_in_place(&mut self, span: Span, pages: u32) -> Span {
        if pages == 0 || pages >= span.pages {
            return span;
        }
        let kept = Span { pages, ..span };
        let rest = Span {
            address: kept.end(),
            pages: span.pages - pages,
        };
        if self.free(rest) { kept } else { span }
    }

    /// Gives memory back at the configured rate, and half-life, as far as the adaptive policy lets
    /// it (the adaptive subrelease paper, section 4), and has broken huge pages made whole. To be
    /// called about once a second, by a background thread or from slow paths. What the rate allows
    /// and nobody needs lapses.
    pub fn periodic(&mut self) -> Released {
        if !self.ready {
            return Released::default();
        }
        let released = self.release_periodically();
        self.note();
        released
    }

    /// Gives back at least `bytes` of free memory, or all there is, whatever was used lately
    /// (Adaptive Subrelease, section 4: the policy does not apply to what the user asks for). How
    /// many bytes it were.
    pub fn release(&mut self, bytes: usize) -> usize {
        let (whole, partial) = self.release_pages(bytes.div_ceil(PAGE_BYTES) as u64);
        self.note();
        (whole + partial) as usize * PAGE_BYTES
    }

    /// Tells the heap something else, at any time: a `static` heap learns from the environment what
    /// it is to do. A primary region cannot be taken away or replaced once the heap has begun, only
    /// given; false if that was tried, or if there was no memory for the records of a new one, and
    /// then everything else is as told.
    pub fn configure(&mut self, config: Config) -> bool {
        let old = self.config.primary;
        let settled = self.ready && old.is_some();
        let primary = if settled { old } else { config.primary };
        self.config = Config { primary, ..config };
        let mut done = !settled || config.primary == old;
        if self.ready && !settled && !self.add_primary() {
            self.config.primary = None;
            done = false;
        }
        self.set_policy(config.release_rate, config.interval, config.cache_interval);
        self.set_limits(config.soft_limit, config.hard_limit);
        done
    }

    /// Sets both limits, in mapped bytes, and gives memory back to get below them if it can.
    /// Neither waits for Δ, so that the adaptive policy never causes a request to fail (Adaptive
    /// Subrelease, section 4).
    pub fn set_limits(&mut self, soft: u64, hard: u64) {
        self.change_limits(soft, hard);
        self.keep_soft_limit();
        self.note();
    }

    /// Sets both limits and gives nothing back: that is for the caller ([`excess`](Self::excess)).
    pub fn change_limits(&mut self, soft: u64, hard: u64) {
        (self.config.soft_limit, self.config.hard_limit) = (soft, hard);
    }

    /// Sets the release rate in bytes per second, and Δ and the cache's interval in nanoseconds.
    pub fn set_policy(&mut self, release_rate: u64, interval: u64, cache_interval: u64) {
        self.config.release_rate = release_rate;
        self.config.interval = interval;
        self.config.cache_interval = cache_interval;
        if self.ready {
            let before = self.series.epoch();
            self.series
                .set_windows(self.config.longest_interval(), self.config.schedule);
            self.accuracy.coarsen(self.series.epoch() / before);
        }
    }

    /// Sets the half-life of free memory in nanoseconds; 0: the release rate alone.
    pub fn set_half_life(&mut self, half_life: u64) {
        self.config.half_life = half_life;
    }

    /// The heap's figures. Reads a few kilobytes, changes nothing.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        const PAGE: u64 = PAGE_BYTES as u64;
        let counts = &self.counts;
        let now = if self.ready { self.os.now() } else { 0 };
        let skipped = self.accuracy.skipped;
        let used = counts.used - counts.leaving;
        Statistics {
            used: used * PAGE,
            mapped: counts.mapped * PAGE,
            free_mapped: (counts.mapped - used) * PAGE,
            unmapped: (counts.reserved - counts.mapped) * PAGE,
            reserved: counts.reserved * PAGE,
            cached: (counts.cached + counts.region_whole) * PAGE,
            filler_used: counts.filler_used * PAGE,
            filler_used_intact: counts.filler_used_intact * PAGE,
            huge_intact: counts.backed_huge - counts.broken_huge,
            huge_broken: counts.broken_huge,
            broken_total: counts.broken_total,
            collapsed_total: counts.collapsed_total,
            peak_used: counts.peak_used * PAGE,
            peak_mapped: counts.peak_mapped * PAGE,
            recent_peak_used: self.series.peak_used(now, self.config.interval) * PAGE,
            average_fragmentation: (self.series.average(now) * PAGE as f64) as u64,
            realized_fragmentation: self.series.realized(now) * PAGE,
            skipped: skipped.total * PAGE,
            skipped_correct: skipped.correct * PAGE,
            skipped_incorrect: skipped.incorrect * PAGE,
            skipped_open: self.accuracy.open() * PAGE,
            backed_total: counts.backed_total * PAGE,
            refaulted: counts.refaulted * PAGE,
            released_whole: counts.released_whole * PAGE,
            released_broken: counts.released_broken * PAGE,
            released_for_limit: counts.released_for_limit * PAGE,
            limit_failures: counts.limit_failures,
            system_failures: counts.system_failures,
            metadata: self.metadata(),
        }
    }

    /// History of the heap within the last [`schedule`](Config::schedule), the oldest epoch first,
    /// without the open epoch.
    pub fn epochs(&self) -> impl Iterator<Item = Epoch> {
        self.series.epochs()
    }

    fn metadata(&self) -> u64 {
        if !self.ready {
            return 0;
        }
        let fixed = Lists::BYTES + Regions::BYTES + Series::BYTES + Accuracy::BYTES;
        (fixed + self.directory.bytes()) as u64
    }

    /// Gets the tables, and the primary region if there is one. False if there is no memory.
    #[cold]
    fn prepare(&mut self) -> bool {
        let longest = self.config.longest_interval();
        self.ready = self.directory.prepare(&mut self.os)
            && self.lists.prepare(&mut self.os)
            && self.regions.prepare(&mut self.os)
            && self.accuracy.prepare(&mut self.os)
            && self
                .series
                .prepare(&mut self.os, longest, self.config.schedule);
        if self.ready {
            self.last_periodic = self.os.now();
            if !self.add_primary() {
                self.config.primary = None;
            }
        }
        self.ready
    }

    /// Makes the primary region's addresses the heap's. False if there is no memory for its
    /// records.
    fn add_primary(&mut self) -> bool {
        let primary = self.primary_range();
        let bytes = primary.end - primary.start;
        if bytes == 0 {
            return true;
        }
        let added = self.directory.add(&mut self.os, primary.start, bytes);
        if added {
            self.counts.reserved += (bytes / PAGE_BYTES) as u64;
        }
        added
    }

    /// The whole huge pages of the primary region.
    fn primary_range(&self) -> Range<usize> {
        let Some(primary) = self.config.primary else {
            return 0..0;
        };
        let start = primary.address.next_multiple_of(HUGE_BYTES);
        let end = primary.address.saturating_add(primary.bytes) / HUGE_BYTES * HUGE_BYTES;
        start..end.max(start)
    }

    /// Returns true if the memory of a huge page can never be given back.
    fn is_pinned(&self, address: usize) -> bool {
        self.config
            .primary
            .is_some_and(|primary| !primary.releasable)
            && self.primary_range().contains(&address)
    }

    /// Enters the heap's sizes in the time series: constant time, one reading of the clock.
    #[inline]
    fn note(&mut self) {
        let counts = &mut self.counts;
        let used = counts.used - counts.leaving;
        counts.peak_used = counts.peak_used.max(used);
        counts.peak_mapped = counts.peak_mapped.max(counts.mapped);
        let level = Level {
            used,
            free: counts.mapped - used,
        };
        if !self.ready {
            return;
        }
        let now = self.os.now();
        if self.series.record(now, level) {
            self.accuracy.expire(self.series.number(now));
        }
        self.accuracy.demand(level.used);
        if self.config.half_life > 0 {
            self.note_demand(now);
        }
    }

    /// Tells those who judge what was given back before its time.
    fn note_demand(&mut self, now: u64) {
        let counts = &self.counts;
        let sizes = Sizes {
            used: counts.used - counts.leaving,
            mapped: counts.mapped,
            released: counts.released_whole,
            returned: counts.returned,
            scattered: counts.scattered,
        };
        let interval = self.config.interval;
        self.early.demand(sizes.used, now, interval);
        self.demand
            .note(now, sizes, self.shortest_window(), interval);
    }
}

/// The pages of a span in its huge page, if it lies in one.
#[inline]
fn only_piece(span: Span) -> Option<(usize, Bits)> {
    let page = (span.address % HUGE_BYTES / PAGE_BYTES) as u32;
    let room = HUGE_PAGES - page;
    let sensible = span.pages > 0 && span.pages <= room && span.address.is_multiple_of(PAGE_BYTES);
    sensible.then(|| (span.address, Bits::range(page, page + span.pages)))
}

/// The parts of a span by huge page: an address in it, and the pages there.
fn pieces(span: Span) -> impl Iterator<Item = (usize, Bits)> {
    let mut at = span.address;
    core::iter::from_fn(move || {
        (at < span.end()).then(|| {
            let start = at;
            let base = start & !(HUGE_BYTES - 1);
            at = (base + HUGE_BYTES).min(span.end());
            let page = |address: usize| ((address - base) / PAGE_BYTES) as u32;
            (start, Bits::range(page(start), page(at)))
        })
    })
}
