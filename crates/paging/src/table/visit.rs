//! Mapped pages in address order.

use contigua_units::{PageSize, VirtAddr, VirtRange};

use super::PageTable;
use super::entry::{LEAF, Leaf, PRESENT};
use super::levels::{index_at, shift_of, size_at};

impl PageTable {
    /// Calls `visit` with every page that overlaps `range`, in address order. A perforated page is
    /// one page; its holes are not visited.
    pub fn for_each(&self, range: VirtRange, mut visit: impl FnMut(VirtAddr, Leaf)) {
        let mut at = range.start;
        let end = range.end.get().min(1 << self.levels.address_bits());
        while at.get() < end {
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
}
