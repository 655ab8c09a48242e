//! The path from one core to memory: L1 I and D, L2, LLC, DRAM, the quick way: latencies add up,
//! and nobody shares anything.
//!
//! L2 and LLC neither include nor exclude what lies above them (they are filled on the way in and
//! keep or lose lines by their own order of use), which is between the inclusive LLCs of older
//! server parts and the victim LLCs of newer ones. A dirty line that a level evicts goes to the
//! next one. Page walks enter at the L1 D cache, as on Intel processors. Latencies are from the
//! core to the level that has the line; DRAM takes a fixed time.

use contigua_units::{Bytes, Cycles, Megahertz, Nanoseconds, PhysAddr};
use serde::{Deserialize, Serialize};

use crate::coherent::{DramConfig, PrefetchConfig, SharedConfig};
use crate::{Cache, Error, LevelCounters};

/// One level of cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LevelConfig {
    /// Capacity.
    pub size: Bytes,
    /// Lines of a set.
    pub ways: u32,
    /// From the core's request to the data, when this level has it.
    pub latency_cycles: Cycles,
}

/// All levels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HierarchyConfig {
    /// Instructions.
    pub l1i: LevelConfig,
    /// Data.
    pub l1d: LevelConfig,
    /// Private second level.
    pub l2: LevelConfig,
    /// Last level.
    pub llc: LevelConfig,
    /// From the core's request to the data, when no cache has it and no row of DRAM is open.
    pub memory_latency: Nanoseconds,
    /// How cores share the last level.
    pub shared: SharedConfig,
    /// What is fetched before it is needed.
    pub prefetch: PrefetchConfig,
    /// Memory.
    pub dram: DramConfig,
}

/// Who asks for a line.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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

/// What the hierarchy did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HierarchyCounters {
    /// L1 instruction cache.
    pub l1i: LevelCounters,
    /// L1 data cache.
    pub l1d: LevelCounters,
    /// Second level.
    pub l2: LevelCounters,
    /// Last level.
    pub llc: LevelCounters,
    /// Where instruction fetches found their line.
    pub fetches: ServedBy,
    /// Where loads and stores found their line.
    pub data: ServedBy,
    /// Where page walks found their entry.
    pub walks: ServedBy,
    /// Lines read from DRAM.
    pub memory_reads: u64,
    /// Lines written to DRAM.
    pub memory_writes: u64,
}

/// The caches of one core, and memory behind them.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    l1i: Cache,
    l1d: Cache,
    l2: Cache,
    llc: Cache,
    latency: Latencies,
    fetches: ServedBy,
    data: ServedBy,
    walks: ServedBy,
    memory_reads: u64,
    memory_writes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Latencies {
    l1i: Cycles,
    l1d: Cycles,
    l2: Cycles,
    llc: Cycles,
    memory: Cycles,
}

impl Hierarchy {
    /// Empty caches on a core of this clock.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn new(config: &HierarchyConfig, clock: Megahertz) -> Result<Self, Error> {
        let level = |what, level: &LevelConfig| Cache::new(what, level.size, level.ways);
        Ok(Self {
            l1i: level("cache.l1i", &config.l1i)?,
            l1d: level("cache.l1d", &config.l1d)?,
            l2: level("cache.l2", &config.l2)?,
            llc: level("cache.llc", &config.llc)?,
            latency: Latencies {
                l1i: config.l1i.latency_cycles,
                l1d: config.l1d.latency_cycles,
                l2: config.l2.latency_cycles,
                llc: config.llc.latency_cycles,
                memory: config.memory_latency.at(clock),
            },
            fetches: ServedBy::default(),
            data: ServedBy::default(),
            walks: ServedBy::default(),
            memory_reads: 0,
            memory_writes: 0,
        })
    }

    /// Latency of a first-level hit: what a core's pipeline expects.
    #[must_use]
    pub fn first_level_latency(&self, kind: AccessKind) -> Cycles {
        match kind {
            AccessKind::Fetch => self.latency.l1i,
            _ => self.latency.l1d,
        }
    }

    /// Brings the line of `address` in and says how long that takes beyond a first-level hit;
    /// for the page walker, which has no pipeline to hide it, the whole latency.
    #[inline]
    pub fn access(&mut self, address: PhysAddr, kind: AccessKind) -> Cycles {
        let line = address.line();
        match kind {
            AccessKind::Fetch => {
                if self.l1i.access(line, false) {
                    self.fetches.l1 += 1;
                    return Cycles::ZERO;
                }
                self.miss(line, kind)
            }
            AccessKind::Read | AccessKind::Write => {
                if self.l1d.access(line, kind == AccessKind::Write) {
                    self.data.l1 += 1;
                    return Cycles::ZERO;
                }
                self.miss(line, kind)
            }
            AccessKind::Walk => {
                if self.l1d.access(line, false) {
                    self.walks.l1 += 1;
                    return self.latency.l1d;
                }
                self.latency.l1d + self.miss(line, kind)
            }
        }
    }

    #[inline(never)]
    fn miss(&mut self, line: u64, kind: AccessKind) -> Cycles {
        let write = kind == AccessKind::Write;
        let served = match kind {
            AccessKind::Fetch => &mut self.fetches,
            AccessKind::Read | AccessKind::Write => &mut self.data,
            AccessKind::Walk => &mut self.walks,
        };
        let latency = if self.l2.access(line, false) {
            served.l2 += 1;
            self.latency.l2
        } else {
            let latency = if self.llc.access(line, false) {
                served.llc += 1;
                self.latency.llc
            } else {
                served.memory += 1;
                self.memory_reads += 1;
                if self.llc.fill(line, false).is_some() {
                    self.memory_writes += 1;
                }
                self.latency.memory
            };
            if let Some(dirty) = self.l2.fill(line, false) {
                self.write_back_to_llc(dirty);
            }
            latency
        };
        let (first, expected) = match kind {
            AccessKind::Fetch => (&mut self.l1i, self.latency.l1i),
            _ => (&mut self.l1d, self.latency.l1d),
        };
        if let Some(dirty) = first.fill(line, write)
            && let Some(dirty) = self.l2.write_back(dirty)
        {
            self.write_back_to_llc(dirty);
        }
        Cycles::new(latency.get().saturating_sub(expected.get()))
    }

    fn write_back_to_llc(&mut self, line: u64) {
        if self.llc.write_back(line).is_some() {
            self.memory_writes += 1;
        }
    }

    /// What the hierarchy did since its counters were reset.
    #[must_use]
    pub fn counters(&self) -> HierarchyCounters {
        HierarchyCounters {
            l1i: self.l1i.counters(),
            l1d: self.l1d.counters(),
            l2: self.l2.counters(),
            llc: self.llc.counters(),
            fetches: self.fetches,
            data: self.data,
            walks: self.walks,
            memory_reads: self.memory_reads,
            memory_writes: self.memory_writes,
        }
    }

    /// Starts counting anew; the caches keep what they hold.
    pub fn reset_counters(&mut self) {
        for cache in [&mut self.l1i, &mut self.l1d, &mut self.l2, &mut self.llc] {
            cache.reset_counters();
        }
        self.fetches = ServedBy::default();
        self.data = ServedBy::default();
        self.walks = ServedBy::default();
        self.memory_reads = 0;
        self.memory_writes = 0;
    }

    /// Checks the arrays' invariants.
    ///
    /// # Errors
    /// A sentence that names the level and the set.
    pub fn validate(&self) -> Result<(), String> {
        let levels = [
            ("L1I", &self.l1i),
            ("L1D", &self.l1d),
            ("L2", &self.l2),
            ("LLC", &self.llc),
        ];
        for (name, level) in levels {
            level
                .validate()
                .map_err(|problem| format!("{name}: {problem}"))?;
        }
        Ok(())
    }
}
