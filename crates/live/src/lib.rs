//! The physical memory of the running machine.
//!
//! [`proc`] reads what the kernel says about itself; everything else builds on it. All readers
//! start from a [`System`](proc::System), which may be a directory with recorded files instead of
//! the running machine, so that tests and other people's machines use the same code.

#![forbid(unsafe_code)]

mod error;
pub mod proc;

pub use error::Error;
