//! Primary regions and direct segments (paper 004, sections 3 and 4).
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

use contigua_frames::FrameClass;
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::Error;
use crate::memory::Memory;
use crate::space::{AddressSpace, Effects, Fault, FaultKind, free, free_page, release};
use crate::table::Leaf;
use crate::vma::{HugeAdvice, Vma, VmaKind};

const HUGE: u64 = PageSize::Size2M.bytes();

/// Where primary regions begin: far from where programs are loaded, and aligned to every size of
/// page.
pub const PRIMARY_START: VirtAddr = VirtAddr::new(1 << 44);

/// BASE, LIMIT and OFFSET: an address `V` with `BASE <= V < LIMIT` is at `V + OFFSET`, whatever the
/// page table says. Equal BASE and LIMIT map nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub base: VirtAddr,
    /// The address after the last one.
    pub limit: VirtAddr,
    /// Physical less virtual address, modulo 2^64.
    pub offset: u64,
}

impl Segment {
    /// Maps nothing.
    pub const NONE: Self = Self {
        base: VirtAddr::new(0),
        limit: VirtAddr::new(0),
        offset: 0,
    };

    /// Where an address is, if the segment maps it.
    #[inline]
    #[must_use]
    pub const fn translate(&self, address: VirtAddr) -> Option<PhysAddr> {
        if address.get().wrapping_sub(self.base.get()) < self.limit.get() - self.base.get() {
            Some(PhysAddr::new(address.get().wrapping_add(self.offset)))
        } else {
            None
        }
    }

    /// Bytes that it maps.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.limit.get() - self.base.get()
    }

    /// The segment that does what this one and then `next` does, as far as both go: `next` maps
    /// what this one yields. Both must be page-granular.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        if self.bytes() == 0 {
            return Self::NONE;
        }
        let first = self.base.get().wrapping_add(self.offset);
        let last = first + self.bytes();
        let (from, to) = (first.max(next.base.get()), last.min(next.limit.get()));
        if from >= to {
            return Self::NONE;
        }
        Self {
            base: VirtAddr::new(from.wrapping_sub(self.offset)),
            limit: VirtAddr::new(to.wrapping_sub(self.offset)),
            offset: self.offset.wrapping_add(next.offset),
        }
    }
}

/// What a process's memory must be to be placed in its primary region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eligible {
    /// Private anonymous memory that may be written, all of it.
    ByDefault,
    /// Such memory that was mapped with `MAP_HUGETLB`, which stands for the paper's flag.
    OnRequest,
}

/// A range of the program's addresses, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The program's addresses.
    pub range: VirtRange,
    /// What to add to them, modulo 2^64; 0 outside the primary region.
    pub delta: u64,
}

impl Place {
    /// Where one of the addresses lies.
    #[inline]
    #[must_use]
    pub const fn of(&self, address: VirtAddr) -> VirtAddr {
        VirtAddr::new(address.get().wrapping_add(self.delta))
    }

    fn moved(&self, range: VirtRange) -> VirtRange {
        VirtRange {
            start: self.of(range.start),
            end: self.of(range.end),
        }
    }
}

/// A process's primary region.
#[derive(Clone, Debug)]
pub struct Primary {
    range: VirtRange,
    eligible: Eligible,
    /// What lies in the region, by the program's addresses.
    pieces: Vec<Place>,
    /// Addresses of the region that are not in use, ascending.
    free: Vec<VirtRange>,
    /// Contiguous memory for a segment: first frame and blocks of 2 MB.
    chunk: Option<(Frame, u32)>,
    segment: Segment,
    /// 2 MB blocks by which the segment grows at a time.
    step: u32,
    /// Contiguous memory was asked for already.
    asked: bool,
}

impl Primary {
    /// Memory that the segment maps, in 4 KB pages.
    pub(crate) fn segment_frames(&self) -> u64 {
        self.segment.bytes() / PAGE_BYTES
    }

    fn accepts(&self, vma: Vma, requested: bool) -> bool {
        let fits = vma.kind == VmaKind::Anonymous && vma.writable && !vma.shared;
        fits && (self.eligible == Eligible::ByDefault || requested)
    }

    /// Takes addresses of the region.
    fn take(&mut self, bytes: u64) -> Option<VirtAddr> {
        // Large areas begin at a huge page, as allocators ask for them.
        let alignment = if bytes >= HUGE { HUGE } else { PAGE_BYTES };
        let found = self
            .free
            .iter()
            .position(|gap| gap.start.align_up(alignment).get() + bytes <= gap.end.get())?;
        let gap = self.free.remove(found);
        let start = gap.start.align_up(alignment);
        let rest = [
            VirtRange {
                start: gap.start,
                end: start,
            },
            VirtRange {
                start: start + bytes,
                end: gap.end,
            },
        ];
        for (i, range) in rest
            .into_iter()
            .filter(|range| !range.is_empty())
            .enumerate()
        {
            self.free.insert(found + i, range);
        }
        Some(start)
    }

    /// Gives addresses of the region back.
    fn give(&mut self, range: VirtRange) {
        let at = self.free.partition_point(|gap| gap.start < range.start);
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }

    /// Index of the first piece that ends behind an address.
    fn first_behind(&self, address: VirtAddr) -> usize {
        self.pieces
            .partition_point(|piece| piece.range.end <= address)
    }

    fn overlapping(&self, range: VirtRange) -> Vec<Place> {
        let pieces = self.pieces[self.first_behind(range.start)..].iter();
        pieces
            .take_while(|piece| piece.range.start < range.end)
            .map(|piece| Place {
                range: piece.range.intersection(range),
                ..*piece
            })
            .collect()
    }

    fn insert(&mut self, place: Place) {
        let at = self.first_behind(place.range.start);
        self.pieces.insert(at, place);
        for left in [at + 1, at] {
            if left == 0 || left >= self.pieces.len() {
                continue;
            }
            let (a, b) = (self.pieces[left - 1], self.pieces[left]);
            if a.range.end == b.range.start && a.delta == b.delta {
                self.pieces[left - 1].range.end = b.range.end;
                self.pieces.remove(left);
            }
        }
    }

    fn remove(&mut self, range: VirtRange) {
        let first = self.first_behind(range.start);
        let mut at = first;
        while at < self.pieces.len() && self.pieces[at].range.start < range.end {
            let piece = self.pieces.remove(at);
            let rest = [
                VirtRange {
                    start: piece.range.start,
                    end: range.start,
                },
                VirtRange {
                    start: range.end,
                    end: piece.range.end,
                },
            ];
            for range in rest.into_iter().filter(|rest| rest.start < rest.end) {
                self.pieces.insert(at, Place { range, ..piece });
                at += 1;
            }
        }
    }
}

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

    /// What the registers of a core that runs this space hold.
    #[must_use]
    pub fn segment(&self) -> Segment {
        self.primary
            .as_ref()
            .map_or(Segment::NONE, |primary| primary.segment)
    }

    /// Whether contiguous frames for a segment are yet to be asked for, with
    /// [`AddressSpace::take_chunk`].
    #[must_use]
    pub fn wants_chunk(&self) -> bool {
        self.primary.as_ref().is_some_and(|primary| !primary.asked)
    }

    /// Whether an address belongs to memory that a primary region holds, or would hold by default:
    /// private, anonymous, writable.
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
    pub fn resident_eligible(&self) -> u64 {
        let mut bytes = 0;
        for (range, vma) in self.vmas.iter() {
            if vma.kind != VmaKind::Anonymous || !vma.writable || vma.shared {
                continue;
            }
            let range = VirtRange {
                start: VirtAddr::new(range.start),
                end: VirtAddr::new(range.end),
            };
            self.table
                .for_each(range, |_, leaf| bytes += leaf.size.bytes());
        }
        bytes
    }

    /// Where an address of the program lies, with the range of addresses for which the answer is
    /// the same.
    #[must_use]
    pub fn place_of(&self, address: VirtAddr) -> Place {
        let everywhere = VirtRange {
            start: VirtAddr::new(0),
            end: VirtAddr::new(u64::MAX),
        };
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
            range: VirtRange {
                start: before.unwrap_or(everywhere.start),
                end: next.map_or(everywhere.end, |piece| piece.range.start),
            },
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
            outside.push(VirtRange {
                start: at,
                end: piece.range.start,
            });
            inside.push(piece.moved(piece.range));
            at = piece.range.end;
        }
        outside.push(VirtRange {
            start: at,
            end: range.end,
        });
        outside.retain(|range| range.start < range.end);
        (inside, outside)
    }

    /// Places a mapping in the region, if it is eligible and there is room. Says whether it is
    /// there now.
    pub(crate) fn place(&mut self, range: VirtRange, vma: Vma) -> bool {
        let Some(primary) = &mut self.primary else {
            return false;
        };
        if !primary.accepts(vma, vma.huge == HugeAdvice::Huge) {
            return false;
        }
        let Some(start) = primary.take(range.bytes()) else {
            return false;
        };
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
            self.discard_placed(piece, memory, effects)?;
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

    /// Takes the contents of a part of the region away. Pages behind the segment are zeroed.
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
        let paged = VirtRange {
            start: range.start.max(limit),
            end: range.end,
        };
        if paged.start < paged.end {
            self.discard_here(paged, memory, effects)?;
        }
        Ok(())
    }

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
            let tail = VirtRange {
                start: to.end,
                end: from.end,
            };
            return self.unmap(tail, memory, effects);
        }
        if from.start == to.start && whole && self.extend(inside[0], from, to) {
            return Ok(());
        }
        self.move_placed(&inside, from, to, keep, memory, effects)
    }

    /// Lets a piece of the region grow where it lies; says whether there was room.
    fn extend(&mut self, inside: VirtRange, from: VirtRange, to: VirtRange) -> bool {
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
        if start.is_some() {
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
            self.discard_placed(piece, memory, effects)?;
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
        let paged = VirtRange {
            start: whole.start.max(self.limit_within(whole)),
            end: whole.end,
        };
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

    /// Takes contiguous memory for a segment: at most as much as asked for, and as much as there
    /// is in one piece. Returns the bytes.
    pub fn take_chunk(
        &mut self,
        bytes: u64,
        memory: &mut Memory,
        moves: &mut dyn contigua_frames::Moves,
    ) -> u64 {
        let Some(primary) = &mut self.primary else {
            return 0;
        };
        if std::mem::replace(&mut primary.asked, true) {
            return 0;
        }
        let wanted = bytes.min(primary.range.bytes()) / HUGE;
        let taken = memory.allocate_run(wanted as usize, FrameClass::Anonymous, moves);
        let Some((first, blocks)) = taken else {
            return 0;
        };
        let physical = first.address().get();
        primary.segment.offset = physical.wrapping_sub(primary.range.start.get());
        primary.chunk = Some((first, blocks as u32));
        blocks as u64 * HUGE
    }

    /// Memory that was taken for the segment and that it does not map yet.
    #[must_use]
    pub fn chunk_unused(&self) -> u64 {
        let chunk = self.primary.as_ref().and_then(|primary| {
            let (_, blocks) = primary.chunk?;
            Some((u64::from(blocks) * HUGE).saturating_sub(primary.segment_frames() * PAGE_BYTES))
        });
        chunk.unwrap_or(0)
    }

    /// A touch of the region beyond the segment: lets the segment grow over it, when there is
    /// memory for that. Pages that lie there are copied, after their translations are gone from
    /// every core (mechanisms D2).
    pub(crate) fn grow_segment(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Option<Fault> {
        let primary = self.primary.as_mut()?;
        let (_, blocks) = primary.chunk?;
        let end = primary.range.start + u64::from(blocks) * HUGE;
        if !primary.range.contains(address) || address >= end {
            return None;
        }
        let old = primary.segment.limit;
        let wanted = address.align_down(HUGE) + HUGE * u64::from(primary.step);
        let new = wanted.min(end);
        let grown = VirtRange {
            start: old,
            end: new,
        };
        let mut pages = Vec::new();
        self.table
            .for_each(grown, |address, leaf| pages.push((address, leaf)));
        for (address, leaf) in &pages {
            self.take(*address, memory, effects);
            effects.unmapped += 1;
            effects.copied_4k += u64::from(leaf.size.frames());
        }
        effects.invalidations.push(grown);
        for (_, leaf) in pages {
            release(leaf, memory, effects);
        }
        self.prune(grown, memory, effects);
        let primary = self.primary.as_mut()?;
        primary.segment.limit = new;
        self.resident.segment_frames = primary.segment_frames();
        effects.zeroed_2m += grown.bytes() / HUGE;
        effects.segment_updates += 1;
        Some(Fault {
            kind: FaultKind::Segment,
            size: PageSize::Size2M,
        })
    }

    /// Makes the end of the segment pages on the same frames, from an address on. Page-table
    /// entries come first, then the registers: both say the same in between (paper 004,
    /// section 4.2).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; what has become pages stays pages.
    pub fn shrink_segment(
        &mut self,
        to: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let segment = self.segment();
        let to = to.align_up(HUGE).max(segment.base);
        let mut limit = segment.limit;
        let mut done = Ok(());
        while limit > to {
            let page = VirtAddr::new(limit.get() - HUGE);
            let Some(physical) = segment.translate(page) else {
                break;
            };
            let leaf = Leaf {
                accessed: true,
                dirty: true,
                ..Leaf::new(physical.frame(), PageSize::Size2M, true)
            };
            // `install` gives the block up when there is no frame for a node: keep it.
            if memory.add_reference(leaf.frame).is_err() {
                done = Err(Error::OutOfMemory);
                break;
            }
            if let Err(error) = self.install(page, leaf, memory, effects) {
                done = Err(error);
                break;
            }
            free(leaf.frame, memory);
            let owner = contigua_frames::Owner {
                space: self.id.0,
                page: page.page(),
            };
            let _ = memory.set_owner(leaf.frame, Some(owner));
            limit = page;
        }
        let Some(primary) = &mut self.primary else {
            return done;
        };
        // The blocks that became pages are no longer the chunk's, nor are those behind them.
        if let Some((first, blocks)) = primary.chunk {
            let kept = (limit.get() - primary.range.start.get()) / HUGE;
            let mapped = (segment.limit.get() - primary.range.start.get()) / HUGE;
            for block in mapped..u64::from(blocks) {
                free(first.offset(block as u32 * Order::HUGE_2M.frames()), memory);
            }
            primary.chunk = (kept > 0).then_some((first, kept as u32));
        }
        primary.segment.limit = limit;
        self.resident.segment_frames = primary.segment_frames();
        effects.segment_updates += 1;
        done
    }

    /// Gives the chunk of a process that ends back.
    pub(crate) fn free_chunk(&mut self, memory: &mut Memory, effects: &mut Effects) {
        let Some(primary) = &mut self.primary else {
            return;
        };
        if let Some((first, blocks)) = primary.chunk.take() {
            for block in 0..blocks {
                let frame = first.offset(block * Order::HUGE_2M.frames());
                free_page(frame, memory, effects);
            }
        }
        primary.segment.limit = primary.segment.base;
        self.resident.segment_frames = 0;
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
