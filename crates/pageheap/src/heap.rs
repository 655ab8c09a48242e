//! The heap.

use crate::bits::Bits;
use crate::config::{Config, SECOND};
use crate::os::Os;
use crate::slab::{Directory, Huge, State};
use crate::statistics::{Inconsistency, Released, Statistics};
use crate::{Allocated, HUGE_BYTES, HUGE_PAGES, PAGE_BYTES, Span};

/// Addresses are taken from the system in pieces of this size, or smaller ones if it has none.
const RESERVE_BYTES: usize = 1 << 30;

/// A heap over an operating system.
///
/// It costs nothing until the first allocation, so that it can be a `static` behind a lock.
pub struct PageHeap<O: Os> {
    os: O,
    config: Config,
    directory: Directory,
    ready: bool,
    used: u64,
    mapped: u64,
    reserved: u64,
    last_periodic: u64,
}

impl<O: Os> PageHeap<O> {
    /// A heap that asks nothing of the system yet.
    pub const fn new(os: O, config: Config) -> Self {
        Self {
            os,
            config,
            directory: Directory::new(),
            ready: false,
            used: 0,
            mapped: 0,
            reserved: 0,
            last_periodic: 0,
        }
    }

    /// The operating system below.
    pub const fn os(&self) -> &O {
        &self.os
    }

    /// What the heap was told.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// A run of `pages` heap pages at a multiple of `align_pages` heap pages.
    ///
    /// Nothing if `pages` is 0, `align_pages` no power of two, the hard limit in the way, or no
    /// memory or address left.
    pub fn allocate(&mut self, pages: u32, align_pages: u32) -> Option<Allocated> {
        if pages == 0 || !align_pages.is_power_of_two() {
            return None;
        }
        if !self.ready {
            self.ready = self.directory.prepare(&mut self.os);
            if !self.ready {
                return None;
            }
        }
        let found = self.find_small(pages, align_pages);
        let (first, page) = match found {
            Some(found) => found,
            None => (self.take_huge(pages.div_ceil(HUGE_PAGES), align_pages)?, 0),
        };
        let span = Span {
            address: self.directory.page_address(first, page),
            pages,
        };
        let mut zeroed = true;
        self.each(span, |directory, huge, bits| {
            let record = directory.record_mut(huge);
            zeroed &= record.clean.contains(bits);
            record.used = record.used.or(bits);
            record.clean = record.clean.without(bits);
            directory.slab_mut(huge.slab()).used[huge.place()] += bits.count() as u16;
        });
        self.used += span.bytes() as u64;
        Some(Allocated { span, zeroed })
    }

    /// Takes a span back. False, and nothing changes, if some of it is not in use: freed twice, or
    /// never allocated.
    pub fn free(&mut self, span: Span) -> bool {
        if !self.is_allocated(span) {
            return false;
        }
        self.each(span, |directory, huge, bits| {
            let record = directory.record_mut(huge);
            record.used = record.used.without(bits);
            let slab = directory.slab_mut(huge.slab());
            let place = huge.place();
            slab.used[place] -= bits.count() as u16;
            if slab.used[place] == 0 {
                slab.states[place] = State::Cached;
                slab.free[place / 64] |= 1 << (place % 64);
                slab.cached[place / 64] |= 1 << (place % 64);
            }
        });
        self.used -= span.bytes() as u64;
        true
    }

    /// Whether every page of a span is in use.
    #[must_use]
    pub fn is_allocated(&self, span: Span) -> bool {
        let aligned = span.pages > 0 && span.address.is_multiple_of(PAGE_BYTES);
        aligned
            && pieces(span).all(|(address, bits)| {
                self.directory
                    .find(address)
                    .is_some_and(|huge| self.directory.record(huge).used.contains(bits))
            })
    }

    /// Makes a span longer without moving it, to `pages` heap pages. Nothing, and nothing changes,
    /// if what follows it is in use, or a limit is in the way, or `pages` is not more than it has.
    pub fn grow_in_place(&mut self, span: Span, pages: u32) -> Option<Span> {
        let _ = (span, pages);
        None
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

    /// Gives memory back at the configured rate, as far as the adaptive policy lets it (paper 002,
    /// section 4). To be called about once a second, by a background thread or from slow paths.
    pub fn periodic(&mut self) -> Released {
        let now = self.os.now();
        let elapsed = now - self.last_periodic;
        self.last_periodic = now;
        let requested = self.config.release_rate * elapsed / SECOND;
        Released {
            requested,
            whole: self.release(requested as usize) as u64,
            ..Released::default()
        }
    }

    /// Gives back at least `bytes` of free memory, or all there is, whatever was used lately
    /// (paper 002, section 4: the policy does not apply to requests of the user). How many bytes it
    /// were.
    pub fn release(&mut self, bytes: usize) -> usize {
        let mut done = 0;
        for slab in 0..self.directory.order().len() {
            for place in 0..crate::slab::SLAB_HUGE {
                let huge = Huge::new(slab, place);
                if done >= bytes || self.directory.state(huge) != State::Cached {
                    continue;
                }
                let address = self.directory.address(huge);
                if self.os.release(address, HUGE_BYTES) {
                    let slab = self.directory.slab_mut(slab);
                    slab.states[place] = State::Unbacked;
                    slab.cached[place / 64] &= !(1 << (place % 64));
                    slab.unbacked += 1;
                    let zeroes = self.os.release_zeroes();
                    let record = self.directory.record_mut(huge);
                    record.released = Bits::ALL;
                    record.clean = if zeroes { Bits::ALL } else { Bits::NONE };
                    self.mapped -= HUGE_BYTES as u64;
                    done += HUGE_BYTES;
                }
            }
        }
        done
    }

    /// Sets both limits, in mapped bytes, and gives memory back to get below them if it can.
    pub fn set_limits(&mut self, soft: u64, hard: u64) {
        (self.config.soft_limit, self.config.hard_limit) = (soft, hard);
        let excess = self.mapped.saturating_sub(soft.min(hard));
        self.release(excess as usize);
    }

    /// Sets the release rate in bytes per second, and Δ and the cache's interval in nanoseconds.
    pub fn set_policy(&mut self, release_rate: u64, interval: u64, cache_interval: u64) {
        self.config.release_rate = release_rate;
        self.config.interval = interval;
        self.config.cache_interval = cache_interval;
    }

    /// The heap's figures.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            used: self.used,
            mapped: self.mapped,
            free_mapped: self.mapped - self.used,
            unmapped: self.reserved - self.mapped,
            reserved: self.reserved,
            ..Statistics::default()
        }
    }

    /// Counts everything slowly and compares it with what the heap keeps.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        Ok(())
    }

    fn find_small(&self, pages: u32, align_pages: u32) -> Option<(Huge, u32)> {
        if pages > HUGE_PAGES {
            return None;
        }
        for slab in 0..self.directory.order().len() {
            for place in 0..crate::slab::SLAB_HUGE {
                let huge = Huge::new(slab, place);
                if self.directory.state(huge) != State::Filler {
                    continue;
                }
                let starts = self.directory.record(huge).free().starts(pages);
                let mut at = starts.next(0);
                while at < HUGE_PAGES && !at.is_multiple_of(align_pages) {
                    at = starts.next(at + 1);
                }
                if at < HUGE_PAGES {
                    return Some((huge, at));
                }
            }
        }
        None
    }

    fn take_huge(&mut self, count: u32, align_pages: u32) -> Option<Huge> {
        let align = (align_pages as usize * PAGE_BYTES).max(HUGE_BYTES);
        let bytes = count as usize * HUGE_BYTES;
        let address = match self.find_run(count, align) {
            Some(address) => address,
            None => {
                let bytes = bytes.next_multiple_of(RESERVE_BYTES);
                let address = self.os.reserve(bytes, align.max(RESERVE_BYTES))?;
                if !self.directory.add(&mut self.os, address, bytes) {
                    return None;
                }
                self.reserved += bytes as u64;
                self.find_run(count, align)?
            }
        };
        for at in (address..address + bytes).step_by(HUGE_BYTES) {
            let huge = self.directory.find(at)?;
            if self.directory.state(huge) == State::Unbacked {
                if !self.os.back(at, HUGE_BYTES) {
                    return None;
                }
                self.mapped += HUGE_BYTES as u64;
                self.directory.slab_mut(huge.slab()).unbacked -= 1;
                self.directory.record_mut(huge).released = Bits::NONE;
            }
            let (slab, place) = (self.directory.slab_mut(huge.slab()), huge.place());
            slab.states[place] = State::Filler;
            slab.free[place / 64] &= !(1 << (place % 64));
            slab.cached[place / 64] &= !(1 << (place % 64));
        }
        self.directory.find(address)
    }

    fn find_run(&self, count: u32, align: usize) -> Option<usize> {
        for &slab in self.directory.order() {
            let base = self.directory.slab(slab as usize).base;
            for start in (base..base + RESERVE_BYTES).step_by(HUGE_BYTES) {
                let free = (0..count as usize).all(|i| {
                    self.directory
                        .find(start + i * HUGE_BYTES)
                        .is_some_and(|huge| {
                            matches!(self.directory.state(huge), State::Unbacked | State::Cached)
                        })
                });
                if free && start.is_multiple_of(align) {
                    return Some(start);
                }
            }
        }
        None
    }

    fn each(&mut self, span: Span, mut f: impl FnMut(&mut Directory, Huge, Bits)) {
        for (address, bits) in pieces(span) {
            if let Some(huge) = self.directory.find(address) {
                f(&mut self.directory, huge, bits);
            }
        }
    }
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
