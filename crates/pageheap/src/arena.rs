//! The only place where the heap touches memory through pointers: slices in [`Metadata`].
//!
//! Everything above uses these slices and indices into them, so that no link of a list can point
//! anywhere else than at a record.

use crate::os::{METADATA_ALIGN, Os};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Types of which all bytes zero is a value.
///
/// # Safety
/// Zero bytes are a valid value, the type needs no drop and is aligned to at most
/// [`METADATA_ALIGN`].
pub(crate) unsafe trait Zeroed {}

// SAFETY: integers, and arrays of such types.
unsafe impl Zeroed for u8 {}
// SAFETY: as above.
unsafe impl Zeroed for u16 {}
// SAFETY: as above.
unsafe impl Zeroed for u32 {}
// SAFETY: as above.
unsafe impl Zeroed for u64 {}
// SAFETY: as above.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] {}
// SAFETY: a missing pointer is all zero bytes by the guarantee on `Option<NonNull>`.
unsafe impl<T> Zeroed for Block<T> {}

/// A slice in metadata, that lives as long as the [`Os`] it came from. Empty until it gets memory.
pub(crate) struct Block<T> {
    start: Option<NonNull<T>>,
    len: usize,
}

// SAFETY: a block is the only way to its memory, as a box would be.
unsafe impl<T: Send> Send for Block<T> {}
// SAFETY: shared access to a block gives only shared access to its memory.
unsafe impl<T: Sync> Sync for Block<T> {}

impl<T> Block<T> {
    /// A block without elements.
    pub(crate) const EMPTY: Self = Self {
        start: None,
        len: 0,
    };
}

impl<T: Zeroed> Block<T> {
    /// A block of `len` zero elements, or nothing if there is no memory for it.
    pub(crate) fn new<O: Os>(os: &mut O, len: usize) -> Option<Self> {
        const { assert!(align_of::<T>() <= METADATA_ALIGN) };
        let bytes = len.checked_mul(size_of::<T>())?;
        let (start, got) = os.metadata(bytes)?.parts();
        (got >= bytes).then_some(Self {
            start: Some(start.cast()),
            len,
        })
    }
}

impl<T> Deref for Block<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self.start {
            // SAFETY: `new` checked size and alignment and that zero is a `T`; `Metadata` promises
            // that the memory is ours alone while its `Os`, which the heap owns beside its blocks,
            // lives. Needed because without an allocator there is no box to own the records.
            Some(start) => unsafe { core::slice::from_raw_parts(start.as_ptr(), self.len) },
            None => &[],
        }
    }
}

impl<T> DerefMut for Block<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self.start {
            // SAFETY: as for `deref`; the exclusive borrow of the block makes this the only access.
            Some(start) => unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), self.len) },
            None => &mut [],
        }
    }
}

impl<T> AsRef<[T]> for Block<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T> AsMut<[T]> for Block<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}
