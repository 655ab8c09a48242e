//! History of the heap over the last minutes, in epochs (Adaptive Subrelease, section 3.3).
//!
//! Within an epoch, a change of the heap costs a few comparisons and an addition. When an epoch
//! ends, its extrema enter two sliding windows and its integral a ring; epochs in which nothing
//! happened are one entry together, so that waking up from a long idle time costs nothing either.

use crate::PAGE_BYTES;
use crate::arena::{Block, Zeroed};
use crate::config::SECOND;
use crate::os::Os;
use crate::statistics::Epoch;
use contigua_contiguity::{Sample, SlidingMaximum, SlidingMinimum};

/// Epochs that are kept. At 1 s each that covers 17 min; longer windows make epochs longer.
const CAPACITY: usize = 1024;
/// The longest window in epochs: the current epoch and the one that the window begins in count,
/// too.
const LONGEST: u64 = CAPACITY as u64 - 2;

/// Closed epochs: one, or several in which nothing changed.
#[derive(Clone, Copy)]
struct Closed {
    /// The number of the first.
    first: u64,
    epochs: u64,
    /// Nanoseconds; an epoch has fewer of them if the series began in it.
    time: u64,
    /// Free and mapped heap pages times nanoseconds.
    integral: u128,
    /// Least and largest use, and free and mapped memory, in heap pages.
    used: [u64; 2],
    free: [u64; 2],
}

// SAFETY: integers.
unsafe impl Zeroed for Closed {}
// SAFETY: integers.
unsafe impl Zeroed for Sample {}

/// The heap's sizes at one moment, in heap pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub used: u64,
    pub free: u64,
}

/// The epoch that is open.
#[derive(Clone, Copy)]
struct Open {
    number: u64,
    begin: u64,
    end: u64,
    /// The time up to which `integral` counts.
    counted: u64,
    integral: u64,
    max_used: u64,
    min_used: u64,
    max_free: u64,
    min_free: u64,
}

pub(crate) struct Series {
    /// Nanoseconds of an epoch.
    epoch: u64,
    /// The window of both measures of fragmentation, in epochs.
    schedule: u64,
    level: Level,
    open: Open,
    used: SlidingMaximum<Block<Sample>>,
    free: SlidingMinimum<Block<Sample>>,
    /// The last epochs, the oldest at `head`.
    ring: Block<Closed>,
    head: usize,
    length: usize,
    steps: u64,
}

impl Series {
    /// Bytes of metadata.
    pub(crate) const BYTES: usize = CAPACITY * (2 * size_of::<Sample>() + size_of::<Closed>());

    pub(crate) const fn new() -> Self {
        Self {
            epoch: SECOND,
            schedule: 0,
            level: Level { used: 0, free: 0 },
            open: Open {
                number: 0,
                begin: 0,
                end: 0,
                counted: 0,
                integral: 0,
                max_used: 0,
                min_used: 0,
                max_free: 0,
                min_free: 0,
            },
            used: SlidingMaximum::new(Block::EMPTY),
            free: SlidingMinimum::new(Block::EMPTY),
            ring: Block::EMPTY,
            head: 0,
            length: 0,
            steps: 0,
        }
    }

    /// Gets memory and begins. Windows are in nanoseconds.
    pub(crate) fn prepare<O: Os>(&mut self, os: &mut O, peaks: u64, schedule: u64) -> bool {
        let parts = (
            Block::new(os, CAPACITY),
            Block::new(os, CAPACITY),
            Block::new(os, CAPACITY),
        );
        let (Some(used), Some(free), Some(ring)) = parts else {
            return false;
        };
        self.used = SlidingMaximum::new(used);
        self.free = SlidingMinimum::new(free);
        self.ring = ring;
        self.begin(os.now());
        self.set_windows(peaks, schedule);
        true
    }

    /// Opens the epoch of `now` at `now`.
    fn begin(&mut self, now: u64) {
        let number = now / self.epoch;
        self.open = Open {
            number,
            begin: now,
            end: (number + 1).saturating_mul(self.epoch),
            counted: now,
            integral: 0,
            max_used: self.level.used,
            min_used: self.level.used,
            max_free: self.level.free,
            min_free: self.level.free,
        };
    }

    /// Sets the windows, in nanoseconds. If they do not fit, epochs become longer, and the average
    /// begins anew.
    pub(crate) fn set_windows(&mut self, peaks: u64, schedule: u64) {
        let longest = peaks.max(schedule).div_ceil(LONGEST);
        let factor = longest.div_ceil(self.epoch);
        if factor > 1 {
            self.used.push(self.open.number, self.open.max_used, 0);
            self.free.push(self.open.number, self.open.min_free, 0);
            self.used.coarsen(factor);
            self.free.coarsen(factor);
            self.epoch *= factor;
            (self.head, self.length) = (0, 0);
            self.begin(self.open.counted);
        }
        self.schedule = schedule.div_ceil(self.epoch);
    }

    /// The length of an epoch in nanoseconds.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Notes the sizes after a change of the heap. True if an epoch ended.
    #[inline]
    pub(crate) fn record(&mut self, now: u64, level: Level) -> bool {
        let ended = now >= self.open.end;
        if ended {
            self.advance(now);
        }
        let open = &mut self.open;
        open.integral += self.level.free * now.saturating_sub(open.counted);
        open.counted = open.counted.max(now);
        open.max_used = open.max_used.max(level.used);
        open.min_used = open.min_used.min(level.used);
        open.max_free = open.max_free.max(level.free);
        open.min_free = open.min_free.min(level.free);
        self.level = level;
        self.steps += 1;
        ended
    }

    /// Closes the open epoch, and those up to `now` in which nothing happened.
    #[cold]
    fn advance(&mut self, now: u64) {
        let Open { number, begin, .. } = self.open;
        let next = now / self.epoch;
        let integral = self.open.integral + self.level.free * (self.open.end - self.open.counted);
        self.close(Closed {
            first: number,
            epochs: 1,
            time: self.open.end - begin,
            integral: u128::from(integral),
            used: [self.open.min_used, self.open.max_used],
            free: [self.open.min_free, self.open.max_free],
        });
        // Peaks are kept for as long as there is room, for an interval that is made longer.
        let peaks = next.saturating_sub(LONGEST);
        let schedule = next.saturating_sub(self.schedule);
        self.used.push(number, self.open.max_used, peaks);
        self.free.push(number, self.open.min_free, schedule);
        let idle = next - number - 1;
        if idle > 0 {
            let time = idle * self.epoch;
            self.close(Closed {
                first: number + 1,
                epochs: idle,
                time,
                integral: u128::from(time) * u128::from(self.level.free),
                used: [self.level.used; 2],
                free: [self.level.free; 2],
            });
            self.used.push(next - 1, self.level.used, peaks);
            self.free.push(next - 1, self.level.free, schedule);
        }
        // The ring has room for a whole window and the two entries from above.
        self.forget(next);
        self.begin(next * self.epoch);
    }

    /// Drops epochs that have left the window when epoch `current` begins.
    fn forget(&mut self, current: u64) {
        while self.length > 0 {
            let oldest = &self.ring[self.head];
            if oldest.first + oldest.epochs + self.schedule > current {
                break;
            }
            self.head = (self.head + 1) % CAPACITY;
            self.length -= 1;
            self.steps += 1;
        }
    }

    fn close(&mut self, closed: Closed) {
        debug_assert!(self.length < CAPACITY);
        let end = (self.head + self.length) % CAPACITY;
        self.ring[end] = closed;
        self.length += 1;
        self.steps += 1;
    }

    /// The epochs that are kept, the oldest first, without the one that is open.
    pub(crate) fn epochs(&self) -> impl Iterator<Item = Epoch> {
        let page = PAGE_BYTES as u64;
        (0..self.length).map(move |index| {
            let closed = &self.ring[(self.head + index) % CAPACITY];
            Epoch {
                end: (closed.first + closed.epochs) * self.epoch,
                duration: closed.time,
                used: closed.used.map(|pages| pages * page),
                free_mapped: closed.free.map(|pages| pages * page),
            }
        })
    }

    /// The number of the epoch of a time.
    pub(crate) const fn number(&self, now: u64) -> u64 {
        let number = now / self.epoch;
        if number < self.open.number {
            self.open.number
        } else {
            number
        }
    }

    /// The largest use within the last `window` nanoseconds, rounded up to whole epochs.
    pub(crate) fn peak_used(&self, now: u64, window: u64) -> u64 {
        let since = self.number(now).saturating_sub(window.div_ceil(self.epoch));
        let mut peak = self.level.used;
        if self.open.number >= since {
            peak = peak.max(self.open.max_used);
        }
        peak.max(self.used.since(since).unwrap_or(0))
    }

    /// The least free and mapped memory within the schedule's window, in heap pages.
    pub(crate) fn realized(&self, now: u64) -> u64 {
        let since = self.number(now).saturating_sub(self.schedule);
        let mut least = self.level.free;
        if self.open.number >= since {
            least = least.min(self.open.min_free);
        }
        least.min(self.free.since(since).unwrap_or(u64::MAX))
    }

    /// Free and mapped memory averaged over the same window, in heap pages.
    pub(crate) fn average(&self, now: u64) -> f64 {
        let since = self.number(now).saturating_sub(self.schedule);
        let (mut time, mut integral) = (0_u128, 0_u128);
        for index in 0..self.length {
            let closed = &self.ring[(self.head + index) % CAPACITY];
            let outside = since.saturating_sub(closed.first).min(closed.epochs);
            let inside = u128::from(closed.epochs - outside);
            time += u128::from(closed.time) * inside / u128::from(closed.epochs);
            integral += closed.integral * inside / u128::from(closed.epochs);
        }
        let now = now.max(self.open.counted);
        let mut counted = self.open.counted;
        if self.open.number >= since {
            time += u128::from(counted - self.open.begin);
            integral += u128::from(self.open.integral);
        } else {
            counted = since * self.epoch;
        }
        time += u128::from(now - counted);
        integral += u128::from(now - counted) * u128::from(self.level.free);
        if time == 0 {
            return self.level.free as f64;
        }
        integral as f64 / time as f64
    }

    #[cfg(test)]
    /// Number of entries that were ever written, compared or dropped: the cost of recording so far.
    pub(crate) const fn steps(&self) -> u64 {
        self.steps + self.used.steps() + self.free.steps()
    }
}

#[cfg(all(test, feature = "replay"))]
mod tests {
    use super::*;
    use crate::replay::VirtualOs;
    use core::cell::Cell;
    use std::rc::Rc;

    fn cost(window: u64, changes: u64, pause: u64) -> u64 {
        let mut os = VirtualOs::new(Rc::new(Cell::new(0)));
        let mut series = Series::new();
        assert!(series.prepare(&mut os, window, window));
        for change in 0..changes {
            // Falling use is the worst case: nothing that was seen can be forgotten early.
            let level = Level {
                used: changes - change,
                free: change * 7919 % 1000,
            };
            series.record(change * pause, level);
        }
        series.steps()
    }

    #[test]
    fn does_recording_cost_more_with_a_longer_window() {
        let changes = if cfg!(miri) { 200 } else { 20_000 };
        for pause in [1_000_000, 400_000_000, SECOND, 30 * SECOND, 2000 * SECOND] {
            for window in [SECOND, 60 * SECOND, 600 * SECOND, 100_000 * SECOND] {
                let steps = cost(window, changes, pause);
                // One for the change; at the end of an epoch at most three entries for it and three
                // for the time after it, each written once and dropped once.
                assert!(steps <= 13 * changes, "{steps} for a window of {window} ns");
            }
        }
        // Within an epoch, exactly one step a change.
        assert_eq!(cost(600 * SECOND, 1000, 1000), 1000);
    }

    #[test]
    fn a_peak_is_forgotten_when_the_window_has_passed_and_not_before() {
        let mut os = VirtualOs::new(Rc::new(Cell::new(0)));
        let mut series = Series::new();
        assert!(series.prepare(&mut os, 60 * SECOND, 60 * SECOND));
        let at = |used, free| Level { used, free };
        series.record(SECOND, at(0, 60));
        series.record(10 * SECOND, at(100, 5));
        series.record(10 * SECOND + 1, at(40, 50));
        series.record(30 * SECOND, at(70, 9));
        series.record(30 * SECOND + 1, at(40, 50));
        // The second epoch of 10 s counts until it lies outside entirely.
        assert_eq!(series.peak_used(71 * SECOND - 1, 60 * SECOND), 100);
        assert_eq!(series.peak_used(71 * SECOND, 60 * SECOND), 70);
        assert_eq!(series.realized(71 * SECOND - 1), 5);
        assert_eq!(series.realized(71 * SECOND), 9);
        assert_eq!(series.peak_used(91 * SECOND - 1, 60 * SECOND), 70);
        assert_eq!(series.peak_used(91 * SECOND, 60 * SECOND), 40);
        assert_eq!(series.realized(91 * SECOND), 50);
        // The same when something was recorded meanwhile.
        series.record(91 * SECOND, at(40, 50));
        assert_eq!(series.peak_used(91 * SECOND, 60 * SECOND), 40);
        assert_eq!(series.realized(91 * SECOND), 50);
    }

    #[test]
    fn a_window_that_does_not_fit_makes_epochs_longer_and_loses_no_peak() {
        let mut os = VirtualOs::new(Rc::new(Cell::new(0)));
        let mut series = Series::new();
        assert!(series.prepare(&mut os, 60 * SECOND, 60 * SECOND));
        series.record(SECOND, Level { used: 9, free: 1 });
        series.record(2 * SECOND, Level { used: 1, free: 2 });
        series.record(90 * SECOND, Level { used: 2, free: 2 });
        series.set_windows(10_000 * SECOND, 60 * SECOND);
        assert_eq!(series.epoch(), 10 * SECOND);
        assert_eq!(series.peak_used(9_000 * SECOND, 10_000 * SECOND), 9);
        assert_eq!(series.peak_used(30_000 * SECOND, 10_000 * SECOND), 2);
    }
}
