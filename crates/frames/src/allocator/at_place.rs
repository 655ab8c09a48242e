//! Single frames that callers name, for placement by hashes.

use contigua_units::{Frame, Order};

use super::{Frames, Region};
use crate::groups::Evict;
use crate::policies::PlacementPolicy;
use crate::pressure::Stall;
use crate::request::{Request, Wakes};
use crate::storage::Storage;

impl<S: Storage> Frames<S> {
    /// Returns true if a frame is free and no CPU keeps it at hand.
    #[must_use]
    pub fn is_free(&self, frame: Frame) -> bool {
        self.free_block_around(frame).is_some()
    }

    /// Takes this very frame as [`Frames::allocate`] takes any: where such memory belongs, and above the watermarks,
    /// below which reclaim is woken. Says whether it was taken.
    pub fn allocate_frame(&mut self, frame: Frame, request: &Request) -> bool {
        let region = self.region_for(self.placement.home(request));
        let Region {
            start,
            end,
            free,
            watermarks,
            ..
        } = &self.regions[region];
        if frame < *start || frame >= *end {
            return false;
        }
        let left = free.saturating_sub(1);
        if left < watermarks.wake() {
            let is_enough = left >= watermarks.least(request.atomic);
            if request.wakes == Wakes::Kswapd {
                self.wake(region, request.order);
            }
            if !is_enough {
                return false;
            }
        }
        self.allocate_block_at(frame, request).is_ok()
    }

    /// Frees this very frame, if it is a page of a file's that reclaim may take and that was not used since reclaim last
    /// looked; says whether it was freed. A task waits for that as for direct reclaim.
    pub fn reclaim_frame(&mut self, frame: Frame) -> bool {
        let Ok(record) = self.allocated(frame) else {
            return false;
        };
        self.counters.frames_scanned += 1;
        let Some(group) = record.group() else {
            return false;
        };
        let owner = &mut self.storage.parts_mut().groups[usize::from(group.0)];
        let is_evictable = owner.evict == Evict::File
            && record.order() == Order::BASE
            && !record.is_referenced()
            && !record.is_pinned();
        if !is_evictable {
            return false;
        }
        if record.is_working_set() {
            owner.evicted = owner.evicted.saturating_add(1);
        }
        if self.free_at_once(frame).is_err() {
            return false;
        }
        self.counters.frames_reclaimed_direct += 1;
        let time = self.config.costs.reclaim;
        self.pressure.stall(Stall::Movable, time);
        true
    }
}
