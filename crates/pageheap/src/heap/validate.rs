//! The slow truth.

use super::PageHeap;
use crate::bits::Bits;
use crate::lists::Queue;
use crate::os::Os;
use crate::slab::{Huge, SLAB_HUGE, State};
use crate::statistics::Inconsistency;
use crate::{HUGE_BYTES, HUGE_PAGES};

/// Counts over all huge pages.
#[derive(Default)]
struct Found {
    used: u64,
    mapped: u64,
    reserved: u64,
    cached: u64,
    region_whole: u64,
    region_used: u64,
    filler: u64,
    filler_used: u64,
    filler_used_intact: u64,
    backed: u64,
    broken: u64,
    cached_huge: u64,
}

fn check(
    rule: &'static str,
    address: usize,
    counted: u64,
    recorded: u64,
) -> Result<(), Inconsistency> {
    if counted == recorded {
        return Ok(());
    }
    Err(Inconsistency {
        rule,
        address,
        counted,
        recorded,
    })
}

fn holds(rule: &'static str, address: usize, condition: bool) -> Result<(), Inconsistency> {
    check(rule, address, u64::from(condition), 1)
}

impl<O: Os> PageHeap<O> {
    /// Counts everything slowly and compares it with what the heap keeps: bitmaps with counts,
    /// counts with sums, lists with records, limits with sizes. For tests; takes time in proportion
    /// to the addresses reserved.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        if !self.ready {
            return check(
                "nothing before the first allocation",
                0,
                0,
                self.counts.mapped,
            );
        }
        let mut found = Found::default();
        let mut base = 0;
        for &slab in self.directory.order() {
            let at = self.directory.slab(slab as usize).base;
            holds("slabs are in order of address", at, at >= base)?;
            base = at + 1;
            let mut unbacked = 0;
            for place in 0..SLAB_HUGE {
                let huge = Huge::new(slab as usize, place);
                self.validate_huge(huge, &mut found)?;
                unbacked += u64::from(self.directory.state(huge) == State::Unbacked);
            }
            let recorded = self.directory.slab(slab as usize).unbacked;
            check(
                "unbacked huge pages of a slab",
                at,
                unbacked,
                u64::from(recorded),
            )?;
        }
        let counts = &self.counts;
        check("used", 0, found.used, counts.used)?;
        check("mapped", 0, found.mapped, counts.mapped)?;
        check("reserved", 0, found.reserved, counts.reserved)?;
        check("cached", 0, found.cached, counts.cached)?;
        check(
            "free in regions",
            0,
            found.region_whole,
            counts.region_whole,
        )?;
        check("filler used", 0, found.filler_used, counts.filler_used)?;
        let intact = found.filler_used_intact;
        check("filler used, intact", 0, intact, counts.filler_used_intact)?;
        check("backed huge pages", 0, found.backed, counts.backed_huge)?;
        check("broken huge pages", 0, found.broken, counts.broken_huge)?;
        let listed = self.lists.count(&self.directory);
        holds("the filler's lists are sound", 0, listed.is_some())?;
        check("huge pages in lists", 0, found.filler, listed.unwrap_or(0))?;
        let queues = [&self.primary, &self.intact, &self.broken];
        let queued = queues.iter().map(|queue| u64::from(queue.count)).sum();
        check("huge pages in the cache", 0, found.cached_huge, queued)?;
        for queue in queues {
            self.validate_queue(queue)?;
        }
        let mut region_used = 0;
        for (_, first, used) in self.regions.iter() {
            let address = self.directory.address(first);
            holds("a region is in use", address, used > 0)?;
            region_used += u64::from(used);
        }
        check("used in regions", 0, found.region_used, region_used)?;
        let skipped = self.accuracy.skipped;
        let decided = skipped.correct + skipped.incorrect + self.accuracy.open();
        check(
            "skipped = correct + incorrect + open",
            0,
            decided,
            skipped.total,
        )
    }

    fn validate_huge(&self, huge: Huge, found: &mut Found) -> Result<(), Inconsistency> {
        let state = self.directory.state(huge);
        if state == State::Foreign {
            return Ok(());
        }
        let address = self.directory.address(huge);
        let record = self.directory.record(huge);
        let slab = self.directory.slab(huge.slab());
        let place = huge.place();
        let used = record.used.count();
        let released = record.released.count();
        let broken = self.directory.is_broken(huge);
        check(
            "used pages",
            address,
            u64::from(used),
            u64::from(slab.used[place]),
        )?;
        check(
            "released pages",
            address,
            u64::from(released),
            u64::from(slab.released[place]),
        )?;
        let longest = record.free().longest_run();
        check(
            "longest free run",
            address,
            u64::from(longest),
            u64::from(record.longest_free),
        )?;
        holds(
            "used pages have memory",
            address,
            record.used.and(record.released).is_empty(),
        )?;
        holds(
            "used pages are not clean",
            address,
            record.used.and(record.clean).is_empty(),
        )?;
        let clean = !self.os.release_zeroes() || record.clean.contains(record.released);
        holds("released pages are clean", address, clean)?;
        let found_again = self.directory.find(address + HUGE_BYTES - 1);
        holds(
            "an address finds its record",
            address,
            found_again == Some(huge),
        )?;
        let bit = |bits: &[u64]| bits[place / 64] >> (place % 64) & 1 == 1;
        let free = matches!(state, State::Unbacked | State::Cached);
        holds("free in the bitmap", address, bit(&slab.free) == free)?;
        holds(
            "cached in the bitmap",
            address,
            bit(&slab.cached) == (state == State::Cached),
        )?;
        let shape = match state {
            State::Foreign => true,
            State::Unbacked => used == 0 && record.released == Bits::ALL && !broken,
            State::Cached | State::Leaving | State::Arriving => used == 0 && released < HUGE_PAGES,
            State::Filler => used > 0,
            State::Large => used == HUGE_PAGES,
            State::Region => released < HUGE_PAGES || !broken,
        };
        holds("the state fits the bitmaps", address, shape)?;
        let backed = released < HUGE_PAGES;
        holds(
            "released and backed means broken",
            address,
            released == 0 || !backed || broken,
        )?;

        let mapped = u64::from(HUGE_PAGES - released);
        found.used += u64::from(used);
        found.mapped += mapped;
        found.reserved += u64::from(HUGE_PAGES);
        found.backed += u64::from(backed);
        found.broken += u64::from(broken);
        match state {
            State::Cached => {
                found.cached += mapped;
                found.cached_huge += 1;
            }
            State::Filler => {
                found.filler += 1;
                found.filler_used += u64::from(used);
                found.filler_used_intact += u64::from(if broken { 0 } else { used });
            }
            State::Region => {
                found.region_used += u64::from(used);
                found.region_whole += if used == 0 { mapped } else { 0 };
            }
            _ => {}
        }
        Ok(())
    }

    fn validate_queue(&self, queue: &Queue) -> Result<(), Inconsistency> {
        let (mut at, mut count, mut last) = (queue.newest(), 0, None);
        while let Some(huge) = at {
            let address = self.directory.address(huge);
            let cached = self.directory.state(huge) == State::Cached;
            holds("the cache holds cached huge pages", address, cached)?;
            let home = if self.primary_range().contains(&address) {
                &self.primary
            } else if self.directory.is_broken(huge) {
                &self.broken
            } else {
                &self.intact
            };
            let here = core::ptr::eq(queue, home);
            holds("each queue holds huge pages of its kind", address, here)?;
            let record = self.directory.record(huge);
            holds("links go both ways", address, record.previous == last)?;
            count += 1;
            (last, at) = (at, record.next);
        }
        holds("the cache ends with its oldest", 0, queue.oldest() == last)?;
        check("the length of the cache", 0, count, u64::from(queue.count))
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::{Config, Metadata, Span};

    #[repr(align(64))]
    #[derive(Clone)]
    struct Line(#[allow(dead_code, reason = "only its size counts")] [u8; 64]);

    /// A system without memory but for records.
    struct Nowhere(Vec<Vec<Line>>);

    impl Os for Nowhere {
        fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
            let mut lines = vec![Line([0; 64]); bytes.div_ceil(64)];
            let start = NonNull::new(lines.as_mut_ptr())?.cast();
            self.0.push(lines);
            // SAFETY: zero, aligned, this long, and kept until the system is dropped.
            Some(unsafe { Metadata::new(start, bytes) })
        }

        fn reserve(&mut self, _bytes: usize, align: usize) -> Option<usize> {
            Some(align)
        }

        fn back(&mut self, _address: usize, _bytes: usize) -> bool {
            true
        }

        fn release(&mut self, _address: usize, _bytes: usize) -> bool {
            true
        }

        fn collapse(&mut self, _address: usize) -> bool {
            true
        }

        fn now(&self) -> u64 {
            0
        }
    }

    /// A heap with one free huge page in the cache, and that.
    fn with_cached() -> (PageHeap<Nowhere>, Huge) {
        let mut heap = PageHeap::new(Nowhere(Vec::new()), Config::DEFAULT);
        let Span { address, pages } = heap.allocate(HUGE_PAGES, 1).expect("memory").span;
        assert!(heap.free(Span { address, pages }));
        let huge = heap.directory.find(address).expect("the heap's");
        assert_eq!(heap.directory.state(huge), State::Cached);
        assert_eq!(heap.validate(), Ok(()));
        (heap, huge)
    }

    fn rule(heap: &PageHeap<Nowhere>) -> &'static str {
        heap.validate().expect_err("a fault was planted").rule
    }

    fn break_up(heap: &mut PageHeap<Nowhere>, huge: Huge) {
        heap.directory.set_broken(huge, true);
        heap.counts.broken_huge += 1;
    }

    #[test]
    fn is_a_huge_page_noticed_that_broke_in_the_queue_of_intact_ones() {
        let (mut heap, huge) = with_cached();
        break_up(&mut heap, huge);
        assert_eq!(rule(&heap), "each queue holds huge pages of its kind");
    }

    #[test]
    fn is_a_huge_page_noticed_that_became_whole_in_the_queue_of_broken_ones() {
        let (mut heap, huge) = with_cached();
        heap.uncache(huge);
        break_up(&mut heap, huge);
        heap.cache(huge);
        assert_eq!(heap.validate(), Ok(()));
        heap.mend(huge);
        assert_eq!(rule(&heap), "each queue holds huge pages of its kind");
    }
}
