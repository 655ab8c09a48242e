//! Coalescing as AMD's processors do it since Zen: when the walker reads a page-table entry whose
//! aligned neighbors are contiguous and alike, one TLB entry serves for all of them. Software does
//! nothing for it. AMD's optimization guides name groups of four pages.

use contigua_paging::{Leaf, MappingPolicy};
use serde::{Deserialize, Serialize};

use super::grouped::{Grouped, Rule, aligned_run};
use super::thp;
use super::{BackgroundPass, Scheme};
use crate::{Error, Hardware, Request, Tables, Translator};

/// Size of groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "amd-coalescing")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages; none by default.
    pub huge: thp::Config,
    /// log2 of the pages of a group: 2 for 16 KB, 3 for 32 KB.
    #[schemars(range(min = 1, max = 3))]
    pub group_log2: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::never(),
            group_log2: 2,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        let group = self.group_log2;
        Ok(Box::new(Grouped::new(hardware, group, Neighbors(group))?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

/// The entries around the one that was read are contiguous, aligned and alike.
#[derive(contigua_state::Plain)]
struct Neighbors(u32);

impl Rule for Neighbors {
    fn order(&self, request: &Request, leaf: Leaf, tables: &Tables<'_>) -> u32 {
        let order = aligned_run(request, leaf, self.0, tables);
        if order == self.0 { order } else { 0 }
    }
}
