//! An address space, and what happens when its pages are touched.
//!
//! Simplifications, on purpose: file pages are not shared between processes, and nothing is swapped.

use contigua_state::Plain;
use std::collections::{BTreeMap, VecDeque};

use contigua_frames::{Effort, FrameClass, Move, Owner, Request, Wakes};
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use rangemap::RangeMap;

use crate::Error;
use crate::anchors::Anchors;
use crate::blanks::Blanks;
use crate::buckets::Buckets;
use crate::coverage::Coverage;
use crate::effects::{Effects, Resident};
use crate::holes::Fragmentation;
use crate::memory::Memory;
use crate::offsets::Offsets;
use crate::perforated::page::Perforated;
use crate::primary::region::Primary;
pub(crate) use crate::space_id::SpaceId;
use crate::stack::Stack;
use crate::table::areas::{AreaShape, Areas};
use crate::table::hashed::{Growth, Hashed, Hashing};
use crate::table::visit::Cursor;
use crate::table::{Leaf, Levels, NodeFrames, PageTable, TableError};
use crate::vma::{Disabled, HugeAdvice, Vma};

/// Lazily freed pages that are taken back at a time when memory is short (Linux's
/// `SWAP_CLUSTER_MAX`).
const RECLAIM_BATCH: usize = 32;

/// Frames of a group of pages that are contiguous together: 64 KB.
pub(crate) const GROUP: Order = Order::new(4);

/// First address that a program whose mappings are unknown may use (`vm.mmap_min_addr`).
const FIRST: u64 = 0x1_0000;

/// The address space of one process.
#[derive(Plain)]
pub struct AddressSpace {
    pub(crate) id: SpaceId,
    pub(crate) vmas: RangeMap<u64, Vma>,
    pub(crate) table: PageTable,
    pub(crate) resident: Resident,
    /// End of the heap, once the program has asked for it.
    pub(crate) heap_end: Option<VirtAddr>,
    /// The main thread's stack, once the program was loaded.
    pub(crate) stack: Option<Stack>,
    /// Pages that were freed lazily, oldest first. Some may have been written or unmapped since.
    pub(crate) lazily_freed: VecDeque<VirtAddr>,
    /// Position of the background pass.
    pub(crate) pass_position: u64,
    /// Use of its pages, as looks found it.
    pub(crate) coverage: Coverage,
    /// Where a policy takes them back: pages of zeros in huge pages.
    pub(crate) blanks: Blanks,
    /// Position of the background pass that makes pages of 1 GB.
    pub(crate) giant_position: u64,
    /// Where a thread brings its pages.
    pub(crate) anchors: Anchors,
    /// Position of the background pass that fills holes.
    pub(crate) patch_position: u64,
    /// Perforated pages, by address.
    pub(crate) perforated: BTreeMap<u64, Perforated>,
    /// Holes that the memory under study has, as a scenario says.
    pub(crate) fragmentation: Option<Fragmentation>,
    /// Memory that is to be contiguous.
    pub(crate) primary: Option<Primary>,
    /// Where a policy keeps them: offsets of mappings.
    pub(crate) offsets: Offsets,
    /// Mappings that `PR_SET_THP_DISABLE` keeps from huge pages.
    pub(crate) disabled: Disabled,
    /// The event stream reports no mappings: memory may have contents before its first access.
    pub(crate) assumes_mappings: bool,
}

/// The shape of a space's page table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableShape {
    /// Levels.
    pub levels: Levels,
    /// Page directories have shadows, so that pages can be perforated.
    pub has_shadows: bool,
    /// Hashed tables in place of the tree.
    pub hashing: Option<Hashing>,
    /// Areas for its last nodes.
    pub areas: Option<AreaShape>,
    /// Buckets of memory in which pages are placed by hashes.
    pub buckets: Option<Buckets>,
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
        let mut table = if let Some(hashing) = shape.hashing {
            PageTable::with_hashing(hashing, shape.levels)
        } else {
            let root = obtain(FrameClass::PageTable, memory).ok_or(Error::OutOfMemory)?;
            PageTable::with(root, shape.levels, shape.has_shadows).with_areas(shape.areas)
        };
        table.place_in(shape.buckets);
        Ok(Self {
            id,
            vmas: RangeMap::new(),
            table,
            perforated: BTreeMap::new(),
            fragmentation: None,
            primary: None,
            offsets: Offsets::default(),
            anchors: Anchors::default(),
            coverage: Coverage::default(),
            blanks: Blanks::default(),
            assumes_mappings: false,
            resident: Resident::default(),
            heap_end: None,
            stack: None,
            disabled: Disabled::default(),
            lazily_freed: VecDeque::new(),
            pass_position: 0,
            giant_position: 0,
            patch_position: 0,
        })
    }

    /// Lets hashed tables that want to grow take blocks. Where there are too few, they stay as they are.
    pub fn grow_table(
        &mut self,
        mut take: impl FnMut(Order, &mut Memory) -> Option<Frame>,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Growth {
        let growth = self.table.grow(|order| take(order, memory));
        effects.zeroed_4k += growth.frames;
        self.settle_table(memory, effects);
        growth
    }

    /// Frees what hashed tables do not need any more, and counts the lines that moved in them.
    pub(crate) fn settle_table(&mut self, memory: &mut Memory, effects: &mut Effects) {
        let (blocks, moved) = self.table.take_released();
        effects.lines_moved += moved;
        for block in blocks {
            free_node(block, memory, effects);
        }
    }

    /// Takes all addresses but the lowest to be private anonymous memory, for programs whose mappings
    /// the event stream does not report.
    pub fn assume_everything_mapped(&mut self) {
        let end = 1 << self.table.levels().address_bits();
        self.vmas.insert(FIRST..end, Vma::ANONYMOUS);
        self.assumes_mappings = true;
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
            hashing: self.table.hashed().map(Hashed::hashing),
            areas: self.table.areas().map(Areas::shape),
            buckets: self.table.buckets(),
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

    /// Memory that is mapped.
    #[must_use]
    pub fn resident(&self) -> Resident {
        self.resident
    }

    /// The mapping at an address, with its range. The stack is as large as it is with this address.
    #[must_use]
    pub fn vma(&self, address: VirtAddr) -> Option<(VirtRange, Vma)> {
        let (range, vma) = self.vmas.get_key_value(&address.get())?;
        let mut range = VirtRange::new(VirtAddr::new(range.start), VirtAddr::new(range.end));
        if let Some(start) = self.stack.and_then(|stack| stack.start_with(address)) {
            range.start = range.start.max(start);
        }
        Some((range, *vma))
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
            if memory.is_zero(leaf) {
                // An untouched hole is zeros, too.
                return Ok(());
            }
            return self.install_in_hole(page, leaf, memory, effects);
        }
        let mapped = self
            .table
            .map(page, leaf, |frames| obtain_node(frames, memory, effects));
        self.settle_table(memory, effects);
        match mapped {
            Ok(()) if memory.is_zero(leaf) => Ok(()),
            Ok(()) => {
                *self.resident.of(leaf.size) += 1;
                memory.enter_tag(self.id, page, leaf);
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

    /// Maps a page that another space has, or a shared object.
    pub(crate) fn inherit(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        if is_nobodys(leaf, memory) {
            return self.install(address, leaf, memory, effects);
        }
        let blocks = blocks_of(leaf, memory);
        for (i, &frame) in blocks.iter().enumerate() {
            if !memory.share(frame) {
                blocks[..i].iter().for_each(|&frame| free(frame, memory));
                return Err(Error::OutOfMemory);
            }
            // The reverse mapping names one page, and there are two now: the frame stays.
            let _ = memory.set_owner(frame, None);
        }
        memory.share_huge(leaf.frame, leaf.size);
        self.install(address, leaf, memory, effects)
            .inspect_err(|_| memory.unshare_huge(leaf.frame, leaf.size))
    }

    /// Maps a page to physical memory that is not the server's own, in the place of what was mapped there.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when there is no frame for a node of the page table.
    pub fn map_elsewhere(
        &mut self,
        page: VirtAddr,
        frame: Frame,
        size: PageSize,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let range = VirtRange::page_around(page, size);
        self.split_edges(range, memory, effects)?;
        let mut before = Cursor::new(range);
        while let Some((address, leaf)) = before.next(&self.table) {
            self.evict(address, memory, effects);
            let gone = VirtRange::page_around(address, leaf.size);
            effects.invalidations.push(gone);
        }
        self.install(range.start, Leaf::new(frame, size, true), memory, effects)
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
        if leaf.size == PageSize::Size2M {
            self.blanks.forget(address);
        }
        if !memory.is_zero(leaf) {
            memory.remove_tag(self.id, address, leaf);
            *self.resident.of(leaf.size) -= 1;
            memory.unshare_huge(leaf.frame, leaf.size);
        }
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

    /// Gives everything back, at `exit` and `execve`. The space must not be used afterwards.
    pub fn destroy(mut self, memory: &mut Memory, effects: &mut Effects) {
        let mut pages = Cursor::new(EVERYTHING);
        while let Some((address, _)) = pages.next(&self.table) {
            self.evict(address, memory, effects);
        }
        self.unmap_objects(EVERYTHING, memory, effects);
        self.free_chunk(memory, effects);
        for node in self.table.node_frames() {
            free_node(node, memory, effects);
        }
        let lent = self.table.areas().into_iter().flat_map(Areas::lent);
        effects.returned.extend(lent);
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
        for (address, leaf) in self.table.pages(EVERYTHING) {
            if leaf.perforation.is_some() {
                continue;
            }
            *resident.of(leaf.size) += u64::from(!memory.is_zero(leaf));
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
            let blocks = if is_nobodys(leaf, memory) {
                Vec::new()
            } else {
                blocks_of(leaf, memory)
            };
            for frame in blocks {
                if memory.references(frame) == 0 {
                    problem = Some(format!("the page at {address} maps a frame that is free"));
                }
            }
        }
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

/// Every address that a program can have, on a machine with five levels of page tables.
pub(crate) const EVERYTHING: VirtRange = VirtRange::new(VirtAddr::new(0), VirtAddr::new(1 << 57));

/// Returns true if a page has no frames of its own: it is a zero page, or lies in memory that is
/// not the server's.
fn is_nobodys(leaf: Leaf, memory: &Memory) -> bool {
    u64::from(leaf.frame.get()) >= memory.total() || memory.is_zero(leaf)
}

/// Gives up a page's frames. After a split on behalf of another process, the frames of a huge page
/// are single ones.
pub(crate) fn release(leaf: Leaf, memory: &mut Memory, effects: &mut Effects) {
    if is_nobodys(leaf, memory) {
        return;
    }
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
        NodeFrames::None => return Some(Frame::default()),
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
    let request = Request {
        last_resort: memory.is_last_try(),
        ..Request::new(Order::BASE, class)
    };
    memory.allocate_or_reclaim(&request, &mut ())
}

/// Effort of a fault in a mapping to get a 2 MB block when none is free.
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
    if let Err(error) = memory.unshare(frame) {
        panic!("a mapped page's frame was not in use: {error}");
    }
}
