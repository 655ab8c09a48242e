//! Perforated pages (the Perforated Page paper): the L2 TLB keeps 2 MB pages with holes, and the
//! bitmaps that say where the holes are.
//!
//! An access that the first level does not have finds, in the L2 TLB, a page of 4 KB; or a page of
//! 2 MB; or a perforated page. Its filter says for most sub-pages that they are no holes; for the
//! others the bitmap is looked up in the same TLB, and read from memory 32 bits at a time. A hole
//! is translated through the shadow of the page directory. The first level holds pages of 4 KB for
//! all of it (mechanisms C2 and C3).

mod policy;

use contigua_paging::holes::sub_page;
use contigua_paging::{Filter, Leaf, MappingPolicy};
use contigua_units::{Cycles, PageSize, PhysAddr, VirtAddr};

use super::{BackgroundPass, Scheme};
use crate::radix::{Radix, allows, page};
#[cfg(test)]
use crate::tlb::Entry;
use crate::tlb::Kind;
use crate::walker::{Found, HostFault, Walked};
use crate::{
    Access, Error, Hardware, MemoryPort, Request, SpaceId, Tables, Translation, Translator,
    TranslatorCounters, VirtRange,
};
pub use policy::Config;
use policy::Policy;

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Perforated::new(hardware, self)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(Policy::new(self))
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn has_shadows(&self) -> bool {
        true
    }
}

/// Counters of this scheme only.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Counters {
    l2_hits_perforated: u64,
    l2_hits_bitmap: u64,
    bitmap_fills: u64,
    bitmap_references: u64,
    hole_walks: u64,
    hole_references: u64,
    generated_4k: u64,
    /// Looks at what the L2 TLB holds, and the sums of what was seen: pages of 4 KB, of 2 MB,
    /// perforated pages, bitmaps.
    looks: u64,
    content: [u64; 4],
}

/// First-level misses from one look at the L2 TLB's content to the next.
const LOOK_INTERVAL: u64 = 4096;

/// Ways to get the protocol wrong, which the tests must find (properties E-C 10).
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Invalidating a sub-page leaves the entry of its perforated page.
    KeepsPage,
    /// ... leaves the bitmap.
    KeepsBitmap,
}

/// The hardware behind the first-level TLBs.
#[derive(contigua_state::State)]
struct Perforated {
    radix: Radix,
    #[state(skip)]
    bitmap_register: bool,
    #[state(skip)]
    bitmap_insertion: u32,
    counters: Counters,
    /// First-level misses until the next look at what the L2 TLB holds.
    until_look: u64,
    #[cfg(test)]
    #[state(skip)]
    mutant: Option<Mutant>,
}

/// A perforated page as an L2 TLB entry has it: the chunk, combined filter, permission.
#[derive(Clone, Copy)]
struct Chunk {
    leaf: Leaf,
    filter: Filter,
}

impl Perforated {
    fn new(hardware: &Hardware<'_>, config: &Config) -> Result<Self, Error> {
        Ok(Self {
            radix: Radix::new(hardware)?,
            bitmap_register: config.bitmap_register,
            bitmap_insertion: config.bitmap_insertion,
            counters: Counters::default(),
            until_look: LOOK_INTERVAL,
            #[cfg(test)]
            mutant: None,
        })
    }

    /// The 4 KB page that a perforated page yields at an address that is no hole.
    fn generated(
        &mut self,
        chunk: Chunk,
        address: VirtAddr,
        latency: Cycles,
        walked: bool,
    ) -> Translation {
        self.counters.generated_4k += 1;
        page(chunk.leaf.piece(address), latency, walked)
    }

    /// Translates with a perforated page at hand. `latency` is what it took to get there.
    fn through(
        &mut self,
        chunk: Chunk,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        mut latency: Cycles,
        mut walked: bool,
    ) -> Translation {
        let Request {
            address,
            space,
            access,
            ..
        } = *request;
        if !chunk.filter.has(sub_page(address)) {
            return self.generated(chunk, address, latency, walked);
        }
        // The bitmap is looked up after the page: the TLB takes its time once more.
        latency += self.radix.l2.latency();
        let array = self.radix.l2.array(PageSize::Size2M);
        let known = array.and_then(|array| array.lookup(address, space, Kind::Bitmap));
        let bits = if let Some(entry) = known {
            self.counters.l2_hits_bitmap += 1;
            entry.frame.get()
        } else {
            walked = true;
            match self.fetch_bitmap(request, tables, port, &mut latency) {
                Ok(bits) => bits,
                Err(HostFault(host)) => return self.fault(latency, Some(host)),
            }
        };
        if bits >> (sub_page(address) % 32) & 1 == 0 {
            if !allows(chunk.leaf, access) {
                return self.fault(latency, None);
            }
            return self.generated(chunk, address, latency, walked);
        }
        self.counters.hole_walks += 1;
        let hole = match self.walk_hole(request, tables, port, &mut latency) {
            Ok(hole) => hole,
            Err(HostFault(host)) => return self.fault(latency, Some(host)),
        };
        let counters = &mut self.radix.walker.counters;
        match hole.filter(|&leaf| allows(leaf, access)) {
            Some(leaf) => {
                counters.found(PageSize::Size4K);
                let known = Leaf {
                    writable: leaf.writable && leaf.dirty,
                    ..leaf
                };
                self.radix.l2.insert(address, space, known);
                page(known, latency, true)
            }
            None => self.fault(latency, None),
        }
    }

    fn fault(&mut self, latency: Cycles, host: Option<PhysAddr>) -> Translation {
        self.radix.walker.counters.walks_faulting += 1;
        Translation::Fault { latency, host }
    }

    /// Reads 32 bits around an address from the bitmaps of both dimensions, and keeps them.
    fn fetch_bitmap(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Result<u32, HostFault> {
        let Request { address, space, .. } = *request;
        self.counters.bitmap_fills += 1;
        let Some(leaf) = tables.table.leaf(address) else {
            return Ok(0);
        };
        let mut bits = 0;
        if leaf.perforation.is_some() {
            let at = tables.holes.address(leaf.frame);
            bits |= tables.holes.holes(leaf.frame).chunk(sub_page(address));
            self.counters.bitmap_references += 1;
            if self.bitmap_register && tables.host.is_some() {
                // Where the register says, in the host's memory; the simulation puts it where the
                // guest has it.
                *latency += self.radix.walker.host_reference(at, port);
            } else {
                self.radix.walker.reference(at, tables, port, latency)?;
            }
        }
        if let Some(host) = &tables.host {
            let physical = leaf.physical(address.align_down(PageSize::Size2M.bytes()));
            let at = VirtAddr::new(physical.get());
            if let Some(outer) = host
                .table
                .leaf(at)
                .filter(|leaf| leaf.perforation.is_some())
            {
                bits |= host.holes.holes(outer.frame).chunk(sub_page(address));
                self.counters.bitmap_references += 1;
                let at = host.holes.address(outer.frame);
                *latency += self.radix.walker.host_reference(at, port);
            }
        }
        if let Some(array) = self.radix.l2.array(PageSize::Size2M) {
            array.remove(address, space, Kind::Bitmap);
            array.insert_bitmap(address, space, bits, self.bitmap_insertion);
        }
        Ok(bits)
    }

    /// Translates a hole: through the shadow in each dimension whose own bitmap says so.
    fn walk_hole(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Result<Option<Leaf>, HostFault> {
        let Request {
            address,
            space,
            access,
            ..
        } = *request;
        let Some(leaf) = tables.table.leaf(address) else {
            return Ok(None);
        };
        let is_hole = leaf
            .perforation
            .is_some_and(|_| tables.holes.holes(leaf.frame).has(sub_page(address)));
        let mut guest = leaf.piece(address);
        if is_hole {
            let walk = tables.table.walk_hole(address, access == Access::Write);
            let cached = self.radix.walker.cache.lookup_shadow(address, space);
            let references = walk.references();
            for &reference in &references[usize::from(cached && references.len() > 1)..] {
                self.counters.hole_references += 1;
                self.radix
                    .walker
                    .reference(reference, tables, port, latency)?;
            }
            if !cached && references.len() > 1 {
                self.radix.walker.cache.fill_shadow(address, space);
            }
            match walk.leaf {
                Some(hole) => guest = hole,
                None => return Ok(None),
            }
        }
        let physical = guest.physical(address);
        let piece = self
            .radix
            .walker
            .host_piece(physical, tables, port, latency)?;
        Ok(Some(match piece {
            Some(host) => Leaf {
                frame: host.physical(VirtAddr::new(physical.get())).frame(),
                ..guest
            },
            None => guest,
        }))
    }

    /// Combines the result of a walk into one perforated page of both dimensions; `None` for an
    /// ordinary page.
    fn combine(found: Found, address: VirtAddr) -> Option<Chunk> {
        let (guest, host) = (found.guest, found.host);
        let outer = host.and_then(|host| host.perforation);
        let filter = match (guest.perforation, outer) {
            (None, None) => return None,
            (Some(filter), None) | (None, Some(filter)) => filter,
            (Some(guest), Some(host)) => guest.or(host),
        };
        let both_huge =
            guest.size >= PageSize::Size2M && host.is_none_or(|host| host.size >= PageSize::Size2M);
        let leaf = Found {
            guest: Leaf {
                perforation: None,
                ..guest
            },
            host: host.map(|host| Leaf {
                perforation: None,
                ..host
            }),
        }
        .page(address);
        // With a dimension of 4 KB pages the result is a plain 4 KB entry: no filter is kept.
        let filter = if both_huge { filter } else { Filter(u8::MAX) };
        Some(Chunk { leaf, filter })
    }
}

impl Translator for Perforated {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let Request {
            address,
            space,
            access,
            ..
        } = *request;
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = LOOK_INTERVAL;
            self.look();
        }
        let t2 = self.radix.l2.latency();
        if let Some(leaf) = self.radix.l2.lookup(address, space) {
            match leaf.perforation {
                None if allows(leaf, access) => {
                    self.radix.walker.counters.hit(leaf.size);
                    return page(leaf, t2, false);
                }
                Some(filter) => {
                    let chunk = Chunk {
                        leaf: Leaf {
                            perforation: None,
                            ..leaf
                        },
                        filter,
                    };
                    // A hole has a permission of its own: only a sub-page of the chunk can be
                    // refused here.
                    if allows(leaf, access) {
                        self.counters.l2_hits_perforated += 1;
                        return self.through(chunk, request, tables, port, t2, false);
                    }
                }
                None => {}
            }
            self.radix.l2.remove(address, space);
        }
        let mut latency = t2;
        let walked = self.radix.walker.walk(request, tables, port, &mut latency);
        let found = match walked {
            Walked::Found(found) => found,
            Walked::Fault { host } => {
                // A perforated page that is read-only may have a hole that is not.
                if let Some(leaf) = tables.table.leaf(address)
                    && leaf.perforation.is_some()
                    && host.is_none()
                {
                    return self.hole_only(leaf, request, tables, port, latency);
                }
                return self.fault(latency, host);
            }
        };
        let Some(chunk) = Self::combine(found, address) else {
            let leaf = found.page(address);
            let counters = &mut self.radix.walker.counters;
            counters.found(leaf.size);
            self.radix.l2.insert(address, space, leaf);
            return page(leaf, latency, true);
        };
        if chunk.leaf.size == PageSize::Size4K {
            return self.plain_piece(request, tables, port, latency);
        }
        let entry = Leaf {
            perforation: Some(chunk.filter),
            ..chunk.leaf
        };
        self.radix.l2.insert(address, space, entry);
        let before = self.counters.hole_walks;
        let answer = self.through(chunk, request, tables, port, latency, true);
        if self.counters.hole_walks == before && matches!(answer, Translation::Page { .. }) {
            self.radix.walker.counters.found(PageSize::Size2M);
        }
        answer
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        #[cfg(test)]
        let saved = self.saved(space, range);
        self.radix.invalidate(space, range);
        #[cfg(test)]
        if let Some((kind, entry)) = saved
            && let Some(array) = self.radix.l2.array(PageSize::Size2M)
        {
            array.insert(range.start, space, kind, entry);
        }
    }

    fn flush(&mut self) {
        self.radix.flush();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        let counters = self.counters;
        // Averages; before the first look, what there is now.
        let content = if counters.looks == 0 {
            self.content()
        } else {
            counters.content.map(|sum| sum / counters.looks)
        };
        vec![
            ("l2_hits_perforated", counters.l2_hits_perforated),
            ("l2_hits_bitmap", counters.l2_hits_bitmap),
            ("bitmap_fills", counters.bitmap_fills),
            ("bitmap_references", counters.bitmap_references),
            ("hole_walks", counters.hole_walks),
            ("hole_references", counters.hole_references),
            ("generated_4k", counters.generated_4k),
            ("l2_content_4k", content[0]),
            ("l2_content_2m", content[1]),
            ("l2_content_perforated", content[2]),
            ("l2_content_bitmap", content[3]),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// The filter, and two bits that tell perforated pages and bitmaps from the rest. A bitmap
        /// takes the place of a frame number.
        const MORE_BITS: u64 = 8 + 2;
        self.radix.storage_bits() + self.radix.l2.capacity_for(PageSize::Size2M) * MORE_BITS
    }
}

impl Perforated {
    fn content(&self) -> [u64; 4] {
        let mut content = [0; 4];
        for (kind, entry) in self.radix.l2.entries() {
            let index = match (kind, entry.perforation) {
                (Kind::Bitmap, _) => 3,
                (_, Some(_)) => 2,
                (Kind::Page(PageSize::Size2M), None) => 1,
                _ => 0,
            };
            content[index] += 1;
        }
        content
    }

    /// Notes what the L2 TLB holds.
    #[cold]
    fn look(&mut self) {
        self.counters.looks += 1;
        let content = self.content();
        for (sum, entries) in self.counters.content.iter_mut().zip(content) {
            *sum += entries;
        }
    }

    /// A store to a perforated page that is read-only: allowed where its hole allows it.
    fn hole_only(
        &mut self,
        leaf: Leaf,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: Cycles,
    ) -> Translation {
        let hole = sub_page(request.address);
        let filter = leaf.perforation.unwrap_or_default();
        if !filter.has(hole) || !tables.holes.holes(leaf.frame).has(hole) {
            return self.fault(latency, None);
        }
        let chunk = Chunk { leaf, filter };
        self.through(chunk, request, tables, port, latency, true)
    }

    /// One dimension has a page of 4 KB where the other is perforated: a plain entry.
    fn plain_piece(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        mut latency: Cycles,
    ) -> Translation {
        let Request {
            address,
            space,
            access,
            ..
        } = *request;
        if tables
            .table
            .leaf(address)
            .is_some_and(|leaf| leaf.perforation.is_some())
        {
            match self.fetch_bitmap(request, tables, port, &mut latency) {
                Ok(_) => {}
                Err(HostFault(host)) => return self.fault(latency, Some(host)),
            }
            // The bitmap is of no use to a plain entry.
            if let Some(array) = self.radix.l2.array(PageSize::Size2M) {
                array.remove(address, space, Kind::Bitmap);
            }
        }
        match self.walk_hole(request, tables, port, &mut latency) {
            Ok(Some(leaf)) if allows(leaf, access) => {
                let known = Leaf {
                    writable: leaf.writable && leaf.dirty,
                    ..leaf
                };
                let counters = &mut self.radix.walker.counters;
                counters.found(PageSize::Size4K);
                self.radix.l2.insert(address, space, known);
                page(known, latency, true)
            }
            Ok(_) => self.fault(latency, None),
            Err(HostFault(host)) => self.fault(latency, Some(host)),
        }
    }

    /// Entry that a mutant keeps although it is invalidated.
    #[cfg(test)]
    fn saved(&mut self, space: SpaceId, range: VirtRange) -> Option<(Kind, Entry)> {
        let kind = match self.mutant? {
            Mutant::KeepsPage => Kind::Page(PageSize::Size2M),
            Mutant::KeepsBitmap => Kind::Bitmap,
        };
        let array = self.radix.l2.array(PageSize::Size2M)?;
        let entry = array.lookup(range.start, space, kind)?;
        (range.bytes() <= PageSize::Size4K.bytes()).then_some((kind, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_cache::Geometry;
    use contigua_frames::{Boxed, Frames, Layout, Placement};
    use contigua_paging::{
        AddressSpace, Effects, Fragmentation, HoleKind, Levels, Memory, Pattern, Segment,
        TableShape, Vma,
    };

    use crate::{L1Config, L2Config, TlbConfig, WalkCacheConfig};

    struct Free;

    impl MemoryPort for Free {
        fn reference(&mut self, _: PhysAddr) -> Cycles {
            Cycles::ZERO
        }
    }

    fn hardware() -> Perforated {
        let l1 = L1Config {
            pages_4k: Some(Geometry {
                entries: 1,
                ways: 1,
            }),
            pages_2m: None,
            pages_1g: None,
        };
        let tlb = TlbConfig {
            l1d: l1.clone(),
            l1i: l1,
            l2: vec![L2Config {
                entries: 64,
                ways: 64,
                latency_cycles: Cycles::new(7),
                holds: vec![PageSize::Size4K, PageSize::Size2M],
            }],
            address_space_ids: true,
        };
        let hardware = Hardware {
            tlb: &tlb,
            walk_cache: &WalkCacheConfig::default(),
            nested: None,
        };
        Perforated::new(&hardware, &Config::default()).unwrap()
    }

    /// Reads a sub-page, then takes its neighbor's page away, then reads the neighbor. Says
    /// whether hardware then agreed with the tables.
    fn agrees(mutant: Option<Mutant>, read: u64, punched: u64) -> bool {
        const BASE: u64 = 0x4000_0000;
        let at = |sub_page: u64| VirtAddr::new(BASE + sub_page * 4096);
        let layout = Layout::new(8192, 0, 1);
        let frames = Frames::new(
            Boxed::new(layout),
            contigua_frames::Config::default(),
            Placement::default(),
        );
        let mut memory = Memory::from(frames.unwrap());
        let shape = TableShape {
            levels: Levels::Four,
            has_shadows: true,
            hashing: None,
            areas: None,
            buckets: None,
        };
        let mut space = AddressSpace::with(SpaceId(0), shape, &mut memory).unwrap();
        space.set_fragmentation(Some(Fragmentation {
            share: 1.0,
            holes: 1.0 / 512.0,
            pattern: Pattern::Clustered,
            kind: HoleKind::Remapped,
            seed: 0,
        }));
        let mut effects = Effects::default();
        let policy = Config::default().policy();
        let all = VirtRange::with_length(at(0), 2 << 20);
        space
            .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
            .unwrap();
        space
            .fault(at(0), true, &*policy, &mut memory, &mut effects)
            .unwrap();
        let mut mmu = hardware();
        mmu.mutant = mutant;
        let translate =
            |mmu: &mut Perforated, space: &mut AddressSpace, memory: &Memory, address| {
                let request = Request::new(address, SpaceId(0), Access::Read);
                let mut tables = Tables {
                    table: space.table_mut(),
                    holes: &memory.holes,
                    segment: Segment::NONE,
                    rest_segs: None,
                    host: None,
                };
                let expected = tables.resolve(address).map(|leaf| leaf.frame);
                let found = match mmu.translate(&request, &mut tables, &mut Free) {
                    Translation::Page { leaf, .. } => Some(leaf.physical(address).frame()),
                    Translation::Fault { .. } => None,
                };
                found == expected
            };
        assert!(translate(&mut mmu, &mut space, &memory, at(read)));
        effects.clear();
        let gone = VirtRange::with_length(at(punched), 4096);
        space.discard(gone, &mut memory, &mut effects).unwrap();
        for &range in &effects.invalidations {
            mmu.invalidate(SpaceId(0), range);
        }
        let request = Request::new(at(punched), SpaceId(0), Access::Read);
        let mut tables = Tables {
            table: space.table_mut(),
            holes: &memory.holes,
            segment: Segment::NONE,
            rest_segs: None,
            host: None,
        };
        let answer = mmu.translate(&request, &mut tables, &mut Free);
        matches!(answer, Translation::Fault { .. })
    }

    #[test]
    fn a_punch_that_leaves_the_page_or_its_bitmap_in_the_tlb_is_found_out() {
        // Sub-page 100 lies where the filter was clear; 6 lies beside the hole that there was.
        for (read, punched) in [(99, 100), (5, 6)] {
            assert!(agrees(None, read, punched));
        }
        assert!(!agrees(Some(Mutant::KeepsPage), 99, 100));
        assert!(!agrees(Some(Mutant::KeepsBitmap), 5, 6));
    }
}
