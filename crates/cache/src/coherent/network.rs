//! Distance between a core and a slice of the last level.

use contigua_units::Cycles;
use serde::{Deserialize, Serialize};

/// The shape of the network on the chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Tiles in rows and columns, as square as they come; messages go along rows, then columns.
    #[default]
    Mesh,
    /// Tiles in a circle; messages take the shorter way.
    Ring,
}

/// Cycles from each core to each slice, there and back, relative to the mean.
#[derive(Clone, Debug)]
pub(super) struct Network {
    slices: usize,
    /// By core and slice.
    round_trips: Box<[u32]>,
    /// Mean of all round trips of one core over the slices, rounded.
    pub(super) mean: Cycles,
}

impl Network {
    /// A core and a slice share a tile; cores and slices are numbered as their tiles.
    pub(super) fn new(topology: Topology, cores: usize, slices: usize, hop: Cycles) -> Self {
        let tiles = cores.max(slices);
        let mut columns = 1;
        while columns * columns < tiles {
            columns += 1;
        }
        let hops = |core: usize, slice: usize| match topology {
            Topology::Ring => {
                let apart = core.abs_diff(slice);
                apart.min(tiles - apart)
            }
            Topology::Mesh => {
                (core / columns).abs_diff(slice / columns)
                    + (core % columns).abs_diff(slice % columns)
            }
        };
        let round_trips: Box<[u32]> = (0..cores)
            .flat_map(|core| (0..slices).map(move |slice| (core, slice)))
            .map(|(core, slice)| (2 * hops(core, slice)) as u32 * hop.get() as u32)
            .collect();
        let sum: u64 = round_trips.iter().copied().map(u64::from).sum();
        Self {
            slices,
            mean: Cycles::new((sum + round_trips.len() as u64 / 2) / round_trips.len() as u64),
            round_trips,
        }
    }

    /// There and back.
    #[inline]
    pub(super) fn round_trip(&self, core: usize, slice: usize) -> Cycles {
        Cycles::new(u64::from(self.round_trips[core * self.slices + slice]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_topology() {
        let hop = Cycles::new(2);
        let mesh = Network::new(Topology::Mesh, 9, 9, hop);
        assert_eq!(mesh.round_trip(0, 0), Cycles::ZERO);
        assert_eq!(mesh.round_trip(0, 8), Cycles::new(16));
        assert_eq!(mesh.round_trip(4, 1), Cycles::new(4));
        let ring = Network::new(Topology::Ring, 8, 8, hop);
        assert_eq!(ring.round_trip(0, 7), Cycles::new(4));
        assert_eq!(ring.round_trip(0, 4), Cycles::new(16));
        assert_eq!(ring.mean, Cycles::new(8));
    }
}
