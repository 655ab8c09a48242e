//! The function that exponential sampling needs. The standard library's would be a call into the C
//! library's `libm`, which no program should have to load for its allocator.

use core::f64::consts::{LN_2, SQRT_2};

/// The natural logarithm of a positive number, to 10 digits.
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), whose series converges quickly near 1.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let (mut power, mut sum) = (t, 0.0);
    for odd in (1..19).step_by(2) {
        sum += power / f64::from(odd);
        power *= square;
    }
    f64::from(exponent) * LN_2 + 2.0 * sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ln_agrees_with_the_standard_library(x in prop_oneof![1e-18..1.0, 1.0..1e18]) {
            prop_assert!((ln(x) - x.ln()).abs() <= 1e-9 * x.ln().abs().max(1e-3));
        }
    }
}
