//! The page heap's operating system under Miri, which has no `madvise` and no protection keys:
//! memory from Rust's allocator, so that Miri knows each access to an object.

use std::alloc::{Layout, alloc_zeroed};

use contigua_pageheap::{METADATA_ALIGN, Metadata, Os};
use core::ptr::NonNull;

/// No more than this at once: Miri keeps records of all of it.
const MOST_BYTES: usize = 16 << 20;

/// Nothing is small here.
pub fn collapse_early() {}

/// There is all the memory that is asked for.
pub fn back(_address: usize, _bytes: usize) -> bool {
    true
}

/// Nothing goes back, and that is no failure.
pub fn release(_address: usize, _bytes: usize) -> bool {
    true
}

/// Nothing becomes huge.
pub fn collapse(_address: usize) -> bool {
    false
}

/// Memory for ever.
pub struct System;

impl System {
    /// The model.
    pub const fn new() -> Self {
        Self
    }

    /// Like [`new`](Self::new): Miri chooses addresses.
    pub const fn scattered(_random: u64) -> Self {
        Self
    }
}

fn zeroed(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, align).ok()?;
    // SAFETY: the layout is not empty. Never freed, as the trait asks.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}

impl Os for System {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        // SAFETY: fresh zeroed memory of this size and alignment.
        zeroed(bytes, METADATA_ALIGN).map(|start| unsafe { Metadata::new(start, bytes) })
    }

    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        if bytes > MOST_BYTES {
            return None;
        }
        zeroed(bytes, align).map(|start| start.expose_provenance().get())
    }

    fn back(&mut self, _address: usize, _bytes: usize) -> bool {
        true
    }

    fn release(&mut self, _address: usize, _bytes: usize) -> bool {
        true
    }

    fn release_zeroes(&self) -> bool {
        false
    }

    fn collapse(&mut self, _address: usize) -> bool {
        false
    }

    fn now(&self) -> u64 {
        crate::clock::coarse_nanoseconds()
    }
}
