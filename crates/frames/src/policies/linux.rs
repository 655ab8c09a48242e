//! Linux's placement (`mm/page_alloc.c`, 5.12 to 6.12): pageblocks have types, and a request whose
//! own type has run out takes from others, whole pageblocks if that seems worth it.

use contigua_units::Order;

use super::{Candidate, PlacementPolicy, Verdict};
use crate::Request;
use crate::block::{BLOCK_FRAMES, MigrateType};

/// Nothing to set.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "linux")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Config {}

impl PlacementPolicy for Config {
    fn verdict(&self, home: MigrateType, request: &Request, candidate: &Candidate) -> Verdict {
        verdict(home, request, candidate)
    }
}

/// Linux's `can_steal_fallback` and `steal_suitable_fallback`.
pub(super) fn verdict(home: MigrateType, request: &Request, candidate: &Candidate) -> Verdict {
    if candidate.order >= Order::HUGE_2M {
        return Verdict::Claim;
    }
    // Below half a pageblock, only types that pollute are worth a pageblock of their own.
    let half = Order::new(Order::HUGE_2M.get() / 2);
    let worth_it = candidate.order >= half || home != MigrateType::Movable;
    if !worth_it {
        let smaller = candidate.order > request.order;
        return if smaller {
            Verdict::BorrowSmallest
        } else {
            Verdict::Borrow
        };
    }
    // Frames that would be at home in the pageblock after it has changed its type.
    let alike = match (home, candidate.kind) {
        (MigrateType::Movable, _) => candidate.movable,
        (_, MigrateType::Movable) => candidate.unmovable,
        // Between unmovable and reclaimable nobody can tell.
        _ => 0,
    };
    if candidate.free + alike >= BLOCK_FRAMES / 2 {
        Verdict::Claim
    } else {
        Verdict::Borrow
    }
}
