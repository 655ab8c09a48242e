//! The page of shared memory in which a process shows its heap's figures.
//!
//! The page is the mapping named [`NAME`] in `/proc/PID/maps`: an anonymous file, so that nothing
//! is left behind by a process that is killed. A reader opens `/proc/PID/mem` (or the file below
//! `/proc/PID/map_files`) at the mapping's beginning and copies [`Page`]. It is consistent if
//! `sequence` is even and the same before and after; it is written at most once a second.

/// What the mapping is called in `/proc/PID/maps` (the kernel puts `/memfd:` before it and
/// ` (deleted)` behind it).
pub const NAME: &str = "contigua-malloc";
/// The first word of the page: `CONTIGUA` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CONTIGUA");
/// The layout's version; fields are only ever added at the end.
pub const VERSION: u32 = 1;

macro_rules! page {
    ($($(#[$note:meta])* $name:ident,)*) => {
        /// The page's contents. All figures are in bytes, unless their name says otherwise.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Page {
            /// [`MAGIC`].
            pub magic: u64,
            /// [`VERSION`].
            pub version: u32,
            /// The number of figures.
            pub figures: u32,
            /// Odd while the page is being written.
            pub sequence: u64,
            $($(#[$note])* pub $name: u64,)*
        }

        impl Page {
            /// The names of all figures, in order.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// All figures with their names, in order.
            #[must_use]
            pub fn figures(&self) -> [(&'static str, u64); Self::NAMES.len()] {
                [$((stringify!($name), self.$name)),*]
            }
        }
    };
}

page! {
    /// When this was written, on the monotonic clock, in nanoseconds.
    nanoseconds,
    /// In small objects that the program has (with per-thread caches: or that threads cache).
    small_in_use,
    /// In large objects that the program has.
    large_in_use,
    /// Large objects that the program has (a number).
    large_objects,
    /// In caches of CPUs.
    cpu_cached,
    /// In transfer caches.
    transfer_cached,
    /// Free in spans of small objects.
    central_free,
    /// How often a cache was refilled or emptied (a number).
    misses,
    /// The page heap's pages in use.
    heap_used,
    /// The page heap's memory that is backed.
    heap_mapped,
    /// Of that, free: the fragmentation of the moment.
    heap_free_mapped,
    /// Addresses without memory.
    heap_unmapped,
    /// In whole free huge pages.
    heap_cached,
    /// Used, in huge pages that several allocations share.
    filler_used,
    /// Of that, in huge pages that are whole.
    filler_used_intact,
    /// Whole huge pages (a number).
    huge_intact,
    /// Huge pages that are backed in part (a number).
    huge_broken,
    /// Huge pages that were broken since the start (a number).
    broken_total,
    /// Largest use since the start.
    peak_used,
    /// Largest mapped memory since the start.
    peak_mapped,
    /// Largest use within the adaptive policy's interval.
    recent_peak_used,
    /// Fragmentation, averaged over the last five minutes.
    average_fragmentation,
    /// What was free throughout the last five minutes.
    realized_fragmentation,
    /// Releases that the adaptive policy withheld.
    skipped,
    /// Of those, needed again in time.
    skipped_correct,
    /// Of those, not needed.
    skipped_incorrect,
    /// Given back in whole huge pages since the start.
    released_whole,
    /// Given back in pieces of huge pages since the start.
    released_broken,
    /// Of both, because of a limit.
    released_for_limit,
    /// Requests that failed because of the hard limit (a number).
    limit_failures,
    /// Requests that failed for want of memory (a number).
    system_failures,
    /// In the allocator's own records, as far as the page heap counts them.
    metadata,
}
