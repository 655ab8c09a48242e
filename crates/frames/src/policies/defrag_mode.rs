//! Linux's placement under `vm.defrag_mode` (Linux 6.15, commits e3aa7df331bc and 101f9d666e4d): a
//! request takes over pageblocks that are entirely free, and mixes types only when reclaim and
//! compaction have made none. The kernel's threads keep the high watermark free in whole pageblocks.

use contigua_units::Order;

use super::{Candidate, PlacementPolicy, Verdict, linux};
use crate::Request;
use crate::block::MigrateType;

/// Choices of the mode.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "defrag-mode")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Config {
    /// Requests that cannot wait mix types at once, as nobody reclaims for them (a fix proposed in
    /// May 2026). Without it they fail, as in Linux 6.15.
    pub atomic_falls_back: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            atomic_falls_back: true,
        }
    }
}

impl PlacementPolicy for Config {
    fn verdict(&self, home: MigrateType, request: &Request, candidate: &Candidate) -> Verdict {
        // `ALLOC_NOFRAGMENT`: nothing smaller than a pageblock.
        let may_mix = request.last_resort || request.atomic && self.atomic_falls_back;
        if candidate.order < Order::HUGE_2M && !may_mix {
            return Verdict::Refuse;
        }
        linux::verdict(home, request, candidate)
    }

    fn defragments(&self) -> bool {
        true
    }

    fn has_last_resort(&self) -> bool {
        true
    }
}
