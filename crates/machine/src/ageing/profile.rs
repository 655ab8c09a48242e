//! Workload of a server: the demand for memory of its tenants and of its kernel.
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
    /// Description of the server, for readers.
    pub description: String,
    /// The programs that run on it.
    pub tenants: Tenants,
    /// The files that they use.
    pub page_cache: PageCache,
    /// Memory that the kernel allocates for itself and for devices, by source.
    pub kernel: Vec<Source>,
    /// Movable memory that devices hold for a while.
    #[serde(default)]
    pub pins: Option<Pins>,
}

/// Programs that arrive, grow, give memory back and take it again, and leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenants {
    /// Number of tenants at a time.
    #[schemars(range(min = 1, max = MOST_TENANTS))]
    pub count: u32,
    /// Anonymous memory of all of them together, as a share of memory.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Inequality of their sizes: a tenant's size is its even share times between `1 - spread` and
    /// `1 + spread`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub spread: f64,
    /// Mean lifetime; lifetimes are exponential.
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
    pub lifetime: Nanoseconds,
    /// Mean time between the end of one and the arrival of the next; exponential.
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
    pub gap: Nanoseconds,
    /// Time in which a tenant grows to its size.
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
    pub growth: Nanoseconds,
    /// Share of a tenant's memory that it gives back and takes again each minute.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub churn: f64,
    /// Share of anonymous memory that lies in mappings large enough for huge pages.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub huge: f64,
    /// Amplitude of the daily swing of demand, 0 to 1, where demand follows the day.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub swing: f64,
}

/// Contents of files in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageCache {
    /// All files that are used, as a share of memory. When there is less room, the oldest go.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Share of memory that is read anew each minute.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub turnover: f64,
    /// Share of pages that are used again before reclaim comes by.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub reused: f64,
    /// Share of the cached files that is deleted at a time.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub deleted: f64,
    /// Mean time between such deletions; exponential.
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
    pub deletion_interval: Nanoseconds,
}

/// One source of the kernel's demand. Requests arrive at random (Poisson); their rate follows from
/// the memory that they hold in the long run and from how long they hold it (Little's law).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Use of the memory.
    pub class: Class,
    /// Memory held in the long run, as a share of all memory.
    #[schemars(range(min = 0.0, max = 1.0))]
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
    #[schemars(range(min = 0.0, max = 1.0))]
    pub leak: f64,
    /// Time in which the leak grows to its size.
    #[serde(default = "an_hour")]
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
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
    #[schemars(range(min = 0.0, max = 1e9))]
    pub weight: f64,
}

/// Times of higher demand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bursts {
    /// Demand during a burst, relative to other times.
    #[schemars(range(min = 1.0, max = 1e6))]
    pub factor: f64,
    /// Mean time from one to the next; exponential.
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
    pub interval: Nanoseconds,
    /// Duration of a burst.
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
    pub length: Nanoseconds,
}

/// Memory that devices hold: direct I/O, RDMA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pins {
    /// Share of memory that is pinned in the long run.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Frames of a buffer that is pinned as a whole.
    #[schemars(range(min = 1, max = 512))]
    pub buffer: u32,
    /// Mean lifetime of a pin; exponential.
    #[schemars(extend("x-minimum" = "1ns", "x-maximum" = "24h"))]
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
    /// Checks what the ranges of single values leave open.
    ///
    /// # Errors
    /// A sentence that names the key and its value.
    pub fn check(&self) -> Result<(), String> {
        for (i, source) in self.kernel.iter().enumerate() {
            check_weights(&format!("kernel[{i}].orders"), &source.orders)?;
            check_weights(&format!("kernel[{i}].lifetimes"), &source.lifetimes)?;
            if let Some(order) = source.orders.iter().find(|order| order.value > 10) {
                let value = order.value;
                return Err(format!(
                    "kernel[{i}].orders has {value}; orders are 0 to 10"
                ));
            }
            if source.lifetimes.iter().any(|time| time.value.get() == 0) {
                return Err(format!("kernel[{i}].lifetimes has 0; it is a time above 0"));
            }
        }
        Ok(())
    }
}

/// Tenants that a server can have at a time.
pub(super) const MOST_TENANTS: u32 = 64;

fn check_weights<T>(key: &str, values: &[Weighted<T>]) -> Result<(), String> {
    if values.iter().any(|weighted| weighted.weight > 0.0) {
        Ok(())
    } else {
        Err(format!("{key} needs a weight above 0"))
    }
}
