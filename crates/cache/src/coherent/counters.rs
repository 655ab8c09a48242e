//! Counters of a server's memory.

use serde::Serialize;

use super::DramCounters;
use crate::{LevelCounters, ServedBy};

/// Counters of coherence, prefetching and migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, contigua_state::Plain)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CoherenceCounters {
    /// Writes to lines that the core had only to read.
    pub upgrades: u64,
    /// Copies that cores lost because another one writes.
    pub invalidations: u64,
    /// Lines that came from another core's caches.
    pub cache_to_cache: u64,
    /// Copies that cores lost because the last level or its directory had no room.
    pub back_invalidations: u64,
    /// Lines that were prefetched.
    pub prefetches: u64,
    /// Of those, lines that were used.
    pub prefetches_used: u64,
    /// Pages that were translated ahead, so that prefetches go on in them.
    #[serde(default)]
    pub pages_ahead: u64,
    /// Lines that devices read.
    pub device_reads: u64,
    /// Lines that devices wrote.
    pub device_writes: u64,
    /// Requests that a migration sent to its destination.
    pub redirected: u64,
    /// Copies under the other address that a migration took away.
    pub alias_recalls: u64,
    /// Requests that a migration let no private cache keep.
    pub uncached: u64,
    /// Lines that migrations copied.
    pub lines_migrated: u64,
}

/// Traffic that the table of migrations causes, beside what [`CoherenceCounters`] has of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, contigua_state::Plain)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigrationTraffic {
    /// Requests, write-backs and evictions for which the table was searched. Without an entry, it
    /// is not.
    pub lookups: u64,
    /// Energy of these look-ups.
    pub lookup_picojoules: u64,
    /// Requests and write-backs that went on to the home of their line under the other address: a
    /// message each.
    pub forwarded: u64,
    /// Lines that copies read from memory, because the last level did not have them.
    pub copies_from_memory: u64,
}

/// Counters of a server's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryCounters {
    /// L1 instruction caches, all cores together.
    pub l1i: LevelCounters,
    /// L1 data caches.
    pub l1d: LevelCounters,
    /// Second levels.
    pub l2: LevelCounters,
    /// Last level.
    pub llc: LevelCounters,
    /// Levels that served instruction fetches. Other cores' caches count as the last level.
    pub fetches: ServedBy,
    /// Levels that served loads and stores.
    pub data: ServedBy,
    /// Levels that served page walks.
    pub walks: ServedBy,
    /// Coherence, prefetching, migration.
    pub coherence: CoherenceCounters,
    /// Memory.
    pub dram: DramCounters,
}
