//! Statistics of the heap.

/// Result of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Bytes that the release rate allowed.
    pub requested: u64,
    /// Bytes of huge pages that were entirely free.
    pub whole: u64,
    /// Bytes of free pages in partly used huge pages.
    pub subreleased: u64,
    /// Bytes that could have been given back and were not, because they were used lately.
    pub withheld: u64,
    /// Broken huge pages that were made whole.
    pub collapsed: u32,
}

impl Released {
    /// Bytes that were given back.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.whole + self.subreleased
    }
}

/// The heap's figures. Bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// In allocations.
    pub used: u64,
    /// Backed with memory: used, or free and not given back. What the process would occupy if it
    /// touched all that it allocated.
    pub mapped: u64,
    /// Backed and not used: the fragmentation of this moment.
    pub free_mapped: u64,
    /// Addresses without memory.
    pub unmapped: u64,
    /// Addresses reserved, `mapped + unmapped`.
    pub reserved: u64,
    /// In whole free huge pages that are backed, a part of `free_mapped`.
    pub cached: u64,
    /// Used, in huge pages that several allocations share: what
    /// [`coverage`](Self::coverage) is about.
    pub filler_used: u64,
    /// Of that, used in huge pages that were never broken, or are whole again.
    pub filler_used_intact: u64,
    /// Huge pages that are backed and whole (a number).
    pub huge_intact: u64,
    /// Huge pages that are backed in part, or were and are not whole again (a number).
    pub huge_broken: u64,
    /// Huge pages that were broken since the start (a number).
    pub broken_total: u64,
    /// Broken huge pages that were made whole by the system since the start (a number).
    pub collapsed_total: u64,
    /// Largest `used` since the start.
    pub peak_used: u64,
    /// Largest `mapped` since the start.
    pub peak_mapped: u64,
    /// Largest `used` within Δ.
    pub recent_peak_used: u64,
    /// `free_mapped` averaged over the last [`schedule`](crate::Config::schedule) (the adaptive
    /// subrelease paper, section 3.1).
    pub average_fragmentation: u64,
    /// Smallest `free_mapped` of the last [`schedule`](crate::Config::schedule): what another
    /// program could have had for that long (Adaptive Subrelease, section 3.2).
    pub realized_fragmentation: u64,
    /// Withheld by the adaptive policy since the start (Adaptive Subrelease, section 4.2).
    pub skipped: u64,
    /// Of that, needed again within Δ.
    pub skipped_correct: u64,
    /// Of that, not needed within Δ.
    pub skipped_incorrect: u64,
    /// Of that, not decided yet.
    pub skipped_open: u64,
    /// Asked of the system in whole huge pages since the start: a huge fault for each when touched.
    pub backed_total: u64,
    /// Allocated after it had been given back in pieces, since the start: a minor fault for each
    /// small page when touched.
    pub refaulted: u64,
    /// Given back since the start: whole free huge pages.
    pub released_whole: u64,
    /// Given back since the start: pieces of partly used huge pages.
    pub released_broken: u64,
    /// Of both, because of a limit.
    pub released_for_limit: u64,
    /// Requests that failed because of the hard limit (a number).
    pub limit_failures: u64,
    /// Requests that failed because the system had no memory or addresses (a number).
    pub system_failures: u64,
    /// Bytes of the heap's own records.
    pub metadata: u64,
}

impl Statistics {
    /// Share of the filler's used memory that lies in unbroken huge pages, 0 to 1; 1 if there is
    /// none (Adaptive Subrelease, section 3.4: memory outside the filler is excluded).
    #[must_use]
    pub fn coverage(&self) -> f64 {
        if self.filler_used == 0 {
            1.0
        } else {
            self.filler_used_intact as f64 / self.filler_used as f64
        }
    }
}

/// The heap in one epoch, or in several in a row in which nothing changed (Adaptive Subrelease,
/// figure 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// When it ended, in nanoseconds of [`Os::now`](crate::Os::now).
    pub end: u64,
    /// Duration in nanoseconds.
    pub duration: u64,
    /// Least and largest use, bytes.
    pub used: [u64; 2],
    /// Least and largest free and mapped memory, bytes.
    pub free_mapped: [u64; 2],
}

/// Inconsistency found by [`PageHeap::validate`](crate::PageHeap::validate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inconsistency {
    /// The rule that does not hold.
    pub rule: &'static str,
    /// The huge page where it does not, or 0.
    pub address: usize,
    /// Value of the slow count.
    pub counted: u64,
    /// Value of the heap's counter.
    pub recorded: u64,
}

impl core::fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            rule,
            address,
            counted,
            recorded,
        } = self;
        write!(
            f,
            "{rule}: {recorded} recorded, {counted} counted, at {address:#x}"
        )
    }
}

impl core::error::Error for Inconsistency {}
