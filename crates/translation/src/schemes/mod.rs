//! The translation designs that can be compared: one file each, listed here.
//!
//! A scheme's file holds its configuration with defaults, its hardware half (a [`Translator`])
//! and, where the operating system takes part, its mapping half (a [`MappingPolicy`]). To add one,
//! write its file and add its line to the list below.

use std::ops::Deref;

use contigua_paging::{AreaShape, Eligible, Hashing, MappingPolicy, Pick, RestSegPlan};
use contigua_units::ranges::Validate;
use contigua_units::{Bytes, Nanoseconds, PageSize};
use serde::{Deserialize, Serialize};

use crate::{Error, Hardware, Translator};

/// Interval and extent of the kernel's background pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundPass {
    /// Time from one step to the next.
    pub interval: Nanoseconds,
    /// 4 KB pages looked at in a step.
    pub pages: u64,
}

/// Regular work of the kernel for its mapping half, beside the background pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Pages of 1 GB made in the background.
    pub giants: Option<Giants>,
    /// Looks at accessed bits.
    pub look: Option<Look>,
    /// Recovery of zeros in huge pages.
    pub recovery: Option<Recovery>,
    /// Time after which pages that hardware found costly to translate move into a restrictive segment.
    pub costly_pages: Option<Nanoseconds>,
    /// Free 4 KB pages that are zeroed in a second.
    pub zeroed_per_second: u64,
}

/// Pages of 1 GB made in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Giants {
    /// Time from one pass to the next.
    pub interval: Nanoseconds,
    /// Pages that a pass makes of a process at most.
    pub pages: u32,
    /// Order in which ranges are emptied.
    pub pick: Pick,
    /// Frames that may move for one.
    pub most_moves: u32,
}

/// Looks at accessed bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Time from the start of one to that of the next.
    pub interval: Nanoseconds,
    /// Time from its start, which clears the bits, to its end, which counts them.
    pub window: Nanoseconds,
    /// Weight of the newest count in the averages.
    pub newest_percent: u32,
}

/// Recovery of zeros in huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Time from one check of memory to the next.
    pub interval: Nanoseconds,
    /// Memory in use above which it begins, in percent.
    pub above_percent: u32,
    /// Memory in use down to which it goes on, in percent.
    pub until_percent: u32,
    /// Small pages of a huge one that must hold zeros.
    pub least_zeros: u32,
}

/// Huge pages that the kernel sets aside at boot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReservedPages {
    /// Their size.
    pub size: PageSize,
    /// Share of memory, 0 to 1.
    pub share: f64,
}

/// The region in which a process's memory is placed, and the segment that maps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrimaryRegion {
    /// Memory that is placed there.
    pub eligible: Eligible,
    /// Contiguous memory that is taken for a segment, as a share of all memory, 0 to 1; `None` for
    /// a region that is only paged.
    pub chunk: Option<f64>,
    /// The chunk is taken when the process begins; else when it first touches the region.
    pub at_start: bool,
    /// By how much the segment grows at a time.
    pub step: Bytes,
}

/// A translation design: what its `Config` provides.
///
/// Its parameters' ranges are in its JSON schema; [`Mmu::new`](crate::Mmu::new) and the readers of
/// files refuse values outside of them ([`Validate`]).
pub trait Scheme: Validate {
    /// The hardware half: what answers misses of the L1 TLBs.
    ///
    /// # Errors
    /// [`Error`], when a geometry is impossible.
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error>;

    /// The mapping half: what the kernel maps.
    fn policy(&self) -> Box<dyn MappingPolicy>;

    /// Page directories need shadows: the mapping half perforates pages.
    fn has_shadows(&self) -> bool {
        false
    }

    /// Hashed tables, in place of the tree of a machine's own kernel. A host of virtual machines has trees.
    fn hashing(&self) -> Option<Hashing> {
        None
    }

    /// Areas in which the last nodes of tables lie in order; in a virtual machine or not.
    fn areas(&self, is_guest: bool) -> Option<AreaShape> {
        let _ = is_guest;
        None
    }

    /// Pages are placed by hashes of their numbers, in buckets of the server's memory.
    fn places_by_hash(&self) -> bool {
        false
    }

    /// Restrictive segments, of a server with this memory.
    fn rest_segs(&self, memory: Bytes) -> Vec<RestSegPlan> {
        let _ = memory;
        Vec::new()
    }

    /// The primary region that the mapping half asks for.
    fn primary(&self) -> Option<PrimaryRegion> {
        None
    }

    /// The huge pages that the mapping half wants set aside.
    fn reserved(&self) -> Option<ReservedPages> {
        None
    }

    /// The background pass that the mapping half asks for.
    fn background(&self) -> Option<BackgroundPass> {
        None
    }

    /// Other regular work of the kernel that the mapping half asks for.
    fn upkeep(&self) -> Upkeep {
        Upkeep::default()
    }

    /// The hardware half makes predictions of branches ([`Request::branches`](crate::Request::branches)).
    fn follows_branches(&self) -> bool {
        false
    }

    /// Bits of registers that a hardware thread has for it, beside what [`Translator`] counts.
    fn register_bits(&self) -> u64 {
        0
    }
}

/// Makes the modules, the configuration enum, its constructors and the list of names.
macro_rules! schemes {
    ($($(#[$doc:meta])* $module:ident: $variant:ident, $name:literal;)*) => {
        $(pub mod $module;)*

        /// Scheme and its parameters: the table `[translation.NAME]` of a design.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
        pub enum SchemeConfig {
            $($(#[$doc])* #[serde(rename = $name)] $variant($module::Config),)*
        }

        impl SchemeConfig {
            /// Names of all schemes.
            pub const NAMES: &[&str] = &[$($name,)*];

        }

        impl Deref for SchemeConfig {
            type Target = dyn Scheme;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$variant(config) => config,)*
                }
            }
        }
    };
}

mod grouped;
pub mod mthp;

schemes! {
    /// 4 KB pages only.
    base: Base, "base";
    /// Transparent huge pages.
    thp: Thp, "thp";
    /// Huge pages set aside at boot.
    hugetlb: Hugetlb, "hugetlb";
    /// 2 MB pages with holes.
    perforated: Perforated, "perforated";
    /// BASE, LIMIT and OFFSET.
    direct_segment: DirectSegment, "direct-segment";
    /// Superpages that step around missing frames.
    gtsm: Gtsm, "gtsm";
    /// TLB entries for runs of pages.
    colt: Colt, "colt";
    /// TLB entries for aligned groups that the walker finds contiguous.
    amd: Amd, "amd-coalescing";
    /// TLB entries for aligned groups that the kernel marks as contiguous.
    arm: Arm, "arm-contiguous";
    /// Pages of any power of two.
    svnapot: Svnapot, "svnapot";
    /// A TLB of ranges beside the L2 TLB.
    range: Range, "range";
    /// A TLB of 16 MB in memory.
    pom_tlb: PomTlb, "pom-tlb";
    /// Offsets that instructions predict.
    spot: Spot, "spot";
    /// Page-table entries that registers tell are prefetched.
    asap: Asap, "asap";
    /// Last page-table entries that registers tell.
    dmt: Dmt, "dmt";
    /// Hashed page tables that are read at once.
    ecpt: Ecpt, "ecpt";
    /// An open hashed page table.
    hdc: Hdc, "hdc";
    /// Huge pages of ranges that are used, made in the background.
    ingens: Ingens, "ingens";
    /// Huge pages of ranges that are accessed most, and recovery of zeros.
    hawkeye: Hawkeye, "hawkeye";
    /// Pages of all three sizes, at faults and in the background.
    trident: Trident, "trident";
    /// A queue of prefetched translations.
    atp_sbfp: AtpSbfp, "atp-sbfp";
    /// Translations in lines of the L2 cache.
    victima: Victima, "victima";
    /// L2 TLB entries that signatures of control flow replace.
    chirp: Chirp, "chirp";
    /// TLB entries for pages that hashes place.
    mosaic: Mosaic, "mosaic";
    /// Part of memory is set-associative.
    utopia: Utopia, "utopia";
    /// Ideal translation without latency: the upper bound.
    perfect: Perfect, "perfect";
}
