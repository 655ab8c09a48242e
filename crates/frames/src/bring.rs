//! Bringing a block to a given place: it is moved there where that is free, or exchanged with what is there
//! (Translation Ranger: Yan, Lustig, Nellans and Bhattacharjee, ISCA 2019; its `mm/mem_defrag.c` and `mm/exchange.c`).

use core::ops::Range;

use contigua_units::{Frame, Order};

use crate::Error;
use crate::allocator::Frames;
use crate::block::{BlockRecord, MigrateType, blocks_of};
use crate::moving::{Move, Moves};
use crate::policies::PlacementPolicy;
use crate::record::{FrameClass, FrameRecord, Owner, Role};
use crate::request::Request;
use crate::storage::Storage;

/// A block is in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// The place was free.
    Moved,
    /// The block that was there is where this one was.
    Exchanged,
}

/// Why a block stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The block cannot move, or has several users.
    Source,
    /// The place lies outside of memory, or across the border from where such pages belong.
    Outside,
    /// The place is free or in use in parts of another size.
    Unlike,
    /// Something is there that does not move.
    Unmovable,
}

impl<S: Storage> Frames<S> {
    /// Frames among which pages of a class belong.
    #[must_use]
    pub fn home(&self, class: FrameClass) -> Range<Frame> {
        let home = self.placement.home(&Request::new(Order::BASE, class));
        let region = &self.regions[self.region_for(home)];
        region.start..region.end
    }

    /// Brings an allocated block of at most order 10, which is in no group, to a place. Watermarks and types of
    /// pageblocks do not count (`isolate_free_page_no_wmark`). Moves of blocks that have owners are told of.
    ///
    /// # Errors
    /// The [`Obstacle`]; nothing has changed then.
    pub fn bring(
        &mut self,
        from: Frame,
        to: Frame,
        moves: &mut dyn Moves,
    ) -> Result<Brought, Obstacle> {
        let ours = self.allocated(from).ok();
        let ours = ours.filter(|block| block.can_move() && block.group().is_none());
        let ours = ours.ok_or(Obstacle::Source)?;
        let order = ours.order();
        if order > Order::BUDDY_MAX || from == to {
            return Err(Obstacle::Source);
        }
        let home = self.home(ours.class());
        let end = u64::from(to.get()) + u64::from(order.frames());
        if to < home.start || end > u64::from(home.end.get()) {
            return Err(Obstacle::Outside);
        }
        let blocks = &self.pageblocks()[blocks_of(to, order)];
        let isolated = |block: &BlockRecord| block.kind == MigrateType::Isolate;
        if !to.is_aligned(order) || blocks.iter().any(isolated) {
            return Err(Obstacle::Unlike);
        }
        let stays = |block: &BlockRecord| block.unmovable() > 0;
        if order >= Order::HUGE_2M && blocks.iter().any(stays) {
            return Err(Obstacle::Unmovable);
        }
        if self.storage.parts().frames[to.index()].role() == Role::PerCpu {
            self.drain_per_cpu();
        }
        if let Some((block, have)) = self.free_block_around(to) {
            if have < order {
                return Err(Obstacle::Unlike);
            }
            self.remove(block);
            self.carve(block, have, to, order);
            self.move_block(from, to, moves);
            return Ok(Brought::Moved);
        }
        let theirs = self.storage.parts().frames[to.index()];
        if theirs.role() != Role::Allocated {
            // A part of a larger block.
            let around = self.large_block_around(to);
            return Err(around.map_or(Obstacle::Unmovable, |_| Obstacle::Unlike));
        }
        if !theirs.can_move() {
            return Err(Obstacle::Unmovable);
        }
        if theirs.order() != order {
            return Err(Obstacle::Unlike);
        }
        self.exchange(from, to, moves);
        Ok(Brought::Exchanged)
    }

    /// Exchanges two movable blocks of one order, the first of which is in no group.
    fn exchange(&mut self, from: Frame, to: Frame, moves: &mut dyn Moves) {
        let parts = self.storage.parts_mut();
        let (ours, theirs) = (parts.frames[from.index()], parts.frames[to.index()]);
        parts.frames[from.index()] = theirs;
        parts.frames[to.index()] = ours;
        if let Some(group) = theirs.group() {
            parts.groups[usize::from(group.0)]
                .chain
                .replace(parts.frames, to, from);
        }
        let order = ours.order();
        for (record, from, to) in [(ours, from, to), (theirs, to, from)] {
            if let Some(owner) = record.owner() {
                moves.push(Move {
                    owner,
                    from,
                    to,
                    order,
                });
            }
        }
    }

    /// The allocated block of more than one frame around a frame, if it can move, and its owner.
    #[must_use]
    pub fn large_block_around(&self, frame: Frame) -> Option<(Frame, Option<Owner>)> {
        let orders = (1..=Order::BUDDY_MAX.get()).map(Order::new);
        orders.into_iter().find_map(|order| {
            let head = frame.align_down(order);
            let block = self.allocated(head).ok()?;
            let covers = frame.get() - head.get() < block.order().frames();
            let found = covers && block.order() > Order::BASE && block.can_move();
            found.then(|| (head, block.owner()))
        })
    }

    /// Makes one block of single frames that hold consecutive pages of one owner. The undoing of [`Frames::split_to`].
    ///
    /// # Errors
    /// [`Error::NotAllocated`] where one of them is not such a frame, or cannot move; nothing has changed then.
    pub fn unite(&mut self, frame: Frame, order: Order) -> Result<(), Error> {
        let first = self.allocated(frame)?;
        let owner = first.owner().ok_or(Error::NotAllocated(frame))?;
        if !frame.is_aligned(order) {
            return Err(Error::NotAllocated(frame));
        }
        for i in 0..order.frames() {
            let part = self.allocated(frame.offset(i))?;
            let page = owner.page.get() + u64::from(i);
            let follows = part.owner().is_some_and(|other| {
                other
                    == Owner {
                        page: contigua_units::VirtPage::new(page),
                        ..owner
                    }
            });
            if !follows
                || !part.can_move()
                || part.order() != Order::BASE
                || part.class() != first.class()
            {
                return Err(Error::NotAllocated(frame.offset(i)));
            }
        }
        let frames = self.storage.parts_mut().frames;
        for i in 1..order.frames() {
            frames[frame.offset(i).index()] = FrameRecord::default();
        }
        frames[frame.index()].set_order(order);
        Ok(())
    }
}
