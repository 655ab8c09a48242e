//! The hardware that walks page tables: of one dimension, or of two in a virtual machine.
//!
//! In a virtual machine every address that the guest's table holds is the guest's own, so each
//! reference of a walk is itself translated by the host's table: at worst (g + 1)(h + 1) - 1
//! references for tables of g and h levels, 24 for four and four. A nested TLB and page-walk
//! caches for the host's table, as Bhargava, Serebrin, Spadini and Manne describe them (ASPLOS
//! 2008), take most of them away.

use contigua_cache::{Geometry, Sets};
use contigua_paging::holes::sub_page;
use contigua_paging::{Leaf, Levels, SpaceId};
use contigua_units::{Cycles, PageSize, PhysAddr, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

use crate::tlb::{Array, Entry, Kind};
use crate::walk_cache::{WalkCache, WalkCacheConfig};
use crate::{
    Access, Error, Hardware, HostTables, MemoryPort, Request, Tables, TranslatorCounters, allows,
};

/// Geometry of what translates a guest's physical addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NestedConfig {
    /// Whole translations, of any size of page; none where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tlb: Option<Geometry>,
    /// Upper entries of the host's table.
    pub walk_cache: WalkCacheConfig,
}

impl Default for NestedConfig {
    /// A nested TLB of 16 entries (Bhargava et al., section 4) and host walk caches like the
    /// guest's.
    fn default() -> Self {
        let geometry = |entries, ways| Some(Geometry { entries, ways });
        Self {
            tlb: geometry(16, 16),
            walk_cache: WalkCacheConfig {
                pml5e: geometry(2, 2),
                pml4e: geometry(2, 2),
                pdpte: geometry(4, 4),
                pde: geometry(32, 4),
                start_cycles: Cycles::ZERO,
            },
        }
    }
}

/// There is one virtual machine, so its host's entries need no tag.
const HOST: SpaceId = SpaceId(0);

/// Whoever frees a node of a page table invalidates what led to it.
const GONE: &str = "a walk cache kept an entry that is gone";

/// A guest's physical address that the host has not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostFault(pub PhysAddr);

/// Result of a walk, before it is made into a TLB entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The page of the process.
    pub guest: Leaf,
    /// The host's page around the address, in a virtual machine.
    pub host: Option<Leaf>,
}

impl Found {
    /// The page that both dimensions agree on, when neither is perforated: the smaller one.
    pub(crate) fn page(&self, address: VirtAddr) -> Leaf {
        let Some(host) = self.host else {
            return self.guest;
        };
        let size = self.guest.size.min(host.size);
        let piece = address.align_down(size.bytes());
        let inside = VirtAddr::new(self.guest.physical(piece).get());
        Leaf {
            frame: host.physical(inside).frame(),
            size,
            perforation: None,
            ..self.guest
        }
    }
}

/// Outcome of a walk.
#[derive(Clone, Copy)]
pub(crate) enum Walked {
    /// With a page that allows the access.
    Found(Found),
    /// With none.
    Fault {
        /// Guest-physical address at which the host must act.
        host: Option<PhysAddr>,
    },
}

/// The walker of a core.
#[derive(Clone, Debug, contigua_state::State)]
pub(crate) struct Walker {
    pub(crate) cache: WalkCache,
    #[state(fixed)]
    host: Option<HostWalker>,
    /// Cycles of a walk beside its references.
    #[state(skip)]
    start: Cycles,
    pub(crate) counters: TranslatorCounters,
}

impl Walker {
    pub(crate) fn new(hardware: &Hardware<'_>) -> Result<Self, Error> {
        let host = hardware.nested.map(HostWalker::new).transpose()?;
        Ok(Self {
            cache: WalkCache::new(hardware.walk_cache)?,
            host,
            start: hardware.walk_cache.start_cycles,
            counters: TranslatorCounters::default(),
        })
    }

    /// Walks for an access. `latency` grows by what it takes.
    pub(crate) fn walk(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Walked {
        *latency += self.start;
        if self.host.is_none() {
            return self.walk_one(request, tables, port, latency);
        }
        match self.walk_both(request, tables, port, latency) {
            Ok(Some(found)) => {
                let allowed = found.guest.writable || request.access != Access::Write;
                if allowed {
                    return Walked::Found(Found {
                        // The first store must come back here, to mark the page as dirty.
                        guest: Leaf {
                            writable: found.guest.writable && found.guest.dirty,
                            ..found.guest
                        },
                        ..found
                    });
                }
                Walked::Fault { host: None }
            }
            Ok(None) => Walked::Fault { host: None },
            Err(HostFault(address)) => Walked::Fault {
                host: Some(address),
            },
        }
    }

    /// The walk of one dimension, which nearly all simulations make: nothing in it can fail but
    /// the translation itself.
    #[inline]
    fn walk_one(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Walked {
        let Request {
            address,
            space,
            access,
            ..
        } = *request;
        let levels = tables.table.levels();
        let walk = tables.table.walk_and_mark(address, access == Access::Write);
        let skipped = self.skip(address, space, levels, walk.references().len());
        let references = &walk.references()[skipped..];
        for &reference in references {
            *latency += port.reference(reference);
        }
        self.counters.references += references.len() as u64;
        self.counters.pages_marked += u64::from(walk.marked);
        self.cache
            .fill(address, space, levels, skipped, walk.references().len());
        match walk.leaf {
            Some(leaf) if leaf.writable || access != Access::Write => Walked::Found(Found {
                guest: Leaf {
                    writable: leaf.writable && leaf.dirty,
                    ..leaf
                },
                host: None,
            }),
            _ => Walked::Fault { host: None },
        }
    }

    /// Number of references of a walk that the caches save.
    #[inline]
    fn skip(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        levels: Levels,
        references: usize,
    ) -> usize {
        let skipped = self.cache.lookup(address, space, levels);
        debug_assert!(skipped < references, "{GONE}");
        if skipped > 0 {
            let counters = &mut self.counters;
            *match levels.count() - skipped {
                1 => &mut counters.walk_cache_hits_pde,
                2 => &mut counters.walk_cache_hits_pdpte,
                3 => &mut counters.walk_cache_hits_pml4e,
                _ => &mut counters.walk_cache_hits_pml5e,
            } += 1;
        }
        skipped
    }

    fn walk_both(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Result<Option<Found>, HostFault> {
        let Request {
            address,
            space,
            access,
            ..
        } = *request;
        let store = access == Access::Write;
        let segment = match access {
            // Instructions are not fetched through segments (Direct Segments, section 3.1).
            Access::Execute => None,
            Access::Read | Access::Write => tables.segment.translate(address),
        };
        let guest = if let Some(physical) = segment {
            // The segment is contiguous: as large a page as the addresses have in common.
            let piece = PhysAddr::new(physical.get() & !(PageSize::Size2M.bytes() - 1));
            let together = address.get() & (PageSize::Size2M.bytes() - 1)
                == physical.get() & (PageSize::Size2M.bytes() - 1);
            let (frame, size) = if together {
                (piece.frame(), PageSize::Size2M)
            } else {
                (physical.frame(), PageSize::Size4K)
            };
            Leaf {
                accessed: true,
                dirty: true,
                ..Leaf::new(frame, size, true)
            }
        } else {
            let levels = tables.table.levels();
            let walk = tables.table.walk_and_mark(address, store);
            let references = walk.references();
            let skipped = self.skip(address, space, levels, references.len());
            for &reference in &references[skipped..] {
                self.reference(reference, tables, port, latency)?;
            }
            self.cache
                .fill(address, space, levels, skipped, references.len());
            self.counters.pages_marked += u64::from(walk.marked);
            let Some(leaf) = walk.leaf else {
                return Ok(None);
            };
            leaf
        };
        let host = match (&mut self.host, &mut tables.host) {
            (Some(walker), Some(host)) => {
                let physical = guest.physical(address);
                Some(walker.leaf(physical, host, port, &mut self.counters, latency)?)
            }
            _ => None,
        };
        Ok(Some(Found { guest, host }))
    }

    /// Reads entries that do not depend on one another, all at once, in place of a walk of the process's table, and
    /// finds what that maps. `latency` grows by the time of the last one. In a virtual machine each is translated on
    /// its own, and the page after them.
    pub(crate) fn probe(
        &mut self,
        request: &Request,
        entries: &[PhysAddr],
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Walked {
        if self.host.is_none() {
            self.counters.references += entries.len() as u64;
            *latency += port.references_at_once(entries);
        } else {
            let mut last = Cycles::ZERO;
            for &entry in entries {
                let mut one = Cycles::ZERO;
                let read = self.reference(entry, tables, port, &mut one);
                last = last.max(one);
                if let Err(HostFault(address)) = read {
                    *latency += last;
                    let host = Some(address);
                    return Walked::Fault { host };
                }
            }
            *latency += last;
        }
        let address = request.address;
        let walk = tables
            .table
            .walk_and_mark(address, request.access == Access::Write);
        self.counters.pages_marked += u64::from(walk.marked);
        let Some(leaf) = walk.leaf.filter(|&leaf| allows(leaf, request.access)) else {
            return Walked::Fault { host: None };
        };
        let host = match (&mut self.host, &mut tables.host) {
            (Some(walker), Some(host)) => {
                let at = leaf.physical(address);
                match walker.leaf(at, host, port, &mut self.counters, latency) {
                    Ok(page) => Some(page),
                    Err(HostFault(address)) => {
                        let host = Some(address);
                        return Walked::Fault { host };
                    }
                }
            }
            _ => None,
        };
        // The first store must come back here, to mark the page as dirty.
        let writable = leaf.writable && leaf.dirty;
        let guest = Leaf { writable, ..leaf };
        Walked::Found(Found { guest, host })
    }

    /// Reads an entry of the process's tables. `latency` grows by what that takes, with the host's
    /// translation, also where the host faults.
    pub(crate) fn reference(
        &mut self,
        address: PhysAddr,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Result<(), HostFault> {
        self.counters.references += 1;
        let at = match (&mut self.host, &mut tables.host) {
            (Some(walker), Some(host)) => {
                walker.physical(address, host, port, &mut self.counters, latency)?
            }
            _ => address,
        };
        *latency += port.reference(at);
        Ok(())
    }

    /// The host's page around an address of the guest, with its holes resolved.
    pub(crate) fn host_piece(
        &mut self,
        address: PhysAddr,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Result<Option<Leaf>, HostFault> {
        let (Some(walker), Some(host)) = (&mut self.host, &mut tables.host) else {
            return Ok(None);
        };
        walker
            .piece(address, host, port, &mut self.counters, latency)
            .map(Some)
    }

    /// References of a walk of the host's table that its caches save.
    pub(crate) fn host_skips(&mut self, address: PhysAddr, levels: Levels) -> usize {
        let host = self.host.as_mut();
        host.map_or(0, |host| {
            let at = VirtAddr::new(address.get());
            host.cache.lookup(at, HOST, levels)
        })
    }

    /// Reads an entry that lies in the host's memory, at an address that hardware knows.
    pub(crate) fn host_reference(
        &mut self,
        address: PhysAddr,
        port: &mut dyn MemoryPort,
    ) -> Cycles {
        self.counters.references += 1;
        port.reference(address)
    }

    pub(crate) fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.cache.invalidate(space, range);
    }

    pub(crate) fn flush(&mut self) {
        self.cache.clear();
        if let Some(host) = &mut self.host {
            host.cache.clear();
            host.tlb.iter_mut().for_each(Array::clear);
        }
    }

    pub(crate) fn storage_bits(&self) -> u64 {
        /// Bits of a nested TLB entry: two page numbers of 40 bits, size and permissions.
        const NESTED_ENTRY_BITS: u64 = 40 + 40 + 2 + 6;
        let host = self.host.as_ref().map_or(0, |host| {
            let entries = host.tlb.as_ref().map_or(0, Array::capacity) as u64;
            host.cache.storage_bits() + entries * NESTED_ENTRY_BITS
        });
        self.cache.storage_bits() + host
    }
}

/// Walker of a guest's physical addresses.
#[derive(Clone, Debug, contigua_state::State)]
struct HostWalker {
    cache: WalkCache,
    #[state(fixed)]
    tlb: Option<Array>,
}

impl HostWalker {
    fn new(config: &NestedConfig) -> Result<Self, Error> {
        let sets = config
            .tlb
            .map(|geometry| Sets::with_geometry("nested.tlb", geometry))
            .transpose()?;
        Ok(Self {
            cache: WalkCache::new(&config.walk_cache)?,
            tlb: sets.map(|sets| Array::new(sets, 0)),
        })
    }

    /// Translates a guest-physical address to the host's memory.
    fn physical(
        &mut self,
        address: PhysAddr,
        host: &mut HostTables<'_>,
        port: &mut dyn MemoryPort,
        counters: &mut TranslatorCounters,
        latency: &mut Cycles,
    ) -> Result<PhysAddr, HostFault> {
        let at = VirtAddr::new(address.get());
        let leaf = self.piece(address, host, port, counters, latency)?;
        Ok(leaf.physical(at))
    }

    /// The host's page around an address, with its holes resolved.
    fn piece(
        &mut self,
        address: PhysAddr,
        host: &mut HostTables<'_>,
        port: &mut dyn MemoryPort,
        counters: &mut TranslatorCounters,
        latency: &mut Cycles,
    ) -> Result<Leaf, HostFault> {
        let at = VirtAddr::new(address.get());
        if host.segment.translate(at).is_none() {
            for size in PageSize::ALL {
                if let Some(tlb) = &mut self.tlb
                    && let Some(entry) = tlb.lookup(at, HOST, Kind::Page(size))
                    && entry.perforation.is_none()
                {
                    counters.nested_tlb_hits += 1;
                    return Ok(Leaf::new(entry.frame, size, true));
                }
            }
        }
        let leaf = self.leaf(address, host, port, counters, latency)?;
        let Some(filter) = leaf.perforation else {
            return Ok(leaf);
        };
        let hole = sub_page(at);
        let mut piece = leaf.piece(at);
        if filter.has(hole) {
            *latency += port.reference(host.holes.address(leaf.frame));
            counters.references += 1;
            if host.holes.holes(leaf.frame).has(hole) {
                let walk = host.table.walk_hole(at, true);
                for &reference in walk.references() {
                    *latency += port.reference(reference);
                    counters.references += 1;
                }
                piece = walk.leaf.ok_or(HostFault(address))?;
            }
        }
        self.enter(at, piece);
        Ok(piece)
    }

    /// The host's page around an address, perforated or not.
    fn leaf(
        &mut self,
        address: PhysAddr,
        host: &mut HostTables<'_>,
        port: &mut dyn MemoryPort,
        counters: &mut TranslatorCounters,
        latency: &mut Cycles,
    ) -> Result<Leaf, HostFault> {
        let at = VirtAddr::new(address.get());
        if let Some(physical) = host.segment.translate(at) {
            // Segments of hosts are aligned to 2 MB.
            let frame = PhysAddr::new(physical.get() & !(PageSize::Size2M.bytes() - 1)).frame();
            return Ok(Leaf::new(frame, PageSize::Size2M, true));
        }
        for size in PageSize::ALL.into_iter().rev() {
            if let Some(tlb) = &mut self.tlb
                && let Some(entry) = tlb.lookup(at, HOST, Kind::Page(size))
            {
                counters.nested_tlb_hits += 1;
                return Ok(Leaf {
                    perforation: entry.perforation,
                    ..Leaf::new(entry.frame, size, true)
                });
            }
        }
        counters.nested_walks += 1;
        let levels = host.table.levels();
        // The host maps guest memory for reading and writing: all of it is dirty to it.
        let walk = host.table.walk_and_mark(at, true);
        let references = walk.references();
        let skipped = self.cache.lookup(at, HOST, levels);
        debug_assert!(skipped < references.len(), "{GONE}");
        for &reference in &references[skipped..] {
            *latency += port.reference(reference);
            counters.references += 1;
        }
        self.cache.fill(at, HOST, levels, skipped, references.len());
        let leaf = walk.leaf.ok_or(HostFault(address))?;
        self.enter(at, leaf);
        Ok(leaf)
    }

    fn enter(&mut self, at: VirtAddr, leaf: Leaf) {
        let kind = Kind::Page(leaf.size);
        if let Some(tlb) = &mut self.tlb {
            tlb.remove(at, HOST, kind);
            tlb.insert(at, HOST, kind, Entry::of(leaf));
        }
    }
}
