//! Values of the standard library.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};

use crate::{Error, Plain, Reader, Writer};

/// Elements for which memory is taken before any was read.
const AHEAD: usize = 1 << 12;

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Plain for $number {
            #[inline]
            fn write(&self, out: &mut Writer<'_>) {
                out.bytes(&self.to_le_bytes());
            }

            #[inline]
            fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
                input.array().map(Self::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, u128, i64, f64);

impl Plain for usize {
    #[inline]
    fn write(&self, out: &mut Writer<'_>) {
        (*self as u64).write(out);
    }

    #[inline]
    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Self::try_from(u64::read(input)?).map_err(|_| Error::Value)
    }
}

impl Plain for bool {
    #[inline]
    fn write(&self, out: &mut Writer<'_>) {
        out.byte((*self).into());
    }

    #[inline]
    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        match u8::read(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Value),
        }
    }
}

impl Plain for () {
    #[inline]
    fn write(&self, _: &mut Writer<'_>) {}

    #[inline]
    fn read(_: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(())
    }
}

impl<A: Plain, B: Plain> Plain for (A, B) {
    #[inline]
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
        self.1.write(out);
    }

    #[inline]
    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok((A::read(input)?, B::read(input)?))
    }
}

impl<T: Plain> Plain for Option<T> {
    #[inline]
    fn write(&self, out: &mut Writer<'_>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    #[inline]
    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        bool::read(input)?.then(|| T::read(input)).transpose()
    }
}

impl<T: Plain, const N: usize> Plain for [T; N] {
    #[inline]
    fn write(&self, out: &mut Writer<'_>) {
        for element in self {
            element.write(out);
        }
    }

    #[inline]
    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        let mut elements = Vec::with_capacity(N);
        for _ in 0..N {
            elements.push(T::read(input)?);
        }
        elements.try_into().map_err(|_| Error::Value)
    }
}

impl<T: Plain> Plain for Vec<T> {
    fn write(&self, out: &mut Writer<'_>) {
        self.len().write(out);
        for element in self {
            element.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        let count = input.count()?;
        let mut elements = Self::with_capacity(count.min(AHEAD));
        for _ in 0..count {
            elements.push(T::read(input)?);
        }
        Ok(elements)
    }
}

impl<T: Plain> Plain for VecDeque<T> {
    fn write(&self, out: &mut Writer<'_>) {
        self.len().write(out);
        for element in self {
            element.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Vec::read(input).map(Self::from)
    }
}

impl Plain for String {
    fn write(&self, out: &mut Writer<'_>) {
        self.len().write(out);
        out.bytes(self.as_bytes());
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Self::from_utf8(Vec::read(input)?).map_err(|_| Error::Value)
    }
}

impl<K: Plain + Ord, V: Plain> Plain for BTreeMap<K, V> {
    fn write(&self, out: &mut Writer<'_>) {
        self.len().write(out);
        for (key, value) in self {
            key.write(out);
            value.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Vec::<(K, V)>::read(input)?.into_iter().collect())
    }
}

/// By the order of keys, so that equal maps are equal bytes.
impl<K: Plain + Ord + Hash, V: Plain, S: BuildHasher + Default> Plain for HashMap<K, V, S> {
    fn write(&self, out: &mut Writer<'_>) {
        let mut entries: Vec<(&K, &V)> = self.iter().collect();
        entries.sort_unstable_by_key(|&(key, _)| key);
        entries.len().write(out);
        for (key, value) in entries {
            key.write(out);
            value.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Vec::<(K, V)>::read(input)?.into_iter().collect())
    }
}

/// In order, so that equal sets are equal bytes.
impl<T: Plain + Ord + Hash, S: BuildHasher + Default> Plain for HashSet<T, S> {
    fn write(&self, out: &mut Writer<'_>) {
        let mut elements: Vec<&T> = self.iter().collect();
        elements.sort_unstable();
        elements.len().write(out);
        for element in elements {
            element.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Vec::<T>::read(input)?.into_iter().collect())
    }
}

#[cfg(feature = "rangemap")]
impl<K: Plain + Ord + Clone, V: Plain + Eq + Clone> Plain for rangemap::RangeMap<K, V> {
    fn write(&self, out: &mut Writer<'_>) {
        self.iter().count().write(out);
        for (range, value) in self.iter() {
            range.start.write(out);
            range.end.write(out);
            value.write(out);
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        let mut map = Self::new();
        for _ in 0..input.count()? {
            let (start, end) = Plain::read(input)?;
            // The map panics at an empty range.
            if start >= end {
                return Err(Error::Value);
            }
            map.insert(start..end, V::read(input)?);
        }
        Ok(map)
    }
}

#[cfg(feature = "serde_json")]
impl Plain for serde_json::Value {
    fn write(&self, out: &mut Writer<'_>) {
        match self {
            Self::Null => out.byte(0),
            Self::Bool(value) => (1_u8, *value).write(out),
            Self::Number(number) => {
                if let Some(number) = number.as_u64() {
                    (2_u8, number).write(out);
                } else if let Some(number) = number.as_i64() {
                    (3_u8, number).write(out);
                } else {
                    (4_u8, number.as_f64().unwrap_or(f64::NAN)).write(out);
                }
            }
            Self::String(text) => {
                out.byte(5);
                text.write(out);
            }
            Self::Array(values) => {
                out.byte(6);
                values.write(out);
            }
            Self::Object(entries) => {
                out.byte(7);
                entries.len().write(out);
                for (key, value) in entries {
                    key.write(out);
                    value.write(out);
                }
            }
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Error> {
        /// Values within values: more than any report has, and few enough for the stack.
        const DEEPEST: usize = 64;
        read_json(input, DEEPEST)
    }
}

#[cfg(feature = "serde_json")]
fn read_json(input: &mut Reader<'_>, depth: usize) -> Result<serde_json::Value, Error> {
    use serde_json::{Map, Number, Value};
    let below = depth.checked_sub(1).ok_or(Error::Value)?;
    Ok(match u8::read(input)? {
        0 => Value::Null,
        1 => Value::Bool(bool::read(input)?),
        2 => Value::Number(u64::read(input)?.into()),
        3 => Value::Number(i64::read(input)?.into()),
        4 => Value::Number(Number::from_f64(f64::read(input)?).ok_or(Error::Value)?),
        5 => Value::String(String::read(input)?),
        6 => {
            let mut values = Vec::new();
            for _ in 0..input.count()? {
                values.push(read_json(input, below)?);
            }
            Value::Array(values)
        }
        7 => {
            let mut entries = Map::new();
            for _ in 0..input.count()? {
                entries.insert(String::read(input)?, read_json(input, below)?);
            }
            Value::Object(entries)
        }
        _ => return Err(Error::Value),
    })
}
