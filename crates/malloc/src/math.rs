//! The two functions that exponential sampling needs. The standard library's would be calls into
//! the C library's `libm`, which no program should have to load for its allocator.

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

/// `1 - exp(-x)` for `x >= 0`, to 10 digits.
pub fn one_minus_exp(x: f64) -> f64 {
    if x > 50.0 {
        return 1.0;
    }
    // x - x^2/2! + x^3/3! - ..., for at most 1/2 without loss.
    if x <= 0.5 {
        let (mut term, mut sum) = (x, 0.0);
        for next in 2..16 {
            sum += term;
            term *= -x / f64::from(next);
        }
        return sum;
    }
    // exp(-x) = exp(-x / 2)^2
    let half = 1.0 - one_minus_exp(x / 2.0);
    1.0 - half * half
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_it_the_logarithm(x in prop_oneof![1e-18..1.0, 1.0..1e18]) {
            prop_assert!((ln(x) - x.ln()).abs() <= 1e-9 * x.ln().abs().max(1e-3));
        }

        #[test]
        fn is_it_the_probability(log in -40.0..10.0f64) {
            let x = log.exp2();
            let expected = -(-x).exp_m1();
            prop_assert!((one_minus_exp(x) - expected).abs() <= 1e-10 * expected);
        }
    }
}
