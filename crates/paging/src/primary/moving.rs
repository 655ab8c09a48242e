//! `mremap` of what lies in a primary region, and pieces that leave it.

use contigua_frames::FrameClass;
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use super::Place;
use crate::Error;
use crate::effects::Effects;
use crate::memory::Memory;
use crate::space::AddressSpace;
use crate::table::Leaf;
use crate::vma::Vma;

impl AddressSpace {
    /// `mremap` of a piece of the region: it keeps its place when its size stays or its end can
    /// move, and moves with its contents otherwise.
    pub(crate) fn remap_placed(
        &mut self,
        from: VirtRange,
        to: VirtRange,
        keep: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let (inside, _) = self.places(from);
        self.unplace_target(from, to, memory, effects)?;
        let whole = inside.len() == 1 && inside[0].bytes() == from.bytes();
        if whole && to.bytes() == from.bytes() && !keep {
            let place = Place {
                range: to,
                delta: inside[0].start.get().wrapping_sub(to.start.get()),
            };
            if let Some(primary) = &mut self.primary {
                primary.remove(from);
                primary.insert(place);
            }
            return Ok(());
        }
        if from.start == to.start && to.bytes() <= from.bytes() {
            let tail = VirtRange::new(to.end, from.end);
            return self.unmap(tail, memory, effects);
        }
        if from.start == to.start && whole && self.extend(inside[0], from, to, effects) {
            return Ok(());
        }
        self.move_placed(&inside, from, to, keep, memory, effects)
    }

    /// Lets a piece of the region grow where it lies; says whether there was room.
    fn extend(
        &mut self,
        inside: VirtRange,
        from: VirtRange,
        to: VirtRange,
        effects: &mut Effects,
    ) -> bool {
        let Some(primary) = &mut self.primary else {
            return false;
        };
        let more = to.bytes() - from.bytes();
        let gap = primary
            .free
            .iter_mut()
            .find(|gap| gap.start == inside.end && gap.bytes() > more);
        let Some(gap) = gap else {
            return false;
        };
        gap.start = gap.start + more;
        primary.clear(VirtRange::with_length(inside.end, more), effects);
        let delta = inside.start.get().wrapping_sub(from.start.get());
        primary.remove(from);
        primary.insert(Place { range: to, delta });
        true
    }

    /// Moves a range to another place in the region, or out of it when there is no room.
    fn move_placed(
        &mut self,
        inside: &[VirtRange],
        from: VirtRange,
        to: VirtRange,
        keep: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let Some(primary) = &mut self.primary else {
            return Ok(());
        };
        let pieces = primary.overlapping(from);
        let start = primary.take(to.bytes());
        primary.remove(from);
        let delta = start.map_or(0, |start| start.get().wrapping_sub(to.start.get()));
        if let Some(start) = start {
            let more = to.bytes().saturating_sub(from.bytes());
            let tail = VirtRange::with_length(start + (to.bytes() - more), more);
            primary.clear(tail, effects);
            primary.insert(Place { range: to, delta });
        } else {
            let range = to.start.get()..to.end.get();
            self.vmas.insert(range, Vma::ANONYMOUS);
        }
        for piece in pieces {
            let program = piece.range.intersection(VirtRange::with_length(
                from.start,
                from.bytes().min(to.bytes()),
            ));
            if program.start < program.end {
                let target = to.start.get().wrapping_add(delta) + (program.start - from.start);
                self.move_contents(piece.moved(program), VirtAddr::new(target), memory, effects)?;
            }
        }
        for &piece in inside {
            self.discard_behind_segment(piece, memory, effects)?;
            self.prune(piece, memory, effects);
            if let Some(primary) = &mut self.primary {
                primary.give(piece);
            }
        }
        if keep && from.start != to.start {
            return self.map(from, Vma::ANONYMOUS, memory, effects);
        }
        Ok(())
    }

    /// Moves pages to other addresses, and copies what a segment maps on either side.
    fn move_contents(
        &mut self,
        old: VirtRange,
        new: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        effects.invalidations.push(old);
        let segment = self.segment();
        // A huge page may reach over addresses that were not in use.
        let whole = VirtRange::with_length(new, old.bytes());
        let paged = VirtRange::new(whole.start.max(self.limit_within(whole)), whole.end);
        if paged.start < paged.end {
            self.discard_here(paged, memory, effects)?;
            self.prune(paged, memory, effects);
        }
        let mut at = old.start;
        while at < old.end {
            let target = new + (at - old.start);
            if segment.translate(at).is_some() {
                if segment.translate(target).is_none() {
                    let frame = self.obtain_base(FrameClass::Anonymous, memory, effects)?;
                    let leaf = Leaf {
                        dirty: true,
                        ..Leaf::new(frame, PageSize::Size4K, true)
                    };
                    self.install(target, leaf, memory, effects)?;
                }
                effects.copied_4k += 1;
                at = at + PAGE_BYTES;
                continue;
            }
            let Some(leaf) = self.table.leaf(at) else {
                at = at + PAGE_BYTES;
                continue;
            };
            let bytes = leaf.size.bytes();
            let fits = at.is_aligned(bytes)
                && target.is_aligned(bytes)
                && at.get() + bytes <= old.end.get();
            if leaf.perforation.is_some() || leaf.size != PageSize::Size4K && !fits {
                self.split(at, memory, effects)?;
                continue;
            }
            self.unfold(at, effects);
            if segment.translate(target).is_some() {
                self.evict(at, memory, effects);
                effects.copied_4k += u64::from(leaf.size.frames());
            } else if let Some(leaf) = self.take(at, memory, effects) {
                self.install(target, leaf, memory, effects)?;
                effects.rewritten += 2;
            }
            at = at + bytes;
        }
        Ok(())
    }

    /// Ends what lies where a mapping is about to go, but not what moves there.
    fn unplace_target(
        &mut self,
        from: VirtRange,
        to: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        if from.start == to.start {
            return Ok(());
        }
        self.unmap(to, memory, effects)
    }

    /// Moves the piece around an address of the region out of it, to the program's own addresses:
    /// instructions are fetched from it, which a segment does not allow. Says whether there was
    /// one.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn expel(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<bool, Error> {
        let Some(primary) = &self.primary else {
            return Ok(false);
        };
        let piece = primary
            .pieces
            .iter()
            .find(|piece| piece.moved(piece.range).contains(address))
            .copied();
        let Some(piece) = piece else {
            return Ok(false);
        };
        self.unplace(piece.range, memory, effects)?;
        effects.copied_4k += piece.range.bytes() / PAGE_BYTES;
        effects.invalidations.push(piece.moved(piece.range));
        let range = piece.range.start.get()..piece.range.end.get();
        self.vmas.insert(range, Vma::ANONYMOUS);
        Ok(true)
    }
}
