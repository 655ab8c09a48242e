//! Moving a block's contents to another block.

use contigua_units::{Frame, Order};

use crate::allocator::Frames;
use crate::record::{FrameRecord, Owner};
use crate::storage::Storage;

/// A block whose contents are elsewhere now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Whose page it is.
    pub owner: Owner,
    /// Where it was.
    pub from: Frame,
    /// Where it is.
    pub to: Frame,
    /// How large it is.
    pub order: Order,
}

/// Takes note of moves, so that page tables can follow. Blocks in groups are followed here.
pub trait Moves {
    /// A block moved.
    fn push(&mut self, moved: Move);
}

/// For memory that no page table maps, and for requests of single frames, which move nothing.
impl Moves for () {
    fn push(&mut self, moved: Move) {
        debug_assert!(false, "nobody was told of {moved:?}");
    }
}

#[cfg(feature = "alloc")]
impl Moves for alloc::vec::Vec<Move> {
    fn push(&mut self, moved: Move) {
        alloc::vec::Vec::push(self, moved);
    }
}

impl<S: Storage> Frames<S> {
    /// Moves an allocated block to another one of its order, which was just taken and is not
    /// accounted for yet, and frees the old one.
    pub(crate) fn move_block(&mut self, from: Frame, to: Frame, moves: &mut dyn Moves) {
        let parts = self.storage.parts_mut();
        let record = parts.frames[from.index()];
        let order = record.order();
        parts.frames[to.index()] = record;
        if let Some(group) = record.group() {
            parts.groups[usize::from(group.0)]
                .chain
                .replace(parts.frames, from, to);
        }
        parts.frames[from.index()] = FrameRecord::default();
        self.account_moved(from, to, &record);
        self.give(from, order);
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
