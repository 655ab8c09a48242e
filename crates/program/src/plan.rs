//! Plan: the instructions of a program that are simulated, and their mode.
//!
//! A plan depends on nothing but counts of instructions, so that two executions of a program are cut at
//! the same places. A block belongs to the segment that has its last instruction: whole blocks only,
//! and a segment ends before a block that does not fit in.
//!
//! [`Sampling`] chooses units of detail at random. [`Regions`] are named by the user: windows by counts
//! of instructions, or what the program itself begins and ends, by markers in its code or by calls of a
//! function. Only the latter depend on more than counts: who sees a [cue](crate::wire::Cue) tells all
//! threads.

mod holds;
mod sampling;
mod segment;
mod text;
mod windows;

use std::path::PathBuf;

pub use self::sampling::{CHECKED, Sampling, Units};
pub use self::segment::{Mode, Segment};
pub use self::windows::{Invalid, Window, Windows};

/// A function, by where its code is: the same in every process that maps the file, wherever it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The file's path, as the kernel names it.
    pub file: PathBuf,
    /// Offset of the function in it, in bytes.
    pub offset: u64,
}

/// Regions that the user names. What lies outside of them does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regions {
    /// By counts of instructions.
    Windows(Windows),
    /// As the program executes it.
    Cued {
        /// The mode outside: forward or, slower, warm.
        outside: Mode,
        /// The regions are calls of it; else the program's markers begin and end them.
        function: Option<Function>,
    },
    /// There are none: nothing is told but which blocks are executed.
    Blocks,
}

/// Modes of a run, by the count of instructions since the program began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Instructions to pass over first, in [`Mode::Forward`].
    pub skip: u64,
    /// Sampling of the region behind them, if any.
    pub sampling: Option<Sampling>,
    /// Regions that the user names, instead of both.
    pub regions: Option<Regions>,
}

impl Plan {
    /// Returns true if anything is executed in [`Mode::Forward`].
    #[must_use]
    pub const fn goes_forward(&self) -> bool {
        match &self.regions {
            None => self.skip > 0 || self.sampling.is_some(),
            Some(Regions::Windows(_)) => true,
            Some(Regions::Cued { outside, .. }) => matches!(outside, Mode::Forward),
            Some(Regions::Blocks) => false,
        }
    }

    /// Returns true if [`Mode::Detail`] traces everything: accesses, too.
    #[must_use]
    pub const fn tells_accesses(&self) -> bool {
        !matches!(self.regions, Some(Regions::Blocks))
    }

    /// The mode outside of regions that the program begins and ends, if these are.
    #[must_use]
    pub const fn outside_cues(&self) -> Option<Mode> {
        match &self.regions {
            Some(Regions::Cued { outside, .. }) => Some(*outside),
            _ => None,
        }
    }

    /// The function whose calls are the regions, if they are.
    #[must_use]
    pub const fn function(&self) -> Option<&Function> {
        match &self.regions {
            Some(Regions::Cued { function, .. }) => function.as_ref(),
            _ => None,
        }
    }

    /// The segment of the instruction after `count` others. Counts do not say what the program begins
    /// and ends: there it is what lies outside.
    #[must_use]
    pub fn segment(&self, count: u64) -> Segment {
        match &self.regions {
            None => {}
            Some(Regions::Windows(windows)) => return windows.segment(count),
            Some(Regions::Cued { outside, .. }) => {
                return Segment {
                    mode: *outside,
                    end: u64::MAX,
                };
            }
            Some(Regions::Blocks) => {
                return Segment {
                    mode: Mode::Detail,
                    end: u64::MAX,
                };
            }
        }
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

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no plan: SKIP, SKIP:DISTANCE:WARM:DETAIL:SEED:MOST[:LONG_WARM], \
     windows:WARM:BEGIN:END..., cues:forward|warm, cues:forward|warm:OFFSET:FILE, or blocks"
)]
pub struct NoPlan(String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plan_goes_forward_first() {
        let plan = Plan {
            skip: 100,
            ..Plan::default()
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
    fn a_text_that_is_no_plan_is_refused() {
        for text in [
            "",
            "many",
            "1:2",
            "1:2:3:4:5:6",
            "1:10000:3000:1000:500:4:3000",
            "1:10000:3000:1000:500:4:4000:1",
        ] {
            assert!(text.parse::<Plan>().is_err(), "{text}");
        }
    }

    fn windows(warm: u64, list: &[(u64, u64)]) -> Result<Windows, Invalid> {
        let list = list.iter().map(|&(begin, end)| Window { begin, end });
        Windows::new(warm, list.collect())
    }

    fn plan_of(regions: Regions) -> Plan {
        Plan {
            regions: Some(regions),
            ..Plan::default()
        }
    }

    #[test]
    fn cues_and_blocks_have_texts() {
        for outside in [Mode::Forward, Mode::Warm] {
            let file = PathBuf::from("/tmp/a,b: \u{e9}");
            for function in [None, Some(Function { file, offset: 4096 })] {
                let plan = plan_of(Regions::Cued { outside, function });
                assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
                assert_eq!(plan.segment(7).mode, outside);
                assert_eq!(plan.goes_forward(), outside == Mode::Forward);
            }
        }
        let blocks = plan_of(Regions::Blocks);
        assert_eq!(blocks.to_string().parse(), Ok(blocks.clone()));
        assert!(!blocks.goes_forward() && !blocks.tells_accesses());
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
            warm: u64, seed: u64, most in 0..1000_u64, at: u64, longer in 0..1_000_000_u64,
        ) {
            let warm = warm % (2 * distance);
            let long_warm = if longer == 0 { 0 } else { warm + longer };
            let sampling = Sampling {
                distance, warm, detail: 1000, seed, most, long_warm, units: Units::Told,
            };
            let plan = Plan { skip, sampling: Some(sampling), regions: None };
            prop_assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
            // Any instruction of a segment says the same of its end.
            for at in [0, skip, at % (1 << 50)] {
                let segment = plan.segment(at);
                prop_assert!(segment.end > at);
                let middle = at + (segment.end - at) / 2;
                prop_assert_eq!(plan.segment(middle), segment);
                prop_assert_eq!(plan.segment(segment.end - 1), segment);
            }
        }

        #[test]
        fn windows_are_what_a_list_of_instructions_says(
            warm in 0..5000_u64,
            gaps in proptest::collection::vec((0..4000_u64, 1000..4000_u64), 1..8),
            at in 0..50_000_u64,
        ) {
            let mut list = Vec::new();
            let mut end = 0;
            for (gap, length) in gaps {
                list.push((end + gap, end + gap + length));
                end += gap + length;
            }
            // The naive model: the mode of each instruction by itself.
            let mode = |at: u64| {
                let has = |from: u64, to: u64| (from..to).contains(&at);
                if list.iter().any(|&(begin, end)| has(begin, end)) {
                    Mode::Detail
                } else if list.iter().any(|&(begin, _)| has(begin.saturating_sub(warm), begin)) {
                    Mode::Warm
                } else {
                    Mode::Forward
                }
            };
            let mut reversed = list.clone();
            reversed.reverse();
            let plan = plan_of(Regions::Windows(windows(warm, &reversed).unwrap()));
            prop_assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
            let segment = plan.segment(at);
            prop_assert_eq!(segment.mode, mode(at));
            prop_assert!(segment.end > at);
            if segment.end == u64::MAX {
                prop_assert!(at >= end);
            } else {
                prop_assert_eq!(plan.segment(segment.end - 1), segment);
                prop_assert!((at..segment.end).all(|at| mode(at) == segment.mode));
                prop_assert!(plan.segment(segment.end) != segment);
            }
        }

        #[test]
        fn any_text_is_a_plan_or_refused(
            text in "(windows:|cues:|blocks|)[0-9a-f:warmdo]{0,40}"
        ) {
            if let Ok(plan) = text.parse::<Plan>() {
                prop_assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
            }
        }
    }
}
