//! Amount of memory that a periodic release gives back: a function of statistics only.

use crate::HUGE_PAGES;

/// Statistics on which the verdict depends. All in heap pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Situation {
    /// Memory that the release rate allows.
    pub requested: u64,
    /// Backed.
    pub mapped: u64,
    /// In whole free huge pages that can be given back.
    pub whole: u64,
    /// Free and mapped in partly used huge pages.
    pub partial: u64,
    /// The largest use within Δ, or nothing if Δ is 0.
    pub peak: Option<u64>,
    /// The largest use within the cache's interval, or nothing if that is 0.
    pub cache_peak: Option<u64>,
}

/// Memory to give back. All in heap pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Of whole free huge pages, at least: the last one is given back whole.
    pub whole: u64,
    /// Of whole free huge pages, at most. Huge pages of which parts are gone already are smaller pieces, so how
    /// much the last one brings is only known when it is chosen.
    pub whole_most: u64,
    /// Of partly used huge pages.
    pub partial: u64,
    /// Additional memory that Δ = 0 would have given back.
    pub withheld: u64,
}

/// The policy of Adaptive Subrelease, section 4.
///
/// Step 1: whole free huge pages first. They come in pieces of 2 MB, and none may stay while others
/// are broken; so the last piece is rounded up, and the heap's rate pays for it later. It is not
/// taken if that would bring mapped memory below the peak that the cache is to be kept for.
/// Step 2: with `MAX` the peak, `D = mapped - MAX` bounds what step 3 breaks off others.
pub(crate) fn decide(situation: &Situation) -> Verdict {
    let Situation {
        requested,
        mapped,
        whole,
        partial,
        peak,
        cache_peak,
    } = *situation;
    let huge = u64::from(HUGE_PAGES);
    let spare =
        |mapped: u64, peak: Option<u64>| peak.map_or(u64::MAX, |p| mapped.saturating_sub(p));

    let wanted = requested.div_ceil(huge) * huge;
    let static_whole = wanted.min(whole);
    let cache_spare = spare(mapped, cache_peak);
    let verdict_whole = static_whole.min(cache_spare / huge * huge);

    let rest = |done: u64| requested.saturating_sub(done);
    let static_partial = rest(static_whole).min(partial);
    let verdict_partial = if verdict_whole < whole {
        0
    } else {
        rest(verdict_whole)
            .min(partial)
            .min(spare(mapped - verdict_whole, peak))
    };
    Verdict {
        whole: verdict_whole.min(requested),
        whole_most: cache_spare,
        partial: verdict_partial,
        withheld: (static_whole + static_partial).saturating_sub(verdict_whole + verdict_partial),
    }
}

/// Part of `amount` that decays within `elapsed` if half of it does within `half_life`, to 0.3 %.
/// Nothing if the half-life is 0.
pub(crate) fn decayed(amount: u64, elapsed: u64, half_life: u64) -> u64 {
    if half_life == 0 {
        return 0;
    }
    let halvings = elapsed / half_life;
    if halvings >= u64::BITS.into() {
        return amount;
    }
    // 2^-x for the fraction x of a halving that is left, by its binary digits.
    let mut fraction = u128::from(elapsed % half_life);
    let mut left = 1_u128 << 32;
    for root in ROOTS {
        fraction *= 2;
        if fraction >= u128::from(half_life) {
            fraction -= u128::from(half_life);
            left = (left * root) >> 32;
        }
    }
    let kept = (u128::from(amount) * left) >> (32 + halvings);
    amount - u64::try_from(kept).unwrap_or(amount).min(amount)
}

/// 2^(-1/2), 2^(-1/4), ... times 2^32.
const ROOTS: [u128; 8] = [
    3_037_000_500,
    3_611_622_603,
    3_938_502_376,
    4_112_874_773,
    4_202_935_003,
    4_248_701_965,
    4_271_771_996,
    4_283_353_945,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_free_memory_decays_within_each_half_life() {
        assert_eq!(decayed(1000, 5, 0), 0);
        assert_eq!(decayed(1000, 0, 10), 0);
        assert_eq!(decayed(1024, 10, 10), 512);
        assert_eq!(decayed(1024, 100, 10), 1023);
        assert_eq!(decayed(1024, 110, 10), 1024);
        assert_eq!(decayed(u64::MAX, u64::MAX, 1), u64::MAX);
        for elapsed in 0..5_000_u64 {
            let exact = 1e9 * (1.0 - (-(elapsed as f64) / 1000.0).exp2());
            let error = decayed(1_000_000_000, elapsed, 1000) as f64 - exact;
            assert!(error.abs() < 3e6, "{elapsed}: {error}");
        }
    }

    const MB: u64 = (1 << 20) / crate::PAGE_BYTES as u64;

    #[test]
    fn release_verdict_matches_the_example_of_the_paper() {
        // Section 4.2: 500 MB used, a recent peak of 1 GB, 2 GB mapped; 1.5 GB asked for.
        let situation = Situation {
            requested: 1500 * MB,
            mapped: 2000 * MB,
            whole: 0,
            partial: 1500 * MB,
            peak: Some(1000 * MB),
            cache_peak: None,
        };
        let verdict = decide(&situation);
        assert_eq!(verdict.partial, 1000 * MB);
        assert_eq!(verdict.withheld, 500 * MB);
    }

    #[test]
    fn the_bound_is_exact_at_the_peak() {
        let mut situation = Situation {
            requested: 10,
            mapped: 1010,
            whole: 0,
            partial: 500,
            peak: Some(1000),
            cache_peak: None,
        };
        assert_eq!(decide(&situation).partial, 10);
        situation.peak = Some(1001);
        assert_eq!(decide(&situation).partial, 9);
        situation.peak = Some(1010);
        assert_eq!(decide(&situation).partial, 0);
        situation.peak = Some(2000);
        let verdict = decide(&situation);
        assert_eq!((verdict.partial, verdict.withheld), (0, 10));
    }

    #[test]
    fn whole_huge_pages_go_first_and_none_stays_while_others_break() {
        let huge = u64::from(HUGE_PAGES);
        let situation = Situation {
            requested: huge + 1,
            mapped: 100 * huge,
            whole: 2 * huge,
            partial: 10 * huge,
            peak: None,
            cache_peak: None,
        };
        let verdict = decide(&situation);
        assert_eq!((verdict.whole, verdict.whole_most), (huge + 1, u64::MAX));
        assert_eq!(verdict.partial, 0);
        let more = Situation {
            requested: 2 * huge + 5,
            ..situation
        };
        assert_eq!(decide(&more).partial, 5);
        let kept = Situation {
            cache_peak: Some(100 * huge - 1),
            ..more
        };
        let verdict = decide(&kept);
        assert_eq!((verdict.whole, verdict.partial), (0, 0));
        assert_eq!(verdict.withheld, 2 * huge + 5);
    }
}
