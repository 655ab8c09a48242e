//! Random numbers, quickly: unpredictable from outside, not to who sees some.

use core::sync::atomic::{AtomicU64, Ordering};

/// A generator: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014), figure 17.
pub struct Random(AtomicU64);

impl Random {
    /// One that always gives the same numbers.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begin anew.
    pub fn seed(&self, seed: u64) {
        self.0.store(seed, Ordering::Relaxed);
    }

    /// A number.
    pub fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut random = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        random = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        random ^ random >> 31
    }

    /// A number below `end`.
    pub fn below(&self, end: usize) -> usize {
        self.next() as usize % end
    }
}
