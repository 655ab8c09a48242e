//! What the traces of other tools have in common: instructions, one by one, without their code.
//!
//! Every distinct instruction becomes a block of its own. The tools report neither mappings nor
//! threads, so all belongs to one thread of one process, and the first batch begins with the
//! start of both.

use std::collections::HashMap;

use contigua_units::VirtAddr;

use super::Batch;
use crate::code::{BlockCode, CodeLog};
use crate::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};

/// A batch is handed over when it has this many words.
const BATCH_WORDS: usize = 4096;
/// log2 of the largest access that a word can hold: 128 bytes.
const MAX_SIZE_LOG2: u8 = 7;

/// Blocks of one instruction each.
#[derive(Debug, Default)]
struct Instructions {
    blocks: HashMap<u64, u32>,
    addresses: Vec<u64>,
    lengths: Vec<u8>,
    /// The block that last followed each block: nearly always the right one, which spares the
    /// look-up.
    successors: Vec<u32>,
    previous: usize,
}

impl Instructions {
    fn find(&mut self, address: u64) -> Option<u32> {
        let expected = *self.successors.get(self.previous)?;
        if self.addresses[expected as usize] == address {
            return Some(expected);
        }
        self.blocks.get(&address).copied()
    }

    fn add(&mut self, address: u64, length: u8) -> u32 {
        let block = self.addresses.len() as u32;
        self.blocks.insert(address, block);
        self.addresses.push(address);
        self.lengths.push(length);
        self.successors.push(block);
        block
    }

    fn enter(&mut self, block: u32) {
        if let Some(successor) = self.successors.get_mut(self.previous) {
            *successor = block;
        }
        self.previous = block as usize;
    }
}

impl CodeLog for Instructions {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        let index = block.0 as usize;
        Some(BlockCode {
            address: VirtAddr::new(*self.addresses.get(index)?),
            lengths: self.lengths.get(index..=index)?,
            bytes: &[],
        })
    }
}

/// Makes batches of instructions and accesses.
#[derive(Debug, Default)]
pub(super) struct Stream {
    words: Vec<u64>,
    code: Instructions,
    started: bool,
}

impl Stream {
    /// Begins the next batch.
    pub(super) fn clear(&mut self) {
        self.words.clear();
        if !self.started {
            self.started = true;
            let process = ProcessId(0);
            for event in [
                Event::ProcessStart { process },
                Event::ThreadStart { process },
            ] {
                self.words.extend(event.encode().words());
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.words.len() >= BATCH_WORDS
    }

    pub(super) fn has_instructions(&self) -> bool {
        !self.code.addresses.is_empty()
    }

    /// Executes the instruction at `address`, whose length is asked for when it is new.
    pub(super) fn instruction(&mut self, address: u64, length: impl FnOnce() -> u8) {
        let block = match self.code.find(address) {
            Some(block) => block,
            None => self.code.add(address, length()),
        };
        self.enter(block);
    }

    /// Executes the instruction at `address`, which may be another one than the last time.
    pub(super) fn instruction_of_length(&mut self, address: u64, length: u8) {
        let block = match self.code.find(address) {
            Some(block) if self.code.lengths[block as usize] == length => block,
            _ => self.code.add(address, length),
        };
        self.enter(block);
    }

    fn enter(&mut self, block: u32) {
        self.code.enter(block);
        self.words.push(block_word(BlockId(block)));
    }

    /// The executing instruction accesses `size` bytes, at least one. Sizes are rounded up to a
    /// power of two; what does not fit into one access makes several.
    pub(super) fn access(&mut self, address: u64, size: u64, store: bool) {
        let largest = 1 << MAX_SIZE_LOG2;
        for done in (0..size).step_by(largest) {
            let piece = (size - done).min(largest as u64);
            let access = Access {
                address: VirtAddr::new(address.wrapping_add(done)),
                size_log2: piece.next_power_of_two().trailing_zeros() as u8,
                store,
                instruction: 0,
            };
            self.words.push(access.encode());
        }
    }

    /// The batch, or `None` when it is empty.
    pub(super) fn batch(&self) -> Option<Batch<'_>> {
        (!self.words.is_empty()).then_some(Batch {
            thread: ThreadId(0),
            words: &self.words,
            code: &self.code,
        })
    }
}
