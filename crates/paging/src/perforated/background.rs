//! Background work of khugepaged on perforated pages: it makes them, and fills their holes.

use contigua_frames::{Effort, FrameClass};
use contigua_units::{PageSize, VirtAddr, VirtRange};

use super::faults::claim_block_with_holes;
use super::{Perforated, at, free_chunk};
use crate::effects::Effects;
use crate::holes::{Holes, SUB_PAGES, sub_page};
use crate::memory::Memory;
use crate::policy::MappingPolicy;
use crate::space::{AddressSpace, free, free_node, free_page, obtain_huge, release};
use crate::table::Leaf;

impl AddressSpace {
    /// Makes a perforated page of the small pages in an aligned 2 MB: those that cannot be moved become its holes, and
    /// those whose frame in the new block is in use. Nothing happens when no block is free.
    pub(crate) fn promote(
        &mut self,
        range: VirtRange,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        let Some((_, vma)) = self.vma(range.start) else {
            return;
        };
        let pages = self.table.pages(range);
        // Zero pages go, and their places are holes.
        let parts: Vec<_> = pages
            .filter(|(_, leaf)| !memory.is_zero(*leaf))
            .map(|(address, leaf)| (sub_page(address), leaf))
            .collect();
        let is_movable = |leaf: &Leaf, memory: &Memory| {
            memory.references(leaf.frame) == 1
                && !memory.is_pinned(leaf.frame)
                && !leaf.is_discardable()
                && leaf.writable == vma.writable
        };
        if !parts.iter().any(|(_, leaf)| is_movable(leaf, memory)) {
            return;
        }
        let whole = obtain_huge(FrameClass::Anonymous, Effort::Direct, memory);
        let block = whole.map(|chunk| (chunk, Holes::NONE));
        let Some((chunk, missing)) = block.or_else(|| claim_block_with_holes(policy, memory))
        else {
            effects.fallbacks += 1;
            return;
        };
        let holes: Holes = parts
            .iter()
            .filter(|(part, leaf)| !is_movable(leaf, memory) || missing.has(*part))
            .map(|&(part, _)| part)
            .collect();
        let absent = (0..SUB_PAGES).filter(|i| !parts.iter().any(|(part, _)| part == i));
        let absent: Holes = absent.collect();
        let own: Holes = (0..SUB_PAGES)
            .filter(|&i| holes.has(i) || absent.has(i) || missing.has(i))
            .collect();
        let perforated = Perforated {
            own,
            reserved: own.iter().filter(|&i| !missing.has(i)).collect(),
            ..Perforated::whole(chunk)
        };
        let leaf = Leaf {
            accessed: true,
            dirty: true,
            perforation: Some(own.filter()),
            ..Leaf::new(chunk, PageSize::Size2M, vma.writable)
        };
        let Ok(node) = self.table.collapse_2m(range.start, leaf) else {
            free_chunk(&perforated, &[], memory);
            return;
        };
        // The node of the small pages becomes the node of the holes.
        let mut spare = node;
        for &(part, leaf) in &parts {
            if holes.has(part) {
                let mapped = self
                    .table
                    .map_hole(at(range.start, part), leaf, |_| spare.take());
                debug_assert!(mapped.is_ok(), "one node holds all holes");
                let _ = memory.set_owner(leaf.frame, None);
            } else {
                effects.unmapped += 1;
                release(leaf, memory, effects);
                effects.copied_4k += 1;
            }
        }
        if let Some(node) = spare {
            free(node, memory);
        }
        self.resident.pages_4k -= parts.len() as u64;
        self.resident.pages_2m += 1;
        self.resident.perforated_frames += u64::from(holes.count());
        let done = self.perforate(range.start, perforated, memory, effects);
        debug_assert!(done.is_ok(), "a new chunk has no other sharers");
        effects.collapses += 1;
    }

    /// Fills holes whose frame in the chunk has become free, by moving their contents there.
    pub(crate) fn patch_pass(&mut self, most: usize, memory: &mut Memory, effects: &mut Effects) {
        let candidates: Vec<(u64, Perforated)> = self
            .perforated
            .range(self.patch_position..)
            .take(most)
            .map(|(&address, page)| (address, *page))
            .collect();
        let Some(&(last, _)) = candidates.last() else {
            self.patch_position = 0;
            return;
        };
        self.patch_position = last + 1;
        // A frame that a CPU keeps at hand is free, and looks taken.
        memory.drain_per_cpu();
        for (start, page) in candidates {
            if memory.holes.sharers(page.chunk) > 1 {
                continue;
            }
            for hole in page.own.iter().filter(|&hole| !page.foreign.has(hole)) {
                let address = at(VirtAddr::new(start), hole);
                let Some(leaf) = self.table.hole(address) else {
                    continue;
                };
                let frame = page.frame(hole);
                let is_plain = leaf.writable
                    && leaf.frame != frame
                    && memory.references(leaf.frame) == 1
                    && !memory.is_pinned(leaf.frame)
                    && memory.class(leaf.frame) == Some(FrameClass::Anonymous);
                let is_ours = page.reserved.has(hole);
                if !is_plain
                    || !is_ours && memory.allocate_at(frame, FrameClass::Anonymous).is_err()
                {
                    continue;
                }
                let _ = memory.set_owner(frame, None);
                self.table
                    .unmap_hole(address, |node| free_node(node, memory, effects));
                effects.unmapped += 1;
                free_page(leaf.frame, memory, effects);
                self.patch(address, memory, effects);
                effects.copied_4k += 1;
            }
        }
    }
}
