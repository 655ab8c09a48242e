//! Payload of lines.

use std::collections::HashMap;
use std::fmt::Debug;

use super::events::{Access, Event};

/// Payload of a cache line. The simulated server carries nothing; tests carry data, to see that
/// every read returns what was written last.
pub trait Payload: Copy + Default + Debug {
    /// Payload of memory.
    type Memory: Default + Debug;

    /// There is an observer.
    const OBSERVES: bool = false;

    /// The payload of a line in memory.
    fn load(memory: &Self::Memory, line: u64) -> Self;

    /// Puts the payload of a line into memory.
    fn store(self, memory: &mut Self::Memory, line: u64);

    /// An observer sees an access to this payload, which it may change if that is a write.
    #[inline]
    fn accessed(&mut self, _: &mut Self::Memory, _: Access) {}

    /// An observer is told what happens.
    #[inline]
    fn observe(_: &mut Self::Memory, _: Event) {}
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
