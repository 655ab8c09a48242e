//! The atomics of what `tests/loom.rs` explores, which has a module of this name with loom's.

pub use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, Ordering};

/// Number of looks at a lock before its thread sleeps: 18 us on a Zen 4, some more than to sleep
/// and to be woken costs. A thread that sleeps may get its CPU back milliseconds after the lock.
/// Our choice.
pub const SPINS: usize = 500;
