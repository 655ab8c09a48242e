//! Serving a request from a block of another type, as far as the policy lets it.

use contigua_units::{Frame, Order};

use crate::allocator::Frames;
use crate::block::{BLOCK_FRAMES, MigrateType, block_of, blocks_of, first_frame};
use crate::policies::{Candidate, PlacementPolicy, Verdict};
use crate::record::{FrameRecord, Role};
use crate::request::Request;
use crate::storage::Storage;

/// Linux keeps at most this share of memory, in percent, for requests that cannot wait.
const HIGH_ATOMIC_PERCENT: u32 = 1;

impl<S: Storage> Frames<S> {
    /// Looks through the lists of other types, the largest blocks first, so that types mix in as
    /// few pageblocks as possible (Linux's `__rmqueue_fallback`).
    pub(crate) fn fall_back(&mut self, home: MigrateType, request: &Request) -> Option<Frame> {
        if let Some(steering) = self.steering {
            let steered = self.fall_back_steered(steering, home, request);
            if steered.is_some() {
                return steered;
            }
        }
        let fallbacks = self.placement.fallbacks(home);
        for order in (request.order.get()..=Order::BUDDY_MAX.get())
            .rev()
            .map(Order::new)
        {
            for &kind in fallbacks {
                let words = self.storage.parts().words;
                let Some(block) = self.lists.next(words, kind, order) else {
                    continue;
                };
                let pageblock = self.pageblocks()[block_of(block)];
                let candidate = Candidate {
                    kind,
                    order,
                    free: pageblock.free(),
                    movable: pageblock.movable(),
                    unmovable: pageblock.unmovable(),
                };
                match self.placement.verdict(home, request, &candidate) {
                    Verdict::Refuse => {}
                    Verdict::Claim => return Some(self.claim(block, order, home, request)),
                    Verdict::Borrow => {
                        self.counters.blocks_borrowed += 1;
                        self.boost(self.region_for(home));
                        self.remove(block);
                        return Some(self.split_off(block, order, request.order));
                    }
                    Verdict::BorrowSmallest => return self.borrow_smallest(fallbacks, request),
                }
            }
        }
        None
    }

    fn borrow_smallest(&mut self, kinds: &[MigrateType], request: &Request) -> Option<Frame> {
        let orders = (request.order.get()..=Order::BUDDY_MAX.get()).map(Order::new);
        for order in orders {
            for &kind in kinds {
                let words = self.storage.parts().words;
                if let Some(block) = self.lists.next(words, kind, order) {
                    self.counters.blocks_borrowed += 1;
                    self.remove(block);
                    return Some(self.split_off(block, order, request.order));
                }
            }
        }
        None
    }

    /// Lets the pageblocks of a free block have another type, and takes a part of it.
    fn claim(&mut self, block: Frame, order: Order, home: MigrateType, request: &Request) -> Frame {
        self.remove(block);
        for number in blocks_of(block, order) {
            self.counters.blocks_claimed += 1;
            if order < Order::HUGE_2M {
                self.boost(self.region_for(home));
            }
            self.set_type(number, home);
        }
        self.split_off(block, order, request.order)
    }

    /// Changes a pageblock's type, and lists its free blocks where they belong now. A free block
    /// that reaches beyond the pageblock is cut in two first.
    pub(crate) fn set_type(&mut self, number: usize, kind: MigrateType) {
        let first = first_frame(number);
        let end = self.total.min(first.get() + BLOCK_FRAMES);
        if let Some((block, order)) = self.free_block_around(first)
            && order > Order::HUGE_2M
        {
            self.remove(block);
            for half in [block.offset(BLOCK_FRAMES), block] {
                self.insert(half, Order::HUGE_2M, false);
            }
        }
        let before = self.kind_of(first);
        let mut at = first.get();
        while at < end {
            let frame = Frame::new(at);
            let record = self.storage.parts().frames[frame.index()];
            if record.role() == Role::Free {
                self.relist(frame, record.order(), before, kind);
            }
            at += record.order().frames();
        }
        let block = &mut self.storage.parts_mut().blocks[number];
        block.kind = kind;
        block.before = before;
    }

    /// Gives a pageblock the type that it had when a snapshot was taken. With regions, types follow
    /// from the border, and nothing happens.
    ///
    /// # Panics
    /// When there is no such pageblock.
    pub fn retype(&mut self, number: usize, kind: MigrateType) {
        if self.confinement.is_none() && kind != MigrateType::Isolate {
            self.high_atomic_blocks += u32::from(kind == MigrateType::HighAtomic);
            let was = self.pageblocks()[number].kind == MigrateType::HighAtomic;
            self.high_atomic_blocks -= u32::from(was);
            self.set_type(number, kind);
            self.merge_block(number);
        }
    }

    /// Moves a free block from the list of a type to that of another one.
    fn relist(&mut self, frame: Frame, order: Order, from: MigrateType, to: MigrateType) {
        let region = self.region_of(frame);
        let mut parts = self.storage.parts_mut();
        let free = &mut self.regions[region].free;
        if from != MigrateType::Isolate {
            self.lists.remove(&mut parts, frame, order, from);
            *free -= u64::from(order.frames());
        }
        parts.frames[frame.index()] = FrameRecord::linked(Role::Free, order);
        if to != MigrateType::Isolate {
            self.lists.insert(&mut parts, frame, order, to, false);
            *free += u64::from(order.frames());
        }
    }

    /// Keeps the pageblock of a block that could not wait for others that cannot (Linux's
    /// `reserve_highatomic_pageblock`).
    pub(crate) fn reserve_high_atomic(&mut self, frame: Frame) {
        let most = (self.total / 100 * HIGH_ATOMIC_PERCENT / BLOCK_FRAMES).max(1);
        let kind = self.kind_of(frame);
        let may = self.confinement.is_none()
            && !matches!(kind, MigrateType::HighAtomic | MigrateType::Isolate);
        if may && self.high_atomic_blocks < most {
            self.high_atomic_blocks += 1;
            self.counters.blocks_reserved_high_atomic += 1;
            self.set_type(block_of(frame), MigrateType::HighAtomic);
        }
    }

    /// Gives one such pageblock up for requests of a type; says whether there was one.
    pub(crate) fn unreserve_high_atomic(&mut self, home: MigrateType) -> bool {
        if self.high_atomic_blocks == 0 {
            return false;
        }
        let kept = |block: &&crate::BlockRecord| block.kind == MigrateType::HighAtomic;
        let Some(number) = self.pageblocks().iter().position(|block| kept(&block)) else {
            return false;
        };
        self.high_atomic_blocks -= 1;
        self.counters.blocks_unreserved_high_atomic += 1;
        self.set_type(number, home);
        self.merge_block(number);
        true
    }
}
