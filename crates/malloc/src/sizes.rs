//! Sizes that the tables of classes, the page map and the caches agree on.

/// Bytes in a page of the page heap.
pub const PAGE_BYTES: usize = 8192;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 13;

/// Number of size classes, including class 0, which stands for "no class".
pub const COUNT: usize = 98;
