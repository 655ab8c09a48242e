//! Interface to an operating system, real or simulated.

use core::ptr::NonNull;

/// Alignment of [`Metadata`], a cache line.
pub const METADATA_ALIGN: usize = 64;

/// Alignment of addresses in bulk unless an [`Os`] has another: 1 GB, as page tables and the heap's
/// own records have it.
pub const RESERVE_ALIGN: usize = 1 << 30;

/// The operating system below a heap.
///
/// Addresses of the heap itself are numbers here, never pointers: a simulated system need not have
/// memory behind them. Only [`metadata`](Self::metadata) is memory that the heap itself accesses.
pub trait Os {
    /// Memory for the heap's own records, at least `bytes` of it, or nothing if there is none.
    ///
    /// The heap asks about 3 MB at its first allocation, of which it touches little, then about
    /// 70 KB for each gigabyte of addresses, and gives nothing back.
    fn metadata(&mut self, bytes: usize) -> Option<Metadata>;

    /// Reserves `bytes` of addresses, aligned to `align`, that cost no memory yet. The address of
    /// the first, or nothing if there are none.
    ///
    /// The heap asks for multiples of [`HUGE_BYTES`](crate::HUGE_BYTES) aligned to at least that.
    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize>;

    /// Alignment of addresses in bulk, at least [`HUGE_BYTES`](crate::HUGE_BYTES).
    fn reserve_align(&self) -> usize {
        RESERVE_ALIGN
    }

    /// Makes reserved memory usable, if possible with huge pages. The heap calls this before it
    /// hands out memory that it never backed or that it released as a whole.
    ///
    /// False if there is no memory: the heap then undoes what it was about to do.
    fn back(&mut self, address: usize, bytes: usize) -> bool;

    /// Gives memory back; its contents are lost, its addresses stay reserved and usable: an access
    /// brings memory again, in small pages unless the whole huge page was released.
    ///
    /// False if the memory was not given back.
    fn release(&mut self, address: usize, bytes: usize) -> bool;

    /// Returns true if released memory reads as zeros when it is next used. `MADV_DONTNEED` does
    /// that, `MADV_FREE` does not.
    fn release_zeroes(&self) -> bool {
        true
    }

    /// Makes the 2 MB at `address` one huge page again, keeping its contents. False if that did not
    /// happen.
    fn collapse(&mut self, address: usize) -> bool;

    /// Nanoseconds of a clock that never goes back.
    fn now(&self) -> u64;
}

/// Memory for the heap's own records.
#[derive(Debug)]
pub struct Metadata {
    start: NonNull<u8>,
    bytes: usize,
}

impl Metadata {
    /// Hands memory to the heap.
    ///
    /// # Safety
    /// The `bytes` at `start` are zero, aligned to [`METADATA_ALIGN`], accessible, and nobody
    /// else's, until the [`Os`] that hands them out is dropped.
    #[must_use]
    pub const unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// The first byte and the number of bytes.
    pub(crate) const fn parts(&self) -> (NonNull<u8>, usize) {
        (self.start, self.bytes)
    }
}
