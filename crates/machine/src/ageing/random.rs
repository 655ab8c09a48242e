//! Random numbers: one stream for each actor, so that what one of them meets does not change what
//! another one does. Histories of the same seed are then the same under every placement.

use contigua_units::Nanoseconds;
use rand_distr::{Distribution, Exp1, Poisson};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::profile::Weighted;

/// A stream of random numbers.
#[derive(Clone)]
pub(super) struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The stream of an actor.
    pub(super) fn new(seed: u64, actor: &str, number: u64) -> Self {
        let seed = xxh3_64_with_seed(actor.as_bytes(), seed);
        Self(Xoshiro256PlusPlus::seed_from_u64(xxh3_64_with_seed(
            &number.to_le_bytes(),
            seed,
        )))
    }

    /// Evenly distributed from 0 to 1, without 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (-53_f64).exp2()
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(end)) >> 32) as u32
    }

    /// Exponentially distributed around a mean.
    pub(super) fn exponential(&mut self, mean: Nanoseconds) -> Nanoseconds {
        let draw: f64 = Exp1.sample(&mut self.0);
        Nanoseconds::new((mean.get() as f64 * draw) as u64)
    }

    /// Draws a number of events of which `mean` are expected.
    pub(super) fn poisson(&mut self, mean: f64) -> u64 {
        Poisson::new(mean).map_or(0, |poisson| poisson.sample(&mut self.0) as u64)
    }
}

/// Draws one of several values by weight.
#[derive(Clone, Debug)]
pub(super) struct Choice<T> {
    /// Upper end of each value's part of 0 to 1.
    ends: Vec<(f64, T)>,
}

impl<T: Copy> Choice<T> {
    /// # Panics
    /// When there is no value.
    pub(super) fn new(values: &[Weighted<T>]) -> Self {
        assert!(!values.is_empty(), "a choice of nothing");
        let sum: f64 = values.iter().map(|weighted| weighted.weight).sum();
        let mut end = 0.0;
        let part = |weighted: &Weighted<T>| {
            end += weighted.weight / sum;
            (end, weighted.value)
        };
        Self {
            ends: values.iter().map(part).collect(),
        }
    }

    pub(super) fn draw(&self, random: &mut Random) -> T {
        let at = random.share();
        let found = self.ends.iter().find(|(end, _)| at < *end);
        found.unwrap_or(&self.ends[self.ends.len() - 1]).1
    }

    /// The mean of a function of the values.
    pub(super) fn mean(&self, of: impl Fn(T) -> f64) -> f64 {
        let mut start = 0.0;
        let mut mean = 0.0;
        for &(end, value) in &self.ends {
            mean += (end - start) * of(value);
            start = end;
        }
        mean
    }
}
