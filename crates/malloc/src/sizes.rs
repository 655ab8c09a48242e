//! Sizes that the tables of classes, the page map and the caches agree on.

/// Bytes in a page of the page heap.
pub const PAGE_BYTES: usize = 8192;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 13;

/// Number of size classes, including class 0, which stands for "no class".
pub const COUNT: usize = 98;

/// log2 of the bytes in a slab.
pub const SLAB_SHIFT: u32 = 19;
/// Bytes in a slab; most of them are never touched.
pub const SLAB_BYTES: usize = 1 << SLAB_SHIFT;
/// Words of a slab before the first stack: headers, and the count of misses, in whole cache lines.
pub const HEADER_WORDS: usize = (COUNT + 1).next_multiple_of(8);
/// Words in a slab.
pub const SLAB_WORDS: usize = SLAB_BYTES / 8;
