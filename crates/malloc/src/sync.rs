//! The atomics of what `tests/loom.rs` explores, which has a module of this name with loom's.

pub use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, Ordering};

/// How often a lock is looked at before its thread sleeps.
pub const SPINS: usize = 40;
