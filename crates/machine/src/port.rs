//! How the page walker reaches memory.

use contigua_cache::AccessKind;
use contigua_cache::coherent::CoreRequest;
#[cfg(not(test))]
use contigua_cache::coherent::MemorySystem;
use contigua_translation::MemoryPort;
use contigua_units::{Cycles, PhysAddr};

/// Caches and memory. Their lines carry nothing, but in unit tests the number of their last write,
/// and these see every step.
#[cfg(not(test))]
pub(crate) type Memory = MemorySystem;
#[cfg(test)]
pub(crate) use crate::recorder::TracedMemory as Memory;

/// Visits a line whose payload does not matter.
#[inline]
pub(crate) fn pass<D>(_: &mut D) {}

/// The walker's way through the caches of its core. Where there are none, references take no time.
pub(crate) struct WalkPort<'a> {
    memory: Option<&'a mut Memory>,
    core: usize,
    /// References depend on one another: this is when the next one starts.
    time: Cycles,
}

impl<'a> WalkPort<'a> {
    pub(crate) fn new(memory: Option<&'a mut Memory>, core: usize, time: Cycles) -> Self {
        Self { memory, core, time }
    }
}

impl MemoryPort for WalkPort<'_> {
    #[inline]
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        let Some(memory) = &mut self.memory else {
            return Cycles::ZERO;
        };
        let request = CoreRequest::new(self.core, address, AccessKind::Walk, self.time);
        let latency = memory.access(&request, pass);
        self.time += latency;
        latency
    }

    fn references_at_once(&mut self, addresses: &[PhysAddr]) -> Cycles {
        let start = self.time;
        let mut last = Cycles::ZERO;
        for &address in addresses {
            self.time = start;
            last = last.max(self.reference(address));
        }
        self.time = start + last;
        last
    }

    fn reference_aside(&mut self, address: PhysAddr) {
        if let Some(memory) = &mut self.memory {
            memory.walk_ahead(self.core, address);
        }
    }
}

/// A page walker's way to memory ahead of the program. It takes no time.
pub(crate) struct PortAhead<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) core: usize,
}

impl MemoryPort for PortAhead<'_> {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.memory.walk_ahead(self.core, address);
        Cycles::ZERO
    }
}
