//! The x86-64 page table: four or five levels of 512 entries of 8 bytes.
//!
//! Nodes occupy simulated frames, so that the walker's references have addresses. An entry holds,
//! beside what the hardware's entry does, the host index of the child node. All nodes lie in one
//! array, so a walk is one dependent load a level and needs no look-up of any other kind.
//!
//! A table for Perforated Pages (Perforated Page, section 4) has a shadow behind each
//! page-directory node, in the frame that follows the node's: entry `k` of the shadow leads to the
//! translations of the holes in the page that entry `k` of the node maps.
//!
//! Where designs have areas, the last nodes lie in them in order.
//!
//! Where designs have hashed tables, these take the memory, and the tree is the simulator's index of them: its
//! nodes have no frames.

pub(crate) mod areas;
mod entry;
pub(crate) mod hashed;
mod holes;
mod levels;
mod placing;
mod validate;
pub(crate) mod visit;

use contigua_units::{Frame, Order, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::buckets::Buckets;

use self::areas::Areas;
pub use self::entry::Leaf;
use self::entry::{Entry, LEAF, MAX_NODES, PRESENT, mark};
use self::hashed::{Growth, Hashed, Hashing};
use self::levels::{ENTRIES, ENTRY_BYTES, height_of, index_at, shift_of, size_at};
pub use self::levels::{Levels, MAX_LEVELS};

/// Height of the nodes whose entries map 2 MB.
const DIRECTORY: usize = 1;
/// No shadow.
const NONE: u32 = 0;

/// Reads and result of a hardware walk for an address.
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
    /// A node was needed and no frame could be allocated for it.
    #[error("no frame for a page-table node")]
    NoFrame,
    /// Something is mapped there already.
    #[error("{0} is mapped already")]
    Mapped(VirtAddr),
    /// No perforated page is mapped there.
    #[error("no perforated page at {0}")]
    NotPerforated(VirtAddr),
    /// No page table maps what is there.
    #[error("no page table at {0}")]
    NoNode(VirtAddr),
}

/// Frames that a node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFrames {
    /// One frame.
    One,
    /// Two frames, the first one even: the node and its shadow.
    WithShadow,
    /// None: tables are hashed, or the node has a place in an area.
    None,
}

/// A page table.
#[derive(contigua_state::Plain)]
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
    hashed: Option<Hashed>,
    areas: Option<Areas>,
    /// Buckets in which its pages are placed by hashes.
    buckets: Option<Buckets>,
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
            hashed: None,
            areas: None,
            buckets: None,
        };
        table.new_node(root);
        table
    }

    /// An empty hashed table of an index with so many levels. It has no memory before it grows.
    #[must_use]
    pub fn with_hashing(hashing: Hashing, levels: Levels) -> Self {
        Self {
            hashed: Some(Hashed::new(hashing)),
            ..Self::with(Frame::default(), levels, false)
        }
    }

    /// The hashed tables, if these are what it consists of.
    #[must_use]
    pub fn hashed(&self) -> Option<&Hashed> {
        self.hashed.as_ref()
    }

    /// Says in which buckets its pages are placed by hashes.
    pub fn place_in(&mut self, buckets: Option<Buckets>) {
        self.buckets = buckets;
    }

    /// Buckets in which its pages are placed by hashes, as hardware has them in a register.
    #[inline]
    #[must_use]
    pub const fn buckets(&self) -> Option<Buckets> {
        self.buckets
    }

    /// Lets hashed tables that want to grow take blocks of memory.
    pub fn grow(&mut self, mut take: impl FnMut(Order) -> Option<Frame>) -> Growth {
        let hashed = self.hashed.as_mut();
        hashed.map_or(Growth::default(), |hashed| hashed.grow(&mut take))
    }

    /// Blocks that hashed tables do not need any more, and the number of lines that moved in them, since the last
    /// call.
    pub(crate) fn take_released(&mut self) -> (Vec<Frame>, u64) {
        let hashed = self.hashed.as_mut();
        hashed.map_or_else(Default::default, Hashed::take_released)
    }

    /// Number of levels.
    #[must_use]
    pub const fn levels(&self) -> Levels {
        self.levels
    }

    /// Returns true if page directories have shadows, so that pages can be perforated.
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

    /// A node of a height for an address, with a shadow where one is due.
    fn new_child(
        &mut self,
        address: VirtAddr,
        height: usize,
        new_node: &mut impl FnMut(NodeFrames) -> Option<Frame>,
    ) -> Option<(Frame, usize)> {
        let with_shadow = self.has_shadows && height == DIRECTORY;
        let frames = if with_shadow {
            NodeFrames::WithShadow
        } else {
            NodeFrames::One
        };
        let areas = self.areas.as_mut();
        let frame = match areas.and_then(|areas| areas.take_slot(address, height)) {
            _ if self.hashed.is_some() => Frame::default(),
            Some(slot) => slot,
            None => new_node(frames)?,
        };
        let child = self.new_node(frame);
        if with_shadow {
            let shadow = self.new_node(frame.offset(1));
            self.shadows[child] = shadow as u32;
        }
        Some((frame, child))
    }

    /// Gives a node up, and its shadow with it; the frame that it had.
    fn drop_node(&mut self, node: usize) -> Option<Frame> {
        let shadow = std::mem::replace(&mut self.shadows[node], NONE);
        if shadow != NONE {
            self.unused.push(shadow as usize);
        }
        self.unused.push(node);
        let frame = self.frames[node];
        let areas = self.areas.as_mut();
        let is_in_area = areas.is_some_and(|areas| areas.drop_slot(frame));
        (self.hashed.is_none() && !is_in_area).then_some(frame)
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

    /// The translation of an address, if there is one. A perforated page is returned as such, for
    /// its holes too.
    #[must_use]
    pub fn leaf(&self, address: VirtAddr) -> Option<Leaf> {
        self.walk(address).leaf
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

    /// Returns true if nothing at all is mapped in the aligned page of `size` around an address.
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
        if self.hashed.is_some() && !self.is_vacant(address, leaf.size) {
            return Err(TableError::Mapped(address));
        }
        if let Some(hashed) = &mut self.hashed
            && !hashed.insert(address, leaf.size)
        {
            return Err(TableError::NoFrame);
        }
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
                .new_child(address, height - 1, &mut new_node)
                .ok_or(TableError::NoFrame)?;
            self.set(node, index, Entry::node(frame, child));
            node = child;
        }
        let index = index_at(address, last);
        if self.entry(node, index).has(PRESENT) {
            return Err(TableError::Mapped(address));
        }
        self.set(node, index, Entry::leaf(leaf));
        if self.used[node] == 1 || leaf.size > PageSize::Size4K {
            self.note_page(address, leaf.size);
        }
        Ok(())
    }

    /// A page was mapped in a node that may be outside of all areas.
    fn note_page(&mut self, address: VirtAddr, size: PageSize) {
        if let Some(areas) = &mut self.areas {
            areas.note(address, size);
        }
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
                if let Some(hashed) = &mut self.hashed {
                    hashed.remove(address, leaf.size);
                }
                if height == 0 {
                    return Some(leaf);
                }
                for (parent, child) in path[..=depth].windows(2).map(|w| (w[0], w[1])).rev() {
                    if self.used[child.0] > 0 {
                        break;
                    }
                    self.drop_node(child.0).map(&mut free_node);
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
            self.drop_node(node).map(&mut *free_node);
            self.set(parent, index, Entry::default());
            node = parent;
        }
        PageSize::Size2M.bytes()
    }

    /// Replaces the leaf of `size` around an address by a node of 512 leaves of the next smaller
    /// size on the same frames. A perforated page becomes whole thereby: its holes are to be
    /// mapped one by one. Says whether there was one, and room in hashed tables.
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
        if !self.resize(address, size, part_size) {
            return false;
        }
        let height = height_of(part_size);
        let made = self.new_child(address, height, &mut |_| Some(node_frame));
        let Some((node_frame, child)) = made else {
            return false;
        };
        self.note_page(address, part_size);
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

    /// Frames that splitting the page of `size` around an address needs: a node, perhaps with a shadow.
    #[must_use]
    pub fn frames_for_split(&self, address: VirtAddr, size: PageSize) -> NodeFrames {
        let height = height_of(size) - 1;
        let areas = self.areas.as_ref();
        let has_slot = areas.is_some_and(|areas| areas.has_slot(address, height));
        if self.hashed.is_some() || has_slot {
            NodeFrames::None
        } else if size == PageSize::Size1G && self.has_shadows {
            NodeFrames::WithShadow
        } else {
            NodeFrames::One
        }
    }

    /// Replaces whatever node maps the 2 MB around an address by one leaf, and returns the node's
    /// frame, if it has one. The caller has taken the old pages' frames into account.
    ///
    /// # Errors
    /// [`TableError::NoNode`]; [`TableError::NoFrame`] when hashed tables have no room.
    pub fn collapse_2m(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
    ) -> Result<Option<Frame>, TableError> {
        let found = self.find(address, PageSize::Size2M);
        let (parent, index) = found.ok_or(TableError::NoNode(address))?;
        let entry = self.entry(parent, index);
        if !entry.has(PRESENT) || entry.has(LEAF) {
            return Err(TableError::NoNode(address));
        }
        if let Some(hashed) = &mut self.hashed {
            if !hashed.insert(address, PageSize::Size2M) {
                return Err(TableError::NoFrame);
            }
            let start = address.align_down(PageSize::Size2M.bytes());
            let parts = &self.entries[entry.child() * ENTRIES..][..ENTRIES];
            for (part, _) in (0..).zip(parts).filter(|(_, part)| part.has(PRESENT)) {
                hashed.remove(start + part * PageSize::Size4K.bytes(), PageSize::Size4K);
            }
        }
        let node = self.drop_node(entry.child());
        self.set(parent, index, Entry::leaf(leaf));
        Ok(node)
    }

    /// Lets the parts of a page take its place in hashed tables; says whether there was room.
    fn resize(&mut self, address: VirtAddr, from: PageSize, to: PageSize) -> bool {
        let Some(hashed) = &mut self.hashed else {
            return true;
        };
        let part = |number: u64| address.align_down(from.bytes()) + number * to.bytes();
        for number in 0..from.bytes() / to.bytes() {
            if !hashed.insert(part(number), to) {
                (0..number).for_each(|number| hashed.remove(part(number), to));
                return false;
            }
        }
        hashed.remove(address, from);
        true
    }

    /// First frames of all nodes, the root's first, or of all blocks of hashed tables. Shadows belong to their
    /// nodes' blocks.
    pub fn node_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let mut is_block = vec![self.hashed.is_none(); self.frames.len()];
        let shadows = self.shadows.iter().filter(|&&shadow| shadow != NONE);
        for index in shadows
            .map(|&s| s as usize)
            .chain(self.unused.iter().copied())
        {
            is_block[index] = false;
        }
        let nodes = self.frames.iter().zip(is_block);
        let blocks = self.hashed.iter().flat_map(Hashed::blocks);
        let areas = self.areas.as_ref();
        let is_in_area = move |frame| areas.is_some_and(|areas| areas.has_frame(frame));
        nodes
            .filter_map(move |(&frame, is_block)| (is_block && !is_in_area(frame)).then_some(frame))
            .chain(blocks)
            .chain(areas.into_iter().flat_map(Areas::frames))
    }

    /// Nodes, the root and shadows included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.frames.len() - self.unused.len()
    }
}
