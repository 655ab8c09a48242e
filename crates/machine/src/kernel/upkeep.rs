//! Regular work of the kernel beside the background pass: looks at accessed bits, promotion by what they found,
//! recovery of zeros in huge pages, pages of 1 GB, coalescing of mappings, moves of costly pages, and zeroing ahead.

use contigua_paging::{Promotion, SpaceId};
use contigua_translation::{Giants, Look, Recovery, Upkeep};
use contigua_units::{Cycles, Megahertz, Order, PageSize};

use super::Kernel;
use crate::config::RangerConfig;
use crate::processors::Mmus;

/// Work, with times as cycles.
pub(super) struct Plan {
    giants: Option<(Giants, Cycles)>,
    ranger: Option<(RangerConfig, Cycles)>,
    look: Option<(Look, Cycles, Cycles)>,
    recovery: Option<(Recovery, Cycles)>,
    /// Time after which costly pages move.
    costly_pages: Option<Cycles>,
    zeroed_per_second: u64,
    clock: Megahertz,
}

impl Plan {
    pub(super) fn new(upkeep: Upkeep, ranger: Option<RangerConfig>, clock: Megahertz) -> Self {
        let at_least_one = |cycles: Cycles| Cycles::new(cycles.get().max(1));
        Self {
            look: upkeep.look.map(|look| {
                let interval = at_least_one(look.interval.at(clock));
                (look, interval, look.window.at(clock))
            }),
            giants: upkeep
                .giants
                .map(|giants| (giants, at_least_one(giants.interval.at(clock)))),
            ranger: ranger.map(|ranger| {
                let interval = at_least_one(ranger.interval.at(clock));
                (ranger, interval)
            }),
            recovery: upkeep
                .recovery
                .map(|recovery| (recovery, at_least_one(recovery.interval.at(clock)))),
            costly_pages: upkeep
                .costly_pages
                .map(|interval| at_least_one(interval.at(clock))),
            zeroed_per_second: upkeep.zeroed_per_second,
            clock,
        }
    }

    /// Returns true if runs are counted, and perhaps made.
    pub(super) fn ranges(&self) -> bool {
        self.ranger.is_some()
    }

    /// The thread that coalesces mappings, if it moves anything, and its interval.
    fn ranger(&self) -> Option<(&RangerConfig, Cycles)> {
        let (config, interval) = self.ranger.as_ref()?;
        config.moves.then_some((config, *interval))
    }

    /// Returns true if the engine has to tell of the program's stores.
    pub(super) fn follows_stores(&self) -> bool {
        self.recovery.is_some()
    }
}

/// When what is due.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
pub(super) struct Due {
    /// A look begins, or ends.
    look: Cycles,
    is_looking: bool,
    recovery: Cycles,
    giants: Cycles,
    ranger: Cycles,
    costly_pages: Cycles,
    /// Memory is zeroed up to then.
    zeroed: Cycles,
    /// The space that was promoted in last.
    last: u16,
}

impl Due {
    pub(super) fn at_start(plan: &Plan) -> Self {
        Self {
            look: plan.look.map_or(Cycles::ZERO, |(_, interval, _)| interval),
            is_looking: false,
            recovery: plan.recovery.map_or(Cycles::ZERO, |(_, interval)| interval),
            giants: plan.giants.map_or(Cycles::ZERO, |(_, interval)| interval),
            ranger: plan.ranger().map_or(Cycles::ZERO, |(_, interval)| interval),
            costly_pages: plan.costly_pages.unwrap_or(Cycles::ZERO),
            zeroed: Cycles::ZERO,
            last: 0,
        }
    }
}

impl Kernel {
    /// Returns true if regular work that remaps pages is due.
    pub(super) fn upkeep_is_due(&self, now: Cycles) -> bool {
        self.upkeep.look.is_some() && now >= self.due.look
            || self.upkeep.recovery.is_some() && now >= self.due.recovery
            || self.upkeep.giants.is_some() && now >= self.due.giants
            || self.upkeep.ranger().is_some() && now >= self.due.ranger
            || self.upkeep.costly_pages.is_some() && now >= self.due.costly_pages
    }

    /// Does the regular work that is due.
    pub(super) fn keep_up(&mut self, now: Cycles, mmu: &mut Mmus) -> Cycles {
        let mut work = Cycles::ZERO;
        if self.upkeep.zeroed_per_second > 0 {
            self.zero_ahead(now);
        }
        while let Some((look, interval, window)) = self.upkeep.look
            && now >= self.due.look
        {
            if self.due.is_looking {
                self.due.look += Cycles::new((interval.get() - window.get()).max(1));
                for space in self.spaces.iter_mut().flatten() {
                    space.end_look(look.newest_percent, &self.memory);
                }
                self.counters.looks += 1;
            } else {
                self.due.look += window;
                work += self.in_each(mmu, |kernel, mmu| {
                    let done = kernel.change(mmu, |space, _, effects, _| {
                        space.begin_look(effects);
                        Ok(())
                    });
                    done.unwrap_or(Cycles::ZERO)
                });
            }
            self.due.is_looking = !self.due.is_looking;
        }
        while let Some((recovery, interval)) = self.upkeep.recovery
            && now >= self.due.recovery
        {
            self.due.recovery += interval;
            work += self.recover(recovery, mmu);
        }
        while let Some((giants, interval)) = self.upkeep.giants
            && now >= self.due.giants
        {
            self.due.giants += interval;
            work += self.in_each(mmu, |kernel, mmu| kernel.make_giants(giants, mmu));
        }
        if let Some(interval) = self.upkeep.costly_pages
            && now >= self.due.costly_pages
        {
            self.due.costly_pages = now + interval;
            work += self.move_costly_pages(mmu);
        }
        if let Some((config, interval)) = self.upkeep.ranger()
            && now >= self.due.ranger
        {
            let config = config.clone();
            // It sleeps for so long behind each pass.
            self.due.ranger = now + interval;
            work += self.range_all(&config, mmu);
        }
        work
    }

    /// Does something in each process's space.
    pub(super) fn in_each(
        &mut self,
        mmu: &mut Mmus,
        mut act: impl FnMut(&mut Self, &mut Mmus) -> Cycles,
    ) -> Cycles {
        let before = self.current;
        let living: Vec<SpaceId> = self.processes.iter().flatten().copied().collect();
        let mut work = Cycles::ZERO;
        for space in living {
            self.current = space;
            work += act(self, mmu);
        }
        self.current = before;
        work
    }

    /// Makes pages of 1 GB in the current space, for as many as the pass may: a range is emptied for each.
    fn make_giants(&mut self, giants: Giants, mmu: &mut Mmus) -> Cycles {
        let mut work = Cycles::ZERO;
        for _ in 0..giants.pages {
            let space = self.spaces[usize::from(self.current.0)].as_mut();
            let found = space.and_then(|space| space.next_giant(&*self.policy, &self.memory));
            let Some(address) = found else {
                break;
            };
            let mut moves = core::mem::take(&mut self.moves);
            let frame = self
                .memory
                .take_giant(giants.pick, giants.most_moves, &mut moves);
            work += self.follow_and_clear(moves, mmu);
            let Some(frame) = frame else {
                self.counters.giant_page_fallbacks += 1;
                break;
            };
            let done = self.change_once(mmu, &mut |space, memory, effects, policy| {
                space.promote_giant(address, frame, policy, memory, effects)
            });
            work += done.1;
        }
        work
    }

    /// The thread that zeroes free memory has come to a time.
    fn zero_ahead(&mut self, now: Cycles) {
        let second = u64::from(self.upkeep.clock.get()) * 1_000_000;
        let elapsed = now.get().saturating_sub(self.due.zeroed.get());
        let pages = u128::from(elapsed) * u128::from(self.upkeep.zeroed_per_second);
        let pages = (pages / u128::from(second)) as u64;
        if pages > 0 {
            self.due.zeroed = now;
            self.memory.zero_ahead(pages);
        }
    }

    /// Takes zeros back where memory is short.
    fn recover(&mut self, recovery: Recovery, mmu: &mut Mmus) -> Cycles {
        let total = self.memory.total();
        let free_at = |used_percent: u32| total * u64::from(100 - used_percent.min(100)) / 100;
        if self.memory.free_frames() >= free_at(recovery.above_percent) {
            return Cycles::ZERO;
        }
        let goal = free_at(recovery.until_percent);
        self.in_each(mmu, |kernel, mmu| {
            let wanted = goal.saturating_sub(kernel.memory.free_frames());
            if wanted == 0 || kernel.running().blank_pages() == 0 {
                return Cycles::ZERO;
            }
            let done = kernel.change(mmu, |space, memory, effects, _| {
                space.recover_zeros(recovery.least_zeros, wanted, memory, effects)
            });
            done.unwrap_or(Cycles::ZERO)
        })
    }

    /// One step of the background pass, in the policy's order.
    pub(super) fn promote(&mut self, pages: u64, mmu: &mut Mmus) -> Cycles {
        match self.policy.promotion() {
            Promotion::ByAddress => self.in_each(mmu, |kernel, mmu| kernel.khugepaged(pages, mmu)),
            Promotion::Fair { idle_tax } => self.promote_fairly(pages, idle_tax, mmu),
            Promotion::ByCoverage => self.promote_by_coverage(pages, mmu),
        }
    }

    fn promote_fairly(&mut self, pages: u64, idle_tax: f64, mmu: &mut Mmus) -> Cycles {
        let step = u64::from(PageSize::Size2M.frames());
        let before = self.current;
        let mut waiting: Vec<SpaceId> = self.processes.iter().flatten().copied().collect();
        let mut work = Cycles::ZERO;
        for _ in 0..pages.div_ceil(step) {
            let metric = |space: &SpaceId| {
                let space = self.spaces[usize::from(space.0)].as_ref();
                space.map_or(0.0, |space| space.promotion_metric(idle_tax))
            };
            let best = waiting.iter().enumerate();
            let best = best.max_by(|(_, a), (_, b)| metric(a).total_cmp(&metric(b)));
            let Some((at, &space)) = best else {
                break;
            };
            self.current = space;
            let (done, goes_on) = self.khugepaged_step(step, mmu);
            work += done;
            if !goes_on {
                waiting.remove(at);
            }
        }
        self.current = before;
        work
    }

    fn promote_by_coverage(&mut self, pages: u64, mmu: &mut Mmus) -> Cycles {
        let before = self.current;
        let mut work = Cycles::ZERO;
        for _ in 0..pages.div_ceil(u64::from(PageSize::Size2M.frames())) {
            let buckets = self.processes.iter().flatten().filter_map(|&space| {
                let found = self.spaces[usize::from(space.0)].as_ref()?;
                // Those behind the last one come first.
                let turn = u16::MAX - space.0.wrapping_sub(self.due.last).wrapping_sub(1);
                Some((found.hottest_bucket()?, turn, space))
            });
            let Some((_, _, space)) = buckets.max() else {
                break;
            };
            if !self.memory.has_free_block(Order::HUGE_2M) {
                work += self.compact(mmu).0;
                if !self.memory.has_free_block(Order::HUGE_2M) {
                    break;
                }
            }
            (self.current, self.due.last) = (space, space.0);
            let done = self.change(mmu, |space, memory, effects, policy| {
                space.promote_hottest(policy, memory, effects);
                Ok(())
            });
            work += done.unwrap_or(Cycles::ZERO);
        }
        self.current = before;
        work
    }
}
