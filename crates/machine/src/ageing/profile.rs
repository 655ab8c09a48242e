//! What a server is used for: the demand for memory of its tenants and of its kernel.
//!
//! A profile is a TOML file. Shares are of the server's memory, so that a profile fits servers of
//! any size; times are simulated time. `docs/design/server-ageing.md` explains the model, and where
//! its figures come from.

use contigua_frames::FrameClass;
use contigua_units::Nanoseconds;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::parse;

/// Reads a profile from TOML. `path` is where the text came from, for messages.
///
/// # Errors
/// [`Error::Config`] with the place and the nearest known key, [`Error::Profile`].
pub fn parse_profile(text: &str, path: &str) -> Result<Profile, Error> {
    let profile: Profile = parse(text, path)?;
    profile.check().map_err(|problem| Error::Profile {
        profile: path.to_owned(),
        problem,
    })?;
    Ok(profile)
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What kind of server this is, for people.
    pub description: String,
    /// The programs that run on it.
    pub tenants: Tenants,
    /// The files that they use.
    pub page_cache: PageCache,
    /// What the kernel allocates for itself and for devices, by source.
    pub kernel: Vec<Source>,
    /// Movable memory that devices hold for a while.
    #[serde(default)]
    pub pins: Option<Pins>,
}

/// Programs that arrive, grow, give memory back and take it again, and leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenants {
    /// How many there are at a time.
    pub count: u32,
    /// Anonymous memory of all of them together, as a share of memory.
    pub share: f64,
    /// How unequal they are: a tenant's size is its even share times between `1 - spread` and
    /// `1 + spread`.
    pub spread: f64,
    /// Mean lifetime; lifetimes are exponential.
    pub lifetime: Nanoseconds,
    /// Mean time between the end of one and the arrival of the next; exponential.
    pub gap: Nanoseconds,
    /// Time in which a tenant grows to its size.
    pub growth: Nanoseconds,
    /// Share of a tenant's memory that it gives back and takes again each minute.
    pub churn: f64,
    /// Share of anonymous memory that lies in mappings large enough for huge pages.
    pub huge: f64,
    /// Amplitude of the daily swing of demand, 0 to 1, where demand follows the day.
    pub swing: f64,
}

/// Contents of files in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageCache {
    /// All files that are used, as a share of memory. When there is less room, the oldest go.
    pub share: f64,
    /// Share of memory that is read anew each minute.
    pub turnover: f64,
    /// Share of pages that are used again before reclaim comes by.
    pub reused: f64,
    /// Share of the cached files that is deleted at a time.
    pub deleted: f64,
    /// Mean time between such deletions; exponential.
    pub deletion_interval: Nanoseconds,
}

/// One source of the kernel's demand. Requests arrive at random (Poisson); their rate follows from
/// the memory that they hold in the long run and from how long they hold it (Little's law).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// What the memory is for.
    pub class: Class,
    /// What it holds in the long run, as a share of memory.
    pub share: f64,
    /// Sizes of requests: order and weight.
    pub orders: Vec<Weighted<u8>>,
    /// Mean lifetimes, each exponential, and their weights: short bursts, long tails.
    pub lifetimes: Vec<Weighted<Nanoseconds>>,
    /// Requests cannot wait. One that finds no block of its order takes single frames instead, as
    /// network drivers do.
    #[serde(default)]
    pub atomic: bool,
    /// The memory is reclaimed when memory is short.
    #[serde(default)]
    pub reclaimable: bool,
    /// Share of memory that is never given back once it is held, allocated over `leak_time`.
    #[serde(default)]
    pub leak: f64,
    /// Time in which the leak grows to its size.
    #[serde(default = "an_hour")]
    pub leak_time: Nanoseconds,
    /// Times of much higher demand.
    #[serde(default)]
    pub bursts: Option<Bursts>,
}

fn an_hour() -> Nanoseconds {
    Nanoseconds::new(3_600_000_000_000)
}

/// A value and how often it occurs, relative to the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Weighted<T> {
    /// The value.
    pub value: T,
    /// Its weight.
    pub weight: f64,
}

/// Times of higher demand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Demand during a burst, relative to other times.
    pub factor: f64,
    /// Mean time from one to the next; exponential.
    pub interval: Nanoseconds,
    /// How long one lasts.
    pub length: Nanoseconds,
}

/// Memory that devices hold: direct I/O, RDMA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    /// Share of memory that is pinned in the long run.
    pub share: f64,
    /// Frames of a buffer that is pinned as a whole.
    pub buffer: u32,
    /// Mean lifetime of a pin; exponential.
    pub lifetime: Nanoseconds,
}

/// Classes of memory that the kernel's sources allocate (Contiguitas, section 2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Send and receive buffers.
    Network,
    /// Small objects.
    Slab,
    /// Buffers for compression and decompression.
    FileSystem,
    /// Page tables beyond those that the tenants' memory needs.
    PageTable,
    /// Everything else.
    Other,
}

impl Class {
    /// The class of its frames.
    #[must_use]
    pub fn frames(self) -> FrameClass {
        match self {
            Self::Network => FrameClass::NetworkBuffer,
            Self::Slab => FrameClass::Slab,
            Self::FileSystem => FrameClass::FileSystem,
            Self::PageTable => FrameClass::PageTable,
            Self::Other => FrameClass::KernelOther,
        }
    }
}

impl Profile {
    /// Checks that all figures make sense.
    ///
    /// # Errors
    /// A sentence that names the key and its value.
    pub fn check(&self) -> Result<(), String> {
        let share = |key: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err(format!("{key} is {value}; it is a share, from 0 to 1"))
            }
        };
        let time = |key: &str, value: Nanoseconds| {
            if value.get() > 0 {
                Ok(())
            } else {
                Err(format!("{key} is 0; it is a time above 0"))
            }
        };
        let tenants = &self.tenants;
        if !(1..=MOST_TENANTS).contains(&tenants.count) {
            return Err(format!(
                "tenants.count is {}; it is 1 to {MOST_TENANTS}",
                tenants.count
            ));
        }
        share("tenants.share", tenants.share)?;
        share("tenants.spread", tenants.spread)?;
        share("tenants.churn", tenants.churn)?;
        share("tenants.huge", tenants.huge)?;
        share("tenants.swing", tenants.swing)?;
        time("tenants.lifetime", tenants.lifetime)?;
        time("tenants.gap", tenants.gap)?;
        time("tenants.growth", tenants.growth)?;
        share("page_cache.share", self.page_cache.share)?;
        share("page_cache.turnover", self.page_cache.turnover)?;
        share("page_cache.reused", self.page_cache.reused)?;
        share("page_cache.deleted", self.page_cache.deleted)?;
        time(
            "page_cache.deletion_interval",
            self.page_cache.deletion_interval,
        )?;
        for (i, source) in self.kernel.iter().enumerate() {
            share(&format!("kernel[{i}].share"), source.share)?;
            share(&format!("kernel[{i}].leak"), source.leak)?;
            time(&format!("kernel[{i}].leak_time"), source.leak_time)?;
            check_weights(&format!("kernel[{i}].orders"), &source.orders)?;
            check_weights(&format!("kernel[{i}].lifetimes"), &source.lifetimes)?;
            for order in &source.orders {
                if order.value > 10 {
                    let value = order.value;
                    return Err(format!(
                        "kernel[{i}].orders has {value}; orders are 0 to 10"
                    ));
                }
            }
            for lifetime in &source.lifetimes {
                time(&format!("kernel[{i}].lifetimes"), lifetime.value)?;
            }
            if let Some(bursts) = source.bursts {
                time(&format!("kernel[{i}].bursts.interval"), bursts.interval)?;
                time(&format!("kernel[{i}].bursts.length"), bursts.length)?;
                if !(bursts.factor >= 1.0 && bursts.factor.is_finite()) {
                    let factor = bursts.factor;
                    return Err(format!(
                        "kernel[{i}].bursts.factor is {factor}; it is at least 1"
                    ));
                }
            }
        }
        if let Some(pins) = &self.pins {
            share("pins.share", pins.share)?;
            if !(1..=512).contains(&pins.buffer) {
                return Err(format!(
                    "pins.buffer is {}; it is 1 to 512 frames",
                    pins.buffer
                ));
            }
            time("pins.lifetime", pins.lifetime)?;
        }
        Ok(())
    }
}

/// Tenants that a server can have at a time.
pub(super) const MOST_TENANTS: u32 = 64;

fn check_weights<T>(key: &str, values: &[Weighted<T>]) -> Result<(), String> {
    let sound = |weighted: &Weighted<T>| weighted.weight >= 0.0 && weighted.weight.is_finite();
    let sum: f64 = values.iter().map(|weighted| weighted.weight).sum();
    if values.iter().all(sound) && sum > 0.0 {
        Ok(())
    } else {
        Err(format!(
            "{key} needs weights of at least 0, and one above 0"
        ))
    }
}
