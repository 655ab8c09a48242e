//! Counters of memory's events since the start.

/// Makes the counters, their differences and their list.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of events. Each is incremented by one place in the code.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[cfg_attr(feature = "state", derive(contigua_state::Plain))]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Counts after `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }

            /// Counts of both.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name + other.$name,)* }
            }

            /// All counters by name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Blocks handed out.
    allocations,
    /// Blocks given back.
    frees,
    /// Requests for movable memory that got none.
    failures_movable,
    /// Requests for unmovable memory that got none.
    failures_unmovable,
    /// Batches that per-CPU lists took from the free lists.
    per_cpu_refills,
    /// Pageblocks that changed their type because a request of another type took them over.
    blocks_claimed,
    /// Requests served from a block of another type that kept its type.
    blocks_borrowed,
    /// Pageblocks kept for requests that cannot wait.
    blocks_reserved_high_atomic,
    /// Such pageblocks given up again.
    blocks_unreserved_high_atomic,
    /// Times that background reclaim was woken.
    background_reclaims,
    /// Requests that had to reclaim memory themselves.
    direct_reclaims,
    /// Frames that reclaim looked at.
    frames_scanned,
    /// Frames that reclaim freed in the background.
    frames_reclaimed_background,
    /// Frames that reclaim freed on the path of an allocation.
    frames_reclaimed_direct,
    /// Frames of kernel caches that reclaim freed.
    frames_shrunk,
    /// Frames that were read again after reclaim had taken them although they were in use.
    frames_refaulted,
    /// Runs of compaction in the background because a request had failed.
    background_compactions,
    /// Runs of compaction in the background because free memory was fragmented.
    proactive_compactions,
    /// Runs of compaction on the path of an allocation.
    direct_compactions,
    /// Runs of compaction that were put off because recent ones had failed.
    compactions_deferred,
    /// Frames that compaction moved in the background.
    frames_compacted_background,
    /// Frames that compaction moved on the path of an allocation.
    frames_compacted_direct,
    /// Ranges that were emptied to be allocated as a whole.
    contiguous_allocations,
    /// Ranges that could not be emptied.
    contiguous_failures,
    /// Frames moved out of isolated pageblocks, for the border or for such ranges.
    frames_moved_from_isolated,
    /// Blocks pinned.
    pins,
    /// Blocks moved into the unmovable region to be pinned.
    pin_migrations,
    /// Expansions of the unmovable region.
    expansions,
    /// Shrinkings of the unmovable region.
    shrinks,
    /// Pageblocks that changed sides.
    blocks_resized,
    /// Shrinkings that ended early at a frame that cannot be moved.
    shrinks_blocked,
    /// Those of them that ended at a frame that the kernel reaches through its linear map, which not
    /// even hardware can move.
    shrinks_blocked_by_kernel,
    /// Those of them that ended at frames that hardware could have moved, and software cannot.
    shrinks_blocked_by_devices,
    /// Frames moved to let the border pass.
    frames_moved_by_resizes,
    /// Frames moved by hardware while in use.
    frames_moved_by_hardware,
    /// Movable frames moved out of the unmovable region.
    frames_evacuated,
    /// Resizes that ran on the path of an allocation. Always 0: that is the design.
    resizes_in_allocations,
}
