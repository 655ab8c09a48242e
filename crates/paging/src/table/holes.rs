//! Holes of perforated pages, in the shadows of page directories (Perforated Page, section 4).

use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr};

use super::entry::{Entry, LEAF, Leaf, PERFORATED, PRESENT, mark};
use super::levels::ENTRY_BYTES;
use super::levels::{ENTRIES, index_at};
use super::{NONE, NodeFrames, PageTable, TableError, Walk};

impl PageTable {
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
            self.drop_node(node).map(free_node);
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
}
