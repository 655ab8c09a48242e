//! Page faults in perforated pages.

use contigua_frames::FrameClass;
use contigua_units::{Frame, PageSize, VirtAddr, VirtRange};

use super::{ANONYMOUS_2M, ANONYMOUS_4K, Perforated, SPURIOUS, at, base_page, free_chunk, page_of};
use crate::Error;
use crate::effects::{Effects, Fault, FaultKind};
use crate::holes::{HoleKind, Holes, SUB_PAGES, sub_page};
use crate::memory::Memory;
use crate::policy::{HoleVerdict, MappingPolicy};
use crate::space::{AddressSpace, effort_for, free, free_page, obtain_huge, obtain_node};
use crate::table::Leaf;
use crate::vma::{Vma, VmaKind};

impl AddressSpace {
    /// A first touch where the policy wants 2 MB: maps what the memory there allows. `None` leaves
    /// it to the ordinary way.
    pub(crate) fn fault_in_holes(
        &mut self,
        address: VirtAddr,
        vma: Vma,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Option<Fault>, Error> {
        let page = page_of(address);
        if let Some(scenario) = self.fragmentation {
            let holes = scenario.of_page(address);
            let verdict = policy.on_holes(&holes);
            if !holes.is_empty() && verdict == HoleVerdict::Split {
                let frame = self.obtain_base(FrameClass::Anonymous, memory, effects)?;
                let leaf = Leaf::new(frame, PageSize::Size4K, vma.writable);
                self.install(address, leaf, memory, effects)?;
                effects.zeroed_4k += 1;
                effects.write(frame, 1, 0);
                effects.fallbacks += 1;
                return Ok(Some(ANONYMOUS_4K));
            }
            if holes.is_empty() || verdict == HoleVerdict::Tolerate {
                return Ok(None);
            }
            let Some(chunk) = obtain_huge(FrameClass::Anonymous, effort_for(vma, memory), memory)
            else {
                effects.fallbacks += 1;
                return Ok(None);
            };
            let perforated = Perforated {
                own: holes,
                foreign: holes,
                ..Perforated::whole(chunk)
            };
            self.install_perforated(page, perforated, vma, memory, effects)?;
            zero_around(chunk, &holes, effects);
            if scenario.kind == HoleKind::Remapped {
                for hole in holes.iter() {
                    self.fill(at(page, hole), false, vma, memory, effects)?;
                }
            }
            if holes.has(sub_page(address)) && scenario.kind == HoleKind::Unallocated {
                self.fill(address, false, vma, memory, effects)?;
            }
            return Ok(Some(ANONYMOUS_2M));
        }
        if policy.is_lazy() {
            let Some(chunk) = obtain_huge(FrameClass::Anonymous, effort_for(vma, memory), memory)
            else {
                effects.fallbacks += 1;
                return Ok(None);
            };
            let holes = (0..SUB_PAGES).filter(|&i| i != sub_page(address)).collect();
            let perforated = Perforated {
                own: holes,
                reserved: holes,
                ..Perforated::whole(chunk)
            };
            self.install_perforated(page, perforated, vma, memory, effects)?;
            effects.zeroed_4k += 1;
            effects.write(chunk.offset(sub_page(address)), 1, 0);
            return Ok(Some(ANONYMOUS_2M));
        }
        if memory.has_free_block(PageSize::Size2M.order()) {
            return Ok(None);
        }
        let Some((chunk, holes)) = claim_block_with_holes(policy, memory) else {
            return Ok(None);
        };
        let perforated = Perforated {
            own: holes,
            ..Perforated::whole(chunk)
        };
        self.install_perforated(page, perforated, vma, memory, effects)?;
        zero_around(chunk, &holes, effects);
        if holes.has(sub_page(address)) {
            self.fill(address, false, vma, memory, effects)?;
        }
        Ok(Some(ANONYMOUS_2M))
    }

    /// Maps a perforated page whose chunk the caller holds.
    fn install_perforated(
        &mut self,
        page: VirtAddr,
        perforated: Perforated,
        vma: Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let leaf = Leaf {
            dirty: true,
            perforation: Some(perforated.own.filter()),
            ..Leaf::new(perforated.chunk, PageSize::Size2M, vma.writable)
        };
        let mapped = self
            .table
            .map(page, leaf, |frames| obtain_node(frames, memory, effects));
        if mapped.is_err() {
            free_chunk(&perforated, &[], memory);
            return Err(Error::OutOfMemory);
        }
        self.resident.pages_2m += 1;
        self.perforate(page, perforated, memory, effects)
    }

    /// A fault in a perforated page.
    #[allow(
        clippy::too_many_arguments,
        reason = "one step of `fault`, kept apart to be read"
    )]
    pub(crate) fn fault_perforated(
        &mut self,
        address: VirtAddr,
        write: bool,
        leaf: Leaf,
        vma: Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        let page = *self
            .perforated_at(address)
            .expect("the table and the kernel agree about perforated pages");
        let frame = page.frame(sub_page(address));
        if page.own.has(sub_page(address)) {
            return match self.table.hole(address) {
                None => self.fill(address, write, vma, memory, effects),
                Some(hole) if write && !hole.writable => {
                    self.write_to_hole(address, hole, vma, memory, effects)
                }
                Some(_) => Ok(SPURIOUS),
            };
        }
        if !write || leaf.writable {
            return Ok(SPURIOUS);
        }
        let in_chunk = (0..SUB_PAGES).filter(|&i| !page.own.has(i));
        let is_alone = in_chunk
            .into_iter()
            .all(|i| memory.references(page.frame(i)) == 1);
        if vma.shared || is_alone {
            self.table.update(address, |leaf| {
                leaf.writable = true;
                leaf.dirty = true;
            });
            // What points back into the chunk says the same.
            let mut pointing = Vec::new();
            self.table.for_each_hole(address, |at, _| pointing.push(at));
            for at in pointing {
                if !page.own.has(sub_page(at)) {
                    self.table.update_hole(at, |leaf| {
                        leaf.writable = true;
                        leaf.dirty = true;
                    });
                }
            }
            effects
                .upgrades
                .push(VirtRange::page_around(address, PageSize::Size2M));
            return Ok(SPURIOUS);
        }
        if memory.references(frame) == 1 {
            // Nobody else has this one: a hole with a permission of its own.
            let own = Leaf {
                dirty: true,
                writable: true,
                ..leaf.piece(address)
            };
            self.punch(address, Some(own), memory, effects)?;
            return Ok(SPURIOUS);
        }
        let copy = self.obtain_base(FrameClass::Anonymous, memory, effects)?;
        let own = Leaf {
            dirty: true,
            ..Leaf::new(copy, PageSize::Size4K, true)
        };
        if let Err(error) = self.punch(address, Some(own), memory, effects) {
            free(copy, memory);
            return Err(error);
        }
        free_page(frame, memory, effects);
        effects.copied_4k += 1;
        effects.write(copy, 1, 0);
        Ok(Fault {
            kind: FaultKind::CopyOnWrite,
            size: PageSize::Size4K,
        })
    }

    /// Gives a hole that is mapped to nothing a page.
    pub(super) fn fill(
        &mut self,
        address: VirtAddr,
        write: bool,
        vma: Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        let page = *self.perforated_at(address).expect("the caller has looked");
        let hole = sub_page(address);
        let is_private = vma.kind == VmaKind::Anonymous && !vma.shared;
        let may_write = self
            .table
            .leaf(address)
            .is_some_and(|leaf| leaf.writable || !vma.writable);
        self.resident.perforated_frames += 1;
        if is_private
            && may_write
            && page.reserved.has(hole)
            && memory.holes.sharers(page.chunk) == 1
        {
            self.patch(address, memory, effects);
            effects.zeroed_4k += 1;
            effects.write(page.chunk.offset(hole), 1, 0);
            return Ok(ANONYMOUS_4K);
        }
        let copies_file = write && vma.kind == VmaKind::File && !vma.shared;
        let class = if vma.kind == VmaKind::Anonymous || copies_file {
            FrameClass::Anonymous
        } else {
            FrameClass::PageCache
        };
        let filled = self.obtain_base(class, memory, effects).and_then(|frame| {
            let writable = vma.writable && (class == FrameClass::Anonymous || vma.shared);
            let leaf = Leaf::new(frame, PageSize::Size4K, writable);
            let mapped = self.map_hole(address, leaf, memory, effects);
            if mapped.is_err() {
                free(frame, memory);
            }
            mapped.map(|_| frame)
        });
        let frame = match filled {
            Ok(frame) => frame,
            Err(error) => {
                self.resident.perforated_frames -= 1;
                return Err(error);
            }
        };
        if copies_file {
            effects.copied_4k += 1;
            effects.write(frame, 1, 0);
            return Ok(Fault {
                kind: FaultKind::CopyOnWrite,
                size: PageSize::Size4K,
            });
        }
        if class == FrameClass::PageCache {
            return Ok(Fault {
                kind: FaultKind::File,
                size: PageSize::Size4K,
            });
        }
        effects.zeroed_4k += 1;
        effects.write(frame, 1, 0);
        Ok(ANONYMOUS_4K)
    }

    /// Lets stores through to a hole that is mapped read-only, or to a copy.
    fn write_to_hole(
        &mut self,
        address: VirtAddr,
        hole: Leaf,
        vma: Vma,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        let is_file = memory.class(hole.frame) == Some(FrameClass::PageCache);
        if vma.shared || memory.references(hole.frame) == 1 && !is_file {
            effects.upgrades.push(base_page(address));
            self.table.update_hole(address, |leaf| {
                leaf.writable = true;
                leaf.dirty = true;
                leaf.lazily_freed = false;
            });
            return Ok(SPURIOUS);
        }
        effects.invalidations.push(base_page(address));
        let frame = self.obtain_base(FrameClass::Anonymous, memory, effects)?;
        let copy = Leaf {
            dirty: true,
            ..Leaf::new(frame, PageSize::Size4K, true)
        };
        self.map_hole(address, copy, memory, effects)?;
        free_page(hole.frame, memory, effects);
        effects.copied_4k += 1;
        effects.write(frame, 1, 0);
        Ok(Fault {
            kind: FaultKind::CopyOnWrite,
            size: PageSize::Size4K,
        })
    }
}

/// The sub-pages that are no holes are zeroed.
fn zero_around(chunk: Frame, holes: &Holes, effects: &mut Effects) {
    effects.zeroed_4k += u64::from(SUB_PAGES - holes.count());
    for i in (0..SUB_PAGES).filter(|&i| !holes.has(i)) {
        effects.write(chunk.offset(i), 1, 0);
    }
}

/// Takes the free frames of the pageblock that has most of them, if the policy makes a perforated page without those
/// that are missing: its first frame, and the missing ones.
pub(super) fn claim_block_with_holes(
    policy: &dyn MappingPolicy,
    memory: &mut Memory,
) -> Option<(Frame, Holes)> {
    let (number, free_frames) = memory.emptiest_pageblock()?;
    let most = policy.most_missing();
    if most == 0 || free_frames + most < SUB_PAGES {
        return None;
    }
    let chunk = Frame::new(number as u32 * SUB_PAGES);
    memory.drain_per_cpu();
    let holes: Holes = (0..SUB_PAGES)
        .filter(|&i| {
            memory
                .allocate_at(chunk.offset(i), FrameClass::Anonymous)
                .is_err()
        })
        .collect();
    if holes.count() <= most {
        return Some((chunk, holes));
    }
    for i in (0..SUB_PAGES).filter(|&i| !holes.has(i)) {
        free(chunk.offset(i), memory);
    }
    None
}
