//! Contiguitas' bias: which end of its region a request takes from.

use contigua_units::{Frame, Order};

use super::{End, Frames, UNMOVABLE};
use crate::block::{BLOCK_FRAMES, MigrateType};
use crate::lists::Discipline;
use crate::record::FrameClass;
use crate::request::Request;
use crate::storage::Storage;

impl<S: Storage> Frames<S> {
    /// Takes a block of the lists of a type, where in its region the request belongs.
    pub(crate) fn take_own(&mut self, home: MigrateType, request: &Request) -> Option<Frame> {
        match self.end_for(home, request) {
            End::Any => self.take_listed(home, request.order),
            End::Far => self.take_farthest(home, request.order),
            End::Near => self.take_nearest(request.order).or_else(|| {
                if request.order == Order::BASE {
                    // The border has to move for it.
                    self.requested += 1;
                    self.wake(UNMOVABLE, request.order);
                }
                self.take_listed(home, request.order)
            }),
        }
    }

    /// Returns true if what hardware can move and what it cannot take from two ends of the unmovable
    /// region.
    #[inline]
    pub(crate) fn is_sorted(&self) -> bool {
        let confinement = self.confinement.as_ref();
        confinement.is_some_and(|regions| regions.by_type)
    }

    /// The end of its region that a request takes from.
    #[inline]
    pub(super) fn end_for(&self, home: MigrateType, request: &Request) -> End {
        if request.long_lived {
            End::Far
        } else if home == MigrateType::Movable || !self.is_sorted() {
            End::Any
        } else if request.class.is_hardware_movable() {
            End::Near
        } else {
            End::Far
        }
    }

    /// Takes the block of a type that is farthest from the border, whatever its size: for memory
    /// that will be there when the border comes (the Contiguitas article, "Making Resizing Possible
    /// and Cheap").
    fn take_farthest(&mut self, kind: MigrateType, order: Order) -> Option<Frame> {
        if self.lists.discipline() == Discipline::Recency {
            return self.take_listed(kind, order);
        }
        let words = self.storage.parts().words;
        let blocks = self.lists.orders_from(kind, order);
        let blocks = blocks.filter_map(|have| Some((self.lists.next(words, kind, have)?, have)));
        let (block, have) = if kind == MigrateType::Movable {
            blocks.max_by_key(|(block, have)| block.offset(have.frames()))?
        } else {
            blocks.min_by_key(|(block, _)| *block)?
        };
        self.remove(block);
        Some(self.split_off(block, have, order))
    }

    /// Takes the unmovable block that is nearest to the border, whatever its size: of the window next
    /// to it only when nothing else is left, and nothing of what is kept for memory that not even
    /// hardware can move.
    pub(crate) fn take_nearest(&mut self, order: Order) -> Option<Frame> {
        let words = self.storage.parts().words;
        let floor = self.kept_far();
        let window = Frame::new(self.border.get() - self.window(UNMOVABLE) as u32);
        let highest = |end: Frame| {
            let orders = self.lists.orders_from(MigrateType::Unmovable, order);
            let blocks =
                orders.filter_map(|have| Some((self.lists.highest_below(words, have, end)?, have)));
            let highest = blocks.max_by_key(|(block, _)| *block);
            highest.filter(|(block, _)| *block >= floor)
        };
        let (block, have) = highest(window).or_else(|| highest(self.border))?;
        self.remove(block);
        Some(self.split_off(block, have, order))
    }

    /// End of what is kept, far from the border, for memory that not even hardware can move: a
    /// quarter more than there is of it.
    pub(crate) fn kept_far(&self) -> Frame {
        let classes = FrameClass::ALL.into_iter();
        let stay = classes.filter(|class| class.stays());
        let frames: u64 = stay.map(|class| self.by_class[class as usize]).sum();
        let kept = (frames + frames / 4).next_multiple_of(BLOCK_FRAMES.into());
        Frame::new(kept.min(self.border.get().into()) as u32)
    }

    /// Frames of a region next to the border that are used last.
    fn window(&self, region: usize) -> u64 {
        let confinement = self.confinement.as_ref();
        let percent = confinement.map_or(0, |regions| regions.window_percent);
        self.regions[region].frames() * u64::from(percent) / 100
    }

    /// Returns true if a block reaches into the part of its region next to the border that is used last.
    pub(super) fn is_near_border(&self, block: Frame, order: Order) -> bool {
        let region = self.region_of(block);
        let window = self.window(region);
        let border = u64::from(self.border.get());
        if region == 0 {
            u64::from(block.get()) >= border.saturating_sub(window)
        } else {
            u64::from(block.get() + order.frames()) <= border + window
        }
    }
}
