//! Physical memory as address spaces see it: frames, hole bitmaps, and huge pages set aside.

use std::collections::HashSet;
use std::ops::{Deref, DerefMut};

use contigua_frames::{Boxed, FrameClass, Frames, Move, Moves, Request};
use contigua_units::{Frame, Order, PageSize};

use crate::holes::HoleBitmaps;

/// The frames of a simulated machine, with what lies beside them.
#[derive(Clone, contigua_state::State)]
pub struct Memory {
    frames: Frames<Boxed>,
    /// Holes of perforated pages, for each 2 MB.
    pub holes: HoleBitmaps,
    pool: Pool,
}

/// Huge pages that were set aside at boot (Linux's `hugetlbfs` pool). They go back to it when their
/// mapping ends.
#[derive(Clone, Debug, Default, contigua_state::Plain)]
struct Pool {
    pages_2m: Vec<Frame>,
    pages_1g: Vec<Frame>,
    /// Every page of the pool, in use or not.
    members: HashSet<Frame>,
}

impl Pool {
    fn of(&mut self, size: PageSize) -> Option<&mut Vec<Frame>> {
        match size {
            PageSize::Size4K => None,
            PageSize::Size2M => Some(&mut self.pages_2m),
            PageSize::Size1G => Some(&mut self.pages_1g),
        }
    }
}

impl Memory {
    /// Sets huge pages of a size aside; how many there was room for. Pages of 1 GB are made by
    /// emptying ranges, which moves what is in them.
    pub fn reserve_huge(&mut self, size: PageSize, pages: u64, moves: &mut dyn Moves) -> u64 {
        let class = FrameClass::Anonymous;
        for made in 0..pages {
            let frame = match size {
                PageSize::Size4K => None,
                PageSize::Size2M => self.frames.allocate(&Request::new(Order::HUGE_2M, class)),
                PageSize::Size1G => self.frames.allocate_contiguous(size.order(), class, moves),
            };
            let (Some(frame), Some(pool)) = (frame, self.pool.of(size)) else {
                return made;
            };
            pool.push(frame);
            self.pool.members.insert(frame);
        }
        pages
    }

    /// A huge page from those set aside.
    pub(crate) fn take_reserved(&mut self, size: PageSize) -> Option<Frame> {
        self.pool.of(size)?.pop()
    }

    /// Gives a whole huge page back: to the pool when it came from there.
    pub(crate) fn return_reserved(&mut self, frame: Frame, size: PageSize) -> bool {
        if !self.pool.members.contains(&frame) || self.frames.references(frame) != 1 {
            return false;
        }
        let Some(pool) = self.pool.of(size) else {
            return false;
        };
        pool.push(frame);
        // Whoever compacts memory must not take it for the page that it was.
        let _ = self.frames.set_owner(frame, None);
        true
    }

    /// A page is split, so that it cannot go back to the pool whole.
    pub(crate) fn forget_reserved(&mut self, frame: Frame) {
        self.pool.members.remove(&frame);
    }

    /// A page of the pool that moves stays one.
    pub fn follow_reserved(&mut self, moved: &Move) {
        if self.pool.members.remove(&moved.from) {
            self.pool.members.insert(moved.to);
        }
    }

    /// Huge pages that are set aside and not in use.
    #[must_use]
    pub fn reserved_huge(&self, size: PageSize) -> u64 {
        match size {
            PageSize::Size4K => 0,
            PageSize::Size2M => self.pool.pages_2m.len() as u64,
            PageSize::Size1G => self.pool.pages_1g.len() as u64,
        }
    }
}

impl From<Frames<Boxed>> for Memory {
    fn from(frames: Frames<Boxed>) -> Self {
        Self {
            holes: HoleBitmaps::new(frames.total()),
            pool: Pool::default(),
            frames,
        }
    }
}

impl Deref for Memory {
    type Target = Frames<Boxed>;

    fn deref(&self) -> &Self::Target {
        &self.frames
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.frames
    }
}
