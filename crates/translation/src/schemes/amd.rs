//! Coalescing as AMD's processors do it since Zen: when the walker reads a page-table entry whose
//! aligned neighbors are contiguous and alike, one TLB entry serves for all of them. Software does
//! nothing for it. AMD's optimization guides name groups of four pages.

use contigua_paging::{Leaf, MappingPolicy};
use contigua_units::PAGE_BYTES;
use serde::{Deserialize, Serialize};

use super::grouped::{Grouped, Rule};
use super::thp;
use super::{BackgroundPass, Scheme};
use crate::radix::group_of;
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
    fn joins(&self, request: &Request, leaf: Leaf, tables: &Tables<'_>) -> bool {
        let (start, part) = group_of(request.address, self.0);
        let pages = 1 << self.0;
        let Some(first) = leaf.frame.get().checked_sub(part) else {
            return false;
        };
        first % pages == 0
            && (0..pages).filter(|&other| other != part).all(|other| {
                tables
                    .resolve(start + u64::from(other) * PAGE_BYTES)
                    .is_some_and(|page| {
                        page.frame.get() == first + other
                            && (page.writable && page.dirty) == leaf.writable
                            && page.accessed
                    })
            })
    }
}
