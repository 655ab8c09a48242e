//! How the page walker reaches memory.

use contigua_cache::AccessKind;
use contigua_cache::coherent::CoreRequest;
#[cfg(not(test))]
use contigua_cache::coherent::MemorySystem;
use contigua_translation::{MemoryPort, TranslationLines};
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

/// Caches of a core, as its page walker sees them.
pub(crate) struct CoreCaches<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) core: usize,
}

impl TranslationLines for CoreCaches<'_> {
    fn find(&mut self, block: u64) -> u8 {
        self.memory.find_block(self.core, block)
    }

    fn keep(&mut self, block: u64, translations: u8) {
        self.memory.keep_block(self.core, block, translations);
    }

    fn drop_block(&mut self, block: u64) {
        self.memory.drop_block(self.core, block);
    }

    fn drop_blocks(&mut self, unwanted: &dyn Fn(u64) -> bool) {
        self.memory.drop_blocks(self.core, unwanted);
    }

    fn spare(&mut self, turns: u8) {
        self.memory.spare_blocks(self.core, turns);
    }

    fn blocks(&self) -> u64 {
        self.memory.blocks(self.core)
    }

    fn misses(&self) -> u64 {
        self.memory.second_level_misses(self.core)
    }

    fn walk_reads_from_memory(&self) -> u64 {
        self.memory.walk_reads_from_memory()
    }

    fn latency(&self) -> Cycles {
        self.memory.second_level_latency()
    }
}

/// The walker's way through the caches of its core. Where there are none, references take no time.
pub(crate) struct WalkPort<'a> {
    caches: Option<CoreCaches<'a>>,
    /// References depend on one another: this is when the next one starts.
    time: Cycles,
}

impl<'a> WalkPort<'a> {
    pub(crate) fn new(memory: Option<&'a mut Memory>, core: usize, time: Cycles) -> Self {
        let caches = memory.map(|memory| CoreCaches { memory, core });
        Self { caches, time }
    }
}

impl MemoryPort for WalkPort<'_> {
    #[inline]
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        let Some(caches) = &mut self.caches else {
            return Cycles::ZERO;
        };
        let request = CoreRequest::new(caches.core, address, AccessKind::Walk, self.time);
        let latency = caches.memory.access(&request, pass);
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
        if let Some(caches) = &mut self.caches {
            caches.memory.walk_ahead(caches.core, address);
        }
    }

    fn translation_lines(&mut self) -> Option<&mut dyn TranslationLines> {
        Some(self.caches.as_mut()?)
    }
}

/// A page walker's way to memory ahead of the program. It takes no time.
pub(crate) struct PortAhead<'a>(pub(crate) CoreCaches<'a>);

impl MemoryPort for PortAhead<'_> {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.0.memory.walk_ahead(self.0.core, address);
        Cycles::ZERO
    }

    fn translation_lines(&mut self) -> Option<&mut dyn TranslationLines> {
        Some(&mut self.0)
    }
}
