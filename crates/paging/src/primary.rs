//! Primary regions and direct segments (Direct Segments, sections 3 and 4).
//!
//! A primary region is a range of addresses, reserved when a process begins, in which the kernel
//! places the memory that is to be contiguous. A program under study got its addresses from
//! another kernel, so its eligible mappings are moved into the region: [`Primary`] knows where
//! each one went, and whoever runs the program translates its addresses with
//! [`AddressSpace::place_of`] before the hardware sees them. System calls are given the program's
//! addresses.
//!
//! A direct segment maps the front of the region, as far as there is a chunk of contiguous memory
//! for it; the rest is paged.

mod chunk;
mod moving;
pub(crate) mod region;

pub use region::{Eligible, Place, Primary};

use contigua_units::{PAGE_BYTES, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::Effects;
use crate::memory::Memory;
use crate::segment::Segment;
use crate::space::AddressSpace;
use crate::vma::{HugeAdvice, Vma, VmaKind};

/// Lowest address of primary regions: far from where programs are loaded, and aligned to every size
/// of page.
pub const PRIMARY_START: VirtAddr = VirtAddr::new(1 << 44);

impl AddressSpace {
    /// Reserves a primary region of as many bytes, before the program runs.
    pub fn reserve_primary(&mut self, bytes: u64, eligible: Eligible, step: u32) {
        let range = VirtRange::with_length(PRIMARY_START, bytes);
        self.reserve_region(range, eligible, step);
    }

    /// Makes one range of addresses, all of which is in use from now on, the primary region: the
    /// memory of a virtual machine.
    pub fn reserve_machine(&mut self, range: VirtRange, step: u32) {
        self.reserve_region(range, Eligible::OnRequest, step);
        if let Some(primary) = &mut self.primary {
            primary.free.clear();
        }
    }

    fn reserve_region(&mut self, range: VirtRange, eligible: Eligible, step: u32) {
        let vma = Vma {
            huge: HugeAdvice::Huge,
            ..Vma::ANONYMOUS
        };
        self.vmas.insert(range.start.get()..range.end.get(), vma);
        self.primary = Some(Primary {
            range,
            eligible,
            pieces: Vec::new(),
            free: vec![range],
            stale: range.start,
            chunk: None,
            segment: Segment {
                base: range.start,
                limit: range.start,
                offset: 0,
            },
            step: step.max(1),
            asked: false,
        });
    }

    /// The primary region's addresses, if there is one.
    #[must_use]
    pub fn primary_range(&self) -> Option<VirtRange> {
        self.primary.as_ref().map(|primary| primary.range)
    }

    /// Contents of the segment registers of a core that runs this space.
    #[must_use]
    pub fn segment(&self) -> Segment {
        self.primary
            .as_ref()
            .map_or(Segment::NONE, |primary| primary.segment)
    }

    /// Returns true if contiguous frames for a segment are yet to be allocated, with
    /// [`AddressSpace::take_chunk`].
    #[must_use]
    pub fn wants_chunk(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| !primary.asked)
    }

    /// Returns true if an address belongs to memory that a primary region holds, or would hold by
    /// default: private, anonymous, writable.
    #[must_use]
    pub fn is_eligible(&self, address: VirtAddr) -> bool {
        if let Some(primary) = &self.primary {
            return primary.range.contains(address);
        }
        self.vma(address)
            .is_some_and(|(_, vma)| vma.kind == VmaKind::Anonymous && vma.writable && !vma.shared)
    }

    /// Resident bytes of what a primary region would hold by default, in a space without one: a
    /// look at every page.
    #[must_use]
    pub fn resident_eligible(&self, memory: &Memory) -> u64 {
        let mut bytes = 0;
        for (range, vma) in self.vmas.iter() {
            if vma.kind != VmaKind::Anonymous || !vma.writable || vma.shared {
                continue;
            }
            let range = VirtRange::new(VirtAddr::new(range.start), VirtAddr::new(range.end));
            let pages = self.table.pages(range).map(|(_, leaf)| leaf);
            let own = pages.filter(|leaf| !memory.is_zero(*leaf));
            bytes += own.map(|leaf| leaf.size.bytes()).sum::<u64>();
        }
        bytes
    }

    /// Place of an address of the program, with the range of addresses that share it.
    #[must_use]
    pub fn place_of(&self, address: VirtAddr) -> Place {
        let everywhere = VirtRange::new(VirtAddr::new(0), VirtAddr::new(u64::MAX));
        let Some(primary) = &self.primary else {
            return Place {
                range: everywhere,
                delta: 0,
            };
        };
        let at = primary.first_behind(address);
        let next = primary.pieces.get(at);
        if let Some(piece) = next.filter(|piece| piece.range.contains(address)) {
            return *piece;
        }
        let before = at.checked_sub(1).map(|at| primary.pieces[at].range.end);
        Place {
            range: VirtRange::new(
                before.unwrap_or(everywhere.start),
                next.map_or(everywhere.end, |piece| piece.range.start),
            ),
            delta: 0,
        }
    }

    /// The parts of a range of the program's addresses, where they lie: in the region, and not.
    pub(crate) fn places(&self, range: VirtRange) -> (Vec<VirtRange>, Vec<VirtRange>) {
        let Some(primary) = &self.primary else {
            return (Vec::new(), vec![range]);
        };
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        let mut at = range.start;
        for piece in primary.overlapping(range) {
            outside.push(VirtRange::new(at, piece.range.start));
            inside.push(piece.moved(piece.range));
            at = piece.range.end;
        }
        outside.push(VirtRange::new(at, range.end));
        outside.retain(|range| range.start < range.end);
        (inside, outside)
    }

    /// Places a mapping in the region, if it is eligible and there is room. Says whether it is
    /// there now.
    pub(crate) fn place(&mut self, range: VirtRange, vma: Vma, effects: &mut Effects) -> bool {
        let Some(primary) = &mut self.primary else {
            return false;
        };
        if !primary.accepts(vma, vma.huge == HugeAdvice::Huge) {
            return false;
        }
        let Some(start) = primary.take(range.bytes()) else {
            return false;
        };
        primary.clear(VirtRange::with_length(start, range.bytes()), effects);
        let delta = start.get().wrapping_sub(range.start.get());
        primary.insert(Place { range, delta });
        true
    }

    /// Ends the mappings of a range that lie in the region. Pages go; memory behind the segment
    /// stays, for the next mapping there.
    pub(crate) fn unplace(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let (inside, _) = self.places(range);
        for &piece in &inside {
            self.discard_behind_segment(piece, memory, effects)?;
            self.prune(piece, memory, effects);
        }
        if let Some(primary) = &mut self.primary {
            primary.remove(range);
            for piece in inside {
                primary.give(piece);
            }
        }
        Ok(())
    }

    /// Takes the contents of a part of the region away, which stays mapped: a segment has no faults
    /// that could zero its pages later.
    pub(crate) fn discard_placed(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let limit = self.segment().limit;
        if range.start < limit {
            let end = range.end.min(limit);
            effects.zeroed_4k += (end.get() - range.start.get()) / PAGE_BYTES;
        }
        self.discard_behind_segment(range, memory, effects)
    }

    /// Takes the pages of a part of the region away that the segment does not map.
    pub(crate) fn discard_behind_segment(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let limit = self.segment().limit;
        let paged = VirtRange::new(range.start.max(limit), range.end);
        if paged.start < paged.end {
            self.discard_here(paged, memory, effects)?;
        }
        Ok(())
    }

    /// The region of a child: the same places, no chunk.
    pub(crate) fn primary_of_child(&self) -> Option<Primary> {
        self.primary.as_ref().map(|primary| Primary {
            chunk: None,
            asked: true,
            segment: Segment {
                limit: primary.segment.base,
                ..primary.segment
            },
            ..primary.clone()
        })
    }
}
