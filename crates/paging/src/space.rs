//! An address space, and what happens when its pages are touched.
//!
//! Simplifications, on purpose: a first read of anonymous memory gets a frame of its own instead
//! of the shared zero page, file pages are not shared between processes, and nothing is swapped.

use std::collections::{BTreeMap, VecDeque};

use contigua_frames::{Effort, FrameClass, Move, Owner, Request, Wakes};
use contigua_units::{Bytes, Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use rangemap::RangeMap;

use crate::Error;
use crate::holes::Fragmentation;
use crate::memory::Memory;
use crate::perforated::Perforated;
use crate::policy::{FaultContext, MappingPolicy};
use crate::primary::Primary;
use crate::table::{Leaf, Levels, NodeFrames, PageTable, TableError};
use crate::vma::{HugeAdvice, Vma, VmaKind};

/// Names an address space; TLB entries are tagged with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(pub u16);

/// Lazily freed pages that are taken back at a time when memory is short (Linux's
/// `SWAP_CLUSTER_MAX`).
const RECLAIM_BATCH: usize = 32;

/// Frames of a group of pages that are contiguous together: 64 KB.
pub(crate) const GROUP: Order = Order::new(4);

/// Addresses that a program whose mappings are unknown may use: the user half, without page 0.
const USER: std::ops::Range<u64> = 0x1_0000..0x7fff_ffff_f000;

/// Work that an operation caused, for others to do or to pay for. The caller clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Ranges whose translations may be cached and are no longer valid.
    pub invalidations: Vec<VirtRange>,
    /// Ranges whose pages allow more than before. Only the running core has to forget them: what
    /// others have cached allows less, and a store that it refuses walks again (Linux's
    /// `flush_tlb_fix_spurious_fault`; x86 needs no flush).
    pub upgrades: Vec<VirtRange>,
    /// Page-table entries cleared; a huge page has one.
    pub unmapped: u64,
    /// Page-table entries rewritten: another permission, the parts of a split page, a move.
    pub rewritten: u64,
    /// Page-table entries copied to a child.
    pub inherited: u64,
    /// Pages of any size whose last use ended and that were freed. Page cache is not: it stays
    /// cached in Linux.
    pub freed: u64,
    /// Page-table nodes freed.
    pub freed_nodes: u64,
    /// Pages mapped by a call, without a page fault for each.
    pub populated: u64,
    /// 4 KB pages zeroed.
    pub zeroed_4k: u64,
    /// 2 MB pages zeroed.
    pub zeroed_2m: u64,
    /// 4 KB pages copied.
    pub copied_4k: u64,
    /// Page-table nodes made.
    pub nodes: u64,
    /// Huge pages that were wanted and for which no block was free.
    pub fallbacks: u64,
    /// Huge pages made of small ones.
    pub collapses: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Accesses that no mapping explained; a page was mapped for each.
    pub unexplained: u64,
    /// Perforated pages made.
    pub perforations: u64,
    /// Holes made in pages that were mapped.
    pub punches: u64,
    /// Holes filled.
    pub patches: u64,
    /// Groups of 16 pages that were marked as contiguous, or lost the mark.
    pub folds: u64,
    /// Times that a direct segment changed: every core that runs the process must load its
    /// registers anew.
    pub segment_updates: u64,
    /// Sub-pages (first frame of the 2 MB, number) that became holes in one of several spaces
    /// that share the 2 MB: each other one must learn of it with [`AddressSpace::point_back`].
    pub shared_punches: Vec<(Frame, u32)>,
}

impl Effects {
    /// Forgets everything.
    pub fn clear(&mut self) {
        let mut invalidations = std::mem::take(&mut self.invalidations);
        let mut upgrades = std::mem::take(&mut self.upgrades);
        let mut shared_punches = std::mem::take(&mut self.shared_punches);
        invalidations.clear();
        upgrades.clear();
        shared_punches.clear();
        *self = Self {
            invalidations,
            upgrades,
            shared_punches,
            ..Self::default()
        };
    }
}

/// How a fault was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A zero-filled page was mapped.
    Anonymous,
    /// A page of a file was mapped.
    File,
    /// A page was copied, because others see the original.
    CopyOnWrite,
    /// The page was there; at most its protection changed.
    Spurious,
    /// A direct segment grew over the address.
    Segment,
}

/// A fault that was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How.
    pub kind: FaultKind,
    /// Size of the page that is mapped now.
    pub size: PageSize,
}

/// Memory that pages are mapped to, by size of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Pages of 4 KB.
    pub pages_4k: u64,
    /// Pages of 2 MB.
    pub pages_2m: u64,
    /// Pages of 1 GB.
    pub pages_1g: u64,
    /// Perforated pages of 2 MB.
    pub perforated: u64,
    /// Frames that perforated pages and their holes map.
    pub perforated_frames: u64,
    /// Memory that a direct segment maps, in 4 KB pages.
    pub segment_frames: u64,
    /// Frames that wait for holes to be touched; not part of the rest.
    pub reserved_frames: u64,
}

impl Resident {
    pub(crate) fn of(&mut self, size: PageSize) -> &mut u64 {
        match size {
            PageSize::Size4K => &mut self.pages_4k,
            PageSize::Size2M => &mut self.pages_2m,
            PageSize::Size1G => &mut self.pages_1g,
        }
    }

    /// Puts `after` in the place of `before`, which is part of this.
    pub fn replace(&mut self, before: &Self, after: &Self) {
        let all = [
            (&mut self.pages_4k, before.pages_4k, after.pages_4k),
            (&mut self.pages_2m, before.pages_2m, after.pages_2m),
            (&mut self.pages_1g, before.pages_1g, after.pages_1g),
            (&mut self.perforated, before.perforated, after.perforated),
            (
                &mut self.perforated_frames,
                before.perforated_frames,
                after.perforated_frames,
            ),
            (
                &mut self.segment_frames,
                before.segment_frames,
                after.segment_frames,
            ),
            (
                &mut self.reserved_frames,
                before.reserved_frames,
                after.reserved_frames,
            ),
        ];
        for (sum, before, after) in all {
            *sum = *sum + after - before;
        }
    }

    /// All of it that is mapped.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes::new(
            self.pages_4k * PageSize::Size4K.bytes()
                + self.pages_2m * PageSize::Size2M.bytes()
                + self.pages_1g * PageSize::Size1G.bytes()
                + (self.perforated_frames + self.segment_frames) * PageSize::Size4K.bytes(),
        )
    }
}

/// The address space of one process.
pub struct AddressSpace {
    pub(crate) id: SpaceId,
    pub(crate) vmas: RangeMap<u64, Vma>,
    pub(crate) table: PageTable,
    pub(crate) resident: Resident,
    /// End of the heap, once the program has asked for it.
    pub(crate) heap_end: Option<VirtAddr>,
    /// Pages that were freed lazily, oldest first. Some may have been written or unmapped since.
    pub(crate) lazily_freed: VecDeque<VirtAddr>,
    /// Where the background pass goes on.
    pub(crate) pass_position: u64,
    /// Where it goes on filling holes.
    pub(crate) patch_position: u64,
    /// Perforated pages, by address.
    pub(crate) perforated: BTreeMap<u64, Perforated>,
    /// Holes that the memory under study has, as a scenario says.
    pub(crate) fragmentation: Option<Fragmentation>,
    /// Where memory that is to be contiguous lies.
    pub(crate) primary: Option<Primary>,
}

/// The shape of a space's page table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableShape {
    /// Levels.
    pub levels: Levels,
    /// Page directories have shadows, so that pages can be perforated.
    pub has_shadows: bool,
}

impl AddressSpace {
    /// An empty address space.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when there is no frame for the root of its page table.
    pub fn new(id: SpaceId, memory: &mut Memory) -> Result<Self, Error> {
        Self::with(id, TableShape::default(), memory)
    }

    /// An empty address space with a page table of a shape.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when there is no frame for the root of its page table.
    pub fn with(id: SpaceId, shape: TableShape, memory: &mut Memory) -> Result<Self, Error> {
        let root = obtain(FrameClass::PageTable, memory).ok_or(Error::OutOfMemory)?;
        Ok(Self {
            id,
            vmas: RangeMap::new(),
            table: PageTable::with(root, shape.levels, shape.has_shadows),
            perforated: BTreeMap::new(),
            fragmentation: None,
            primary: None,
            resident: Resident::default(),
            heap_end: None,
            lazily_freed: VecDeque::new(),
            pass_position: 0,
            patch_position: 0,
        })
    }

    /// Takes all user addresses to be private anonymous memory, for programs whose mappings the
    /// event stream does not report.
    pub fn assume_everything_mapped(&mut self) {
        self.vmas.insert(USER, Vma::ANONYMOUS);
    }

    /// Holes that the memory under study has, from now on.
    pub fn set_fragmentation(&mut self, scenario: Option<Fragmentation>) {
        self.fragmentation = scenario;
    }

    /// The shape of its page table.
    #[must_use]
    pub fn shape(&self) -> TableShape {
        TableShape {
            levels: self.table.levels(),
            has_shadows: self.table.has_shadows(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// Its page table.
    #[inline]
    #[must_use]
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Its page table, for hardware that marks what it uses.
    #[inline]
    pub fn table_mut(&mut self) -> &mut PageTable {
        &mut self.table
    }

    /// What is mapped to memory.
    #[must_use]
    pub fn resident(&self) -> Resident {
        self.resident
    }

    /// The mapping at an address, with its range.
    #[must_use]
    pub fn vma(&self, address: VirtAddr) -> Option<(VirtRange, Vma)> {
        let (range, vma) = self.vmas.get_key_value(&address.get())?;
        let range = VirtRange {
            start: VirtAddr::new(range.start),
            end: VirtAddr::new(range.end),
        };
        Some((range, *vma))
    }

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
        let (range, vma) = self.explain(address, write, memory, effects)?;
        match self.table.leaf(address) {
            Some(leaf) if leaf.perforation.is_some() => {
                self.fault_perforated(address, write, leaf, vma, memory, effects)
            }
            None => self.fault_in(address, write, range, vma, policy, memory, effects),
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
    fn fault_in(
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
        let context = FaultContext { address, vma, fits };
        let wanted = policy.on_fault(&context).min(fits);
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
        if policy.groups_of_16() && class == FrameClass::Anonymous && wanted == PageSize::Size4K {
            let done = self.fault_in_group(address, write, range, vma, memory, effects)?;
            if let Some(fault) = done {
                return Ok(fault);
            }
        }
        let effort = effort_for(vma, memory);
        let (frame, size) = self.allocate(wanted, class, effort, policy, memory, effects)?;
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
                FaultKind::CopyOnWrite
            }
            (FrameClass::PageCache, _) => FaultKind::File,
            (_, PageSize::Size4K) => {
                effects.zeroed_4k += 1;
                FaultKind::Anonymous
            }
            _ => {
                effects.zeroed_2m += size.bytes() / PageSize::Size2M.bytes();
                FaultKind::Anonymous
            }
        };
        Ok(Fault { kind, size })
    }

    /// The largest page around an address that lies wholly inside its mapping, where nothing is
    /// mapped. Only private anonymous memory gets large pages.
    fn largest_fit(&self, address: VirtAddr, range: VirtRange, vma: Vma) -> PageSize {
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

    /// A block for a page of the wanted size, or of a smaller one.
    fn allocate(
        &mut self,
        wanted: PageSize,
        class: FrameClass,
        effort: Effort,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(Frame, PageSize), Error> {
        if wanted >= PageSize::Size2M && policy.uses_reserved() {
            let sizes = [PageSize::Size1G, PageSize::Size2M];
            for size in sizes.into_iter().filter(|&size| size <= wanted) {
                if let Some(frame) = memory.take_reserved(size) {
                    return Ok((frame, size));
                }
            }
            effects.fallbacks += 1;
        } else if wanted >= PageSize::Size2M {
            match obtain_huge(class, effort, memory) {
                Some(frame) => return Ok((frame, PageSize::Size2M)),
                None => effects.fallbacks += 1,
            }
        }
        let frame = self.obtain_base(class, memory, effects)?;
        Ok((frame, PageSize::Size4K))
    }

    /// A single frame, if need be one that the program can do without.
    pub(crate) fn obtain_base(
        &mut self,
        class: FrameClass,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Frame, Error> {
        if let Some(frame) = memory.allocate(&Request::new(Order::BASE, class)) {
            return Ok(frame);
        }
        self.reclaim_lazily_freed(memory, effects);
        self.give_reserved_back(memory);
        obtain(class, memory).ok_or(Error::OutOfMemory)
    }

    /// Maps the aligned group of 16 pages around an address to contiguous frames, when all of it
    /// lies in the mapping, nothing is mapped there, and such frames are free.
    fn fault_in_group(
        &mut self,
        address: VirtAddr,
        write: bool,
        range: VirtRange,
        vma: Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Option<Fault>, Error> {
        let group = VirtRange::with_length(address.align_down(GROUP.bytes()), GROUP.bytes());
        let pages = group.bytes() / PAGE_BYTES;
        let is_vacant = (0..pages).all(|i| self.table.leaf(group.start + i * PAGE_BYTES).is_none());
        if !range.covers(group) || !is_vacant || vma.shared {
            return Ok(None);
        }
        let request = Request::new(GROUP, FrameClass::Anonymous);
        let Some(frame) = memory.allocate(&request) else {
            effects.fallbacks += 1;
            return Ok(None);
        };
        memory.split(frame).expect("the block was just allocated");
        for i in 0..GROUP.frames() {
            let leaf = Leaf {
                dirty: write,
                contiguous: true,
                ..Leaf::new(frame.offset(i), PageSize::Size4K, vma.writable)
            };
            let at = group.start + u64::from(i) * PAGE_BYTES;
            if let Err(error) = self.install(at, leaf, memory, effects) {
                (i + 1..GROUP.frames()).for_each(|i| free(frame.offset(i), memory));
                return Err(error);
            }
        }
        effects.folds += 1;
        effects.zeroed_4k += pages;
        Ok(Some(Fault {
            kind: FaultKind::Anonymous,
            size: PageSize::Size4K,
        }))
    }

    /// Takes the mark of contiguity from the group around an address, before one of its pages
    /// changes.
    pub(crate) fn unfold(&mut self, address: VirtAddr, effects: &mut Effects) {
        if !self.table.leaf(address).is_some_and(|leaf| leaf.contiguous) {
            return;
        }
        let group = VirtRange::with_length(address.align_down(GROUP.bytes()), GROUP.bytes());
        for i in 0..u64::from(GROUP.frames()) {
            self.table
                .update(group.start + i * PAGE_BYTES, |leaf| leaf.contiguous = false);
        }
        effects.folds += 1;
        effects.invalidations.push(group);
    }

    fn reclaim_lazily_freed(&mut self, memory: &mut Memory, effects: &mut Effects) {
        let mut reclaimed = 0;
        while reclaimed < RECLAIM_BATCH {
            let Some(address) = self.lazily_freed.pop_front() else {
                return;
            };
            match self.table.leaf(address) {
                Some(leaf) if leaf.is_discardable() => {
                    self.evict(address, memory, effects);
                    effects
                        .invalidations
                        .push(VirtRange::page_around(address, leaf.size));
                    reclaimed += 1;
                }
                // Written since: an ordinary page again (Linux sets `swapbacked`).
                Some(leaf) if leaf.lazily_freed => {
                    self.table.update(address, |leaf| leaf.lazily_freed = false);
                }
                _ => {}
            }
        }
    }

    /// Lets stores through to a page that is mapped read-only: at once when nobody else sees it,
    /// to a copy otherwise.
    fn make_writable(
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
        let frame = self.obtain_base(FrameClass::Anonymous, memory, effects)?;
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
        effects
            .invalidations
            .push(VirtRange::page_around(address, size));
        Ok(Fault {
            kind: FaultKind::CopyOnWrite,
            size,
        })
    }

    /// Maps a page whose frame the caller holds; frees the frame when that fails.
    pub(crate) fn install(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let page = address.align_down(leaf.size.bytes());
        if self.perforated_at(address).is_some() {
            return self.install_in_hole(page, leaf, memory, effects);
        }
        let mapped = self
            .table
            .map(page, leaf, |frames| obtain_node(frames, memory, effects));
        match mapped {
            Ok(()) => {
                *self.resident.of(leaf.size) += 1;
                let owner = Owner {
                    space: self.id.0,
                    page: page.page(),
                };
                // A shared frame keeps its first owner; frames of a split page have none to set.
                if memory.references(leaf.frame) == 1 {
                    let _ = memory.set_owner(leaf.frame, Some(owner));
                }
                Ok(())
            }
            Err(TableError::NoFrame) => {
                release(leaf, memory, effects);
                Err(Error::OutOfMemory)
            }
            Err(error) => unreachable!("{error}: the caller has looked"),
        }
    }

    /// Unmaps the page around an address, if there is one, and gives up its frames.
    pub(crate) fn evict(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Option<Leaf> {
        if self.perforated_at(address).is_some() {
            return self.evict_perforated(address, memory, effects);
        }
        let leaf = self.take(address, memory, effects)?;
        effects.unmapped += 1;
        release(leaf, memory, effects);
        Some(leaf)
    }

    /// Unmaps the page around an address, if there is one. The caller has its frames now.
    pub(crate) fn take(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Option<Leaf> {
        let leaf = self
            .table
            .unmap(address, |node| free_node(node, memory, effects))?;
        *self.resident.of(leaf.size) -= 1;
        Some(leaf)
    }

    /// Maps a page to where its contents have moved; says whether it is mapped here.
    pub fn follow(&mut self, moved: &Move) -> bool {
        let address = moved.owner.page.address();
        let is_here = self
            .table
            .leaf(address)
            .is_some_and(|leaf| leaf.frame == moved.from && leaf.size.order() == moved.order);
        if is_here {
            // Whoever moves a page invalidates it, and with it the entry of its group.
            self.unfold(address, &mut Effects::default());
        }
        is_here && self.table.update(address, |leaf| leaf.frame = moved.to)
    }

    /// The size of page that the policy wants for a first touch of an address.
    #[must_use]
    pub fn wanted_size(&self, address: VirtAddr, policy: &dyn MappingPolicy) -> PageSize {
        let Some((range, vma)) = self.vma(address) else {
            return PageSize::Size4K;
        };
        let fits = self.largest_fit(address, range, vma);
        policy
            .on_fault(&FaultContext { address, vma, fits })
            .min(fits)
    }

    /// Gives everything back, at `exit` and `execve`. The space must not be used afterwards.
    pub fn destroy(mut self, memory: &mut Memory, effects: &mut Effects) {
        let mut pages = Vec::new();
        self.table
            .for_each(EVERYTHING, |address, _| pages.push(address));
        for address in pages {
            self.evict(address, memory, effects);
        }
        self.free_chunk(memory, effects);
        for node in self.table.node_frames() {
            free_node(node, memory, effects);
        }
    }

    /// Checks the page table, that every page lies in a mapping and has its frames, and the
    /// counters.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self, memory: &Memory) -> Result<(), String> {
        self.table.validate()?;
        let mut resident = Resident::default();
        let mut problem = None;
        self.table.for_each(EVERYTHING, |address, leaf| {
            if leaf.perforation.is_some() {
                return;
            }
            *resident.of(leaf.size) += 1;
            let explained = self
                .vma(address)
                .is_some_and(|(range, _)| range.covers(VirtRange::page_around(address, leaf.size)));
            if !explained {
                problem = Some(format!("the page at {address} lies outside every mapping"));
            }
            if let Some(owner) = memory.owner(leaf.frame)
                && owner.space == self.id.0
                && owner.page != address.page()
            {
                problem = Some(format!("the page at {address} maps another page's frame"));
            }
            for frame in blocks_of(leaf, memory) {
                if memory.references(frame) == 0 {
                    problem = Some(format!("the page at {address} maps a frame that is free"));
                }
            }
        });
        let problem = problem.or_else(|| self.check_perforated(&mut resident, memory).err());
        resident.segment_frames = self.primary.as_ref().map_or(0, Primary::segment_frames);
        match problem {
            Some(problem) => Err(problem),
            None if resident != self.resident => Err(format!(
                "{:?} pages are counted and {resident:?} are mapped",
                self.resident
            )),
            None => Ok(()),
        }
    }
}

/// Every address that a program can have.
pub(crate) const EVERYTHING: VirtRange = VirtRange {
    start: VirtAddr::new(0),
    end: VirtAddr::new(1 << 48),
};

/// Gives up a page's frames. After a split on behalf of another process, the frames of a huge page
/// are single ones.
pub(crate) fn release(leaf: Leaf, memory: &mut Memory, effects: &mut Effects) {
    if memory.order(leaf.frame) == Some(leaf.size.order()) {
        if memory.return_reserved(leaf.frame, leaf.size) {
            effects.freed += 1;
        } else {
            free_page(leaf.frame, memory, effects);
        }
        return;
    }
    for frame in blocks_of(leaf, memory) {
        free_page(frame, memory, effects);
    }
}

/// The blocks of the frame table that a page's memory consists of now.
pub(crate) fn blocks_of(leaf: Leaf, memory: &Memory) -> Vec<Frame> {
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < leaf.size.frames() {
        let frame = leaf.frame.offset(at);
        blocks.push(frame);
        at += memory.order(frame).map_or(1, Order::frames);
    }
    blocks
}

/// Frames for a page-table node.
pub(crate) fn obtain_node(
    frames: NodeFrames,
    memory: &mut Memory,
    effects: &mut Effects,
) -> Option<Frame> {
    let order = match frames {
        NodeFrames::One => Order::BASE,
        NodeFrames::WithShadow => Order::new(1),
    };
    let request = Request::new(order, FrameClass::PageTable);
    let frame = memory.allocate_or_reclaim(&request, &mut ());
    // A shadow is zeroed with its first perforated page.
    effects.nodes += u64::from(frame.is_some());
    frame
}

/// A frame, if need be one that reclaim frees for it.
pub(crate) fn obtain(class: FrameClass, memory: &mut Memory) -> Option<Frame> {
    // A single frame needs no compaction, so nothing moves under the caller's feet.
    memory.allocate_or_reclaim(&Request::new(Order::BASE, class), &mut ())
}

/// What a fault in a mapping does to get a 2 MB block when none is free.
pub(crate) fn effort_for(vma: Vma, memory: &Memory) -> Effort {
    memory.defrag().effort(vma.huge == HugeAdvice::Huge)
}

/// A 2 MB block, if one is free. If none is, the kernel may be asked to make some in the background;
/// whoever compacts memory directly has done so before.
pub(crate) fn obtain_huge(class: FrameClass, effort: Effort, memory: &mut Memory) -> Option<Frame> {
    let wakes = match effort {
        Effort::Background => Wakes::Kswapd,
        Effort::None | Effort::Direct => Wakes::Nobody,
    };
    let frame = memory.allocate(&Request {
        wakes,
        ..Request::new(Order::HUGE_2M, class)
    });
    if frame.is_none() && wakes == Wakes::Kswapd {
        memory.want_compaction(Order::HUGE_2M);
    }
    frame
}

/// Gives up one use of a page's block, and counts it when that was the last one.
pub(crate) fn free_page(frame: Frame, memory: &mut Memory, effects: &mut Effects) {
    let is_last = memory.references(frame) == 1;
    effects.freed += u64::from(is_last && memory.class(frame) != Some(FrameClass::PageCache));
    free(frame, memory);
}

/// Gives a page-table node back.
pub(crate) fn free_node(frame: Frame, memory: &mut Memory, effects: &mut Effects) {
    effects.freed_nodes += 1;
    free(frame, memory);
}

/// Gives up one use of a block.
///
/// # Panics
/// When the block is not in use: the page tables and the frame table disagree, which
/// [`AddressSpace::validate`] would have said.
pub(crate) fn free(frame: Frame, memory: &mut Memory) {
    if let Err(error) = memory.drop_reference(frame) {
        panic!("a mapped page's frame was not in use: {error}");
    }
}
