//! Emptying ranges: isolating pageblocks, moving everything out, and handing the range out as a
//! whole (Linux's `alloc_contig_range`), for pages of 1 GB and for moving the border.

use core::ops::Range;

use contigua_units::{Frame, Order};

use crate::allocator::{Frames, Region};
use crate::block::{BLOCK_FRAMES, MigrateType, blocks_of, first_frame};
use crate::moving::Moves;
use crate::policies::PlacementPolicy;
use crate::reclaim::Context;
use crate::record::{FrameClass, FrameRecord, Role};
use crate::request::Request;
use crate::storage::Storage;

/// Order in which ranges are emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// By address.
    First,
    /// That with the fewest frames in use (Trident's smart compaction).
    #[default]
    Emptiest,
}

/// Treatment of frames that cannot move when a pageblock is emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stays {
    /// Nothing more is moved: the pageblock was to be empty.
    End,
    /// They stay, and all around them moves.
    Remain,
}

impl<S: Storage> Frames<S> {
    /// Takes an aligned range of more than order 10 by emptying one in which nothing is
    /// unmovable. `None` when there is none, or no room for what is in it; the unmovable region is
    /// then asked to grow by one, which happens elsewhere.
    pub fn allocate_contiguous(
        &mut self,
        order: Order,
        class: FrameClass,
        moves: &mut dyn Moves,
    ) -> Option<Frame> {
        let home = self.placement.home(&Request::new(Order::BASE, class));
        let region = self.region_for(home);
        let Self { regions, .. } = self;
        let start = regions[region].start.get().next_multiple_of(order.frames());
        let end = regions[region].end.get();
        self.drain_per_cpu();
        let mut first = start;
        while first + order.frames() <= end {
            let range = Frame::new(first);
            if self.is_emptiable(range, order) {
                if self.empty_range(range, order, moves) {
                    self.counters.contiguous_allocations += 1;
                    self.take_range(range, order, class);
                    return Some(range);
                }
                self.counters.contiguous_failures += 1;
            }
            first += order.frames();
        }
        if self.confinement.is_some() && home != MigrateType::Movable {
            // The range that lies across the border, if what is on this side can be emptied; else the next.
            let across = end / order.frames() * order.frames();
            let is_whole = start <= across
                && (across..end)
                    .step_by(BLOCK_FRAMES as usize)
                    .all(|block| self.is_emptiable(Frame::new(block), Order::HUGE_2M));
            let first = if is_whole {
                across
            } else {
                across + order.frames()
            };
            self.requested += u64::from(first + order.frames() - end);
            self.wake(region, Order::BASE);
        }
        None
    }

    /// Takes an aligned range of more than order 10 by emptying one in which nothing is unmovable, the picked one first.
    /// `None` where that moves more than `most` frames, or there is no room for what is in them. A range that nothing
    /// has to leave is taken only above the low watermark, as in the page allocator's first attempt
    /// (`ALLOC_WMARK_LOW`).
    pub fn allocate_emptied(
        &mut self,
        order: Order,
        class: FrameClass,
        pick: Pick,
        most: u32,
        moves: &mut dyn Moves,
    ) -> Option<Frame> {
        let home = self.placement.home(&Request::new(Order::BASE, class));
        let region = self.region_for(home);
        let Region {
            free, watermarks, ..
        } = &self.regions[region];
        if most == 0 && *free < u64::from(order.frames()) + watermarks.wake() {
            return None;
        }
        let (mut left, mut failed) = (most, None);
        while let Some(next) = self.next_emptiable(region, order, pick, left, failed) {
            self.drain_per_cpu();
            let before = self.counters.frames_moved_from_isolated;
            let (_, range) = next;
            if self.empty_range(range, order, moves) {
                self.counters.contiguous_allocations += 1;
                self.take_range(range, order, class);
                return Some(range);
            }
            // Something there does not move, although its kind does.
            self.counters.contiguous_failures += 1;
            let moved = self.counters.frames_moved_from_isolated - before;
            left = left.saturating_sub(moved as u32);
            failed = Some(next);
        }
        None
    }

    /// The range to try behind one that failed, of those with at most `most` frames in use; its rank precedes it.
    fn next_emptiable(
        &self,
        region: usize,
        order: Order,
        pick: Pick,
        most: u32,
        failed: Option<(u32, Frame)>,
    ) -> Option<(u32, Frame)> {
        let start = self.regions[region]
            .start
            .get()
            .next_multiple_of(order.frames());
        let end = self.regions[region].end.get();
        (start..end)
            .step_by(order.frames() as usize)
            .filter(|first| first + order.frames() <= end)
            .map(Frame::new)
            .filter(|&range| self.is_emptiable(range, order))
            .filter_map(|range| {
                let blocks = &self.pageblocks()[blocks_of(range, order)];
                let used = blocks.iter().map(|block| u32::from(block.movable)).sum();
                let rank = match pick {
                    Pick::First => 0,
                    Pick::Emptiest => used,
                };
                (used <= most).then_some((rank, range))
            })
            .filter(|&next| failed.is_none_or(|failed| next > failed))
            .min()
    }

    /// First frame and length of a run of adjacent free blocks of the largest order, where pages of a class
    /// belong: the first one of at least `least` frames, sought from a frame on and then from the start; else
    /// the longest. `None` where no such block is free. Nothing is taken.
    #[must_use]
    pub fn free_run(&self, class: FrameClass, from: u32, least: u32) -> Option<(Frame, u32)> {
        let home = self.placement.home(&Request::new(Order::BASE, class));
        let region = &self.regions[self.region_for(home)];
        let step = Order::BUDDY_MAX.frames();
        let start = region.start.get().next_multiple_of(step);
        let end = region.end.get() / step * step;
        let from = from.clamp(start, end.max(start)) / step * step;
        let is_free = |head: u32| {
            let record = self.storage.parts().frames[head as usize];
            record.role() == Role::Free && record.order() == Order::BUDDY_MAX
        };
        let mut best = (start, 0);
        for (low, high) in [(from, end), (start, end)] {
            let (mut head, mut length) = (low, 0);
            for block in (low..high).step_by(step as usize) {
                if is_free(block) {
                    length += step;
                } else {
                    (head, length) = (block + step, 0);
                }
                if length > best.1 {
                    best = (head, length);
                }
                if length >= least {
                    return Some((Frame::new(head), length));
                }
            }
        }
        (best.1 > 0).then_some((Frame::new(best.0), best.1))
    }

    /// Takes the longest run of adjacent pageblocks, of at most `most`, in which nothing is
    /// unmovable, by emptying them. Each pageblock is a block of its own afterwards. `None` when
    /// not even one can be emptied.
    pub fn allocate_run(
        &mut self,
        most: usize,
        class: FrameClass,
        moves: &mut dyn Moves,
    ) -> Option<(Frame, usize)> {
        let home = self.placement.home(&Request::new(Order::BASE, class));
        let region = self.region_for(home);
        let start = self.regions[region].start.get().div_ceil(BLOCK_FRAMES) as usize;
        let end = (self.regions[region].end.get() / BLOCK_FRAMES) as usize;
        self.drain_per_cpu();
        let (mut best, mut from) = (start..start, start);
        loop {
            let run = self.longest_emptiable(from..end, most);
            if run.len() <= best.len() {
                break;
            }
            let emptied = self.empty_blocks(run.clone(), moves);
            if emptied == run.len() {
                return Some(self.take_blocks(run, class));
            }
            // Something there does not move, although its kind does: look behind it.
            self.counters.contiguous_failures += 1;
            for number in run.clone() {
                self.restore(number);
            }
            from = run.start + emptied + 1;
            if emptied > best.len() {
                best = run.start..run.start + emptied;
            }
        }
        if best.is_empty() {
            return None;
        }
        let emptied = self.empty_blocks(best.clone(), moves);
        for number in best.clone().skip(emptied) {
            self.restore(number);
        }
        best.end = best.start + emptied;
        (emptied > 0).then(|| self.take_blocks(best, class))
    }

    /// As [`Frames::allocate_run`], of the last blocks of the region if these can be emptied, which keep no border from
    /// moving.
    pub fn allocate_last_run(
        &mut self,
        most: usize,
        class: FrameClass,
        moves: &mut dyn Moves,
    ) -> Option<(Frame, usize)> {
        if most == 0 {
            return None;
        }
        let home = self.placement.home(&Request::new(Order::BASE, class));
        let region = &self.regions[self.region_for(home)];
        let start = region.start.get().div_ceil(BLOCK_FRAMES) as usize;
        let end = (region.end.get() / BLOCK_FRAMES) as usize;
        let last = end.saturating_sub(most).max(start)..end;
        self.drain_per_cpu();
        if last.len() == most && self.longest_emptiable(last.clone(), most) == last {
            if self.empty_blocks(last.clone(), moves) == most {
                return Some(self.take_blocks(last, class));
            }
            self.counters.contiguous_failures += 1;
            for number in last {
                self.restore(number);
            }
        }
        self.allocate_run(most, class, moves)
    }

    /// The longest run of pageblocks that can be emptied, of at most `most`; the first such.
    fn longest_emptiable(&self, blocks: Range<usize>, most: usize) -> Range<usize> {
        let (mut best, mut run) = (blocks.start..blocks.start, blocks.start..blocks.start);
        for number in blocks {
            if self.is_emptiable(first_frame(number), Order::HUGE_2M) {
                run.end = number + 1;
            } else {
                run = number + 1..number + 1;
            }
            if run.len() > best.len() {
                best = run.clone();
            }
            if best.len() >= most {
                break;
            }
        }
        best
    }

    /// Isolates pageblocks and empties as many from the first on as possible; how many. What is
    /// moved out of the first ones does not go to the later ones.
    fn empty_blocks(&mut self, blocks: Range<usize>, moves: &mut dyn Moves) -> usize {
        for number in blocks.clone() {
            self.isolate(number);
        }
        blocks
            .take_while(|&number| self.evacuate(number, Stays::End, moves))
            .count()
    }

    /// Makes an allocated block of each of some isolated, empty pageblocks.
    fn take_blocks(&mut self, blocks: Range<usize>, class: FrameClass) -> (Frame, usize) {
        self.counters.contiguous_allocations += 1;
        for number in blocks.clone() {
            self.take_range(first_frame(number), Order::HUGE_2M, class);
        }
        (first_frame(blocks.start), blocks.len())
    }

    /// Returns true if nothing in a range is unmovable, reserved or isolated, or reaches beyond it.
    fn is_emptiable(&self, range: Frame, order: Order) -> bool {
        let blocks = &self.pageblocks()[blocks_of(range, order)];
        let record = self.storage.parts().frames[range.index()];
        // A larger block that covers the range has its head elsewhere or here.
        let is_part = record.order() > Order::BUDDY_MAX;
        !is_part
            && blocks.iter().all(|block| {
                let used = block.free + block.movable;
                u32::from(used) == BLOCK_FRAMES && block.kind != MigrateType::Isolate
            })
    }

    /// Empties a range, or leaves its types as they were.
    fn empty_range(&mut self, range: Frame, order: Order, moves: &mut dyn Moves) -> bool {
        let blocks = blocks_of(range, order);
        for number in blocks.clone() {
            self.isolate(number);
        }
        let emptied = blocks
            .clone()
            .all(|number| self.evacuate(number, Stays::End, moves));
        if !emptied {
            for number in blocks {
                self.restore(number);
            }
        }
        emptied
    }

    /// Makes one allocated block of an isolated, empty range.
    fn take_range(&mut self, range: Frame, order: Order, class: FrameClass) {
        let mut at = 0;
        while at < order.frames() {
            let frame = range.offset(at);
            let have = self.storage.parts().frames[frame.index()].order();
            self.remove(frame);
            at += have.frames();
        }
        let has_regions = self.confinement.is_some();
        for number in blocks_of(range, order) {
            let block = &mut self.storage.parts_mut().blocks[number];
            // Regions are what types say.
            block.kind = if has_regions {
                block.before
            } else {
                MigrateType::Movable
            };
        }
        self.finish(range, &Request::new(order, class));
    }

    /// Takes a pageblock's free frames off their lists.
    pub(crate) fn isolate(&mut self, number: usize) {
        self.set_type(number, MigrateType::Isolate);
    }

    /// Undoes [`Frames::isolate`].
    pub(crate) fn restore(&mut self, number: usize) {
        let before = self.pageblocks()[number].before;
        self.set_type(number, before);
        self.merge_block(number);
    }

    /// Merges the free blocks of a pageblock with those around it.
    pub(crate) fn merge_block(&mut self, number: usize) {
        let first = first_frame(number);
        let record = self.storage.parts().frames[first.index()];
        if record.role() == Role::Free && record.order() == Order::HUGE_2M {
            self.remove(first);
            self.give(first, Order::HUGE_2M);
        }
    }

    /// Moves everything out of an isolated pageblock, or all around what stays; says whether nothing
    /// else is left. What does not belong on the pageblock's side of the border goes to its own side.
    pub(crate) fn evacuate(&mut self, number: usize, stays: Stays, moves: &mut dyn Moves) -> bool {
        let first = first_frame(number);
        let end = self.total.min(first.get() + BLOCK_FRAMES);
        let mut at = first.get();
        while at < end {
            let frame = Frame::new(at);
            let record = self.storage.parts().frames[frame.index()];
            match record.role() {
                Role::Free => at += record.order().frames(),
                Role::PerCpu => return false,
                // What was just moved out has merged with free memory around it.
                Role::Inside => match self.free_block_around(frame) {
                    Some((block, order)) => at = block.get() + order.frames(),
                    None => return false,
                },
                Role::Allocated if stays == Stays::Remain && !record.can_move() => {
                    at += record.order().frames();
                }
                Role::Allocated => {
                    if record.order() > Order::HUGE_2M || !self.evacuate_one(frame, &record, moves)
                    {
                        return false;
                    }
                    // A block that was split for lack of room is looked at again, in parts.
                }
            }
        }
        true
    }

    /// Moves a block out of its pageblock, or splits it because there is no room for it as a
    /// whole. `false` when neither is possible.
    fn evacuate_one(&mut self, frame: Frame, record: &FrameRecord, moves: &mut dyn Moves) -> bool {
        if !record.can_move() {
            return false;
        }
        let home = MigrateType::Movable;
        let region = self.region_for(home);
        let mut to = self.take_listed(home, record.order());
        if to.is_none() && record.order() == Order::BASE {
            self.reclaim(region, 32, Context::Background);
            // What was reclaimed may be the very block.
            if self.allocated(frame).is_err() {
                return true;
            }
            to = self.take_listed(home, record.order());
        }
        match to {
            Some(to) => {
                self.counters.frames_moved_from_isolated += u64::from(record.order().frames());
                self.move_block(frame, to, moves);
                true
            }
            // Pages that a table maps as one stay one.
            None => {
                record.order() > Order::BASE
                    && record.group().is_some()
                    && self.split(frame).is_ok()
            }
        }
    }
}
