//! Contiguitas' placement (Contiguitas, section 3, and the article): unmovable memory at low
//! addresses, movable memory above, and a border that a thread moves when one side runs short.

use contigua_units::{Bytes, Nanoseconds, Order};

use super::{Candidate, Confinement, Pinning, PlacementPolicy, Shelters, Verdict, natural_type};
use crate::Request;
use crate::block::MigrateType;
use crate::controller;
use crate::lists::Discipline;

/// The regions and their resizing.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "contiguitas")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each switches a part of the design off, for ablations"
)]
pub struct Config {
    /// The unmovable region at boot, below which it never shrinks. Our choice.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "2MiB", "x-maximum" = "1TiB")))]
    pub unmovable_min: Bytes,
    /// No request is ever served from the other region (the paper). Otherwise single movable
    /// frames may use the unmovable region until a background pass moves them out (the authors'
    /// proposal to Linux in 2024).
    pub strict: bool,
    /// Before the OOM killer runs, single movable frames use free memory of the unmovable region,
    /// until their own has room. Our choice: the papers do not say.
    pub shelters_last: bool,
    /// Share of each region next to the border, in percent, that is used last. Our choice.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 100)))]
    pub border_window: u32,
    /// The free block farthest from the border is taken; otherwise the last that was freed, as in
    /// Linux.
    pub bias: bool,
    /// Contiguitas' hardware moves frames that are in use out of the border's way.
    pub hardware_migration: bool,
    /// With hardware: what it cannot move takes the addresses of the unmovable region that are
    /// farthest from the border, and what it can move those nearest to it, outside of the window.
    /// Our choice.
    pub by_type: bool,
    /// Unmovable memory beyond the reserve that was idle for so long goes back; `"0s"`: only when
    /// movable memory is short. Our choice.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "24h")))]
    pub idle: Nanoseconds,
    /// Free memory that the unmovable region keeps beside twice its high watermark, in percent of
    /// the memory in use there. Our choice.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 100.0)))]
    pub reserve_percent: f64,
    /// When and how much to resize.
    pub resize: controller::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            unmovable_min: Bytes::new(64 << 20),
            strict: true,
            shelters_last: true,
            border_window: 10,
            bias: true,
            hardware_migration: false,
            by_type: true,
            idle: Nanoseconds::new(60_000_000_000),
            reserve_percent: 10.0,
            resize: controller::Config::default(),
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

    fn fallbacks(&self, home: MigrateType) -> &'static [MigrateType] {
        match home {
            MigrateType::Movable if !self.strict => &[MigrateType::Unmovable],
            _ => &[],
        }
    }

    fn verdict(&self, _: MigrateType, request: &Request, _: &Candidate) -> Verdict {
        if request.order == Order::BASE {
            Verdict::BorrowSmallest
        } else {
            Verdict::Refuse
        }
    }

    fn discipline(&self) -> Discipline {
        if self.bias {
            Discipline::FarFromBorder
        } else {
            Discipline::Recency
        }
    }

    fn confinement(&self, _: Bytes) -> Option<Confinement> {
        Some(Confinement {
            least_unmovable: self.unmovable_min,
            is_fixed: false,
            window_percent: self.border_window,
            hardware_migration: self.hardware_migration,
            by_type: self.hardware_migration && self.bias && self.by_type,
            shelters: match (self.strict, self.shelters_last) {
                (false, _) => Shelters::Always,
                (true, true) => Shelters::Last,
                (true, false) => Shelters::Never,
            },
            give_back: controller::GiveBack {
                idle: self.idle,
                reserve_percent: self.reserve_percent,
            },
            resize: self.resize.clone(),
        })
    }

    fn pinning(&self) -> Pinning {
        Pinning::MoveFirst
    }
}
