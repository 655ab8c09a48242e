//! Conventional translation: an L2 TLB, page-walk caches, and a walker of the radix table.

use contigua_paging::{Leaf, PageTable, SpaceId};
use contigua_units::{Cycles, PageSize, VirtRange};

use crate::tlb::L2Tlb;
use crate::walk_cache::{WalkCache, WalkCacheConfig};
use crate::{
    Access, Error, MemoryPort, Request, TlbConfig, Translation, Translator, TranslatorCounters,
};

/// The hardware of today's processors behind the L1 TLBs.
#[derive(Clone, Debug)]
pub struct Radix {
    l2: L2Tlb,
    walk_cache: WalkCache,
    counters: TranslatorCounters,
}

impl Radix {
    /// Empty structures.
    ///
    /// # Errors
    /// [`Error`], when a geometry is impossible.
    pub fn new(tlb: &TlbConfig, walk_cache: &WalkCacheConfig) -> Result<Self, Error> {
        Ok(Self {
            l2: L2Tlb::new(&tlb.l2)?,
            walk_cache: WalkCache::new(walk_cache)?,
            counters: TranslatorCounters::default(),
        })
    }

    fn walk(
        &mut self,
        request: &Request,
        table: &PageTable,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let Request {
            address,
            space,
            access,
        } = *request;
        let walk = table.walk(address);
        let references = walk.references();
        let skipped = self.walk_cache.lookup(address, space);
        debug_assert!(
            skipped < references.len(),
            "a walk cache kept an entry that is gone"
        );
        match skipped {
            1 => self.counters.walk_cache_hits_pml4e += 1,
            2 => self.counters.walk_cache_hits_pdpte += 1,
            3 => self.counters.walk_cache_hits_pde += 1,
            _ => {}
        }
        let mut latency = self.l2.latency();
        for &reference in &references[skipped.min(references.len() - 1)..] {
            latency += port.reference(reference);
            self.counters.references += 1;
        }
        self.walk_cache
            .fill(address, space, skipped, references.len());
        self.counters.walk_cycles += latency;
        let Some(leaf) = walk.leaf.filter(|&leaf| allows(leaf, access)) else {
            self.counters.walks_faulting += 1;
            return Translation::Fault { latency };
        };
        match leaf.size {
            PageSize::Size4K => self.counters.walks_4k += 1,
            PageSize::Size2M => self.counters.walks_2m += 1,
            PageSize::Size1G => self.counters.walks_1g += 1,
        }
        self.l2.insert(address, space, leaf);
        Translation::Page {
            leaf,
            latency,
            walked: true,
        }
    }
}

fn allows(leaf: Leaf, access: Access) -> bool {
    leaf.writable || access != Access::Write
}

impl Translator for Radix {
    fn translate(
        &mut self,
        request: &Request,
        table: &PageTable,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let Request {
            address,
            space,
            access,
        } = *request;
        if let Some(leaf) = self.l2.lookup(address, space) {
            if allows(leaf, access) {
                match leaf.size {
                    PageSize::Size4K => self.counters.l2_hits_4k += 1,
                    PageSize::Size2M => self.counters.l2_hits_2m += 1,
                    PageSize::Size1G => self.counters.l2_hits_1g += 1,
                }
                return Translation::Page {
                    leaf,
                    latency: self.l2.latency(),
                    walked: false,
                };
            }
            // The tables may allow by now what they did not allow before.
            self.l2.remove(address, space);
        }
        self.walk(request, table, port)
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.l2.invalidate(space, range);
        self.walk_cache.invalidate(space, range);
    }

    fn counters(&self) -> TranslatorCounters {
        self.counters
    }

    fn reset_counters(&mut self) {
        self.counters = TranslatorCounters::default();
    }

    fn storage_bits(&self) -> u64 {
        self.l2.storage_bits() + self.walk_cache.storage_bits()
    }
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
