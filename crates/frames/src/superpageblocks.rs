//! Steering requests by superpageblock: an aligned group of pageblocks that is *tainted* as soon as a
//! pageblock in use there is not for movable memory (RFC of April and May 2026, "1GB superpageblock
//! memory allocation"; numbers are those of its patches).

use contigua_units::{Frame, Order};

use crate::allocator::{Frames, UNMOVABLE};
use crate::block::{BLOCK_FRAMES, BlockRecord, MigrateType, block_of, first_frame};
use crate::contiguous::Stays;
use crate::moving::Moves;
use crate::policies::Steering;
use crate::reclaim::Context;
use crate::record::Role;
use crate::request::Request;
use crate::storage::Storage;

/// On machines with more superpageblocks, movable pageblocks of tainted ones are taken over although
/// they are in use (`SPB_AGGRESSIVE_THRESHOLD`, May's 19th patch).
const AGGRESSIVE: usize = 8;

/// State of a superpageblock.
#[derive(Clone, Copy, Debug)]
struct Superpageblock {
    number: usize,
    tainted: bool,
    /// Pageblocks that are entirely free.
    whole: u32,
    free: u32,
    used: u32,
}

/// Returns true if a pageblock is in use for what stays, or what is dropped only when memory is short.
fn taints(block: &BlockRecord) -> bool {
    use MigrateType::{HighAtomic, Reclaimable, Unmovable};
    matches!(block.kind, Unmovable | Reclaimable | HighAtomic)
        && u32::from(block.free) < BLOCK_FRAMES
}

impl Steering {
    /// Free pageblocks of a tainted superpageblock that movable memory leaves alone.
    fn reserve(self) -> u32 {
        (self.blocks * self.reserve_permille).div_ceil(1000)
    }
}

impl<S: Storage> Frames<S> {
    /// Tainted superpageblocks, and all, where the policy has them.
    #[must_use]
    pub fn superpageblocks(&self) -> Option<(usize, usize)> {
        let all = self.superpageblock_states(self.steering?);
        let (mut tainted, mut count) = (0, 0);
        for one in all {
            tainted += usize::from(one.tainted);
            count += 1;
        }
        Some((tainted, count))
    }

    fn superpageblock_states(
        &self,
        steering: Steering,
    ) -> impl Iterator<Item = Superpageblock> + '_ {
        let groups = self.pageblocks().chunks(steering.blocks as usize);
        groups.enumerate().map(|(number, blocks)| {
            let mut one = Superpageblock {
                number,
                tainted: false,
                whole: 0,
                free: 0,
                used: 0,
            };
            for block in blocks {
                one.tainted |= taints(block);
                one.free += block.free();
                one.used += BLOCK_FRAMES - block.free();
                let is_whole = block.free() == BLOCK_FRAMES && block.kind != MigrateType::Isolate;
                one.whole += u32::from(is_whole);
            }
            one
        })
    }

    /// Pageblocks of a superpageblock.
    fn members(&self, steering: Steering, number: usize) -> core::ops::Range<usize> {
        let first = number * steering.blocks as usize;
        first..(first + steering.blocks as usize).min(self.pageblocks().len())
    }

    /// Notes whether a frame's superpageblock is tainted.
    pub(crate) fn note_taint(&mut self, steering: Steering, number: usize) {
        let members = self.members(steering, number / steering.blocks as usize);
        let is_tainted = self.pageblocks()[members.clone()].iter().any(taints);
        self.storage.parts_mut().blocks[members.start].tainted = is_tainted;
    }

    /// Returns true if a frame's superpageblock was tainted when it was last looked at.
    pub(crate) fn is_noted_tainted(&self, steering: Steering, frame: Frame) -> bool {
        let first = block_of(frame) / steering.blocks as usize * steering.blocks as usize;
        self.pageblocks()[first].tainted
    }

    /// Takes a block for a type without taking anything from others: for movable memory, from the
    /// fullest clean superpageblocks, then from tainted ones beyond their reserve; for other memory,
    /// from tainted ones.
    pub(crate) fn take_steered(
        &mut self,
        steering: Steering,
        home: MigrateType,
        order: Order,
    ) -> Option<Frame> {
        let is_movable = home == MigrateType::Movable;
        let mut tainted = None;
        let mut found = None;
        for have in self.lists.orders_from(home, order) {
            if have >= Order::HUGE_2M {
                break;
            }
            let Some(block) = self.lists.next(self.storage.parts().words, home, have) else {
                continue;
            };
            if is_movable && self.is_noted_tainted(steering, block) {
                tainted = tainted.or(Some((block, have)));
            } else {
                found = Some((block, have));
                break;
            }
        }
        if found.is_none() {
            let whole = self.take_whole(steering, home, order, |one| {
                if is_movable {
                    (!one.tainted).then_some(one.used)
                } else {
                    one.tainted.then_some(one.used)
                }
            });
            if whole.is_some() {
                return whole;
            }
        }
        let Some((block, have)) = found.or(tainted) else {
            let reserve = steering.reserve();
            return is_movable.then(|| {
                self.take_whole(steering, home, order, |one| {
                    (one.whole > reserve).then_some(one.whole)
                })
            })?;
        };
        self.remove(block);
        Some(self.split_off(block, have, order))
    }

    /// Takes a block out of an entirely free pageblock of the superpageblock that a preference gives
    /// the most.
    fn take_whole(
        &mut self,
        steering: Steering,
        home: MigrateType,
        order: Order,
        prefer: impl Fn(&Superpageblock) -> Option<u32>,
    ) -> Option<Frame> {
        let pages = order.frames().div_ceil(BLOCK_FRAMES);
        let states = self.superpageblock_states(steering);
        let fitting = states.filter(|one| one.whole >= pages);
        let wanted = fitting.filter_map(|one| {
            let head = self.free_head(steering, one.number, order)?;
            Some((prefer(&one)?, head, one.tainted))
        });
        // Of those that are alike, the one with the lowest address.
        let best = wanted.reduce(|best, one| if one.0 > best.0 { one } else { best });
        let (_, (head, have), was_tainted) = best?;
        let is_movable = home == MigrateType::Movable;
        self.wants_emptying |= was_tainted || !is_movable;
        // A pageblock at most changes its type.
        let keep = order.max(Order::HUGE_2M);
        self.remove(head);
        let frame = self.split_off(head, have, keep);
        for number in crate::block::blocks_of(frame, keep) {
            if self.pageblocks()[number].kind != home {
                self.counters.blocks_claimed += 1;
                self.set_type(number, home);
            }
        }
        let taken = self.split_off(frame, keep, order);
        if !is_movable {
            let first = self
                .members(steering, block_of(frame) / steering.blocks as usize)
                .start;
            self.storage.parts_mut().blocks[first].tainted = true;
        }
        Some(taken)
    }

    /// A free block of at least a pageblock, and of an order, in a superpageblock.
    fn free_head(&self, steering: Steering, number: usize, order: Order) -> Option<(Frame, Order)> {
        self.members(steering, number).find_map(|number| {
            let block = self.pageblocks()[number];
            if block.free() < BLOCK_FRAMES || block.kind == MigrateType::Isolate {
                return None;
            }
            // Not all of it may be listed: CPUs keep some at hand.
            let found = self.free_block_around(first_frame(number))?;
            (found.1 >= order.max(Order::HUGE_2M)).then_some(found)
        })
    }

    /// Takes over a pageblock of another type in a tainted superpageblock, however much of it is in
    /// use: the one with the most free frames.
    pub(crate) fn claim_tainted(
        &mut self,
        steering: Steering,
        home: MigrateType,
        order: Order,
    ) -> Option<Frame> {
        if self.pageblocks().len() <= AGGRESSIVE * steering.blocks as usize {
            return None;
        }
        let mut best = None;
        for one in self.superpageblock_states(steering) {
            if !one.tainted {
                continue;
            }
            for number in self.members(steering, one.number) {
                let block = self.pageblocks()[number];
                let is_other = block.kind != home
                    && !matches!(block.kind, MigrateType::HighAtomic | MigrateType::Isolate);
                let (most, _) = best.unwrap_or((0, None));
                if is_other && block.free() > most {
                    let found = self.largest_free(number).filter(|(_, have)| *have >= order);
                    if found.is_some() {
                        best = Some((block.free(), found));
                    }
                }
            }
        }
        let (block, have) = best?.1?;
        self.remove(block);
        self.counters.blocks_claimed += 1;
        self.wants_emptying = true;
        self.set_type(block_of(block), home);
        Some(self.split_off(block, have, order))
    }

    /// The largest free block of a pageblock that is not entirely free.
    fn largest_free(&self, number: usize) -> Option<(Frame, Order)> {
        let first = first_frame(number);
        let end = self.total.min(first.get() + BLOCK_FRAMES);
        let mut best: Option<(Frame, Order)> = None;
        let mut at = first.get();
        while at < end {
            let record = self.storage.parts().frames[at as usize];
            let order = record.order();
            let is_larger = best.is_none_or(|(_, most)| order > most);
            if record.role() == Role::Free && order < Order::HUGE_2M && is_larger {
                best = Some((Frame::new(at), order));
            }
            at += order.frames();
        }
        best
    }

    /// Taints a superpageblock: an empty one, or the clean one that is least used.
    pub(crate) fn taint(
        &mut self,
        steering: Steering,
        home: MigrateType,
        order: Order,
    ) -> Option<Frame> {
        self.take_whole(steering, home, order, |one| {
            (!one.tainted).then(|| u32::MAX - one.used)
        })
    }

    /// Moves movable memory out of tainted superpageblocks into clean ones, until each tainted one has
    /// its reserve of free pageblocks again, or nothing movable by the pageblock.
    pub(crate) fn empty_tainted(&mut self, steering: Steering, moves: &mut dyn Moves) {
        self.drain_per_cpu();
        let count = self.pageblocks().len().div_ceil(steering.blocks as usize);
        for number in 0..count {
            self.note_taint(steering, number * steering.blocks as usize);
        }
        for number in 0..count {
            let first = number * steering.blocks as usize;
            if !self.pageblocks()[first].tainted {
                continue;
            }
            while let Some(block) = self.next_to_empty(steering, number) {
                if !self.has_clean_room(steering, block) {
                    return;
                }
                self.isolate(block);
                let all = self.evacuate(block, Stays::End, moves);
                self.restore(block);
                if !all {
                    break;
                }
            }
        }
    }

    /// The pageblock of a tainted superpageblock below its reserve that has the least to move.
    fn next_to_empty(&self, steering: Steering, number: usize) -> Option<usize> {
        let members = self.members(steering, number);
        let blocks = &self.pageblocks()[members.clone()];
        let whole = blocks.iter().filter(|block| block.free() == BLOCK_FRAMES);
        if whole.count() as u32 >= steering.reserve() {
            return None;
        }
        let movable = members.filter(|&number| {
            let block = self.pageblocks()[number];
            let is_whole = u32::from(block.free + block.movable) == BLOCK_FRAMES;
            block.kind == MigrateType::Movable && block.movable > 0 && is_whole
        });
        movable.min_by_key(|&number| self.pageblocks()[number].movable)
    }

    /// Returns true if clean superpageblocks have room for what is in a pageblock, perhaps after
    /// reclaim.
    fn has_clean_room(&mut self, steering: Steering, number: usize) -> bool {
        let needed = self.pageblocks()[number].movable();
        let room = |frames: &Self| -> u32 {
            let states = frames.superpageblock_states(steering);
            states.filter(|one| !one.tainted).map(|one| one.free).sum()
        };
        let missing = needed.saturating_sub(room(self));
        if missing > 0 {
            self.reclaim(UNMOVABLE, u64::from(missing), Context::Background);
        }
        room(self) >= needed
    }

    /// Takes a block for a request from others, as a superpageblock allows.
    pub(crate) fn fall_back_steered(
        &mut self,
        steering: Steering,
        home: MigrateType,
        request: &Request,
    ) -> Option<Frame> {
        let may_taint = request.last_resort || request.atomic;
        if home == MigrateType::Movable {
            return may_taint
                .then(|| self.take_whole(steering, home, request.order, |one| Some(one.whole)))?;
        }
        let packed = self.claim_tainted(steering, home, request.order);
        packed.or_else(|| may_taint.then(|| self.taint(steering, home, request.order))?)
    }
}
