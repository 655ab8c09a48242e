//! Sizes, times and frequencies, with the unit strings that configuration files use.
//!
//! The parsers are ours because general-purpose ones read `8G` as 8·10⁹ bytes; in this project
//! sizes are binary, and a machine with 7.45 GB of memory would be a silent mistake.

use core::fmt;
use core::str::FromStr;

use derive_more::{Add, AddAssign, Mul, Sub, SubAssign, Sum};

/// A number of bytes. Written `"64MiB"`; `K`, `M`, `G`, `T` with or without `iB` or `B` are
/// binary, a bare number or `B` is bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Bytes(u64);

/// A number of clock cycles of the simulated core. Written as a plain integer.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Add,
    AddAssign,
    Mul,
    Sub,
    SubAssign,
    Sum,
)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Cycles(u64);

/// A duration in nanoseconds. Written `"80ns"`, `"2us"`, `"10ms"`, `"60s"`, `"2m"` (or `"2min"`), `"1h"` or
/// `"1d"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Nanoseconds(u64);

/// A clock frequency in units of 10⁶ Hz. Written `"2200MHz"` or `"2.2GHz"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Megahertz(u32);

/// Why a quantity could not be read from its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text does not begin with a decimal number.
    #[error("no number at the start; write for example {example}")]
    NoNumber {
        /// A well-formed value of the same kind.
        example: &'static str,
    },
    /// The unit is not one that this kind of quantity knows.
    #[error("unknown unit; known are {known}")]
    UnknownUnit {
        /// The units of this kind of quantity.
        known: &'static str,
    },
    /// The value is not a whole number of the smallest unit, or does not fit.
    #[error("not a whole number of {smallest}, or too large")]
    OutOfRange {
        /// The smallest unit of this kind of quantity.
        smallest: &'static str,
    },
}

/// Units of a quantity with their factors, and what error messages say.
struct Kind {
    units: &'static [(&'static str, u64)],
    known: &'static str,
    example: &'static str,
    smallest: &'static str,
}

const BYTES: Kind = Kind {
    units: &[
        ("", 1),
        ("B", 1),
        ("K", 1 << 10),
        ("KB", 1 << 10),
        ("KiB", 1 << 10),
        ("M", 1 << 20),
        ("MB", 1 << 20),
        ("MiB", 1 << 20),
        ("G", 1 << 30),
        ("GB", 1 << 30),
        ("GiB", 1 << 30),
        ("T", 1 << 40),
        ("TB", 1 << 40),
        ("TiB", 1 << 40),
    ],
    known: "B, KiB, MiB, GiB and TiB (binary)",
    example: "\"64MiB\"",
    smallest: "bytes",
};

const NANOSECONDS: Kind = Kind {
    units: &[
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("min", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("d", 86_400_000_000_000),
    ],
    known: "ns, us, ms, s, m, h and d",
    example: "\"80ns\"",
    smallest: "nanoseconds",
};

const MEGAHERTZ: Kind = Kind {
    units: &[("MHz", 1), ("GHz", 1_000)],
    known: "MHz and GHz",
    example: "\"2.2GHz\"",
    smallest: "MHz",
};

/// Reads `digits[.digits] unit` exactly, without going through floating point.
fn parse(text: &str, kind: &Kind) -> Result<u64, ParseQuantityError> {
    parse_or(text, kind, "")
}

/// Reads as [`parse`]; a number alone has the unit `bare`.
fn parse_or(text: &str, kind: &Kind, bare: &str) -> Result<u64, ParseQuantityError> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let unit = if unit.is_empty() { bare } else { unit };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let no_number = ParseQuantityError::NoNumber {
        example: kind.example,
    };
    let out_of_range = ParseQuantityError::OutOfRange {
        smallest: kind.smallest,
    };
    if whole.is_empty() || fraction.contains('.') {
        return Err(no_number);
    }
    let factor = kind
        .units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .map(|&(_, factor)| factor)
        .ok_or(ParseQuantityError::UnknownUnit { known: kind.known })?;
    let whole: u64 = whole.parse().map_err(|_| out_of_range)?;
    let mut value = whole.checked_mul(factor).ok_or(out_of_range)?;
    let mut scale: u64 = 1;
    let mut numerator: u64 = 0;
    for digit in fraction.bytes() {
        scale = scale.checked_mul(10).ok_or(out_of_range)?;
        numerator = numerator
            .checked_mul(10)
            .and_then(|n| n.checked_add(u64::from(digit - b'0')))
            .ok_or(out_of_range)?;
    }
    let scaled = numerator.checked_mul(factor).ok_or(out_of_range)?;
    if scaled % scale != 0 {
        return Err(out_of_range);
    }
    value = value.checked_add(scaled / scale).ok_or(out_of_range)?;
    Ok(value)
}

/// Writes a value in the largest of `units` that divides it.
fn write_exact(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, factor) = units
        .iter()
        .rev()
        .find(|(_, factor)| value != 0 && value.is_multiple_of(*factor))
        .unwrap_or(&units[0]);
    write!(f, "{}{name}", value / factor)
}

impl Bytes {
    crate::raw!(u64);

    /// Whole 4 KB frames that fit.
    #[inline]
    #[must_use]
    pub const fn frames(self) -> u64 {
        self.0 >> crate::PAGE_SHIFT
    }
}

impl FromStr for Bytes {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, &BYTES).map(Self)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 5] = [
            ("B", 1),
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
        ];
        write_exact(f, self.0, &UNITS)
    }
}

impl Cycles {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    crate::raw!(u64);
}

impl fmt::Display for Cycles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cycles", self.0)
    }
}

impl Nanoseconds {
    crate::raw!(u64);

    /// Reads a time as options have it: a number without a unit is seconds.
    ///
    /// # Errors
    /// As [`Nanoseconds::from_str`], which needs a unit.
    pub fn seconds(text: &str) -> Result<Self, ParseQuantityError> {
        parse_or(text, &NANOSECONDS, "s").map(Self)
    }

    /// Reads a time as options have it: a number without a unit is minutes.
    ///
    /// # Errors
    /// As [`Nanoseconds::from_str`], which needs a unit.
    pub fn minutes(text: &str) -> Result<Self, ParseQuantityError> {
        parse_or(text, &NANOSECONDS, "m").map(Self)
    }

    /// The duration in cycles of a clock, rounded to the nearest cycle.
    #[must_use]
    pub const fn at(self, clock: Megahertz) -> Cycles {
        let scaled = self.0 as u128 * clock.0 as u128;
        Cycles(((scaled + 500) / 1_000) as u64)
    }
}

impl FromStr for Nanoseconds {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, &NANOSECONDS).map(Self)
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_exact(f, self.0, &NANOSECONDS.units[..4])
    }
}

impl Megahertz {
    crate::raw!(u32);
}

impl FromStr for Megahertz {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let value = parse(text, &MEGAHERTZ)?;
        match u32::try_from(value) {
            Ok(megahertz) if megahertz > 0 => Ok(Self(megahertz)),
            _ => Err(ParseQuantityError::OutOfRange {
                smallest: MEGAHERTZ.smallest,
            }),
        }
    }
}

impl fmt::Display for Megahertz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}MHz", self.0)
    }
}

#[cfg(feature = "serde")]
mod text_serde {
    use super::{Bytes, Megahertz, Nanoseconds};
    use core::fmt;
    use core::marker::PhantomData;
    use core::str::FromStr;
    use serde::de::{Deserialize, Deserializer, Error, Visitor};
    use serde::ser::{Serialize, Serializer};

    struct Text<T>(PhantomData<T>);

    impl<T> Visitor<'_> for Text<T>
    where
        T: FromStr<Err = super::ParseQuantityError>,
    {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string with a unit")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse()
                .map_err(|error| E::custom(format_args!("{text:?}: {error}")))
        }
    }

    macro_rules! as_text {
        ($($name:ident)*) => {$(
            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_str(Text(PhantomData))
                }
            }
        )*};
    }
    as_text!(Bytes Nanoseconds Megahertz);
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn sizes_are_binary_whatever_the_spelling() {
        for text in ["8G", "8GB", "8GiB", "8 gib", "8192M"] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes::new(8 << 30)), "{text}");
        }
        assert_eq!("1.5KiB".parse::<Bytes>(), Ok(Bytes::new(1536)));
        assert_eq!("4096".parse::<Bytes>(), Ok(Bytes::new(4096)));
    }

    #[test]
    fn malformed_quantities_say_what_is_wrong() {
        assert!(matches!(
            "".parse::<Bytes>(),
            Err(ParseQuantityError::NoNumber { .. })
        ));
        assert!(matches!(
            "GiB".parse::<Bytes>(),
            Err(ParseQuantityError::NoNumber { .. })
        ));
        assert!(matches!(
            "3 pages".parse::<Bytes>(),
            Err(ParseQuantityError::UnknownUnit { .. })
        ));
        assert!(matches!(
            "0.3B".parse::<Bytes>(),
            Err(ParseQuantityError::OutOfRange { .. })
        ));
        assert!(matches!(
            "99999999TiB".parse::<Bytes>(),
            Err(ParseQuantityError::OutOfRange { .. })
        ));
        assert!(matches!(
            "1.2.3G".parse::<Bytes>(),
            Err(ParseQuantityError::NoNumber { .. })
        ));
        assert!(matches!(
            "0MHz".parse::<Megahertz>(),
            Err(ParseQuantityError::OutOfRange { .. })
        ));
        assert!(matches!(
            "5".parse::<Nanoseconds>(),
            Err(ParseQuantityError::UnknownUnit { .. })
        ));
    }

    #[test]
    fn times_of_options_and_files_have_one_grammar() {
        for (text, nanoseconds) in [
            ("2m", 120_000_000_000),
            ("2 min", 120_000_000_000),
            ("1.5H", 5_400_000_000_000),
            ("1d", 86_400_000_000_000),
        ] {
            let wanted = Ok(Nanoseconds::new(nanoseconds));
            assert_eq!(text.parse(), wanted, "{text}");
            assert_eq!(Nanoseconds::seconds(text), wanted, "{text}");
            assert_eq!(Nanoseconds::minutes(text), wanted, "{text}");
        }
        let five = Nanoseconds::new(5_000_000_000);
        assert_eq!(Nanoseconds::seconds("5"), Ok(five));
        assert_eq!(
            Nanoseconds::minutes("0.5"),
            Ok(Nanoseconds::new(30_000_000_000))
        );
        assert!(Nanoseconds::seconds("5 parsecs").is_err());
        assert!(Nanoseconds::seconds("").is_err());
    }

    #[test]
    fn a_duration_becomes_cycles_of_a_clock() {
        let clock: Megahertz = "2.2GHz".parse().unwrap();
        assert_eq!(Nanoseconds::new(100).at(clock), Cycles::new(220));
        assert_eq!(Nanoseconds::new(1).at(Megahertz::new(500)), Cycles::new(1));
    }

    proptest! {
        #[test]
        fn printed_quantities_parse_back(value: u64) {
            prop_assert_eq!(Bytes::new(value).to_string().parse(), Ok(Bytes::new(value)));
            prop_assert_eq!(Nanoseconds::new(value).to_string().parse(), Ok(Nanoseconds::new(value)));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in ".{0,24}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Nanoseconds>();
            let _ = text.parse::<Megahertz>();
        }
    }
}
