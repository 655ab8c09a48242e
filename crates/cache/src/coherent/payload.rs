//! Payload of lines.

use std::collections::HashMap;
use std::fmt::Debug;

/// Payload of a cache line. The simulated server carries nothing; tests carry data, to see that
/// every read returns what was written last.
pub trait Payload: Copy + Default + Debug {
    /// Payload of memory.
    type Memory: Default + Debug;

    /// The payload of a line in memory.
    fn load(memory: &Self::Memory, line: u64) -> Self;

    /// Puts the payload of a line into memory.
    fn store(self, memory: &mut Self::Memory, line: u64);
}

impl Payload for () {
    type Memory = ();

    #[inline]
    fn load((): &(), _: u64) {}

    #[inline]
    fn store(self, (): &mut (), _: u64) {}
}

impl Payload for u64 {
    type Memory = HashMap<u64, Self>;

    fn load(memory: &Self::Memory, line: u64) -> Self {
        memory.get(&line).copied().unwrap_or_default()
    }

    fn store(self, memory: &mut Self::Memory, line: u64) {
        memory.insert(line, self);
    }
}
