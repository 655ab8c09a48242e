//! Regions by counts of instructions, and which cannot be.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::segment::{LEAST_DETAIL, Mode, Segment};

/// Instructions of the program from one count to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// A sampling that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Nothing would count.
    #[error("a unit needs at least {least} instructions of detail, not {0}", least = LEAST_DETAIL)]
    Detail(u64),
    /// Units would overlap.
    #[error("units of {unit} instructions do not fit into a distance of {distance}")]
    Distance {
        /// Detail.
        unit: u64,
        /// The distance.
        distance: u64,
    },
    /// The check would see no more than the units.
    #[error("{long} instructions of longer warming are no more than the {warm} of all units")]
    LongWarm {
        /// That of all units.
        warm: u64,
        /// That of the check.
        long: u64,
    },
    /// Checked units would lie farther apart than counts of instructions reach.
    #[error("a distance of {distance} between units whose warming is checked is above {most}")]
    FarApart {
        /// The distance.
        distance: u64,
        /// The largest.
        most: u64,
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
        least = LEAST_DETAIL
    )]
    Window(Window),
    /// Two windows have instructions in common.
    #[error("the windows {0} and {1} overlap")]
    Overlap(Window, Window),
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
        let is_short = |window: &&Window| window.end.saturating_sub(window.begin) < LEAST_DETAIL;
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
    pub(super) fn segment(&self, count: u64) -> Segment {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(warm: u64, list: &[(u64, u64)]) -> Result<Windows, Invalid> {
        let list = list.iter().map(|&(begin, end)| Window { begin, end });
        Windows::new(warm, list.collect())
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
}
