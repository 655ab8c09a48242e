//! Numbers as bytes, little-endian, for the parts of a trace that are not hot.

/// Stored bytes do not mean anything. Says which part, for the error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage(pub &'static str);

/// Appends a number, seven bits a byte from the lowest on, so that small numbers are short.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Folds a signed difference so that small ones of either sign become small numbers.
#[inline]
pub const fn fold(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

/// Undoes [`fold`].
#[inline]
pub const fn unfold(folded: u64) -> i64 {
    (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed()
}

/// Stored bytes that are read from the front. Every method gives `None` when they run out.
#[derive(Clone, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a number of [`put_number`]. `None` also when it does not fit into 64 bits.
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn trace_numbers_round_trip(number: u64, small in 0..300u64, difference: i64) {
            for number in [number, small, u64::MAX] {
                let mut bytes = Vec::new();
                put_number(&mut bytes, number);
                let mut input = Input(&bytes);
                prop_assert_eq!(input.number(), Some(number));
                prop_assert!(input.is_empty());
                prop_assert_eq!(Input(&bytes[..bytes.len() - 1]).number(), None);
            }
            prop_assert_eq!(unfold(fold(difference)), difference);
        }
    }

    #[test]
    fn small_differences_fold_to_small_numbers() {
        assert_eq!([0, -1, 1, -2, 2].map(fold), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_number_beyond_64_bits_is_refused() {
        assert_eq!(Input(&[0xff; 11]).number(), None);
        assert_eq!(
            Input(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number(),
            None
        );
    }
}
