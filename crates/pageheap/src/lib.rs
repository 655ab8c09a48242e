//! The part of a malloc that knows about huge pages: it takes address space from the operating
//! system and hands out runs of heap pages of 8 KB.
//!
//! Whoever asks for memory in pieces decides how much of it huge pages can cover. So the heap sees
//! memory as aligned ranges of 2 MB, *huge pages*, and does two things (Adaptive Subrelease,
//! section 2.2). It packs requests into as few huge pages as it can (the *filler*), so that others
//! become entirely free; and it gives memory back slowly, whole free huge pages first (the
//! *cache*), pieces of partly used ones last (*subrelease*), because a piece that is given back
//! breaks the huge mapping of everything around it. How much to give back follows from what the
//! program used lately (section 4): what it used within the last minute it will probably use again.
//!
//! A malloc cannot call malloc, and a simulator wants to run the same heap. So the heap is
//! `no_std`, uses no allocator, keeps its records in memory that it asks of an [`Os`], and does to
//! memory nothing but what [`Os`] offers.
//!
//! The essay on why and with which numbers is `docs/design/page-heap.md`.

#![no_std]

#[cfg(any(test, feature = "replay"))]
extern crate std;

mod accuracy;
mod arena;
mod bits;
mod config;
mod demand;
mod early;
mod heap;
#[cfg(feature = "linux")]
pub mod linux;
mod lists;
mod os;
mod policy;
#[cfg(feature = "replay")]
pub mod replay;
mod series;
mod slab;
mod statistics;

use core::ops::Range;

pub use config::{Config, Primary};
pub use heap::{Arrival, Attempt, Leaving, Needed, PageHeap, Plan, Rank, Supply};
pub use os::{METADATA_ALIGN, Metadata, Os, RESERVE_ALIGN};
pub use statistics::{Epoch, Inconsistency, Released, Statistics};

/// Bytes of a heap page, the unit in which the heap hands out memory (Adaptive Subrelease, section
/// 2.2).
pub const PAGE_BYTES: usize = 8192;
/// Bytes of a huge page on x86-64, and on aarch64 with the granule of 4 KB.
pub const HUGE_BYTES: usize = 2 << 20;
/// Heap pages of a huge page, 256.
pub const HUGE_PAGES: u32 = (HUGE_BYTES / PAGE_BYTES) as u32;

/// A run of heap pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The address of its first byte, a multiple of [`PAGE_BYTES`].
    pub address: usize,
    /// Number of heap pages.
    pub pages: u32,
}

impl Span {
    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    /// The address after its last byte.
    #[inline]
    #[must_use]
    pub const fn end(self) -> usize {
        self.address + self.bytes()
    }
}

/// Result of [`PageHeap::allocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// The pages.
    pub span: Span,
    /// Bytes of the span outside of which every byte is known to be zero.
    dirty: (usize, usize),
}

impl Allocated {
    /// A span without bytes that may not be zero.
    pub(crate) const fn new(span: Span) -> Self {
        Self {
            span,
            dirty: (0, 0),
        }
    }

    /// Notes that `bytes` from `address` on, behind those noted before, may not be zero.
    pub(crate) fn soil(&mut self, address: usize, bytes: usize) {
        let from = address - self.span.address;
        debug_assert!(from >= self.dirty.1);
        if self.dirty.1 == 0 {
            self.dirty.0 = from;
        }
        self.dirty.1 = from + bytes;
    }

    /// Returns true if every byte is known to be zero.
    #[must_use]
    pub const fn is_zeroed(&self) -> bool {
        self.dirty.1 == 0
    }

    /// Offsets of the bytes outside of which every byte is known to be zero.
    #[must_use]
    pub const fn dirty(&self) -> Range<usize> {
        self.dirty.0..self.dirty.1
    }
}
