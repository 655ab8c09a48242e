//! 4 KB pages only: Linux with transparent huge pages off.

use contigua_paging::{CollapseContext, FaultContext, MappingPolicy};
use contigua_units::PageSize;
use serde::{Deserialize, Serialize};

use super::Scheme;
use crate::{Error, Hardware, Radix, Translator};

/// No parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "base")]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Radix::new(hardware)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(BasePages)
    }
}

struct BasePages;

impl MappingPolicy for BasePages {
    fn on_fault(&self, _: &FaultContext) -> PageSize {
        PageSize::Size4K
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }
}
