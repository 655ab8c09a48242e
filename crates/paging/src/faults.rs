//! Page faults, and which pages they map.

use contigua_frames::{Effort, FrameClass, Owner, Pick, Request};
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::blanks;
use crate::effects::{Effects, Fault, FaultKind};
use crate::memory::Memory;
use crate::perforated::Perforated;
use crate::policy::{FaultContext, MappingPolicy};
use crate::space::{AddressSpace, effort_for, obtain_huge, release};
use crate::table::Leaf;
use crate::vma::{HugeAdvice, Vma, VmaKind};

impl AddressSpace {
    /// Resolves a fault: the access at `address` will find a page afterwards.
    ///
    /// The program made the access, so its kernel allowed it. Where no known mapping explains it
    /// (System V shared memory, the vsyscall page), a page is mapped and counted in
    /// [`Effects::unexplained`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn fault(
        &mut self,
        address: VirtAddr,
        write: bool,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        if let Some(fault) = self.grow_segment(address, memory, effects) {
            return Ok(fault);
        }
        if let Some(stack) = &mut self.stack {
            stack.touch(address);
        }
        let is_known = !self.assumes_mappings && self.vma(address).is_some();
        let (range, vma) = self.explain(address, write, memory, effects)?;
        match self.table.leaf(address) {
            Some(leaf) if leaf.perforation.is_some() => {
                self.fault_perforated(address, write, leaf, vma, memory, effects)
            }
            None if !write
                && is_known
                && let Some(fault) =
                    self.read_zeros(address, range, vma, policy, memory, effects)? =>
            {
                Ok(fault)
            }
            None if let Some(backing) = vma.backing => {
                self.fault_in_shared(address, write, range, vma, backing, policy, memory, effects)
            }
            None => self.fault_in(address, write, range, vma, policy, memory, effects),
            Some(leaf) if write && memory.is_zero(leaf) => {
                self.write_to_zeros(address, leaf, range, vma, policy, memory, effects)
            }
            Some(leaf) if write && !leaf.writable => {
                self.make_writable(address, leaf, vma, memory, effects)
            }
            Some(leaf) => Ok(Fault {
                kind: FaultKind::Spurious,
                size: leaf.size,
            }),
        }
    }

    /// The mapping that allows an access; one is made where there is none.
    fn explain(
        &mut self,
        address: VirtAddr,
        write: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(VirtRange, Vma), Error> {
        match self.vma(address) {
            Some((range, vma)) if vma.writable || !write => Ok((range, vma)),
            other => {
                let page = VirtRange::page_around(address, PageSize::Size4K);
                self.split_edges(page, memory, effects)?;
                effects.unexplained += 1;
                let vma = Vma {
                    writable: true,
                    huge: HugeAdvice::NoHuge,
                    ..other.map_or(Vma::ANONYMOUS, |(_, vma)| vma)
                };
                self.vmas.insert(page.start.get()..page.end.get(), vma);
                Ok((page, vma))
            }
        }
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one step of `fault`, kept apart to be read"
    )]
    pub(crate) fn fault_in(
        &mut self,
        address: VirtAddr,
        write: bool,
        range: VirtRange,
        vma: Vma,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        let fits = self.largest_fit(address, range, vma);
        let seen = vma.under(self.disabled);
        let wanted = wanted_of_private(address, seen, fits, policy);
        let copies_file = write && vma.kind == VmaKind::File && !vma.shared;
        let class = if vma.kind == VmaKind::Anonymous || copies_file {
            FrameClass::Anonymous
        } else {
            FrameClass::PageCache
        };
        if wanted == PageSize::Size2M && class == FrameClass::Anonymous {
            let done = self.fault_in_holes(address, vma, policy, memory, effects)?;
            if let Some(fault) = done {
                return Ok(fault);
            }
        }
        let effort = effort_for(vma, memory);
        let placed = if policy.keeps_offsets() && class == FrameClass::Anonymous {
            let size = wanted.min(PageSize::Size2M);
            let frame = self.offsets.take(address, size, range, memory);
            frame.map(|frame| (frame, size))
        } else {
            None
        };
        let restricted = if wanted == PageSize::Size2M && class == FrameClass::Anonymous {
            let frame = self.obtain_restricted(address, wanted, memory, effects);
            frame.map(|frame| (frame, wanted))
        } else {
            None
        };
        let placed = placed.or(restricted);
        let huge =
            placed.or_else(|| Self::allocate_huge(wanted, class, effort, policy, memory, effects));
        let (frame, size) = if let Some(huge) = huge {
            huge
        } else {
            let done = self.fault_in_folio(address, range, vma, policy, memory, effects)?;
            if let Some(fault) = done {
                return Ok(fault);
            }
            let frame = self.obtain_page(address, class, memory, effects)?;
            (frame, PageSize::Size4K)
        };
        let leaf = Leaf {
            dirty: write,
            ..Leaf::new(
                frame,
                size,
                vma.writable && (class == FrameClass::Anonymous || vma.shared),
            )
        };
        self.install(address, leaf, memory, effects)?;
        let kind = match (class, size) {
            _ if copies_file => {
                effects.copied_4k += 1;
                effects.write(frame, 1, 0);
                FaultKind::CopyOnWrite
            }
            (FrameClass::PageCache, _) => {
                if vma.kind == VmaKind::File && !write {
                    self.map_around(address, range, leaf.writable, memory, effects);
                }
                FaultKind::File
            }
            _ => {
                if memory.take_zeroed(size.frames()) {
                    effects.prezeroed += u64::from(size.frames());
                } else {
                    effects.zero(address, frame, size);
                }
                if size == PageSize::Size2M && policy.recovers_zeros() {
                    self.blanks.insert(address, blanks::ALL);
                    if write {
                        self.blanks.fill(address);
                    }
                }
                FaultKind::Anonymous
            }
        };
        Ok(Fault { kind, size })
    }

    /// Maps what a read fault in a mapping of a file maps beside the page at `address`. All of a
    /// file's pages are taken to be in the page cache. Where memory is short, fewer are mapped.
    fn map_around(
        &mut self,
        address: VirtAddr,
        mapping: VirtRange,
        writable: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        for at in fault_around(address, mapping, memory) {
            if self.table.leaf(at).is_some() {
                continue;
            }
            let request = Request::new(Order::BASE, FrameClass::PageCache);
            let Some(frame) = memory.allocate(&request) else {
                return;
            };
            let leaf = Leaf::new(frame, PageSize::Size4K, writable);
            if self.install(at, leaf, memory, effects).is_err() {
                return;
            }
            effects.around += 1;
        }
    }

    /// The largest page around an address that lies wholly inside its mapping, where nothing is
    /// mapped. Only private anonymous memory gets large pages.
    pub(crate) fn largest_fit(&self, address: VirtAddr, range: VirtRange, vma: Vma) -> PageSize {
        if vma.kind != VmaKind::Anonymous || vma.shared {
            return PageSize::Size4K;
        }
        [PageSize::Size1G, PageSize::Size2M]
            .into_iter()
            .find(|&size| {
                range.covers(VirtRange::page_around(address, size))
                    && self.table.is_vacant(address, size)
            })
            .unwrap_or(PageSize::Size4K)
    }

    /// A block for a page of the wanted size, or of a smaller one of at least 2 MB.
    pub(crate) fn allocate_huge(
        wanted: PageSize,
        class: FrameClass,
        effort: Effort,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Option<(Frame, PageSize)> {
        if wanted >= PageSize::Size2M && policy.uses_reserved() {
            let sizes = [PageSize::Size1G, PageSize::Size2M];
            for size in sizes.into_iter().filter(|&size| size <= wanted) {
                if let Some(frame) = memory.take_reserved(size) {
                    return Some((frame, size));
                }
            }
            effects.fallbacks += 1;
        } else if wanted >= PageSize::Size2M {
            if wanted == PageSize::Size1G && policy.takes_giant() {
                if let Some(frame) = memory.take_giant(Pick::First, 0, &mut ()) {
                    effects.giants += 1;
                    return Some((frame, PageSize::Size1G));
                }
                effects.giants_failed += 1;
            }
            match obtain_huge(class, effort, memory) {
                Some(frame) => return Some((frame, PageSize::Size2M)),
                None => effects.fallbacks += 1,
            }
        }
        None
    }

    /// Lets stores through to a page that is mapped read-only: at once when nobody else sees it,
    /// to a copy otherwise.
    pub(crate) fn make_writable(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
        vma: Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        let mut leaf = leaf;
        let is_whole = memory.order(leaf.frame) == Some(leaf.size.order());
        let is_alone = is_whole && memory.references(leaf.frame) == 1;
        let is_file = memory.class(leaf.frame) == Some(FrameClass::PageCache);
        self.unfold(address, effects);
        if vma.shared || is_alone && !is_file {
            self.table.update(address, |leaf| {
                leaf.writable = true;
                leaf.dirty = true;
                leaf.lazily_freed = false;
            });
            if is_alone && memory.owner(leaf.frame).is_none() {
                let owner = Owner {
                    space: self.id.0,
                    page: address.align_down(leaf.size.bytes()).page(),
                };
                let _ = memory.set_owner(leaf.frame, Some(owner));
            }
            effects
                .upgrades
                .push(VirtRange::page_around(address, leaf.size));
            return Ok(Fault {
                kind: FaultKind::Spurious,
                size: leaf.size,
            });
        }
        while leaf.size != PageSize::Size4K {
            if leaf.size == PageSize::Size2M && self.table.has_shadows() {
                let whole = Perforated::whole(leaf.frame);
                self.perforate(address, whole, memory, effects)?;
                let leaf = self.table.leaf(address).ok_or(Error::OutOfMemory)?;
                return self.fault_perforated(address, true, leaf, vma, memory, effects);
            }
            self.split(address, memory, effects)?;
            leaf = self.table.leaf(address).ok_or(Error::OutOfMemory)?;
            let whole = memory.order(leaf.frame) == Some(leaf.size.order());
            if whole && memory.references(leaf.frame) == 1 {
                return self.make_writable(address, leaf, vma, memory, effects);
            }
        }
        let frame = self.obtain_page(address, FrameClass::Anonymous, memory, effects)?;
        let size = PageSize::Size4K;
        // Reclaim may have taken the page itself. Writing the entry is part of a fault.
        if let Some(old) = self.take(address, memory, effects) {
            release(old, memory, effects);
        }
        let copy = Leaf {
            dirty: true,
            ..Leaf::new(frame, size, true)
        };
        self.install(address, copy, memory, effects)?;
        effects.copied_4k += 1;
        effects.write(frame, 1, 0);
        effects
            .invalidations
            .push(VirtRange::page_around(address, size));
        Ok(Fault {
            kind: FaultKind::CopyOnWrite,
            size,
        })
    }

    /// The size of page that the policy wants for a first write to an address.
    #[must_use]
    pub fn wanted_size(
        &self,
        address: VirtAddr,
        policy: &dyn MappingPolicy,
        memory: &Memory,
    ) -> PageSize {
        let Some((range, vma)) = self.vma(address) else {
            return PageSize::Size4K;
        };
        if let Some(backing) = vma.backing {
            return self.wanted_of_object(address, range, vma, backing, policy, memory);
        }
        let fits = match self.table.leaf(address) {
            Some(leaf) if memory.is_zero(leaf) => leaf.size,
            _ => self.largest_fit(address, range, vma),
        };
        wanted_of_private(address, vma.under(self.disabled), fits, policy)
    }
}

/// Size of the page that a first write to private memory wants, where one of a size would fit.
fn wanted_of_private(
    address: VirtAddr,
    vma: Vma,
    fits: PageSize,
    policy: &dyn MappingPolicy,
) -> PageSize {
    if vma.hugetlb {
        return fits.min(PageSize::Size2M);
    }
    policy
        .on_fault(&FaultContext { address, vma, fits })
        .min(fits)
}

/// Pages that a read fault of a file may map (`do_fault_around` in Linux 6.4's `mm/memory.c`): the
/// aligned window around an address, which begins no earlier than the mapping and ends with it or
/// with the page table.
pub(crate) fn fault_around(
    address: VirtAddr,
    mapping: VirtRange,
    memory: &Memory,
) -> impl Iterator<Item = VirtAddr> + use<> {
    let window = memory.fault_around_pages() * PAGE_BYTES;
    let table = VirtRange::page_around(address, PageSize::Size2M);
    let start = address.align_down(window).max(mapping.start);
    let around = VirtRange::with_length(start, window)
        .intersection(mapping)
        .intersection(table);
    (0..around.bytes() / PAGE_BYTES).map(move |i| around.start + i * PAGE_BYTES)
}
