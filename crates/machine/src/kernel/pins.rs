//! Pages of programs that others hold: a device reads and writes them itself (direct I/O), or they lie
//! in a pipe (`vmsplice`).
//!
//! Simplified: all pipes are one, that has [`PIPE_PAGES`] pages; a page leaves it when as much was
//! read, when others need its place, or when the program unmaps it.

use std::collections::VecDeque;

use contigua_frames::Move;
use contigua_paging::{Leaf, SpaceId};
use contigua_units::{Cycles, Frame, PAGE_BYTES, VirtAddr, VirtRange};

use super::Kernel;
use crate::processors::Mmus;

/// Pages that a pipe has room for (`PIPE_DEF_BUFFERS`, `include/linux/pipe_fs_i.h`).
const PIPE_PAGES: usize = 16;

/// A page of a program in a pipe: it may be split there.
#[derive(Clone, Copy, PartialEq, Eq, contigua_state::Plain)]
struct Lent {
    space: SpaceId,
    page: VirtRange,
    /// Bytes of it that are left to read.
    bytes: u64,
}

/// The pages in pipes, the oldest first.
#[derive(Default, contigua_state::Plain)]
pub(super) struct Pipe {
    lent: VecDeque<Lent>,
}

impl Pipe {
    /// A space ends, and its pages with it.
    pub(super) fn forget(&mut self, space: SpaceId) {
        self.lent.retain(|lent| lent.space != space);
    }
}

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
            if let Some(frame) = self.pin(leaf, &mut moves) {
                self.pinned.push(frame);
            }
            page = page.align_down(leaf.size.bytes()) + leaf.size.bytes();
        }
        self.follow_and_clear(moves, mmu)
    }

    fn pin(&mut self, leaf: Leaf, moves: &mut Vec<Move>) -> Option<Frame> {
        if self.memory.is_zero(leaf) || self.memory.is_pinned(leaf.frame) {
            return None;
        }
        self.memory.pin(leaf.frame, moves).ok()
    }

    /// Puts the mapped pages of a range into a pipe, which holds them; under Contiguitas each moves
    /// to the unmovable region first. Returns the work of moving.
    pub(crate) fn lend(&mut self, range: VirtRange, mmu: &mut Mmus) -> Cycles {
        let mut moves = core::mem::take(&mut self.moves);
        let mut at = range.start;
        while at < range.end {
            let leaf = self.running().table().leaf(at.align_down(PAGE_BYTES));
            let size = leaf.map_or(PAGE_BYTES, |leaf| leaf.size.bytes());
            let page = VirtRange::with_length(at.align_down(size), size);
            let end = range.end.min(page.end);
            if let Some(leaf) = leaf {
                if self.pipe.lent.len() == PIPE_PAGES {
                    self.let_go_of_oldest(&mut moves);
                }
                self.pin(leaf, &mut moves);
                self.pipe.lent.push_back(Lent {
                    space: self.current,
                    page,
                    bytes: end - at,
                });
            }
            at = end;
        }
        self.follow_and_clear(moves, mmu)
    }

    /// Somebody has read so many bytes from a pipe. Returns the work of moving pages back.
    pub(crate) fn read_pipe(&mut self, mut bytes: u64, mmu: &mut Mmus) -> Cycles {
        let mut moves = core::mem::take(&mut self.moves);
        while let Some(oldest) = self.pipe.lent.front_mut() {
            if oldest.bytes > bytes {
                oldest.bytes -= bytes;
                break;
            }
            bytes -= oldest.bytes;
            self.let_go_of_oldest(&mut moves);
        }
        self.follow_and_clear(moves, mmu)
    }

    fn let_go_of_oldest(&mut self, moves: &mut Vec<Move>) {
        let Some(lent) = self.pipe.lent.pop_front() else {
            return;
        };
        let Some(space) = &self.spaces[usize::from(lent.space.0)] else {
            return;
        };
        for (page, leaf) in space.table().pages(lent.page) {
            let holds = |other: &Lent| other.space == lent.space && other.page.contains(page);
            if self.memory.is_pinned(leaf.frame) && !self.pipe.lent.iter().any(holds) {
                self.memory
                    .unpin(leaf.frame, moves)
                    .expect("a frame that a page maps is allocated");
            }
        }
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
