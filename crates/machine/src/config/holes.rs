//! Scenarios of fragmentation, as users name them.

use std::fmt;
use std::str::FromStr;

use contigua_paging::{Fragmentation, HoleKind, Pattern};
use serde::Serialize;

use crate::Error;

/// A scenario of fragmentation: `SHARE:FRACTION:PATTERN:KIND`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holes {
    /// Share of the program's 2 MB pages that have holes, 0 to 1.
    pub share: f64,
    /// Share of such a page that is holes, above 0 and at most 1.
    pub fraction: f64,
    /// Distribution of the holes in the page.
    pub pattern: Pattern,
    /// Contents of the holes.
    pub kind: HoleKind,
}

impl Holes {
    /// The scenario, with its pages chosen by a seed.
    #[must_use]
    pub fn scenario(&self, seed: u64) -> Fragmentation {
        Fragmentation {
            share: self.share,
            holes: self.fraction,
            pattern: self.pattern,
            kind: self.kind,
            seed,
        }
    }
}

impl FromStr for Holes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut parts = text.split(':');
            let share: f64 = parts.next()?.parse().ok()?;
            let fraction: f64 = parts.next()?.parse().ok()?;
            let pattern = match parts.next()? {
                "clustered" => Pattern::Clustered,
                "dispersed" => Pattern::Dispersed,
                _ => return None,
            };
            let kind = match parts.next()? {
                "remapped" => HoleKind::Remapped,
                "unallocated" => HoleKind::Unallocated,
                _ => return None,
            };
            let fits = (0.0..=1.0).contains(&share)
                && fraction > 0.0
                && fraction <= 1.0
                && parts.next().is_none();
            fits.then_some(Self {
                share,
                fraction,
                pattern,
                kind,
            })
        };
        parsed().ok_or_else(|| Error::Holes(text.to_owned()))
    }
}

impl fmt::Display for Holes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            Pattern::Clustered => "clustered",
            Pattern::Dispersed => "dispersed",
        };
        let kind = match self.kind {
            HoleKind::Remapped => "remapped",
            HoleKind::Unallocated => "unallocated",
        };
        write!(f, "{}:{}:{pattern}:{kind}", self.share, self.fraction)
    }
}

impl Serialize for Holes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_written_as_they_are_read() {
        for text in ["0.5:0.1:clustered:remapped", "1:1:dispersed:unallocated"] {
            assert_eq!(text.parse::<Holes>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "1",
            "1:0:clustered:remapped",
            "2:0.1:clustered:remapped",
            "1:nan:clustered:remapped",
            "1:0.1:random:remapped",
            "1:0.1:clustered:gone",
            "1:0.1:clustered:remapped:x",
        ] {
            assert!(text.parse::<Holes>().is_err(), "{text}");
        }
    }
}
