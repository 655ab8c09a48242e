//! Active coalescing of mappings (Translation Ranger: Yan, Lustig, Nellans and Bhattacharjee, ISCA 2019): each large
//! mapping has an anchor, the frame where its first page belongs, and a thread brings every page to its place
//! behind that. Where something is in the way that does not move, the page stays and the next one is tried.
//!
//! The rules are those of the paper's kernel (`mm/mem_defrag.c` of `ysarch-lab/translation_ranger_isca_2019`):
//! private anonymous mappings, in the order of addresses; the first anchor is the first frame of memory, later ones
//! lie behind those of the space's other mappings, as aligned as the addresses are (`find_anchor_pages_in_vma`).
//! 2 MB whose pages are all in place become a huge page without a copy.

use contigua_frames::FrameClass;
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::anchors::Anchor;
use crate::effects::Effects;
use crate::memory::Memory;
use crate::policy::{CollapseContext, MappingPolicy};
use crate::space::{AddressSpace, EVERYTHING, free};
use crate::table::Leaf;
use crate::vma::{Vma, VmaKind};

const HUGE: u64 = PageSize::Size2M.bytes();

/// Mappings that have anchors, and their alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranging {
    /// Bytes of the smallest mapping.
    pub least: u64,
    /// Addresses and frames agree up to this size.
    pub align: PageSize,
}

/// Next step of a pass through a space's mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangerStep {
    /// A page's block belongs elsewhere.
    Bring {
        /// Its address.
        address: VirtAddr,
        /// Where it is.
        from: Frame,
        /// Its place.
        to: Frame,
        /// 4 KB pages of the page.
        pages: u64,
    },
    /// A page is part of a larger block, or has several: it stays.
    Stuck {
        /// 4 KB pages of the page.
        pages: u64,
    },
    /// The pass has gone through the 2 MB at an address, whose last page is a small one.
    Passed(VirtAddr),
}

impl AddressSpace {
    /// The next step of a pass through large mappings. `None` where `left`, the 4 KB pages that the pass may still look
    /// at, is used up, and at the end of the space, where the next pass begins anew.
    pub fn next_ranger_step(
        &mut self,
        ranging: Ranging,
        left: &mut u64,
        memory: &Memory,
    ) -> Option<RangerStep> {
        if let Some(passed) = self.anchors.passed.take() {
            return Some(RangerStep::Passed(VirtAddr::new(passed)));
        }
        while *left > 0 {
            let from = VirtAddr::new(self.anchors.position);
            let rest = VirtRange {
                start: from,
                ..EVERYTHING
            };
            let Some((page, leaf)) = self.table.pages(rest).next() else {
                self.anchors.position = 0;
                return None;
            };
            self.anchors.position = page.get() + leaf.size.bytes();
            let Some((range, vma)) = self.vma(page.max(from)) else {
                continue;
            };
            if !self.is_ranged(range, vma, ranging) {
                self.anchors.position = range.end.get().max(self.anchors.position);
                continue;
            }
            if memory.is_zero(leaf) || leaf.perforation.is_some() {
                continue;
            }
            let end = self.anchors.position;
            if leaf.size == PageSize::Size4K && end.is_multiple_of(HUGE) {
                self.anchors.passed = Some(end - HUGE);
            }
            let anchor = self.anchor(range, ranging, memory);
            let place = anchor + ((page - range.start) / PAGE_BYTES).cast_signed();
            let pages = u64::from(leaf.size.frames());
            *left = left.saturating_sub(pages);
            if place != i64::from(leaf.frame.get()) {
                if memory.order(leaf.frame) != Some(leaf.size.order()) {
                    return Some(RangerStep::Stuck { pages });
                }
                return Some(RangerStep::Bring {
                    address: page,
                    from: leaf.frame,
                    to: Frame::new(u32::try_from(place).unwrap_or(u32::MAX)),
                    pages,
                });
            }
            if let Some(passed) = self.anchors.passed.take() {
                return Some(RangerStep::Passed(VirtAddr::new(passed)));
            }
        }
        None
    }

    /// Splits the huge page at an address, whose parts the pass comes to next.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], when a table has no room.
    pub fn split_for_ranger(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        self.split(address, memory, effects)?;
        self.anchors.position = address.get();
        Ok(())
    }

    /// Splits the huge page at an address if it has a block.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], when a table has no room.
    pub fn split_block(
        &mut self,
        block: Frame,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let leaf = self.table.leaf(address);
        let is_it = |leaf: Leaf| leaf.frame == block && leaf.size == PageSize::Size2M;
        if leaf.is_some_and(is_it) {
            self.split(address, memory, effects)?;
        }
        Ok(())
    }

    /// Returns true if a mapping has an anchor.
    fn is_ranged(&self, range: VirtRange, vma: Vma, ranging: Ranging) -> bool {
        vma.kind == VmaKind::Anonymous
            && !vma.shared
            && !vma.hugetlb
            && !self.assumes_mappings
            && range.bytes() >= ranging.least
    }

    /// The anchor of a mapping, which is chosen when its first page is come to.
    fn anchor(&mut self, range: VirtRange, ranging: Ranging, memory: &Memory) -> i64 {
        let start = range.start.get();
        let pages = (range.bytes() / PAGE_BYTES).cast_signed();
        if let Some(known) = self.anchors.of.get_mut(&start) {
            known.pages = pages;
            return known.frame;
        }
        // Those of mappings that are gone, or have grown downwards.
        let vmas = &self.vmas;
        self.anchors.of.retain(|&at, _| {
            let found = vmas.get_key_value(&at);
            found.is_some_and(|(range, _)| range.start == at)
        });
        let home = memory.home(FrameClass::Anonymous);
        let (low, high) = (i64::from(home.start.get()), i64::from(home.end.get()));
        let step = i64::from(ranging.align.frames());
        let page = range.start.page().get().cast_signed();
        let mut frame = self.anchors.behind(pages).unwrap_or(low);
        if page % step < frame % step {
            frame += step;
        }
        frame = frame - frame % step + page % step;
        if frame >= high {
            frame -= step;
        } else if frame < low {
            frame += step;
        }
        self.anchors.of.insert(start, Anchor { frame, pages });
        frame
    }

    /// Makes a huge page of the 2 MB at an address where all of its pages are in use and in place, and the policy would;
    /// says whether it did.
    pub fn promote_in_place(
        &mut self,
        address: VirtAddr,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> bool {
        let whole = VirtRange::page_around(address, PageSize::Size2M);
        let fits = self.vma(whole.start).filter(|(range, vma)| {
            range.covers(whole) && vma.kind == VmaKind::Anonymous && !vma.shared
        });
        let Some((_, vma)) = fits else {
            return false;
        };
        let present = PageSize::Size2M.frames();
        let context = CollapseContext {
            vma: vma.under(self.disabled),
            present,
            fragmentation: memory.fragmentation_of_free(),
        };
        let Some(first) = self.table.leaf(whole.start) else {
            return false;
        };
        let (mut count, mut is_dirty) = (0, false);
        for (at, leaf) in self.table.pages(whole) {
            let in_place = leaf.frame.get() == first.frame.get().wrapping_add(count)
                && at == whole.start + u64::from(count) * PAGE_BYTES
                && leaf.size == PageSize::Size4K
                && leaf.perforation.is_none()
                && leaf.writable == first.writable
                && !leaf.is_discardable();
            if !in_place {
                return false;
            }
            (count, is_dirty) = (count + 1, is_dirty || leaf.dirty);
        }
        if count != present || !policy.collapse(&context) {
            return false;
        }
        if memory.unite(first.frame, Order::HUGE_2M).is_err() {
            return false;
        }
        let huge = Leaf {
            accessed: true,
            dirty: is_dirty,
            ..Leaf::new(first.frame, PageSize::Size2M, first.writable)
        };
        let Ok(node) = self.table.collapse_2m(whole.start, huge) else {
            let _ = memory.split_to(first.frame, Order::BASE);
            return false;
        };
        if let Some(node) = node {
            free(node, memory);
        }
        self.settle_table(memory, effects);
        if policy.recovers_zeros() {
            // All of it was written, as far as anybody knows.
            self.blanks
                .insert(whole.start, crate::blanks::ALL.map(|_| 0));
        }
        effects.unmapped += u64::from(present);
        self.resident.pages_4k -= u64::from(present);
        self.resident.pages_2m += 1;
        effects.invalidations.push(whole);
        true
    }

    /// Runs of pages that are contiguous in both address spaces.
    #[must_use]
    pub fn runs(&self, memory: &Memory) -> Runs {
        let mut lengths = Vec::new();
        let mut end = None;
        for (page, leaf) in self.table.pages(EVERYTHING) {
            if memory.is_zero(leaf) || leaf.perforation.is_some() {
                continue;
            }
            let pages = u64::from(leaf.size.frames());
            match lengths.last_mut() {
                Some(last) if end == Some((page, u64::from(leaf.frame.get()))) => *last += pages,
                _ => lengths.push(pages),
            }
            end = Some((
                page + leaf.size.bytes(),
                u64::from(leaf.frame.get()) + pages,
            ));
        }
        Runs::new(lengths)
    }
}

/// Runs of pages that are contiguous in both address spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub struct Runs {
    /// 4 KB pages in all of them.
    pub pages: u64,
    /// Their number.
    pub runs: u64,
    /// The fewest that hold 99 % of the pages.
    pub covering: u64,
    /// Pages in runs of at least 2 MB.
    pub in_2m: u64,
    /// Pages of the longest one.
    pub longest: u64,
}

impl Runs {
    fn new(mut lengths: Vec<u64>) -> Self {
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let pages = lengths.iter().sum();
        let (mut covered, mut covering) = (0, 0);
        for &length in &lengths {
            if covered * 100 >= pages * 99 {
                break;
            }
            (covered, covering) = (covered + length, covering + 1);
        }
        let is_long = |length: &&u64| **length >= u64::from(PageSize::Size2M.frames());
        Self {
            pages,
            runs: lengths.len() as u64,
            covering,
            in_2m: lengths.iter().filter(is_long).sum(),
            longest: lengths.first().copied().unwrap_or(0),
        }
    }
}
