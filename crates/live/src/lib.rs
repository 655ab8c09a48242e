//! The physical memory of the running machine.
//!
//! [`proc`] reads what the kernel says about itself; everything else builds on it. All readers
//! start from a [`System`](proc::System), which may be a directory with recorded files instead of
//! the running machine, so that tests and other people's machines use the same code.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod census;
pub mod classify;
mod error;
pub mod frames;
pub mod owners;
pub mod picture;
pub mod proc;
mod ranges;
pub mod report;
pub mod scan;
pub mod snapshot;

pub use error::Error;
pub use ranges::{Polluter, WorstRange};
