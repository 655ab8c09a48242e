//! Emptying a pageblock of what only hardware can move, while it is in use.
//!
//! The allocator says which block is to go where, and is told when it is there. Who moves it and
//! in what time is the caller's: [`Frames::next_relocation`] is asked when the migration table has
//! free entries, [`Frames::end_relocation`] follows when the source is nobody's any more. The
//! pageblock is isolated meanwhile, so that nothing new comes into it.

use contigua_contiguity::FrameKind;
use contigua_units::{Frame, Order};

use crate::allocator::{Frames, UNMOVABLE};
use crate::block::{BLOCK_FRAMES, MigrateType, block_of, first_frame};
use crate::clearing::{Clearing, Relocation};
use crate::moving::{Move, Moves};
use crate::policies::PlacementPolicy;
use crate::record::{FrameClass, FrameRecord, Role};
use crate::request::Request;
use crate::storage::Storage;

/// Times that a pageblock is gone through before it is given up.
const MOST_PASSES: u32 = 3;

impl<S: Storage> Frames<S> {
    /// Returns true if hardware moves blocks that are in use.
    #[must_use]
    pub fn moves_in_use(&self) -> bool {
        let confinement = self.confinement.as_ref();
        confinement.is_some_and(|confinement| confinement.hardware_migration)
    }

    /// Returns true while hardware empties a pageblock.
    #[must_use]
    pub fn is_clearing(&self) -> bool {
        self.clearing.is_some()
    }

    /// Begins to empty a pageblock; says whether it did.
    pub(crate) fn begin_clearing(&mut self, number: usize, shrinks_to: Option<usize>) -> bool {
        if self.clearing.is_some() || !self.moves_in_use() || !self.is_clearable(number) {
            return false;
        }
        if !self.make_room_beside(number) {
            return false;
        }
        let block = self.pageblocks()[number];
        self.isolate(number);
        self.clearing = Some(Clearing {
            number,
            looked_at: 0,
            passes: 1,
            under_way: 0,
            used: block.movable() + block.unmovable(),
            shrinks_to,
            ends: false,
        });
        true
    }

    /// Returns true if everything in a pageblock can move and nothing reaches beyond it.
    fn is_clearable(&self, number: usize) -> bool {
        let block = self.pageblocks()[number];
        let is_whole = block.free() + block.movable() + block.unmovable() == BLOCK_FRAMES;
        if !is_whole || block.unmovable != block.in_use {
            return false;
        }
        let first = first_frame(number);
        let mut at = 0;
        while at < BLOCK_FRAMES {
            let record = self.storage.parts().frames[first.offset(at).index()];
            let moves = match record.role() {
                Role::Free => true,
                Role::Allocated => {
                    record.order() <= Order::HUGE_2M
                        && (record.can_move() || record.can_move_in_use())
                }
                Role::Inside | Role::PerCpu => false,
            };
            if !moves {
                return false;
            }
            at += record.order().frames();
        }
        true
    }

    /// The next block that hardware has to move, with a block that was taken for it. What software
    /// can move goes at once. `None` when nothing is to be moved now.
    pub fn next_relocation(&mut self, moves: &mut dyn Moves) -> Option<Relocation> {
        loop {
            let clearing = self.clearing.filter(|clearing| !clearing.ends)?;
            if clearing.looked_at >= BLOCK_FRAMES {
                if clearing.under_way > 0 {
                    return None;
                }
                self.advance_clearing(moves);
                continue;
            }
            let from = first_frame(clearing.number).offset(clearing.looked_at);
            let record = self.storage.parts().frames[from.index()];
            match record.role() {
                Role::Free => self.look_past(from, record.order()),
                Role::Inside => match self.free_block_around(from) {
                    // What moved before has merged with free memory around it.
                    Some((block, order)) => self.look_past(block, order),
                    None => self.end_clearing(),
                },
                Role::Allocated if record.can_move_in_use() => {
                    self.look_past(from, record.order());
                    if let Some(to) = self.take_for(from, &record) {
                        if let Some(clearing) = &mut self.clearing {
                            clearing.under_way += 1;
                        }
                        let order = record.order();
                        return Some(Relocation { from, to, order });
                    }
                    self.end_clearing();
                }
                Role::Allocated if record.can_move() => {
                    self.look_past(from, record.order());
                    let Some(to) = self.take_listed(MigrateType::Movable, record.order()) else {
                        self.end_clearing();
                        continue;
                    };
                    self.move_block(from, to, moves);
                }
                Role::Allocated | Role::PerCpu => self.end_clearing(),
            }
        }
    }

    fn look_past(&mut self, block: Frame, order: Order) {
        if let Some(clearing) = &mut self.clearing {
            let end = block.get() + order.frames();
            let first = first_frame(clearing.number).get();
            clearing.looked_at = (end - first).min(BLOCK_FRAMES);
        }
    }

    /// Takes a block like one that hardware is to move, deeper in the region.
    fn take_for(&mut self, from: Frame, record: &FrameRecord) -> Option<Frame> {
        let is_sorted = self.is_sorted();
        let to = if is_sorted {
            self.take_nearest(record.order())
        } else {
            let request = Request::new(Order::BASE, FrameClass::NetworkBuffer);
            self.take_listed(self.placement.home(&request), record.order())
        }?;
        let is_shrinking = self.clearing.is_some_and(|c| c.shrinks_to.is_some());
        if to > from && (is_shrinking || !is_sorted) {
            self.give(to, record.order());
            return None;
        }
        let mut taken = FrameRecord::allocated(record.order(), record.class());
        taken.set_pinned(record.is_pinned());
        self.storage.parts_mut().frames[to.index()] = taken;
        self.account_block(to, &taken);
        Some(to)
    }

    /// A block is where it was to go, and its source is nobody's any more. If it was freed, or
    /// became another one, on its way, what was taken for it is given back.
    pub fn end_relocation(&mut self, relocation: &Relocation, moves: &mut dyn Moves) {
        self.settle_relocation(relocation, true, moves);
    }

    /// A block stays where it is, although it was to move: it was not begun.
    pub fn abandon_relocation(&mut self, relocation: &Relocation, moves: &mut dyn Moves) {
        self.settle_relocation(relocation, false, moves);
    }

    fn settle_relocation(
        &mut self,
        relocation: &Relocation,
        has_moved: bool,
        moves: &mut dyn Moves,
    ) {
        let Relocation { from, to, order } = *relocation;
        let parts = self.storage.parts_mut();
        let (old, new) = (parts.frames[from.index()], parts.frames[to.index()]);
        let goes_on = has_moved
            && old.can_move_in_use()
            && (old.order(), old.class(), old.is_pinned()) == (order, new.class(), new.is_pinned());
        let empty = if goes_on {
            parts.frames[to.index()] = old;
            if let Some(group) = old.group() {
                parts.groups[usize::from(group.0)]
                    .chain
                    .replace(parts.frames, from, to);
            }
            from
        } else {
            to
        };
        self.storage.parts_mut().frames[empty.index()] = FrameRecord::default();
        self.account_freed(empty, &new);
        self.give(empty, order);
        if goes_on {
            self.counters.frames_moved_by_hardware += u64::from(order.frames());
            if let Some(owner) = old.owner() {
                moves.push(Move {
                    owner,
                    from,
                    to,
                    order,
                });
            }
        }
        if let Some(clearing) = &mut self.clearing {
            clearing.under_way -= 1;
        }
        self.advance_clearing(moves);
    }

    /// Gives up what is being emptied, as soon as nothing of it is on its way.
    pub fn end_clearing(&mut self) {
        if let Some(clearing) = &mut self.clearing {
            clearing.ends = true;
            if clearing.under_way == 0 {
                let number = clearing.number;
                let shrinks = clearing.shrinks_to.is_some();
                self.clearing = None;
                self.counters.shrinks_blocked += u64::from(shrinks);
                self.restore(number);
            }
        }
    }

    /// Goes on when nothing is on its way: the pageblock is empty, or is gone through again.
    fn advance_clearing(&mut self, moves: &mut dyn Moves) {
        let Some(clearing) = self.clearing.filter(|clearing| clearing.under_way == 0) else {
            return;
        };
        let number = clearing.number;
        if clearing.ends {
            self.end_clearing();
        } else if self.pageblocks()[number].free() == BLOCK_FRAMES {
            self.clearing = None;
            match clearing.shrinks_to {
                Some(lowest) if number + 1 == block_of(self.border) => {
                    self.pass_border(number, MigrateType::Movable, clearing.used.into());
                    self.shrink_to(lowest, moves);
                }
                _ => self.restore(number),
            }
        } else if clearing.looked_at >= BLOCK_FRAMES {
            if clearing.passes == MOST_PASSES {
                self.end_clearing();
            } else if let Some(clearing) = &mut self.clearing {
                clearing.looked_at = 0;
                clearing.passes += 1;
            }
        }
    }

    /// Begins to empty a pageblock that is kept for what cannot move of what can; says whether it did.
    pub(crate) fn sort_in_use(&mut self) -> bool {
        if !self.is_sorted() || self.clearing.is_some() {
            return false;
        }
        let kept = block_of(self.kept_far());
        let moves =
            |number: &usize| self.pageblocks()[*number].in_use > 0 && self.is_clearable(*number);
        let Some(number) = (0..kept).find(moves) else {
            return false;
        };
        self.drain_per_cpu();
        self.begin_clearing(number, None)
    }

    /// Begins to empty the pageblock of the unmovable region that is nearest to the border and can be
    /// emptied, so that free memory is in one piece there; says whether it did.
    pub(crate) fn compact_in_use(&mut self) -> bool {
        let least = self.regions[UNMOVABLE].start.get() / BLOCK_FRAMES;
        let end = block_of(self.border);
        let is_used = |number: &usize| {
            self.pageblocks()[*number].free() < BLOCK_FRAMES && self.is_clearable(*number)
        };
        let Some(number) = (least as usize..end).rev().find(is_used) else {
            return false;
        };
        self.drain_per_cpu();
        self.begin_clearing(number, None)
    }
}

impl FrameRecord {
    /// Returns true if such a block, although unmovable, is of a kind that hardware can move.
    pub(crate) fn is_in_use_movable(&self) -> bool {
        self.kind() == FrameKind::Unmovable
            && (self.class().is_hardware_movable() || self.is_pinned())
    }
}
