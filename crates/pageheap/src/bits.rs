//! A bit for each heap page of a huge page.

use crate::HUGE_PAGES;
use crate::arena::Zeroed;

/// Up to so many runs, looking at each is faster than halving (our choice).
const FEW_RUNS: u32 = 8;
const WORDS: usize = HUGE_PAGES as usize / 64;

/// 256 bits, one for each heap page of a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits([u64; WORDS]);

// SAFETY: an array of integers.
unsafe impl Zeroed for Bits {}

/// Bits `from..to` of word `word`, where `from` and `to` count in the whole bitmap.
const fn mask(word: usize, from: u32, to: u32) -> u64 {
    let base = word as u32 * 64;
    let low = from.saturating_sub(base);
    let high = to.saturating_sub(base);
    let high = if high > 64 { 64 } else { high };
    if low >= high {
        0
    } else {
        (u64::MAX >> (64 - (high - low))) << low
    }
}

impl Bits {
    /// All bits set.
    pub(crate) const ALL: Self = Self([u64::MAX; WORDS]);
    /// No bit set.
    pub(crate) const NONE: Self = Self([0; WORDS]);

    /// Bits `from..to` set.
    pub(crate) fn range(from: u32, to: u32) -> Self {
        Self(core::array::from_fn(|word| mask(word, from, to)))
    }

    /// The bits that are not set.
    pub(crate) fn not(self) -> Self {
        Self(self.0.map(|word| !word))
    }

    /// Bits set in both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Bits set in either.
    pub(crate) fn or(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// Bits set here and not there.
    pub(crate) fn without(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// Number of set bits.
    pub(crate) fn count(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns true if all bits of `other` are set.
    pub(crate) fn contains(self, other: Self) -> bool {
        (0..WORDS).all(|i| other.0[i] & !self.0[i] == 0)
    }

    /// Returns true if no bit is set.
    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The lowest bit at or above `from` that is set, or 256.
    pub(crate) fn next(self, from: u32) -> u32 {
        let mut word = from as usize / 64;
        if word >= WORDS {
            return HUGE_PAGES;
        }
        let mut bits = self.0[word] & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            if word == WORDS {
                return HUGE_PAGES;
            }
            bits = self.0[word];
        }
        word as u32 * 64 + bits.trailing_zeros()
    }

    /// Number of set bits directly below bit `at`.
    pub(crate) fn run_below(self, at: u32) -> u32 {
        let mut below = 0;
        while below < at {
            let bit = at - below - 1;
            let ones = (self.0[bit as usize / 64] << (63 - bit % 64)).leading_ones();
            let here = ones.min(bit % 64 + 1);
            below += here;
            if here <= bit % 64 {
                break;
            }
        }
        below
    }

    /// The set bits as runs `(from, to)`, from the lowest.
    pub(crate) fn runs(self) -> impl Iterator<Item = (u32, u32)> {
        let clear = self.not();
        let mut at = 0;
        core::iter::from_fn(move || {
            let from = self.next(at);
            (from < HUGE_PAGES).then(|| {
                at = clear.next(from);
                (from, at)
            })
        })
    }

    /// The bits `by` places further down: bit `i` of the result is bit `i + by`.
    #[inline]
    fn down(self, by: u32) -> Self {
        let [a, b, c, d] = self.0;
        let words = match by / 64 {
            0 => [a, b, c, d, 0],
            1 => [b, c, d, 0, 0],
            2 => [c, d, 0, 0, 0],
            3 => [d, 0, 0, 0, 0],
            _ => [0; 5],
        };
        let bits = by % 64;
        // In two steps, because a shift by 64 is none.
        Self(core::array::from_fn(|i| {
            words[i] >> bits | (words[i + 1] << 1) << (63 - bits)
        }))
    }

    /// Number of runs of set bits.
    #[inline]
    fn count_runs(self) -> u32 {
        let mut below = 0;
        let mut runs = 0;
        for word in self.0 {
            runs += (word & !(word << 1 | below)).count_ones();
            below = word >> 63;
        }
        runs
    }

    /// The bits at which a run of at least `length` set bits begins or goes on for that long.
    pub(crate) fn starts(self, length: u32) -> Self {
        let (mut starts, mut have) = (self, 1);
        while have < length {
            let step = have.min(length - have);
            starts = starts.and(starts.down(step));
            have += step;
        }
        starts
    }

    /// The length of the longest run of set bits.
    pub(crate) fn longest_run(self) -> u32 {
        if self.count_runs() <= FEW_RUNS {
            return self.runs().map(|(from, to)| to - from).max().unwrap_or(0);
        }
        self.longest_of_many()
    }

    /// Longest run, in steps that grow with the logarithm of the result.
    fn longest_of_many(self) -> u32 {
        if self.is_empty() {
            return 0;
        }
        // `levels[i]` holds the starts of runs of 2^i.
        let mut levels = [Self::NONE; 9];
        levels[0] = self;
        let mut top = 0;
        while top < 8 {
            let next = levels[top].and(levels[top].down(1 << top));
            if next.is_empty() {
                break;
            }
            top += 1;
            levels[top] = next;
        }
        let (mut starts, mut length) = (levels[top], 1_u32 << top);
        for level in (0..top).rev() {
            let longer = starts.and(levels[level].down(length));
            if !longer.is_empty() {
                starts = longer;
                length += 1 << level;
            }
        }
        length
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn naive(bits: Bits) -> Vec<bool> {
        (0..256)
            .map(|i| bits.0[i / 64] >> (i % 64) & 1 == 1)
            .collect()
    }

    fn some_bits() -> impl Strategy<Value = Bits> {
        let word = || {
            prop_oneof![
                Just(0),
                Just(u64::MAX),
                any::<u64>(),
                any::<u64>().prop_map(|w| w | w << 1 | w << 3)
            ]
        };
        [word(), word(), word(), word()].prop_map(Bits)
    }

    proptest! {
        #[test]
        fn every_operation_agrees_with_a_list_of_flags(
            bits in some_bits(), from in 0..257_u32, length in 1..257_u32
        ) {
            let flags = naive(bits);
            prop_assert_eq!(bits.count() as usize, flags.iter().filter(|&&f| f).count());
            let next = (from as usize..256).find(|&i| flags[i]).unwrap_or(256);
            prop_assert_eq!(bits.next(from) as usize, next);
            let below = flags[..from as usize].iter().rev().take_while(|&&f| f).count();
            prop_assert_eq!(bits.run_below(from) as usize, below);
            let runs: Vec<usize> = flags.split(|&f| !f).map(<[bool]>::len).filter(|&l| l > 0).collect();
            prop_assert_eq!(bits.longest_run() as usize, runs.iter().copied().max().unwrap_or(0));
            prop_assert_eq!(bits.longest_of_many(), bits.longest_run());
            let found: Vec<usize> = bits.runs().map(|(a, b)| (b - a) as usize).collect();
            prop_assert_eq!(found, runs);
            let starts = naive(bits.starts(length));
            for (at, start) in starts.into_iter().enumerate() {
                let end = at + length as usize;
                prop_assert_eq!(start, end <= 256 && flags[at..end].iter().all(|&f| f));
            }
            let to = (from + length).min(256);
            let range = Bits::range(from, to);
            prop_assert_eq!(range.count(), to.saturating_sub(from));
            prop_assert_eq!(Bits::ALL.without(range), range.not());
            prop_assert!(bits.contains(bits.and(range)) && bits.or(range).contains(range));
        }
    }
}
