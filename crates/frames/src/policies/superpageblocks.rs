//! Superpageblocks (R. van Riel, "1GB superpageblock memory allocation", RFC of 30 April 2026, and
//! "mm: reliable 1GB page allocation", RFC of 20 May 2026): unmovable and reclaimable memory packs
//! into groups of pageblocks that are tainted already, movable memory into the fullest clean ones.

use contigua_units::{Bytes, Order};

use super::{Candidate, PlacementPolicy, Steering, Verdict, linux};
use crate::Request;
use crate::block::MigrateType;

/// Size of superpageblocks, and what movable memory leaves free in tainted ones.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "superpageblocks")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Config {
    /// Size of a superpageblock: 1 GB in the RFC; smaller ones scale it to smaller memory.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("x-minimum" = "4MiB", "x-maximum" = "1TiB", "x-power-of-two" = true))
    )]
    pub size: Bytes,
    /// Free pageblocks that a tainted superpageblock keeps for unmovable and reclaimable memory, in
    /// percent of its pageblocks, rounded up: 3 % in April's 24th patch.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 50.0)))]
    pub reserve_percent: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            size: Bytes::new(1 << 30),
            reserve_percent: 3.0,
        }
    }
}

impl PlacementPolicy for Config {
    /// Types mix as a last resort; a movable pageblock that gets unmovable memory changes its type, so
    /// that its superpageblock is known to be tainted.
    fn verdict(&self, home: MigrateType, request: &Request, candidate: &Candidate) -> Verdict {
        let may_mix = request.last_resort || request.atomic;
        if candidate.order >= Order::HUGE_2M || !may_mix {
            return Verdict::Refuse;
        }
        match linux::verdict(home, request, candidate) {
            Verdict::Refuse => Verdict::Refuse,
            _ if home != MigrateType::Movable => Verdict::Claim,
            verdict => verdict,
        }
    }

    fn has_last_resort(&self) -> bool {
        true
    }

    fn steering(&self) -> Option<Steering> {
        let blocks = self.size.get() / Order::HUGE_2M.bytes();
        Some(Steering {
            blocks: blocks as u32,
            reserve_permille: (self.reserve_percent * 10.0) as u32,
        })
    }
}
