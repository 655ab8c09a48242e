//! What a program can tell its allocator, whatever its language.

use crate::{front, pages, profile, setup, sys};

pub use crate::profile::Error as ProfileError;

/// Give at least `bytes` back to the system now, or all that is free: caches are emptied if the
/// page heap has less. Returns how much it was.
#[allow(clippy::must_use_candidate, reason = "called for its effect")]
pub fn release(bytes: usize) -> usize {
    setup::ensure();
    sys::preserving_errno(|| {
        let done = pages::release(bytes);
        if done >= bytes {
            return done;
        }
        front::drain();
        done + pages::release(bytes - done)
    })
}

/// Empty all caches and give back all free memory but `keep` bytes. Returns how much it was.
#[allow(clippy::must_use_candidate, reason = "called for its effect")]
pub fn trim(keep: usize) -> usize {
    setup::ensure();
    sys::preserving_errno(|| {
        front::drain();
        let free = pages::statistics().free_mapped as usize;
        pages::release(free.saturating_sub(keep))
    })
}

/// Never map more than `hard` bytes, and give memory back at once above `soft`. 0: no limit.
pub fn set_limits(soft: usize, hard: usize) {
    setup::ensure();
    let limit = |bytes: usize| if bytes == 0 { u64::MAX } else { bytes as u64 };
    sys::preserving_errno(|| pages::set_limits(limit(soft), limit(hard)));
}

/// Give back at most `rate` bytes a second periodically, and keep whole what was used within
/// `interval` milliseconds (Δ of paper 002, section 4; 0: the rate alone decides). From then on nothing
/// decays (`CONTIGUA_MALLOC_DECAY`).
pub fn set_policy(rate: usize, interval_milliseconds: u64) {
    setup::ensure();
    let interval = interval_milliseconds.saturating_mul(1_000_000);
    pages::set_policy(rate as u64, interval, interval);
}

/// Write the sampled heap profile to `path`, or without one where `CONTIGUA_MALLOC_PROFILE` says,
/// for `go tool pprof`.
///
/// # Errors
/// If the process takes no samples (the environment says whether, when it starts), if another
/// thread is writing one, or if the file cannot be written.
pub fn write_profile(path: Option<&core::ffi::CStr>) -> Result<(), ProfileError> {
    setup::ensure();
    sys::preserving_errno(|| profile::write(path))
}
