//! Statistics of the allocator.

use contigua_contiguity::{Contiguity, FrameKind, Scan};
use contigua_units::{Frame, Order};

use super::Frames;
use crate::block::{BLOCK_FRAMES, BlockRecord, MigrateType};
use crate::counters::Counters;
use crate::policies::Placement;
use crate::pressure::Pressure;
use crate::record::FrameClass;
use crate::storage::Storage;

impl<S: Storage> Frames<S> {
    /// Free blocks on the list of a type and order; what CPUs keep at hand is on none.
    ///
    /// # Panics
    /// For [`MigrateType::Isolate`], which has no lists, and orders above 10.
    #[must_use]
    pub fn listed(&self, kind: MigrateType, order: Order) -> u32 {
        self.lists.length(kind, order)
    }

    /// All frames.
    #[must_use]
    pub fn total(&self) -> u64 {
        u64::from(self.total)
    }

    /// Free frames, those that CPUs keep at hand included.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.free
    }

    /// Frames in use for a class; for [`FrameClass::Free`], those that are free.
    #[must_use]
    pub fn frames_of(&self, class: FrameClass) -> u64 {
        match class {
            FrameClass::Free => self.free,
            class => self.by_class[class as usize],
        }
    }

    /// Returns true if there is a free block of at least `order`, at most 10, for movable memory:
    /// under confinement, in the movable region.
    #[must_use]
    pub fn has_free_block(&self, order: Order) -> bool {
        self.has_free_block_in(self.region_for(MigrateType::Movable), order)
    }

    /// Percentage of the free memory for movable pages that is in no block of 2 MB: the free memory fragmentation index
    /// (Linux's `extfrag_for_order`).
    #[must_use]
    pub fn fragmentation_of_free(&self) -> u64 {
        self.fragmentation(self.region_for(MigrateType::Movable))
    }

    /// Blocks, free and allocated, in address order: class, first frame, frames.
    pub fn blocks(&self) -> impl Iterator<Item = (FrameClass, Frame, u32)> + '_ {
        let mut at = 0_usize;
        core::iter::from_fn(move || {
            let record = self.storage.parts().frames.get(at)?;
            let frame = Frame::new(at as u32);
            let frames = record.order().frames();
            at += frames as usize;
            Some((record.class(), frame, frames))
        })
    }

    /// The pageblocks in address order.
    pub fn pageblocks(&self) -> &[BlockRecord] {
        self.storage.parts().blocks
    }

    /// Contiguity of memory. What hardware can move while it is in use counts as movable.
    #[must_use]
    pub fn contiguity(&self) -> Contiguity {
        let mut scan = Scan::new();
        let mut left = self.total;
        for block in self.pageblocks() {
            let frames = left.min(BLOCK_FRAMES);
            left -= frames;
            let used = block.free() + block.movable() + block.unmovable();
            scan.push(FrameKind::Reserved, u64::from(frames - used));
            let moves = if self.moves_in_use() { block.in_use } else { 0 };
            scan.push(FrameKind::Free, block.free.into());
            scan.push(FrameKind::Movable, (block.movable + moves).into());
            scan.push(FrameKind::Unmovable, (block.unmovable - moves).into());
        }
        scan.finish()
    }

    /// Counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Time that tasks had to wait.
    #[must_use]
    pub fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    /// The placement policy.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// First frame of the movable region, where there are regions.
    #[must_use]
    pub fn border(&self) -> Option<Frame> {
        self.confinement.as_ref().map(|_| self.border)
    }
}
