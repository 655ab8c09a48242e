//! What a program can tell its allocator, whatever its language.

use crate::{front, harden, pages, profile, setup, sys, telemetry};

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
/// `interval` milliseconds (Δ of adaptive huge-page subrelease, ISMM 2021, section 4; 0: the rate alone decides). From then on nothing
/// decays (`CONTIGUA_MALLOC_DECAY`).
pub fn set_policy(rate: usize, interval_milliseconds: u64) {
    setup::ensure();
    let interval = interval_milliseconds.saturating_mul(1_000_000);
    pages::set_policy(rate as u64, interval, interval);
}

/// Why a setting was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetError {
    /// There is none of this name.
    Unknown,
    /// It can only be read.
    ReadOnly,
}

const MILLISECOND: u64 = 1_000_000;

/// A setting or a figure by its name, as `contigua_malloc.h` lists them. 0 is no limit.
#[must_use]
pub fn get(name: &str) -> Option<u64> {
    setup::ensure();
    let limit = |bytes: u64| if bytes == u64::MAX { 0 } else { bytes };
    let config = pages::config();
    Some(match name {
        "limit" => limit(config.hard_limit),
        "soft_limit" => limit(config.soft_limit),
        "release_rate" => config.release_rate,
        "interval_milliseconds" => config.interval / MILLISECOND,
        "decay_milliseconds" => config.half_life / MILLISECOND,
        "harden" => harden::level().into(),
        _ => {
            let figures = telemetry::collect().figures();
            figures.iter().find(|(known, _)| *known == name)?.1
        }
    })
}

/// Change a setting by its name.
///
/// # Errors
/// If there is none of this name, or it can only be read.
pub fn set(name: &str, value: u64) -> Result<(), SetError> {
    setup::ensure();
    let limit = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes };
    let nanoseconds = value.saturating_mul(MILLISECOND);
    let config = pages::config();
    sys::preserving_errno(|| match name {
        "limit" => pages::set_limits(config.soft_limit, limit(value)),
        "soft_limit" => pages::set_limits(limit(value), config.hard_limit),
        "release_rate" => pages::set_policy(value, config.interval, config.cache_interval),
        "interval_milliseconds" => {
            pages::set_policy(config.release_rate, nanoseconds, nanoseconds);
        }
        "decay_milliseconds" => pages::set_half_life(nanoseconds),
        _ => {}
    });
    match name {
        "limit"
        | "soft_limit"
        | "release_rate"
        | "interval_milliseconds"
        | "decay_milliseconds" => Ok(()),
        _ if get(name).is_some() => Err(SetError::ReadOnly),
        _ => Err(SetError::Unknown),
    }
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
