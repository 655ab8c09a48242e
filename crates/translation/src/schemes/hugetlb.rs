//! Huge pages that are set aside at boot (Linux's `hugetlbfs`), as the Direct Segments paper uses
//! them for its baselines of 2 MB and 1 GB: the program's memory lies in a primary region, aligned
//! to the size of page, as libhugetlbfs places it.

use contigua_paging::{CollapseContext, Eligible, FaultContext, MappingPolicy};
use contigua_units::{Bytes, PageSize};
use serde::{Deserialize, Serialize};

use super::{PrimaryRegion, ReservedPages, Scheme};
use crate::{Error, Hardware, Radix, Translator};

/// Size and number of the reserved pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "hugetlb")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Size of the pages.
    pub page: PageSize,
    /// Share of memory that is set aside, 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub reserve: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            page: PageSize::Size1G,
            reserve: 0.75,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Radix::new(hardware)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(Reserved(self.page))
    }

    fn primary(&self) -> Option<PrimaryRegion> {
        Some(PrimaryRegion {
            eligible: Eligible::ByDefault,
            chunk: None,
            at_start: false,
            step: Bytes::new(self.page.bytes()),
        })
    }

    fn reserved(&self) -> Option<ReservedPages> {
        Some(ReservedPages {
            size: self.page,
            share: self.reserve,
        })
    }
}

struct Reserved(PageSize);

impl MappingPolicy for Reserved {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        // Only the primary region's one mapping is large enough for its pages.
        if context.fits >= self.0 {
            self.0
        } else {
            PageSize::Size4K
        }
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }

    fn uses_reserved(&self) -> bool {
        true
    }
}
