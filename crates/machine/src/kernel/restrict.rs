//! Restrictive segments (`paging/src/rest_segs.rs`): their memory, and pages that move there because they are costly to
//! translate.

use contigua_paging::{RestSegPlan, Room, SpaceId};
use contigua_units::{Cycles, PageSize, VirtAddr};

use super::Kernel;
use crate::processors::Mmus;
use crate::report::RestSegsReport;

impl Kernel {
    /// Takes memory for the segments that were not taken at boot, as much as there is in one piece for each. Pages of
    /// nobody under study move.
    pub(super) fn take_rest_segs(&mut self, plans: &[RestSegPlan]) {
        if self.host.is_some() || plans.is_empty() {
            return;
        }
        let mut moves = core::mem::take(&mut self.moves);
        self.memory.take_rest_segs(plans, false, &mut moves);
        moves.clear();
        self.moves = moves;
        self.rest_segs = Some(plans.iter().map(|plan| plan.bytes).sum());
    }

    /// Moves the pages that hardware found costly to translate into a segment.
    pub(super) fn move_costly_pages(&mut self, mmu: &mut Mmus) -> Cycles {
        let before = self.current;
        let mut work = Cycles::ZERO;
        while let Some((space, address)) = mmu.take_costly_page() {
            if self
                .spaces
                .get(usize::from(space.0))
                .is_none_or(Option::is_none)
            {
                continue;
            }
            match self.memory.room_for(space, address) {
                Room::Free => {}
                Room::None => continue,
                Room::Behind(other, victim) => {
                    work += self.move_restricted(other, victim, false, mmu);
                }
            }
            work += self.move_restricted(space, address, true, mmu);
        }
        self.current = before;
        work
    }

    /// The segments, where the design asks for any.
    pub(crate) fn rest_segs(&self) -> Option<RestSegsReport> {
        let wanted = self.rest_segs?;
        let mut report = RestSegsReport::default();
        for segment in &self.memory.rest_segs.segments {
            report.bytes += segment.bytes();
            let pages = segment.pages().count() as u64;
            match segment.size() {
                PageSize::Size4K => report.pages_4k = pages,
                _ => report.pages_2m = pages,
            }
        }
        report.missing_bytes = wanted.saturating_sub(report.bytes);
        Some(report)
    }

    fn move_restricted(
        &mut self,
        space: SpaceId,
        address: VirtAddr,
        inwards: bool,
        mmu: &mut Mmus,
    ) -> Cycles {
        self.current = space;
        let done = self.change_once(mmu, &mut |space, memory, effects, _| {
            if inwards {
                space.restrict(address, memory, effects);
            } else {
                space.release_restricted(address, memory, effects);
            }
            Ok(())
        });
        done.1
    }
}
