//! The shape of the tree: which bits of an address choose an entry at which height.

use contigua_units::{PAGE_BYTES, PageSize, VirtAddr};

/// Levels of the largest tree: PML5, PML4, PDPT, PD, PT.
pub const MAX_LEVELS: usize = 5;
const INDEX_BITS: u32 = 9;
/// Entries of a node.
pub(super) const ENTRIES: usize = 1 << INDEX_BITS;
pub(super) const ENTRY_BYTES: u64 = 8;
/// Bits of an address below the index of the last level.
const PAGE_SHIFT: u32 = PAGE_BYTES.trailing_zeros();

/// Number of levels of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
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

/// Height of the nodes whose entries map pages of a size; page tables have height 0.
pub(super) const fn height_of(size: PageSize) -> usize {
    match size {
        PageSize::Size4K => 0,
        PageSize::Size2M => 1,
        PageSize::Size1G => 2,
    }
}

pub(super) const fn size_at(height: usize) -> PageSize {
    match height {
        1 => PageSize::Size2M,
        2 => PageSize::Size1G,
        _ => PageSize::Size4K,
    }
}

/// Bits of an address below the index at a height.
pub(super) const fn shift_of(height: usize) -> u32 {
    PAGE_SHIFT + INDEX_BITS * height as u32
}

#[inline]
pub(super) const fn index_at(address: VirtAddr, height: usize) -> usize {
    (address.get() >> shift_of(height)) as usize & (ENTRIES - 1)
}
