//! Settings from the environment: variables that begin with `CONTIGUA_MALLOC_`.
//!
//! | variable | value | default |
//! |---|---|---|
//! | `DECAY` | the half-life of free memory that was not needed lately; 0: the rate alone | `250ms`, 0 if `RELEASE_RATE` is set or time is the program's |
//! | `RELEASE_RATE` | bytes a second that are given back, with a half-life in addition; 0: none | `1MiB` |
//! | `INTERVAL` | Δ: memory used within this time stays whole; 0: the static policy | `60s`; with a half-life 1 s at first, until that was a mistake |
//! | `CACHE_INTERVAL` | the same for whole free huge pages; 0: they go at once | `1s` with a half-life, else 0 |
//! | `BACKGROUND` | `off`, `on`, or `idle`: a thread from when memory is first idle | `off` |
//! | `LIMIT` | mapped bytes that are never exceeded: allocation fails | none |
//! | `SOFT_LIMIT` | mapped bytes above which memory is given back at once | none |
//! | `PRIMARY` | bytes of reserved huge pages (`HugeTLB`) to reserve at the start and use first | none |
//! | `HARDEN` | `0`: free objects are not checked; `1`; `2`: mistakes are noticed at the next free; `3`: random reuse and guard pages, too | `1` |
//! | `GUARDED` | mean number of allocations from one that is guarded to the next; 0: none is | 0 |
//! | `CACHE` | bytes that the cache of a CPU may hold | `2MiB` |
//! | `PER_CPU` | `off`: caches belong to threads | `on` |
//! | `TELEMETRY` | `off`: no shared page | `on` |
//! | `CLOCK` | `program`: time is instructions executed, under `contigua run` only | `system` |
//! | `STATISTICS` | `exit`: write the figures to standard error at the end | none |
//! | `PROFILE` | file of the sampled heap profile, written at the end; `%p` is the process | none |
//! | `PROFILE_RATE` | mean bytes from sample to sample; alone: sample, and write nothing at the end | `512KiB` |
//! | `DUMP` | `SIGNAL` or `SIGNAL:FILE`: on that signal write the figures to standard error or the file's end, and the profile if there is one | none |
//!
//! Sizes take `KiB`, `MiB`, `GiB`, `TiB`; times `ms`, `s`, `min`. A value that cannot be read is
//! reported in one line and ignored. A program that runs with more rights than its caller
//! (`AT_SECURE`) ignores all of them.

mod dump;

use core::ffi::{CStr, c_char};

use contigua_pageheap::{Config, Primary};

use crate::files::{self, FileName};
use crate::{primary as region, sys};
pub use dump::Dump;

const PREFIX: &[u8] = b"CONTIGUA_MALLOC_";
/// Free bytes in partly used huge pages from which on large objects lie close together in regions.
/// A malloc has many of 300 KB to 4 MB; with the page heap's own default their ends cost up to
/// twice the memory (`benches/malloc/large.c`).
const REGION_SLACK_BYTES: u64 = 4 << 20;
/// The half-life of free memory, in nanoseconds: what [`DECAY_PAUSE`] kept is gone but for 6 % in each second.
/// Whole huge pages go first, and parts of others only in the second after. Our choice.
const HALF_LIFE: u64 = 250_000_000;
/// Time for which free memory stays before it decays, in nanoseconds: programs whose demand swings
/// within a second take no page faults for it. Our choice.
const DECAY_PAUSE: u64 = 1_000_000_000;
/// Mean bytes between samples of the heap profile: `TCMalloc`'s of old, and Go's.
pub const DEFAULT_RATE: u64 = 512 << 10;
/// Bytes that may lie between samples on average.
const RATES: core::ops::RangeInclusive<u64> = 1..=1 << 40;
/// Allocations that may lie between guarded ones on average.
const GUARDS: core::ops::RangeInclusive<u64> = 0..=1 << 30;
/// Of the environment that is read from `/proc`, before the C library has it.
const EARLY_BYTES: usize = 256 << 10;

/// When a thread of our own gives memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Never: slow paths do.
    Off,
    /// From the start.
    On,
    /// From when much memory is idle for the first time.
    Idle,
}

/// All of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a variable that a user sets, and none implies another"
)]
pub struct Settings {
    /// See the module; in nanoseconds.
    pub decay: Option<u64>,
    /// See the module.
    pub release_rate: Option<u64>,
    /// Δ in nanoseconds.
    pub interval: Option<u64>,
    /// See the module; in nanoseconds.
    pub cache_interval: Option<u64>,
    /// See the module.
    pub background: Background,
    /// See the module.
    pub limit: u64,
    /// See the module.
    pub soft_limit: u64,
    /// See the module.
    pub primary: u64,
    /// See the module.
    pub harden: u8,
    /// See the module.
    pub guarded: u64,
    /// See the module.
    pub cache: Option<i32>,
    /// See the module.
    pub per_cpu: bool,
    /// See the module.
    pub telemetry: bool,
    /// See the module.
    pub program_clock: bool,
    /// See the module.
    pub statistics_at_exit: bool,
    /// See the module.
    pub profile: Option<FileName>,
    /// See the module.
    pub dump: Option<Dump>,
    profile_rate: Option<u64>,
}

impl Settings {
    const DEFAULT: Self = Self {
        decay: None,
        release_rate: None,
        interval: None,
        cache_interval: None,
        background: Background::Off,
        limit: u64::MAX,
        soft_limit: u64::MAX,
        primary: 0,
        harden: 1,
        guarded: 0,
        cache: None,
        per_cpu: true,
        telemetry: true,
        program_clock: false,
        statistics_at_exit: false,
        profile: None,
        dump: None,
        profile_rate: None,
    };

    /// From the process's environment.
    pub fn read() -> Self {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        let mut settings = Self::DEFAULT;
        // Miri knows neither this nor anonymous files.
        if cfg!(miri) {
            settings.telemetry = false;
            return settings;
        }
        // SAFETY: no arguments but a number.
        if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
            return settings;
        }
        // SAFETY: the C library's list of pointers to strings, ended by null; null itself before
        // the C library is initialized. Nobody changes it during the first allocation of a
        // process that has more than one thread only if it did not allocate for the second.
        unsafe {
            let mut next = environ;
            if next.is_null() {
                settings.read_early();
                return settings;
            }
            while !(*next).is_null() {
                settings.entry(CStr::from_ptr(*next).to_bytes());
                next = next.add(1);
            }
        }
        settings
    }

    /// From `/proc`, for allocations before the C library knows its environment.
    fn read_early(&mut self) {
        let Some(memory) = sys::map(EARLY_BYTES) else {
            return;
        };
        {
            // SAFETY: freshly mapped, this long, ours.
            let buffer = unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), EARLY_BYTES) };
            for entry in files::read(c"/proc/self/environ", buffer).split(|&byte| byte == 0) {
                self.entry(entry);
            }
        }
        sys::unmap(memory.as_ptr(), EARLY_BYTES);
    }

    fn entry(&mut self, entry: &[u8]) {
        let Some(entry) = entry.strip_prefix(PREFIX) else {
            return;
        };
        let Some(at) = entry.iter().position(|&byte| byte == b'=') else {
            return;
        };
        let (name, value) = (&entry[..at], &entry[at + 1..]);
        if self.set(name, value).is_none() {
            sys::message(format_args!(
                "CONTIGUA_MALLOC_{}={} is not understood and ignored",
                name.escape_ascii(),
                value.escape_ascii()
            ));
        }
    }

    fn set(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        match name {
            b"DECAY" => self.decay = Some(nanoseconds(value)?),
            b"RELEASE_RATE" => self.release_rate = Some(bytes(value)?),
            b"INTERVAL" => self.interval = Some(nanoseconds(value)?),
            b"CACHE_INTERVAL" => self.cache_interval = Some(nanoseconds(value)?),
            b"BACKGROUND" => {
                self.background = match value {
                    b"off" => Background::Off,
                    b"on" => Background::On,
                    b"idle" => Background::Idle,
                    _ => return None,
                }
            }
            b"LIMIT" => self.limit = bytes(value)?,
            b"SOFT_LIMIT" => self.soft_limit = bytes(value)?,
            b"PRIMARY" => self.primary = bytes(value)?,
            b"HARDEN" => {
                self.harden = match value {
                    [level @ b'0'..=b'3'] => level - b'0',
                    _ => return None,
                }
            }
            b"GUARDED" => {
                self.guarded = count(value).filter(|every| GUARDS.contains(every))?;
            }
            b"CACHE" => self.cache = Some(i32::try_from(bytes(value)?).ok()?),
            b"PER_CPU" => self.per_cpu = either(value, b"off", b"on")?,
            b"TELEMETRY" => self.telemetry = either(value, b"off", b"on")?,
            b"DUMP" => self.dump = Some(Dump::parse(value)?),
            b"PROFILE" => self.profile = Some(FileName::new(value)?),
            b"PROFILE_RATE" => {
                self.profile_rate = Some(bytes(value).filter(|rate| RATES.contains(rate))?);
            }
            b"CLOCK" => self.program_clock = either(value, b"system", b"program")?,
            b"STATISTICS" => self.statistics_at_exit = either(value, b"off", b"exit")?,
            _ => return None,
        }
        Some(())
    }

    /// Mean bytes between samples, if a profile is wanted.
    pub fn profile_rate(&self) -> Option<u64> {
        self.profile_rate.or(self.profile.map(|_| DEFAULT_RATE))
    }

    /// Configuration of the page heap.
    pub fn heap(&self) -> Config {
        // A fixed rate is the paper's policy, which studies with a clock of instructions repeat.
        let fixed = self.release_rate.is_some() || self.program_clock;
        let half_life = self.decay.unwrap_or(if fixed { 0 } else { HALF_LIFE });
        Config {
            release_rate: self.release_rate.unwrap_or(Config::DEFAULT.release_rate),
            interval: self.interval.unwrap_or(Config::DEFAULT.interval),
            // Who sets Δ means it.
            first_interval: if self.interval.is_some() {
                u64::MAX
            } else {
                DECAY_PAUSE
            },
            cache_interval: self.cache_interval.unwrap_or(if half_life > 0 {
                DECAY_PAUSE
            } else {
                Config::DEFAULT.cache_interval
            }),
            half_life,
            region_slack: REGION_SLACK_BYTES,
            soft_limit: self.soft_limit,
            hard_limit: self.limit,
            primary: if self.primary > 0 {
                primary(self.primary as usize)
            } else {
                None
            },
            ..Config::DEFAULT
        }
    }
}

/// One contiguous reservation of `HugeTLB` pages, of 1 GB if the kernel has them, else of 2 MB.
fn primary(bytes: usize) -> Option<Primary> {
    for log in [30, 21] {
        let rounded = bytes.checked_next_multiple_of(1 << log)?;
        if let Some(address) = sys::map_huge(rounded, log)
            && region::begin(address, rounded, 1 << log)
        {
            return Some(Primary {
                address,
                bytes: rounded,
                releasable: false,
            });
        }
    }
    sys::message(format_args!(
        "no {bytes} bytes of HugeTLB memory for CONTIGUA_MALLOC_PRIMARY; using ordinary memory \
         (see /proc/sys/vm/nr_hugepages)"
    ));
    None
}

/// Parses one of two words: true for the second, `None` if it is neither.
fn either(value: &[u8], no: &[u8], yes: &[u8]) -> Option<bool> {
    (value == no || value == yes).then_some(value == yes)
}

fn number(value: &[u8]) -> Option<(u64, &[u8])> {
    let digits = value
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(value.len());
    if digits == 0 {
        return None;
    }
    let mut number = 0u64;
    for &byte in &value[..digits] {
        number = number
            .checked_mul(10)?
            .checked_add(u64::from(byte - b'0'))?;
    }
    Some((number, &value[digits..]))
}

fn count(value: &[u8]) -> Option<u64> {
    number(value)
        .filter(|(_, unit)| unit.is_empty())
        .map(|(number, _)| number)
}

fn bytes(value: &[u8]) -> Option<u64> {
    let (number, unit) = number(value)?;
    let shift = match unit {
        b"" | b"B" => 0,
        b"KiB" => 10,
        b"MiB" => 20,
        b"GiB" => 30,
        b"TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn nanoseconds(value: &[u8]) -> Option<u64> {
    let (number, unit) = number(value)?;
    number.checked_mul(match unit {
        b"ms" => 1_000_000,
        b"" | b"s" => 1_000_000_000,
        b"min" => 60_000_000_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_sizes_and_times_read_with_their_units() {
        assert_eq!(bytes(b"0"), Some(0));
        assert_eq!(bytes(b"12KiB"), Some(12 << 10));
        assert_eq!(bytes(b"3GiB"), Some(3 << 30));
        assert_eq!(bytes(b"GiB"), None);
        assert_eq!(bytes(b"1MB"), None);
        assert_eq!(bytes(b"99999999999999999999"), None);
        assert_eq!(bytes(b"99999999999TiB"), None);
        assert_eq!(nanoseconds(b"60s"), Some(60_000_000_000));
        assert_eq!(nanoseconds(b"5min"), Some(300_000_000_000));
        assert_eq!(nanoseconds(b"5h"), None);
    }

    #[test]
    fn does_a_fixed_rate_end_decay_unless_both_are_asked_for() {
        let heap = |variables: &[(&[u8], &[u8])]| {
            let mut settings = Settings::DEFAULT;
            for (name, value) in variables {
                assert!(settings.set(name, value).is_some());
            }
            let heap = settings.heap();
            (heap.half_life, heap.cache_interval)
        };
        let rate: (&[u8], &[u8]) = (b"RELEASE_RATE", b"1MiB");
        assert_eq!(heap(&[]), (HALF_LIFE, DECAY_PAUSE));
        assert_eq!(heap(&[rate]), (0, 0));
        assert_eq!(heap(&[(b"CLOCK", b"program")]), (0, 0));
        assert_eq!(heap(&[(b"DECAY", b"0")]), (0, 0));
        assert_eq!(
            heap(&[rate, (b"DECAY", b"2s"), (b"CACHE_INTERVAL", b"3s")]),
            (2_000_000_000, 3_000_000_000)
        );
    }

    #[test]
    fn is_an_interval_that_was_asked_for_kept_from_the_start() {
        let mut settings = Settings::DEFAULT;
        assert_eq!(settings.heap().first_interval, DECAY_PAUSE);
        assert!(settings.set(b"INTERVAL", b"60s").is_some());
        let heap = settings.heap();
        assert_eq!(
            (heap.interval, heap.first_interval),
            (60_000_000_000, u64::MAX)
        );
    }

    #[test]
    fn does_each_variable_change_its_setting_and_only_known_ones_pass() {
        let entries: [(&[u8], &[u8], &[u8]); 18] = [
            (b"DECAY", b"5s", b"?"),
            (b"RELEASE_RATE", b"2MiB", b"?"),
            (b"INTERVAL", b"10s", b"?"),
            (b"CACHE_INTERVAL", b"5s", b"?"),
            (b"BACKGROUND", b"idle", b"?"),
            (b"LIMIT", b"1GiB", b"?"),
            (b"SOFT_LIMIT", b"1GiB", b"?"),
            (b"PRIMARY", b"1GiB", b"?"),
            (b"HARDEN", b"3", b"4"),
            (b"GUARDED", b"1000", b"1KiB"),
            (b"CACHE", b"1MiB", b"?"),
            (b"PER_CPU", b"off", b"?"),
            (b"TELEMETRY", b"off", b"?"),
            (b"CLOCK", b"program", b"?"),
            (b"STATISTICS", b"exit", b"?"),
            (b"DUMP", b"SIGUSR2:/tmp/%p", b"SIGSEGV"),
            (b"PROFILE", b"/tmp/%p", b""),
            (b"PROFILE_RATE", b"64KiB", b"0"),
        ];
        for (name, value, wrong) in entries {
            let mut settings = Settings::DEFAULT;
            assert!(settings.set(name, value).is_some());
            assert_ne!(settings, Settings::DEFAULT);
            assert!(settings.set(name, wrong).is_none());
        }
        let mut settings = Settings::DEFAULT;
        assert!(settings.set(b"RATE", b"1").is_none());
    }
}
