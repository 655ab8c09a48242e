//! Pages of any power of two from 4 KB: Tailored Page Sizes (Guvenilir and Patt, ISCA 2020), with the page-table entries
//! of RISC-V's Svnapot. An entry says how large the naturally aligned run is that it belongs to, and one TLB entry
//! serves for all of it.
//!
//! The L2 TLB holds all sizes, each in sets of its own page number, and is probed for all at once. The first level holds
//! pages of 4 KB and of 64 KB, the one size that Svnapot has so far (privileged architecture, chapter "Svnapot"); the
//! paper's holds all. A mapping is placed at one offset, as CA paging does it (`spot.rs`), in place of the paper's
//! reservations: its runs grow as it is touched.
//!
//! Simplified: the kernel's marks cost nothing, so what is in tables is taken as marked: a run is one whose pages all
//! were used, with the same permissions and state. Runs end at 2 MB, where a table ends. In virtual machines there are
//! none.

use contigua_paging::{Leaf, MappingPolicy};
use serde::{Deserialize, Serialize};

use super::grouped::{Grouped, Rule, aligned_run};
use super::thp::{self, HugePages};
use super::{BackgroundPass, Scheme};
use crate::{Error, Hardware, Request, Tables, Translator};

/// log2 of the pages of a group in the first level: 64 KB.
const FIRST_LEVEL: u32 = 4;

/// Sizes of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "svnapot")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages beside runs; none by default.
    pub huge: thp::Config,
    /// log2 of the pages of the largest run: 9 for 2 MB. The paper has no largest one.
    #[schemars(range(min = 1, max = 9))]
    pub largest_log2: u32,
    /// Sizes between 4 KB and the largest (the paper); else the largest alone (Svnapot so far, with 64 KB).
    pub all_sizes: bool,
    /// Place mappings at offsets, so that there are runs.
    pub ca_paging: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::never(),
            largest_log2: 9,
            all_sizes: true,
            ca_paging: true,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        let largest = self.largest_log2;
        let least = if self.all_sizes { 1 } else { largest };
        let first = FIRST_LEVEL.clamp(least, largest);
        let rule = Runs { least, largest };
        let grouped = Grouped::with_orders(hardware, first, least..=largest, rule)?;
        Ok(Box::new(grouped))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(HugePages {
            keeps_offsets: self.ca_paging,
            ..HugePages::new(&self.huge)
        })
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

/// Entries say how long their runs are.
#[derive(contigua_state::Plain)]
struct Runs {
    least: u32,
    largest: u32,
}

impl Rule for Runs {
    fn order(&self, request: &Request, leaf: Leaf, tables: &Tables<'_>) -> u32 {
        // Frames of a guest's run need not be contiguous in its host.
        if tables.host.is_some() {
            return 0;
        }
        let order = aligned_run(request, leaf, self.largest, tables);
        if order < self.least { 0 } else { order }
    }
}
