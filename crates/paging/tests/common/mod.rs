//! A mapping policy for tests of placement.

use contigua_paging::{CollapseContext, FaultContext, MappingPolicy};
use contigua_units::PageSize;

/// Pages of 4 KB only.
pub struct Small;

impl MappingPolicy for Small {
    fn on_fault(&self, _: &FaultContext) -> PageSize {
        PageSize::Size4K
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }
}
