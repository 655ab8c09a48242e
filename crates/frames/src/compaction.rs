//! Compaction (Linux, `mm/compaction.c`): one scanner takes movable blocks from the start of a
//! region, another one finds free frames for them from its end, until a block of the wanted order
//! is free or the scanners meet.

pub(crate) mod scanners;

use contigua_units::{Frame, Nanoseconds, Order};

use self::scanners::Compaction;
use crate::allocator::{Frames, Region, UNMOVABLE};
use crate::block::{BLOCK_FRAMES, MigrateType, first_frame};
use crate::contiguous::Stays;
use crate::moving::Moves;
use crate::policies::PlacementPolicy;
use crate::pressure::Stall;
use crate::reclaim::Context;
use crate::record::Role;
use crate::storage::Storage;

/// When a run of compaction is over, and what it may look at.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// A free block of this order.
    Block(Order),
    /// As many free frames in blocks of 2 MB and more.
    Whole(u64),
    /// Free memory that is this little fragmented (see [`Frames::fragmentation`]).
    Fragmentation(u64),
}

impl<S: Storage> Frames<S> {
    /// Fragmentation of a region's free memory, 0 to 100: the percentage of it that is not in
    /// blocks of 2 MB (Linux's `extfrag_for_order` at that order).
    pub(crate) fn fragmentation(&self, region: usize) -> u64 {
        let free = self.regions[region].free;
        (free - self.free_whole(region).min(free)) * 100 / free.max(1)
    }

    /// Free frames of a region in blocks of 2 MB and more (Linux's `NR_FREE_PAGES_BLOCKS`).
    pub(crate) fn free_whole(&self, region: usize) -> u64 {
        let kinds: &[MigrateType] = match (self.confinement.is_some(), region) {
            (false, _) => &MigrateType::ALL[..MigrateType::LISTED],
            (true, 0) => &[MigrateType::Unmovable],
            (true, _) => &[MigrateType::Movable],
        };
        let mut huge = 0;
        for &kind in kinds {
            for order in [Order::HUGE_2M, Order::BUDDY_MAX] {
                huge += u64::from(self.lists.length(kind, order)) * u64::from(order.frames());
            }
        }
        huge
    }

    /// Makes a movable block of an order, for a task that waits for it; says whether one is free
    /// now. The time goes into the pressure.
    pub fn compact_for(&mut self, order: Order, moves: &mut dyn Moves) -> bool {
        let region = self.region_for(MigrateType::Movable);
        let before = self.counters;
        let done = self.compact_directly(region, order, moves);
        let events = self.counters.since(&before);
        let costs = &self.config.costs;
        let time = costs.scan.get() * events.frames_scanned
            + costs.migrate.get() * events.frames_compacted_direct;
        self.pressure.stall(Stall::Movable, Nanoseconds::new(time));
        done
    }

    /// Moves all that can move out of the movable pageblock with the fewest frames in use, of those in which at most
    /// `most` cannot move, for a task that waits for it; says whether a pageblock has no more than these in use now. The
    /// time goes into the pressure.
    pub fn compact_around(&mut self, most: u32, moves: &mut dyn Moves) -> bool {
        self.drain_per_cpu();
        let before = self.counters;
        let (mut left, mut failed, mut done) = (BLOCK_FRAMES, None, false);
        while !done && let Some(next) = self.next_around(most, left, failed) {
            let (_, number) = next;
            self.isolate(number);
            self.evacuate(number, Stays::Remain, moves);
            self.restore(number);
            self.counters.frames_scanned += u64::from(BLOCK_FRAMES);
            done = self.pageblocks()[number].free() + most >= BLOCK_FRAMES;
            // Something there does not move, although its kind does.
            failed = Some(next);
            let moved = self.counters.since(&before).frames_moved_from_isolated;
            left = BLOCK_FRAMES.saturating_sub(moved as u32);
        }
        let events = self.counters.since(&before);
        let costs = &self.config.costs;
        let time = costs.scan.get() * events.frames_scanned
            + costs.migrate.get() * events.frames_moved_from_isolated;
        self.pressure.stall(Stall::Movable, Nanoseconds::new(time));
        done
    }

    /// The pageblock to try behind one that failed, of those out of which at most `left` frames have to move; its rank
    /// precedes it.
    fn next_around(
        &self,
        most: u32,
        left: u32,
        failed: Option<(u32, usize)>,
    ) -> Option<(u32, usize)> {
        let region = self.region_for(MigrateType::Movable);
        let Region {
            free, watermarks, ..
        } = &self.regions[region];
        let room = free.saturating_sub(watermarks.wake());
        self.whole_blocks(region)
            .filter_map(|number| {
                let block = self.pageblocks()[number];
                let (movable, stays) = (block.movable(), block.unmovable());
                let is_whole = block.free() + movable + stays == BLOCK_FRAMES;
                let has_room = u64::from(movable + block.free()) <= room;
                let fits = stays <= most && movable <= left;
                (block.kind == MigrateType::Movable && is_whole && has_room && fits)
                    .then_some((movable + stays, number))
            })
            .filter(|&next| failed.is_none_or(|failed| next > failed))
            .min()
    }

    /// Compaction on the path of an allocation; says whether a block of the order is free now.
    pub(crate) fn compact_directly(
        &mut self,
        region: usize,
        order: Order,
        moves: &mut dyn Moves,
    ) -> bool {
        if self.regions[region].compaction.is_deferred(order) {
            self.counters.compactions_deferred += 1;
            return false;
        }
        self.counters.direct_compactions += 1;
        self.compact(region, Goal::Block(order), Context::Direct, moves)
    }

    /// Compaction in the background for a request that failed.
    pub(crate) fn compact_in_background(
        &mut self,
        region: usize,
        order: Order,
        moves: &mut dyn Moves,
    ) {
        if self.regions[region].compaction.is_deferred(order) {
            self.counters.compactions_deferred += 1;
            return;
        }
        self.counters.background_compactions += 1;
        let goal = self.background_goal(region, order);
        self.compact(region, goal, Context::Background, moves);
    }

    /// Goal of the kernel's thread for a request that failed.
    pub(crate) fn background_goal(&self, region: usize, order: Order) -> Goal {
        if self.placement.defragments() {
            Goal::Whole(self.regions[region].watermarks.high())
        } else {
            Goal::Block(order)
        }
    }

    /// Compaction because free memory of a region is fragmented (Linux's proactive mode). Says
    /// whether it helped.
    pub(crate) fn compact_proactively(&mut self, region: usize, moves: &mut dyn Moves) -> bool {
        let proactiveness = u64::from(self.config.compaction_proactiveness.min(100));
        if proactiveness > 0 && region == UNMOVABLE && self.sort_in_use() {
            self.counters.proactive_compactions += 1;
            return true;
        }
        let low = (100 - proactiveness).max(5);
        let high = (low + 10).min(100);
        let before = self.fragmentation(region);
        if proactiveness == 0 || before <= high {
            return true;
        }
        if region == UNMOVABLE && self.moves_in_use() {
            // Hardware does it, in its own time.
            let began = self.compact_in_use();
            self.counters.proactive_compactions += u64::from(began);
            return began;
        }
        self.counters.proactive_compactions += 1;
        self.compact(region, Goal::Fragmentation(low), Context::Background, moves);
        self.fragmentation(region) < before
    }

    /// Compacts all of memory, as writing to `/proc/sys/vm/compact_memory` does.
    pub fn compact_all(&mut self, moves: &mut dyn Moves) {
        self.drain_per_cpu();
        for region in 0..self.regions.len() {
            self.regions[region].compaction = Compaction::default();
            self.forget_skips(region);
            self.compact(region, Goal::Fragmentation(0), Context::Background, moves);
        }
    }

    fn forget_skips(&mut self, region: usize) {
        let range = self.whole_blocks(region);
        for block in &mut self.storage.parts_mut().blocks[range] {
            block.skip = false;
        }
    }

    /// Pageblocks of a region, the last of memory perhaps partial.
    fn whole_blocks(&self, region: usize) -> core::ops::Range<usize> {
        let region = &self.regions[region];
        let number = |frame: Frame| frame.get().div_ceil(BLOCK_FRAMES) as usize;
        number(region.start)..number(region.end)
    }

    pub(crate) fn reached(&self, region: usize, goal: Goal) -> bool {
        match goal {
            Goal::Block(order) => self.has_free_block_in(region, order),
            Goal::Whole(frames) => self.free_whole(region) >= frames,
            Goal::Fragmentation(score) => self.fragmentation(region) <= score,
        }
    }

    pub(crate) fn has_free_block_in(&self, region: usize, order: Order) -> bool {
        let own = |kind: MigrateType| {
            self.confinement.is_none() || (kind == MigrateType::Movable) == (region == 1)
        };
        let kinds = [
            MigrateType::Movable,
            MigrateType::Unmovable,
            MigrateType::Reclaimable,
        ];
        kinds
            .into_iter()
            .any(|kind| own(kind) && self.lists.smallest_from(kind, order).is_some())
    }

    /// Says whether the goal was reached.
    fn compact(
        &mut self,
        region: usize,
        goal: Goal,
        context: Context,
        moves: &mut dyn Moves,
    ) -> bool {
        let blocks = self.whole_blocks(region);
        let state = &self.regions[region].compaction;
        let inside = |block: &usize| blocks.contains(block);
        let mut source = state.migrate.filter(inside).unwrap_or(blocks.start);
        let mut target = state
            .free
            .filter(inside)
            .map_or(blocks.end, |block| block + 1);
        let started_over = source == blocks.start;
        if started_over {
            self.forget_skips(region);
        }
        let mut cursor = None;
        let mut reached = self.reached(region, goal);
        while !reached && source < target {
            if self.is_source(source, context) {
                let all = self.empty_block(source, &mut target, &mut cursor, context, moves);
                self.storage.parts_mut().blocks[source].skip = !all;
                // What CPUs keep at hand merges with what was freed. Linux drains their lists here
                // for a request (`compact_zone`); in its proactive mode, the pages that it frees
                // pass through them and push others out.
                self.drain_per_cpu();
                reached = self.reached(region, goal);
            }
            source += 1;
        }
        let state = &mut self.regions[region].compaction;
        let met = source >= target;
        state.migrate = (!met).then_some(source);
        state.free = (!met).then(|| target.saturating_sub(1));
        let wanted = match goal {
            Goal::Block(order) => Some(order),
            Goal::Whole(_) => Some(Order::HUGE_2M),
            Goal::Fragmentation(_) => None,
        };
        if let Some(order) = wanted {
            if reached {
                state.succeeded(order);
            } else if met && started_over {
                state.failed(order);
            }
        }
        reached
    }

    /// Returns true if the migration scanner looks into a pageblock.
    fn is_source(&self, number: usize, context: Context) -> bool {
        let block = self.pageblocks()[number];
        let kind = match context {
            // Linux's asynchronous mode: only where it can succeed.
            Context::Direct => block.kind == MigrateType::Movable,
            Context::Background => block.kind != MigrateType::Isolate,
        };
        let can_empty = context == Context::Background || block.unmovable == 0;
        kind && !block.skip && block.movable > 0 && can_empty
    }

    /// Moves the movable blocks of a pageblock behind the free scanner; says whether all went.
    fn empty_block(
        &mut self,
        number: usize,
        target: &mut usize,
        cursor: &mut Option<Frame>,
        context: Context,
        moves: &mut dyn Moves,
    ) -> bool {
        let first = first_frame(number);
        let end = self.total.min(first.get() + BLOCK_FRAMES);
        let mut at = first.get();
        let mut all = true;
        while at < end {
            let frame = Frame::new(at);
            let record = self.storage.parts().frames[frame.index()];
            let order = record.order();
            at += order.frames();
            if record.role() == Role::Allocated {
                self.counters.frames_scanned += 1;
                if !record.can_move() || order >= Order::HUGE_2M {
                    all = false;
                    continue;
                }
                let Some(to) = self.free_target(number, order, target, cursor) else {
                    return false;
                };
                match context {
                    Context::Direct => {
                        self.counters.frames_compacted_direct += u64::from(order.frames());
                    }
                    Context::Background => {
                        self.counters.frames_compacted_background += u64::from(order.frames());
                    }
                }
                self.move_block(frame, to, moves);
            } else if record.role() == Role::PerCpu {
                all = false;
            }
        }
        all
    }

    /// Takes a block of `order` from the highest pageblock above `source` that has one. `target`
    /// is the first pageblock that is used up, `cursor` where to go on in the one below it.
    fn free_target(
        &mut self,
        source: usize,
        order: Order,
        target: &mut usize,
        cursor: &mut Option<Frame>,
    ) -> Option<Frame> {
        while *target > source + 1 {
            let number = *target - 1;
            let first = first_frame(number);
            let end = self.total.min(first.get() + BLOCK_FRAMES);
            let block = self.pageblocks()[number];
            // A pageblock that is entirely free is what compaction is for.
            let is_suitable = block.kind == MigrateType::Movable
                && u32::from(block.free) >= order.frames()
                && u32::from(block.free) < BLOCK_FRAMES;
            let mut at = cursor.map_or(first.get(), Frame::get);
            while is_suitable && at < end {
                let frame = Frame::new(at);
                let record = self.storage.parts().frames[frame.index()];
                self.counters.frames_scanned += 1;
                if record.role() == Role::Free && record.order() >= order {
                    let have = record.order();
                    self.remove(frame);
                    self.carve(frame, have, frame, order);
                    *cursor = Some(frame.offset(order.frames()));
                    return Some(frame);
                }
                at += record.order().frames();
            }
            *target = number;
            *cursor = None;
        }
        None
    }
}
