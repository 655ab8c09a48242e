//! Linux's `ZONE_MOVABLE` (`kernelcore=`, `Documentation/admin-guide/kernel-parameters.txt`): a
//! border set at boot. Unmovable memory lies below it, and is reclaimed or fails when that is full;
//! movable memory lies above it, and in what the kernel has to spare below.

use contigua_units::{Bytes, Order};

use super::{Candidate, Confinement, Pinning, PlacementPolicy, Shelters, Verdict, natural_type};
use crate::Request;
use crate::block::MigrateType;
use crate::controller;

/// Place of the border.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "zone-movable")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Config {
    /// `kernelcore=N%`: memory below the border, in percent of all. Linux has no default; ours is
    /// our choice.
    #[cfg_attr(feature = "schema", schemars(range(min = 1.0, max = 99.0)))]
    pub kernelcore_percent: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kernelcore_percent: 25.0,
        }
    }
}

impl PlacementPolicy for Config {
    #[inline]
    fn home(&self, request: &Request) -> MigrateType {
        match natural_type(request) {
            MigrateType::Movable => MigrateType::Movable,
            _ => MigrateType::Unmovable,
        }
    }

    fn fallbacks(&self, _: MigrateType) -> &'static [MigrateType] {
        &[]
    }

    fn verdict(&self, _: MigrateType, _: &Request, _: &Candidate) -> Verdict {
        Verdict::Refuse
    }

    fn confinement(&self, memory: Bytes) -> Option<Confinement> {
        let kernel = memory.get() as f64 * self.kernelcore_percent / 100.0;
        // Whole pageblocks, as Linux aligns the border to its largest free block.
        let block = Order::HUGE_2M.bytes();
        Some(Confinement {
            least_unmovable: Bytes::new(kernel as u64 / block * block),
            is_fixed: true,
            window_percent: 0,
            hardware_migration: false,
            by_type: false,
            shelters: Shelters::Always,
            give_back: controller::GiveBack::default(),
            resize: controller::Config::default(),
        })
    }

    /// `FOLL_LONGTERM`: pages leave `ZONE_MOVABLE` before they are pinned.
    fn pinning(&self) -> Pinning {
        Pinning::MoveFirst
    }
}
