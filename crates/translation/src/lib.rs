//! From virtual to physical addresses, as hardware does it.
//!
//! An access asks the [`Mmu`], which answers from the L1 TLBs without leaving inlined code. A miss
//! goes to the [`Translator`] of the design under study; what that does is the point of the whole
//! simulator, so there is one file for each in [`schemes`].

#![forbid(unsafe_code)]

#[allow(
    unused_extern_crates,
    reason = "so that a scheme's file is the same inside and outside"
)]
extern crate self as contigua_translation;

mod lines;
mod mmu;
mod radix;
pub mod schemes;
mod tlb;
mod walk_cache;
mod walker;

pub use lines::TranslationLines;
pub use mmu::{Lookup, MissCounters, Mmu, MmuCounters, SideCounters};
pub use radix::{Radix, allows, behind, page};
pub use schemes::thp::ShmemEnabled;
pub use schemes::{
    BackgroundPass, Giants, Look, PrimaryRegion, Recovery, ReservedPages, Scheme, SchemeConfig,
    Upkeep,
};
pub use tlb::{Evicted, L1Config, L2Config, TlbConfig};
pub use walk_cache::{WalkCache, WalkCacheConfig};
pub use walker::NestedConfig;

use contigua_paging::{HoleBitmaps, Leaf, PageTable, RestSegs, Segment, SpaceId};
use contigua_state::Plain;
use contigua_state::State;
use contigua_units::{Cycles, PhysAddr, VirtAddr, VirtRange};
use derive_more::{AddAssign, SubAssign};
use schemars::JsonSchema;
use serde::Serialize;

/// The structures that the machine gives a translation scheme.
#[derive(Clone, Copy, Debug)]
pub struct Hardware<'a> {
    /// TLBs.
    pub tlb: &'a TlbConfig,
    /// Page-walk caches.
    pub walk_cache: &'a WalkCacheConfig,
    /// Walker of the host's tables, in a virtual machine.
    pub nested: Option<&'a NestedConfig>,
}

/// The tables that translate an access: what the kernel and, in a virtual machine, its host keep
/// in memory.
pub struct Tables<'a> {
    /// The page table of the running process.
    pub table: &'a mut PageTable,
    /// The hole bitmaps of the kernel's memory.
    pub holes: &'a HoleBitmaps,
    /// The segment registers of the running process.
    pub segment: Segment,
    /// Restrictive segments of the kernel's memory.
    pub rest_segs: Option<&'a mut RestSegs>,
    /// The host's, when the kernel runs in a virtual machine.
    pub host: Option<HostTables<'a>>,
}

/// A host's tables for the memory of a virtual machine. Its virtual addresses are the guest's
/// physical ones.
pub struct HostTables<'a> {
    /// The nested page table.
    pub table: &'a mut PageTable,
    /// The hole bitmaps of the host's memory.
    pub holes: &'a HoleBitmaps,
    /// The segment registers for the virtual machine.
    pub segment: Segment,
}

impl Tables<'_> {
    /// Translates an address by the tables alone: the answer required of every translator, in 4 KB
    /// pages. Host pages that are not there yet are `None` too.
    #[must_use]
    pub fn resolve(&self, address: VirtAddr) -> Option<Leaf> {
        let guest = match self.segment.translate(address) {
            Some(physical) => Leaf::new(physical.frame(), contigua_units::PageSize::Size4K, true),
            None => resolve_in(self.table, self.holes, address)?,
        };
        let Some(host) = &self.host else {
            return Some(guest);
        };
        let at = VirtAddr::new(guest.frame.address().get());
        let frame = match host.segment.translate(at) {
            Some(physical) => physical.frame(),
            None => resolve_in(host.table, host.holes, at)?.frame,
        };
        Some(Leaf { frame, ..guest })
    }
}

fn resolve_in(table: &PageTable, holes: &HoleBitmaps, address: VirtAddr) -> Option<Leaf> {
    let leaf = table.leaf(address)?;
    let sub_page = contigua_paging::holes::sub_page(address);
    let is_hole = leaf
        .perforation
        .is_some_and(|filter| filter.has(sub_page) && holes.holes(leaf.frame).has(sub_page));
    if is_hole {
        return table.hole(address);
    }
    Some(leaf.piece(address))
}

/// Why translation hardware cannot be built as described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A structure's geometry is impossible.
    #[error(transparent)]
    Geometry(#[from] contigua_cache::Error),
    /// An L1 TLB has no place for 4 KB pages.
    #[error("tlb.{0} holds no 4 KB pages; give it \"4k\" = {{ entries = ..., ways = ... }}")]
    NoBasePages(&'static str),
    /// A parameter of the scheme is out of range.
    #[error(transparent)]
    Parameter(#[from] contigua_units::ranges::OutOfRange),
    /// Two L2 TLBs hold the same size of page.
    #[error("tlb.l2 holds {0} pages in two arrays; name each size once")]
    HeldTwice(&'static str),
}

/// Access type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

/// Branches that a core executed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Plain)]
pub struct Branches {
    /// Bits 4 to 11 of the addresses of eight conditional ones, the last one in the lowest bits.
    pub conditional: u64,
    /// Those of jumps and calls to places in registers or in memory.
    pub indirect: u64,
}

impl Branches {
    /// No branches.
    pub const NONE: Self = Self {
        conditional: 0,
        indirect: 0,
    };

    /// A history after one more branch.
    #[inline]
    #[must_use]
    pub const fn after(history: u64, address: u64) -> u64 {
        history << 8 | address >> 4 & 0xff
    }
}

/// A translation that the L1 TLB does not have.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The address.
    pub address: VirtAddr,
    /// Address space.
    pub space: SpaceId,
    /// Access type.
    pub access: Access,
    /// Number of the instruction that loads or stores, one for all its executions; 0 where none is known, as for
    /// fetches and for what is translated ahead.
    pub instruction: u64,
    /// Instructions that all cores have executed before, to which a unit relates its misses; 0 where that is not known,
    /// as for what is translated ahead.
    pub position: u64,
    /// The last branches, where the scheme [follows](Scheme::follows_branches) them.
    pub branches: Branches,
}

impl Request {
    /// A request of a space's program.
    #[must_use]
    pub const fn new(address: VirtAddr, space: SpaceId, access: Access) -> Self {
        Self {
            address,
            space,
            access,
            instruction: 0,
            position: 0,
            branches: Branches::NONE,
        }
    }

    /// A request behind some branches.
    #[must_use]
    pub const fn behind(self, branches: Branches) -> Self {
        Self { branches, ..self }
    }

    /// A request after so many instructions.
    #[must_use]
    pub const fn at(self, position: u64) -> Self {
        Self { position, ..self }
    }

    /// A request by an instruction.
    #[must_use]
    pub const fn by(self, instruction: u64) -> Self {
        Self {
            instruction,
            ..self
        }
    }
}

/// Result of a translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The page, for the L1 TLB.
    Page {
        /// The translation.
        leaf: Leaf,
        /// Time since the L1 TLB missed.
        latency: Cycles,
        /// Page tables were read, after the L2 TLB was looked up: that look-up is part of the latency, and
        /// no walk.
        walked: bool,
        /// The whole aligned group around the page is contiguous, as the scheme's
        /// first-level TLB can hold it.
        group: bool,
    },
    /// The tables have no translation that allows the access.
    Fault {
        /// Time until that was known.
        latency: Cycles,
        /// The guest's physical address that the host's tables have no translation for, when that
        /// is why.
        host: Option<PhysAddr>,
    },
}

/// Result of an L1 miss, after the L1 TLB has been filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The physical address.
    Translated {
        /// Physical address of the access.
        physical: PhysAddr,
        /// Time since the L1 TLB missed.
        latency: Cycles,
        /// Page tables were read.
        walked: bool,
    },
    /// The kernel must act, then the access is tried again.
    Fault {
        /// Time until that was known.
        latency: Cycles,
        /// The guest's physical address that the host must map, when it is the host that must
        /// act.
        host: Option<PhysAddr>,
    },
}

/// Through which a walker reads page-table entries.
pub trait MemoryPort {
    /// Reads the entry at an address below [`PhysAddr::END`]; how long that takes.
    fn reference(&mut self, address: PhysAddr) -> Cycles;

    /// Reads entries that do not depend on one another, all at once; how long until the last one is there.
    fn references_at_once(&mut self, addresses: &[PhysAddr]) -> Cycles {
        let latencies = addresses.iter().map(|&address| self.reference(address));
        latencies.max().unwrap_or(Cycles::ZERO)
    }

    /// Reads an entry for which nobody waits: caches hold it then. Caches count no such reads, and memory's
    /// bandwidth is not taken by them.
    fn reference_aside(&mut self, address: PhysAddr) {
        self.reference(address);
    }

    /// The data cache whose lines can hold translations; `None` where there is no cache.
    fn translation_lines(&mut self) -> Option<&mut dyn TranslationLines> {
        None
    }
}

/// A port of walks for which nobody waits: [`MemoryPort::reference_aside`].
pub struct Aside<'a>(pub &'a mut dyn MemoryPort);

impl MemoryPort for Aside<'_> {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.0.reference_aside(address);
        Cycles::ZERO
    }
}

/// Counters of a translator.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, SubAssign, Plain, JsonSchema,
)]
pub struct TranslatorCounters {
    /// Misses that the L2 TLB answered, 4 KB pages.
    pub l2_hits_4k: u64,
    /// L2 TLB hits on 2 MB pages.
    pub l2_hits_2m: u64,
    /// L2 TLB hits on 1 GB pages.
    pub l2_hits_1g: u64,
    /// Walks that found a 4 KB page.
    pub walks_4k: u64,
    /// Walks that found a 2 MB page.
    pub walks_2m: u64,
    /// Walks that found a 1 GB page.
    pub walks_1g: u64,
    /// Walks that ended in a fault.
    pub walks_faulting: u64,
    /// Page-table entries read.
    pub references: u64,
    /// Walks that began below the root: the deepest hit was a PML5E, ...
    pub walk_cache_hits_pml5e: u64,
    /// ... a PML4E, ...
    pub walk_cache_hits_pml4e: u64,
    /// ... a PDPTE, ...
    pub walk_cache_hits_pdpte: u64,
    /// ... a PDE.
    pub walk_cache_hits_pde: u64,
    /// Walks that marked a page as accessed or dirty.
    pub pages_marked: u64,
    /// Host translations that the nested TLB answered.
    pub nested_tlb_hits: u64,
    /// Walks of the host's table.
    pub nested_walks: u64,
    /// Cycles of all walks together, from the miss in the L2 TLB on.
    pub walk_cycles: Cycles,
    /// Those of loads and stores.
    pub data_walk_cycles: Cycles,
    /// Those of instruction fetches.
    pub instruction_walk_cycles: Cycles,
}

impl TranslatorCounters {
    pub(crate) fn found(&mut self, size: contigua_units::PageSize) {
        match size {
            contigua_units::PageSize::Size4K => self.walks_4k += 1,
            contigua_units::PageSize::Size2M => self.walks_2m += 1,
            contigua_units::PageSize::Size1G => self.walks_1g += 1,
        }
    }

    pub(crate) fn hit(&mut self, size: contigua_units::PageSize) {
        match size {
            contigua_units::PageSize::Size4K => self.l2_hits_4k += 1,
            contigua_units::PageSize::Size2M => self.l2_hits_2m += 1,
            contigua_units::PageSize::Size1G => self.l2_hits_1g += 1,
        }
    }
}

/// The hardware half of a translation design: what answers an L1 TLB miss.
pub trait Translator: State + Send {
    /// Translates what the L1 TLB could not.
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation;

    /// Forgets everything about a range of a space's addresses.
    fn invalidate(&mut self, space: SpaceId, range: VirtRange);

    /// Forgets everything: the processor has no address-space identifiers and turns to another
    /// space, or a host has changed its tables.
    fn flush(&mut self);

    /// The first-level TLBs hand over what they evict. Asked once, when the hardware is built.
    fn takes_first_level_evictions(&self) -> bool {
        false
    }

    /// Takes a translation that a first-level TLB evicted while it was filled for an access. What
    /// the L2 TLB evicts, [`Radix::fill`] returns.
    fn first_level_evicted(&mut self, evicted: &Evicted, access: Access) {
        let _ = (evicted, access);
    }

    /// Takes a page that was found costly to translate, for the kernel to move (`Upkeep::costly_pages`).
    fn take_costly_page(&mut self) -> Option<(SpaceId, VirtAddr)> {
        None
    }

    /// log2 of the pages of an aligned group that one entry of the first-level TLBs can hold; 0
    /// when they hold pages only.
    fn group(&self) -> u32 {
        0
    }

    /// Counters of this scheme only, by name.
    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Counters since the last reset.
    fn counters(&self) -> TranslatorCounters;

    /// Starts counting anew.
    fn reset_counters(&mut self);

    /// Bits that the scheme adds to a first-level entry for a page of a size. By default one to
    /// those for 4 KB pages where they can hold groups: it tells the two apart.
    fn first_level_bits(&self, size: contigua_units::PageSize) -> u64 {
        u64::from(size == contigua_units::PageSize::Size4K && self.group() > 0)
    }

    /// Bits of storage that the hardware takes behind the first-level TLBs.
    fn storage_bits(&self) -> u64;
}
