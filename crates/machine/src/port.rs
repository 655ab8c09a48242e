//! How the page walker reaches memory.

use contigua_cache::coherent::{CoreRequest, MemorySystem};
use contigua_cache::{AccessKind, Hierarchy};
use contigua_translation::MemoryPort;
use contigua_units::{Cycles, PhysAddr};

/// The walker's way through the caches. When only translation is simulated there are none, and
/// references take no time.
pub(crate) enum WalkPort<'a> {
    Additive(Option<&'a mut Hierarchy>),
    Full {
        memory: &'a mut MemorySystem,
        core: usize,
        /// References depend on one another: this is when the next one starts.
        time: Cycles,
    },
}

impl<'a> WalkPort<'a> {
    pub(crate) fn additive(hierarchy: Option<&'a mut Hierarchy>) -> Self {
        Self::Additive(hierarchy)
    }

    pub(crate) fn full(memory: &'a mut MemorySystem, core: usize, time: Cycles) -> Self {
        Self::Full { memory, core, time }
    }
}

impl MemoryPort for WalkPort<'_> {
    #[inline]
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        match self {
            Self::Additive(Some(hierarchy)) => hierarchy.access(address, AccessKind::Walk),
            Self::Additive(None) => Cycles::ZERO,
            Self::Full { memory, core, time } => {
                let request = CoreRequest {
                    core: *core,
                    address,
                    kind: AccessKind::Walk,
                    time: *time,
                    instruction: 0,
                };
                let latency = memory.access(&request, |()| ());
                *time += latency;
                latency
            }
        }
    }
}
