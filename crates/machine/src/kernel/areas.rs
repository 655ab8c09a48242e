//! Areas of contiguous memory in which last page-table nodes lie in order (`paging/src/table/areas.rs`): their memory,
//! which may be the host's, and what making them costs.

use contigua_frames::FrameClass;
use contigua_paging::{AddressSpace, Areas, Effects, Memory, SpaceId};
use contigua_units::{Cycles, Nanoseconds};

use super::{Kernel, entry_work};
use crate::processors::Mmus;

impl Kernel {
    /// Makes areas for page tables of the running program that lie outside of all; the work that it took.
    #[inline]
    pub(super) fn make_areas(&mut self, mmu: &mut Mmus) -> Cycles {
        self.make_areas_in(self.current, mmu)
    }

    /// Makes areas for page tables of a program that lie outside of all; the work that it took.
    pub(super) fn make_areas_in(&mut self, id: SpaceId, mmu: &mut Mmus) -> Cycles {
        let index = usize::from(id.0);
        let is_wanted = |space: &mut AddressSpace| {
            let areas = space.table().areas();
            areas.is_some_and(Areas::is_wanted)
        };
        match self.spaces[index].take_if(is_wanted) {
            Some(space) => self.make_areas_of(space, mmu),
            None => Cycles::ZERO,
        }
    }

    /// Makes areas of contiguous memory, which is the host's where the areas lie there.
    fn make_areas_of(&mut self, mut space: AddressSpace, mmu: &mut Mmus) -> Cycles {
        let mut moves = core::mem::take(&mut self.moves);
        let before = self.memory.pressure().all().total.get();
        let is_in_host = self.shape.areas.is_some_and(|areas| areas.is_in_host);
        let host = self.host.as_mut().filter(|_| is_in_host);
        let mut effects = Effects::default();
        let growth = if let Some(host) = host {
            let take = |frames, _: &mut Memory| host.lend(frames, mmu);
            space.make_areas(take, &mut self.memory, &mut effects)
        } else {
            let take = |frames, memory: &mut Memory| {
                memory.take_run(frames, FrameClass::PageTable, &mut moves)
            };
            space.make_areas(take, &mut self.memory, &mut effects)
        };
        let counters = &mut self.counters;
        counters.table_growths += growth.tables;
        counters.table_growths_failed += growth.failures;
        counters.table_largest_block = counters.table_largest_block.max(growth.largest_block);
        let invalidations = effects.invalidations.len() as u64;
        counters.invalidations += invalidations;
        for &range in &effects.invalidations {
            mmu.invalidate(space.id(), range, true);
        }
        let stalled = self.memory.pressure().all().total.get() - before;
        // The host is called for each area, as at a fault.
        let calls = if is_in_host { growth.tables } else { 0 };
        let costs = &self.costs;
        let work = costs.zero_4k_cycles * effects.zeroed_4k
            + costs.copy_4k_cycles * effects.copied_4k
            + costs.invalidation_cycles * invalidations
            + costs.page_fault_cycles * calls
            + entry_work(costs, &effects)
            + Nanoseconds::new(stalled).at(self.clock);
        let index = usize::from(space.id().0);
        self.spaces[index] = Some(space);
        self.effects.returned.append(&mut effects.returned);
        self.return_areas(mmu);
        work + self.follow_and_clear(moves, mmu)
    }

    /// Gives areas that nobody needs back to the host.
    pub(super) fn return_areas(&mut self, mmu: &mut Mmus) {
        if let Some(host) = &mut self.host {
            for (first, frames) in self.effects.returned.drain(..) {
                host.take_back(first, frames, mmu);
            }
        }
    }
}
