//! Common parts of the readers of other tools' traces: instructions, one by one, with or without
//! their code.
//!
//! Every distinct instruction becomes a block of its own. The tools report no mappings. A trace begins in
//! the middle of a process: its threads start, and the process has the memory that was mapped before.

use std::collections::HashMap;

use contigua_units::VirtAddr;

use super::Batch;
use crate::code::{BlockCode, CodeLog};
use crate::decode::Instruction;
use crate::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};

/// A batch is handed over when it has this many words.
const BATCH_WORDS: usize = 4096;
/// log2 of the largest access that a word can hold: 128 bytes.
const MAX_SIZE_LOG2: u32 = 7;
/// Different instructions that a trace can have: as many as the ring, 100 MB of code.
const MAX_BLOCKS: usize = 1 << 25;
/// Bits of the addresses of page tables with five levels: no trace has more.
const MOST_BITS: u32 = 57;

/// An instruction as its trace describes it, without its address.
pub(super) struct Described<'a> {
    pub(super) length: u8,
    /// Its encoding, if that is the architecture's.
    pub(super) bytes: &'a [u8],
    /// Its decoding, if the trace has that itself.
    pub(super) instruction: Option<Instruction>,
}

#[derive(Debug)]
struct Stored {
    address: u64,
    /// Hash by which it differs from others at its address.
    signature: u64,
    bytes_start: u32,
    /// Address space that it lies in.
    space: u32,
    /// Another instruction is at its address now.
    is_stale: bool,
    /// The block that last followed: nearly always the right one, which spares the look-up.
    successor: u32,
}

/// Blocks of one instruction each.
#[derive(Debug, Default)]
struct Instructions {
    blocks: HashMap<(u64, u64), u32>,
    stored: Vec<Stored>,
    lengths: Vec<u8>,
    bytes: Vec<u8>,
    /// Of all blocks, or empty.
    decoded: Vec<Instruction>,
}

impl Instructions {
    fn add(&mut self, address: u64, signature: u64, space: u32, described: &Described<'_>) -> u32 {
        let block = self.stored.len() as u32;
        self.blocks.insert((address, signature), block);
        self.stored.push(Stored {
            address,
            signature,
            bytes_start: self.bytes.len() as u32,
            space,
            is_stale: false,
            successor: block,
        });
        self.lengths.push(described.length);
        self.bytes.extend(described.bytes);
        self.decoded.extend(described.instruction);
        block
    }
}

impl CodeLog for Instructions {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        let index = block.0 as usize;
        let start = self.stored.get(index)?.bytes_start as usize;
        let next = self.stored.get(index + 1);
        let end = next.map_or(self.bytes.len(), |next| next.bytes_start as usize);
        Some(BlockCode {
            address: VirtAddr::new(self.stored[index].address),
            lengths: self.lengths.get(index..=index)?,
            bytes: self.bytes.get(start..end)?,
        })
    }

    fn instructions(&self, block: BlockId) -> Option<&[Instruction]> {
        let index = block.0 as usize;
        self.decoded.get(index..=index)
    }
}

/// Makes batches of instructions and accesses.
#[derive(Debug)]
pub(super) struct Stream {
    words: Vec<u64>,
    code: Instructions,
    /// Bits of the addresses that the machine's page tables hold.
    bits: u32,
    previous: u32,
    /// The words have been handed over.
    is_read: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            words: Vec::new(),
            code: Instructions::default(),
            bits: MOST_BITS,
            previous: 0,
            is_read: false,
        }
    }
}

impl Stream {
    /// Page tables of the machine hold addresses of so many bits.
    pub(super) fn set_address_bits(&mut self, bits: u32) {
        self.bits = bits;
    }

    /// A stream of one thread, which begins.
    pub(super) fn of_one_thread() -> Self {
        let mut stream = Self::default();
        let process = ProcessId(0);
        stream.event(&Event::ThreadStart { process });
        stream
    }

    /// Begins the next batch, if the one before was handed over.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_read) {
            self.words.clear();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_read || self.words.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.words.len() >= BATCH_WORDS
    }

    pub(super) fn has_instructions(&self) -> bool {
        !self.code.stored.is_empty()
    }

    pub(super) fn event(&mut self, event: &Event) {
        self.words.extend(event.encode().words());
    }

    /// The address as page tables have it, without the bits that repeat the highest one. The error says
    /// why they do not have it.
    #[inline]
    pub(super) fn place(&self, address: u64) -> Result<u64, String> {
        if address >> 47 == 0 {
            return Ok(address);
        }
        self.place_high(address)
    }

    #[cold]
    fn place_high(&self, address: u64) -> Result<u64, String> {
        let fits = |bits: u32| {
            let above = address.cast_signed() >> (bits - 1);
            above == 0 || above == -1
        };
        if fits(self.bits) {
            return Ok(address & ((1 << self.bits) - 1));
        }
        Err(if fits(MOST_BITS) {
            format!(
                "the address {address:#x} does not fit page tables of 4 levels, which hold {} bits: run \
                 it on a machine with page_table_levels = 5",
                self.bits
            )
        } else {
            format!(
                "the address {address:#x} is none of x86-64 or aarch64: they have up to 57 bits"
            )
        })
    }

    /// Executes the instruction at `address` with this signature, which is described when it is new.
    #[inline]
    pub(super) fn instruction<'a>(
        &mut self,
        address: u64,
        signature: u64,
        describe: impl FnOnce() -> Described<'a>,
    ) -> Result<(), String> {
        let address = self.place(address)?;
        if let Some(previous) = self.code.stored.get(self.previous as usize) {
            let expected = previous.successor;
            let found = &self.code.stored[expected as usize];
            if found.address == address && found.signature == signature {
                self.previous = expected;
                self.words.push(block_word(BlockId(expected)));
                return Ok(());
            }
        }
        let block = match self.code.blocks.get(&(address, signature)) {
            Some(&block) => block,
            None => self.describe(address, signature, 0, &describe())?,
        };
        self.execute(block);
        Ok(())
    }

    /// Executes a block that is described.
    pub(super) fn execute(&mut self, block: u32) {
        if let Some(previous) = self.code.stored.get_mut(self.previous as usize) {
            previous.successor = block;
        }
        self.previous = block;
        self.words.push(block_word(BlockId(block)));
    }

    /// Executes the instruction at `address` of an address space if it is the expected one; whether it was.
    #[inline]
    pub(super) fn follow(&mut self, address: u64, space: u32) -> bool {
        let Some(previous) = self.code.stored.get(self.previous as usize) else {
            return false;
        };
        let expected = previous.successor;
        let found = &self.code.stored[expected as usize];
        let is_expected = found.address == address && found.space == space && !found.is_stale;
        if is_expected {
            self.previous = expected;
            self.words.push(block_word(BlockId(expected)));
        }
        is_expected
    }

    /// The block at `address` with this signature.
    pub(super) fn find(&self, address: u64, signature: u64) -> Option<u32> {
        self.code.blocks.get(&(address, signature)).copied()
    }

    /// Describes a new block of an address space. The error says that there are too many.
    pub(super) fn describe(
        &mut self,
        address: u64,
        signature: u64,
        space: u32,
        described: &Described<'_>,
    ) -> Result<u32, String> {
        if self.code.stored.len() >= MAX_BLOCKS {
            return Err(format!(
                "it has more than {MAX_BLOCKS} different instructions"
            ));
        }
        Ok(self.code.add(address, signature, space, described))
    }

    /// The instruction at the address of two blocks is the second one from now on.
    pub(super) fn supersede(&mut self, before: u32, after: u32) {
        self.code.stored[before as usize].is_stale = true;
        self.code.stored[after as usize].is_stale = false;
    }

    /// The executing instruction accesses `size` bytes, at least one. Sizes are rounded up to a
    /// power of two; what does not fit into one access makes several.
    #[inline]
    pub(super) fn access(&mut self, address: u64, size: u64, store: bool) -> Result<(), String> {
        let start = self.place(address)?;
        let largest = 1 << MAX_SIZE_LOG2;
        if size <= largest && start >> 47 == 0 {
            self.words.push(encode(start, size.max(1), store));
            return Ok(());
        }
        // What would go beyond the last address there is ends there.
        let room = (1_u64 << self.bits) - start;
        let size = size.clamp(1, room);
        for done in (0..size).step_by(largest as usize) {
            let mut piece = (size - done).min(largest).next_power_of_two();
            if piece > room - done {
                piece /= 2;
            }
            self.words.push(encode(start + done, piece, store));
        }
        Ok(())
    }

    /// The batch of a thread, or `None` when it is empty.
    pub(super) fn batch(&mut self, thread: ThreadId) -> Option<Batch<'_>> {
        self.is_read = true;
        (!self.words.is_empty()).then_some(Batch {
            thread,
            words: &self.words,
            code: &self.code,
        })
    }
}

#[inline]
fn encode(address: u64, size: u64, store: bool) -> u64 {
    let access = Access {
        address: VirtAddr::new(address),
        size_log2: size.next_power_of_two().trailing_zeros() as u8,
        store,
        instruction: 0,
    };
    access.encode_wide()
}
