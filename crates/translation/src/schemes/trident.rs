//! Trident (Ram, Panwar and Basu, MICRO 2021): pages of all three sizes without the program's help. A fault maps 1 GB
//! where the mapping has an aligned one, nothing is mapped in it and a range of memory is free; else 2 MB or 4 KB. The
//! background makes pages of 1 GB of smaller ones, for which it empties the range with the fewest frames in use (smart
//! compaction), and zeroes free memory ahead, because 1 GB takes long to zero.
//!
//! The mechanism is `paging/src/giant.rs`; sections 4 and 5 of the paper are cited from memory, it was not at hand.
//!
//! Simplified: what is moved out of a range goes where the page allocator has room, where Trident also chooses the fullest
//! range for it. The one thread passes over all mappings, and does not remember which have 1 GB. Pages that a
//! fault found no zeroed memory for are zeroed by it. Guests do not exchange pages with their host (Trident-pv).

use contigua_paging::{
    CollapseContext, FaultContext, MappingPolicy, Orders, Pick, SharedContext, Vma,
};
use contigua_units::{Nanoseconds, PageSize};
use serde::{Deserialize, Serialize};

use super::thp::{self, Enabled, HugePages};
use super::{BackgroundPass, Giants, Scheme, Upkeep};
use crate::{Error, Hardware, Radix, Translator};

/// Pages of 1 GB beside those of 2 MB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "trident")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Pages of 2 MB; `enabled` and advice are also those of 1 GB.
    pub huge: thp::Config,
    /// Faults map 1 GB.
    pub at_faults: bool,
    /// Time between passes that make pages of 1 GB: that of khugepaged, 10 s.
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "24h"))]
    pub interval: Nanoseconds,
    /// Pages of 1 GB that a pass makes of each process at most; 0 for none. Ours.
    #[schemars(range(min = 0, max = 1024))]
    pub pages: u32,
    /// Percentage of 1 GB that must be in use for a promotion. Ours: the paper's promotes as khugepaged does, which asks
    /// for next to nothing, but says that it promotes what is mapped by smaller pages.
    #[schemars(range(min = 0, max = 100))]
    pub used_percent: u32,
    /// Empty the range with the fewest frames in use; else the first by address, as Linux's `alloc_contig_pages` does.
    pub smart_compaction: bool,
    /// Frames that may move for one page of 1 GB: all of them.
    #[schemars(range(min = 0, max = 262_144))]
    pub most_moves: u32,
    /// Free 4 KB pages zeroed in a second; 0 for none. Ours: 1 GB.
    #[schemars(range(min = 0, max = 100_000_000))]
    pub zeroed_per_second: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            at_faults: true,
            interval: Nanoseconds::new(10_000_000_000),
            pages: 1,
            used_percent: 50,
            smart_compaction: true,
            most_moves: PageSize::Size1G.frames(),
            zeroed_per_second: 262_144,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Radix::new(hardware)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        let frames = u64::from(PageSize::Size1G.frames());
        Box::new(AllSizes {
            pages: HugePages::new(&self.huge),
            at_faults: self.at_faults,
            least_present: (frames * u64::from(self.used_percent)).div_ceil(100).max(1),
        })
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn upkeep(&self) -> Upkeep {
        let giants = Giants {
            interval: self.interval,
            pages: self.pages,
            pick: if self.smart_compaction {
                Pick::Emptiest
            } else {
                Pick::First
            },
            most_moves: self.most_moves,
        };
        let makes = self.pages > 0 && self.huge.enabled != Enabled::Never;
        Upkeep {
            giants: makes.then_some(giants),
            zeroed_per_second: self.zeroed_per_second,
            ..Upkeep::default()
        }
    }
}

/// Transparent pages of 2 MB and 1 GB.
struct AllSizes {
    pages: HugePages,
    at_faults: bool,
    least_present: u64,
}

impl MappingPolicy for AllSizes {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        if self.at_faults && self.pages.allows(context.vma) {
            context.fits
        } else {
            self.pages.on_fault(context)
        }
    }

    fn maps_shared_huge(&self, context: &SharedContext) -> bool {
        self.pages.maps_shared_huge(context)
    }

    fn collapse(&self, context: &CollapseContext) -> bool {
        self.pages.collapse(context)
    }

    fn folio_orders(&self, vma: Vma) -> Orders {
        self.pages.folio_orders(vma)
    }

    fn uses_huge_zero_page(&self) -> bool {
        self.pages.uses_huge_zero_page()
    }

    fn takes_giant(&self) -> bool {
        self.at_faults
    }

    fn makes_giant(&self, vma: Vma, present: u64) -> bool {
        self.pages.allows(vma) && present >= self.least_present
    }
}
