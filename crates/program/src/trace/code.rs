//! Descriptions of blocks, as CODE frames hold them.
//!
//! ```text
//! block id | distance of the address to the previous description's | instructions
//! | bytes of code | length of each instruction: 1 each | code
//! ```
//!
//! in seven-bit groups where no width is given.

use contigua_units::VirtAddr;

use super::bytes::{Damage, Input, fold, put_number, unfold};
use super::layout::MAX_BLOCKS;
use crate::code::{BlockCode, CodeLog};
use crate::wire::{BlockId, MAX_BLOCK_INSTRUCTIONS};

/// Bytes of code that a block can have: no more than the lengths of its instructions can say.
const MAX_CODE_BYTES: usize = MAX_BLOCK_INSTRUCTIONS * u8::MAX as usize;

/// Writes descriptions one after the other.
#[derive(Debug, Default)]
pub struct CodeEncoder {
    pub raw: Vec<u8>,
    previous: u64,
}

impl CodeEncoder {
    /// Adds a description. The error says what about the block cannot be stored.
    pub fn push(&mut self, id: BlockId, code: &BlockCode<'_>) -> Result<(), Damage> {
        if id.0 >= MAX_BLOCKS {
            return Err(Damage("its number is beyond what a trace can hold"));
        }
        if code.lengths.len() > MAX_BLOCK_INSTRUCTIONS || code.bytes.len() > MAX_CODE_BYTES {
            return Err(Damage("it has more instructions than a block can hold"));
        }
        let away = code.address.get().wrapping_sub(self.previous);
        self.previous = code.address.get();
        put_number(&mut self.raw, u64::from(id.0));
        put_number(&mut self.raw, fold(away.cast_signed()));
        put_number(&mut self.raw, code.lengths.len() as u64);
        put_number(&mut self.raw, code.bytes.len() as u64);
        self.raw.extend(code.lengths);
        self.raw.extend(code.bytes);
        Ok(())
    }

    /// Starts the next frame.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.previous = 0;
    }
}

/// The blocks of a trace that have been read so far.
#[derive(Debug, Default)]
pub struct StoredCode {
    /// By block id: one more than the place in `blocks`; 0 for a block that is not described.
    places: Vec<u32>,
    blocks: Vec<Stored>,
    /// Lengths and code of all blocks, back to back.
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    address: VirtAddr,
    start: usize,
    instructions: u16,
    code_bytes: u32,
}

impl StoredCode {
    /// Adds the descriptions of a frame, and tells `described` of each.
    pub fn read_frame(
        &mut self,
        raw: &[u8],
        mut described: impl FnMut(BlockId, u16),
    ) -> Result<(), Damage> {
        let mut input = Input(raw);
        let mut previous = 0;
        while !input.is_empty() {
            let (id, instructions) = self
                .read_block(&mut input, &mut previous)
                .ok_or(Damage("the description of a block"))?;
            described(id, instructions);
        }
        Ok(())
    }

    fn read_block(&mut self, input: &mut Input<'_>, previous: &mut u64) -> Option<(BlockId, u16)> {
        let id = u32::try_from(input.number()?)
            .ok()
            .filter(|&id| id < MAX_BLOCKS)?;
        *previous = previous.wrapping_add(unfold(input.number()?).cast_unsigned());
        let instructions = input.number()? as usize;
        let code_bytes = input.number()? as usize;
        if !(1..=MAX_BLOCK_INSTRUCTIONS).contains(&instructions) || code_bytes > MAX_CODE_BYTES {
            return None;
        }
        let text = input.take(instructions + code_bytes)?;
        if id as usize >= self.places.len() {
            self.places.resize(id as usize + 1, 0);
        }
        let place = &mut self.places[id as usize];
        if *place != 0 {
            return None;
        }
        *place = self.blocks.len() as u32 + 1;
        self.blocks.push(Stored {
            address: VirtAddr::new(*previous),
            start: self.text.len(),
            instructions: instructions as u16,
            code_bytes: code_bytes as u32,
        });
        self.text.extend(text);
        Some((BlockId(id), instructions as u16))
    }
}

impl CodeLog for StoredCode {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        let place = self.places.get(block.0 as usize)?.checked_sub(1)?;
        let stored = self.blocks.get(place as usize)?;
        let text = self.text.get(stored.start..)?;
        let (lengths, rest) = text.split_at_checked(usize::from(stored.instructions))?;
        Some(BlockCode {
            address: stored.address,
            lengths,
            bytes: rest.get(..stored.code_bytes as usize)?,
        })
    }
}
