//! Reclaim: freeing reclaimable memory, the oldest first.
//!
//! The LRU lists are the groups that may be evicted, as Linux keeps one for each control group. A
//! block that was used since it was last looked at is passed over once.

use contigua_units::{Frame, Nanoseconds, Order};

use crate::allocator::Frames;
use crate::block::MigrateType;
use crate::groups::Evict;
use crate::moving::Moves;
use crate::policies::PlacementPolicy;
use crate::pressure::Stall;
use crate::record::Group;
use crate::request::Request;
use crate::storage::Storage;

/// Frames that a request reclaims at a time (Linux's `SWAP_CLUSTER_MAX`).
pub(crate) const BATCH: u64 = 32;
/// Times that a request tries again as long as reclaim makes progress (Linux's
/// `MAX_RECLAIM_RETRIES`).
const ATTEMPTS: usize = 16;
/// Orders above this are costly: few attempts are made for them (Linux's
/// `PAGE_ALLOC_COSTLY_ORDER`).
const COSTLY: u8 = 3;

/// Caller of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// A task that needs the memory itself.
    Direct,
    /// The kernel's thread.
    Background,
}

impl<S: Storage> Frames<S> {
    /// Takes a block of `order`, at most 10, and makes room for it if need be: reclaims, and
    /// compacts for more than one frame. The time goes into the pressure. `None` when none of that
    /// helped; the caller may let the background work run and try again.
    pub fn allocate_or_reclaim(
        &mut self,
        request: &Request,
        moves: &mut dyn Moves,
    ) -> Option<Frame> {
        if let Some(frame) = self.allocate(request) {
            return Some(frame);
        }
        let home = self.placement.home(request);
        self.wake(self.region_for(home), request.order);
        if self.confinement.is_some() && home != MigrateType::Movable {
            // Expansion is asked for, and happens elsewhere.
            self.requested += u64::from(request.order.frames());
        }
        if request.atomic {
            self.count_failure(home);
            return None;
        }
        let before = self.counters;
        self.is_allocating = true;
        let frame = self.make_room(request, home, moves);
        self.is_allocating = false;
        let after = self.counters;
        let costs = self.config.costs.clone();
        let compacted = after.frames_compacted_direct - before.frames_compacted_direct;
        let reclaimed = after.frames_reclaimed_direct - before.frames_reclaimed_direct;
        let scanned = after.frames_scanned - before.frames_scanned;
        let mut time = costs.scan.get() * scanned
            + costs.reclaim.get() * reclaimed
            + costs.migrate.get() * compacted;
        if frame.is_none() {
            self.count_failure(home);
            time += costs.wait.get();
            if self.confinement.is_some() && home == MigrateType::Movable {
                self.requested_movable += u64::from(request.order.frames());
            }
            self.waits_for_border |= self.confinement.is_some() && home != MigrateType::Movable;
        }
        self.pressure.stall(stall_of(home), Nanoseconds::new(time));
        frame
    }

    /// A task that made a request waited for something else for so long: the border, for example.
    pub fn stall(&mut self, request: &Request, time: Nanoseconds) {
        let home = self.placement.home(request);
        self.pressure.stall(stall_of(home), time);
    }

    /// A task reads frames of a group that are not in memory. If reclaim took as many that had been
    /// in use, the task waits for what memory was too short to keep (Linux counts refaults of a
    /// working set as memory stalls); says whether it did.
    pub fn refault(&mut self, group: Group, frames: u32) -> bool {
        let record = &mut self.storage.parts_mut().groups[usize::from(group.0)];
        if record.evicted < frames {
            return false;
        }
        record.evicted -= frames;
        self.counters.frames_refaulted += u64::from(frames);
        self.pressure
            .stall(Stall::Movable, self.config.costs.refault);
        true
    }

    /// Forgets what reclaim took of a group: its files are gone, and nobody reads them again.
    pub fn forget_evicted(&mut self, group: Group) {
        self.storage.parts_mut().groups[usize::from(group.0)].evicted = 0;
    }

    fn count_failure(&mut self, home: MigrateType) {
        match stall_of(home) {
            Stall::Movable => self.counters.failures_movable += 1,
            Stall::Unmovable => self.counters.failures_unmovable += 1,
        }
    }

    fn make_room(
        &mut self,
        request: &Request,
        home: MigrateType,
        moves: &mut dyn Moves,
    ) -> Option<Frame> {
        let region = self.region_for(home);
        let attempts = if request.order.get() > COSTLY {
            1
        } else {
            ATTEMPTS
        };
        // Less than a pageblock of another type would be refused.
        let block = if self.placement.defragments() {
            request.order.max(Order::HUGE_2M)
        } else {
            request.order
        };
        for _ in 0..attempts {
            self.counters.direct_reclaims += 1;
            let wanted = BATCH.max(u64::from(request.order.frames()));
            let progress = self.reclaim(region, wanted, Context::Direct);
            if let Some(frame) = self.allocate(request) {
                return Some(frame);
            }
            if request.order > Order::BASE
                && self.compact_directly(region, block, moves)
                && let Some(frame) = self.allocate(request)
            {
                return Some(frame);
            }
            if progress == 0 {
                break;
            }
        }
        // What CPUs keep at hand may be what is missing.
        self.drain_per_cpu();
        if let Some(frame) = self.allocate(request) {
            return Some(frame);
        }
        while self.unreserve_high_atomic(home) {
            if let Some(frame) = self.allocate(request) {
                return Some(frame);
            }
        }
        if request.last_resort
            && let Some(frame) = self.shelter(home, request)
        {
            return Some(frame);
        }
        let again = Request {
            last_resort: true,
            ..*request
        };
        self.placement
            .has_last_resort()
            .then(|| self.allocate(&again))?
    }

    /// Frees about `wanted` frames of a region; returns how many.
    pub(crate) fn reclaim(&mut self, region: usize, wanted: u64, context: Context) -> u64 {
        let evictable = self.evictable(region);
        if evictable == 0 {
            return 0;
        }
        let groups = self.evict_end;
        let mut freed = 0;
        // A second round takes what the first one passed over.
        for _ in 0..2 {
            let start = self.reclaim_hand;
            for i in 0..groups {
                let hand = (start + i) % groups;
                let group = Group(hand as u16);
                let weight = self.evict_weight(group, region);
                if weight == 0 {
                    continue;
                }
                // Every group gives in proportion to its size.
                let share = (wanted * weight).div_ceil(evictable).min(wanted - freed);
                freed += self.reclaim_from(group, share, context);
                if freed >= wanted {
                    self.reclaim_hand = (hand + 1) % groups;
                    return freed;
                }
            }
        }
        freed
    }

    /// Frames that could be reclaimed in a region, weighted.
    fn evictable(&self, region: usize) -> u64 {
        (0..self.evict_end)
            .map(|group| self.evict_weight(Group(group as u16), region))
            .sum()
    }

    /// Share of reclaim's effort that a group gets.
    fn evict_weight(&self, group: Group, region: usize) -> u64 {
        let record = self.storage.parts().groups[usize::from(group.0)];
        let frames = u64::from(record.frames);
        // Caches of the kernel lie in the unmovable region, everything else in the movable one.
        let is_here = |movable: bool| self.confinement.is_none() || (region == 1) == movable;
        match record.evict {
            Evict::File if is_here(true) => frames,
            Evict::Swap if is_here(true) => {
                frames * u64::from(self.config.swappiness.min(200)) / 200
            }
            Evict::Shrink if is_here(false) => frames,
            _ => 0,
        }
    }

    fn reclaim_from(&mut self, group: Group, wanted: u64, context: Context) -> u64 {
        let mut freed = 0;
        let blocks = self.storage.parts().groups[usize::from(group.0)]
            .chain
            .length;
        let is_cache = self.storage.parts().groups[usize::from(group.0)].evict == Evict::Shrink;
        for _ in 0..blocks {
            if freed >= wanted {
                break;
            }
            let Some(frame) = self.oldest_in(group) else {
                break;
            };
            self.counters.frames_scanned += 1;
            let record = self.storage.parts().frames[frame.index()];
            if record.is_referenced() || record.is_pinned() {
                if record.is_referenced() {
                    self.storage.parts_mut().frames[frame.index()].set_working_set();
                }
                self.rotate(frame);
                continue;
            }
            let frames = u64::from(record.order().frames());
            if record.is_working_set() {
                let record = &mut self.storage.parts_mut().groups[usize::from(group.0)];
                record.evicted = record.evicted.saturating_add(frames as u32);
            }
            if self.free_at_once(frame).is_err() {
                break;
            }
            freed += frames;
            if is_cache {
                self.counters.frames_shrunk += frames;
            }
            match context {
                Context::Direct => self.counters.frames_reclaimed_direct += frames,
                Context::Background => self.counters.frames_reclaimed_background += frames,
            }
        }
        freed
    }
}

/// Resource that a task which wants a type waits for.
fn stall_of(home: MigrateType) -> Stall {
    if home == MigrateType::Movable {
        Stall::Movable
    } else {
        Stall::Unmovable
    }
}
