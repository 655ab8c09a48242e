//! Plans that a recording can be replayed under: those for which it was traced fully enough.

use super::{Plan, Sampling};

impl Plan {
    /// Returns true if a trace under this plan is enough to follow another one.
    #[must_use]
    pub fn holds(&self, wanted: &Self) -> bool {
        if wanted.regions.is_some() || self.regions.is_some() {
            return !self.goes_forward();
        }
        match (&self.sampling, &wanted.sampling) {
            (None, _) => wanted.skip >= self.skip,
            (Some(_), None) => false,
            (Some(told), Some(sampling)) => self.skip == wanted.skip && told.holds(sampling),
        }
    }
}

impl Sampling {
    /// Returns true if each unit of `wanted` is one of these, warmed by no more. As distances
    /// double, units stay units only where both are powers of two apart and these do not double
    /// first. Units are warmed longer from the first gap on: it must be these units' own, unless there are
    /// gaps from the start, or units are told with as much.
    fn holds(&self, wanted: &Self) -> bool {
        let times = wanted.distance / self.distance;
        wanted.distance.is_multiple_of(self.distance)
            && times.is_power_of_two()
            && (times == 1 || self.is_roomy(self.distance))
            && (wanted.seed, wanted.detail) == (self.seed, self.detail)
            && wanted.warm <= self.warm
            && (wanted.long_warm <= self.warm
                || wanted.long_warm <= self.long_warm
                    && (self.has_gaps(0)
                        || (times, wanted.most, wanted.warm) == (1, self.most, self.warm)))
            && (self.most == 0 || (1..=self.most).contains(&wanted.most))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Mode, Segment, Units};
    use super::*;

    const TOLD: Sampling = Sampling {
        distance: 10_000,
        warm: 3000,
        detail: 1000,
        seed: 500,
        most: 4,
        long_warm: 0,
        units: Units::Told,
    };

    fn sampled(sampling: Sampling) -> Plan {
        Plan {
            skip: 100,
            sampling: Some(sampling),
            ..Plan::default()
        }
    }

    /// Looks at every place where either plan changes its mode.
    fn holds_naively(told: &Plan, wanted: &Plan, until: u64) -> bool {
        let mut at = 0;
        while at < until {
            let (one, other): (Segment, Segment) = (told.segment(at), wanted.segment(at));
            if one.mode == Mode::Forward && other.mode != Mode::Forward {
                return false;
            }
            at = one.end.min(other.end);
        }
        true
    }

    #[test]
    fn recording_holds_only_instructions_traced_in_full() {
        let told = sampled(TOLD);
        assert!(told.holds(&told));
        for held in [
            Sampling { warm: 0, ..TOLD },
            Sampling {
                distance: 20_000,
                ..TOLD
            },
            Sampling { most: 2, ..TOLD },
        ] {
            assert!(told.holds(&sampled(held)), "{held:?}");
        }
        for missing in [
            Sampling { warm: 3001, ..TOLD },
            Sampling {
                detail: 1001,
                warm: 0,
                ..TOLD
            },
            Sampling {
                distance: 5000,
                ..TOLD
            },
            Sampling {
                distance: 30_000,
                ..TOLD
            },
            Sampling { seed: 0, ..TOLD },
            Sampling { most: 8, ..TOLD },
            Sampling { most: 0, ..TOLD },
        ] {
            assert!(!told.holds(&sampled(missing)), "{missing:?}");
        }
        let all = Plan::default();
        assert!(all.holds(&told) && !told.holds(&all));
        let skip = |skip| Plan {
            skip,
            ..Plan::default()
        };
        assert!(skip(100).holds(&told) && skip(100).holds(&skip(101)));
        assert!(!skip(101).holds(&told) && !skip(100).holds(&skip(99)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(2000)))]

        #[test]
        fn recording_that_holds_a_plan_traced_all_of_it(
            distance in 2000..20_000_u64, warm in 0..20_000_u64, detail in 1000..2000_u64,
            seed: u64, most in 0..9_u64, skip in 0..3000_u64,
            times in prop_oneof![Just(1), Just(2), Just(4), Just(8), 1..9_u64],
            less in 0..10_000_u64, other_most in 0..9_u64,
            longer in 0..40_000_u64, checks in 0..3_u64,
        ) {
            let told = Sampling {
                distance, warm, detail, seed, most,
                long_warm: if checks > 0 { warm + longer } else { 0 },
                units: Units::Told,
            };
            let wanted = Sampling {
                distance: times * distance,
                warm: warm.saturating_sub(less),
                most: other_most,
                long_warm: if checks > 1 { (warm + longer).saturating_sub(less) } else { 0 },
                ..told
            };
            let [told, wanted] = [told, wanted].map(|s| Plan { skip, sampling: Some(s), ..Plan::default() });
            if told.holds(&wanted) {
                prop_assert!(holds_naively(&told, &wanted, 1_000_000));
            }
            let all = Plan { skip, ..Plan::default() };
            prop_assert!(all.holds(&wanted));
        }
    }
}
