//! The kernel's threads: khugepaged, kcompactd, reclaim and the resizer, and compaction at a fault.

use contigua_frames::{Effort, Move};
use contigua_paging::{HugeAdvice, SpaceId};
use contigua_units::{Cycles, Nanoseconds, Order, PageSize, VirtAddr, VirtRange};

use super::Kernel;
use super::upkeep::Due;
use crate::processors::Mmus;

impl Kernel {
    /// Returns true if the kernel's threads were woken, so that the next system call may move
    /// pages.
    pub(crate) fn may_move_soon(&self) -> bool {
        self.memory.has_background_work()
    }

    /// Returns true if [`Kernel::background`] may move or remap pages at this time.
    pub(crate) fn may_move(&self, now: Cycles) -> bool {
        self.pass.is_some() && now >= self.next_pass
            || self.upkeep_is_due(now)
            || self.memory.may_move(self.age_at(now))
    }

    /// Age of the server when its cores' clocks are at a time.
    fn age_at(&self, now: Cycles) -> Nanoseconds {
        let elapsed = now.get() * 1000 / u64::from(self.clock.get());
        Nanoseconds::new(self.epoch.get() + elapsed)
    }

    /// Lets the background pass catch up with the time.
    pub(crate) fn background(&mut self, now: Cycles, mmu: &mut Mmus) -> Cycles {
        self.now = self.age_at(now);
        let mut work = self.run_threads(mmu);
        while let Some((pass, interval)) = self.pass
            && now >= self.next_pass
        {
            self.next_pass += Cycles::new(interval.get().max(1));
            work += self.promote(pass.pages, mmu);
        }
        work + self.keep_up(now, mmu)
    }

    /// One step of the background pass through the current space. Where no 2 MB block is free, it
    /// compacts memory for one (`khugepaged/defrag` is 1), and gives up when that fails.
    pub(super) fn khugepaged(&mut self, pages: u64, mmu: &mut Mmus) -> Cycles {
        let step = u64::from(PageSize::Size2M.frames());
        let mut work = Cycles::ZERO;
        for _ in 0..pages.div_ceil(step) {
            let (done, goes_on) = self.khugepaged_step(step, mmu);
            work += done;
            if !goes_on {
                break;
            }
        }
        work
    }

    /// Looks at as many pages as a 2 MB page has. The work, and false at the end of the space and where no block can be
    /// made.
    pub(super) fn khugepaged_step(&mut self, step: u64, mmu: &mut Mmus) -> (Cycles, bool) {
        let mut work = Cycles::ZERO;
        let wants_block = self.running().pass_wants_block(&*self.policy, &self.memory);
        if wants_block && !self.memory.has_huge_block(&*self.policy) {
            // Its scanning is that of a kernel thread, as all in the background.
            work += self.compact(mmu).0;
        }
        let fails = wants_block && !self.memory.has_huge_block(&*self.policy);
        let mut ends = false;
        let done = self.change(mmu, |space, memory, effects, policy| {
            ends = space.background_pass(step, policy, memory, effects);
            Ok(())
        });
        work += done.unwrap_or(Cycles::ZERO);
        (work, !ends && !fails)
    }

    /// Starts the background pass's clock anew, when the core's is.
    pub(crate) fn restart_clock(&mut self) {
        self.next_pass = self.pass.map_or(Cycles::ZERO, |(_, interval)| interval);
        self.due = Due::at_start(&self.upkeep);
        self.epoch = self.now;
    }

    /// Lets the kernel's threads run if somebody woke them.
    pub(super) fn settle(&mut self, mmu: &mut Mmus) -> Cycles {
        if self.memory.has_background_work() {
            self.run_threads(mmu)
        } else {
            Cycles::ZERO
        }
    }

    /// Reclaim, compaction and resizing in the background, and what follows for page tables. The
    /// one core that is simulated pays for moved pages.
    pub(super) fn run_threads(&mut self, mmu: &mut Mmus) -> Cycles {
        let mut moves = core::mem::take(&mut self.moves);
        self.memory.background(self.now, &mut moves);
        let work = self.follow(&moves, mmu);
        moves.clear();
        self.mover.run_until(self.now, &mut self.memory, &mut moves);
        self.follow_hardware(&moves, mmu);
        moves.clear();
        self.moves = moves;
        work
    }

    /// Lets page tables and TLBs follow pages that moved.
    pub(super) fn follow(&mut self, moves: &[Move], mmu: &mut Mmus) -> Cycles {
        let mut work = Cycles::ZERO;
        for moved in moves {
            let space = SpaceId(moved.owner.space);
            let table = self.spaces.get_mut(usize::from(space.0));
            if let Some(table) = table.and_then(Option::as_mut) {
                self.counters.pages_moved += u64::from(table.follow(moved));
            }
            self.memory.follow_reserved(moved);
            let start = moved.owner.page.address();
            let range = VirtRange::with_length(start, moved.order.bytes());
            mmu.invalidate(space, range, false);
            self.counters.invalidations += 1;
            work += self.costs.copy_4k_cycles * u64::from(moved.order.frames())
                + self.costs.invalidation_cycles;
        }
        work
    }

    /// Lets page tables and TLBs follow pages that hardware moved: the program does not wait.
    fn follow_hardware(&mut self, moves: &[Move], mmu: &mut Mmus) {
        for moved in moves {
            let space = SpaceId(moved.owner.space);
            let table = self.spaces.get_mut(usize::from(space.0));
            if let Some(table) = table.and_then(Option::as_mut) {
                self.counters.pages_moved += u64::from(table.follow(moved));
            }
            mmu.forget(
                space,
                VirtRange::with_length(moved.owner.page.address(), moved.order.bytes()),
            );
        }
    }

    /// Makes a 2 MB block for a page that is to be huge, where `defrag` says so.
    pub(super) fn make_huge(&mut self, address: VirtAddr, mmu: &mut Mmus) -> Cycles {
        let space = self.running();
        let is_advised = space
            .vma(address)
            .is_some_and(|(_, vma)| vma.huge == HugeAdvice::Huge);
        let effort = self.memory.defrag().effort(is_advised);
        if effort != Effort::Direct
            || space.wanted_size(address, &*self.policy, &self.memory) < PageSize::Size2M
        {
            return Cycles::ZERO;
        }
        let (moving, stalled) = self.compact(mmu);
        moving + stalled
    }

    /// Moves pages until a 2 MB block is free, or it is clear that none can be made: then, where the policy perforates,
    /// all that can move out of one. The work for what moved, and the time that a task waits for all of it.
    pub(super) fn compact(&mut self, mmu: &mut Mmus) -> (Cycles, Cycles) {
        let mut moves = core::mem::take(&mut self.moves);
        let before = self.memory.pressure().all().total.get();
        let most = self.policy.most_missing();
        if !self.memory.compact_for(Order::HUGE_2M, &mut moves) && most > 0 {
            self.memory.compact_around(most, &mut moves);
        }
        let stalled = self.memory.pressure().all().total.get() - before;
        let work = self.follow(&moves, mmu);
        moves.clear();
        self.moves = moves;
        (work, Nanoseconds::new(stalled).at(self.clock))
    }
}
