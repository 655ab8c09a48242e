//! Settings and statistics that programs reach by name, in any language.

use contigua_pageheap::Config;
use contigua_telemetry::Page;

use crate::{front, guarded, harden, pages, profile, setup, sys, telemetry};

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
    sys::preserving_errno(|| pages::set_limits(wanted(soft as u64), wanted(hard as u64)));
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

/// A setting that programs know by its name.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    get: fn(&Config) -> u64,
    set: Option<fn(&Config, u64)>,
}

impl Setting {
    /// Returns true if the setting is read-only.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.set.is_none()
    }
}

const MILLISECOND: u64 = 1_000_000;
const NONE: u64 = u64::MAX;

/// A limit as programs see it: 0 is none.
fn shown(limit: u64) -> u64 {
    if limit == NONE { 0 } else { limit }
}

/// A limit as programs set it.
fn wanted(limit: u64) -> u64 {
    if limit == 0 { NONE } else { limit }
}

/// All settings that programs know by their names, as `contigua_malloc.h` lists them.
pub const SETTINGS: [Setting; 7] = [
    Setting {
        name: "limit",
        get: |config| shown(config.hard_limit),
        set: Some(|config, bytes| pages::set_limits(config.soft_limit, wanted(bytes))),
    },
    Setting {
        name: "soft_limit",
        get: |config| shown(config.soft_limit),
        set: Some(|config, bytes| pages::set_limits(wanted(bytes), config.hard_limit)),
    },
    Setting {
        name: "release_rate",
        get: |config| config.release_rate,
        set: Some(|config, rate| pages::set_policy(rate, config.interval, config.cache_interval)),
    },
    Setting {
        name: "interval_milliseconds",
        get: |config| config.interval / MILLISECOND,
        set: Some(|config, time| {
            let interval = time.saturating_mul(MILLISECOND);
            pages::set_policy(config.release_rate, interval, interval);
        }),
    },
    Setting {
        name: "decay_milliseconds",
        get: |config| config.half_life / MILLISECOND,
        set: Some(|_, time| pages::set_half_life(time.saturating_mul(MILLISECOND))),
    },
    Setting {
        name: "harden",
        get: |_| harden::level().into(),
        set: None,
    },
    Setting {
        name: "guarded",
        get: |_| guarded::every(),
        set: None,
    },
];

fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// A setting or a figure by its name ([`SETTINGS`], [`Page::NAMES`]). A limit of 0 is none.
#[must_use]
pub fn get(name: &str) -> Option<u64> {
    setup::ensure();
    match setting(name) {
        Some(setting) => Some((setting.get)(&pages::config())),
        None => figure(name),
    }
}

/// A figure by its name ([`Page::NAMES`]).
#[must_use]
pub fn figure(name: &str) -> Option<u64> {
    setup::ensure();
    let figures = telemetry::collect().figures();
    let found = figures.iter().find(|(known, _)| *known == name)?;
    Some(found.1)
}

/// Change a setting by its name.
///
/// # Errors
/// If there is none of this name, or it can only be read.
pub fn set(name: &str, value: u64) -> Result<(), SetError> {
    setup::ensure();
    match setting(name).map(|setting| setting.set) {
        Some(Some(set)) => {
            sys::preserving_errno(|| set(&pages::config(), value));
            Ok(())
        }
        None if !Page::NAMES.contains(&name) => Err(SetError::Unknown),
        _ => Err(SetError::ReadOnly),
    }
}

/// Write the sampled heap profile to `path`, or without one where `CONTIGUA_MALLOC_PROFILE` says,
/// for `contigua-node heap --profile`.
///
/// # Errors
/// If the process takes no samples (the environment says whether, when it starts), if another
/// thread is writing one, or if the file cannot be written.
pub fn write_profile(path: Option<&core::ffi::CStr>) -> Result<(), ProfileError> {
    setup::ensure();
    sys::preserving_errno(|| profile::write(path))
}
