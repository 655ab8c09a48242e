//! Stratified sampling: one unit of detail, at random, in each stretch of as many instructions, after
//! some that warm caches and TLBs.
//!
//! Units at equal distances (Wunderlich et al., "SMARTS", ISCA 2003) would meet a program's own periods
//! always at the same place, which no interval shows. Units end anywhere in their stretch, so that the
//! program's first instructions are as likely in one as others. The length of a program is not known
//! before its end, so the distance doubles as it goes on: [`Sampling::most`] bounds the time that units
//! take.
//!
//! Short warming leaves caches as they were at the unit before. How much that changes is measured: one of
//! [`CHECKED`] units is simulated a second time by a server that warms longer ([`Units`]).

use serde::{Deserialize, Serialize};

use super::segment::{LEAST_DETAIL, Mode, Segment};
use super::windows::Invalid;

/// Units of detail, and what lies between them. All in instructions but `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sampling {
    /// Among so many, at first, one unit ends.
    pub distance: u64,
    /// Those before each unit that warm caches and TLBs; as many as there are since the last one.
    pub warm: u64,
    /// Those of a unit, which count.
    pub detail: u64,
    /// Of where units are.
    pub seed: u64,
    /// The most units: when there are so many, the distance doubles, and of two neighbors only one, at
    /// random, counts any more. 0: as many as there are.
    pub most: u64,
    /// Instructions that warm one of [`CHECKED`] units for a second server, where `warm` leaves gaps. 0: no
    /// unit is checked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub long_warm: u64,
    /// Units that a server simulates.
    #[serde(skip)]
    pub units: Units,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as Serde calls it")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One of so many units is warmed longer, too.
pub const CHECKED: u64 = 16;

/// Which units of a [`Sampling`], and how they are warmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// Those of both servers: what a program tells.
    #[default]
    Told,
    /// All, warmed by [`Sampling::warm`].
    All,
    /// One of [`CHECKED`], warmed by [`Sampling::long_warm`].
    Checked,
}

impl Sampling {
    /// Checks that units can be made.
    ///
    /// # Errors
    /// [`Invalid`].
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.detail < LEAST_DETAIL {
            return Err(Invalid::Detail(self.detail));
        }
        if self.detail > self.distance {
            return Err(Invalid::Distance {
                unit: self.detail,
                distance: self.distance,
            });
        }
        if self.long_warm != 0 && self.long_warm <= self.warm {
            return Err(Invalid::LongWarm {
                warm: self.warm,
                long: self.long_warm,
            });
        }
        if self.is_checked() && self.distance > u64::MAX / CHECKED {
            return Err(Invalid::FarApart {
                distance: self.distance,
                most: u64::MAX / CHECKED,
            });
        }
        Ok(())
    }

    /// These, of one server.
    #[must_use]
    pub const fn of(self, units: Units) -> Self {
        Self { units, ..self }
    }

    /// Returns true if the warming of units is checked.
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.long_warm > 0
    }

    /// Returns true if instructions are passed over between units after `count` instructions of the
    /// region: two neighbors end less than two distances apart.
    #[must_use]
    pub fn has_gaps(&self, count: u64) -> bool {
        self.distance_of(count, 1) > self.warm / 2
    }

    /// The first instruction behind which there are gaps, if there is one.
    fn gaps_from(&self) -> Option<u64> {
        if self.has_gaps(0) {
            return Some(0);
        }
        let first = self.distance.saturating_mul(self.most);
        if first == 0 {
            return None;
        }
        let doublings = (self.warm / 2 / self.distance).ilog2();
        let count = first.checked_shl(doublings)?;
        (count >> doublings == first).then_some(count)
    }

    /// The distance of units after `count` instructions of the region.
    #[must_use]
    pub fn distance_at(&self, count: u64) -> u64 {
        self.distance_of(count, self.apart())
    }

    /// The distance of one of `apart` units. It doubles where the last one's stretch ends.
    fn distance_of(&self, count: u64, apart: u64) -> u64 {
        let distance = self.distance.saturating_mul(apart);
        let first = distance.saturating_mul(self.most.div_ceil(apart));
        if first == 0 || count < first {
            return distance;
        }
        let doublings = (count / first).ilog2() + 1;
        distance << doublings.min(distance.leading_zeros().saturating_sub(1))
    }

    /// The end of the unit that the instruction after `count` others of the region is in or before.
    #[must_use]
    pub fn end_of_unit(&self, count: u64) -> u64 {
        self.end_of_one(count, self.apart())
    }

    /// How many distances lie between units.
    const fn apart(&self) -> u64 {
        match self.units {
            Units::Told | Units::All => 1,
            Units::Checked => CHECKED,
        }
    }

    /// As [`Sampling::end_of_unit`], of one of `apart` units.
    fn end_of_one(&self, count: u64, apart: u64) -> u64 {
        let mut at = count;
        while at < u64::MAX {
            let distance = self.distance_of(at, apart);
            let begin = at / distance * distance;
            let end = self.end_within(begin, distance);
            if count < end {
                return end;
            }
            // Where the distance has doubled, the unit may lie in the half that is over.
            at = begin.saturating_add(distance);
        }
        u64::MAX
    }

    /// Returns true if a unit with such an end counts when the region has so many instructions.
    #[must_use]
    pub fn keeps(&self, end: u64, region: u64) -> bool {
        let distance = self.distance_at(region);
        self.end_within(end / distance * distance, distance) == end
    }

    /// The end of the unit that ends among `length` instructions behind `begin`. Halves are chosen first,
    /// so that it is a unit of half of the distance, too.
    fn end_within(&self, mut begin: u64, mut length: u64) -> u64 {
        while length > self.distance || (length.is_multiple_of(2) && self.is_roomy(length / 2)) {
            length /= 2;
            if self.random(begin, length) & 1 != 0 {
                begin = begin.saturating_add(length);
            }
        }
        let places = u128::from(length - self.detail) + 1;
        let place = (u128::from(self.random(begin, 0)) * places) >> 64;
        begin.saturating_add(place as u64)
    }

    /// Returns true if units are spread among so many instructions nearly as among more.
    pub(super) const fn is_roomy(&self, length: u64) -> bool {
        length / 8 >= self.detail
    }

    /// The output function of `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
    const fn random(&self, begin: u64, length: u64) -> u64 {
        let place = (begin ^ length.rotate_left(32)).wrapping_mul(0xd1b5_4a32_d192_ed03);
        let mut mixed = self
            .seed
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ place;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The segment of the instruction after `count` others of the region, ending after so many.
    pub(super) fn segment(&self, count: u64) -> Segment {
        let all = || self.segment_of(count, 1, self.warm);
        match self.units {
            Units::All => all(),
            Units::Checked => self.checked_segment(count),
            Units::Told if !self.is_checked() => all(),
            Units::Told => {
                let (one, other) = (all(), self.checked_segment(count));
                Segment {
                    mode: one.mode.max(other.mode),
                    end: one.end.min(other.end),
                }
            }
        }
    }

    fn checked_segment(&self, count: u64) -> Segment {
        match self.gaps_from() {
            Some(from) if count >= from => self.segment_of(count, CHECKED, self.long_warm),
            from => Segment {
                mode: Mode::Forward,
                end: from.unwrap_or(u64::MAX),
            },
        }
    }

    fn segment_of(&self, count: u64, apart: u64, warm: u64) -> Segment {
        let end = self.end_of_one(count, apart);
        let unit = end.saturating_sub(self.detail);
        let warm = unit.saturating_sub(warm);
        let (mode, end) = if count >= unit {
            (Mode::Detail, end)
        } else if count >= warm {
            (Mode::Warm, unit)
        } else {
            (Mode::Forward, warm)
        };
        Segment { mode, end }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;

    const SAMPLING: Sampling = Sampling {
        distance: 10_000,
        warm: 3000,
        detail: 1000,
        seed: 500,
        most: 4,
        long_warm: 0,
        units: Units::Told,
    };

    fn plan(sampling: Sampling) -> Plan {
        Plan {
            skip: 100,
            sampling: Some(sampling),
            regions: None,
        }
    }

    /// Ends of units, of so many instructions of the region; each is checked to be warmed as it should.
    fn units(sampling: Sampling, region: u64) -> Vec<u64> {
        let plan = plan(sampling);
        let (mut at, mut last, mut warmed, mut units) = (100, 100, 0, Vec::new());
        while at < 100 + region {
            let segment = plan.segment(at);
            match segment.mode {
                Mode::Forward => {}
                Mode::Warm => warmed = segment.end - at,
                Mode::Detail => {
                    // The first one may have begun before the program.
                    assert!(segment.end == at + sampling.detail || at == 100);
                    assert_eq!(warmed, sampling.warm.min(at - last));
                    units.push(segment.end - 100);
                    (last, warmed) = (segment.end, 0);
                }
            }
            at = segment.end;
        }
        units
    }

    #[test]
    fn a_unit_lies_somewhere_in_each_stretch() {
        for seed in 0..100 {
            let sampling = Sampling {
                seed,
                most: 0,
                ..SAMPLING
            };
            let mut units = units(sampling, 1_000_000);
            units.truncate(100);
            for (number, unit) in (0..).zip(units) {
                assert_eq!(unit / 10_000, number);
                assert!(unit % 10_000 <= 9000);
            }
        }
    }

    #[test]
    fn units_are_anywhere_equally_often() {
        // Of a thousand units, 63 in each sixteenth are expected, with a standard deviation of 8.
        let sampling = Sampling {
            distance: 160_000,
            most: 0,
            ..SAMPLING
        };
        let mut places = [0; 16];
        for unit in units(sampling, 160_000_000) {
            places[(unit % 160_000 / 10_000) as usize] += 1;
        }
        assert!(
            places.iter().all(|count| (30..95).contains(count)),
            "{places:?}"
        );
    }

    #[test]
    fn the_first_instruction_is_as_likely_in_a_unit_as_any_other() {
        // 1000 of 19,000 places, for 3800 seeds: 200 are expected, with a standard deviation of 14.
        let has = |count: u64| {
            let seeds = (0..3800).map(|seed| Sampling {
                distance: 20_000,
                seed,
                ..SAMPLING
            });
            seeds
                .filter(|s| s.segment(count).mode == Mode::Detail)
                .count()
        };
        for count in [0, 500, 12_345] {
            assert!((140..260).contains(&has(count)), "{}", has(count));
        }
    }

    #[test]
    fn of_two_neighbors_one_is_kept_when_distances_double() {
        for (seed, most) in (0..50).map(|seed| (seed, 1 + seed % 9)) {
            let all = Sampling {
                seed,
                most: 0,
                ..SAMPLING
            };
            let some = Sampling { most, ..all };
            let (all, found) = (units(all, 1_000_000), units(some, 1_000_000));
            assert!(found.iter().all(|unit| all.contains(unit)));
            let kept: Vec<u64> = found
                .into_iter()
                .filter(|&u| some.keeps(u, 1_000_000))
                .collect();
            let distance = some.distance_at(1_000_000);
            assert!(kept.len() as u64 <= most);
            // One in each stretch, but for the last one.
            let whole = 1_000_000 / distance;
            let stretches: Vec<u64> = kept.iter().map(|unit| unit / distance).collect();
            assert_eq!(stretches[..whole as usize], (0..whole).collect::<Vec<_>>());
        }
    }

    /// Segments of one server, up to a count; none begins within another.
    fn segments(sampling: Sampling, until: u64) -> Vec<(u64, Segment)> {
        let (mut at, mut found) = (0, Vec::new());
        while at < until {
            let segment = sampling.segment(at);
            found.push((at, segment));
            at = segment.end;
        }
        found
    }

    #[test]
    fn checked_units_are_of_all_units_and_warmed_longer() {
        for (seed, most) in (0..50).flat_map(|seed| [0, 16, 13].map(|most| (seed, most))) {
            let told = Sampling {
                seed,
                most,
                long_warm: 12_000,
                ..SAMPLING
            };
            let details = |units| -> Vec<u64> {
                let mut segments = segments(told.of(units), 4_000_000);
                segments.retain(|(_, segment)| segment.mode == Mode::Detail);
                segments.iter().map(|(_, segment)| segment.end).collect()
            };
            let (all, checked) = (details(Units::All), details(Units::Checked));
            assert!(checked.iter().all(|end| all.contains(end)));
            let kept = |ends: &[u64], units| {
                let keeps = |&&end: &&u64| told.of(units).keeps(end, 4_000_000);
                ends.iter().filter(keeps).count()
            };
            let (kept, of) = (kept(&checked, Units::Checked), kept(&all, Units::All));
            assert!(kept.abs_diff(of / CHECKED as usize) <= 1, "{kept} {of}");
            // What either server needs is told.
            for units in [Units::All, Units::Checked] {
                for (at, segment) in segments(told.of(units), 500_000) {
                    let mut at = at;
                    while at < segment.end.min(500_000) {
                        assert!(told.segment(at).mode >= segment.mode);
                        at = told.segment(at).end;
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_told_of_a_long_program_is_a_small_part() {
        // What `--sample` asks for.
        let sampling = Sampling {
            distance: 250_000,
            warm: 500_000,
            detail: 10_000,
            seed: 1,
            most: 512,
            long_warm: 8_000_000,
            units: Units::Told,
        };
        let told = |until: u64| -> u64 {
            let segments = segments(sampling, until);
            let told = segments.iter().filter(|(_, s)| s.mode != Mode::Forward);
            told.map(|(at, s)| s.end.min(until) - at).sum()
        };
        let all = told(4_000_000_000);
        assert!((900_000_000..1_400_000_000).contains(&all), "{all}");
        // Twice the program, a quarter of a billion more.
        let more = told(8_000_000_000) - all;
        assert!((200_000_000..270_000_000).contains(&more), "{more}");
    }

    #[test]
    fn nothing_is_checked_before_there_are_gaps() {
        let sampling = Sampling {
            warm: 60_000,
            long_warm: 120_000,
            most: 16,
            ..SAMPLING
        };
        // Distances are 10,000, then 20,000, then 40,000 from 320,000 on.
        assert!(!sampling.has_gaps(319_999) && sampling.has_gaps(320_000));
        let checked = sampling.of(Units::Checked);
        let first = checked.segment(0);
        assert_eq!((first.mode, first.end), (Mode::Forward, 320_000));
        let never = Sampling { most: 0, ..checked };
        assert_eq!(never.segment(0).end, u64::MAX);
    }

    #[test]
    fn units_that_cannot_be_are_refused() {
        assert_eq!(SAMPLING.validate(), Ok(()));
        for wrong in [
            Sampling {
                detail: 0,
                ..SAMPLING
            },
            Sampling {
                detail: 10_001,
                ..SAMPLING
            },
            Sampling {
                long_warm: 3000,
                ..SAMPLING
            },
            Sampling {
                distance: u64::MAX / CHECKED + 1,
                long_warm: 4000,
                ..SAMPLING
            },
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }
}
