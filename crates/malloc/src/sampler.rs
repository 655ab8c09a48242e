//! Choice of the allocations to sample, for the heap profile (`profile`), or to guard (`guarded`).
//!
//! Samples are taken at points of Poisson processes: the profile's over allocated bytes, one in `rate` bytes on
//! average, the guard's over allocations. One countdown serves both: each thread draws an exponentially distributed
//! distance to the next point of either and counts it down. Such distances have no memory, so threads may count apart
//! from each other. An allocation is charged its bytes over the rate, and behind them the guard's share; the part in
//! which the point lies says whose it is, so the profile does not depend on the guard.
//!
//! A process without samples pays nothing: the fast path of an allocation is left through a test that it makes anyway
//! (`rseq::Hot::fast`), and only then somebody asks whether allocations are counted.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use contigua_syscalls::random::Random;

use crate::classes::{CLASSES, COUNT};
use crate::near::near;
use crate::rseq::HOT;
use crate::{math, sys, tls, unwind};

/// The mean distance, in units of the countdown.
const MEAN: u64 = 1 << 48;
/// Highest charge of an allocation for either: a distance is longer once in 10^27.
const MOST: u64 = 64 * MEAN;

/// In the thread's word: it has drawn its first distance.
const STARTED: usize = 1;
/// In the thread's word: it is taking a sample; what that allocates is not sampled.
const BUSY: usize = 2;

static ON: AtomicBool = AtomicBool::new(false);
/// Mean bytes between samples of the profile; 0: there is none.
static RATE: AtomicU64 = AtomicU64::new(0);
/// The guard's share of what an allocation is charged.
static SHARE: AtomicU64 = AtomicU64::new(0);
/// Charge of an object of each class.
static CHARGES: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
/// Source of random distances.
pub static RANDOM: Random = Random::new();

/// Owner of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The heap profile's.
    Profile,
    /// The guard's.
    Guard,
}

/// Begin to count, once the allocator works: for a profile with so many bytes between samples (0: none), for a guard
/// with so many allocations between them.
pub fn start(rate: u64, guarded: Option<u64>) {
    RANDOM.seed(sys::random(sys::Purpose::Samples, 0));
    let share = guarded.map_or(0, share_of_one_in);
    RATE.store(rate, Ordering::Relaxed);
    SHARE.store(share, Ordering::Relaxed);
    for (charge, class) in CHARGES.iter().zip(&CLASSES) {
        charge.store(
            charge_of(class.size as usize, rate) + share,
            Ordering::Relaxed,
        );
    }
    // The unwinder resolves its symbols and initializes itself now, not inside of an allocation
    // that somebody makes under who knows which lock.
    unsampled(|| unwind::capture(&mut [0; 8], &[]));
    ON.store(true, Ordering::Relaxed);
    HOT.fast.store(0, Ordering::Relaxed);
}

/// Returns true if allocations are counted.
#[inline(always)]
pub fn is_on() -> bool {
    near!(ON: AtomicBool).load(Ordering::Relaxed)
}

/// Charge of `bytes` with a sample in `rate` bytes: the number of points that lie in them on
/// average.
fn charge_of(bytes: usize, rate: u64) -> u64 {
    if rate == 0 {
        return 0;
    }
    ((bytes as f64 / rate as f64 * MEAN as f64) as u64).min(MOST)
}

/// Charge of an allocation so that one in `many` is a sample.
fn share_of_one_in(many: u64) -> u64 {
    if many <= 1 {
        return MOST;
    }
    (-math::ln(1.0 - 1.0 / many as f64) * MEAN as f64) as u64
}

/// Owner of the sample of an allocation that was charged for `bytes` and perhaps for the guard, and
/// overdrew to `left`.
fn owner_of(left: i64, for_bytes: u64, share: u64) -> Owner {
    let point = left.saturating_add_unsigned(for_bytes + share);
    if share > 0 && (for_bytes == 0 || point >= for_bytes.cast_signed()) {
        Owner::Guard
    } else {
        Owner::Profile
    }
}

/// A distance to the next sample.
fn draw() -> i64 {
    let uniform = ((RANDOM.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-math::ln(uniform) * MEAN as f64) as i64
}

/// Count a small object of `class` that is about to be allocated; whether it may be one to sample.
#[inline(always)]
pub fn small(class: usize) -> bool {
    debug_assert!(class < COUNT);
    let charges = near!(CHARGES: [AtomicU64; COUNT]);
    // SAFETY: callers pass a class. Needed because the check would be a tenth of what counting
    // costs.
    let charge = unsafe { charges.get_unchecked(class) }.load(Ordering::Relaxed);
    tls::spend(charge as usize)
}

/// Count a large object of `bytes`, which nobody guards; whether it may be one to sample.
pub fn large(bytes: usize) -> bool {
    let rate = RATE.load(Ordering::Relaxed);
    rate != 0 && tls::spend(charge_of(bytes, rate) as usize)
}

/// Returns true if the thread has to take a sample.
pub fn is_due() -> bool {
    // SAFETY: the thread's own words.
    is_on() && unsafe { &(*tls::thread()).left }.load(Ordering::Relaxed) < 0
}

/// Take a sample of the calling thread's allocation, of a small object of `bytes`, if it may and its distance is over.
pub fn of_small<R>(bytes: usize, take: impl FnOnce(Owner) -> R) -> Option<R> {
    sample(bytes, SHARE.load(Ordering::Relaxed), take)
}

/// Take a sample of the calling thread's allocation of a large object, for the profile, if it may
/// and its distance is over.
pub fn of_large<R>(bytes: usize, take: impl FnOnce() -> R) -> Option<R> {
    sample(bytes, 0, |_| take())
}

fn sample<R>(bytes: usize, share: u64, take: impl FnOnce(Owner) -> R) -> Option<R> {
    // SAFETY: the thread's own words.
    let thread = unsafe { &*tls::thread() };
    let sampling = thread.sampling.load(Ordering::Relaxed);
    if sampling & BUSY != 0 {
        return None;
    }
    if sampling & STARTED == 0 {
        thread.sampling.store(STARTED, Ordering::Relaxed);
        let left = thread.left.load(Ordering::Relaxed);
        thread
            .left
            .store(left.saturating_add(draw()), Ordering::Relaxed);
    }
    let left = thread.left.load(Ordering::Relaxed);
    if left >= 0 {
        return None;
    }
    let for_bytes = charge_of(bytes, RATE.load(Ordering::Relaxed));
    let taken = unsampled(|| take(owner_of(left, for_bytes, share)));
    thread.left.store(draw(), Ordering::Relaxed);
    Some(taken)
}

/// Do something in which the thread takes no samples, not in handlers of signals either.
pub fn unsampled<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: the thread's own words.
    let sampling: &AtomicUsize = unsafe { &(*tls::thread()).sampling };
    let before = sampling.load(Ordering::Relaxed);
    sampling.store(before | BUSY, Ordering::Relaxed);
    let result = body();
    sampling.store(before, Ordering::Relaxed);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn is_every_allocation_a_sample_of_one_in_one() {
        assert_eq!(share_of_one_in(1), MOST);
        assert!((0..1000).all(|_| draw() < MOST.cast_signed()));
    }

    proptest! {
        #[test]
        fn is_the_chance_of_a_sample_what_was_asked_for(many in 2..1_000_000_000u64) {
            let mean = share_of_one_in(many) as f64 / MEAN as f64;
            let expected = 1.0 / many as f64;
            prop_assert!((-(-mean).exp_m1() - expected).abs() <= 1e-4 * expected);
        }

        #[test]
        fn is_a_byte_charged_alike_at_every_rate(bytes in 8..1_000_000usize, log in 0..40u32) {
            let (charge, points) = (charge_of(bytes, 1 << log), bytes as f64 / (1u64 << log) as f64);
            let expected = points.min(64.0) * MEAN as f64;
            prop_assert!((charge as f64 - expected).abs() <= 1.0);
        }

        /// The point lies in the part of the bytes, or in the guard's behind it.
        #[test]
        fn position_of_the_sample_point_decides_its_owner(
            bytes in 1..MOST, share in 0..MOST, part in 0.0..1.0f64
        ) {
            let point = (part * (bytes + share) as f64) as u64;
            prop_assume!(point < bytes + share);
            let left = point.cast_signed() - (bytes + share).cast_signed();
            let expected = if point < bytes { Owner::Profile } else { Owner::Guard };
            prop_assert_eq!(owner_of(left, bytes, share), expected);
        }
    }

    #[test]
    fn is_everything_the_guards_without_a_profile() {
        assert_eq!(owner_of(-1, 0, 1), Owner::Guard);
        assert_eq!(owner_of(-5, 0, 1), Owner::Guard);
    }
}
