//! From virtual to physical addresses, as hardware does it.
//!
//! An access asks the [`Mmu`], which answers from the L1 TLBs without leaving inlined code. A miss
//! goes to the [`Translator`] of the design under study; what that does is the point of the whole
//! simulator, so there is one file for each in [`schemes`].

#![forbid(unsafe_code)]

mod mmu;
mod radix;
pub mod schemes;
mod tlb;
mod walk_cache;

pub use mmu::{Lookup, Mmu, MmuCounters, SideCounters};
pub use radix::Radix;
pub use schemes::{BackgroundPass, SchemeConfig};
pub use tlb::{L1Config, L2Config, TlbConfig};
pub use walk_cache::{WalkCache, WalkCacheConfig};

use contigua_paging::{Leaf, PageTable, SpaceId};
use contigua_units::{Cycles, PhysAddr, VirtAddr, VirtRange};
use serde::Serialize;

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
    /// Two L2 TLBs hold the same size of page.
    #[error("tlb.l2 holds {0} pages in two arrays; name each size once")]
    HeldTwice(&'static str),
}

/// What the program does with the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

/// A translation that the L1 TLB does not have.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The address.
    pub address: VirtAddr,
    /// Whose.
    pub space: SpaceId,
    /// What for.
    pub access: Access,
}

/// What a translator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// The page, for the L1 TLB.
    Page {
        /// The translation.
        leaf: Leaf,
        /// Time since the L1 TLB missed.
        latency: Cycles,
        /// Page tables were read.
        walked: bool,
    },
    /// The tables have no translation that allows the access.
    Fault {
        /// Time until that was known.
        latency: Cycles,
    },
}

/// What an L1 miss came to, after the L1 TLB has been filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The physical address.
    Translated {
        /// Where the access goes.
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
    },
}

/// Through which a walker reads page-table entries.
pub trait MemoryPort {
    /// Reads the entry at an address; how long that takes.
    fn reference(&mut self, address: PhysAddr) -> Cycles;
}

/// What a translator did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TranslatorCounters {
    /// Misses that the L2 TLB answered, 4 KB pages.
    pub l2_hits_4k: u64,
    /// The same, 2 MB pages.
    pub l2_hits_2m: u64,
    /// The same, 1 GB pages.
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
    /// Walks that began below the PML4 entry: the deepest hit was a PML4E, ...
    pub walk_cache_hits_pml4e: u64,
    /// ... a PDPTE, ...
    pub walk_cache_hits_pdpte: u64,
    /// ... a PDE.
    pub walk_cache_hits_pde: u64,
    /// Cycles from the L1 miss to the end of the walk, all walks together.
    pub walk_cycles: Cycles,
}

/// The hardware half of a translation design: what answers an L1 TLB miss.
pub trait Translator: Send {
    /// Translates what the L1 TLB could not.
    fn translate(
        &mut self,
        request: &Request,
        table: &PageTable,
        port: &mut dyn MemoryPort,
    ) -> Translation;

    /// Forgets everything about a range of a space's addresses.
    fn invalidate(&mut self, space: SpaceId, range: VirtRange);

    /// What was done since the counters were reset.
    fn counters(&self) -> TranslatorCounters;

    /// Starts counting anew.
    fn reset_counters(&mut self);

    /// Bits of storage that the hardware takes.
    fn storage_bits(&self) -> u64;
}
