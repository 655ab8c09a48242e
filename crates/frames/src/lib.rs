//! Physical memory: who uses which frame, and the kernel's ways of handing frames out.
//!
//! The mechanisms are Linux's: a buddy allocator with migrate types and per-CPU lists, watermarks,
//! reclaim, compaction, contiguous ranges, pinning, pressure. Where requests may be served is the
//! verdict of a [`PlacementPolicy`]: Linux, Illuminator or Contiguitas, whose two regions and
//! their resizing live here as well.
//!
//! All metadata lies in buffers that the caller supplies, 16 bytes a frame (64 GB take 260 MB), so
//! that the same code runs in a simulator and could run in a kernel. Nothing here allocates, and
//! nothing calls back: what happens to memory that others have pointers to is reported to a
//! [`Moves`] that they pass in.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

mod allocator;
mod background;
mod block;
mod bring;
mod chain;
mod clearing;
mod compaction;
mod config;
mod contiguous;
pub mod controller;
mod counters;
mod fallback;
mod groups;
mod lists;
mod moving;
mod ordered;
mod per_cpu;
pub mod policies;
pub mod pressure;
mod reclaim;
mod record;
mod regions;
mod relocation;
mod request;
mod storage;
mod superpageblocks;
mod users;
mod validate;
mod watermarks;

pub use allocator::Frames;
pub use block::{BLOCK_FRAMES, BlockRecord, MigrateType};
pub use bring::{Brought, Obstacle};
pub use clearing::Relocation;
pub use config::{Config, Costs, Defrag, Effort};
pub use contiguous::Pick;
pub use counters::Counters;
pub use groups::{Evict, GroupRecord};
pub use lists::Discipline;
pub use moving::{Move, Moves};
pub use per_cpu::CpuRecord;
pub use policies::{Placement, PlacementPolicy};
pub use record::{FrameClass, FrameRecord, Group, Owner};
pub use request::{Request, Wakes};
#[cfg(feature = "alloc")]
pub use storage::Boxed;
pub use storage::{Layout, Parts, PartsMut, Storage};
pub use validate::Inconsistency;

use contigua_units::Frame;

/// Why an operation on frames was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffer has no room for a frame, or for more than frame numbers can name.
    #[error("a frame table of {0} records; it holds 1 to 2^32 - 2")]
    Size(usize),
    /// A buffer has another size than the layout of this memory says.
    #[error("the buffers are not those of a layout for this memory")]
    Layout,
    /// The unmovable region would leave nothing to the movable one.
    #[error(
        "an unmovable region of {region} frames leaves nothing of a memory of {memory} frames; make \
         unmovable_min smaller or memory larger"
    )]
    Region {
        /// Frames of the unmovable region.
        region: u64,
        /// Frames of memory.
        memory: u64,
    },
    /// The frame is beyond the end of memory.
    #[error("{0} does not exist")]
    NoSuchFrame(Frame),
    /// The frame that was asked for is in use.
    #[error("{0} is in use")]
    InUse(Frame),
    /// The frame is not the first of an allocated block.
    #[error("{0} is not the first frame of an allocated block")]
    NotAllocated(Frame),
    /// One block cannot take the place of the other.
    #[error(
        "{to} cannot take the place of {from}: they were not allocated alike, or {to} is in use"
    )]
    Unlike {
        /// The block that is to be replaced.
        from: Frame,
        /// The block that should take its place.
        to: Frame,
    },
    /// The block has several users, and only one of them gave it up.
    #[error("{0} has several users")]
    Shared(Frame),
    /// The block has as many users as can be counted.
    #[error("{0} has too many users to count one more")]
    TooManyUsers(Frame),
    /// The block cannot be pinned: it cannot move to where pinned blocks belong, or no room is
    /// there.
    #[error("{0} cannot be pinned where pinned memory belongs")]
    CannotPin(Frame),
}
