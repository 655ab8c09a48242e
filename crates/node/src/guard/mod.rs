//! Confinement of unmovable memory on an unmodified kernel (Contiguitas and the article).
//!
//! The kernel itself keeps its own allocations and long-term pins out of `ZONE_MOVABLE`; so that
//! zone is the movable region, and a split of memory at boot (`movablecore=`, `kernelcore=`) or
//! memory that is plugged in and onlined as movable gives confinement. What stock Linux lacks is
//! somebody who moves the border when demand changes. That is the guard: it takes memory blocks
//! offline, which migrates what is in them, and brings them online in the other zone.
//!
//! Terms: the *kernel zones* of a node are `DMA32` and `Normal` (what is not movable); a *block* is
//! the kernel's unit of hot-plugging, 128 MB on most machines and up to 2 GB on large ones; the
//! *border* is where the movable blocks would begin if all lay at the top.
//!
//! The parts, so that each can be tried without the others:
//!
//! * [`view`] makes of the kernel's figures what the controller wants to know; pure.
//! * `contigua_frames::controller` decides how much to move: the simulator's own.
//! * [`plan`] chooses blocks, and refuses what would leave a zone short; pure.
//! * [`guard`] performs a move so that it can be killed at any moment: the intent is on disk
//!   before the first block changes ([`state`]). `gigantic` makes pages of 1 GB of such moves.
//! * [`machine`] is what it acts on: [`linux`], or in tests a model that fails, hangs and kills.

pub mod config;
#[cfg(feature = "fault-injection")]
mod death;
mod gigantic;
#[allow(clippy::module_inception)]
mod guard;
pub mod linux;
pub mod machine;
#[cfg(test)]
mod model;
pub mod plan;
mod report;
pub mod state;
pub mod view;

pub use config::Config;
pub use guard::Guard;
pub use machine::{Machine, Place, Survey};
pub use report::Report;
