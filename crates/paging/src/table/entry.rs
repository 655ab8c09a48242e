//! Contents of an entry, and their packing into 8 bytes.

use contigua_units::{Frame, PageSize, PhysAddr, VirtAddr};

use crate::holes::Filter;

/// Contents of a leaf entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
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
    /// A whole page, not touched yet.
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

    /// Returns true if the kernel may take the page back: it was freed lazily, and not written
    /// since.
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

/// An entry, packed: frame, child node, flags.
#[derive(Clone, Copy, Default, contigua_state::Plain)]
pub(super) struct Entry {
    frame: u32,
    /// Host index of the child node in the high 24 bits, flags in the low 8. A leaf has its filter
    /// in the place of the child.
    child_and_flags: u32,
}

pub(super) const PRESENT: u32 = 1;
pub(super) const LEAF: u32 = 2;
const WRITABLE: u32 = 4;
const LAZILY_FREED: u32 = 8;
const ACCESSED: u32 = 16;
const DIRTY: u32 = 32;
const CONTIGUOUS: u32 = 64;
pub(super) const PERFORATED: u32 = 128;
const CHILD_SHIFT: u32 = 8;
pub(super) const MAX_NODES: usize = 1 << (u32::BITS - CHILD_SHIFT);

impl Entry {
    pub(super) fn node(frame: Frame, index: usize) -> Self {
        Self {
            frame: frame.get(),
            child_and_flags: (index as u32) << CHILD_SHIFT | PRESENT,
        }
    }

    pub(super) fn leaf(leaf: Leaf) -> Self {
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
    pub(super) fn has(self, flag: u32) -> bool {
        self.child_and_flags & flag != 0
    }

    #[inline]
    pub(super) fn child(self) -> usize {
        (self.child_and_flags >> CHILD_SHIFT) as usize
    }

    pub(super) fn frame(self) -> Frame {
        Frame::new(self.frame)
    }

    pub(super) fn to_leaf(self, size: PageSize) -> Option<Leaf> {
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

/// Sets an entry's accessed and dirty bits as hardware does; says whether one was not set before.
#[inline]
pub(super) fn mark(entry: &mut Entry, leaf: &mut Leaf, store: bool) -> bool {
    let dirty = store && leaf.writable;
    let marked = !leaf.accessed || dirty && !leaf.dirty;
    if marked {
        leaf.accessed = true;
        leaf.dirty |= dirty;
        entry.child_and_flags |= ACCESSED | if dirty { DIRTY } else { 0 };
    }
    marked
}
