//! Giving memory back.

use super::PageHeap;
use crate::bits::Bits;
use crate::config::{Config, SECOND};
use crate::os::Os;
use crate::policy::{Situation, decayed, decide};
use crate::slab::{Huge, SLAB_HUGE, State};
use crate::statistics::Released;
use crate::{HUGE_PAGES, PAGE_BYTES};

/// The release rate counts at most this time at once, so that a program that slept for long does
/// not lose all its free memory when it wakes up (our choice: the default of Δ).
const LONGEST_PAUSE: u64 = 60 * SECOND;

const PAGE: u64 = PAGE_BYTES as u64;

/// Memory that could be broken off partly used huge pages, in heap pages.
struct Survey {
    /// Of those that are broken already.
    broken: u64,
    /// Of the others, by how many of their pages are used.
    intact: [u64; HUGE_PAGES as usize],
}

impl Survey {
    fn total(&self) -> u64 {
        self.broken + self.intact.iter().sum::<u64>()
    }

    /// The least use up to which intact huge pages have to be broken for `pages` heap pages.
    fn threshold(&self, pages: u64) -> u32 {
        let mut left = pages;
        for (used, &free) in self.intact.iter().enumerate() {
            if left <= free {
                return used as u32;
            }
            left -= free;
        }
        HUGE_PAGES
    }
}

/// Plan of a periodic release.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Plan {
    /// Heap pages of whole free huge pages: at least, and at most.
    pub whole: u64,
    /// See `whole`.
    pub whole_most: u64,
    /// Heap pages of partly used huge pages.
    pub partial: u64,
    /// True if memory decays, so that `whole` may be much at once.
    pub decays: bool,
    requested: u64,
    withheld: u64,
    now: u64,
}

/// Partly used huge pages that a pass breaks.
#[derive(Clone, Copy)]
enum Which {
    Broken,
    IntactBelow(u32),
    IntactAt(u32),
}

impl<O: Os> PageHeap<O> {
    /// The periodic release: rate, policy, accuracy, repair.
    pub(super) fn release_periodically(&mut self) -> Released {
        self.keep_soft_limit();
        let Some(plan) = self.begin_periodic() else {
            return Released::default();
        };
        let whole = self.release_whole_pages(plan.whole, plan.whole_most);
        let partial = if plan.partial > 0 {
            let survey = self.survey();
            self.subrelease(&survey, plan.partial)
        } else {
            0
        };
        let mut released = self.end_periodic(&plan, whole, partial);
        released.collapsed = self.collapse();
        released
    }

    /// Decides what [`periodic`](Self::periodic) would give back now, for callers that do so in steps
    /// ([`Leaving`](super::Leaving)), and have given back the [`excess`](Self::excess) before. Nothing if it
    /// is too early.
    pub fn begin_periodic(&mut self) -> Option<Plan> {
        if !self.ready {
            return None;
        }
        let now = self.os.now();
        let elapsed = now.saturating_sub(self.last_periodic).min(LONGEST_PAUSE);
        let interval = self.interval_at(now);
        let peak = |window| (window > 0).then(|| self.series.peak_used(now, window));
        let mut situation = Situation {
            requested: 0,
            mapped: self.counts.mapped,
            whole: self.releasable_whole(),
            partial: 0,
            peak: peak(interval),
            cache_peak: self.whole_peak(now, interval),
        };
        let scaled = u128::from(self.config.release_rate) * u128::from(elapsed);
        let rate = u64::try_from(scaled / u128::from(SECOND)).unwrap_or(u64::MAX);
        let decay = decayed(self.decaying(&situation), elapsed, self.config.half_life);
        let allowed = rate.saturating_add(decay * PAGE);
        if elapsed < SECOND && allowed < PAGE_BYTES as u64 {
            return None;
        }
        self.last_periodic = now;
        let requested = allowed.saturating_sub(self.debt);
        self.debt -= allowed - requested;
        situation.requested = requested / PAGE;
        if situation.requested > situation.whole {
            situation.partial = self.survey().total();
        }
        let verdict = decide(&situation);
        Some(Plan {
            whole: verdict.whole,
            whole_most: verdict.whole_most,
            partial: verdict.partial,
            decays: self.config.half_life > 0,
            requested,
            withheld: verdict.withheld,
            now,
        })
    }

    /// Heap pages that decay: free, and not needed lately.
    fn decaying(&self, situation: &Situation) -> u64 {
        if self.config.half_life == 0 {
            return 0;
        }
        let &Situation { mapped, whole, .. } = situation;
        let unused = |peak: Option<u64>| peak.map_or(u64::MAX, |peak| mapped.saturating_sub(peak));
        let whole = whole.min(unused(situation.cache_peak));
        let partial = (mapped - self.counts.used).min(unused(situation.peak));
        whole.max(partial)
    }

    /// The shortest window of the demand for whole huge pages, in nanoseconds.
    pub(super) const fn shortest_window(&self) -> u64 {
        let Config {
            cache_interval,
            interval,
            ..
        } = self.config;
        if cache_interval < interval {
            cache_interval
        } else {
            interval
        }
    }

    /// Heap pages that whole free huge pages are kept for while Δ is `interval`, or nothing if none are.
    fn whole_peak(&self, now: u64, interval: u64) -> Option<u64> {
        let window = self.config.cache_interval.min(interval);
        let used = (window > 0).then(|| self.series.peak_used(now, window));
        // Also if the cache's interval became longer just now.
        if self.config.half_life > 0 {
            used.map(|used| used.max(self.demand.peak(now)))
        } else {
            used
        }
    }

    /// Δ as it is now: at first a shorter one, if the heap was told so.
    fn interval_at(&self, now: u64) -> u64 {
        let Config {
            half_life,
            interval,
            first_interval,
            ..
        } = self.config;
        if half_life > 0 && self.early.is_allowed(now) {
            interval.min(first_interval)
        } else {
            interval
        }
    }

    /// Heap pages of whole free huge pages that may go at once: as many as are above what is used
    /// and `kept` heap pages, unless demand came back for such memory lately.
    pub fn surplus(&self, kept: u64) -> u64 {
        let free = self.counts.cached;
        let least = kept.max(self.counts.used);
        if free <= least || !self.is_decaying(1) {
            return 0;
        }
        let now = self.os.now();
        if self.interval_at(now) < self.config.interval
            && self.demand.is_steady(now, self.shortest_window())
        {
            free - least
        } else {
            0
        }
    }

    /// Notes that memory went back that Δ would have kept: [`surplus`](Self::surplus), or what a [`Plan`]
    /// left for later. [`end_periodic`](Self::end_periodic) does so itself.
    pub fn note_early(&mut self) {
        let now = self.os.now();
        let interval = self.config.interval;
        if self.interval_at(now) < interval {
            let peak = self.series.peak_used(now, interval);
            self.early.note(self.counts.mapped, peak, now, interval);
        }
    }

    /// Returns true if at least `pages` heap pages in whole free huge pages decay, or soon will.
    /// Not asked of heaps with a primary region that stays.
    pub fn is_decaying(&self, pages: u64) -> bool {
        self.counts.cached + self.counts.region_whole >= pages && self.may_decay(pages)
    }

    /// Returns true if at least `pages` heap pages are free, in whole huge pages or in others, and
    /// decay unless they are needed.
    pub fn may_decay(&self, pages: u64) -> bool {
        self.config.half_life > 0
            && self.counts.mapped - self.counts.used >= pages
            && self.config.primary.is_none_or(|primary| primary.releasable)
    }

    /// Heap pages that are free and mapped.
    pub const fn free_mapped(&self) -> u64 {
        self.counts.mapped - (self.counts.used - self.counts.leaving)
    }

    /// Heap pages by which mapped memory is above what was used at most within the cache's interval, and
    /// within Δ: what whole free huge pages, and parts of others, may still give.
    pub fn spare(&self) -> (u64, u64) {
        let now = self.os.now();
        let interval = self.interval_at(now);
        let peak = (interval > 0).then(|| self.series.peak_used(now, interval));
        let above = |peak: Option<u64>| {
            let peak = peak.unwrap_or(self.counts.used);
            self.counts.mapped.saturating_sub(peak)
        };
        (above(self.whole_peak(now, interval)), above(peak))
    }

    /// Notes how many heap pages, of whole and of partly used huge pages, went as planned.
    pub fn end_periodic(&mut self, plan: &Plan, whole: u64, partial: u64) -> Released {
        let (now, requested) = (plan.now, plan.requested);
        let interval = self.config.interval;
        self.debt += ((whole + partial) * PAGE).saturating_sub(requested);

        let top = self.accuracy.top(self.counts.mapped);
        let withheld = plan.withheld.min(top.saturating_sub(self.counts.used));
        let until = self.series.number(now) + interval.div_ceil(self.series.epoch()) + 1;
        self.accuracy.withhold(withheld, self.counts.mapped, until);
        if partial > 0 {
            self.note_early();
        }
        Released {
            requested,
            whole: whole * PAGE,
            subreleased: partial * PAGE,
            withheld: withheld * PAGE,
            collapsed: 0,
        }
    }

    /// Gives back at least `pages` heap pages or all that are free, whole free huge pages first. How
    /// many, of whole and of partly used ones.
    pub(super) fn release_pages(&mut self, pages: u64) -> (u64, u64) {
        if pages == 0 || !self.ready {
            return (0, 0);
        }
        let whole = self.release_whole_pages(pages, u64::MAX);
        let partial = if whole < pages && self.counts.mapped > self.counts.used {
            let survey = self.survey();
            self.subrelease(&survey, pages - whole)
        } else {
            0
        };
        (whole, partial)
    }

    /// Heap pages in whole free huge pages that can be given back.
    fn releasable_whole(&self) -> u64 {
        let all = self.counts.cached + self.counts.region_whole;
        if self.config.primary.is_none_or(|primary| primary.releasable) {
            return all;
        }
        let pinned: u64 = self
            .free_in_regions()
            .filter(|&huge| self.is_pinned(self.directory.address(huge)))
            .map(|huge| u64::from(HUGE_PAGES - self.directory.released(huge)))
            .sum();
        all - pinned - u64::from(self.primary.count) * u64::from(HUGE_PAGES)
    }

    /// Whole free huge pages with memory that belong to regions.
    fn free_in_regions(&self) -> impl Iterator<Item = Huge> {
        self.regions
            .iter()
            .flat_map(|(_, first, _)| super::regions::hugepages(first))
            .filter(|&huge| {
                self.directory.used(huge) == 0 && self.directory.released(huge) < HUGE_PAGES
            })
    }

    /// Gives back whole free huge pages until `least` heap pages are reached, but no more than
    /// `most`: broken ones first, since nothing is lost with them, then those free for longest.
    pub fn release_whole_pages(&mut self, least: u64, most: u64) -> u64 {
        let mut done = 0;
        while done < least {
            let Some(huge) = self.next_whole() else { break };
            if done + u64::from(HUGE_PAGES - self.directory.released(huge)) > most {
                break;
            }
            let released = self.release_whole(huge);
            if released == 0 {
                break;
            }
            done += released;
        }
        done
    }

    /// The whole free huge page that goes back next.
    pub(super) fn next_whole(&self) -> Option<Huge> {
        let releasable = |huge: &Huge| !self.is_pinned(self.directory.address(*huge));
        self.broken
            .oldest()
            .or(self.intact.oldest())
            .or_else(|| self.free_in_regions().find(releasable))
            .or(self.primary.oldest().filter(releasable))
    }

    /// Reads how full each partly used huge page is.
    fn survey(&self) -> Survey {
        let mut survey = Survey {
            broken: 0,
            intact: [0; HUGE_PAGES as usize],
        };
        for huge in self.partly_used() {
            let used = self.directory.used(huge);
            let free = u64::from(HUGE_PAGES - used - self.directory.released(huge));
            if self.directory.is_broken(huge) {
                survey.broken += free;
            } else {
                survey.intact[used as usize] += free;
            }
        }
        survey
    }

    /// Huge pages that are in use and have free pages with memory that can be given back.
    pub(super) fn partly_used(&self) -> impl Iterator<Item = Huge> {
        (0..self.directory.order().len() * SLAB_HUGE)
            .filter_map(|number| self.partly_used_at(number))
    }

    /// The huge page of a number, if it is one of those.
    fn partly_used_at(&self, number: usize) -> Option<Huge> {
        let (slab, place) = (number / SLAB_HUGE, number % SLAB_HUGE);
        let records = self.directory.slab(slab);
        let (used, released) = (records.used[place], records.released[place]);
        let shared = matches!(records.states[place], State::Filler | State::Region);
        let partly = shared && used > 0 && u32::from(used + released) < HUGE_PAGES;
        let huge = Huge::new(slab, place);
        (partly && !self.is_pinned(self.directory.address(huge))).then_some(huge)
    }

    /// Gives back `pages` heap pages of partly used huge pages, or all there are: first of those
    /// that are broken, then of those that are used least, where a break gains the most.
    fn subrelease(&mut self, survey: &Survey, pages: u64) -> u64 {
        let threshold = survey.threshold(pages.saturating_sub(survey.broken));
        let mut done = 0;
        for which in [
            Which::Broken,
            Which::IntactBelow(threshold),
            Which::IntactAt(threshold),
        ] {
            let mut number = 0;
            while done < pages && number < self.directory.order().len() * SLAB_HUGE {
                if let Some(huge) = self.partly_used_at(number) {
                    let broken = self.directory.is_broken(huge);
                    let used = self.directory.used(huge);
                    let chosen = match which {
                        Which::Broken => broken,
                        Which::IntactBelow(threshold) => !broken && used < threshold,
                        Which::IntactAt(threshold) => !broken && used == threshold,
                    };
                    if chosen {
                        done += self
                            .release_part(huge, u32::try_from(pages - done).unwrap_or(u32::MAX));
                    }
                }
                number += 1;
            }
        }
        done
    }

    /// Gives back up to `most` free pages of one huge page.
    fn release_part(&mut self, huge: Huge, most: u32) -> u64 {
        let mut done = Bits::NONE;
        let mut left = most;
        for (from, to) in self.directory.record(huge).free_mapped().runs() {
            let to = to.min(from.saturating_add(left));
            let address = self.directory.page_address(huge, from);
            if from == to || !self.os.release(address, (to - from) as usize * PAGE_BYTES) {
                break;
            }
            left -= to - from;
            done = done.or(Bits::range(from, to));
        }
        self.note_part(huge, done)
    }

    /// Notes that free pages of a huge page were given back. How many.
    pub(super) fn note_part(&mut self, huge: Huge, done: Bits) -> u64 {
        let pages = done.count();
        if pages == 0 {
            return 0;
        }
        // The last page that was in use may have been freed meanwhile.
        let state = self.directory.state(huge);
        if state == State::Cached {
            self.uncache(huge);
        } else if state == State::Region && self.directory.used(huge) == 0 {
            self.counts.region_whole -= u64::from(pages);
        }
        let zeroes = self.os.release_zeroes();
        if !self.directory.is_broken(huge) {
            self.directory.set_broken(huge, true);
            self.counts.broken_huge += 1;
            self.counts.broken_total += 1;
            if self.directory.state(huge) == State::Filler {
                self.counts.filler_used_intact -= u64::from(self.directory.used(huge));
            }
        }
        let record = self.directory.record_mut(huge);
        record.released = record.released.or(done);
        record.clean = if zeroes {
            record.clean.or(done)
        } else {
            record.clean.without(done)
        };
        self.directory.slab_mut(huge.slab()).released[huge.place()] += pages as u16;
        self.counts.mapped -= u64::from(pages);
        self.counts.released_broken += u64::from(pages);
        match state {
            State::Filler => self.lists.update(&mut self.directory, huge),
            State::Cached => self.cache(huge),
            _ => {}
        }
        u64::from(pages)
    }

    /// Asks the system to make broken huge pages whole whose memory is all there again, which costs
    /// no memory. How many became whole.
    fn collapse(&mut self) -> u32 {
        let mut whole = 0;
        let mut first = None;
        for _ in 0..self.config.collapses {
            let Some(huge) = self.next_to_collapse().filter(|huge| first != Some(*huge)) else {
                break;
            };
            first = first.or(Some(huge));
            if self.os.collapse(self.directory.address(huge)) {
                whole += 1;
                self.note_collapse(huge);
            }
        }
        whole
    }

    /// The next huge page, round and round, that is broken, in use and has all its memory.
    pub(super) fn next_to_collapse(&mut self) -> Option<Huge> {
        let total = self.directory.order().len() * SLAB_HUGE;
        if self.counts.broken_huge == 0 {
            return None;
        }
        for _ in 0..total {
            self.collapse_cursor = (self.collapse_cursor + 1) % total;
            let number = self.collapse_cursor;
            let huge = Huge::new(number / SLAB_HUGE, number % SLAB_HUGE);
            let in_use = self.directory.used(huge) > 0 && self.directory.released(huge) == 0;
            if in_use && self.directory.is_broken(huge) {
                return Some(huge);
            }
        }
        None
    }

    /// Notes that the system made a huge page whole.
    pub(super) fn note_collapse(&mut self, huge: Huge) {
        self.mend(huge);
        self.counts.collapsed_total += 1;
        if self.directory.state(huge) == State::Filler {
            self.counts.filler_used_intact += u64::from(self.directory.used(huge));
            self.lists.update(&mut self.directory, huge);
        }
    }
}
