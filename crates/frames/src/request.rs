//! Requests to the allocator.

use contigua_units::Order;

use crate::record::{FrameClass, Group};

/// Whom a request wakes when memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakes {
    /// Background reclaim (`__GFP_KSWAPD_RECLAIM`).
    Kswapd,
    /// No thread.
    Nobody,
}

/// Request for a block.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Order of the block: at most 10.
    pub order: Order,
    /// Use of the block.
    pub class: FrameClass,
    /// The memory does not move, but is reclaimed when memory is short: kernel caches.
    pub reclaimable: bool,
    /// It will be in use for as long as the server runs.
    pub long_lived: bool,
    /// The requester cannot wait, and may use what is kept for such requests.
    pub atomic: bool,
    /// Reclaim and compaction have found no block for it; if it fails, the OOM killer runs.
    pub last_resort: bool,
    /// Whom it wakes when memory is short.
    pub wakes: Wakes,
    /// The group that the block is put in.
    pub group: Option<Group>,
}

impl Request {
    /// An ordinary request.
    #[must_use]
    pub const fn new(order: Order, class: FrameClass) -> Self {
        Self {
            order,
            class,
            reclaimable: false,
            long_lived: false,
            atomic: false,
            last_resort: false,
            wakes: Wakes::Kswapd,
            group: None,
        }
    }
}
