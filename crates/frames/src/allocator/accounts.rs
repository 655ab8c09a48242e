//! Counts of frames by class, and by what can be done with them in each pageblock.

use contigua_contiguity::FrameKind;
use contigua_units::{Frame, Order};

use super::Frames;
use crate::block::{BLOCK_FRAMES, blocks_of};
use crate::record::FrameRecord;
use crate::storage::Storage;

impl<S: Storage> Frames<S> {
    /// Counts a block's frames as of another kind, in the pageblocks that it touches.
    pub(crate) fn recount(&mut self, frame: Frame, order: Order, from: FrameKind, to: FrameKind) {
        let frames = order.frames().min(BLOCK_FRAMES) as u16;
        let blocks = self.storage.parts_mut().blocks;
        for block in &mut blocks[blocks_of(frame, order)] {
            if let Some(count) = block.count(from) {
                *count -= frames;
            }
            if let Some(count) = block.count(to) {
                *count += frames;
            }
        }
    }

    /// Counts a block's frames as of a sort that hardware can move, or not any more.
    pub(crate) fn recount_in_use(&mut self, frame: Frame, order: Order, is_in_use: bool) {
        let frames = order.frames().min(BLOCK_FRAMES) as u16;
        let blocks = self.storage.parts_mut().blocks;
        for block in &mut blocks[blocks_of(frame, order)] {
            if is_in_use {
                block.in_use += frames;
            } else {
                block.in_use -= frames;
            }
        }
    }

    /// Accounts for a block that is in use from now on.
    #[inline]
    pub(crate) fn account_block(&mut self, frame: Frame, record: &FrameRecord) {
        let order = record.order();
        self.free -= u64::from(order.frames());
        self.by_class[record.class() as usize] += u64::from(order.frames());
        self.recount(frame, order, FrameKind::Free, record.kind());
        if record.is_in_use_movable() {
            self.recount_in_use(frame, order, true);
        }
    }

    #[inline]
    pub(crate) fn account_freed(&mut self, frame: Frame, record: &FrameRecord) {
        let order = record.order();
        self.free += u64::from(order.frames());
        self.by_class[record.class() as usize] -= u64::from(order.frames());
        self.recount(frame, order, record.kind(), FrameKind::Free);
        if record.is_in_use_movable() {
            self.recount_in_use(frame, order, false);
        }
    }

    pub(crate) fn account_moved(&mut self, from: Frame, to: Frame, record: &FrameRecord) {
        self.recount(from, record.order(), record.kind(), FrameKind::Free);
        self.recount(to, record.order(), FrameKind::Free, record.kind());
        if record.is_in_use_movable() {
            self.recount_in_use(from, record.order(), false);
            self.recount_in_use(to, record.order(), true);
        }
    }
}
