//! The kernel's threads: reclaim, compaction, resizing.

use contigua_units::{Nanoseconds, Order, PAGE_BYTES};

use crate::allocator::Frames;
use crate::moving::Moves;
use crate::policies::{Confinement, PlacementPolicy, Shelters};
use crate::reclaim::Context;
use crate::storage::Storage;

/// Linux looks at fragmentation this often (`HPAGE_FRAG_CHECK_INTERVAL_MSEC`).
const PROACTIVE_INTERVAL: u64 = 500_000_000;
/// After a run of proactive compaction that did not help, this many looks are skipped (Linux's
/// `COMPACT_MAX_DEFER_SHIFT`).
const PROACTIVE_DEFERRAL: u64 = 1 << 6;
/// The controller looks at both regions at least this often, for what is idle (our choice: the paper
/// says only that resizing follows reclaim).
const LOOK_INTERVAL: u64 = 1_000_000_000;
/// Pages of a page table, which a read fault maps at most (`PTRS_PER_PTE`).
const LARGEST_FAULT_AROUND: u64 = 512;
/// Frames that background reclaim frees before it looks again.
const BATCH: u64 = 512;

impl<S: Storage> Frames<S> {
    /// Returns true if a kernel thread was woken and has not run since.
    #[must_use]
    pub fn has_background_work(&self) -> bool {
        self.wants_emptying || self.regions.iter().any(|region| region.woken.is_some())
    }

    /// Effort of a page fault for a 2 MB page when no block is free.
    #[must_use]
    pub fn defrag(&self) -> crate::Defrag {
        self.config.defrag
    }

    /// Pages that a read fault in a mapping of a file maps, at most: a power of two
    /// (`fault_around_bytes_set` in `mm/memory.c`).
    #[must_use]
    pub fn fault_around_pages(&self) -> u64 {
        let pages = (self.config.fault_around.get() / PAGE_BYTES).clamp(1, LARGEST_FAULT_AROUND);
        1 << pages.ilog2()
    }

    /// Returns true if [`Frames::background`] would do more at this time than keep count of
    /// pressure: pages may move then.
    #[must_use]
    pub fn may_move(&self, now: Nanoseconds) -> bool {
        self.regions.iter().any(|region| {
            region.woken.is_some()
                || region.wants_compaction.is_some()
                || region.frames() > 0 && now.get() >= region.next_proactive.get()
        }) || self.confinement.is_some() && now.get() >= self.next_look.get()
            || self.is_clearing()
            || self.wants_emptying
    }

    /// Wakes background compaction for a request of an order that found no block (Linux wakes
    /// `kcompactd` when a huge-page allocation fails).
    pub fn want_compaction(&mut self, order: Order) {
        let region = self.region_for(crate::MigrateType::Movable);
        let wanted = &mut self.regions[region].wants_compaction;
        *wanted = Some(wanted.map_or(order, |before| before.max(order)));
    }

    /// Lets the kernel's threads do what they were woken for. `now` must not decrease.
    pub fn background(&mut self, now: Nanoseconds, moves: &mut dyn Moves) {
        self.pressure.advance(now);
        let mut is_woken = false;
        for region in 0..self.regions.len() {
            if let Some(order) = self.regions[region].woken.take() {
                is_woken = true;
                self.reclaim_in_background(region, order);
            }
        }
        let looks = self.confinement.is_some() && now.get() >= self.next_look.get();
        if looks {
            self.next_look = Nanoseconds::new(now.get() + LOOK_INTERVAL);
        }
        if let Some(steering) = self.steering
            && core::mem::take(&mut self.wants_emptying)
        {
            self.empty_tainted(steering, moves);
        }
        let shelters_last = |c: &Confinement| c.shelters == Shelters::Last;
        if is_woken || looks && self.confinement.as_ref().is_some_and(shelters_last) {
            self.evacuate_sheltered(moves);
        }
        if is_woken || looks || self.requested_movable > 0 {
            self.resize(now, moves);
        }
        for region in 0..self.regions.len() {
            if let Some(order) = self.regions[region].wants_compaction.take()
                && !self.reached(region, self.background_goal(region, order))
            {
                self.compact_in_background(region, order, moves);
            }
            let state = &mut self.regions[region];
            if state.frames() > 0 && now.get() >= state.next_proactive.get() {
                let helped = self.compact_proactively(region, moves);
                let looks = if helped { 1 } else { PROACTIVE_DEFERRAL };
                let next = now.get() + PROACTIVE_INTERVAL * looks;
                self.regions[region].next_proactive = Nanoseconds::new(next);
            }
        }
    }

    fn reclaim_in_background(&mut self, region: usize, order: Order) {
        loop {
            let state = &self.regions[region];
            let goal = state.watermarks.boosted_high();
            let missing = goal.saturating_sub(state.free);
            if missing == 0 || self.reclaim(region, missing.min(BATCH), Context::Background) == 0 {
                break;
            }
        }
        if self.placement.defragments()
            && !self.reached(region, self.background_goal(region, order))
        {
            // What compaction needs to make a block (Linux's `compact_gap`).
            let gap = 2 * u64::from(order.frames());
            self.reclaim(region, gap, Context::Background);
        }
        // After a boost there is likely to be room for whole pageblocks (Linux's `balance_pgdat`).
        let was_boosted = self.regions[region].watermarks.end_boost();
        let order = if was_boosted && self.config.boosts_wake {
            order.max(Order::HUGE_2M)
        } else {
            order
        };
        if order > Order::BASE {
            self.regions[region].wants_compaction = Some(order);
        }
    }
}
