//! Contiguitas' two regions: moving the border, and keeping pinned memory on the right side.

use contigua_units::{Bytes, Frame, Nanoseconds, Order, PAGE_BYTES};

use crate::Error;
use crate::allocator::{Frames, MOVABLE, Region, UNMOVABLE};
use crate::block::{BLOCK_FRAMES, MigrateType, block_of, first_frame};
use crate::contiguous::Stays;
use crate::controller::{Decision, Inputs, RegionState};
use crate::moving::Moves;
use crate::policies::{Confinement, Pinning, PlacementPolicy, Shelters};
use crate::pressure::Stall;
use crate::reclaim::{BATCH, Context};
use crate::record::Role;
use crate::request::Request;
use crate::storage::Storage;
use contigua_contiguity::FrameKind;

/// Part of the movable region that movable requests leave free in the unmovable one (Linux's
/// `sysctl_lowmem_reserve_ratio` of `ZONE_NORMAL`).
const LOWMEM_RESERVE_RATIO: u64 = 32;

impl<S: Storage> Frames<S> {
    /// Looks at both regions and moves the border if the controller says so. Never on the path of
    /// an allocation (the Contiguitas article, "Moving Resizing Off the Critical Path").
    pub(crate) fn resize(&mut self, now: Nanoseconds, moves: &mut dyn Moves) {
        let Some(confinement) = self.confinement.as_ref().filter(|c| !c.is_fixed) else {
            return;
        };
        if self.is_allocating {
            self.counters.resizes_in_allocations += 1;
        }
        let state = |region: usize, pressure: f64| {
            let region = &self.regions[region];
            let bytes = |frames: u64| Bytes::new(frames * PAGE_BYTES);
            RegionState {
                size: bytes(region.frames()),
                free: bytes(region.free),
                low: bytes(region.watermarks.low()),
                high: bytes(region.watermarks.high()),
                pressure,
            }
        };
        let inputs = Inputs {
            unmovable: state(UNMOVABLE, self.pressure.unmovable().avg10),
            movable: state(MOVABLE, self.pressure.movable().avg10),
            requested: Bytes::new(self.requested * PAGE_BYTES),
            requested_movable: Bytes::new(self.requested_movable * PAGE_BYTES),
            least_unmovable: confinement.least_unmovable,
            granule: Bytes::new(u64::from(BLOCK_FRAMES) * PAGE_BYTES),
            now,
        };
        self.requested = 0;
        self.requested_movable = 0;
        let blocks = |bytes: Bytes| bytes.frames() as usize / BLOCK_FRAMES as usize;
        match self.controller.decide(&inputs) {
            Decision::Stay => {}
            Decision::Expand(bytes) => {
                let before = self.counters;
                self.expand(blocks(bytes), moves);
                if core::mem::take(&mut self.waits_for_border) {
                    let events = self.counters.since(&before);
                    let costs = &self.config.costs;
                    let time = costs.migrate.get() * events.frames_moved_by_resizes
                        + costs.reclaim.get() * events.frames_reclaimed_background;
                    self.pressure
                        .stall(Stall::Unmovable, Nanoseconds::new(time));
                }
            }
            Decision::Shrink(bytes) => {
                self.shrink(blocks(bytes), moves);
            }
        }
    }

    /// Gives up to `blocks` pageblocks next to the border to the unmovable region, emptying them
    /// into the rest of the movable one. Ends at the first that cannot be emptied; returns how
    /// many went.
    pub fn expand(&mut self, blocks: usize, moves: &mut dyn Moves) -> usize {
        if self.confinement.as_ref().is_none_or(|c| c.is_fixed) {
            return 0;
        }
        self.counters.expansions += 1;
        self.drain_per_cpu();
        let first = block_of(self.border);
        // The movable region keeps a pageblock, and a partial one at the end of memory.
        let last = (self.total / BLOCK_FRAMES).saturating_sub(1) as usize;
        let mut done = 0;
        // What is being emptied there is wanted again.
        self.end_clearing();
        for number in first..(first + blocks).min(last) {
            if !self.hand_over(number, MigrateType::Unmovable, moves) {
                break;
            }
            done += 1;
        }
        done
    }

    /// Gives up to `blocks` pageblocks next to the border to the movable region, emptying them
    /// into the rest of the unmovable one. Ends at the first that cannot be emptied; returns how
    /// many went at once. One that only hardware can empty goes when that is done
    /// ([`Frames::next_relocation`]), and then the rest.
    pub fn shrink(&mut self, blocks: usize, moves: &mut dyn Moves) -> usize {
        let Some(confinement) = self.confinement.as_ref().filter(|c| !c.is_fixed) else {
            return 0;
        };
        if self.clearing.is_some() {
            return 0;
        }
        let least = confinement.least_unmovable.frames() as usize / BLOCK_FRAMES as usize;
        self.counters.shrinks += 1;
        self.drain_per_cpu();
        let end = block_of(self.border);
        self.shrink_to(least.max(1).max(end.saturating_sub(blocks)), moves)
    }

    /// Moves the border down to a pageblock, as far as that goes now.
    pub(crate) fn shrink_to(&mut self, lowest: usize, moves: &mut dyn Moves) -> usize {
        let mut done = 0;
        while block_of(self.border) > lowest {
            let number = block_of(self.border) - 1;
            if self.hand_over(number, MigrateType::Movable, moves) {
                done += 1;
                continue;
            }
            if !self.begin_clearing(number, Some(lowest)) {
                self.count_blocked(number);
            }
            break;
        }
        done
    }

    /// Counts a shrinking that ended at a pageblock, by what is in it.
    fn count_blocked(&mut self, number: usize) {
        let block = self.pageblocks()[number];
        self.counters.shrinks_blocked += 1;
        if block.unmovable > block.in_use {
            self.counters.shrinks_blocked_by_kernel += 1;
        } else if block.in_use > 0 && !self.moves_in_use() {
            self.counters.shrinks_blocked_by_devices += 1;
        }
    }

    /// Empties the pageblock at the border and lets it change sides; says whether it did.
    fn hand_over(&mut self, number: usize, to: MigrateType, moves: &mut dyn Moves) -> bool {
        // Do not begin what must fail.
        let block = self.pageblocks()[number];
        let is_whole = u32::from(block.free + block.movable + block.unmovable) == BLOCK_FRAMES;
        if !is_whole || block.unmovable > 0 || !self.make_room_beside(number) {
            return false;
        }
        let used = u64::from(self.pageblocks()[number].movable);
        self.isolate(number);
        if !self.evacuate(number, Stays::End, moves) {
            self.restore(number);
            return false;
        }
        self.pass_border(number, to, used);
        true
    }

    /// Lets an empty, isolated pageblock change sides, out of which so many frames were moved.
    pub(crate) fn pass_border(&mut self, number: usize, to: MigrateType, used: u64) {
        self.counters.frames_moved_by_resizes += used;
        self.counters.blocks_resized += 1;
        let first = first_frame(number);
        let grown = to == MigrateType::Unmovable;
        self.border = if grown {
            first.offset(BLOCK_FRAMES)
        } else {
            first
        };
        self.regions[UNMOVABLE].end = self.border;
        self.regions[MOVABLE].start = self.border;
        self.set_type(number, to);
        self.merge_block(number);
        self.set_watermarks();
    }

    /// Reclaims until the region of a pageblock has room outside it for what is in it; says
    /// whether it has.
    pub(crate) fn make_room_beside(&mut self, number: usize) -> bool {
        let region = self.region_of(first_frame(number));
        loop {
            let block = self.pageblocks()[number];
            let used = u64::from(block.movable) + u64::from(block.unmovable);
            let room = self.regions[region]
                .free
                .saturating_sub(u64::from(block.free));
            if room >= used {
                return true;
            }
            // Some of what is reclaimed may lie in the pageblock itself.
            if self.reclaim(region, used - room, Context::Background) == 0 {
                return false;
            }
        }
    }

    /// Takes a single movable frame from the unmovable region, where the border is fixed, as Linux
    /// takes it from the next zone: beyond what that keeps for itself.
    pub(crate) fn overflow(&mut self, home: MigrateType, request: &Request) -> Option<Frame> {
        let is_fixed = self.confinement.as_ref().is_some_and(|c| c.is_fixed);
        if !is_fixed || home != MigrateType::Movable || request.order > Order::BASE {
            return None;
        }
        let [lower, upper] = &self.regions;
        if lower.free <= lower.watermarks.wake() + upper.frames() / LOWMEM_RESERVE_RATIO {
            return None;
        }
        let frame = self.take_listed(MigrateType::Unmovable, Order::BASE)?;
        self.counters.blocks_borrowed += 1;
        self.finish(frame, request);
        Some(frame)
    }

    /// Takes a single frame from the unmovable region, down to its low watermark, for a movable request whose failure
    /// would invoke the OOM killer.
    pub(crate) fn shelter(&mut self, home: MigrateType, request: &Request) -> Option<Frame> {
        let shelters = self.confinement.as_ref()?.shelters;
        if shelters != Shelters::Last || home != MigrateType::Movable || request.order > Order::BASE
        {
            return None;
        }
        let is_low = |region: &Region| region.free <= region.watermarks.low();
        // Linux reclaims the kernel's caches for this request, too.
        if is_low(&self.regions[UNMOVABLE]) {
            self.reclaim(UNMOVABLE, BATCH, Context::Direct);
        }
        if is_low(&self.regions[UNMOVABLE]) {
            return None;
        }
        let frame = self.take_listed(MigrateType::Unmovable, Order::BASE)?;
        self.counters.blocks_borrowed += 1;
        self.finish(frame, request);
        Some(frame)
    }

    /// Moves movable frames that sheltered in the unmovable region back where they belong, as far
    /// as there is room; where the border is fixed, as many as the unmovable region is short of.
    pub(crate) fn evacuate_sheltered(&mut self, moves: &mut dyn Moves) {
        let shelters = |c: &&Confinement| c.shelters != Shelters::Never;
        let Some(confinement) = self.confinement.as_ref().filter(shelters) else {
            return;
        };
        let mut most = u64::MAX;
        if confinement.is_fixed {
            let [lower, upper] = &self.regions;
            most = lower.watermarks.boosted_high().saturating_sub(lower.free);
            let room = upper.free.saturating_sub(upper.watermarks.high());
            if most > room {
                // Linux reclaims in the zone itself; here what is oldest makes room for what is there.
                self.reclaim(MOVABLE, most - room, Context::Background);
            }
        }
        for number in 0..block_of(self.border) {
            if self.pageblocks()[number].movable == 0 {
                continue;
            }
            let first = first_frame(number);
            let mut at = first.get();
            while at < first.get() + BLOCK_FRAMES {
                let frame = Frame::new(at);
                let record = self.storage.parts().frames[frame.index()];
                at += record.order().frames();
                if !record.can_move() {
                    continue;
                }
                let region = &self.regions[MOVABLE];
                if most == 0 || region.free <= region.watermarks.high() {
                    return;
                }
                let Some(to) = self.take_listed(MigrateType::Movable, record.order()) else {
                    return;
                };
                let frames = u64::from(record.order().frames());
                most = most.saturating_sub(frames);
                self.counters.frames_evacuated += frames;
                self.move_block(frame, to, moves);
            }
        }
    }

    /// Lets a device hold an allocated block, so that it must not move; returns where it is now.
    /// Under Contiguitas a movable block first moves into the unmovable region (the Contiguitas
    /// article, "Unmovable Confinement").
    ///
    /// # Errors
    /// [`Error::NotAllocated`]; [`Error::CannotPin`] when the block has to move and cannot, or has
    /// no room to move to.
    pub fn pin(&mut self, frame: Frame, moves: &mut dyn Moves) -> Result<Frame, Error> {
        let record = self.allocated(frame)?;
        let is_movable = record.kind() == FrameKind::Movable;
        let must_move = is_movable
            && self.placement.pinning() == Pinning::MoveFirst
            && self.region_of(frame) == MOVABLE;
        let mut at = frame;
        if must_move {
            let request = Request::new(record.order(), crate::FrameClass::NetworkBuffer);
            let home = self.placement.home(&request);
            if !record.can_move() || record.order() > Order::BUDDY_MAX {
                return Err(Error::CannotPin(frame));
            }
            let Some(to) = self.take_own(home, &request) else {
                self.wake(UNMOVABLE, record.order());
                return Err(Error::CannotPin(frame));
            };
            self.counters.pin_migrations += 1;
            self.move_block(frame, to, moves);
            at = to;
        }
        self.counters.pins += 1;
        self.set_pinned(at, true);
        Ok(at)
    }

    /// Lets go of a block that a device held; returns where it is now. A movable block does not
    /// stay in the unmovable region: it moves out. While there is no room for it elsewhere, it
    /// counts as pinned still.
    ///
    /// # Errors
    /// [`Error::NotAllocated`].
    pub fn unpin(&mut self, frame: Frame, moves: &mut dyn Moves) -> Result<Frame, Error> {
        self.allocated(frame)?;
        self.set_pinned(frame, false);
        let record = self.allocated(frame)?;
        let may_stay = self.confinement.as_ref().is_none_or(|confinement| {
            confinement.shelters == Shelters::Always && record.order() == Order::BASE
        });
        let is_astray = record.kind() == FrameKind::Movable && self.region_of(frame) == UNMOVABLE;
        if may_stay || !is_astray {
            return Ok(frame);
        }
        let room = if record.can_move() {
            self.take_listed(MigrateType::Movable, record.order())
        } else {
            None
        };
        let Some(to) = room else {
            self.set_pinned(frame, true);
            return Ok(frame);
        };
        self.move_block(frame, to, moves);
        Ok(to)
    }

    fn set_pinned(&mut self, frame: Frame, pinned: bool) {
        let record = self.storage.parts().frames[frame.index()];
        debug_assert_eq!(record.role(), Role::Allocated);
        let before = record.kind();
        let was_in_use = record.is_in_use_movable();
        let record = &mut self.storage.parts_mut().frames[frame.index()];
        record.set_pinned(pinned);
        let (order, after, is_in_use) = (record.order(), record.kind(), record.is_in_use_movable());
        self.recount(frame, order, before, after);
        if was_in_use != is_in_use {
            self.recount_in_use(frame, order, is_in_use);
        }
    }
}
