//! Perforated pages (the Perforated Page paper): 2 MB pages with 4 KB holes, and what the kernel
//! does with them.
//!
//! A perforated page has a chunk, the 2 MB of frames that it maps, and holes of its own: sub-pages
//! that are translated one by one, or not at all. Chunks of perforated pages are single frames to
//! the frame table, and have no owner there, so that compaction leaves them where they are.
//!
//! Two perforated pages may share a chunk (after `fork`) and have different holes. The bitmap that
//! hardware reads belongs to the chunk, so it holds the holes of all; where a page has no hole and
//! another one has, its shadow entry points back into the chunk (mechanisms C1).

mod background;
mod faults;
pub(crate) mod page;

pub(crate) use page::Perforated;

use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::{Effects, Fault, FaultKind, Resident};
use crate::holes::{Holes, SUB_PAGES, sub_page};
use crate::memory::Memory;
use crate::space::{AddressSpace, free, free_node, free_page, obtain_node, release};
use crate::table::{Leaf, TableError};

fn page_of(address: VirtAddr) -> VirtAddr {
    address.align_down(PageSize::Size2M.bytes())
}

fn at(page: VirtAddr, sub_page: u32) -> VirtAddr {
    page + u64::from(sub_page) * PAGE_BYTES
}

fn base_page(address: VirtAddr) -> VirtRange {
    VirtRange::page_around(address, PageSize::Size4K)
}

impl AddressSpace {
    /// The perforated page around an address, if there is one.
    pub(crate) fn perforated_at(&self, address: VirtAddr) -> Option<&Perforated> {
        self.perforated.get(&page_of(address).get())
    }

    /// Returns true if the sub-page at an address is a hole of the perforated page around it.
    #[must_use]
    pub fn is_hole(&self, address: VirtAddr) -> bool {
        self.perforated_at(address)
            .is_some_and(|page| page.own.has(sub_page(address)))
    }

    /// The translation of an address as a table of 4 KB pages would have it: with perforated pages
    /// resolved.
    #[must_use]
    pub fn translation(&self, address: VirtAddr) -> Option<Leaf> {
        let leaf = self.table.leaf(address)?;
        if self.is_hole(address) {
            return self.table.hole(address);
        }
        Some(leaf.piece(address))
    }

    /// Gives the whole 2 MB page around an address, which is mapped, holes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has changed then.
    pub(crate) fn perforate(
        &mut self,
        address: VirtAddr,
        perforated: Perforated,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let page = page_of(address);
        let chunk = perforated.chunk;
        memory.forget_reserved(chunk);
        let _ = memory.split(chunk);
        for i in 0..SUB_PAGES {
            let _ = memory.set_owner(chunk.offset(i), None);
        }
        let filter = perforated.own.filter();
        self.table
            .update(page, |leaf| leaf.perforation = Some(filter));
        // Where others who share the chunk have holes, this page points back.
        let others = memory.holes.holes(chunk);
        for hole in others.iter().filter(|&hole| !perforated.own.has(hole)) {
            if let Err(error) = self.point(at(page, hole), memory, effects) {
                self.unmap_holes(page, memory, effects);
                self.table.update(page, |leaf| leaf.perforation = None);
                return Err(error);
            }
        }
        memory.holes.attach(chunk, &perforated.own);
        self.perforated.insert(page.get(), perforated);
        self.resident.pages_2m -= 1;
        memory.unshare_huge(chunk, PageSize::Size2M);
        self.resident.perforated += 1;
        self.resident.perforated_frames += u64::from(SUB_PAGES - perforated.own.count());
        self.resident.reserved_frames += u64::from(perforated.reserved.count());
        effects.perforations += 1;
        effects.nodes += 1;
        effects
            .invalidations
            .push(VirtRange::page_around(page, PageSize::Size2M));
        Ok(())
    }

    /// Lets the shadow entry of a sub-page point back into the chunk.
    fn point(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let Some(leaf) = self.table.leaf(address) else {
            return Ok(());
        };
        self.map_hole(address, leaf.piece(address), memory, effects)
            .map(|_| ())
    }

    /// Maps a hole; what it was mapped to before.
    fn map_hole(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Option<Leaf>, Error> {
        let mapped = self
            .table
            .map_hole(address, leaf, |frames| obtain_node(frames, memory, effects));
        match mapped {
            Ok(before) => Ok(before),
            Err(TableError::NoFrame) => Err(Error::OutOfMemory),
            Err(error) => unreachable!("{error}: the caller has looked"),
        }
    }

    /// Maps a hole that is mapped to nothing to a page whose frame the caller holds; frees the
    /// frame when that fails.
    pub(crate) fn install_in_hole(
        &mut self,
        address: VirtAddr,
        leaf: Leaf,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        debug_assert!(self.is_hole(address) && self.table.hole(address).is_none());
        if let Err(error) = self.map_hole(address, leaf, memory, effects) {
            release(leaf, memory, effects);
            return Err(error);
        }
        let _ = memory.set_owner(leaf.frame, None);
        self.resident.perforated_frames += 1;
        Ok(())
    }

    /// Unmaps every hole of a page, and returns what was mapped. Frames stay as they are.
    fn unmap_holes(
        &mut self,
        page: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Vec<(u32, Leaf)> {
        let mut holes = Vec::new();
        self.table
            .for_each_hole(page, |address, leaf| holes.push((sub_page(address), leaf)));
        for &(hole, _) in &holes {
            self.table
                .unmap_hole(at(page, hole), |node| free_node(node, memory, effects));
        }
        effects.unmapped += holes.len() as u64;
        holes
    }

    /// Another space that shares the 2 MB at `chunk` has made a hole: this one's perforated pages
    /// there keep what they have, through their shadows.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn point_back(
        &mut self,
        chunk: Frame,
        hole: u32,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let sharing: Vec<u64> = self
            .perforated
            .iter()
            .filter(|(_, page)| page.chunk == chunk && !page.own.has(hole))
            .map(|(&address, _)| address)
            .collect();
        for page in sharing {
            self.point(at(VirtAddr::new(page), hole), memory, effects)?;
        }
        Ok(())
    }

    /// Makes a hole where there was none, mapped to `leaf` or to nothing. The order is that of
    /// mechanisms C4: shadow entry, bitmap, filter, then the invalidation.
    fn punch(
        &mut self,
        address: VirtAddr,
        leaf: Option<Leaf>,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let hole = sub_page(address);
        if let Some(leaf) = leaf {
            self.map_hole(address, leaf, memory, effects)?;
        } else {
            self.table
                .unmap_hole(address, |node| free_node(node, memory, effects));
            effects.unmapped += 1;
        }
        let page = self
            .perforated
            .get_mut(&page_of(address).get())
            .expect("the caller has looked");
        page.own.set(hole, true);
        let (chunk, filter) = (page.chunk, page.own.filter());
        memory.holes.mark(chunk, hole, true);
        self.table
            .update(address, |leaf| leaf.perforation = Some(filter));
        if memory.holes.sharers(chunk) > 1 {
            effects.shared_punches.push((chunk, hole));
        }
        effects.punches += 1;
        effects.invalidations.push(base_page(address));
        Ok(())
    }

    /// Fills a hole with its frame in the chunk, which holds the contents by now. With the last
    /// hole the page becomes an ordinary one.
    fn patch(&mut self, address: VirtAddr, memory: &mut Memory, effects: &mut Effects) {
        let (start, hole) = (page_of(address), sub_page(address));
        let page = self
            .perforated
            .get_mut(&start.get())
            .expect("the caller has looked");
        page.own.set(hole, false);
        self.resident.reserved_frames -= u64::from(page.reserved.has(hole));
        page.reserved.set(hole, false);
        let (chunk, own) = (page.chunk, page.own);
        memory.holes.mark(chunk, hole, false);
        effects.patches += 1;
        effects.invalidations.push(base_page(address));
        if !own.is_empty() {
            let filter = Some(own.filter());
            self.table.update(address, |leaf| leaf.perforation = filter);
            return;
        }
        // What still points back is for the holes of others that have gone.
        self.unmap_holes(start, memory, effects);
        self.table.update(address, |leaf| leaf.perforation = None);
        self.perforated.remove(&start.get());
        memory.holes.detach(chunk);
        self.resident.perforated -= 1;
        self.resident.perforated_frames -= u64::from(SUB_PAGES);
        self.resident.pages_2m += 1;
        effects
            .invalidations
            .push(VirtRange::page_around(start, PageSize::Size2M));
    }

    /// Takes the pages of a part of a 2 MB page away, and leaves holes. An ordinary page becomes a
    /// perforated one.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn discard_part(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let start = page_of(range.start);
        if self.perforated_at(start).is_none() {
            let Some(leaf) = self.table.leaf(start) else {
                return Ok(());
            };
            self.perforate(start, Perforated::whole(leaf.frame), memory, effects)?;
        }
        let mut address = range.start;
        while address < range.end {
            let page = *self.perforated_at(start).expect("it was just made");
            let hole = sub_page(address);
            if !page.own.has(hole) {
                self.punch(address, None, memory, effects)?;
                free_page(page.frame(hole), memory, effects);
                self.resident.perforated_frames -= 1;
            } else if let Some(leaf) = self
                .table
                .unmap_hole(address, |node| free_node(node, memory, effects))
            {
                effects.unmapped += 1;
                release(leaf, memory, effects);
                self.resident.perforated_frames -= 1;
                effects.invalidations.push(base_page(address));
            }
            address = address + PAGE_BYTES;
        }
        let page = *self.perforated_at(start).expect("it was just made");
        let mut mapped = false;
        self.table.for_each_hole(start, |_, _| mapped = true);
        if page.own.count() == SUB_PAGES && !mapped {
            self.evict_perforated(start, memory, effects);
            effects
                .invalidations
                .push(VirtRange::page_around(start, PageSize::Size2M));
        }
        Ok(())
    }

    /// Makes a part of a 2 MB page read-only: holes that point back into the chunk, with a
    /// permission of their own. An ordinary page becomes a perforated one.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn protect_part(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let start = page_of(range.start);
        let Some(leaf) = self.table.leaf(start) else {
            return Ok(());
        };
        if self.perforated_at(start).is_none() {
            self.perforate(start, Perforated::whole(leaf.frame), memory, effects)?;
        }
        let mut address = range.start;
        while address < range.end {
            let page = *self.perforated_at(start).expect("it was just made");
            if page.own.has(sub_page(address)) {
                self.table
                    .update_hole(address, |leaf| leaf.writable = false);
                effects.rewritten += 1;
                effects.invalidations.push(base_page(address));
            } else {
                let read_only = Leaf {
                    writable: false,
                    ..leaf.piece(address)
                };
                self.punch(address, Some(read_only), memory, effects)?;
            }
            address = address + PAGE_BYTES;
        }
        Ok(())
    }

    /// Makes the holes of a perforated page read-only.
    pub(crate) fn protect_holes(&mut self, page: VirtAddr) {
        let mut holes = Vec::new();
        self.table
            .for_each_hole(page, |address, _| holes.push(address));
        for address in holes {
            self.table
                .update_hole(address, |leaf| leaf.writable = false);
        }
    }

    /// Unmaps the perforated page around an address and gives up all its frames.
    pub(crate) fn evict_perforated(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Option<Leaf> {
        let start = page_of(address);
        let page = self.perforated.remove(&start.get())?;
        let holes = self.unmap_holes(start, memory, effects);
        let leaf = self
            .table
            .unmap(start, |node| free_node(node, memory, effects));
        effects.unmapped += 1;
        // The chunk is one page to whoever frees it.
        effects.freed += 1 + holes.iter().filter(|&&(i, _)| page.own.has(i)).count() as u64;
        memory.holes.detach(page.chunk);
        let own: Vec<Leaf> = holes
            .into_iter()
            .filter(|&(hole, _)| page.own.has(hole))
            .map(|(_, leaf)| leaf)
            .collect();
        self.resident.perforated -= 1;
        self.resident.reserved_frames -= u64::from(page.reserved.count());
        self.resident.perforated_frames -=
            u64::from(SUB_PAGES - page.own.count()) + own.len() as u64;
        free_chunk(&page, &own, memory);
        leaf
    }

    /// Makes 4 KB pages of the perforated page around an address; `node` is the frame for their
    /// page table.
    pub(crate) fn split_perforated(
        &mut self,
        address: VirtAddr,
        node: Frame,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        let start = page_of(address);
        let Some(page) = self.perforated.remove(&start.get()) else {
            return;
        };
        let holes = self.unmap_holes(start, memory, effects);
        memory.holes.detach(page.chunk);
        self.table.split(start, PageSize::Size2M, node);
        let in_chunk = u64::from(SUB_PAGES - page.own.count());
        let mut mapped = 0;
        for &(hole, leaf) in holes.iter().filter(|(hole, _)| page.own.has(*hole)) {
            self.table.update(at(start, hole), |entry| *entry = leaf);
            mapped += 1;
        }
        let is_mapped: Holes = holes.iter().map(|&(hole, _)| hole).collect();
        for hole in page.own.iter() {
            if !is_mapped.has(hole) {
                self.table
                    .unmap(at(start, hole), |node| free_node(node, memory, effects));
            }
            if page.reserved.has(hole) || page.foreign.has(hole) {
                free(page.frame(hole), memory);
            }
        }
        self.resident.perforated -= 1;
        self.resident.perforated_frames -= in_chunk + mapped;
        self.resident.reserved_frames -= u64::from(page.reserved.count());
        self.resident.pages_4k += in_chunk + mapped;
    }

    /// Frees frames that wait for holes to be filled: memory is short.
    pub(crate) fn give_reserved_back(&mut self, memory: &mut Memory) {
        self.resident.reserved_frames = 0;
        for page in self.perforated.values_mut() {
            for hole in std::mem::take(&mut page.reserved).iter() {
                free(page.chunk.offset(hole), memory);
            }
        }
    }

    /// Checks perforated pages and counts them.
    ///
    /// # Errors
    /// A sentence that says where.
    pub(crate) fn check_perforated(
        &self,
        resident: &mut Resident,
        memory: &Memory,
    ) -> Result<(), String> {
        let pages = self.table.pages(crate::space::EVERYTHING);
        let in_table = pages.filter(|(_, leaf)| leaf.perforation.is_some()).count();
        if in_table != self.perforated.len() {
            return Err(format!(
                "{in_table} perforated pages are mapped and {} known",
                self.perforated.len()
            ));
        }
        for (&start, page) in &self.perforated {
            let start = VirtAddr::new(start);
            let leaf = self.table.leaf(start);
            let Some(filter) = leaf.and_then(|leaf| leaf.perforation) else {
                return Err(format!("no perforated page is mapped at {start}"));
            };
            if filter != page.own.filter() {
                return Err(format!("the filter at {start} is not that of its holes"));
            }
            if leaf.is_some_and(|leaf| leaf.frame != page.chunk) {
                return Err(format!("the page at {start} maps another chunk"));
            }
            let bitmap = memory.holes.holes(page.chunk);
            resident.perforated += 1;
            resident.reserved_frames += u64::from(page.reserved.count());
            for i in 0..SUB_PAGES {
                let address = at(start, i);
                let hole = self.table.hole(address);
                let (own, marked) = (page.own.has(i), bitmap.has(i));
                if own && !marked {
                    return Err(format!("the bitmap is wrong about {address}"));
                }
                if (page.reserved.has(i) || page.foreign.has(i)) && !own {
                    return Err(format!("{address} is no hole and its frame waits"));
                }
                let points_back = hole.is_some_and(|hole| {
                    hole.frame == page.frame(i)
                        && Some(hole.writable) == leaf.map(|leaf| leaf.writable)
                });
                if marked && !own && !points_back {
                    return Err(format!("the shadow does not point back at {address}"));
                }
                let frame = if own {
                    hole.map(|leaf| leaf.frame)
                } else {
                    Some(page.frame(i))
                };
                if let Some(frame) = frame {
                    resident.perforated_frames += 1;
                    if memory.references(frame) == 0 {
                        return Err(format!("{address} maps a frame that is free"));
                    }
                    if self.vma(address).is_none() {
                        return Err(format!("the page at {address} lies outside every mapping"));
                    }
                }
            }
        }
        Ok(())
    }
}

const SPURIOUS: Fault = Fault {
    kind: FaultKind::Spurious,
    size: PageSize::Size2M,
};
const ANONYMOUS_4K: Fault = Fault {
    kind: FaultKind::Anonymous,
    size: PageSize::Size4K,
};
const ANONYMOUS_2M: Fault = Fault {
    kind: FaultKind::Anonymous,
    size: PageSize::Size2M,
};

/// Gives up the frames of a chunk, and those of its holes.
fn free_chunk(page: &Perforated, holes: &[Leaf], memory: &mut Memory) {
    // A chunk that never got mapped is one block still.
    let _ = memory.split(page.chunk);
    for i in 0..SUB_PAGES {
        if !page.own.has(i) || page.reserved.has(i) || page.foreign.has(i) {
            free(page.frame(i), memory);
        }
    }
    for leaf in holes {
        free(leaf.frame, memory);
    }
}
