//! `/proc/buddyinfo`: the allocator's free blocks by order.

use super::{System, node_and_zone};
use crate::Error;

/// The free lists of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BuddyZone {
    /// The memory node.
    pub node: u32,
    /// The zone's name.
    pub zone: String,
    /// Free blocks, by order.
    pub blocks: Vec<u64>,
}

impl BuddyZone {
    /// Free frames of 4 KB.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        let orders = self.blocks.iter().enumerate();
        orders.map(|(order, blocks)| blocks << order).sum()
    }
}

/// Free frames of all zones.
#[must_use]
pub fn free_frames(zones: &[BuddyZone]) -> u64 {
    zones.iter().map(BuddyZone::free_frames).sum()
}

impl System {
    /// The free lists of all zones.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn buddy_zones(&self) -> Result<Vec<BuddyZone>, Error> {
        let text = self.text("proc/buddyinfo")?;
        let zones = text.lines().map(|line| {
            let (node, zone, rest) =
                node_and_zone(&line).ok_or_else(|| line.expected("Node N, zone NAME"))?;
            let blocks: Vec<u64> = rest
                .split_whitespace()
                .map(|word| line.number(Some(word)))
                .collect::<Result<_, _>>()?;
            if blocks.is_empty() || blocks.len() > 20 {
                return Err(line.expected("a number for each order"));
            }
            Ok(BuddyZone {
                node,
                zone: zone.to_owned(),
                blocks,
            })
        });
        zones.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    #[test]
    fn buddyinfo_blocks_of_all_orders_add_up() {
        let text = "Node 0, zone      DMA      1      0      2 \nNode 1, zone   Normal 0 3 0\n";
        let (_folder, system) = machine(&[("proc/buddyinfo", text)]);
        let zones = system.buddy_zones().unwrap();
        assert_eq!(free_frames(&zones), 1 + 8 + 6);
        assert_eq!((zones[1].node, zones[1].zone.as_str()), (1, "Normal"));
    }

    #[test]
    fn a_line_without_numbers_is_named() {
        for text in ["Node 0, zone DMA 1 x\n", "Node 0, zone DMA\n", "what\n"] {
            let (_folder, system) = machine(&[("proc/buddyinfo", text)]);
            let error = system.buddy_zones().unwrap_err().to_string();
            assert!(error.contains("buddyinfo:1: expected"), "{error}");
        }
    }
}
