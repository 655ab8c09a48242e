//! Gap-tolerant sequential mapping (Du, Zhou, Childers, Mossé and Melhem, HPCA 2015), the rival
//! that Perforated Page, section 6.5 compares with: a 2 MB page whose 64 KB parts are any 32 of the
//! 64 in a 4 MB chunk, in order, so that parts with missing frames are stepped around. With fewer
//! than 32 whole parts there is no superpage, and 4 KB pages serve.
//!
//! Costs of the mechanism in the page table are not modeled: a superpage here is translated like
//! any page of 2 MB. Its TLB entries are counted with the map that says which parts are in use. The
//! second half of the chunk is taken to have as many missing parts as the first.

use contigua_paging::holes::SUB_PAGES;
use contigua_paging::{HoleVerdict, Holes, MappingPolicy};
use serde::{Deserialize, Serialize};

use super::thp::{self, HugePages};
use super::{BackgroundPass, Scheme};
use crate::{Error, Hardware, Radix, Translator};

/// Frames of a part: 64 KB.
const PART: u32 = 16;
/// Parts of 2 MB.
const PARTS: u32 = SUB_PAGES / PART;

/// Use of huge pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "gtsm")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// As with transparent huge pages.
    pub huge: thp::Config,
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        let mut radix = Radix::new(hardware)?;
        radix.map_bits = MAP_BITS;
        Ok(Box::new(radix))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(HugePages {
            on_holes,
            ..HugePages::new(&self.huge)
        })
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

/// Two halves with as many missing parts each leave at least 32 of 64.
fn on_holes(holes: &Holes) -> HoleVerdict {
    let has_hole = |part: u32| (0..PART).any(|i| holes.has(part * PART + i));
    let missing = (0..PARTS).filter(|&part| has_hole(part)).count() as u32;
    if 2 * (PARTS - missing) >= PARTS {
        HoleVerdict::Tolerate
    } else {
        HoleVerdict::Split
    }
}

/// Bits that say which parts of a chunk of 4 MB a superpage is made of. Ours: the paper is not at
/// hand; an entry that translates alone needs one bit for each part.
const MAP_BITS: u64 = 2 * PARTS as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_half_of_the_parts_may_have_holes() {
        let policy = Config::default().policy();
        let in_parts = |parts: u32| (0..parts).map(|part| part * PART).collect();
        assert_eq!(policy.on_holes(&in_parts(16)), HoleVerdict::Tolerate);
        assert_eq!(policy.on_holes(&in_parts(17)), HoleVerdict::Split);
        let clustered = (0..256).collect();
        assert_eq!(policy.on_holes(&clustered), HoleVerdict::Tolerate);
    }
}
