//! Groups: the blocks of one user, in the order in which they were put there.
//!
//! A group is all that a simulated tenant, a cache or a queue needs to know of its memory, and it
//! costs nothing beyond the records of the frames. Groups of page cache are the LRU lists that
//! reclaim works on.

use crate::chain::Chain;

/// Treatment of a group's blocks by reclaim when memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub enum Evict {
    /// Nothing.
    #[default]
    Never,
    /// Drop them, the oldest first: contents of files.
    File,
    /// Write them to swap, the oldest first: anonymous memory.
    Swap,
    /// Ask their owner to drop some: kernel caches.
    Shrink,
}

/// One group.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct GroupRecord {
    pub(crate) chain: Chain,
    pub(crate) frames: u32,
    /// Frames that reclaim took although they had been used again (Linux's shadow entries,
    /// `mm/workingset.c`).
    pub(crate) evicted: u32,
    pub(crate) evict: Evict,
}
