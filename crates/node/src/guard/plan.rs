//! Choice of blocks to move, and refusal of moves.
//!
//! Stock Linux brings any block online in any zone, so the regions need not be contiguous; but free
//! memory is only as contiguous as they are. So blocks on the wrong side of the border go first, the
//! emptiest of them before others, and then those at the border: the lowest movable block, or the
//! highest of the kernel's.
//!
//! A block is refused where the region that loses it would have less available than its high
//! watermark and the reserve, or than its least size; where there would be no room for what is in
//! the block; and where it holds frames that cannot move.

use std::collections::BTreeMap;
use std::fmt;

use contigua_units::{Bytes, PAGE_BYTES};

use super::machine::{Block, Occupancy, Place};
use super::view::{Node, islands};

/// Why nothing is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The region would be left short.
    Short {
        /// The region.
        region: Place,
        /// Memory that it would have available.
        left: Bytes,
        /// Memory that it must have available.
        least: Bytes,
    },
    /// The region would be smaller than the operator allows.
    Small {
        /// The region.
        region: Place,
        /// Its size after the move.
        left: Bytes,
        /// The least size.
        least: Bytes,
    },
    /// The contents of the block do not fit elsewhere.
    NoRoom {
        /// Bytes in use in the block.
        used: Bytes,
        /// Bytes that the other region has beyond its high watermark.
        room: Bytes,
    },
    /// No block of the region can be moved: all hold frames that cannot move, or failed lately.
    NoBlock {
        /// The region.
        region: Place,
    },
}

/// A size as people write it: a tenth of a MiB at most.
#[must_use]
pub fn mib(bytes: Bytes) -> String {
    let tenths = bytes.get() * 10 / (1 << 20);
    if tenths >= 1000 || tenths.is_multiple_of(10) {
        format!("{} MiB", tenths / 10)
    } else {
        format!("{}.{} MiB", tenths / 10, tenths % 10)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short {
                region,
                left,
                least,
            } => write!(
                f,
                "{region} would be left with {} available, less than the {} of its high watermark \
                 and the reserve",
                mib(left),
                mib(least)
            ),
            Self::Small {
                region,
                left,
                least,
            } => write!(
                f,
                "{region} would be left with {}, less than the {} that it must have",
                mib(left),
                mib(least)
            ),
            Self::NoRoom { used, room } => write!(
                f,
                "{} in the block would have to move, and there is room for {}",
                mib(used),
                mib(room)
            ),
            Self::NoBlock { region } => write!(
                f,
                "no block of {region} can be moved: they hold frames that cannot move, or failed \
                 lately"
            ),
        }
    }
}

/// Blocks of a node that could leave a place, the best first. `backs_off` says which failed
/// lately.
#[must_use]
pub fn candidates(node: &Node, from: Place, backs_off: impl Fn(u64) -> bool) -> Vec<u64> {
    let wrong = islands(&node.blocks);
    let mut found: Vec<u64> = node
        .blocks
        .iter()
        .filter(|block| block.place == from && !backs_off(block.number))
        .map(|block| block.number)
        .collect();
    if from == Place::Kernel {
        found.reverse();
    }
    let (mut first, rest): (Vec<u64>, Vec<u64>) =
        found.into_iter().partition(|number| wrong.contains(number));
    first.extend(rest);
    first
}

/// Puts candidates in order by what is in them, and drops those that cannot move; the first
/// `islands` of them are on the wrong side of the border, of which the emptiest is best.
#[must_use]
pub fn rank(
    node: &Node,
    candidates: &[u64],
    census: &BTreeMap<u64, Occupancy>,
) -> Vec<(u64, Occupancy)> {
    let wrong = islands(&node.blocks);
    let mut ranked: Vec<(u64, Occupancy)> = candidates
        .iter()
        .map(|number| (*number, census.get(number).copied().unwrap_or_default()))
        .filter(|(_, occupancy)| occupancy.unmovable == 0 && occupancy.reserved == 0)
        .collect();
    // Frames that may be the kernel's make a failure likely; in Movable they are none of its own, but
    // free on per-CPU lists, which can hold thousands. The sort keeps the order of the rest.
    let is_movable = |number| {
        let block = node.blocks.iter().find(|block| block.number == number);
        block.is_some_and(|block| block.place == Place::Movable)
    };
    ranked.sort_by_key(|(number, occupancy)| {
        let is_doubtful = occupancy.unexplained > DOUBTFUL && !is_movable(*number);
        let used = occupancy.movable + occupancy.unexplained;
        let emptiest = if wrong.contains(number) { used } else { 0 };
        (is_doubtful, !wrong.contains(number), emptiest)
    });
    ranked
}

/// Frames free on per-CPU lists look like single frames of the kernel. So many in a block of the
/// kernel's are taken for the former; beyond, the block is tried last.
const DOUBTFUL: u64 = 64;

/// Checks that a block may leave its region.
///
/// # Errors
/// Why it may not.
pub fn permit(
    node: &Node,
    block: &Block,
    size: Bytes,
    occupancy: Occupancy,
    reserve: Bytes,
) -> Result<(), Refusal> {
    let (loser, other, least) = match block.place {
        Place::Movable => (&node.movable, &node.kernel, node.movable_min),
        _ => (&node.kernel, &node.movable, node.kernel_min),
    };
    let less = |from: Bytes, bytes: Bytes| Bytes::new(from.get().saturating_sub(bytes.get()));
    let left = less(loser.size, size);
    if left < least {
        return Err(Refusal::Small {
            region: block.place,
            left,
            least,
        });
    }
    let used = Bytes::new((occupancy.movable + occupancy.unexplained) * PAGE_BYTES);
    let room = less(other.available, other.high);
    if left.get() == 0 {
        // A zone without memory has no watermarks; only what is in its last block needs room.
        return if used > room {
            Err(Refusal::NoRoom { used, room })
        } else {
            Ok(())
        };
    }
    let left = less(loser.available, size);
    let floor = Bytes::new(loser.high.get() + reserve.get());
    if left < floor {
        return Err(Refusal::Short {
            region: block.place,
            left,
            least: floor,
        });
    }
    // What is in a movable block finds room in the rest of its zone, as was just made sure. What is
    // in a block of the kernel's goes to Movable first, and stays there even if the block comes
    // back because the rest of the move failed. Where there is no Movable, it finds room in the rest
    // of the kernel's zones.
    if block.place == Place::Kernel && other.size.get() > 0 && used > room {
        return Err(Refusal::NoRoom { used, room });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::view::Region;
    use super::*;
    use Place::{Kernel as K, Movable as M};

    const MIB: u64 = 1 << 20;

    fn node(places: &[Place]) -> Node {
        let region = |available: u64| Region {
            size: Bytes::new(1024 * MIB),
            available: Bytes::new(available * MIB),
            low: Bytes::new(8 * MIB),
            high: Bytes::new(12 * MIB),
        };
        Node {
            number: 0,
            blocks: (0..)
                .zip(places)
                .map(|(number, &place)| Block {
                    number,
                    node: 0,
                    place,
                })
                .collect(),
            kernel: region(300),
            movable: region(500),
            reserve: Bytes::new(64 * MIB),
            kernel_min: Bytes::new(512 * MIB),
            movable_min: Bytes::new(128 * MIB),
        }
    }

    #[test]
    fn the_border_moves_block_by_block_and_islands_first() {
        let never = |_| false;
        let straight = node(&[K, K, K, M, M, M]);
        assert_eq!(candidates(&straight, M, never), [3, 4, 5]);
        assert_eq!(candidates(&straight, K, never), [2, 1, 0]);
        assert_eq!(candidates(&straight, M, |number| number == 3), [4, 5]);
        let broken = node(&[K, M, K, M, K, M]);
        assert_eq!(candidates(&broken, M, never), [1, 3, 5]);
        assert_eq!(candidates(&broken, K, never), [4, 2, 0]);
    }

    #[test]
    fn unmovable_blocks_are_left_and_doubtful_blocks_come_last() {
        let used = |movable, unmovable, unexplained| Occupancy {
            movable,
            unmovable,
            unexplained,
            reserved: 0,
        };
        let census = BTreeMap::from([
            (2, used(9000, 0, 1000)),
            (3, used(20_000, 0, 12)),
            (4, used(0, 1, 0)),
        ]);
        let ranked = |places: &[Place]| {
            let ranked = rank(&node(places), &[2, 3, 4], &census);
            let numbers = ranked.iter().map(|(number, _)| *number);
            numbers.collect::<Vec<u64>>()
        };
        assert_eq!(ranked(&[K, K, K, K, K, M]), [3, 2]);
        // What is in Movable is not the kernel's.
        assert_eq!(ranked(&[K, K, M, M, M, M]), [2, 3]);
    }

    #[test]
    fn a_region_keeps_its_watermark_reserve_and_least_size() {
        let mut node = node(&[K, M]);
        let block = node.blocks[1];
        let size = Bytes::new(128 * MIB);
        let permit = |node: &Node, used: u64| {
            let occupancy = Occupancy {
                movable: used * MIB / PAGE_BYTES,
                ..Occupancy::default()
            };
            permit(node, &block, size, occupancy, node.reserve)
        };
        assert_eq!(permit(&node, 128), Ok(()));
        node.movable.available = Bytes::new((128 + 12 + 64) * MIB);
        assert_eq!(permit(&node, 128), Ok(()));
        node.movable.available = Bytes::new((128 + 12 + 64) * MIB - 1);
        assert!(matches!(permit(&node, 0), Err(Refusal::Short { .. })));
        node.movable.available = Bytes::new(500 * MIB);
        node.movable.size = Bytes::new(255 * MIB);
        assert!(matches!(permit(&node, 0), Err(Refusal::Small { .. })));
    }

    #[test]
    fn the_last_block_of_a_zone_needs_only_room_for_what_is_in_it() {
        let mut node = node(&[K, M]);
        node.movable.size = Bytes::new(128 * MIB);
        node.movable.available = Bytes::new(100 * MIB);
        node.movable_min = Bytes::new(0);
        let permit = |node: &Node, used: u64| {
            let occupancy = Occupancy {
                movable: used * MIB / PAGE_BYTES,
                ..Occupancy::default()
            };
            let size = Bytes::new(128 * MIB);
            permit(node, &node.blocks[1], size, occupancy, Bytes::new(0))
        };
        assert_eq!(permit(&node, 28), Ok(()));
        node.kernel.available = Bytes::new(39 * MIB);
        assert!(matches!(permit(&node, 28), Err(Refusal::NoRoom { .. })));
    }

    #[test]
    fn contents_of_a_kernel_block_must_fit_into_movable() {
        let mut node = node(&[K, M]);
        node.kernel.available = Bytes::new(1000 * MIB);
        node.movable.available = Bytes::new(20 * MIB);
        let block = node.blocks[0];
        let permit = |used: u64| {
            let occupancy = Occupancy {
                movable: used * MIB / PAGE_BYTES,
                ..Occupancy::default()
            };
            permit(
                &node,
                &block,
                Bytes::new(128 * MIB),
                occupancy,
                node.reserve,
            )
        };
        assert_eq!(permit(8), Ok(()));
        assert!(matches!(permit(9), Err(Refusal::NoRoom { .. })));
    }

    #[test]
    fn without_movable_zone_contents_of_a_block_stay_with_the_kernel() {
        let mut node = node(&[K, K]);
        node.movable = Region::default();
        let size = Bytes::new(128 * MIB);
        let permit = |node: &Node| {
            let occupancy = Occupancy {
                movable: 100 * MIB / PAGE_BYTES,
                ..Occupancy::default()
            };
            permit(node, &node.blocks[1], size, occupancy, Bytes::new(0))
        };
        assert_eq!(permit(&node), Ok(()));
        // As much as the whole block: what is in it and what is free in it.
        node.kernel.available = Bytes::new((128 + 12) * MIB - 1);
        assert!(matches!(permit(&node), Err(Refusal::Short { .. })));
    }
}
