//! Configuration of a heap, and the defaults.

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Contiguous memory that was reserved before the heap began, for example a `HugeTLB` mapping
/// ([`crate::linux`] makes one). The heap serves requests from it first and falls back to
/// [`Os::reserve`](crate::Os::reserve) when none of it is left: the software side of a direct
/// segment (the Direct Segments paper) on hardware that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primary {
    /// The first address; what lies below a multiple of [`HUGE_BYTES`](crate::HUGE_BYTES) is not
    /// used.
    pub address: usize,
    /// Its bytes.
    pub bytes: usize,
    /// True if its huge pages can be given back. False for `HugeTLB` memory that is to stay the
    /// process's own: once used, it then counts as mapped for good.
    pub releasable: bool,
}

/// Configuration of a heap. Nothing here may be wrong: all values are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Memory that [`PageHeap::periodic`](crate::PageHeap::periodic) gives back at most, in bytes
    /// per second. 0: nothing. Adaptive Subrelease, section 4: 1 MB/s.
    pub release_rate: u64,
    /// Δ, in nanoseconds: memory that was used within this time is not broken off huge pages
    /// periodically. 0: the release rate alone decides. Adaptive Subrelease, section 4.1: 60 s.
    pub interval: u64,
    /// Retention of whole free huge pages, in nanoseconds: the cache keeps what demand within this
    /// time would need. 0, the default: they go back at the release rate, as step 1 of the policy
    /// says (Adaptive Subrelease, section 4), so that mapped memory may fall below the recent peak,
    /// by whole huge pages only. Longer than [`interval`](Self::interval) is the same as equal.
    pub cache_interval: u64,
    /// In addition, half of the free memory that the policy lets go goes back within this time, in
    /// nanoseconds: whole free huge pages as [`cache_interval`](Self::cache_interval) says, and
    /// what was not used within [`interval`](Self::interval). 0, the default: the rate alone, as in
    /// the paper.
    pub half_life: u64,
    /// With a half-life, what Δ is at first, in nanoseconds: memory that was not used within this
    /// time is given back early, also from partly used huge pages and, if it is more than the rest
    /// of the heap, at once. When demand comes back for it within [`interval`](Self::interval), it
    /// was a mistake, and `interval` holds for ten times as long as it is. A program that grows is
    /// never affected: its use within any time is the same. `u64::MAX`, the default: `interval`
    /// holds always.
    pub first_interval: u64,
    /// Time for which memory must be free before others can use it, in nanoseconds: the window of
    /// both measures of fragmentation. Adaptive Subrelease, section 2.3: 5 min.
    pub schedule: u64,
    /// Mapped bytes above which the heap gives back free memory at once, whatever the rate.
    /// `u64::MAX`: no such limit.
    pub soft_limit: u64,
    /// Mapped bytes that the heap never exceeds; requests that would fail. `u64::MAX`: no limit.
    pub hard_limit: u64,
    /// Free bytes in partly used huge pages from which on requests that would leave much of a huge
    /// page unused are served from regions. Our choice: 16 MB, below which the waste is not worth a
    /// region's.
    pub region_slack: u64,
    /// Number of broken huge pages with all of their memory that a call of
    /// [`PageHeap::periodic`](crate::PageHeap::periodic) asks the system to make whole. Our choice:
    /// 4, about a millisecond.
    pub collapses: u32,
    /// Memory that was reserved beforehand.
    pub primary: Option<Primary>,
}

impl Config {
    /// The defaults, as a constant.
    pub const DEFAULT: Self = Self {
        release_rate: 1 << 20,
        interval: 60 * SECOND,
        cache_interval: 0,
        half_life: 0,
        first_interval: u64::MAX,
        schedule: 300 * SECOND,
        soft_limit: u64::MAX,
        hard_limit: u64::MAX,
        region_slack: 16 << 20,
        collapses: 4,
        primary: None,
    };

    /// Nanoseconds for which peaks of use matter.
    pub(crate) const fn longest_interval(&self) -> u64 {
        if self.interval > self.cache_interval {
            self.interval
        } else {
            self.cache_interval
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}
