//! When pages are perforated: the configuration, and the kernel's policy.

use contigua_paging::{
    CollapseContext, FaultContext, HoleVerdict, Holes, MappingPolicy, SharedContext,
};
use contigua_units::PageSize;
use serde::{Deserialize, Serialize};

use super::super::thp::{self, HugePages};

/// When pages are perforated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "perforated")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages, and their making by the background pass.
    pub huge: thp::Config,
    /// Of 512 sub-pages, how many may be holes when a page is made.
    #[schemars(range(min = 0, max = 511))]
    pub most_holes: u32,
    /// Of the 512 frames of a block, how many may be in use when a first touch takes the others for a
    /// perforated page. With more, random reads of 2 GB are slower than with 4 KB pages: holes cost
    /// more than the page gains (translation.md).
    #[schemars(range(min = 0, max = 511))]
    pub most_missing: u32,
    /// Huge pages begin with one sub-page, and the others are filled when they are touched.
    pub lazy: bool,
    /// The guest's hole bitmaps are found through a register that holds their address in the host's
    /// memory, without another walk (Perforated Page, section 4.4). Only in virtual machines.
    pub bitmap_register: bool,
    /// Entries of an L2 TLB's set that are behind a bitmap entry in the order of use when it is
    /// filled: 0 is the least recent place, which is evicted first, and a number of all ways is the
    /// most recent one. The paper does not say. Bitmaps of dispersed holes are used once and evict
    /// pages from the most recent place; 0 was chosen after results were seen (translation.md).
    #[schemars(range(min = 0, max = 16_384))]
    pub bitmap_insertion: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            most_holes: 511,
            most_missing: 76,
            lazy: false,
            bitmap_register: true,
            bitmap_insertion: 0,
        }
    }
}

/// The kernel's side: which pages are made.
pub(super) struct Policy {
    huge: HugePages,
    most_holes: u32,
    most_missing: u32,
    lazy: bool,
}

impl Policy {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            huge: HugePages::new(&config.huge),
            most_holes: config.most_holes,
            most_missing: config.most_missing,
            lazy: config.lazy,
        }
    }
}

impl MappingPolicy for Policy {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        self.huge.on_fault(context)
    }

    fn collapse(&self, context: &CollapseContext) -> bool {
        self.huge.collapse(context)
    }

    fn on_holes(&self, holes: &Holes) -> HoleVerdict {
        if holes.count() <= self.most_holes {
            HoleVerdict::Perforate
        } else {
            HoleVerdict::Split
        }
    }

    fn most_missing(&self) -> u32 {
        self.most_missing.min(self.most_holes)
    }

    fn maps_shared_huge(&self, context: &SharedContext) -> bool {
        self.huge.maps_shared_huge(context)
    }

    fn uses_huge_zero_page(&self) -> bool {
        self.huge.uses_huge_zero_page()
    }

    fn is_lazy(&self) -> bool {
        self.lazy
    }
}
