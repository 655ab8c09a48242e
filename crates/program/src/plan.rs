//! Which instructions of a program are simulated, and how.
//!
//! A plan depends on nothing but counts of instructions, so that two executions of a program are cut at
//! the same places. A block belongs to the segment that has its last instruction: whole blocks only,
//! and a segment ends before a block that does not fit in.
//!
//! Sampling is systematic (Wunderlich et al., "SMARTS", ISCA 2003): units of detail at equal distances,
//! each after some instructions that warm caches and TLBs. The length of a program is not known before
//! its end, so the distance doubles as it goes on: [`Sampling::most`] bounds the time that units take.
//!
//! [`Regions`] are named by the user: windows by counts of instructions, or what the program itself
//! begins and ends, by markers in its code or by calls of a function. Only the latter depend on more
//! than counts: who sees a [cue](crate::wire::Cue) tells all threads.

mod holds;

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
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
    /// Nothing would be simulated.
    #[error("no window is given")]
    NoWindow,
    /// A plan has to fit into an argument of the emulator.
    #[error("{0} windows are more than {most}", most = Windows::MOST)]
    ManyWindows(usize),
    /// A window is too short, or ends before it begins.
    #[error(
        "the window {0} needs at least {least} instructions between begin and end",
        least = Sampling::LEAST_DETAIL
    )]
    Window(Window),
    /// Two windows have instructions in common.
    #[error("the windows {0} and {1} overlap")]
    Overlap(Window, Window),
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

/// Instructions of the program from one count to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Instructions before it.
    pub begin: u64,
    /// Those, and its own.
    pub end: u64,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.begin, self.end)
    }
}

/// Windows in the program's order, each after some instructions that warm caches and TLBs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    warm: u64,
    list: Vec<Window>,
}

impl Windows {
    /// The most windows of a plan.
    pub const MOST: usize = 1000;

    /// Windows in any order, each after `warm` instructions that warm caches and TLBs, or as many as
    /// there are since the last one.
    ///
    /// # Errors
    /// [`Invalid`], when there are none, too many, or they are too short or overlap.
    pub fn new(warm: u64, mut list: Vec<Window>) -> Result<Self, Invalid> {
        if list.is_empty() {
            return Err(Invalid::NoWindow);
        }
        if list.len() > Self::MOST {
            return Err(Invalid::ManyWindows(list.len()));
        }
        let is_short =
            |window: &&Window| window.end.saturating_sub(window.begin) < Sampling::LEAST_DETAIL;
        if let Some(window) = list.iter().find(is_short) {
            return Err(Invalid::Window(*window));
        }
        list.sort_unstable_by_key(|window| window.begin);
        let overlap = list.windows(2).find(|pair| pair[0].end > pair[1].begin);
        if let Some(&[one, other]) = overlap {
            return Err(Invalid::Overlap(one, other));
        }
        Ok(Self { warm, list })
    }

    /// The windows, in order.
    #[must_use]
    pub fn list(&self) -> &[Window] {
        &self.list
    }

    /// The instructions that warm before each.
    #[must_use]
    pub fn warm(&self) -> u64 {
        self.warm
    }

    /// The window that instruction `count` is in or before; `None` behind all.
    #[must_use]
    pub fn next(&self, count: u64) -> Option<usize> {
        let index = self.list.partition_point(|window| window.end <= count);
        (index < self.list.len()).then_some(index)
    }

    /// The segment of the instruction after `count` others.
    fn segment(&self, count: u64) -> Segment {
        let Some(window) = self.next(count).map(|index| self.list[index]) else {
            return Segment {
                mode: Mode::Forward,
                end: u64::MAX,
            };
        };
        let warm = window.begin.saturating_sub(self.warm);
        let (mode, end) = if count >= window.begin {
            (Mode::Detail, window.end)
        } else if count >= warm {
            (Mode::Warm, window.begin)
        } else {
            (Mode::Forward, warm)
        };
        Segment { mode, end }
    }
}

/// A function, by where its code is: the same in every process that maps the file, wherever it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The file's path, as the kernel names it.
    pub file: PathBuf,
    /// Where the function begins in it, in bytes.
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
    /// How the region behind them is sampled, if it is.
    pub sampling: Option<Sampling>,
    /// Regions that the user names, instead of both.
    pub regions: Option<Regions>,
}

impl Plan {
    /// Whether anything is executed in [`Mode::Forward`].
    #[must_use]
    pub const fn goes_forward(&self) -> bool {
        match &self.regions {
            None => self.skip > 0 || self.sampling.is_some(),
            Some(Regions::Windows(_)) => true,
            Some(Regions::Cued { outside, .. }) => matches!(outside, Mode::Forward),
            Some(Regions::Blocks) => false,
        }
    }

    /// Whether everything is told that happens in [`Mode::Detail`]: accesses, too.
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

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(regions) = &self.regions {
            return write!(f, "{regions}");
        }
        write!(f, "{}", self.skip)?;
        if let Some(s) = &self.sampling {
            let (distance, most) = (s.distance, s.most);
            write!(f, ":{distance}:{}:{}:{}:{most}", s.warm, s.detail, s.offset)?;
        }
        Ok(())
    }
}

impl fmt::Display for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Windows(windows) => {
                write!(f, "windows:{}", windows.warm)?;
                windows.list.iter().try_for_each(|w| write!(f, ":{w}"))
            }
            Self::Cued { outside, function } => {
                let warms = *outside == Mode::Warm;
                f.write_str(if warms { "cues:warm" } else { "cues:forward" })?;
                let Some(function) = function else {
                    return Ok(());
                };
                write!(f, ":{}:", function.offset)?;
                // No byte of a path means anything to the emulator.
                let bytes = function.file.as_os_str().as_bytes();
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Blocks => f.write_str("blocks"),
        }
    }
}

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no plan: SKIP, SKIP:DISTANCE:WARM:DETAIL:OFFSET:MOST, windows:WARM:BEGIN:END..., \
     cues:forward|warm, cues:forward|warm:OFFSET:FILE, or blocks"
)]
pub struct NoPlan(String);

impl FromStr for Plan {
    type Err = NoPlan;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NoPlan(text.to_owned());
        if text.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return Ok(Self {
                regions: Some(regions(text).ok_or_else(wrong)?),
                ..Self::default()
            });
        }
        match *numbers(text).ok_or_else(wrong)? {
            [skip] => Ok(Self {
                skip,
                ..Self::default()
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
                    regions: None,
                })
            }
            _ => Err(wrong()),
        }
    }
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split(':').map(|part| part.parse().ok()).collect()
}

/// Reads what [`Regions`] write.
fn regions(text: &str) -> Option<Regions> {
    if text == "blocks" {
        return Some(Regions::Blocks);
    }
    if let Some(text) = text.strip_prefix("windows:") {
        let numbers = numbers(text)?;
        let (&warm, counts) = numbers.split_first()?;
        let (pairs, []) = counts.as_chunks() else {
            return None;
        };
        let list = pairs.iter().map(|&[begin, end]| Window { begin, end });
        return Some(Regions::Windows(Windows::new(warm, list.collect()).ok()?));
    }
    let mut parts = text.strip_prefix("cues:")?.split(':');
    let outside = match parts.next()? {
        "warm" => Mode::Warm,
        "forward" => Mode::Forward,
        _ => return None,
    };
    let function = match parts.next() {
        None => None,
        Some(offset) => Some(Function {
            offset: offset.parse().ok()?,
            file: path(parts.next()?)?,
        }),
    };
    let all = parts.next().is_none();
    all.then_some(Regions::Cued { outside, function })
}

/// Reads a path of hexadecimal digits.
fn path(digits: &str) -> Option<PathBuf> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let bytes = pairs.iter().map(|&pair| {
        let digits = pair.map(|digit| char::from(digit).to_digit(16));
        Some((digits[0]? << 4 | digits[1]?) as u8)
    });
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    (!bytes.is_empty()).then(|| OsString::from_vec(bytes).into())
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
    fn units_lie_at_distances_that_double() {
        let plan = Plan {
            skip: 100,
            sampling: Some(SAMPLING),
            regions: None,
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
            regions: None,
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
    fn windows_that_cannot_be_are_refused() {
        let two = [(10_000, 20_000), (20_000, 30_000)];
        assert_eq!(windows(0, &two).unwrap().list().len(), 2);
        for (list, said) in [
            (&[][..], "no window"),
            (&[(5, 6)], "the window 5:6 needs at least 1000"),
            (&[(5000, 5)], "the window 5000:5 needs at least 1000"),
            (
                &[(0, 9000), (8999, 10_000)],
                "0:9000 and 8999:10000 overlap",
            ),
            (&[(0, 9000), (0, 9000)], "0:9000 and 0:9000 overlap"),
            (
                &[(0, 1000); Windows::MOST + 1],
                "1001 windows are more than",
            ),
        ] {
            let error = windows(0, list).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
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
            warm: u64, offset: u64, most in 0..1000_u64, at: u64,
        ) {
            let sampling = Sampling {
                distance, warm: warm % (2 * distance), detail: 1000, offset: offset % distance, most,
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
