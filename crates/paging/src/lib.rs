//! Address spaces of simulated processes.
//!
//! [`PageTable`] is the x86-64 radix tree as hardware sees it, with nodes in simulated frames.
//! [`AddressSpace`] is what the kernel keeps around it: mappings, faults, huge pages, copy on
//! write. What a fault maps is decided by a [`MappingPolicy`]; the mechanism here acts on its
//! verdict. Work that others must do or pay for comes back as [`Effects`].

#![forbid(unsafe_code)]

mod anchors;
mod blanks;
mod buckets;
mod changes;
mod clusters;
mod coverage;
mod effects;
mod faults;
mod folios;
mod giant;
pub mod holes;
mod huge;
mod iceberg;
mod looks;
mod memory;
mod objects;
mod offsets;
mod orders;
mod perforated;
mod policy;
mod primary;
mod ranger;
mod recovery;
mod rest_segs;
mod restrict;
mod segment;
mod shared;
mod smaps;
mod space;
mod space_id;
mod stack;
mod table;
mod vma;
mod zero;

pub use buckets::Buckets;
pub use contigua_frames::{Brought, Obstacle, Pick};
pub use effects::{Effects, Fault, FaultKind, Resident, Written};
pub use holes::{Filter, Fragmentation, HoleBitmaps, HoleKind, Holes, Pattern};
pub use memory::Memory;
pub use objects::{Backing, ObjectId};
pub use orders::{FolioCounts, Orders};
pub use policy::{
    CollapseContext, FaultContext, HoleVerdict, MappingPolicy, Promotion, SharedContext,
};
pub use primary::{Eligible, PRIMARY_START, Place, Primary};
pub use ranger::{RangerStep, Ranging, Runs};
pub use rest_segs::{MAX_WAYS as MAX_REST_SEG_WAYS, RestSeg, RestSegPlan, RestSegs, Room};
pub use segment::Segment;
pub use shared::SharedMemory;
pub use smaps::MappingMemory;
pub use space::{AddressSpace, TableShape};
pub use space_id::SpaceId;
pub use table::areas::{AreaShape, Areas};
pub use table::hashed::{Growth, Hashed, Hashing, MAX_WAYS};
pub use table::{Leaf, Levels, MAX_LEVELS, NodeFrames, PageTable, TableError, Walk};
pub use vma::{Disabled, HugeAdvice, Vma, VmaKind};

/// Why an address space could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No frame is free.
    #[error("no free frame is left")]
    OutOfMemory,
}
