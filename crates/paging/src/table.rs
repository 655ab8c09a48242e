//! The x86-64 page table: four or five levels of 512 entries of 8 bytes.
//!
//! Nodes occupy simulated frames, so that the walker's references have addresses. An entry holds,
//! beside what the hardware's entry does, the host index of the child node. All nodes lie in one
//! array, so a walk is one dependent load a level and needs no look-up of any other kind.
//!
//! A table for Perforated Pages (paper 003, section 4) has a shadow behind each page-directory
//! node, in the frame that follows the node's: entry `k` of the shadow leads to the translations
//! of the holes in the page that entry `k` of the node maps.

use contigua_units::{Frame, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::holes::Filter;

/// Levels of the largest tree: PML5, PML4, PDPT, PD, PT.
pub const MAX_LEVELS: usize = 5;
const INDEX_BITS: u32 = 9;
const ENTRIES: usize = 1 << INDEX_BITS;
const ENTRY_BYTES: u64 = 8;
/// Bits of an address below the index of the last level.
const PAGE_SHIFT: u32 = PAGE_BYTES.trailing_zeros();
/// Height of the nodes whose entries map 2 MB.
const DIRECTORY: usize = 1;
/// No shadow.
const NONE: u32 = 0;

/// How many levels a table has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Levels {
    /// Addresses of 48 bits.
    #[default]
    Four,
    /// Addresses of 57 bits.
    Five,
}

impl Levels {
    /// The number.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Five => 5,
        }
    }

    /// Bits of an address that the table translates.
    #[must_use]
    pub const fn address_bits(self) -> u32 {
        PAGE_SHIFT + INDEX_BITS * self.count() as u32
    }
}

/// What a leaf entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are the bits of an entry, each with a meaning of its own"
)]
pub struct Leaf {
    /// First frame of the page.
    pub frame: Frame,
    /// Size of the page.
    pub size: PageSize,
    /// Stores are allowed.
    pub writable: bool,
    /// The kernel may take the page back until it is written again (`MADV_FREE`).
    pub lazily_freed: bool,
    /// The page was used since the kernel last looked.
    pub accessed: bool,
    /// The page was written since the kernel last looked.
    pub dirty: bool,
    /// The page belongs to a group of 16 that the kernel has marked as contiguous (Arm's
    /// contiguous bit).
    pub contiguous: bool,
    /// The page has holes, or had some: a perforated page of 2 MB.
    pub perforation: Option<Filter>,
}

impl Leaf {
    /// A whole page that nobody has used.
    #[must_use]
    pub const fn new(frame: Frame, size: PageSize, writable: bool) -> Self {
        Self {
            frame,
            size,
            writable,
            lazily_freed: false,
            accessed: false,
            dirty: false,
            contiguous: false,
            perforation: None,
        }
    }

    /// Whether the kernel may take the page back: it was freed lazily, and not written since.
    #[must_use]
    pub const fn is_discardable(&self) -> bool {
        self.lazily_freed && !self.dirty
    }

    /// The physical address that `address`, which lies in this page, translates to.
    #[inline]
    #[must_use]
    pub const fn physical(&self, address: VirtAddr) -> PhysAddr {
        PhysAddr::new(self.frame.address().get() + (address.get() & (self.size.bytes() - 1)))
    }

    /// The 4 KB page around an address that lies in this page.
    #[must_use]
    pub fn piece(&self, address: VirtAddr) -> Self {
        Self {
            frame: self.physical(address).frame(),
            size: PageSize::Size4K,
            perforation: None,
            ..*self
        }
    }
}

/// What a hardware walk for an address reads and finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    references: [PhysAddr; MAX_LEVELS],
    count: u8,
    /// The walk was the first to use the page, or the first to write it: the entry was changed.
    pub marked: bool,
    /// The translation, if there is one.
    pub leaf: Option<Leaf>,
}

impl Walk {
    /// Addresses of the entries that a walk from the root reads, root first. The last one is the
    /// leaf, or the entry that is not present.
    #[inline]
    #[must_use]
    pub fn references(&self) -> &[PhysAddr] {
        &self.references[..usize::from(self.count)]
    }

    const EMPTY: Self = Self {
        references: [PhysAddr::new(0); MAX_LEVELS],
        count: 0,
        marked: false,
        leaf: None,
    };

    #[inline]
    fn read(&mut self, at: PhysAddr) {
        self.references[usize::from(self.count)] = at;
        self.count += 1;
    }
}

/// Why an entry could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A node was needed and no frame was to be had for it.
    #[error("no frame for a page-table node")]
    NoFrame,
    /// Something is mapped there already.
    #[error("{0} is mapped already")]
    Mapped(VirtAddr),
    /// No perforated page is mapped there.
    #[error("no perforated page at {0}")]
    NotPerforated(VirtAddr),
}

/// What a node needs of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFrames {
    /// One frame.
    One,
    /// Two frames, the first one even: the node and its shadow.
    WithShadow,
}

/// An entry, packed: frame, child node, flags.
#[derive(Clone, Copy, Default)]
struct Entry {
    frame: u32,
    /// Host index of the child node in the high 24 bits, flags in the low 8. A leaf has its filter
    /// in the place of the child.
    child_and_flags: u32,
}

const PRESENT: u32 = 1;
const LEAF: u32 = 2;
const WRITABLE: u32 = 4;
const LAZILY_FREED: u32 = 8;
const ACCESSED: u32 = 16;
const DIRTY: u32 = 32;
const CONTIGUOUS: u32 = 64;
const PERFORATED: u32 = 128;
const CHILD_SHIFT: u32 = 8;
const MAX_NODES: usize = 1 << (u32::BITS - CHILD_SHIFT);

impl Entry {
    fn node(frame: Frame, index: usize) -> Self {
        Self {
            frame: frame.get(),
            child_and_flags: (index as u32) << CHILD_SHIFT | PRESENT,
        }
    }

    fn leaf(leaf: Leaf) -> Self {
        let flag = |condition: bool, flag: u32| if condition { flag } else { 0 };
        let flags = PRESENT
            | LEAF
            | flag(leaf.writable, WRITABLE)
            | flag(leaf.lazily_freed, LAZILY_FREED)
            | flag(leaf.accessed, ACCESSED)
            | flag(leaf.dirty, DIRTY)
            | flag(leaf.contiguous, CONTIGUOUS)
            | flag(leaf.perforation.is_some(), PERFORATED);
        let filter = leaf.perforation.map_or(0, |filter| u32::from(filter.0));
        Self {
            frame: leaf.frame.get(),
            child_and_flags: filter << CHILD_SHIFT | flags,
        }
    }

    #[inline]
    fn has(self, flag: u32) -> bool {
        self.child_and_flags & flag != 0
    }

    #[inline]
    fn child(self) -> usize {
        (self.child_and_flags >> CHILD_SHIFT) as usize
    }

    fn frame(self) -> Frame {
        Frame::new(self.frame)
    }

    fn to_leaf(self, size: PageSize) -> Option<Leaf> {
        (self.has(PRESENT) && self.has(LEAF)).then(|| Leaf {
            frame: self.frame(),
            size,
            writable: self.has(WRITABLE),
            lazily_freed: self.has(LAZILY_FREED),
            accessed: self.has(ACCESSED),
            dirty: self.has(DIRTY),
            contiguous: self.has(CONTIGUOUS),
            perforation: self.has(PERFORATED).then_some(Filter(self.child() as u8)),
        })
    }
}

/// A page table.
pub struct PageTable {
    /// 512 entries for each node; the root comes first.
    entries: Vec<Entry>,
    /// Frame of each node.
    frames: Vec<Frame>,
    /// Entries that are present, by node.
    used: Vec<u16>,
    /// The node's shadow, by node.
    shadows: Vec<u32>,
    unused: Vec<usize>,
    root: Frame,
    levels: Levels,
    has_shadows: bool,
}

/// Height of the nodes whose entries map pages of a size; page tables have height 0.
const fn height_of(size: PageSize) -> usize {
    match size {
        PageSize::Size4K => 0,
        PageSize::Size2M => 1,
        PageSize::Size1G => 2,
    }
}

const fn size_at(height: usize) -> PageSize {
    match height {
        1 => PageSize::Size2M,
        2 => PageSize::Size1G,
        _ => PageSize::Size4K,
    }
}

/// Bits of an address below the index at a height.
const fn shift_of(height: usize) -> u32 {
    PAGE_SHIFT + INDEX_BITS * height as u32
}

#[inline]
const fn index_at(address: VirtAddr, height: usize) -> usize {
    (address.get() >> shift_of(height)) as usize & (ENTRIES - 1)
}

impl PageTable {
    /// An empty table of four levels whose root lies in `root`.
    #[must_use]
    pub fn new(root: Frame) -> Self {
        Self::with(root, Levels::Four, false)
    }

    /// An empty table whose root lies in `root`, with a shadow for each page directory or without.
    #[must_use]
    pub fn with(root: Frame, levels: Levels, has_shadows: bool) -> Self {
        let mut table = Self {
            entries: Vec::new(),
            frames: Vec::new(),
            used: Vec::new(),
            shadows: Vec::new(),
            unused: Vec::new(),
            root,
            levels,
            has_shadows,
        };
        table.new_node(root);
        table
    }

    /// How many levels it has.
    #[must_use]
    pub const fn levels(&self) -> Levels {
        self.levels
    }

    /// Whether page directories have shadows, so that pages can be perforated.
    #[must_use]
    pub const fn has_shadows(&self) -> bool {
        self.has_shadows
    }

    fn new_node(&mut self, frame: Frame) -> usize {
        if let Some(index) = self.unused.pop() {
            self.entries[index * ENTRIES..][..ENTRIES].fill(Entry::default());
            self.frames[index] = frame;
            self.used[index] = 0;
            self.shadows[index] = NONE;
            return index;
        }
        let index = self.frames.len();
        assert!(
            index < MAX_NODES,
            "a table of 64 GB has no room for more nodes"
        );
        self.entries.resize((index + 1) * ENTRIES, Entry::default());
        self.frames.push(frame);
        self.used.push(0);
        self.shadows.push(NONE);
        index
    }

    /// A child node for nodes of a height, with a shadow where one is due.
    fn new_child(
        &mut self,
        height: usize,
        new_node: &mut impl FnMut(NodeFrames) -> Option<Frame>,
    ) -> Option<(Frame, usize)> {
        let with_shadow = self.has_shadows && height == DIRECTORY;
        let frames = if with_shadow {
            NodeFrames::WithShadow
        } else {
            NodeFrames::One
        };
        let frame = new_node(frames)?;
        let child = self.new_node(frame);
        if with_shadow {
            let shadow = self.new_node(frame.offset(1));
            self.shadows[child] = shadow as u32;
        }
        Some((frame, child))
    }

    /// Gives a node up, and its shadow with it.
    fn drop_node(&mut self, node: usize) -> Frame {
        let shadow = std::mem::replace(&mut self.shadows[node], NONE);
        if shadow != NONE {
            self.unused.push(shadow as usize);
        }
        self.unused.push(node);
        self.frames[node]
    }

    #[inline]
    fn entry(&self, node: usize, index: usize) -> Entry {
        self.entries[node * ENTRIES + index]
    }

    #[inline]
    fn top(&self) -> usize {
        self.levels.count() - 1
    }

    /// Walks as hardware does, without changing anything.
    #[inline]
    #[must_use]
    pub fn walk(&self, address: VirtAddr) -> Walk {
        self.find_leaf(address).0
    }

    /// Walks as hardware does, and marks the page as accessed and, for a store that it allows, as
    /// dirty.
    #[inline]
    pub fn walk_and_mark(&mut self, address: VirtAddr, store: bool) -> Walk {
        let (mut walk, at) = self.find_leaf(address);
        if let Some(leaf) = &mut walk.leaf {
            walk.marked = mark(&mut self.entries[at], leaf, store);
        }
        walk
    }

    #[inline]
    fn find_leaf(&self, address: VirtAddr) -> (Walk, usize) {
        let mut walk = Walk::EMPTY;
        let mut node = 0;
        let mut frame = self.root;
        let top = self.top();
        for (depth, reference) in walk.references.iter_mut().take(top + 1).enumerate() {
            let height = top - depth;
            let index = index_at(address, height);
            *reference = frame.address() + index as u64 * ENTRY_BYTES;
            walk.count += 1;
            let at = node * ENTRIES + index;
            let entry = self.entries[at];
            if !entry.has(PRESENT) {
                return (walk, at);
            }
            if entry.has(LEAF) {
                walk.leaf = entry.to_leaf(size_at(height));
                return (walk, at);
            }
            node = entry.child();
            frame = entry.frame();
        }
        (walk, 0)
    }

    /// Walks the shadow for a hole in the perforated page around an address: the shadow entry, and
    /// if there is one, the hole's own. Marks the hole as [`PageTable::walk_and_mark`] does.
    pub fn walk_hole(&mut self, address: VirtAddr, store: bool) -> Walk {
        let mut walk = Walk::EMPTY;
        let Some((node, index)) = self.find(address, PageSize::Size2M) else {
            return walk;
        };
        let shadow = self.shadows[node] as usize;
        if shadow == NONE as usize {
            return walk;
        }
        walk.read(self.frames[shadow].address() + index as u64 * ENTRY_BYTES);
        let entry = self.entry(shadow, index);
        if !entry.has(PRESENT) {
            return walk;
        }
        let index = index_at(address, 0);
        walk.read(entry.frame().address() + index as u64 * ENTRY_BYTES);
        let at = entry.child() * ENTRIES + index;
        walk.leaf = self.entries[at].to_leaf(PageSize::Size4K);
        if let Some(leaf) = &mut walk.leaf {
            walk.marked = mark(&mut self.entries[at], leaf, store);
        }
        walk
    }

    /// The translation of an address, if there is one. A perforated page is returned as such, for
    /// its holes too.
    #[must_use]
    pub fn leaf(&self, address: VirtAddr) -> Option<Leaf> {
        self.walk(address).leaf
    }

    /// The translation of a hole in the perforated page around an address, if it has one.
    #[must_use]
    pub fn hole(&self, address: VirtAddr) -> Option<Leaf> {
        let (node, index) = self.hole_entry(address)?;
        self.entry(node, index).to_leaf(PageSize::Size4K)
    }

    fn hole_entry(&self, address: VirtAddr) -> Option<(usize, usize)> {
        let (node, index) = self.find(address, PageSize::Size2M)?;
        let shadow = self.shadows[node];
        let entry = self.entry(shadow as usize, index);
        (shadow != NONE && entry.has(PRESENT)).then(|| (entry.child(), index_at(address, 0)))
    }

    /// Maps a hole of the perforated page around an address to a 4 KB page of its own, instead of
    /// what it was mapped to before.
    ///
    /// # Errors
    /// [`TableError::NotPerforated`], [`TableError::NoFrame`].
    pub fn map_hole(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
        mut new_node: impl FnMut(NodeFrames) -> Option<Frame>,
    ) -> Result<Option<Leaf>, TableError> {
        let place = self.find(address, PageSize::Size2M);
        let (node, index) = place
            .filter(|&(node, index)| self.entry(node, index).has(PERFORATED | LEAF))
            .filter(|&(node, _)| self.shadows[node] != NONE)
            .ok_or(TableError::NotPerforated(address))?;
        let shadow = self.shadows[node] as usize;
        let mut entry = self.entry(shadow, index);
        if !entry.has(PRESENT) {
            let frame = new_node(NodeFrames::One).ok_or(TableError::NoFrame)?;
            entry = Entry::node(frame, self.new_node(frame));
            self.set(shadow, index, entry);
        }
        let (node, index) = (entry.child(), index_at(address, 0));
        let before = self.entry(node, index).to_leaf(PageSize::Size4K);
        self.set(node, index, Entry::leaf(leaf));
        Ok(before)
    }

    /// Unmaps a hole of the perforated page around an address. The node that becomes empty goes.
    pub fn unmap_hole(&mut self, address: VirtAddr, free_node: impl FnOnce(Frame)) -> Option<Leaf> {
        let (node, index) = self.hole_entry(address)?;
        let leaf = self.entry(node, index).to_leaf(PageSize::Size4K)?;
        self.set(node, index, Entry::default());
        if self.used[node] == 0 {
            let (parent, index) = self.find(address, PageSize::Size2M)?;
            self.set(self.shadows[parent] as usize, index, Entry::default());
            free_node(self.drop_node(node));
        }
        Some(leaf)
    }

    /// Changes a hole's translation, if it has one. Says whether it has.
    pub fn update_hole(&mut self, address: VirtAddr, change: impl FnOnce(&mut Leaf)) -> bool {
        let Some((node, index)) = self.hole_entry(address) else {
            return false;
        };
        let Some(mut leaf) = self.entry(node, index).to_leaf(PageSize::Size4K) else {
            return false;
        };
        change(&mut leaf);
        self.set(node, index, Entry::leaf(leaf));
        true
    }

    /// The node and index of the entry for a page of `size`, if its node exists.
    fn find(&self, address: VirtAddr, size: PageSize) -> Option<(usize, usize)> {
        let mut node = 0;
        for height in (height_of(size) + 1..=self.top()).rev() {
            let entry = self.entry(node, index_at(address, height));
            if !entry.has(PRESENT) || entry.has(LEAF) {
                return None;
            }
            node = entry.child();
        }
        Some((node, index_at(address, height_of(size))))
    }

    /// Whether nothing at all is mapped in the aligned page of `size` around an address.
    #[must_use]
    pub fn is_vacant(&self, address: VirtAddr, size: PageSize) -> bool {
        let mut node = 0;
        for height in (height_of(size)..=self.top()).rev() {
            let entry = self.entry(node, index_at(address, height));
            if !entry.has(PRESENT) {
                return true;
            }
            if entry.has(LEAF) {
                return false;
            }
            node = entry.child();
        }
        false
    }

    /// 4 KB pages that are mapped, one by one, in the aligned 2 MB around an address.
    #[must_use]
    pub fn base_pages_around(&self, address: VirtAddr) -> u32 {
        let found = self.find(address, PageSize::Size4K);
        found.map_or(0, |(node, _)| u32::from(self.used[node]))
    }

    /// Maps a page. Frames for nodes come from `new_node`.
    ///
    /// # Errors
    /// [`TableError::Mapped`] when something is mapped there, [`TableError::NoFrame`] when a node
    /// is needed and there is no frame for it; nothing is mapped then.
    pub fn map(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
        mut new_node: impl FnMut(NodeFrames) -> Option<Frame>,
    ) -> Result<(), TableError> {
        let mut node = 0;
        let last = height_of(leaf.size);
        for height in (last + 1..=self.top()).rev() {
            let index = index_at(address, height);
            let entry = self.entry(node, index);
            if entry.has(LEAF) {
                return Err(TableError::Mapped(address));
            }
            if entry.has(PRESENT) {
                node = entry.child();
                continue;
            }
            let (frame, child) = self
                .new_child(height - 1, &mut new_node)
                .ok_or(TableError::NoFrame)?;
            self.set(node, index, Entry::node(frame, child));
            node = child;
        }
        let index = index_at(address, last);
        if self.entry(node, index).has(PRESENT) {
            return Err(TableError::Mapped(address));
        }
        self.set(node, index, Entry::leaf(leaf));
        Ok(())
    }

    fn set(&mut self, node: usize, index: usize, entry: Entry) {
        let place = &mut self.entries[node * ENTRIES + index];
        let before = place.has(PRESENT);
        *place = entry;
        let used = &mut self.used[node];
        *used = *used + u16::from(entry.has(PRESENT)) - u16::from(before);
    }

    /// Changes the leaf that maps an address, keeping its size. Says whether there is one.
    pub fn update(&mut self, address: VirtAddr, change: impl FnOnce(&mut Leaf)) -> bool {
        let (walk, at) = self.find_leaf(address);
        let Some(mut leaf) = walk.leaf else {
            return false;
        };
        let size = leaf.size;
        change(&mut leaf);
        debug_assert_eq!(leaf.size, size);
        self.entries[at] = Entry::leaf(leaf);
        true
    }

    /// Unmaps the page around an address, whose holes have been unmapped before. Page tables stay
    /// when they become empty, as in Linux (see [`PageTable::prune`]); larger nodes go, and their
    /// frames are handed to `free_node`.
    pub fn unmap(&mut self, address: VirtAddr, mut free_node: impl FnMut(Frame)) -> Option<Leaf> {
        let mut path = [(0, 0); MAX_LEVELS];
        let mut node = 0;
        for height in (0..=self.top()).rev() {
            let depth = self.top() - height;
            let index = index_at(address, height);
            path[depth] = (node, index);
            let entry = self.entry(node, index);
            if !entry.has(PRESENT) {
                return None;
            }
            if let Some(leaf) = entry.to_leaf(size_at(height)) {
                self.set(node, index, Entry::default());
                if height == 0 {
                    return Some(leaf);
                }
                for (parent, child) in path[..=depth].windows(2).map(|w| (w[0], w[1])).rev() {
                    if self.used[child.0] > 0 {
                        break;
                    }
                    free_node(self.drop_node(child.0));
                    self.set(parent.0, parent.1, Entry::default());
                }
                return Some(leaf);
            }
            node = entry.child();
        }
        None
    }

    /// Gives up the page tables of a range that are empty, and the nodes that become empty thereby
    /// (Linux's `free_pgtables`). Their frames are handed to `free_node`.
    pub fn prune(&mut self, range: VirtRange, mut free_node: impl FnMut(Frame)) {
        let mut at = range.start.align_down(PageSize::Size2M.bytes());
        while at < range.end {
            let span = self.prune_at(at, &mut free_node);
            let Some(next) = at.align_down(span).get().checked_add(span) else {
                return;
            };
            at = VirtAddr::new(next);
        }
    }

    /// Gives up the page table for an address, if it is empty; the size of the aligned area that is
    /// done with.
    fn prune_at(&mut self, address: VirtAddr, free_node: &mut impl FnMut(Frame)) -> u64 {
        let mut path = [(0, 0); MAX_LEVELS];
        let mut node = 0;
        let top = self.top();
        for height in (1..=top).rev() {
            let index = index_at(address, height);
            path[top - height] = (node, index);
            let entry = self.entry(node, index);
            if !entry.has(PRESENT) || entry.has(LEAF) {
                return 1 << shift_of(height);
            }
            node = entry.child();
        }
        for &(parent, index) in path[..top].iter().rev() {
            if self.used[node] > 0 {
                break;
            }
            free_node(self.drop_node(node));
            self.set(parent, index, Entry::default());
            node = parent;
        }
        PageSize::Size2M.bytes()
    }

    /// Replaces the leaf of `size` around an address by a node of 512 leaves of the next smaller
    /// size on the same frames. A perforated page becomes whole thereby: its holes are to be
    /// mapped one by one. Says whether there was one.
    pub fn split(&mut self, address: VirtAddr, size: PageSize, node_frame: Frame) -> bool {
        let Some((parent, index)) = self.find(address, size) else {
            return false;
        };
        let Some(leaf) = self.entry(parent, index).to_leaf(size) else {
            return false;
        };
        let part_size = if size == PageSize::Size1G {
            PageSize::Size2M
        } else {
            PageSize::Size4K
        };
        let made = self.new_child(height_of(part_size), &mut |_| Some(node_frame));
        let Some((_, child)) = made else {
            return false;
        };
        for i in 0..ENTRIES {
            let part = Leaf {
                frame: leaf.frame.offset(i as u32 * part_size.frames()),
                size: part_size,
                perforation: None,
                ..leaf
            };
            self.set(child, i, Entry::leaf(part));
        }
        self.set(parent, index, Entry::node(node_frame, child));
        true
    }

    /// Whether splitting a page of `size` makes a node that needs a shadow.
    #[must_use]
    pub fn frames_for_split(&self, size: PageSize) -> NodeFrames {
        if size == PageSize::Size1G && self.has_shadows {
            NodeFrames::WithShadow
        } else {
            NodeFrames::One
        }
    }

    /// Replaces whatever node maps the 2 MB around an address by one leaf, and returns the node's
    /// frame. The caller has taken the old pages' frames into account.
    pub fn collapse_2m(&mut self, address: VirtAddr, leaf: Leaf) -> Option<Frame> {
        let (parent, index) = self.find(address, PageSize::Size2M)?;
        let entry = self.entry(parent, index);
        if !entry.has(PRESENT) || entry.has(LEAF) {
            return None;
        }
        self.drop_node(entry.child());
        self.set(parent, index, Entry::leaf(leaf));
        Some(entry.frame())
    }

    /// Calls `visit` with every page that overlaps `range`, in address order. A perforated page is
    /// one page; its holes are not visited.
    pub fn for_each(&self, range: VirtRange, mut visit: impl FnMut(VirtAddr, Leaf)) {
        let mut at = range.start;
        while at < range.end {
            let (leaf, step) = self.step(at);
            let start = at.align_down(step);
            if let Some(leaf) = leaf {
                visit(start, leaf);
            }
            let Some(next) = start.get().checked_add(step) else {
                return;
            };
            at = VirtAddr::new(next);
        }
    }

    /// Calls `visit` with every hole that has a translation, in the perforated page around an
    /// address.
    pub fn for_each_hole(&self, address: VirtAddr, mut visit: impl FnMut(VirtAddr, Leaf)) {
        let start = address.align_down(PageSize::Size2M.bytes());
        let Some((node, _)) = self.hole_entry(start) else {
            return;
        };
        for index in 0..ENTRIES {
            if let Some(leaf) = self.entry(node, index).to_leaf(PageSize::Size4K) {
                visit(start + index as u64 * PAGE_BYTES, leaf);
            }
        }
    }

    /// The first address at or after `from` where something is mapped, or the start of its page.
    #[must_use]
    pub fn next_mapped(&self, from: VirtAddr) -> Option<VirtAddr> {
        let mut at = from;
        while at.get() >> self.levels.address_bits() == 0 {
            let (leaf, step) = self.step(at);
            if leaf.is_some() {
                return Some(at);
            }
            at = at.align_down(step) + step;
        }
        None
    }

    /// The leaf at an address, and the size of the aligned area that this is the answer for.
    fn step(&self, address: VirtAddr) -> (Option<Leaf>, u64) {
        let mut node = 0;
        for height in (0..=self.top()).rev() {
            let entry = self.entry(node, index_at(address, height));
            let span = 1 << shift_of(height);
            if !entry.has(PRESENT) {
                return (None, span);
            }
            if entry.has(LEAF) {
                return (entry.to_leaf(size_at(height)), span);
            }
            node = entry.child();
            if self.used[node] == 0 {
                return (None, span);
            }
        }
        (None, PageSize::Size4K.bytes())
    }

    /// First frames of all nodes, the root's first. Shadows belong to their nodes' blocks.
    pub fn node_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let mut is_block = vec![true; self.frames.len()];
        let shadows = self.shadows.iter().filter(|&&shadow| shadow != NONE);
        for index in shadows
            .map(|&s| s as usize)
            .chain(self.unused.iter().copied())
        {
            is_block[index] = false;
        }
        let nodes = self.frames.iter().zip(is_block);
        nodes.filter_map(|(frame, is_block)| is_block.then_some(*frame))
    }

    /// Nodes, the root and shadows included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.frames.len() - self.unused.len()
    }

    /// Checks that every node but the root, page tables and shadows is in use and reachable once,
    /// counts its entries correctly, and that shadows lie where they must (paper 003: one frame behind their
    /// node, whose frame is even) and have entries for perforated pages only.
    ///
    /// # Errors
    /// A sentence that names the node.
    pub fn validate(&self) -> Result<(), String> {
        let mut reached = vec![0; self.frames.len()];
        let mut open = vec![(0, self.top(), false)];
        while let Some((index, height, is_shadow)) = open.pop() {
            reached[index] += 1;
            let all = &self.entries[index * ENTRIES..][..ENTRIES];
            let present = all
                .iter()
                .enumerate()
                .filter(|(_, entry)| entry.has(PRESENT));
            if present.clone().count() != usize::from(self.used[index]) {
                return Err(format!(
                    "node {index} miscounts its {} entries",
                    self.used[index]
                ));
            }
            if self.used[index] == 0 && index != 0 && height > 0 && !is_shadow {
                return Err(format!("node {index} is empty and was not freed"));
            }
            let shadow = self.shadows[index] as usize;
            let due = self.has_shadows && height == DIRECTORY && !is_shadow;
            if due != (shadow != NONE as usize) {
                return Err(format!(
                    "node {index} has a shadow and should not, or the reverse"
                ));
            }
            if due {
                let frame = self.frames[index];
                if self.frames[shadow] != frame.offset(1) || !frame.get().is_multiple_of(2) {
                    return Err(format!("the shadow of node {index} lies elsewhere"));
                }
                for (at, entry) in all.iter().enumerate() {
                    if self.entry(shadow, at).has(PRESENT) && !entry.has(PERFORATED) {
                        return Err(format!("entry {at} of node {index} has holes and is whole"));
                    }
                }
                open.push((shadow, height, true));
            }
            for (_, entry) in present.filter(|(_, entry)| !entry.has(LEAF)) {
                if height == 0 {
                    return Err(format!("node {index} has children below the last level"));
                }
                if self.frames[entry.child()] != entry.frame() {
                    return Err(format!(
                        "node {index} disagrees with a child about its frame"
                    ));
                }
                open.push((entry.child(), height - 1, false));
            }
        }
        for (index, &times) in reached.iter().enumerate() {
            if times != i32::from(!self.unused.contains(&index)) {
                return Err(format!("node {index} is reached {times} times"));
            }
        }
        Ok(())
    }
}

/// Sets an entry's accessed and dirty bits as hardware does; says whether one was not set before.
#[inline]
fn mark(entry: &mut Entry, leaf: &mut Leaf, store: bool) -> bool {
    let dirty = store && leaf.writable;
    let marked = !leaf.accessed || dirty && !leaf.dirty;
    if marked {
        leaf.accessed = true;
        leaf.dirty |= dirty;
        entry.child_and_flags |= ACCESSED | if dirty { DIRTY } else { 0 };
    }
    marked
}
