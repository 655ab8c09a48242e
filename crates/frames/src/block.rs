//! Pageblocks: what is known of each aligned 2 MB of memory.

use contigua_contiguity::FrameKind;
use contigua_units::{Frame, Order};

/// Frames of a pageblock.
pub const BLOCK_FRAMES: u32 = Order::HUGE_2M.frames();

/// Purpose of a pageblock's free frames (Linux, `include/linux/mmzone.h`). The type of a free frame
/// is that of the block it lies in, always (Linux 6.10 and later).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub enum MigrateType {
    /// Allocations that stay where they are.
    Unmovable,
    /// Allocations that can be moved.
    #[default]
    Movable,
    /// Kernel caches that can be dropped when memory is short.
    Reclaimable,
    /// Kept for requests that cannot wait and want more than one frame.
    HighAtomic,
    /// Taken out of use while the block is being emptied. Its free frames are on no list.
    Isolate,
}

impl MigrateType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Unmovable,
        Self::Movable,
        Self::Reclaimable,
        Self::HighAtomic,
        Self::Isolate,
    ];
    /// Types that have free lists: all but the last.
    pub(crate) const LISTED: usize = 4;
    /// Types that have per-CPU lists: the first three.
    pub(crate) const PER_CPU: usize = 3;
}

/// The state of one pageblock. Frames that are counted nowhere are reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct BlockRecord {
    /// Free frames, per-CPU ones included.
    pub(crate) free: u16,
    /// Frames in use that can be moved.
    pub(crate) movable: u16,
    /// Frames in use that stay.
    pub(crate) unmovable: u16,
    /// Those of them that are of a sort that hardware can move.
    pub(crate) in_use: u16,
    pub(crate) kind: MigrateType,
    /// The type before isolation.
    pub(crate) before: MigrateType,
    /// Compaction found nothing to gain here; forgotten when its scanners start over.
    pub(crate) skip: bool,
    /// In the first pageblock of a superpageblock: it was tainted when it was last looked at.
    pub(crate) tainted: bool,
}

impl BlockRecord {
    /// Purpose of the block's free frames.
    #[must_use]
    pub fn kind(&self) -> MigrateType {
        self.kind
    }

    /// Free frames.
    #[must_use]
    pub fn free(&self) -> u32 {
        u32::from(self.free)
    }

    /// Frames in use that can be moved.
    #[must_use]
    pub fn movable(&self) -> u32 {
        u32::from(self.movable)
    }

    /// Frames in use that stay.
    #[must_use]
    pub fn unmovable(&self) -> u32 {
        u32::from(self.unmovable)
    }

    /// Frames in use that stay, unless hardware moves them.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        u32::from(self.in_use)
    }

    pub(crate) fn count(&mut self, kind: FrameKind) -> Option<&mut u16> {
        match kind {
            FrameKind::Free => Some(&mut self.free),
            FrameKind::Movable => Some(&mut self.movable),
            FrameKind::Unmovable => Some(&mut self.unmovable),
            FrameKind::Reserved => None,
        }
    }
}

/// Number of the pageblock that a frame lies in.
#[inline]
pub(crate) fn block_of(frame: Frame) -> usize {
    (frame.get() / BLOCK_FRAMES) as usize
}

/// First frame of a pageblock.
pub(crate) fn first_frame(block: usize) -> Frame {
    Frame::new(block as u32 * BLOCK_FRAMES)
}

/// Pageblocks that a block of an order touches.
pub(crate) fn blocks_of(frame: Frame, order: Order) -> core::ops::Range<usize> {
    let first = block_of(frame);
    first..first + (order.frames().div_ceil(BLOCK_FRAMES)) as usize
}
