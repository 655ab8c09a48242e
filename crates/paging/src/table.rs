//! The x86-64 page table: four levels of 512 entries of 8 bytes.
//!
//! Nodes occupy simulated frames, so that the walker's references have addresses. An entry holds,
//! beside what the hardware's entry does, the host index of the child node: a walk then follows
//! indices and needs no look-up of any other kind.

use contigua_units::{Frame, PageSize, PhysAddr, VirtAddr, VirtRange};

/// Levels of the tree: PML4, PDPT, PD, PT.
pub const LEVELS: usize = 4;
const INDEX_BITS: u32 = 9;
const ENTRIES: usize = 1 << INDEX_BITS;
const ENTRY_BYTES: u64 = 8;
/// Addresses below this can be translated (canonical user half and a bit).
const ADDRESS_BITS: u32 = 48;

/// What a leaf entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// First frame of the page.
    pub frame: Frame,
    /// Size of the page.
    pub size: PageSize,
    /// Stores are allowed.
    pub writable: bool,
    /// The kernel may take the page back until it is written again (`MADV_FREE`).
    pub lazily_freed: bool,
}

impl Leaf {
    /// The physical address that `address`, which lies in this page, translates to.
    #[inline]
    #[must_use]
    pub const fn physical(&self, address: VirtAddr) -> PhysAddr {
        PhysAddr::new(self.frame.address().get() + (address.get() & (self.size.bytes() - 1)))
    }
}

/// What a hardware walk for an address reads and finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    references: [PhysAddr; LEVELS],
    count: u8,
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
}

/// An entry, packed: frame, child node, flags.
#[derive(Clone, Copy, Default)]
struct Entry {
    frame: u32,
    /// Host index of the child node in the high 24 bits, flags in the low 8.
    child_and_flags: u32,
}

const PRESENT: u32 = 1;
const LEAF: u32 = 2;
const WRITABLE: u32 = 4;
const LAZILY_FREED: u32 = 8;
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
        let mut flags = PRESENT | LEAF;
        if leaf.writable {
            flags |= WRITABLE;
        }
        if leaf.lazily_freed {
            flags |= LAZILY_FREED;
        }
        Self {
            frame: leaf.frame.get(),
            child_and_flags: flags,
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
        })
    }
}

struct Node {
    entries: [Entry; ENTRIES],
    frame: Frame,
    used: u16,
}

/// A page table.
pub struct PageTable {
    nodes: Vec<Box<Node>>,
    unused: Vec<usize>,
}

/// Position of a page's entry: level 0 is the root.
const fn leaf_level(size: PageSize) -> usize {
    match size {
        PageSize::Size1G => 1,
        PageSize::Size2M => 2,
        PageSize::Size4K => 3,
    }
}

const fn size_at(level: usize) -> PageSize {
    match level {
        1 => PageSize::Size1G,
        2 => PageSize::Size2M,
        _ => PageSize::Size4K,
    }
}

/// Bits of an address below the index of a level.
const fn shift_of(level: usize) -> u32 {
    ADDRESS_BITS - INDEX_BITS * (level as u32 + 1)
}

#[inline]
const fn index_at(address: VirtAddr, level: usize) -> usize {
    (address.get() >> shift_of(level)) as usize & (ENTRIES - 1)
}

impl PageTable {
    /// An empty table whose root lies in `root`.
    #[must_use]
    pub fn new(root: Frame) -> Self {
        let mut table = Self {
            nodes: Vec::new(),
            unused: Vec::new(),
        };
        table.new_node(root);
        table
    }

    fn new_node(&mut self, frame: Frame) -> usize {
        let node = Box::new(Node {
            entries: [Entry::default(); ENTRIES],
            frame,
            used: 0,
        });
        if let Some(index) = self.unused.pop() {
            self.nodes[index] = node;
            return index;
        }
        assert!(
            self.nodes.len() < MAX_NODES,
            "a table of 64 GB has no room for more nodes"
        );
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Walks as hardware does.
    #[inline]
    #[must_use]
    pub fn walk(&self, address: VirtAddr) -> Walk {
        let mut walk = Walk {
            references: [PhysAddr::default(); LEVELS],
            count: 0,
            leaf: None,
        };
        let mut node = 0;
        for level in 0..LEVELS {
            let index = index_at(address, level);
            let Node { entries, frame, .. } = &*self.nodes[node];
            walk.references[level] = frame.address() + index as u64 * ENTRY_BYTES;
            walk.count += 1;
            let entry = entries[index];
            if !entry.has(PRESENT) {
                return walk;
            }
            if entry.has(LEAF) {
                walk.leaf = entry.to_leaf(size_at(level));
                return walk;
            }
            node = entry.child();
        }
        walk
    }

    /// The translation of an address, if there is one.
    #[must_use]
    pub fn leaf(&self, address: VirtAddr) -> Option<Leaf> {
        self.walk(address).leaf
    }

    /// The node and index of the entry for a page of `size`, if its node exists.
    fn find(&self, address: VirtAddr, size: PageSize) -> Option<(usize, usize)> {
        let mut node = 0;
        for level in 0..leaf_level(size) {
            let entry = self.nodes[node].entries[index_at(address, level)];
            if !entry.has(PRESENT) || entry.has(LEAF) {
                return None;
            }
            node = entry.child();
        }
        Some((node, index_at(address, leaf_level(size))))
    }

    /// Whether nothing at all is mapped in the aligned page of `size` around an address.
    #[must_use]
    pub fn is_vacant(&self, address: VirtAddr, size: PageSize) -> bool {
        let mut node = 0;
        for level in 0..=leaf_level(size) {
            let entry = self.nodes[node].entries[index_at(address, level)];
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
        found.map_or(0, |(node, _)| u32::from(self.nodes[node].used))
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
        mut new_node: impl FnMut() -> Option<Frame>,
    ) -> Result<(), TableError> {
        let mut node = 0;
        for level in 0..leaf_level(leaf.size) {
            let index = index_at(address, level);
            let entry = self.nodes[node].entries[index];
            if entry.has(LEAF) {
                return Err(TableError::Mapped(address));
            }
            if entry.has(PRESENT) {
                node = entry.child();
                continue;
            }
            let frame = new_node().ok_or(TableError::NoFrame)?;
            let child = self.new_node(frame);
            self.set(node, index, Entry::node(frame, child));
            node = child;
        }
        let index = index_at(address, leaf_level(leaf.size));
        if self.nodes[node].entries[index].has(PRESENT) {
            return Err(TableError::Mapped(address));
        }
        self.set(node, index, Entry::leaf(leaf));
        Ok(())
    }

    fn set(&mut self, node: usize, index: usize, entry: Entry) {
        let node = &mut self.nodes[node];
        let before = node.entries[index].has(PRESENT);
        node.used = node.used + u16::from(entry.has(PRESENT)) - u16::from(before);
        node.entries[index] = entry;
    }

    /// Changes the leaf that maps an address, keeping its size. Says whether there is one.
    pub fn update(&mut self, address: VirtAddr, change: impl FnOnce(&mut Leaf)) -> bool {
        let Some(mut leaf) = self.leaf(address) else {
            return false;
        };
        let size = leaf.size;
        change(&mut leaf);
        debug_assert_eq!(leaf.size, size);
        if let Some((node, index)) = self.find(address, size) {
            self.set(node, index, Entry::leaf(leaf));
        }
        true
    }

    /// Unmaps the page around an address. Nodes that become empty go, and their frames are handed
    /// to `free_node`.
    pub fn unmap(&mut self, address: VirtAddr, mut free_node: impl FnMut(Frame)) -> Option<Leaf> {
        let mut path = [(0, 0); LEVELS];
        let mut node = 0;
        for level in 0..LEVELS {
            let index = index_at(address, level);
            path[level] = (node, index);
            let entry = self.nodes[node].entries[index];
            if !entry.has(PRESENT) {
                return None;
            }
            if let Some(leaf) = entry.to_leaf(size_at(level)) {
                self.set(node, index, Entry::default());
                for (parent, child) in path[..=level].windows(2).map(|w| (w[0], w[1])).rev() {
                    if self.nodes[child.0].used > 0 {
                        break;
                    }
                    free_node(self.nodes[child.0].frame);
                    self.unused.push(child.0);
                    self.set(parent.0, parent.1, Entry::default());
                }
                return Some(leaf);
            }
            node = entry.child();
        }
        None
    }

    /// Replaces a 2 MB leaf by a node of 512 leaves of 4 KB on the same frames. Says whether
    /// there was one.
    pub fn split_2m(&mut self, address: VirtAddr, node_frame: Frame) -> bool {
        let Some((parent, index)) = self.find(address, PageSize::Size2M) else {
            return false;
        };
        let Some(leaf) = self.nodes[parent].entries[index].to_leaf(PageSize::Size2M) else {
            return false;
        };
        let child = self.new_node(node_frame);
        for i in 0..ENTRIES {
            let part = Leaf {
                frame: leaf.frame.offset(i as u32),
                size: PageSize::Size4K,
                ..leaf
            };
            self.set(child, i, Entry::leaf(part));
        }
        self.set(parent, index, Entry::node(node_frame, child));
        true
    }

    /// Replaces whatever node maps the 2 MB around an address by one leaf, and returns the node's
    /// frame. The caller has taken the old pages' frames into account.
    pub fn collapse_2m(&mut self, address: VirtAddr, leaf: Leaf) -> Option<Frame> {
        let (parent, index) = self.find(address, PageSize::Size2M)?;
        let entry = self.nodes[parent].entries[index];
        if !entry.has(PRESENT) || entry.has(LEAF) {
            return None;
        }
        self.unused.push(entry.child());
        self.set(parent, index, Entry::leaf(leaf));
        Some(entry.frame())
    }

    /// Calls `visit` with every page that overlaps `range`, in address order.
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

    /// The first address at or after `from` where something is mapped, or the start of its page.
    #[must_use]
    pub fn next_mapped(&self, from: VirtAddr) -> Option<VirtAddr> {
        let mut at = from;
        while at.get() >> ADDRESS_BITS == 0 {
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
        for level in 0..LEVELS {
            let entry = self.nodes[node].entries[index_at(address, level)];
            let span = 1 << shift_of(level);
            if !entry.has(PRESENT) {
                return (None, span);
            }
            if entry.has(LEAF) {
                return (entry.to_leaf(size_at(level)), span);
            }
            node = entry.child();
        }
        (None, PageSize::Size4K.bytes())
    }

    /// Frames of all nodes, the root's first.
    pub fn node_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let mut in_use = vec![true; self.nodes.len()];
        for &index in &self.unused {
            in_use[index] = false;
        }
        let nodes = self.nodes.iter().zip(in_use);
        nodes.filter_map(|(node, in_use)| in_use.then_some(node.frame))
    }

    /// Nodes, the root included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len() - self.unused.len()
    }

    /// Checks that every node but the root is in use and reachable once, and counts its entries
    /// correctly.
    ///
    /// # Errors
    /// A sentence that names the node.
    pub fn validate(&self) -> Result<(), String> {
        let mut reached = vec![0; self.nodes.len()];
        let mut open = vec![(0, 0)];
        while let Some((index, level)) = open.pop() {
            reached[index] += 1;
            let node = &self.nodes[index];
            let present = node.entries.iter().filter(|entry| entry.has(PRESENT));
            if present.clone().count() != usize::from(node.used) {
                return Err(format!("node {index} miscounts its {} entries", node.used));
            }
            if node.used == 0 && index != 0 {
                return Err(format!("node {index} is empty and was not freed"));
            }
            for entry in present.filter(|entry| !entry.has(LEAF)) {
                if level + 1 == LEVELS {
                    return Err(format!("node {index} has children below the last level"));
                }
                if self.nodes[entry.child()].frame != entry.frame() {
                    return Err(format!(
                        "node {index} disagrees with a child about its frame"
                    ));
                }
                open.push((entry.child(), level + 1));
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
