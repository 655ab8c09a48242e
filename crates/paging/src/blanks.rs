//! Small pages of huge ones that hold zeros still, as far as that is known.

use std::collections::BTreeMap;

use contigua_state::Plain;
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};

const HUGE: u64 = PageSize::Size2M.bytes();
const WORDS: usize = PageSize::Size2M.frames() as usize / 64;

/// Bit of each small page of a huge one.
pub(crate) type Pages = [u64; WORDS];

/// All of them.
pub(crate) const ALL: Pages = [u64::MAX; WORDS];

/// Pages of huge ones that hold zeros, by number of the 2 MB.
#[derive(Clone, Debug, Default, Plain)]
pub(crate) struct Blanks(BTreeMap<u64, Pages>);

/// Number of the 2 MB, and place and bit in its map.
fn at(address: VirtAddr) -> (u64, usize, u64) {
    let page = address.get() % HUGE / PAGE_BYTES;
    (address.get() / HUGE, (page / 64) as usize, 1 << (page % 64))
}

/// Number of pages.
pub(crate) fn count(pages: &Pages) -> u32 {
    pages.iter().map(|word| word.count_ones()).sum()
}

impl Blanks {
    /// A huge page was made, of which these pages hold zeros.
    pub(crate) fn insert(&mut self, address: VirtAddr, pages: Pages) {
        if count(&pages) > 0 {
            self.0.insert(address.get() / HUGE, pages);
        } else {
            self.0.remove(&(address.get() / HUGE));
        }
    }

    /// The huge page around an address is one no longer, or somebody else's.
    #[inline]
    pub(crate) fn forget(&mut self, address: VirtAddr) {
        if !self.0.is_empty() {
            self.0.remove(&(address.get() / HUGE));
        }
    }

    /// The page of an address is written.
    pub(crate) fn fill(&mut self, address: VirtAddr) {
        let (number, word, bit) = at(address);
        if let Some(pages) = self.0.get_mut(&number) {
            pages[word] &= !bit;
            if count(pages) == 0 {
                self.0.remove(&number);
            }
        }
    }

    /// Addresses around one to which accesses change nothing here while mappings stay: none around a page of zeros.
    pub(crate) fn known_around(&self, address: VirtAddr) -> VirtRange {
        let number = address.get() / HUGE;
        let Some(pages) = self.0.get(&number) else {
            let before = self.0.range(..number).next_back();
            let behind = self.0.range(number..).next();
            return VirtRange::new(
                VirtAddr::new(before.map_or(0, |(before, _)| (before + 1) * HUGE)),
                VirtAddr::new(behind.map_or(u64::MAX, |(behind, _)| behind * HUGE)),
            );
        };
        let (_, word, bit) = at(address);
        if pages[word] & bit != 0 {
            return VirtRange::new(VirtAddr::new(0), VirtAddr::new(0));
        }
        VirtRange::page_around(address, PageSize::Size4K)
    }

    /// Huge pages that have at least so many.
    pub(crate) fn with_at_least(&self, least: u32) -> Vec<(VirtAddr, Pages)> {
        let enough = self.0.iter().filter(|(_, pages)| count(pages) >= least);
        enough
            .map(|(&number, &pages)| (VirtAddr::new(number * HUGE), pages))
            .collect()
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.0.values().map(|pages| u64::from(count(pages))).sum()
    }
}
