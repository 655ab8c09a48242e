//! Moving a block's contents to another block.

use contigua_units::{Frame, Order};

use crate::Error;
use crate::allocator::Frames;
use crate::record::{FrameRecord, Owner};
use crate::storage::Storage;

/// A block whose contents are elsewhere now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Move {
    /// Owner of the page.
    pub owner: Owner,
    /// Its former frame.
    pub from: Frame,
    /// Its present frame.
    pub to: Frame,
    /// Order of the block.
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
    /// Lets a block take the place of another one that was allocated like it: owner, users and
    /// place in a group go over, and the old block is nobody's, to be freed when nobody uses it
    /// any more. This is how a page moves while both of its frames are in use.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] when one of the frames is not the first of an allocated block,
    /// [`Error::Unlike`] when the two differ in order or in what they are used for, or the new one
    /// has an owner or a group.
    pub fn transplant(&mut self, from: Frame, to: Frame) -> Result<(), Error> {
        let old = self.allocated(from)?;
        let new = self.allocated(to)?;
        let alike =
            old.order() == new.order() && old.class() == new.class() && old.kind() == new.kind();
        if !alike || new.owner().is_some() || new.group().is_some() {
            return Err(Error::Unlike { from, to });
        }
        let parts = self.storage.parts_mut();
        parts.frames[to.index()] = old;
        if let Some(group) = old.group() {
            parts.groups[usize::from(group.0)]
                .chain
                .replace(parts.frames, from, to);
        }
        parts.frames[from.index()] = new;
        Ok(())
    }

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
