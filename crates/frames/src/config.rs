//! Settings of the kernel's memory management, and the costs of its work.

use contigua_units::{Bytes, Nanoseconds};

/// Settings with Linux's defaults. Sources: `Documentation/admin-guide/sysctl/vm.rst` and
/// `mm/page_alloc.c`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "memory")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Config {
    /// `vm.min_free_kbytes`: what is kept for requests that cannot wait. By default the square
    /// root of 16 times the memory in KB, as Linux computes it.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0B", "x-maximum" = "1TiB")))]
    pub min_free: Option<Bytes>,
    /// `vm.watermark_scale_factor`: distance between watermarks, in 1/10,000 of memory.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 3000)))]
    pub watermark_scale: u32,
    /// `vm.watermark_boost_factor`: how far the high watermark rises, in 1/10,000 of itself, when
    /// a request had to be served from a block of another type.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100_000)))]
    pub watermark_boost: u32,
    /// True if such a boost wakes background reclaim at once, and that, when it is done, compaction
    /// of a pageblock. Linux does both since 5.0.
    pub boosts_wake: bool,
    /// `vm.compaction_proactiveness`: 0 (off) to 100.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub compaction_proactiveness: u32,
    /// `transparent_hugepage/defrag`: what a page fault does for a 2 MB page when no block is free.
    pub defrag: Defrag,
    /// `fault_around_bytes` (debugfs): how much a read fault in a mapping of a file maps around the
    /// page, at most. Rounded down to a power of two, and at least a page, as Linux does.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0B", "x-maximum" = "2MiB")))]
    pub fault_around: Bytes,
    /// `vm.swappiness`: 0 (never swap) to 200. A server without swap has 0.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 200)))]
    pub swappiness: u32,
    /// Frames that a CPU's list takes from or gives to the free lists at once; 0 for no lists.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 65_536)))]
    pub per_cpu_batch: u32,
    /// Frames on all of a CPU's lists above which the one that a frame came to gives a batch back.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_048_576)))]
    pub per_cpu_high: u32,
    /// Costs of the kernel's work.
    pub costs: Costs,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_free: None,
            watermark_scale: 10,
            watermark_boost: 15_000,
            boosts_wake: true,
            compaction_proactiveness: 20,
            defrag: Defrag::default(),
            fault_around: Bytes::new(64 << 10),
            swappiness: 0,
            per_cpu_batch: 63,
            per_cpu_high: 4 * 63,
            costs: Costs::default(),
        }
    }
}

/// The values of `transparent_hugepage/defrag` (`Documentation/admin-guide/mm/transhuge.rst`; the
/// code is `vma_thp_gfp_mask` in `mm/huge_memory.c`). `khugepaged/defrag` is 1, as by default.
///
/// Linux's default is `madvise`: a server that is full of files then maps no huge pages at faults
/// outside of `MADV_HUGEPAGE`. Designs here wake compaction unless they say otherwise, as the
/// servers of the papers get huge pages when memory is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Defrag {
    /// Compact directly.
    Always,
    /// Wake `kswapd` and `kcompactd`.
    Defer,
    /// Compact directly in memory with `MADV_HUGEPAGE`, wake them elsewhere.
    #[cfg_attr(feature = "serde", serde(rename = "defer+madvise"))]
    #[default]
    DeferMadvise,
    /// Compact directly in memory with `MADV_HUGEPAGE`, do nothing elsewhere.
    Madvise,
    /// Do nothing.
    Never,
}

/// Effort to get a 2 MB block when none is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Nothing.
    None,
    /// Background reclaim and compaction are woken.
    Background,
    /// The task compacts memory itself.
    Direct,
}

impl Defrag {
    /// Effort of a fault in memory with `MADV_HUGEPAGE`, or without.
    #[must_use]
    pub const fn effort(self, is_advised: bool) -> Effort {
        match self {
            Self::Always => Effort::Direct,
            Self::DeferMadvise | Self::Madvise if is_advised => Effort::Direct,
            Self::Defer | Self::DeferMadvise => Effort::Background,
            Self::Madvise | Self::Never => Effort::None,
        }
    }
}

/// Time that a task is stalled for each unit of the kernel's work that it does or waits for.
/// The defaults are our choice, of the order that Linux shows on current servers.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Costs {
    /// Looking at a frame in reclaim or compaction.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub scan: Nanoseconds,
    /// Unmapping and freeing a frame in reclaim.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub reclaim: Nanoseconds,
    /// Moving a 4 KB page by software: 2 us of copying, and a shootdown.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub migrate: Nanoseconds,
    /// Waiting for memory that somebody else frees: a request that found none even after reclaim.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub wait: Nanoseconds,
    /// Reading a piece of a file again that reclaim took although it was in use: a random read of a
    /// solid-state drive.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s")))]
    pub refault: Nanoseconds,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            scan: Nanoseconds::new(100),
            reclaim: Nanoseconds::new(1_000),
            migrate: Nanoseconds::new(4_000),
            wait: Nanoseconds::new(1_000_000),
            refault: Nanoseconds::new(100_000),
        }
    }
}
