//! Plans as arguments of the emulator.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use super::{Function, Mode, NoPlan, Plan, Regions, Sampling, Units, Window, Windows};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(regions) = &self.regions {
            return write!(f, "{regions}");
        }
        write!(f, "{}", self.skip)?;
        if let Some(s) = &self.sampling {
            let (distance, most) = (s.distance, s.most);
            write!(f, ":{distance}:{}:{}:{}:{most}", s.warm, s.detail, s.seed)?;
            if s.is_checked() {
                write!(f, ":{}", s.long_warm)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Windows(windows) => {
                write!(f, "windows:{}", windows.warm())?;
                windows.list().iter().try_for_each(|w| write!(f, ":{w}"))
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
            [skip, distance, warm, detail, seed, most, ref long @ ..] if long.len() <= 1 => {
                let sampling = Sampling {
                    distance,
                    warm,
                    detail,
                    seed,
                    most,
                    long_warm: long.first().copied().unwrap_or(0),
                    units: Units::Told,
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
