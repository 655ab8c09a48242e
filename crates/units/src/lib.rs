//! Quantities as types, below everything else.
//!
//! A frame number that is passed where an address is expected, or a count of 4 KB pages where a
//! count of bytes is expected, is the classic mistake of memory-management code. Every such
//! quantity is therefore its own type here, and conversions have names. The crate is `no_std` and
//! never allocates, so that a kernel or a malloc can use the same vocabulary as the simulator.
//!
//! Sizes are binary throughout: 1 KB is 1024 bytes.

#![no_std]
#![forbid(unsafe_code)]

/// Construction and content of a newtype around a number.
macro_rules! raw {
    ($raw:ty) => {
        /// Wraps the raw number.
        #[inline]
        #[must_use]
        pub const fn new(raw: $raw) -> Self {
            Self(raw)
        }

        /// The raw number.
        #[inline]
        #[must_use]
        pub const fn get(self) -> $raw {
            self.0
        }
    };
}
use raw;

mod address;
mod quantity;
#[cfg(feature = "schema")]
pub mod ranges;
#[cfg(feature = "schema")]
mod schema;

pub use address::{Frame, Order, PageSize, PhysAddr, VirtAddr, VirtPage, VirtRange};
pub use quantity::{Bytes, Cycles, Megahertz, Nanoseconds, ParseQuantityError};

/// log2 of the smallest page, 4 KB, on x86-64 and on aarch64 with the common granule.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in the smallest page.
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// log2 of a cache line, 64 B on every machine that the project models.
pub const LINE_SHIFT: u32 = 6;
/// Bytes in a cache line.
pub const LINE_BYTES: u64 = 1 << LINE_SHIFT;
