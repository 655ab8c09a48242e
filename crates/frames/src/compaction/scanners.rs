//! Positions of compaction's scanners in a region, and deferral.

use contigua_units::Order;

/// Linux puts compaction off for up to `1 << 6` attempts after failures.
const MOST_DEFER_SHIFT: u32 = 6;

/// Positions of a region's scanners, and the recent success of compaction.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub(crate) struct Compaction {
    /// Pageblock from which the migration scanner goes on; `None` is the start.
    pub(super) migrate: Option<usize>,
    /// Pageblock at which the free scanner goes on downwards; `None` is the end.
    pub(super) free: Option<usize>,
    defer_shift: u32,
    considered: u32,
    failed_order: Option<Order>,
}

impl Compaction {
    /// Returns true if an attempt is deferred (Linux's `compaction_deferred`).
    pub(super) fn is_deferred(&mut self, order: Order) -> bool {
        if self.failed_order.is_none_or(|failed| order < failed) {
            return false;
        }
        let limit = 1 << self.defer_shift;
        self.considered = (self.considered + 1).min(limit);
        self.considered < limit
    }

    pub(super) fn failed(&mut self, order: Order) {
        self.considered = 0;
        self.defer_shift = (self.defer_shift + 1).min(MOST_DEFER_SHIFT);
        self.failed_order = Some(self.failed_order.map_or(order, |failed| failed.min(order)));
    }

    pub(super) fn succeeded(&mut self, order: Order) {
        self.considered = 0;
        self.defer_shift = 0;
        if self.failed_order.is_some_and(|failed| order >= failed) {
            self.failed_order = None;
        }
    }
}
