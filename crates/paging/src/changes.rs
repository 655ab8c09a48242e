//! Changes to an address space by system calls.

use contigua_units::{PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::Effects;
use crate::memory::Memory;
use crate::policy::MappingPolicy;
use crate::space::{AddressSpace, EVERYTHING, GROUP, SpaceId, free_node};
use crate::stack::Stack;
use crate::table::visit::Cursor;
use crate::vma::{Disabled, HugeAdvice, Vma, VmaKind};

impl AddressSpace {
    /// `mmap`: the range gets a mapping; what was there before goes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when a huge page must be split and there is no frame for the node.
    pub fn map(
        &mut self,
        range: VirtRange,
        vma: Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        self.clear(range, &vma, memory, effects)?;
        if !self.place(range, vma, effects) {
            self.vmas.insert(range.start.get()..range.end.get(), vma);
        }
        Ok(())
    }

    /// Unmaps a range for a mapping that comes there, of which the object may be the same.
    fn clear(
        &mut self,
        range: VirtRange,
        coming: &Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        if coming.backing.is_some() {
            // Holes of perforated pages are no pages of an object.
            self.split_edges(range, memory, effects)?;
        }
        memory.map_object(range, coming);
        let cleared = self.unmap(range, memory, effects);
        cleared.inspect_err(|_| memory.unmap_object(range, coming, effects))
    }

    /// `munmap`.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn unmap(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        if range.is_empty() {
            return Ok(());
        }
        self.unplace(range, memory, effects)?;
        self.discard_here(range, memory, effects)?;
        self.unmap_objects(range, memory, effects);
        self.vmas.remove(range.start.get()..range.end.get());
        let around = VirtRange::new(
            range.start.align_down(PageSize::Size2M.bytes()),
            range.end.align_up(PageSize::Size2M.bytes()),
        );
        let is_used =
            |from: VirtAddr, to: VirtAddr| from < to && self.vmas.overlaps(&(from.get()..to.get()));
        // What another mapping uses stays.
        let unused = VirtRange {
            start: if is_used(around.start, range.start) {
                range.start.align_up(PageSize::Size2M.bytes())
            } else {
                around.start
            },
            end: if is_used(range.end, around.end) {
                range.end.align_down(PageSize::Size2M.bytes())
            } else {
                around.end
            },
        };
        self.prune(unused, memory, effects);
        if self.table.areas().is_some() {
            let is_mapped =
                |range: VirtRange| self.vmas.overlaps(&(range.start.get()..range.end.get()));
            self.table.release_areas(is_mapped);
            self.settle_areas(memory, effects);
        }
        Ok(())
    }

    /// Mappings of shared objects go from a range.
    pub(crate) fn unmap_objects(
        &self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        for (piece, vma) in self.vmas.overlapping(range.start.get()..range.end.get()) {
            let piece = VirtRange::new(VirtAddr::new(piece.start), VirtAddr::new(piece.end));
            memory.unmap_object(piece.intersection(range), vma, effects);
        }
    }

    /// Frees the page tables of a range that are empty.
    pub(crate) fn prune(&mut self, range: VirtRange, memory: &mut Memory, effects: &mut Effects) {
        if range.is_empty() {
            return;
        }
        let before = effects.freed_nodes;
        self.table
            .prune(range, |node| free_node(node, memory, effects));
        let huge = PageSize::Size2M.bytes();
        let is_told = effects.invalidations.iter().any(|told| {
            told.start.align_down(huge) <= range.start && range.end <= told.end.align_up(huge)
        });
        // Page-walk caches may lead to an empty table, too (`tlb_remove_table`).
        if effects.freed_nodes > before && !is_told {
            effects.invalidations.push(range);
        }
    }

    /// `madvise(MADV_DONTNEED)`: pages go; the mapping stays, and page tables stay. Where one is
    /// left, faults map 4 KB until the background pass collapses, as in Linux without
    /// `CONFIG_PT_RECLAIM` (6.14).
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn discard(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let (inside, outside) = self.places(range);
        for part in inside {
            self.discard_placed(part, memory, effects)?;
        }
        outside
            .into_iter()
            .try_for_each(|part| self.discard_here(part, memory, effects))
    }

    /// Takes away the pages of a range of addresses as they are. Where pages can be perforated,
    /// huge pages that reach beyond the range get holes instead of being split.
    pub(crate) fn discard_here(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let mut whole = range;
        for part in self.partly_covered(range, memory) {
            self.discard_part(part, memory, effects)?;
            if part.start == whole.start {
                whole.start = part.end;
            } else {
                whole.end = part.start;
            }
        }
        let mut pages = self.pages_within(whole, memory, effects)?;
        while let Some((address, _)) = pages.next(&self.table) {
            self.evict(address, memory, effects);
        }
        Ok(())
    }

    /// The parts of a range that cover some of a 2 MB page and can become holes of it.
    fn partly_covered(&self, range: VirtRange, memory: &Memory) -> Vec<VirtRange> {
        let mut parts = Vec::new();
        if !self.table.has_shadows() || range.is_empty() {
            return parts;
        }
        for edge in [range.start, VirtAddr::new(range.end.get() - 1)] {
            let page = VirtRange::page_around(edge, PageSize::Size2M);
            let is_huge = self
                .table
                .leaf(edge)
                .is_some_and(|leaf| leaf.size == PageSize::Size2M && !memory.is_zero(leaf))
                && !self.is_of_object(edge);
            let part = page.intersection(range);
            if is_huge && part != page && !parts.contains(&part) {
                parts.push(part);
            }
        }
        parts
    }

    /// The pages of a range, after splitting huge pages that reach beyond it. When there are any,
    /// the range is invalidated: callers are about to change them.
    fn pages_within(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Cursor, Error> {
        if !range.is_empty() {
            self.split_edges(range, memory, effects)?;
            self.invalidate_pages(range, effects);
        }
        Ok(Cursor::new(range))
    }

    /// Invalidates a range if there are pages in it.
    fn invalidate_pages(&self, range: VirtRange, effects: &mut Effects) {
        if self.table.pages(range).next().is_some() {
            effects.invalidations.push(range);
        }
    }

    /// `madvise(MADV_FREE)`: private anonymous pages may be taken back until they are written.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn free_lazily(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let (inside, outside) = self.places(range);
        let limit = self.segment().limit;
        for part in inside
            .into_iter()
            .filter(|part| part.start >= limit)
            .chain(outside)
        {
            self.free_lazily_here(part, memory, effects)?;
        }
        Ok(())
    }

    fn free_lazily_here(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        self.split_perforated_within(range, memory, effects)?;
        let mut pages = self.pages_within(range, memory, effects)?;
        while let Some((address, leaf)) = pages.next(&self.table) {
            let private = self
                .vma(address)
                .is_some_and(|(_, vma)| vma.kind == VmaKind::Anonymous && !vma.shared);
            if !private || leaf.is_discardable() || memory.is_zero(leaf) {
                continue;
            }
            self.unfold(address, effects);
            // Clean, so that hardware marks the first write, without a fault (Linux's
            // `madvise_free_pte_range`).
            self.table.update(address, |leaf| {
                leaf.lazily_freed = true;
                leaf.accessed = false;
                leaf.dirty = false;
            });
            effects.rewritten += 1;
            if !leaf.lazily_freed {
                self.lazily_freed.push_back(address);
            }
        }
        Ok(())
    }

    /// Makes 4 KB pages of the perforated pages of a range.
    fn split_perforated_within(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let first = range.start.align_down(PageSize::Size2M.bytes()).get();
        let pages: Vec<u64> = self
            .perforated
            .range(first..range.end.get())
            .map(|(&page, _)| page)
            .collect();
        pages
            .into_iter()
            .try_for_each(|page| self.split(VirtAddr::new(page), memory, effects))
    }

    /// `madvise(MADV_HUGEPAGE)` and `MADV_NOHUGEPAGE`.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn advise_huge(
        &mut self,
        range: VirtRange,
        advice: HugeAdvice,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        // The primary region is one mapping.
        let (_, outside) = self.places(range);
        outside
            .into_iter()
            .try_for_each(|part| self.change_vmas(part, memory, effects, |vma| vma.huge = advice))
    }

    /// Makes a mapping the main thread's stack, unless a higher one is. It has the addresses that were
    /// touched, and no huge page beyond them.
    pub fn set_stack(&mut self, range: VirtRange) {
        if self.stack.is_none_or(|stack| stack.end() < range.end) {
            self.stack = Some(Stack::new(range));
        }
    }

    /// `prctl(PR_SET_THP_DISABLE)`. Huge pages that are there stay.
    pub fn disable_huge(&mut self, disabled: Disabled) {
        self.disabled = disabled;
    }

    /// Mappings that the process has disabled huge pages for, which the next program inherits.
    #[must_use]
    pub fn disabled(&self) -> Disabled {
        self.disabled
    }

    /// `mprotect`, as far as stores are concerned.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn protect(
        &mut self,
        range: VirtRange,
        writable: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        // A segment has one permission, and so has the region around it (Direct Segments, section
        // 3.1).
        let (_, outside) = self.places(range);
        outside
            .into_iter()
            .try_for_each(|part| self.protect_here(part, writable, memory, effects))
    }

    fn protect_here(
        &mut self,
        range: VirtRange,
        writable: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        // As in Linux, every entry of a mapping that changes is rewritten, and of no other.
        for (piece, _) in self.changed_vmas(range, |vma| vma.writable = writable) {
            let piece = VirtRange::new(VirtAddr::new(piece.start), VirtAddr::new(piece.end));
            effects.rewritten += self.table.pages(piece).count() as u64;
        }
        if writable {
            // Pages become writable one by one, when they are written: they may be shared.
            return self.change_vmas(range, memory, effects, |vma| vma.writable = true);
        }
        // Where pages can be perforated, part of one gets holes with a permission of their own.
        for part in self.partly_covered(range, memory) {
            self.protect_part(part, memory, effects)?;
        }
        self.change_vmas_only(range, |vma| vma.writable = false);
        if self.table.has_shadows() {
            self.split_odd_edges(range, memory, effects)?;
        } else {
            self.split_edges(range, memory, effects)?;
        }
        self.invalidate_pages(range, effects);
        let mut pages = Cursor::new(range);
        while let Some((address, leaf)) = pages.next(&self.table) {
            let page = VirtRange::page_around(address, leaf.size);
            if !range.covers(page) {
                // Its part was protected above.
                continue;
            }
            self.unfold(address, effects);
            self.table.update(address, |leaf| leaf.writable = false);
            if leaf.perforation.is_some() {
                self.protect_holes(address);
            }
        }
        Ok(())
    }

    /// Changes the mappings of a range. A huge page that reaches across the edge of a mapping that
    /// is cut in two is split first, as in Linux (`vma_adjust_trans_huge`).
    pub(crate) fn change_vmas(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
        change: impl Fn(&mut Vma),
    ) -> Result<(), Error> {
        for (piece, vma) in self.changed_vmas(range, change) {
            self.split_edges(
                VirtRange::new(VirtAddr::new(piece.start), VirtAddr::new(piece.end)),
                memory,
                effects,
            )?;
            self.vmas.insert(piece, vma);
        }
        Ok(())
    }

    /// Changes VMAs where no huge page has to be split.
    fn change_vmas_only(&mut self, range: VirtRange, change: impl Fn(&mut Vma)) {
        for (piece, vma) in self.changed_vmas(range, change) {
            self.vmas.insert(piece, vma);
        }
    }

    fn changed_vmas(
        &self,
        range: VirtRange,
        change: impl Fn(&mut Vma),
    ) -> Vec<(std::ops::Range<u64>, Vma)> {
        if range.is_empty() {
            return Vec::new();
        }
        let within = range.start.get()..range.end.get();
        self.vmas
            .overlapping(within.clone())
            .filter_map(|(piece, old)| {
                let piece = piece.start.max(within.start)..piece.end.min(within.end);
                let mut new = *old;
                change(&mut new);
                (new != *old).then_some((piece, new))
            })
            .collect()
    }

    /// Splits the huge pages that reach across an end of a range.
    pub(crate) fn split_edges(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        for edge in [range.start, range.end] {
            if !edge.is_aligned(GROUP.bytes()) {
                self.unfold(edge, effects);
            }
            while let Some(leaf) = self.table.leaf(edge)
                && !edge.is_aligned(leaf.size.bytes())
            {
                self.split(edge, memory, effects)?;
            }
        }
        Ok(())
    }

    /// `mremap`: a mapping moves or changes its size. With `keep`, the old range stays mapped,
    /// without pages.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn remap(
        &mut self,
        from: VirtRange,
        to: VirtRange,
        keep: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        if !self.places(from).0.is_empty() {
            return self.remap_placed(from, to, keep, memory, effects);
        }
        let Some((_, vma)) = self.vma(from.start) else {
            return self.map(to, Vma::ANONYMOUS, memory, effects);
        };
        if from.start == to.start {
            if to.end < from.end {
                let tail = VirtRange::new(to.end, from.end);
                return self.unmap(tail, memory, effects);
            }
            let tail = VirtRange::new(from.end, to.end);
            return self.map(tail, vma, memory, effects);
        }
        let distance = to.start.get().wrapping_sub(from.start.get());
        let vma = vma.moved(distance);
        self.clear(to, &vma, memory, effects)?;
        self.vmas.insert(to.start.get()..to.end.get(), vma);
        let moved = VirtRange::with_length(from.start, from.bytes().min(to.bytes()));
        if !distance.is_multiple_of(PageSize::Size2M.bytes()) {
            self.split_all(moved, memory, effects)?;
        }
        self.split_perforated_within(moved, memory, effects)?;
        let mut pages = self.pages_within(moved, memory, effects)?;
        while let Some((address, leaf)) = pages.next(&self.table) {
            if leaf.size == PageSize::Size1G {
                self.split_all(VirtRange::page_around(address, leaf.size), memory, effects)?;
            }
        }
        let mut table_moved = None;
        let mut pages = self.pages_within(moved, memory, effects)?;
        while let Some((address, _)) = pages.next(&self.table) {
            self.unfold(address, effects);
            if let Some(leaf) = self.take(address, memory, effects) {
                let target = VirtAddr::new(address.get().wrapping_add(distance));
                self.install(target, leaf, memory, effects)?;
                // Where it can, Linux moves a page table whole (`move_normal_pmd`).
                let whole = VirtRange::page_around(address, PageSize::Size2M);
                let moves_table =
                    distance.is_multiple_of(PageSize::Size2M.bytes()) && moved.covers(whole);
                if !moves_table || table_moved != Some(whole.start) {
                    effects.rewritten += 2;
                }
                table_moved = moves_table.then_some(whole.start);
            }
        }
        if keep {
            return self.discard(from, memory, effects);
        }
        self.unmap(from, memory, effects)
    }

    /// End of the heap; `None` before the program has asked for it.
    #[must_use]
    pub fn heap_end(&self) -> Option<VirtAddr> {
        self.heap_end
    }

    /// `brk`. The first call tells where the heap begins.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn set_break(
        &mut self,
        end: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let end = end.align_up(contigua_units::PAGE_BYTES);
        let Some(before) = self.heap_end.replace(end) else {
            return Ok(());
        };
        if end > before {
            let grown = VirtRange { start: before, end };
            return self.map(grown, Vma::ANONYMOUS, memory, effects);
        }
        let shrunk = VirtRange::new(end, before);
        self.unmap(shrunk, memory, effects)
    }

    /// `MAP_POPULATE` and `MADV_POPULATE_*`: reads or writes every page of a range.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn populate(
        &mut self,
        range: VirtRange,
        write: bool,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let (inside, outside) = self.places(range);
        for part in inside.into_iter().chain(outside) {
            self.populate_here(part, write, policy, memory, effects)?;
        }
        Ok(())
    }

    fn populate_here(
        &mut self,
        range: VirtRange,
        write: bool,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let mut at = range.start.max(self.limit_within(range));
        while at < range.end {
            let write = write && self.vma(at).is_some_and(|(_, vma)| vma.writable);
            let size = match self.table.leaf(at) {
                Some(leaf) if !write || !memory.is_zero(leaf) => leaf.size,
                _ => {
                    effects.populated += 1;
                    self.fault(at, write, policy, memory, effects)?.size
                }
            };
            at = at.align_down(size.bytes()) + size.bytes();
        }
        Ok(())
    }

    /// First address of a range that is paged: its start, or the end of a segment in it.
    pub(crate) fn limit_within(&self, range: VirtRange) -> VirtAddr {
        let segment = self.segment();
        match segment.translate(range.start) {
            Some(_) => segment.limit,
            None => range.start,
        }
    }

    /// `fork`: a copy that shares all pages. Private ones become read-only on both sides and are
    /// copied when one side writes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the parent is unchanged but for protections then.
    ///
    /// # Panics
    /// When a mapped page's frames are free: [`AddressSpace::validate`] would have said so.
    pub fn fork(
        &mut self,
        child: SpaceId,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Self, Error> {
        // Copy on write is for pages (Direct Segments, section 4), and for whole ones here.
        if self.segment().bytes() > 0 {
            self.shrink_segment(self.segment().base, memory, effects)?;
        }
        self.split_perforated_within(EVERYTHING, memory, effects)?;
        let child = Self::with(child, self.shape(), memory)?;
        self.fork_to(child, memory, effects)
    }

    /// Makes the child, as [`AddressSpace::fork`], of a space of this shape in which nothing is mapped. The parent has
    /// no segment and no perforated pages.
    ///
    /// # Errors
    /// As for [`AddressSpace::fork`]; what the child had is freed.
    pub fn fork_to(
        &mut self,
        mut copy: Self,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Self, Error> {
        copy.vmas = self.vmas.clone();
        for (range, vma) in copy.vmas.iter().filter(|(_, vma)| vma.backing.is_some()) {
            let range = VirtRange::new(VirtAddr::new(range.start), VirtAddr::new(range.end));
            memory.map_object(range, vma);
        }
        copy.fragmentation = self.fragmentation;
        copy.primary = self.primary_of_child();
        copy.heap_end = self.heap_end;
        copy.stack = self.stack;
        copy.disabled = self.disabled;
        copy.assumes_mappings = self.assumes_mappings;
        self.invalidate_pages(EVERYTHING, effects);
        let mut pages = Cursor::new(EVERYTHING);
        while let Some((address, mut leaf)) = pages.next(&self.table) {
            if self.is_of_object(address) {
                // The child's faults find it in the object (`vma_needs_copy`).
                continue;
            }
            effects.inherited += 1;
            if !self.vma(address).is_some_and(|(_, vma)| vma.shared) {
                leaf.writable = false;
                self.table.update(address, |leaf| leaf.writable = false);
            }
            if let Err(error) = copy.inherit(address, leaf, memory, effects) {
                copy.destroy(memory, effects);
                return Err(error);
            }
        }
        Ok(copy)
    }
}
