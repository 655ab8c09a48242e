//! Was it a mistake to give memory back early? The converse of [`crate::accuracy`].
//!
//! A program that has shrunk for good should not keep its peak for Δ; one whose demand swings should.
//! It is unknown beforehand which it is. So memory goes back early, until demand comes back for it within Δ.

/// Of what was given back early, the part that demand must reach into for it to have been a mistake: 1/4. Our
/// choice: a program that shrank goes on to use a little.
pub(crate) const TOLERATED: u64 = 4;
/// Number of Δ for which a mistake is remembered: then one of so many waves is given back early
/// again. Our choice.
pub(crate) const MEMORY: u64 = 10;

/// Early releases: the demand that would show one to be a mistake, and the pause after a mistake. In
/// heap pages and nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyRelease {
    /// The demand that makes it a mistake, before `until`.
    limit: u64,
    until: u64,
    /// Up to when nothing is given back early.
    not_before: u64,
}

impl EarlyRelease {
    pub(crate) const fn new() -> Self {
        Self {
            limit: u64::MAX,
            until: 0,
            not_before: 0,
        }
    }

    /// Returns true if memory may be released early.
    pub(crate) const fn is_allowed(&self, now: u64) -> bool {
        now >= self.not_before
    }

    /// Notes that no more than `mapped` heap pages are left early of what use within `interval` was at most.
    pub(crate) fn note(&mut self, mapped: u64, peak: u64, now: u64, interval: u64) {
        if mapped < peak {
            self.limit = mapped + (peak - mapped).div_ceil(TOLERATED);
            self.until = now.saturating_add(interval);
        }
    }

    /// Notes that `used` heap pages are in use.
    #[inline]
    pub(crate) fn demand(&mut self, used: u64, now: u64, interval: u64) {
        if used > self.limit {
            if now < self.until {
                self.not_before = now.saturating_add(interval.saturating_mul(MEMORY));
            }
            self.limit = u64::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_demand_that_comes_back_in_time_a_mistake() {
        let mut early = EarlyRelease::new();
        assert!(early.is_allowed(0));
        early.note(100, 500, 1000, 60);
        early.demand(200, 1001, 60);
        assert!(early.is_allowed(1001), "a quarter is tolerated");
        early.demand(201, 1059, 60);
        assert!(!early.is_allowed(1658) && early.is_allowed(1659));
        early.note(100, 500, 2000, 60);
        early.demand(500, 2060, 60);
        assert!(early.is_allowed(2060), "Δ is over");
        early.note(500, 500, 3000, 60);
        early.demand(1000, 3001, 60);
        assert!(early.is_allowed(3001), "nothing was early");
    }
}
