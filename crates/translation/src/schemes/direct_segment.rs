//! Direct segments (the Direct Segments paper): BASE, LIMIT and OFFSET registers beside the
//! first-level data TLB.
//!
//! The registers themselves are in [`Mmu`](crate::Mmu): what they map never gets here. Behind them
//! is conventional hardware for everything else. In a virtual machine the registers can hold the
//! guest's segment, the host's, or both composed; which, follows from whether guest, host or both
//! use this scheme (Direct Segments, section 6).

use contigua_paging::{CollapseContext, Eligible, FaultContext, MappingPolicy};
use contigua_units::{Bytes, PageSize};
use serde::{Deserialize, Serialize};

use super::{PrimaryRegion, Scheme};
use crate::{Error, Hardware, Radix, Translator};

/// Memory placed in a primary region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Memory that the program requests there (`MAP_HUGETLB` stands for the paper's flag).
    OptIn,
    /// All private anonymous memory that may be written.
    OptOut,
}

/// Source of contiguous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Set aside when the process begins (the paper's prototype).
    Reservation,
    /// Made by compaction at the first touch of the region.
    Compaction,
}

/// Use of segments by the operating system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "direct-segment")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Memory placed in the primary region.
    pub policy: Policy,
    /// Source of its memory.
    pub source: Source,
    /// Most memory for the segment, as a share of all memory, 0 to 1. Where less is contiguous,
    /// the segment is smaller and the rest is paged.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// By how much the segment grows when the program first touches memory behind its end.
    #[schemars(extend("x-minimum" = "2MiB", "x-maximum" = "1GiB"))]
    pub step: Bytes,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::OptOut,
            source: Source::Reservation,
            share: 0.75,
            step: Bytes::new(PageSize::Size2M.bytes()),
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Radix::new(hardware)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(Paged)
    }

    fn primary(&self) -> Option<PrimaryRegion> {
        Some(PrimaryRegion {
            eligible: match self.policy {
                Policy::OptIn => Eligible::OnRequest,
                Policy::OptOut => Eligible::ByDefault,
            },
            chunk: Some(self.share),
            at_start: self.source == Source::Reservation,
            step: self.step,
        })
    }

    fn register_bits(&self) -> u64 {
        REGISTER_BITS
    }
}

/// Policy with pages of 4 KB outside the segment.
struct Paged;

impl MappingPolicy for Paged {
    fn on_fault(&self, _: &FaultContext) -> PageSize {
        PageSize::Size4K
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }
}

/// Bits of the registers of a hardware thread: three page numbers of 52 bits.
const REGISTER_BITS: u64 = 3 * 52;
