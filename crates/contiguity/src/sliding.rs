//! The largest or smallest value of a sliding window, in amortized constant time.
//!
//! Remembering only the last peak is not enough: when it leaves the window, the next largest must
//! be known (Adaptive Subrelease, section 3.3). A monotonic deque keeps exactly those values that
//! can still become the extremum, each of which enters and leaves once.

/// A value and when it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When, in the caller's unit.
    pub time: u64,
    /// The value.
    pub value: u64,
}

/// The largest value seen since a given time.
///
/// The samples lie in a buffer of the caller's. If it is too small, the newest samples are merged:
/// the maximum is then never too small, but may be of an older value than was asked for.
#[derive(Clone, Debug, Default)]
pub struct SlidingMaximum<S> {
    samples: S,
    head: usize,
    length: usize,
    steps: u64,
}

impl<S> SlidingMaximum<S> {
    /// An empty window in `samples`.
    pub const fn new(samples: S) -> Self {
        Self {
            samples,
            head: 0,
            length: 0,
            steps: 0,
        }
    }

    /// Number of samples that were ever written or dropped: the cost of recording so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }
}

impl<S: AsRef<[Sample]> + AsMut<[Sample]>> SlidingMaximum<S> {
    fn at(&self, index: usize) -> Sample {
        let samples = self.samples.as_ref();
        samples[(self.head + index) % samples.len()]
    }

    /// Adds a value. `time` must not be less than that of the last one, and no later question may
    /// go back before `since`: what is older is forgotten.
    pub fn push(&mut self, time: u64, value: u64, since: u64) {
        let capacity = self.samples.as_ref().len();
        if capacity == 0 {
            return;
        }
        while self.length > 0 && self.at(0).time < since {
            self.head = (self.head + 1) % capacity;
            self.length -= 1;
            self.steps += 1;
        }
        while self.length > 0 && self.at(self.length - 1).value <= value {
            self.length -= 1;
            self.steps += 1;
        }
        self.steps += 1;
        if self.length == capacity {
            let last = (self.head + self.length - 1) % capacity;
            self.samples.as_mut()[last].time = time;
            return;
        }
        let end = (self.head + self.length) % capacity;
        self.samples.as_mut()[end] = Sample { time, value };
        self.length += 1;
    }

    /// The largest value of those with a time of `since` or later.
    #[must_use]
    pub fn since(&self, since: u64) -> Option<u64> {
        let (mut low, mut high) = (0, self.length);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.at(middle).time < since {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low < self.length).then(|| self.at(low).value)
    }

    /// Changes the unit of time to one that is `factor` times as long.
    pub fn coarsen(&mut self, factor: u64) {
        for sample in self.samples.as_mut() {
            sample.time /= factor.max(1);
        }
    }
}

/// The smallest value seen since a given time; otherwise like [`SlidingMaximum`].
#[derive(Clone, Debug, Default)]
pub struct SlidingMinimum<S>(SlidingMaximum<S>);

impl<S> SlidingMinimum<S> {
    /// An empty window in `samples`.
    pub const fn new(samples: S) -> Self {
        Self(SlidingMaximum::new(samples))
    }

    /// See [`SlidingMaximum::steps`].
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.0.steps()
    }
}

impl<S: AsRef<[Sample]> + AsMut<[Sample]>> SlidingMinimum<S> {
    /// See [`SlidingMaximum::push`].
    pub fn push(&mut self, time: u64, value: u64, since: u64) {
        self.0.push(time, !value, since);
    }

    /// The smallest value of those with a time of `since` or later.
    #[must_use]
    pub fn since(&self, since: u64) -> Option<u64> {
        self.0.since(since).map(|value| !value)
    }

    /// See [`SlidingMaximum::coarsen`].
    pub fn coarsen(&mut self, factor: u64) {
        self.0.coarsen(factor);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn both_extrema_agree_with_a_search_of_the_whole_history(
            window in 1..20_u64,
            pushes in proptest::collection::vec((0..4_u64, 0..50_u64), 1..200),
        ) {
            let mut history: Vec<Sample> = Vec::new();
            let mut maximum = SlidingMaximum::new(vec![Sample::default(); 21]);
            let mut minimum = SlidingMinimum::new(vec![Sample::default(); 21]);
            let mut time = 100;
            for (step, value) in pushes {
                time += step;
                history.push(Sample { time, value });
                maximum.push(time, value, time - window);
                minimum.push(time, value, time - window);
                for since in time - window..=time + 1 {
                    let seen = || history.iter().filter(|s| s.time >= since).map(|s| s.value);
                    prop_assert_eq!(maximum.since(since), seen().max());
                    prop_assert_eq!(minimum.since(since), seen().min());
                }
            }
            prop_assert!(maximum.steps() <= 2 * history.len() as u64);
            prop_assert!(minimum.steps() <= 2 * history.len() as u64);
        }

        #[test]
        fn a_buffer_that_is_too_small_never_hides_a_peak(
            values in proptest::collection::vec(0..50_u64, 1..100),
        ) {
            let mut maximum = SlidingMaximum::new([Sample::default(); 3]);
            for (time, &value) in values.iter().enumerate() {
                maximum.push(time as u64, value, 0);
                for since in 0..=time {
                    let peak = values[since..=time].iter().max().copied();
                    prop_assert!(maximum.since(since as u64) >= peak);
                }
            }
        }
    }
}
