//! Passes of the thread that coalesces mappings (`paging/src/ranger.rs`), and the runs that programs have.

use contigua_paging::{Brought, Obstacle, RangerStep, Runs, SpaceId};
use contigua_units::{Cycles, Frame, PAGE_BYTES, VirtAddr};

use super::Kernel;
use crate::config::RangerConfig;
use crate::processors::Mmus;
use crate::report::{RangerReport, RunsReport};

impl Kernel {
    /// One pass through every process.
    pub(super) fn range_all(&mut self, config: &RangerConfig, mmu: &mut Mmus) -> Cycles {
        self.ranger = RangerReport {
            passes: self.ranger.passes + 1,
            left_immovable_pages: 0,
            left_outside_pages: 0,
            left_unlike_pages: 0,
            left_unmovable_pages: 0,
            ..self.ranger
        };
        let work = self.in_each(mmu, |kernel, mmu| kernel.range_current(config, mmu));
        self.ranger.work_cycles += work.get();
        self.ranger.last_work_cycles = work.get();
        work
    }

    fn range_current(&mut self, config: &RangerConfig, mmu: &mut Mmus) -> Cycles {
        let (ranging, mut left) = (config.ranging(), config.budget());
        let mut moves = core::mem::take(&mut self.moves);
        let mut work = Cycles::ZERO;
        loop {
            let space = self.spaces[usize::from(self.current.0)].as_mut();
            let step =
                space.and_then(|space| space.next_ranger_step(ranging, &mut left, &self.memory));
            match step {
                None => break,
                Some(RangerStep::Stuck { pages }) => self.ranger.left_immovable_pages += pages,
                Some(RangerStep::Bring {
                    address,
                    from,
                    to,
                    pages,
                }) => {
                    let mut done = self.memory.bring(from, to, &mut moves);
                    if config.splits && done == Err(Obstacle::Unlike) {
                        if pages > 1 {
                            work += self.split_at(address, mmu);
                            continue;
                        }
                        work += self.split_around(to, mmu);
                        done = self.memory.bring(from, to, &mut moves);
                    }
                    match done {
                        Ok(Brought::Moved) => self.ranger.moved_pages += pages,
                        Ok(Brought::Exchanged) => {
                            self.ranger.exchanged_pages += pages;
                            // A block of the server's other programs has no table here, and is copied all the same.
                            let others = 2 - moves.len() as u64;
                            work += self.costs.copy_4k_cycles * (pages * others);
                        }
                        Err(obstacle) => *self.ranger.left(obstacle) += pages,
                    }
                    work += self.follow(&moves, mmu);
                    moves.clear();
                }
                Some(RangerStep::Passed(_)) if !config.promotes => {}
                Some(RangerStep::Passed(address)) => {
                    let mut is_made = false;
                    let done = self.change_once(mmu, &mut |space, memory, effects, policy| {
                        is_made = space.promote_in_place(address, policy, memory, effects);
                        Ok(())
                    });
                    self.ranger.huge_pages_made += u64::from(is_made);
                    work += done.1;
                }
            }
        }
        self.moves = moves;
        work
    }

    /// Splits a huge page of the current space, whose parts come next.
    fn split_at(&mut self, address: VirtAddr, mmu: &mut Mmus) -> Cycles {
        let done = self.change_once(mmu, &mut |space, memory, effects, _| {
            space.split_for_ranger(address, memory, effects)
        });
        done.1
    }

    /// Splits the movable block around a frame, and the huge page that has it.
    fn split_around(&mut self, frame: Frame, mmu: &mut Mmus) -> Cycles {
        let Some((block, owner)) = self.memory.large_block_around(frame) else {
            return Cycles::ZERO;
        };
        let Some(owner) = owner else {
            // Nobody's table maps it.
            let _ = self.memory.split(block);
            return Cycles::ZERO;
        };
        if self
            .spaces
            .get(usize::from(owner.space))
            .is_none_or(Option::is_none)
        {
            return Cycles::ZERO;
        }
        let before = core::mem::replace(&mut self.current, SpaceId(owner.space));
        let done = self.change_once(mmu, &mut |space, memory, effects, _| {
            space.split_block(block, owner.page.address(), memory, effects)?;
            Ok(())
        });
        self.current = before;
        done.1
    }

    /// The thread's work, with the runs of the process that has the most memory now.
    pub(crate) fn ranger(&self) -> Option<RangerReport> {
        self.upkeep.ranges().then(|| {
            let spaces = self.spaces.iter().flatten();
            let runs = spaces.map(|space| space.runs(&self.memory));
            let most = runs.max_by_key(|runs| runs.pages).unwrap_or_default();
            RangerReport {
                runs: RunsReport::from(most),
                ..self.ranger
            }
        })
    }
}

impl RangerReport {
    fn left(&mut self, obstacle: Obstacle) -> &mut u64 {
        match obstacle {
            Obstacle::Source => &mut self.left_immovable_pages,
            Obstacle::Outside => &mut self.left_outside_pages,
            Obstacle::Unlike => &mut self.left_unlike_pages,
            Obstacle::Unmovable => &mut self.left_unmovable_pages,
        }
    }
}

impl From<Runs> for RunsReport {
    fn from(runs: Runs) -> Self {
        Self {
            bytes: runs.pages * PAGE_BYTES,
            runs: runs.runs,
            covering_99_percent: runs.covering,
            bytes_in_2m: runs.in_2m * PAGE_BYTES,
            longest_bytes: runs.longest * PAGE_BYTES,
        }
    }
}
