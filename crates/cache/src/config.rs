//! Configuration of caches and memory, and their counters.

use contigua_state::Plain;
use contigua_units::{Bytes, Cycles, Nanoseconds};
use derive_more::AddAssign;
use serde::{Deserialize, Serialize};

use crate::coherent::{DramConfig, PrefetchConfig, SharedConfig};

/// One level of cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LevelConfig {
    /// Capacity.
    pub size: Bytes,
    /// Lines of a set.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 16_384)))]
    pub ways: u32,
    /// From the core's request to the data, when this level has it.
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = 1_073_741_824)))]
    pub latency_cycles: Cycles,
}

/// All levels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HierarchyConfig {
    /// Instructions.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("properties" = {"size": {"x-minimum": "64B", "x-maximum": "1MiB"}}))
    )]
    pub l1i: LevelConfig,
    /// Data.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("properties" = {"size": {"x-minimum": "64B", "x-maximum": "1MiB"}}))
    )]
    pub l1d: LevelConfig,
    /// Private second level.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("properties" = {"size": {"x-minimum": "64B", "x-maximum": "16MiB"}}))
    )]
    pub l2: LevelConfig,
    /// Last level.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("properties" = {"size": {"x-minimum": "64B", "x-maximum": "1280MiB"}}))
    )]
    pub llc: LevelConfig,
    /// From the core's request to the data, when no cache has it and no row of DRAM is open.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub memory_latency: Nanoseconds,
    /// The last level that cores share.
    pub shared: SharedConfig,
    /// Prefetchers.
    pub prefetch: PrefetchConfig,
    /// Memory.
    pub dram: DramConfig,
}

/// Access type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Instruction fetch.
    Fetch,
    /// A load.
    Read,
    /// A store.
    Write,
    /// The page walker.
    Walk,
}

/// Requests by the level that had the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServedBy {
    /// The first level.
    pub l1: u64,
    /// The second level.
    pub l2: u64,
    /// The last level.
    pub llc: u64,
    /// DRAM.
    pub memory: u64,
}

/// Counters of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Plain)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LevelCounters {
    /// Look-ups that found their line.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Dirty lines that were evicted to the next level.
    pub write_backs: u64,
}
