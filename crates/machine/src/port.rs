//! How the page walker reaches memory.

use contigua_cache::{AccessKind, Hierarchy};
use contigua_translation::MemoryPort;
use contigua_units::{Cycles, PhysAddr};

/// The walker's way through the caches. When only translation is simulated there are none, and
/// references take no time.
pub(crate) struct WalkPort<'a> {
    hierarchy: Option<&'a mut Hierarchy>,
}

impl<'a> WalkPort<'a> {
    pub(crate) fn new(hierarchy: Option<&'a mut Hierarchy>) -> Self {
        Self { hierarchy }
    }
}

impl MemoryPort for WalkPort<'_> {
    #[inline]
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        match &mut self.hierarchy {
            Some(hierarchy) => hierarchy.access(address, AccessKind::Walk),
            None => Cycles::ZERO,
        }
    }
}
