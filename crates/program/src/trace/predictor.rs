//! Predictor shared by both ends of a trace.
//!
//! The encoder writes down only where the program did not do what the predictor expected, and the
//! decoder, which sees the same words, holds the same expectations. Two simple ones carry most of
//! it: a block is followed by one of the two blocks that followed it last, and the n-th access of
//! a block has the shape of its previous n-th access and lies near it.
//!
//! There is one predictor for all threads: batches are long, so the few wrong expectations after
//! a change of thread cost less than finding a thread's own state would.
//!
//! Expectations start anew in every frame, which makes frames independent of each other.
//! Forgetting costs nothing: a block's slots are handed out when the frame first executes it.

use crate::wire::{ACCESS, ADDRESS_MASK, BlockId};

/// Stands for the block of accesses that come before any block.
pub const NO_BLOCK: u32 = 0;

/// A block, known by its place in [`Predictor::blocks`], which is the order of description.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub id: BlockId,
    pub instructions: u16,
    /// The frame that the fields below belong to.
    frame: u32,
    first_slot: u32,
    /// Accesses of its last execution.
    pub accesses: u32,
    /// The blocks that followed it last, the latest first.
    pub successors: [u32; 2],
}

impl Block {
    /// One slot an instruction is enough for nearly every block; the two last slots serve all
    /// further accesses in turn, as the load and store of a string instruction would have it.
    const fn slots(&self) -> usize {
        self.instructions as usize + 1
    }
}

/// The expectations.
#[derive(Debug)]
pub struct Predictor {
    pub blocks: Vec<Block>,
    /// The last access word of each slot of the blocks that this frame has executed.
    slots: Vec<u64>,
    frame: u32,
    /// The block that executes.
    pub current: u32,
    /// Accesses that it has made.
    pub position: usize,
    /// The last access of all.
    pub last: u64,
}

/// The slots of the executing block.
pub struct Slots<'a>(&'a mut [u64]);

impl Slots<'_> {
    /// The last word of the access that comes after `position` others.
    #[inline]
    pub fn at(&mut self, position: usize) -> &mut u64 {
        let count = self.0.len();
        let slot = if position < count {
            position
        } else {
            count - 2 + (position & 1)
        };
        &mut self.0[slot]
    }
}

impl Predictor {
    pub fn new() -> Self {
        let mut predictor = Self {
            blocks: Vec::new(),
            slots: Vec::new(),
            frame: 0,
            current: NO_BLOCK,
            position: 0,
            last: ACCESS,
        };
        // One instruction, so that it has two slots as every block must.
        predictor.describe(BlockId(u32::MAX), 1);
        predictor
    }

    /// Adds a block of at least one instruction.
    pub fn describe(&mut self, id: BlockId, instructions: u16) {
        debug_assert!(instructions > 0);
        self.blocks.push(Block {
            id,
            instructions,
            frame: 0,
            first_slot: 0,
            accesses: 0,
            successors: [NO_BLOCK; 2],
        });
    }

    /// Forgets everything but the blocks' descriptions.
    pub fn start_frame(&mut self) {
        self.frame += 1;
        self.slots.clear();
        self.last = ACCESS;
        self.position = 0;
        self.current = NO_BLOCK;
        self.revive(NO_BLOCK);
    }

    /// Begins to execute a block that was described.
    #[inline]
    pub fn enter(&mut self, block: u32) {
        let successors = &mut self.blocks[self.current as usize].successors;
        if successors[0] != block {
            *successors = [block, successors[0]];
        }
        self.current = block;
        self.position = 0;
        if self.blocks[block as usize].frame != self.frame {
            self.revive(block);
        }
    }

    #[cold]
    fn revive(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.frame = self.frame;
        block.accesses = 0;
        // Blocks are numbered as they are met, so the next number is a fair guess.
        block.successors = [index + 1, NO_BLOCK];
        block.first_slot = self.slots.len() as u32;
        self.slots.resize(self.slots.len() + block.slots(), ACCESS);
    }

    /// The executing block, its slots, and the last access of all.
    #[inline]
    pub fn executing(&mut self) -> (&mut Block, Slots<'_>, &mut u64) {
        let block = &mut self.blocks[self.current as usize];
        let first = block.first_slot as usize;
        let slots = Slots(&mut self.slots[first..first + block.slots()]);
        (block, slots, &mut self.last)
    }
}

/// The distance between the addresses of two accesses: sign-extended from 48 bits, as the
/// addresses wrap.
#[inline]
pub const fn distance(from: u64, to: u64) -> i64 {
    const UNUSED: u32 = u64::BITS - ADDRESS_MASK.count_ones();
    (to.wrapping_sub(from) << UNUSED).cast_signed() >> UNUSED
}

/// Undoes [`distance`]: `from` with its address moved.
#[inline]
pub const fn moved(from: u64, distance: i64) -> u64 {
    from & !ADDRESS_MASK | from.wrapping_add(distance.cast_unsigned()) & ADDRESS_MASK
}
