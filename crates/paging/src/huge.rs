//! Huge pages: splitting them, and making them of small ones in the background.

use contigua_frames::{Effort, FrameClass};
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::blanks;
use crate::effects::Effects;
use crate::holes::Fragmentation;
use crate::memory::Memory;
use crate::policy::{CollapseContext, MappingPolicy};
use crate::space::{AddressSpace, EVERYTHING, free, obtain_huge, obtain_node, release};
use crate::table::Leaf;
use crate::vma::{Disabled, HugeAdvice, Vma, VmaKind};

const HUGE: u64 = PageSize::Size2M.bytes();
/// 4 KB pages of a 2 MB one.
const PARTS: u32 = PageSize::Size2M.frames();

impl AddressSpace {
    /// Splits the huge page around an address into pages of the next smaller size on the same
    /// frames. A perforated page becomes 4 KB pages.
    pub(crate) fn split(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let Some(leaf) = self.table.leaf(address) else {
            return Ok(());
        };
        if leaf.size == PageSize::Size4K {
            return Ok(());
        }
        let zeros = if memory.is_zero(leaf) {
            Some(memory.zero_page().ok_or(Error::OutOfMemory)?)
        } else {
            None
        };
        if self.is_of_object(address) {
            // Later faults map it anew, in small pages (`__split_huge_pmd_locked`).
            effects.splits += 1;
            let page = VirtRange::page_around(address, leaf.size);
            effects.invalidations.push(page);
            self.evict(address, memory, effects);
            return Ok(());
        }
        let frames = self.table.frames_for_split(address, leaf.size);
        let node = obtain_node(frames, memory, effects).ok_or(Error::OutOfMemory)?;
        if leaf.perforation.is_none() && !self.table.split(address, leaf.size, node) {
            return Err(Error::OutOfMemory);
        }
        memory.remove_tag(self.id, address, leaf);
        self.settle_table(memory, effects);
        effects.splits += 1;
        effects.rewritten += u64::from(PARTS);
        effects
            .invalidations
            .push(VirtRange::page_around(address, leaf.size));
        if leaf.perforation.is_some() {
            self.split_perforated(address, node, memory, effects);
            return Ok(());
        }
        if let Some(frame) = zeros {
            // As Linux's `__split_huge_zero_page_pmd`.
            let page = address.align_down(leaf.size.bytes());
            for part in 0..u64::from(PARTS) {
                self.table
                    .update(page + part * PAGE_BYTES, |leaf| leaf.frame = frame);
            }
            return Ok(());
        }
        let part = if leaf.size == PageSize::Size1G {
            PageSize::Size2M
        } else {
            PageSize::Size4K
        };
        self.blanks.forget(address);
        *self.resident.of(leaf.size) -= 1;
        *self.resident.of(part) += u64::from(PARTS);
        memory.unshare_huge(leaf.frame, leaf.size);
        if memory.order(leaf.frame) == Some(leaf.size.order()) {
            memory.forget_reserved(leaf.frame);
            memory
                .split_to(leaf.frame, part.order())
                .expect("the block was looked at just now");
        }
        Ok(())
    }

    /// Splits every page of a range until all are of 4 KB.
    pub(crate) fn split_all(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        loop {
            let pages = self.table.pages(range);
            let huge: Vec<_> = pages
                .filter(|(_, leaf)| leaf.size != PageSize::Size4K)
                .collect();
            if huge.is_empty() {
                return Ok(());
            }
            for (address, _) in huge {
                self.split(address, memory, effects)?;
            }
        }
    }

    /// One step of the background pass, after Linux's `khugepaged`: looks at `pages` pages (of
    /// 4 KB) from where the last step ended, and makes 2 MB pages where the policy wants them and
    /// a block is free. Says whether it came to the end of the space.
    pub fn background_pass(
        &mut self,
        pages: u64,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> bool {
        let ranges = pages.div_ceil(u64::from(PARTS));
        if self.table.has_shadows() {
            self.patch_pass(ranges as usize, memory, effects);
        }
        for _ in 0..ranges {
            let Some((address, vma)) = self.next_candidate() else {
                self.pass_position = 0;
                return true;
            };
            // Memory that has holes has them for small pages too.
            if let Some(scenario) = self.fragmentation
                && !scenario.of_page(address).is_empty()
            {
                self.pass_position = address.get() + HUGE;
                continue;
            }
            self.pass_position = address.get() + HUGE;
            let present = self.present_around(address, memory);
            let vma = vma.under(self.disabled);
            let fragmentation = memory.fragmentation_of_free();
            let context = CollapseContext {
                vma,
                present,
                fragmentation,
            };
            if present > 0 && policy.collapse(&context) {
                self.collapse(address, policy, memory, effects);
            }
        }
        false
    }

    /// Returns true if the pass would make a 2 MB page of the range that it comes to next.
    #[must_use]
    pub fn pass_wants_block(&self, policy: &dyn MappingPolicy, memory: &Memory) -> bool {
        let Some((address, vma)) = self.next_candidate() else {
            return false;
        };
        let present = self.present_around(address, memory);
        let has_holes = |scenario: Fragmentation| !scenario.of_page(address).is_empty();
        let vma = vma.under(self.disabled);
        present > 0
            && !self.fragmentation.is_some_and(has_holes)
            && policy.collapse(&CollapseContext {
                vma,
                present,
                fragmentation: memory.fragmentation_of_free(),
            })
    }

    /// Returns true if `MADV_COLLAPSE` may make a 2 MB page at an address (`vma_thp_disabled`,
    /// `include/linux/huge_mm.h`).
    #[must_use]
    pub fn allows_collapse(&self, address: VirtAddr) -> bool {
        self.disabled != Disabled::All
            && self
                .vma(address)
                .is_some_and(|(_, vma)| vma.huge != HugeAdvice::NoHuge)
    }

    /// Returns true if a range would cut a page of `HugeTLB` in two, as `munmap` refuses to
    /// (`hugetlb_vm_op_split`, `mm/hugetlb.c`).
    #[must_use]
    pub fn cuts_hugetlb(&self, range: VirtRange) -> bool {
        [range.start, range.end].into_iter().any(|at| {
            let mapping = self.vma(at).filter(|(mapping, _)| mapping.start < at);
            !at.is_aligned(HUGE) && mapping.is_some_and(|(_, vma)| vma.hugetlb)
        })
    }

    /// The range that a call for a mapping of `HugeTLB` is about, which has whole huge pages: `mremap` takes
    /// the last one, too (`vma_to_resize`, `mm/mremap.c`).
    #[must_use]
    pub fn whole_hugetlb(&self, at: VirtAddr, range: VirtRange) -> VirtRange {
        if self.vma(at).is_some_and(|(_, vma)| vma.hugetlb) {
            VirtRange::new(range.start, range.end.align_up(HUGE))
        } else {
            range
        }
    }

    /// `madvise(MADV_COLLAPSE)`: makes 2 MB pages of a range now, whatever the policy.
    pub fn collapse_range(
        &mut self,
        range: VirtRange,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        let mut at = range.start.align_up(HUGE);
        while at.get() + HUGE <= range.end.get() {
            let whole = VirtRange::with_length(at, HUGE);
            let fits = self.vma(at).is_some_and(|(range, vma)| {
                range.covers(whole) && vma.kind == VmaKind::Anonymous && !vma.shared
            });
            if fits && self.present_around(at, memory) > 0 {
                self.collapse(at, policy, memory, effects);
            }
            at = at + HUGE;
        }
    }

    /// The first aligned 2 MB at or after the pass's position that lies inside one private
    /// anonymous mapping and has something mapped in it. Linux's pass also spends its budget on
    /// ranges with nothing in them.
    fn next_candidate(&self) -> Option<(VirtAddr, Vma)> {
        let mut from = VirtAddr::new(self.pass_position);
        loop {
            let rest = VirtRange {
                start: from,
                ..EVERYTHING
            };
            let (page, _) = self.table.pages(rest).next()?;
            let mapped = page.max(from);
            let whole = VirtRange::page_around(mapped, PageSize::Size2M);
            if let Some((range, vma)) = self.vma(mapped)
                && range.covers(whole)
                && vma.kind == VmaKind::Anonymous
                && !vma.shared
            {
                return Some((whole.start, vma));
            }
            from = whole.end;
        }
    }

    /// Makes one 2 MB page of the small pages around an address. Nothing happens when no block is
    /// free or a page is shared.
    pub(crate) fn collapse(
        &mut self,
        address: VirtAddr,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        let range = VirtRange::page_around(address, PageSize::Size2M);
        let parts: Vec<_> = self.table.pages(range).map(|(_, leaf)| leaf).collect();
        let blanks = policy.recovers_zeros().then(|| {
            let mut blanks = blanks::ALL;
            let pages = self.table.pages(range);
            for (at, _) in pages.filter(|(_, leaf)| !memory.is_zero(*leaf)) {
                let page = (at - range.start) / PAGE_BYTES;
                blanks[(page / 64) as usize] &= !(1 << (page % 64));
            }
            blanks
        });
        let movable = parts.iter().all(|part| {
            part.size == PageSize::Size4K
                && memory.references(part.frame) == 1
                && !memory.is_pinned(part.frame)
                && !part.is_discardable()
        });
        if !movable {
            if self.table.has_shadows() {
                self.promote(range, policy, memory, effects);
            }
            return;
        }
        let restricted = self.obtain_restricted(address, PageSize::Size2M, memory, effects);
        let frame =
            restricted.or_else(|| obtain_huge(FrameClass::Anonymous, Effort::Direct, memory));
        let Some(frame) = frame else {
            if self.table.has_shadows() {
                self.promote(range, policy, memory, effects);
            } else {
                effects.fallbacks += 1;
            }
            return;
        };
        let own: Vec<_> = parts
            .iter()
            .filter(|part| !memory.is_zero(**part))
            .collect();
        let is_writable = own.iter().all(|part| part.writable);
        let present = own.len() as u64;
        let huge = Leaf {
            accessed: true,
            dirty: parts.iter().any(|part| part.dirty),
            ..Leaf::new(frame, PageSize::Size2M, is_writable)
        };
        let Ok(node) = self.table.collapse_2m(range.start, huge) else {
            free(frame, memory);
            return;
        };
        if let Some(node) = node {
            free(node, memory);
        }
        self.settle_table(memory, effects);
        effects.unmapped += parts.len() as u64;
        for part in parts {
            release(part, memory, effects);
        }
        let owner = contigua_frames::Owner {
            space: self.id.0,
            page: range.start.page(),
        };
        let _ = memory.set_owner(frame, Some(owner));
        memory.enter_tag(self.id, range.start, huge);
        self.resident.pages_4k -= present;
        self.resident.pages_2m += 1;
        if let Some(blanks) = blanks {
            self.blanks.insert(range.start, blanks);
        }
        effects.collapses += 1;
        effects.copied_4k += present;
        effects.zeroed_4k += u64::from(PARTS) - present;
        effects.invalidations.push(range);
    }
}
