//! Cycles of page walks, as a processor's counters have them.

use contigua_state::Plain;
use contigua_units::Cycles;
use derive_more::AddAssign;
use schemars::JsonSchema;
use serde::Serialize;

use super::timeline::Timeline;

/// Cycles of page walks of one type of access. The names are perf's (Intel's
/// `DTLB_LOAD_MISSES.WALK_ACTIVE` and its like); here a walk begins with the look-up in the L2 TLB
/// that misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Plain, JsonSchema)]
pub struct WalkCycles {
    /// Cycles in which at least one walker works.
    pub walk_active: Cycles,
    /// Cycles of all walks; more than `walk_active` where walks overlap.
    pub walk_pending: Cycles,
}

/// Cycles of page walks, by what they were for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Plain, JsonSchema)]
pub struct WalkActivity {
    /// Loads.
    pub loads: WalkCycles,
    /// Stores.
    pub stores: WalkCycles,
    /// Instruction fetches.
    pub fetches: WalkCycles,
    /// All of them: walks for different kinds of access overlap, too.
    pub all: WalkCycles,
}

impl WalkActivity {
    /// Scales the walks in proportion, so that all together are active for this long.
    #[must_use]
    pub fn scaled_to(&self, walk_active: Cycles) -> Self {
        let [whole, part] = [walk_active, self.all.walk_active].map(|c| u128::from(c.get()));
        let scaled =
            |cycles: Cycles| Cycles::new((u128::from(cycles.get()) * whole / part.max(1)) as u64);
        let both = |cycles: WalkCycles| WalkCycles {
            walk_active: scaled(cycles.walk_active),
            walk_pending: scaled(cycles.walk_pending),
        };
        Self {
            loads: both(self.loads),
            stores: both(self.stores),
            fetches: both(self.fetches),
            all: both(self.all),
        }
    }
}

/// Purpose of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Load,
    Store,
    Fetch,
}

/// Counts [`WalkCycles`] of walks that come in the order of the program, not of their starts.
#[derive(Clone, Copy, Debug, Default, Plain)]
struct Meter {
    active: Timeline,
    cycles: WalkCycles,
}

impl Meter {
    fn walk(&mut self, start: u64, length: u64) {
        let active = self.active.enter(start, start + length, 0);
        self.cycles.walk_active += Cycles::new(active);
        self.cycles.walk_pending += Cycles::new(length);
    }
}

/// Meters of all kinds of access.
#[derive(Clone, Copy, Debug, Default, Plain)]
pub(super) struct Meters {
    loads: Meter,
    stores: Meter,
    fetches: Meter,
    all: Meter,
}

impl Meters {
    pub(super) fn walk(&mut self, purpose: Purpose, start: u64, length: u64) {
        let own = match purpose {
            Purpose::Load => &mut self.loads,
            Purpose::Store => &mut self.stores,
            Purpose::Fetch => &mut self.fetches,
        };
        own.walk(start, length);
        self.all.walk(start, length);
    }

    pub(super) fn activity(&self) -> WalkActivity {
        WalkActivity {
            loads: self.loads.cycles,
            stores: self.stores.cycles,
            fetches: self.fetches.cycles,
            all: self.all.cycles,
        }
    }

    pub(super) fn reset(&mut self) {
        for meter in [
            &mut self.loads,
            &mut self.stores,
            &mut self.fetches,
            &mut self.all,
        ] {
            meter.cycles = WalkCycles::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(active: u64, pending: u64) -> WalkCycles {
        WalkCycles {
            walk_active: Cycles::new(active),
            walk_pending: Cycles::new(pending),
        }
    }

    #[test]
    fn walks_that_overlap_are_active_once() {
        let mut meters = Meters::default();
        meters.walk(Purpose::Load, 100, 30);
        meters.walk(Purpose::Load, 110, 30);
        meters.walk(Purpose::Store, 120, 30);
        meters.walk(Purpose::Fetch, 200, 10);
        let activity = meters.activity();
        assert_eq!(activity.loads, cycles(40, 60));
        assert_eq!(activity.stores, cycles(30, 30));
        assert_eq!(activity.fetches, cycles(10, 10));
        assert_eq!(activity.all, cycles(60, 100));
    }

    #[test]
    fn activity_grows_in_proportion() {
        let mut meters = Meters::default();
        meters.walk(Purpose::Load, 0, 30);
        meters.walk(Purpose::Store, 20, 30);
        let activity = meters.activity().scaled_to(Cycles::new(500));
        assert_eq!(activity.all, cycles(500, 600));
        assert_eq!(
            (activity.loads, activity.stores),
            (cycles(300, 300), cycles(300, 300))
        );
        let none = WalkActivity::default();
        assert_eq!(none.scaled_to(Cycles::new(500)), none);
    }

    #[test]
    fn a_reset_does_not_forget_the_walk_under_way() {
        let mut meters = Meters::default();
        meters.walk(Purpose::Load, 100, 30);
        meters.reset();
        meters.walk(Purpose::Load, 120, 20);
        assert_eq!(meters.activity().loads, cycles(10, 20));
    }
}
