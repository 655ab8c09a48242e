//! Memory and pages of restrictive segments (`rest_segs.rs`): taken at boot and at first touches, moved there and out of there.

use contigua_frames::{FrameClass, Moves, Owner, Request};
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::effects::Effects;
use crate::memory::Memory;
use crate::rest_segs::{RestSeg, RestSegPlan, Room};
use crate::space::{AddressSpace, free};
use crate::space_id::SpaceId;
use crate::table::Leaf;

impl Memory {
    /// Takes contiguous memory for restrictive segments, out of which pages move, at boot or later. A segment that finds
    /// less is smaller.
    pub fn take_rest_segs(&mut self, plans: &[RestSegPlan], at_boot: bool, moves: &mut dyn Moves) {
        for plan in plans.iter().filter(|plan| plan.from_boot == at_boot) {
            let segment = self.take_rest_seg(plan, moves);
            self.rest_segs.segments.extend(segment);
        }
    }

    fn take_rest_seg(&mut self, plan: &RestSegPlan, moves: &mut dyn Moves) -> Option<RestSeg> {
        const BLOCK: u64 = Order::HUGE_2M.bytes();
        let wanted = (plan.bytes / BLOCK) as usize;
        let (first, blocks) = self.allocate_last_run(wanted, FrameClass::Anonymous, moves)?;
        let bytes = blocks as u64 * BLOCK;
        // The tables lie at the end. Of each set: its tags, and a byte at most.
        let set = plan.size.bytes() * u64::from(plan.ways);
        let tables = |sets: u64| {
            let bytes = sets * (u64::from(plan.ways) * RestSeg::TAG_BYTES + 1);
            bytes.next_multiple_of(plan.size.bytes())
        };
        let mut sets = bytes / set;
        while sets > 0 && sets * set + tables(sets) > bytes {
            sets = sets.min(bytes.saturating_sub(tables(sets)) / set);
        }
        if sets == 0 {
            for block in 0..blocks as u32 {
                let _ = self.free(first.offset(block * Order::HUGE_2M.frames()));
            }
            return None;
        }
        let ways = sets * u64::from(plan.ways);
        let frames = u32::try_from(ways).ok()? * plan.size.frames();
        for block in (0..frames).step_by(Order::HUGE_2M.frames() as usize) {
            self.split_to(first.offset(block), plan.size.order()).ok()?;
        }
        let segment = RestSeg::new(plan, bytes, first, sets as u32);
        Some(segment)
    }

    /// A free frame of the set that a page belongs to; `Err` where there is none, but a segment.
    pub(crate) fn take_way(
        &mut self,
        space: SpaceId,
        address: VirtAddr,
        size: PageSize,
    ) -> Result<Option<Frame>, ()> {
        let frames = &self.frames;
        let Some(segment) = self.rest_segs.of(size) else {
            return Ok(None);
        };
        // Somebody may have split what nobody had.
        let fits = |frame| frames.order(frame) == Some(size.order());
        let way = segment.free_way(space, address, fits).ok_or(())?;
        Ok(Some(segment.take(way)))
    }

    /// Enters a page that is mapped now in the TAR, if it lies in a frame of its set.
    pub(crate) fn enter_tag(&mut self, space: SpaceId, address: VirtAddr, leaf: Leaf) {
        if let Some(segment) = self.rest_segs.of(leaf.size) {
            segment.enter(space, address, leaf.frame);
        }
    }

    /// Removes a page from the TAR whose translation ends.
    pub(crate) fn remove_tag(&mut self, space: SpaceId, address: VirtAddr, leaf: Leaf) {
        if let Some(segment) = self.rest_segs.of(leaf.size) {
            segment.leave(space, address, leaf.frame);
        }
    }

    /// Gives a block back to the segment that has it; says whether one has.
    pub(crate) fn return_way(&mut self, frame: Frame) -> bool {
        let order = self.frames.order(frame);
        for segment in &mut self.rest_segs.segments {
            if order == Some(segment.size().order()) && segment.give_back(frame) {
                return true;
            }
        }
        false
    }

    /// Returns true if a frame lies in a restrictive segment: its page stays there.
    pub(crate) fn is_restricted(&self, frame: Frame) -> bool {
        self.rest_segs
            .segments
            .iter()
            .any(|segment| segment.contains(frame))
    }

    /// Notes which page a block backs, so that it can move. Pages of restrictive segments cannot.
    ///
    /// # Errors
    /// When the block is not in use.
    pub fn set_owner(
        &mut self,
        frame: Frame,
        owner: Option<Owner>,
    ) -> Result<(), contigua_frames::Error> {
        let owner = owner.filter(|_| !self.is_restricted(frame));
        self.frames.set_owner(frame, owner)
    }

    /// Where a 4 KB page can be put into a segment.
    pub fn room_for(&mut self, space: SpaceId, address: VirtAddr) -> Room {
        let frames = &self.frames;
        let Some(segment) = self.rest_segs.of(PageSize::Size4K) else {
            return Room::None;
        };
        let fits = |frame| frames.order(frame) == Some(Order::BASE);
        if segment.free_way(space, address, fits).is_some() {
            return Room::Free;
        }
        segment
            .victim(space, address)
            .map_or(Room::None, |(space, address)| Room::Behind(space, address))
    }
}

impl AddressSpace {
    /// A frame of a restrictive segment for a page of a size; `None` where its set is full, and without such a segment.
    pub(crate) fn obtain_restricted(
        &self,
        address: VirtAddr,
        size: PageSize,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Option<Frame> {
        let taken = memory.take_way(self.id, address, size);
        effects.restricted += u64::from(matches!(taken, Ok(Some(_))));
        effects.sets_full += u64::from(taken.is_err());
        taken.ok().flatten()
    }

    /// Moves the 4 KB page at an address into a restrictive segment; says whether it did.
    pub fn restrict(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> bool {
        let page = address.align_down(PAGE_BYTES);
        let Some(leaf) = self.movable_leaf(page, memory) else {
            return false;
        };
        if memory.is_restricted(leaf.frame) {
            return false;
        }
        let Ok(Some(frame)) = memory.take_way(self.id, page, PageSize::Size4K) else {
            return false;
        };
        self.move_page(page, leaf, frame, memory, effects);
        effects.moved_in += 1;
        true
    }

    /// Moves the 4 KB page at an address out of its restrictive segment; says whether it did.
    pub fn release_restricted(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> bool {
        let page = address.align_down(PAGE_BYTES);
        let Some(leaf) = self.movable_leaf(page, memory) else {
            return false;
        };
        let request = Request::new(Order::BASE, FrameClass::Anonymous);
        let Some(frame) = memory.allocate(&request) else {
            return false;
        };
        self.move_page(page, leaf, frame, memory, effects);
        effects.moved_out += 1;
        true
    }

    /// The 4 KB page at an address, if it is the space's own and may move.
    fn movable_leaf(&self, page: VirtAddr, memory: &Memory) -> Option<Leaf> {
        let leaf = self.table.leaf(page)?;
        let is_own = leaf.size == PageSize::Size4K
            && !self.is_of_object(page)
            && self.perforated_at(page).is_none()
            && !memory.is_zero(leaf)
            && memory.class(leaf.frame) == Some(FrameClass::Anonymous)
            && memory.order(leaf.frame) == Some(Order::BASE)
            && memory.references(leaf.frame) == 1
            && !memory.is_pinned(leaf.frame)
            && !leaf.contiguous;
        is_own.then_some(leaf)
    }

    /// Copies a page to a frame that the caller holds, and frees its own.
    fn move_page(
        &mut self,
        page: VirtAddr,
        leaf: Leaf,
        to: Frame,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        memory.remove_tag(self.id, page, leaf);
        self.table.update(page, |leaf| leaf.frame = to);
        free(leaf.frame, memory);
        memory.enter_tag(self.id, page, Leaf { frame: to, ..leaf });
        let owner = Owner {
            space: self.id.0,
            page: page.page(),
        };
        let _ = memory.set_owner(to, Some(owner));
        effects.copied_4k += 1;
        effects.rewritten += 1;
        effects
            .invalidations
            .push(VirtRange::page_around(page, PageSize::Size4K));
    }
}
