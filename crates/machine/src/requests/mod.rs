//! Requests to a real kernel's page allocator, replayed on the simulated placements.
//!
//! `vm-tests/workloads/requests.c` records every block that a kernel handed out and got back, and
//! what memory looked like before, in between, and afterwards. [`replay()`] gives the same
//! requests, in the same order, to simulated memory that begins in the same state, and frees what
//! the kernel freed. What the kernel placed and what the simulation placed are then compared at
//! each look.
//!
//! **Identity.** A block is known by where the kernel put it. The simulation puts it elsewhere, and
//! a table says where; a block that the kernel's compaction moved goes on under its new name.
//!
//! **What is decided outside.** Which requests come, and when, is the record's: reclaim shows as
//! what it freed. The simulated Linux therefore neither reclaims nor compacts by itself.
//! Contiguitas also moves its border, by the guest's clock; that is part of its placement.
//!
//! **One zone.** The simulation has one zone, the kernel several. Requests that the kernel served
//! from another than the largest are left out, and the others' frames are reserved.

mod look;
mod replay;
mod start;
mod stream;
#[cfg(test)]
mod tests;

use std::io;

pub use look::{Look, Zone};
pub use replay::{Mark, Replayed, State, Totals, replay};
pub use stream::{Event, Stream};

/// Why a record could not be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no whole record.
    #[error("not a record of requests that this version reads: {0}")]
    Format(&'static str),
    /// The bytes cannot be read.
    #[error("the record of requests cannot be read: {0}")]
    Read(io::Error),
    /// The policy cannot have this memory.
    #[error("memory of the record: {0}")]
    Frames(#[from] contigua_frames::Error),
    /// The initial contents of memory do not fit under the policy.
    #[error("{0} frames in use at the start find no place under this policy")]
    NoRoom(u64),
    /// The simulated memory contradicts itself; this is a fault of the simulator.
    #[error("simulated memory contradicts itself: {0}")]
    Inconsistent(String),
}
