//! The buddy allocator.
//!
//! Blocks of orders 0 to 10: the smallest block that fits is split, and a freed block merges with
//! its free buddy as far as that goes. Single frames go through per-CPU lists. When a request's
//! own lists are empty, the placement policy says what else may serve it (`fallback.rs`).

mod accounts;
mod at_hand;
mod at_place;
mod empty;
mod ends;
mod marks;
mod statistics;

use contigua_units::{Frame, Nanoseconds, Order};

use crate::Error;
use crate::block::{BLOCK_FRAMES, MigrateType, block_of};
use crate::clearing::Clearing;
use crate::compaction::scanners::Compaction;
use crate::config::Config;
use crate::controller::Controller;
use crate::counters::Counters;
use crate::lists::{Discipline, FreeLists};
use crate::per_cpu::slot;
use crate::policies::{Confinement, Placement, PlacementPolicy, Steering};
use crate::pressure::Pressure;
use crate::record::{FrameClass, FrameRecord, Role};
use crate::request::{Request, Wakes};
use crate::storage::Storage;
use crate::watermarks::Watermarks;

/// The region below the border.
pub(crate) const UNMOVABLE: usize = 0;
/// The region above it.
pub(crate) const MOVABLE: usize = 1;

/// A part of memory with watermarks of its own: all of it, or one side of the border.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub(crate) struct Region {
    pub(crate) start: Frame,
    pub(crate) end: Frame,
    /// Frames on its free lists.
    pub(crate) free: u64,
    pub(crate) watermarks: Watermarks,
    /// The order for which background reclaim was woken.
    pub(crate) woken: Option<Order>,
    /// The order for which background compaction was woken.
    pub(crate) wants_compaction: Option<Order>,
    pub(crate) compaction: Compaction,
    /// When fragmentation is looked at next.
    pub(crate) next_proactive: Nanoseconds,
}

impl Region {
    pub(crate) fn new(start: Frame, end: Frame) -> Self {
        Self {
            start,
            end,
            free: 0,
            watermarks: Watermarks::default(),
            woken: None,
            wants_compaction: None,
            compaction: Compaction::default(),
            next_proactive: Nanoseconds::new(0),
        }
    }

    pub(crate) fn frames(&self) -> u64 {
        u64::from(self.end.get() - self.start.get())
    }
}

/// The end of its region that a request takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// None in particular.
    Any,
    /// The one farthest from the border.
    Far,
    /// The one at the border, but for the window.
    Near,
}

/// All frames of a machine, with their metadata in buffers of the caller's.
#[derive(Clone)]
#[cfg_attr(feature = "state", derive(contigua_state::State))]
#[cfg_attr(feature = "state", state(parts))]
pub struct Frames<S> {
    pub(crate) storage: S,
    #[cfg_attr(feature = "state", state(skip))]
    pub(crate) config: Config,
    #[cfg_attr(feature = "state", state(skip))]
    pub(crate) placement: Placement,
    #[cfg_attr(feature = "state", state(skip))]
    pub(crate) confinement: Option<Confinement>,
    #[cfg_attr(feature = "state", state(skip))]
    pub(crate) steering: Option<Steering>,
    pub(crate) lists: FreeLists,
    /// The unmovable and the movable region; without regions the first one is all of memory.
    pub(crate) regions: [Region; 2],
    /// First frame of the movable region; 0 without regions.
    pub(crate) border: Frame,
    #[cfg_attr(feature = "state", state(skip))]
    pub(crate) total: u32,
    pub(crate) free: u64,
    pub(crate) by_class: [u64; FrameClass::ALL.len()],
    pub(crate) high_atomic_blocks: u32,
    pub(crate) cpu: usize,
    pub(crate) reclaim_hand: usize,
    /// Groups from this one on are never evicted.
    pub(crate) evict_end: usize,
    /// Frames of unmovable requests that failed since regions were last resized.
    pub(crate) requested: u64,
    /// Frames of movable requests that failed since regions were last resized.
    pub(crate) requested_movable: u64,
    /// An unmovable request waits for the border.
    pub(crate) waits_for_border: bool,
    /// When the controller looks at both regions next although nobody is short.
    pub(crate) next_look: Nanoseconds,
    /// Tainted superpageblocks may have fewer free pageblocks than they should.
    pub(crate) wants_emptying: bool,
    /// The block that hardware empties.
    pub(crate) clearing: Option<Clearing>,
    /// An allocation is under way, and must not resize regions.
    pub(crate) is_allocating: bool,
    pub(crate) controller: Controller,
    pub(crate) pressure: Pressure,
    pub(crate) counters: Counters,
}

impl<S: Storage> Frames<S> {
    /// Region of a frame.
    #[inline]
    pub(crate) fn region_of(&self, frame: Frame) -> usize {
        usize::from(self.confinement.is_some() && frame >= self.border)
    }

    /// The region whose watermarks hold for a type.
    #[inline]
    pub(crate) fn region_for(&self, home: MigrateType) -> usize {
        usize::from(self.confinement.is_some() && home == MigrateType::Movable)
    }

    #[inline]
    pub(crate) fn kind_of(&self, frame: Frame) -> MigrateType {
        self.storage.parts().blocks[block_of(frame)].kind
    }

    /// Lists a free block.
    pub(crate) fn insert(&mut self, frame: Frame, order: Order, at_end: bool) {
        let region = self.region_of(frame);
        let mut parts = self.storage.parts_mut();
        parts.frames[frame.index()] = FrameRecord::linked(Role::Free, order);
        let kind = parts.blocks[block_of(frame)].kind;
        if kind != MigrateType::Isolate {
            self.lists.insert(&mut parts, frame, order, kind, at_end);
            self.regions[region].free += u64::from(order.frames());
        }
    }

    /// Takes a free block out of its list. Its record then says that it belongs to no block.
    pub(crate) fn remove(&mut self, frame: Frame) {
        let region = self.region_of(frame);
        let mut parts = self.storage.parts_mut();
        let order = parts.frames[frame.index()].order();
        let kind = parts.blocks[block_of(frame)].kind;
        if kind != MigrateType::Isolate {
            self.lists.remove(&mut parts, frame, order, kind);
            self.regions[region].free -= u64::from(order.frames());
        }
        parts.frames[frame.index()] = FrameRecord::default();
    }

    /// Keeps a part of `order` of a block that was removed, lists the rest, and says where the
    /// part is.
    pub(crate) fn split_off(&mut self, block: Frame, have: Order, order: Order) -> Frame {
        let keep_upper =
            self.lists.discipline() == Discipline::FarFromBorder && block >= self.border;
        let mut frame = block;
        let mut have = have;
        while have > order {
            have = Order::new(have.get() - 1);
            let upper = frame.offset(have.frames());
            if keep_upper {
                self.insert(frame, have, false);
                frame = upper;
            } else {
                self.insert(upper, have, false);
            }
        }
        frame
    }

    /// Takes a block from the lists of a type or, if need be, from others.
    pub(crate) fn take(&mut self, home: MigrateType, request: &Request) -> Option<Frame> {
        if request.atomic && request.order > Order::BASE && self.high_atomic_blocks > 0 {
            let kept = self.take_listed(MigrateType::HighAtomic, request.order);
            if kept.is_some() {
                return kept;
            }
        }
        let own = self.take_own(home, request);
        own.or_else(|| self.fall_back(home, request))
    }

    /// Takes a block of the lists of one type.
    pub(crate) fn take_listed(&mut self, kind: MigrateType, order: Order) -> Option<Frame> {
        if let Some(steering) = self.steering
            && slot(kind).is_some()
        {
            return self.take_steered(steering, kind, order);
        }
        let parts = self.storage.parts();
        let (block, have) = match self.lists.discipline() {
            Discipline::Recency => {
                let have = self.lists.smallest_from(kind, order)?;
                (self.lists.next(parts.words, kind, have)?, have)
            }
            Discipline::FarFromBorder => {
                let mut near = None;
                let mut found = None;
                for have in self.lists.orders_from(kind, order) {
                    let Some(block) = self.lists.next(parts.words, kind, have) else {
                        continue;
                    };
                    if self.is_near_border(block, have) {
                        near = near.or(Some((block, have)));
                    } else {
                        found = Some((block, have));
                        break;
                    }
                }
                found.or(near)?
            }
        };
        self.remove(block);
        Some(self.split_off(block, have, order))
    }

    /// Lists a block that is free now, merged with its free buddies.
    pub(crate) fn give(&mut self, frame: Frame, order: Order) {
        if order > Order::BUDDY_MAX {
            for part in 0..order.frames() / Order::BUDDY_MAX.frames() {
                self.give(
                    frame.offset(part * Order::BUDDY_MAX.frames()),
                    Order::BUDDY_MAX,
                );
            }
            return;
        }
        let second = frame.offset(BLOCK_FRAMES);
        if order > Order::HUGE_2M && self.kind_of(frame) != self.kind_of(second) {
            // Its pageblocks have changed their types since it was handed out.
            self.give(frame, Order::HUGE_2M);
            self.give(second, Order::HUGE_2M);
            return;
        }
        let (mut head, mut order) = (frame, order);
        while order < Order::BUDDY_MAX {
            let buddy = Frame::new(head.get() ^ order.frames());
            let Some(record) = self.storage.parts().frames.get(buddy.index()) else {
                break;
            };
            let is_free = record.role() == Role::Free && record.order() == order;
            if !is_free || order >= Order::HUGE_2M && !self.merge_types(head, buddy) {
                break;
            }
            self.remove(buddy);
            if order >= Order::HUGE_2M {
                let parts = self.storage.parts_mut();
                parts.blocks[block_of(buddy)].kind = parts.blocks[block_of(head)].kind;
            }
            head = head.min(buddy);
            order = Order::new(order.get() + 1);
        }
        // Movable requests come to tainted superpageblocks last.
        let is_last = |steering| {
            self.kind_of(head) == MigrateType::Movable && self.is_noted_tainted(steering, head)
        };
        let at_end = self.may_merge_soon(head, order) || self.steering.is_some_and(is_last);
        self.insert(head, order, at_end);
    }

    /// Returns true if two pageblocks may become one free block: they are of one type, or of types
    /// that Linux lets merge.
    fn merge_types(&self, first: Frame, second: Frame) -> bool {
        let (first, second) = (self.kind_of(first), self.kind_of(second));
        let merges = |kind| !matches!(kind, MigrateType::Isolate | MigrateType::HighAtomic);
        first == second || self.confinement.is_none() && merges(first) && merges(second)
    }

    /// Returns true if the block one size up is likely to become free: then this one is used last
    /// (Linux's `buddy_merge_likely`).
    fn may_merge_soon(&self, head: Frame, order: Order) -> bool {
        if order.get() + 1 >= Order::BUDDY_MAX.get() {
            return false;
        }
        let larger = Order::new(order.get() + 1);
        let buddy = Frame::new(head.align_down(larger).get() ^ larger.frames());
        let record = self.storage.parts().frames.get(buddy.index());
        record.is_some_and(|record| record.role() == Role::Free && record.order() == larger)
    }

    /// Takes a block of `order`, at most 10, without waiting for anything. `None` when the policy
    /// finds no block for it, or when only the reserve is left.
    #[inline]
    pub fn allocate(&mut self, request: &Request) -> Option<Frame> {
        let home = self.placement.home(request);
        let region = self.region_for(home);
        let Region {
            free, watermarks, ..
        } = &self.regions[region];
        let left = free.saturating_sub(u64::from(request.order.frames()));
        if left < watermarks.wake() {
            if let Some(frame) = self.overflow(home, request) {
                return Some(frame);
            }
            if request.wakes == Wakes::Kswapd {
                self.wake(region, request.order);
            }
            if left < self.regions[region].watermarks.least(request.atomic) {
                return None;
            }
        }
        let frame = match slot(home) {
            Some(slot)
                if request.order == Order::BASE && self.end_for(home, request) != End::Far =>
            {
                self.take_per_cpu(home, slot, request)
            }
            _ => self.take(home, request),
        }?;
        if request.atomic && request.order > Order::BASE {
            self.reserve_high_atomic(frame);
        }
        self.finish(frame, request);
        Some(frame)
    }

    /// Writes a taken block's record and accounts for it.
    #[inline]
    pub(crate) fn finish(&mut self, frame: Frame, request: &Request) {
        let record = FrameRecord::allocated(request.order, request.class);
        self.storage.parts_mut().frames[frame.index()] = record;
        self.counters.allocations += 1;
        self.account_block(frame, &record);
        if let Some(group) = request.group {
            self.join(frame, group);
        }
    }

    /// Gives a block back that has one user.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] when the frame is not the first of an allocated block, which
    /// includes one that was freed before; [`Error::Shared`] when it has several users.
    #[inline]
    pub fn free(&mut self, frame: Frame) -> Result<(), Error> {
        let record = self.allocated(frame)?;
        let order = self.unuse(frame)?;
        self.release(frame, order, record.class());
        Ok(())
    }

    /// Frees a frame past the per-CPU lists, for memory that others are waiting for.
    pub(crate) fn free_at_once(&mut self, frame: Frame) -> Result<(), Error> {
        let order = self.unuse(frame)?;
        self.storage.parts_mut().frames[frame.index()] = FrameRecord::default();
        self.give(frame, order);
        Ok(())
    }

    /// Accounts for a block that is given back; its order.
    #[inline]
    fn unuse(&mut self, frame: Frame) -> Result<Order, Error> {
        let record = self.allocated(frame)?;
        if record.references() > 1 {
            return Err(Error::Shared(frame));
        }
        self.leave(frame, &record);
        self.counters.frees += 1;
        self.account_freed(frame, &record);
        Ok(record.order())
    }

    pub(crate) fn record(&self, frame: Frame) -> Result<FrameRecord, Error> {
        let records = self.storage.parts().frames;
        records
            .get(frame.index())
            .copied()
            .ok_or(Error::NoSuchFrame(frame))
    }

    #[inline]
    pub(crate) fn allocated(&self, frame: Frame) -> Result<FrameRecord, Error> {
        let record = self.record(frame)?;
        if record.role() == Role::Allocated {
            Ok(record)
        } else {
            Err(Error::NotAllocated(frame))
        }
    }

    /// Takes this very frame.
    ///
    /// # Errors
    /// [`Error::NoSuchFrame`], or [`Error::InUse`] when it is not free. Frames that a CPU keeps
    /// at hand count as in use until [`Frames::drain_per_cpu`].
    pub fn allocate_at(&mut self, frame: Frame, class: FrameClass) -> Result<(), Error> {
        self.allocate_block_at(frame, &Request::new(Order::BASE, class))
    }

    /// Takes this very block, of at most order 10.
    ///
    /// # Errors
    /// [`Error::NoSuchFrame`], or [`Error::InUse`] when not all of it is free in one free block.
    pub fn allocate_block_at(&mut self, frame: Frame, request: &Request) -> Result<(), Error> {
        self.record(frame)?;
        let (block, have) = self
            .free_block_around(frame)
            .filter(|(_, have)| *have >= request.order && frame.is_aligned(request.order))
            .ok_or(Error::InUse(frame))?;
        self.remove(block);
        self.carve(block, have, frame, request.order);
        self.finish(frame, request);
        Ok(())
    }

    /// Lists all of a removed block but the part of `order` at `frame`.
    pub(crate) fn carve(&mut self, block: Frame, have: Order, frame: Frame, order: Order) {
        let (mut head, mut have) = (block, have);
        while have > order {
            have = Order::new(have.get() - 1);
            let upper = head.offset(have.frames());
            let (keep, give) = if frame >= upper {
                (upper, head)
            } else {
                (head, upper)
            };
            self.insert(give, have, false);
            head = keep;
        }
    }

    /// The free block that a frame lies in.
    pub(crate) fn free_block_around(&self, frame: Frame) -> Option<(Frame, Order)> {
        (0..=Order::BUDDY_MAX.get())
            .map(Order::new)
            .find_map(|order| {
                let head = frame.align_down(order);
                let record = self.record(head).ok()?;
                let covers = record.role() == Role::Free && record.order() >= order;
                (covers && frame.get() - head.get() < record.order().frames())
                    .then_some((head, record.order()))
            })
    }

    /// Puts a free block at the front of its list, so that it is taken next where the policy takes
    /// what was freed last; says whether the frame is the first of a free block.
    pub fn list_first(&mut self, frame: Frame) -> bool {
        let record = self.record(frame);
        let Some(record) = record.ok().filter(|record| record.role() == Role::Free) else {
            return false;
        };
        self.remove(frame);
        self.insert(frame, record.order(), false);
        true
    }
}
