//! Arm's contiguous bit, with Linux's folios of 64 KB for anonymous memory (mTHP): the kernel maps an
//! aligned group of 16 pages to 16 contiguous frames and marks their entries, and one TLB entry
//! serves for all of them. Changing one page takes the mark from its group. Larger folios are several groups.

use contigua_paging::{Leaf, MappingPolicy};
use serde::{Deserialize, Serialize};

use super::grouped::{Grouped, Rule};
use super::mthp::{Sizes, Use};
use super::thp::{self, HugePages};
use super::{BackgroundPass, Scheme};
use crate::{Error, Hardware, Request, Tables, Translator};

/// log2 of the pages of a group: 64 KB (Arm ARM, D8.7: 16 entries with pages of 4 KB).
const GROUP: u32 = 4;

/// Use of other sizes beside 64 KB; none by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "arm-contiguous")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// As with transparent huge pages.
    pub huge: thp::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::never(),
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Grouped::new(hardware, GROUP, Marked)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        let pages = HugePages::new(&self.huge);
        Box::new(HugePages {
            sizes: Sizes {
                of_64k: Use::Always,
                ..pages.sizes
            },
            marks_groups: true,
            ..pages
        })
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

/// The entry that was read has the mark. All entries of the group are the same but for their
/// frames, and dirty together: the kernel maps them at once, and hardware may keep the state of
/// one for all.
#[derive(contigua_state::Plain)]
struct Marked;

impl Rule for Marked {
    fn order(&self, request: &Request, leaf: Leaf, tables: &Tables<'_>) -> u32 {
        // Frames of a guest's group need not be contiguous in its host.
        let joins = leaf.contiguous
            && leaf.frame.get() % (1 << GROUP)
                == request.address.page().get() as u32 % (1 << GROUP)
            && tables.host.is_none();
        if joins { GROUP } else { 0 }
    }
}
