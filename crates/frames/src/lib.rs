//! Physical memory: who uses which frame, and a buddy allocator that hands them out.
//!
//! All metadata lies in a buffer that the caller supplies, 16 bytes a frame (64 GB take 256 MB),
//! so that the same code runs in a simulator and could run in a kernel. Nothing here allocates.

#![no_std]
#![forbid(unsafe_code)]

mod allocator;
mod lists;
mod record;

pub use allocator::{Frames, Inconsistency};
pub use record::{FrameClass, FrameRecord, Owner};

use contigua_units::Frame;

/// Why an operation on frames was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffer has no room for a frame, or for more than frame numbers can name.
    #[error("a frame table of {0} records; it holds 1 to 2^32 - 1")]
    Size(usize),
    /// The frame is beyond the end of memory.
    #[error("{0} does not exist")]
    NoSuchFrame(Frame),
    /// The frame that was asked for is in use.
    #[error("{0} is in use")]
    InUse(Frame),
    /// The frame is not the first of an allocated block.
    #[error("{0} is not the first frame of an allocated block")]
    NotAllocated(Frame),
    /// The block has several users, and only one of them gave it up.
    #[error("{0} has several users")]
    Shared(Frame),
}
