//! Which instructions of a program are simulated, and how.
//!
//! A plan depends on nothing but counts of instructions, so that two executions of a program are cut at
//! the same places. A block belongs to the segment that has its last instruction: whole blocks only,
//! and a segment ends before a block that does not fit in.
//!
//! Sampling is systematic (Wunderlich et al., "SMARTS", ISCA 2003): units of detail at equal distances,
//! each after some instructions that warm caches and TLBs. The length of a program is not known before
//! its end, so the distance doubles as it goes on: [`Sampling::most`] bounds the time that units take.

mod holds;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is told how many they are, and the first access to each page: enough for the operating
    /// system.
    Forward,
    /// All is told, to warm caches and TLBs.
    Warm,
    /// All is told, and counts.
    Detail,
}

/// Instructions that are executed in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// How they are executed.
    pub mode: Mode,
    /// The count of instructions, since the program began, at which the next segment begins.
    pub end: u64,
}

/// Units of detail, and what lies between them. All in instructions but `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// From the beginning of a unit to that of the next one, at first.
    pub distance: u64,
    /// Of each unit, those that warm caches and TLBs; as many as fit.
    pub warm: u64,
    /// Of each unit, the last ones, which count.
    pub detail: u64,
    /// Before the first unit; less than `distance`.
    pub offset: u64,
    /// The most units: when there are so many, the distance doubles, and every other one does not count
    /// any more. 0: as many as there are.
    pub most: u64,
}

/// A sampling that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Nothing would count.
    #[error("a unit needs at least {least} instructions of detail, not {0}", least = Sampling::LEAST_DETAIL)]
    Detail(u64),
    /// Units would overlap.
    #[error("units of {unit} instructions do not fit into a distance of {distance}")]
    Distance {
        /// Detail, or an offset.
        unit: u64,
        /// The distance.
        distance: u64,
    },
}

impl Sampling {
    /// Shorter units end within a few blocks.
    const LEAST_DETAIL: u64 = 1000;

    /// Checks that units can be made.
    ///
    /// # Errors
    /// [`Invalid`].
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.detail < Self::LEAST_DETAIL {
            return Err(Invalid::Detail(self.detail));
        }
        if self.detail > self.distance || self.offset >= self.distance {
            return Err(Invalid::Distance {
                unit: self.detail.max(self.offset.saturating_add(1)),
                distance: self.distance,
            });
        }
        Ok(())
    }

    /// The distance of units after `count` instructions of the region.
    #[must_use]
    pub fn distance_at(&self, count: u64) -> u64 {
        let first = self.distance.saturating_mul(self.most);
        if first == 0 || count < first {
            return self.distance;
        }
        let doublings = (count / first).ilog2() + 1;
        self.distance
            .checked_shl(doublings)
            .filter(|distance| distance >> doublings == self.distance)
            .unwrap_or(u64::MAX / 4)
    }

    /// The segment of the instruction after `count` others of the region, ending after so many.
    fn segment(&self, count: u64) -> Segment {
        let forward = |end| Segment {
            mode: Mode::Forward,
            end,
        };
        let Some(since) = count.checked_sub(self.offset) else {
            return forward(self.offset);
        };
        let distance = self.distance_at(since);
        let begin = since / distance * distance;
        let warm = begin.saturating_add(self.warm.min(distance - self.detail));
        let end = warm.saturating_add(self.detail);
        // Where the distance has doubled, this may be between two units.
        if since < warm {
            Segment {
                mode: Mode::Warm,
                end: self.offset.saturating_add(warm),
            }
        } else if since < end {
            Segment {
                mode: Mode::Detail,
                end: self.offset.saturating_add(end),
            }
        } else {
            forward(self.offset.saturating_add(begin.saturating_add(distance)))
        }
    }
}

/// Modes of a run, by the count of instructions since the program began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Instructions to pass over first, in [`Mode::Forward`].
    pub skip: u64,
    /// How the region behind them is sampled, if it is.
    pub sampling: Option<Sampling>,
}

impl Plan {
    /// Whether anything is executed in [`Mode::Forward`].
    #[must_use]
    pub const fn goes_forward(&self) -> bool {
        self.skip > 0 || self.sampling.is_some()
    }

    /// The segment of the instruction after `count` others.
    #[must_use]
    pub fn segment(&self, count: u64) -> Segment {
        let Some(count) = count.checked_sub(self.skip) else {
            return Segment {
                mode: Mode::Forward,
                end: self.skip,
            };
        };
        match &self.sampling {
            None => Segment {
                mode: Mode::Detail,
                end: u64::MAX,
            },
            Some(sampling) => {
                let segment = sampling.segment(count);
                Segment {
                    end: segment.end.saturating_add(self.skip),
                    ..segment
                }
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.skip)?;
        if let Some(s) = &self.sampling {
            let (distance, most) = (s.distance, s.most);
            write!(f, ":{distance}:{}:{}:{}:{most}", s.warm, s.detail, s.offset)?;
        }
        Ok(())
    }
}

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no plan: SKIP or SKIP:DISTANCE:WARM:DETAIL:OFFSET:MOST")]
pub struct NoPlan(String);

impl FromStr for Plan {
    type Err = NoPlan;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NoPlan(text.to_owned());
        let numbers: Result<Vec<u64>, _> = text.split(':').map(str::parse).collect();
        match *numbers.map_err(|_| wrong())? {
            [skip] => Ok(Self {
                skip,
                sampling: None,
            }),
            [skip, distance, warm, detail, offset, most] => {
                let sampling = Sampling {
                    distance,
                    warm,
                    detail,
                    offset,
                    most,
                };
                sampling.validate().map_err(|_| wrong())?;
                Ok(Self {
                    skip,
                    sampling: Some(sampling),
                })
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLING: Sampling = Sampling {
        distance: 10_000,
        warm: 3000,
        detail: 1000,
        offset: 500,
        most: 4,
    };

    #[test]
    fn a_plan_goes_forward_first() {
        let plan = Plan {
            skip: 100,
            sampling: None,
        };
        let forward = Segment {
            mode: Mode::Forward,
            end: 100,
        };
        assert_eq!((plan.segment(0), plan.segment(99)), (forward, forward));
        assert_eq!(plan.segment(100).mode, Mode::Detail);
        assert!(plan.goes_forward() && !Plan::default().goes_forward());
        assert_eq!(Plan::default().segment(0).mode, Mode::Detail);
    }

    #[test]
    fn units_lie_at_distances_that_double() {
        let plan = Plan {
            skip: 100,
            sampling: Some(SAMPLING),
        };
        let mut begins = Vec::new();
        let mut at = 0;
        while at < 400_000 {
            let segment = plan.segment(at);
            if segment.mode == Mode::Warm {
                begins.push(at - 600);
                assert_eq!(segment.end, at + 3000);
                let detail = plan.segment(segment.end);
                assert_eq!((detail.mode, detail.end), (Mode::Detail, at + 4000));
            }
            at = segment.end;
        }
        let expected = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
        assert_eq!(begins, expected.map(|unit| unit * 10_000));
    }

    #[test]
    fn a_unit_is_warmed_by_as_many_instructions_as_fit() {
        let sampling = Sampling {
            warm: 30_000,
            ..SAMPLING
        };
        let plan = Plan {
            skip: 0,
            sampling: Some(sampling),
        };
        // At a distance of 10,000, of 20,000 from 40,000 on, of 40,000 from 80,000 on.
        let warmed = |at| {
            let segment = plan.segment(at + 500);
            assert_eq!(segment.mode, Mode::Warm);
            let next = plan.segment(segment.end);
            assert_eq!((next.mode, next.end), (Mode::Detail, segment.end + 1000));
            segment.end - at - 500
        };
        assert_eq!(
            [0, 40_000, 80_000, 160_000].map(warmed),
            [9000, 19_000, 30_000, 30_000]
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
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
                offset: 10_000,
                ..SAMPLING
            },
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
        for text in [
            "",
            "many",
            "1:2",
            "1:2:3:4:5:6",
            "1:10000:3000:1000:500:4:1",
        ] {
            assert!(text.parse::<Plan>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_plan_that_a_file_claims_does_no_harm(
            numbers in proptest::collection::vec(prop_oneof![any::<u64>(), 1000..2000_u64], 0..8),
            at in 0..1_u64 << 62,
        ) {
            let text: Vec<String> = numbers.iter().map(u64::to_string).collect();
            if let Ok(plan) = text.join(":").parse::<Plan>() {
                prop_assert!(plan.segment(at).end > at);
                prop_assert!(plan.holds(&plan) && Plan::default().holds(&plan));
            }
        }

        #[test]
        fn segments_follow_one_another(
            skip in 0..1_000_000_u64,
            distance in 2000..1_000_000_u64,
            warm: u64, offset: u64, most in 0..1000_u64, at: u64,
        ) {
            let sampling = Sampling {
                distance, warm: warm % (2 * distance), detail: 1000, offset: offset % distance, most,
            };
            let plan = Plan { skip, sampling: Some(sampling) };
            prop_assert_eq!(plan.to_string().parse(), Ok(plan));
            // Any instruction of a segment says the same of its end.
            for at in [0, skip, at % (1 << 50)] {
                let segment = plan.segment(at);
                prop_assert!(segment.end > at);
                let middle = at + (segment.end - at) / 2;
                prop_assert_eq!(plan.segment(middle), segment);
                prop_assert_eq!(plan.segment(segment.end - 1), segment);
            }
        }
    }
}
