//! Busy times that come out of order.

/// Number of busy times that are kept. A window of some hundred instructions waits for few misses
/// in a row, and times without a pause between them are one.
const KEPT: usize = 8;

/// From `begin` until before `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
struct Busy {
    begin: u64,
    end: u64,
}

/// When something is busy: the latest times, in order and apart from each other.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
pub(super) struct Timeline {
    /// Before this, nothing is known.
    past: u64,
    kept: usize,
    busy: [Busy; KEPT],
}

impl Timeline {
    /// When something of this length starts that is ready at `ready`: then or in the first pause that is long
    /// enough for it, `handover` after what it waits for. All that was entered had pauses of that length.
    #[inline]
    pub(super) fn free(&self, ready: u64, length: u64, handover: u64) -> u64 {
        let mut start = ready;
        if ready < self.past {
            start = self.past + handover;
        }
        let before = self.before(start);
        for busy in &self.busy[before..self.kept] {
            if start + length <= busy.begin {
                break;
            }
            start = busy.end + handover;
        }
        start
    }

    /// It is busy from `begin` until `end`, and in pauses of at most `pause` before or after that. Returns for how
    /// long it was not before; times of which nothing is known do not count.
    #[inline]
    pub(super) fn enter(&mut self, begin: u64, end: u64, pause: u64) -> u64 {
        let begin = begin.max(self.past);
        if end <= begin {
            return 0;
        }
        let mut merged = Busy { begin, end };
        let mut fresh = end - begin;
        // What ends so long before it is apart.
        let first = self.before(begin.saturating_sub(pause + 1));
        let mut last = first;
        while last < self.kept && self.busy[last].begin <= end + pause {
            let other = self.busy[last];
            let overlap = end.min(other.end).saturating_sub(begin.max(other.begin));
            fresh -= overlap;
            merged.begin = merged.begin.min(other.begin);
            merged.end = merged.end.max(other.end);
            last += 1;
        }
        if first == last {
            self.insert(first, merged);
        } else {
            self.busy[first] = merged;
            self.busy.copy_within(last..self.kept, first + 1);
            self.kept -= last - first - 1;
        }
        fresh
    }

    /// Number of busy times that end at `time` or before.
    #[inline]
    fn before(&self, time: u64) -> usize {
        let mut before = self.kept;
        while before > 0 && self.busy[before - 1].end > time {
            before -= 1;
        }
        before
    }

    fn insert(&mut self, place: usize, busy: Busy) {
        if self.kept < KEPT {
            self.busy.copy_within(place..self.kept, place + 1);
            self.busy[place] = busy;
            self.kept += 1;
        } else if place == 0 {
            self.past = busy.end;
        } else {
            self.past = self.busy[0].end;
            self.busy.copy_within(1..place, 0);
            self.busy[place - 1] = busy;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Naive model: busy times as a set of cycles.
    #[derive(Default)]
    struct Naive {
        past: u64,
        cycles: BTreeSet<u64>,
    }

    impl Naive {
        fn runs(&self) -> Vec<(u64, u64)> {
            let mut runs: Vec<(u64, u64)> = Vec::new();
            for &cycle in &self.cycles {
                match runs.last_mut() {
                    Some((_, end)) if *end == cycle => *end += 1,
                    _ => runs.push((cycle, cycle + 1)),
                }
            }
            runs
        }

        fn free(&self, ready: u64, length: u64, handover: u64) -> u64 {
            let mut start = ready;
            if ready < self.past {
                start = self.past + handover;
            }
            for (begin, end) in self.runs() {
                if begin < start + length && start < end {
                    start = end + handover;
                }
            }
            start
        }

        fn enter(&mut self, begin: u64, end: u64, pause: u64) -> u64 {
            let before = self.cycles.len();
            self.cycles.extend(begin.max(self.past)..end);
            let fresh = (self.cycles.len() - before) as u64;
            for pair in self.runs().windows(2) {
                if pair[1].0 - pair[0].1 <= pause {
                    self.cycles.extend(pair[0].1..pair[1].0);
                }
            }
            let runs = self.runs();
            if let Some(dropped) = runs.len().checked_sub(KEPT + 1) {
                self.past = runs[dropped].1;
                self.cycles = self.cycles.split_off(&self.past);
            }
            fresh
        }
    }

    proptest! {
        #[test]
        fn a_timeline_agrees_with_a_set_of_cycles(
            pause in 0..4_u64,
            requests in proptest::collection::vec((0..8_u64, 0..300_u64, 1..12_u64, any::<bool>()), 1..150)
        ) {
            let (mut timeline, mut naive) = (Timeline::default(), Naive::default());
            let mut now = 0;
            for (step, later, length, waits) in requests {
                now += step;
                let ready = now + later;
                let start = timeline.free(ready, length, pause);
                prop_assert_eq!(start, naive.free(ready, length, pause));
                let begin = if waits { start } else { ready };
                let fresh = timeline.enter(begin, begin + length, pause);
                prop_assert_eq!(fresh, naive.enter(begin, begin + length, pause));
                let kept = timeline.busy[..timeline.kept].iter();
                let kept: Vec<_> = kept.map(|busy| (busy.begin, busy.end)).collect();
                prop_assert_eq!(kept, naive.runs());
                prop_assert_eq!(timeline.past, naive.past);
            }
        }
    }
}
