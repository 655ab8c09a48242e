//! Conventional translation: an L2 TLB, page-walk caches, and a walker of the radix table.

use contigua_paging::{Leaf, SpaceId};
use contigua_units::{Cycles, VirtAddr, VirtRange};

use crate::tlb::L2Tlb;
use crate::walker::{Walked, Walker};
use crate::{
    Access, Error, Hardware, MemoryPort, Request, Tables, Translation, Translator,
    TranslatorCounters,
};

/// The hardware of today's processors behind the L1 TLBs.
#[derive(Clone, Debug, contigua_state::State)]
pub struct Radix {
    pub(crate) l2: L2Tlb,
    pub(crate) walker: Walker,
}

impl Radix {
    /// Empty structures.
    ///
    /// # Errors
    /// [`Error`], when a geometry is impossible.
    pub fn new(hardware: &Hardware<'_>) -> Result<Self, Error> {
        Self::with_groups(hardware, 0)
    }

    /// Empty structures, with L2 TLB entries for aligned groups of two to the power of `group` pages.
    pub(crate) fn with_groups(hardware: &Hardware<'_>, group: u32) -> Result<Self, Error> {
        Ok(Self {
            l2: L2Tlb::new(&hardware.tlb.l2, group)?,
            walker: Walker::new(hardware)?,
        })
    }

    /// What the L2 TLB answers, if it allows the access.
    #[inline]
    pub(crate) fn look_up(&mut self, request: &Request) -> Option<Leaf> {
        let leaf = self.l2.lookup(request.address, request.space)?;
        if allows(leaf, request.access) {
            self.walker.counters.hit(leaf.size);
            return Some(leaf);
        }
        // The tables may allow by now what they did not allow before.
        self.l2.remove(request.address, request.space);
        None
    }

    /// Walks, and enters what is found in the L2 TLB. The error is the fault.
    #[inline]
    pub(crate) fn walk(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Result<(Leaf, Cycles), Translation> {
        let (leaf, latency) = self.walk_only(request, tables, port)?;
        self.l2.insert(request.address, request.space, leaf);
        Ok((leaf, latency))
    }

    /// Walks; the page that was found, with any holes resolved. The error is the fault.
    #[inline]
    pub(crate) fn walk_only(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Result<(Leaf, Cycles), Translation> {
        let mut latency = self.l2.latency();
        let walked = self.walker.walk(request, tables, port, &mut latency);
        let mut outcome = match walked {
            Walked::Found(found) => Ok(found),
            Walked::Fault { host } => Err(host),
        };
        // A host that perforates does so behind the back of hardware that does not.
        if let Ok(found) = &mut outcome
            && found.host.is_some_and(|host| host.perforation.is_some())
        {
            let physical = found.guest.physical(request.address);
            match self.walker.host_piece(physical, tables, port, &mut latency) {
                Ok(piece) => found.host = piece,
                Err(fault) => outcome = Err(Some(fault.0)),
            }
        }
        let counters = &mut self.walker.counters;
        match outcome {
            Ok(found) => {
                let page = found.page(request.address);
                counters.found(page.size);
                Ok((page, latency))
            }
            Err(host) => {
                counters.walks_faulting += 1;
                Err(Translation::Fault { latency, host })
            }
        }
    }
}

pub(crate) fn allows(leaf: Leaf, access: Access) -> bool {
    leaf.writable || access != Access::Write
}

/// The page around an address that is known, for the L1 TLB.
pub(crate) fn page(leaf: Leaf, latency: Cycles, walked: bool) -> Translation {
    Translation::Page {
        leaf,
        latency,
        walked,
        group: false,
    }
}

impl Translator for Radix {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.look_up(request) {
            return page(leaf, self.l2.latency(), false);
        }
        match self.walk(request, tables, port) {
            Ok((leaf, latency)) => page(leaf, latency, true),
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.l2.invalidate(space, range);
        self.walker.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.l2.clear();
        self.walker.flush();
    }

    fn counters(&self) -> TranslatorCounters {
        self.walker.counters
    }

    fn reset_counters(&mut self) {
        self.walker.counters = TranslatorCounters::default();
    }

    fn storage_bits(&self) -> u64 {
        self.l2.storage_bits() + self.walker.storage_bits()
    }
}

/// The address of the aligned group of pages around an address, and the page's number in it.
pub(crate) fn group_of(address: VirtAddr, group: u32) -> (VirtAddr, u32) {
    let bytes = contigua_units::PAGE_BYTES << group;
    let start = address.align_down(bytes);
    let part = (address - start) / contigua_units::PAGE_BYTES;
    (start, part as u32)
}

impl TranslatorCounters {
    /// Walks, whatever they found.
    #[must_use]
    pub const fn walks(&self) -> u64 {
        self.walks_4k + self.walks_2m + self.walks_1g + self.walks_faulting
    }

    /// Cycles of an average walk.
    #[must_use]
    pub fn cycles_per_walk(&self) -> f64 {
        let cycles: Cycles = self.walk_cycles;
        cycles.get() as f64 / self.walks().max(1) as f64
    }
}
