//! Accesses that the stream tells apart and a processor makes at once.
//!
//! QEMU splits a vector's access into words, one of several registers of aarch64 into registers or
//! elements, and executes a repeated string instruction an element at a time, each time as a block.
//! TLBs, caches and the core see what a processor does: such an access once in each line, and a
//! repeated `movs` or `stos` as one instruction that loads and stores [`CHUNK`] bytes at a time.
//! Counts of instructions, blocks, loads and stores stay those of the stream.

use contigua_program::decode::Folding;
use contigua_program::wire::{AccessWord, BlockId};
use contigua_units::LINE_BYTES;

use super::{Block, Engine, NO_BLOCK};

/// Bytes of a load or store of fast-string microcode: a vector register of the cores since Haswell
/// ("Enhanced REP MOVSB and STOSB operation" in Intel's optimization manual).
const CHUNK: u64 = 32;
/// log2 of the bytes of a word.
const WORD_LOG2: u8 = 3;
/// The last instruction of a block that a word of the stream can name.
const LAST_INSTRUCTION: usize = 511;

/// The repetition that the accesses of the executing block belong to.
#[derive(Clone, Copy, Default, contigua_state::Plain)]
pub(super) struct Fold {
    pub(super) kind: Folding,
    /// Of accesses that come in parts: the word of the stream that would be a part of the access before.
    part: u64,
    /// Of a repeated instruction: the place that it has in the block in which it began, ...
    instruction: usize,
    /// ... one more than the chunk that it loaded from last, ...
    loaded: u64,
    /// ... and than the one that it stored to.
    stored: u64,
}

impl Fold {
    pub(super) fn of(kind: Folding) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    /// Returns the part of a stream word's access that is left to make, as its address and the
    /// instruction that makes it; `None` if it was made together with an earlier one.
    pub(super) fn left_of(&mut self, word: AccessWord) -> Option<(u64, usize)> {
        let (address, size) = (word.address(), word.bytes());
        let instruction = usize::from(word.instruction());
        match self.kind {
            Folding::Nothing => Some((address, instruction)),
            Folding::Parts | Folding::Elements => {
                let is_part = word.0 == self.part;
                let next = address + size;
                let has_parts = word.size_log2() == WORD_LOG2 || self.kind == Folding::Elements;
                let goes_on = has_parts && !next.is_multiple_of(LINE_BYTES);
                self.part = if goes_on { word.0 + size } else { 0 };
                if !is_part {
                    return Some((address, instruction));
                }
                let line_end = address.next_multiple_of(LINE_BYTES);
                (line_end < next && line_end > address).then_some((line_end, instruction))
            }
            Folding::FastString => {
                let last = (address + size - 1) / CHUNK + 1;
                let before = if word.is_store() {
                    &mut self.stored
                } else {
                    &mut self.loaded
                };
                let is_part = *before == last && address / CHUNK + 1 == last;
                *before = last;
                (!is_part).then_some((address, self.instruction))
            }
        }
    }
}

impl Engine {
    /// True if a repeated instruction that is entered as a block goes on: the block before is the
    /// same, or ends with it. Its accesses are those of that block's last instruction.
    pub(super) fn iterates(&mut self, id: BlockId, block: Block) -> bool {
        let before = self.contexts[self.current].block;
        if before == NO_BLOCK {
            return false;
        }
        if before != id {
            let Some(before) = self.blocks.get(before.0 as usize) else {
                return false;
            };
            let end = |block: &Block| block.start + u64::from(block.bytes);
            if end(before) != end(&block) || before.instructions == 0 {
                return false;
            }
        }
        let instructions = usize::from(self.blocks[before.0 as usize].instructions);
        let instruction = (instructions - 1).min(LAST_INSTRUCTION);
        if self.fold.kind != Folding::FastString || self.fold.instruction != instruction {
            self.fold = Fold {
                instruction,
                ..Fold::of(Folding::FastString)
            };
        }
        self.executed.string_iterations += 1;
        true
    }
}
