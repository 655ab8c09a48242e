//! Mapped pages in address order.

use contigua_units::{PageSize, VirtAddr, VirtRange};

use super::PageTable;
use super::entry::{LEAF, Leaf, PRESENT};
use super::levels::{index_at, shift_of, size_at};

/// A place on the way through a range of addresses. It holds nothing of the table: the pages that it
/// has passed may go or change, as under the cursors of Asterinas (`ostd::mm::page_table`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor(VirtRange);

impl Cursor {
    /// The start of a range.
    pub(crate) fn new(range: VirtRange) -> Self {
        Self(range)
    }

    /// The next page that overlaps the range, in address order, behind which the cursor goes on. A
    /// perforated page is one page; its holes are none.
    pub(crate) fn next(&mut self, table: &PageTable) -> Option<(VirtAddr, Leaf)> {
        let Self(VirtRange { start: at, end }) = self;
        while at < end && at.get() >> table.levels.address_bits() == 0 {
            let (leaf, step) = table.step(*at);
            let start = at.align_down(step);
            *at = start + step;
            if let Some(leaf) = leaf {
                return Some((start, leaf));
            }
        }
        None
    }
}

impl PageTable {
    /// The pages that overlap a range, in address order.
    pub fn pages(&self, range: VirtRange) -> impl Iterator<Item = (VirtAddr, Leaf)> + '_ {
        let mut cursor = Cursor::new(range);
        std::iter::from_fn(move || cursor.next(self))
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
