//! What system calls change in an address space.

use contigua_units::{PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::policy::MappingPolicy;
use crate::space::{AddressSpace, EVERYTHING, Effects, Memory, SpaceId, free};
use crate::table::Leaf;
use crate::vma::{HugeAdvice, Vma, VmaKind};

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
        self.discard(range, memory, effects)?;
        self.vmas.insert(range.start.get()..range.end.get(), vma);
        Ok(())
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
        self.discard(range, memory, effects)?;
        self.vmas.remove(range.start.get()..range.end.get());
        Ok(())
    }

    /// `madvise(MADV_DONTNEED)`: pages go, the mapping stays.
    ///
    /// # Errors
    /// As for [`AddressSpace::map`].
    pub fn discard(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        for (address, _) in self.pages_within(range, memory, effects)? {
            self.evict(address, memory);
        }
        Ok(())
    }

    /// The pages of a range, after splitting huge pages that reach beyond it. When there are any,
    /// the range is invalidated: callers are about to change them.
    fn pages_within(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Vec<(VirtAddr, Leaf)>, Error> {
        let mut pages = Vec::new();
        if range.is_empty() {
            return Ok(pages);
        }
        self.split_edges(range, memory, effects)?;
        self.table
            .for_each(range, |address, leaf| pages.push((address, leaf)));
        if !pages.is_empty() {
            effects.invalidations.push(range);
        }
        Ok(pages)
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
        for (address, leaf) in self.pages_within(range, memory, effects)? {
            let private = self
                .vma(address)
                .is_some_and(|(_, vma)| vma.kind == VmaKind::Anonymous && !vma.shared);
            if private && !leaf.lazily_freed {
                // Read-only, so that the first write is seen.
                self.table.update(address, |leaf| {
                    leaf.lazily_freed = true;
                    leaf.writable = false;
                });
                self.lazily_freed.push_back(address);
            }
        }
        Ok(())
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
        self.change_vmas(range, memory, effects, |vma| vma.huge = advice)
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
        self.change_vmas(range, memory, effects, |vma| vma.writable = writable)?;
        if writable {
            // Pages become writable one by one, when they are written: they may be shared.
            return Ok(());
        }
        for (address, leaf) in self.pages_within(range, memory, effects)? {
            if leaf.writable {
                self.table.update(address, |leaf| leaf.writable = false);
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
        if range.is_empty() {
            return Ok(());
        }
        let within = range.start.get()..range.end.get();
        let pieces: Vec<_> = self
            .vmas
            .overlapping(within.clone())
            .filter_map(|(piece, old)| {
                let piece = piece.start.max(within.start)..piece.end.min(within.end);
                let mut new = *old;
                change(&mut new);
                (new != *old).then_some((piece, new))
            })
            .collect();
        for (piece, vma) in pieces {
            self.split_edges(
                VirtRange {
                    start: VirtAddr::new(piece.start),
                    end: VirtAddr::new(piece.end),
                },
                memory,
                effects,
            )?;
            self.vmas.insert(piece, vma);
        }
        Ok(())
    }

    /// Splits the huge pages that reach across an end of a range.
    pub(crate) fn split_edges(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        for edge in [range.start, range.end] {
            if let Some(leaf) = self.table.leaf(edge)
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
        let Some((_, vma)) = self.vma(from.start) else {
            return self.map(to, Vma::ANONYMOUS, memory, effects);
        };
        if from.start == to.start {
            if to.end < from.end {
                let tail = VirtRange {
                    start: to.end,
                    end: from.end,
                };
                return self.unmap(tail, memory, effects);
            }
            let tail = VirtRange {
                start: from.end,
                end: to.end,
            };
            return self.map(tail, vma, memory, effects);
        }
        self.map(to, vma, memory, effects)?;
        let moved = VirtRange::with_length(from.start, from.bytes().min(to.bytes()));
        let distance = to.start.get().wrapping_sub(from.start.get());
        if !distance.is_multiple_of(PageSize::Size2M.bytes()) {
            self.split_all(moved, memory, effects)?;
        }
        for (address, _) in self.pages_within(moved, memory, effects)? {
            if let Some(leaf) = self.take(address, memory) {
                let target = VirtAddr::new(address.get().wrapping_add(distance));
                self.install(target, leaf, memory, effects)?;
            }
        }
        if keep {
            return self.discard(from, memory, effects);
        }
        self.unmap(from, memory, effects)
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
        let shrunk = VirtRange {
            start: end,
            end: before,
        };
        self.unmap(shrunk, memory, effects)
    }

    /// `MAP_POPULATE` and `MADV_POPULATE_*`: touches every page of a range.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn populate(
        &mut self,
        range: VirtRange,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let mut at = range.start;
        while at < range.end {
            let size = if let Some(leaf) = self.table.leaf(at) {
                leaf.size
            } else {
                let writable = self.vma(at).is_some_and(|(_, vma)| vma.writable);
                self.fault(at, writable, policy, memory, effects)?.size
            };
            at = at.align_down(size.bytes()) + size.bytes();
        }
        Ok(())
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
        let mut copy = Self::new(child, memory)?;
        copy.vmas = self.vmas.clone();
        copy.heap_end = self.heap_end;
        let mut pages = Vec::new();
        self.table
            .for_each(EVERYTHING, |address, leaf| pages.push((address, leaf)));
        if !pages.is_empty() {
            effects.invalidations.push(EVERYTHING);
        }
        for (address, mut leaf) in pages {
            if !self.vma(address).is_some_and(|(_, vma)| vma.shared) {
                leaf.writable = false;
                self.table.update(address, |leaf| leaf.writable = false);
            }
            let whole = memory.order(leaf.frame) == Some(leaf.size.order());
            let frames = if whole { 1 } else { leaf.size.frames() };
            for i in 0..frames {
                let frame = leaf.frame.offset(i);
                if memory.add_reference(frame).is_err() {
                    (0..i).for_each(|i| free(leaf.frame.offset(i), memory));
                    copy.destroy(memory);
                    return Err(Error::OutOfMemory);
                }
                // The reverse mapping names one page, and there are two now: the frame stays.
                let _ = memory.set_owner(frame, None);
            }
            if let Err(error) = copy.install(address, leaf, memory, effects) {
                copy.destroy(memory);
                return Err(error);
            }
        }
        Ok(copy)
    }
}
