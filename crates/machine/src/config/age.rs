//! Histories of memory, as users name them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use contigua_units::Nanoseconds;
use serde::Serialize;

use crate::Error;

/// The profiles that come with the package, by name.
pub(crate) const PROFILES: [(&str, &str); 5] = [
    (
        "web",
        include_str!("../../../../python/contigua/data/profiles/web.toml"),
    ),
    (
        "cache",
        include_str!("../../../../python/contigua/data/profiles/cache.toml"),
    ),
    (
        "cache-b",
        include_str!("../../../../python/contigua/data/profiles/cache-b.toml"),
    ),
    (
        "ci",
        include_str!("../../../../python/contigua/data/profiles/ci.toml"),
    ),
    (
        "mixed",
        include_str!("../../../../python/contigua/data/profiles/mixed.toml"),
    ),
];

/// The history of a server's memory before the program starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Age {
    /// Nothing was ever allocated.
    #[default]
    Fresh,
    /// This share of all frames (0 to 1) is unmovable, spread evenly at random.
    Scattered(f64),
    /// A random server of a fleet: its former tenants have left, their traces have not.
    Partial,
    /// Aged, and files have taken all memory that was free (Contiguitas, section 5: under Linux
    /// no 2 MB block is free).
    Full,
    /// A server that was used in this way for this long (and how that was written), and whose tenants
    /// have left.
    Lived(&'static str, Nanoseconds, String),
    /// The state that this file holds.
    Snapshot(PathBuf),
}

impl FromStr for Age {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || Error::Age {
            text: text.to_owned(),
            profiles: PROFILES.map(|(name, _)| name).join(", "),
        };
        match text.split_once(':') {
            None => match text {
                "fresh" => Ok(Self::Fresh),
                "partial" => Ok(Self::Partial),
                "full" => Ok(Self::Full),
                _ => Err(unknown()),
            },
            Some(("scattered", percent)) => {
                let percent = percent.trim_end_matches('%').parse();
                let percent: f64 = percent.map_err(|_| unknown())?;
                if !(0.0..=90.0).contains(&percent) {
                    return Err(unknown());
                }
                Ok(Self::Scattered(percent / 100.0))
            }
            Some(("snapshot", path)) if !path.is_empty() => Ok(Self::Snapshot(path.into())),
            Some((profile, time)) => {
                let known = PROFILES.iter().find(|(name, _)| *name == profile);
                let (name, _) = known.ok_or_else(unknown)?;
                let parsed = time.parse().map_err(|_| unknown())?;
                Ok(Self::Lived(name, parsed, time.to_owned()))
            }
        }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fresh => f.write_str("fresh"),
            // Percents as they were typed: 7 is not 100 times 0.07.
            Self::Scattered(share) => write!(f, "scattered:{}", (share * 1e10).round() / 1e8),
            Self::Partial => f.write_str("partial"),
            Self::Full => f.write_str("full"),
            Self::Lived(profile, _, time) => write!(f, "{profile}:{time}"),
            Self::Snapshot(path) => write!(f, "snapshot:{}", path.display()),
        }
    }
}

impl Serialize for Age {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_written_as_it_is_read() {
        for text in [
            "fresh",
            "scattered:0.2",
            "scattered:7",
            "scattered:10",
            "partial",
            "full",
            "web:7200s",
            "web:2h",
            "web:90min",
            "snapshot:a/b",
        ] {
            assert_eq!(text.parse::<Age>().unwrap().to_string(), text);
        }
        for text in [
            "old",
            "scattered",
            "scattered:x",
            "scattered:-1",
            "scattered:91",
            "scattered:nan",
            "web",
            "wep:2h",
            "web:2",
            "snapshot:",
        ] {
            assert!(text.parse::<Age>().is_err(), "{text}");
        }
    }
}
