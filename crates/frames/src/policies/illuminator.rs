//! Illuminator (Panwar and others, ASPLOS 2018), as Contiguitas' section 1 describes it: movable
//! and unmovable memory never share a pageblock. A request whose own pageblocks are full takes over
//! a pageblock that is entirely free, or fails until reclaim and compaction have made one.

use contigua_units::Order;

use super::{Candidate, PlacementPolicy, Verdict};
use crate::Request;
use crate::block::MigrateType;

/// Nothing to set.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "illuminator")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Config {}

impl PlacementPolicy for Config {
    fn verdict(&self, home: MigrateType, _: &Request, candidate: &Candidate) -> Verdict {
        if candidate.order >= Order::HUGE_2M {
            return Verdict::Claim;
        }
        // Unmovable and reclaimable memory are alike to a huge page.
        let mixes = (home == MigrateType::Movable) != (candidate.kind == MigrateType::Movable);
        if mixes {
            Verdict::Refuse
        } else {
            Verdict::Borrow
        }
    }
}
