//! Pages of programs that a device reads and writes itself: direct I/O.

use contigua_frames::Move;
use contigua_units::{Cycles, Frame, PAGE_BYTES, VirtAddr, VirtRange};

use super::Kernel;
use crate::processors::Mmus;

impl Kernel {
    /// The frame of a page of the running process, if it is mapped.
    pub(crate) fn frame_of(&self, page: VirtAddr) -> Option<Frame> {
        let leaf = self.running().table().leaf(page)?;
        let inside = page.get() % leaf.size.bytes() / PAGE_BYTES;
        Some(leaf.frame.offset(inside as u32))
    }

    /// Lets a device hold the mapped pages of a range. Under Contiguitas each moves to the
    /// unmovable region first (article, "Unmovable Confinement"); one that cannot is transferred
    /// without. Returns the work of moving.
    pub(crate) fn pin_range(&mut self, range: VirtRange, mmu: &mut Mmus) -> Cycles {
        let mut moves = core::mem::take(&mut self.moves);
        let mut page = range.start.align_down(PAGE_BYTES);
        while page < range.end {
            let Some(leaf) = self.running().table().leaf(page) else {
                page = page + PAGE_BYTES;
                continue;
            };
            if !self.memory.is_zero(leaf)
                && !self.memory.is_pinned(leaf.frame)
                && let Ok(frame) = self.memory.pin(leaf.frame, &mut moves)
            {
                self.pinned.push(frame);
            }
            page = page.align_down(leaf.size.bytes()) + leaf.size.bytes();
        }
        self.follow_and_clear(moves, mmu)
    }

    /// The device lets go of what it holds. Returns the work of moving pages back.
    pub(crate) fn unpin_all(&mut self, mmu: &mut Mmus) -> Cycles {
        let mut moves = core::mem::take(&mut self.moves);
        while let Some(frame) = self.pinned.pop() {
            self.memory
                .unpin(frame, &mut moves)
                .expect("a page that was pinned in this call is allocated");
        }
        self.follow_and_clear(moves, mmu)
    }

    pub(super) fn follow_and_clear(&mut self, mut moves: Vec<Move>, mmu: &mut Mmus) -> Cycles {
        let work = self.follow(&moves, mmu);
        moves.clear();
        self.moves = moves;
        work
    }
}
