//! Blocks of which the stream tells more accesses than a processor makes.

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};

use super::class::is_fast_string;
use crate::code::BlockCode;

/// The widest access that QEMU makes at once.
const WORD: usize = 8;

/// What of a block's accesses belongs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub enum Folding {
    /// Nothing.
    #[default]
    Nothing,
    /// Some instruction makes wide accesses, which come in words.
    Parts,
    /// The block is one instruction, a repeated `movs` or `stos`, and each time that it is entered is
    /// an iteration.
    FastString,
}

/// What of the accesses of x86-64 code belongs together.
#[must_use]
pub fn folding(code: BlockCode<'_>) -> Folding {
    let mut factory = InstructionInfoFactory::new();
    let mut address = code.address.get();
    let mut bytes = code.bytes;
    let mut found = Folding::Nothing;
    for &length in code.lengths {
        let (instruction, rest) = bytes.split_at_checked(length.into()).unwrap_or_default();
        let decoded = Decoder::with_ip(64, instruction, address, DecoderOptions::NONE).decode();
        if !decoded.is_invalid() && decoded.len() == instruction.len() {
            if is_fast_string(&decoded) {
                if code.lengths.len() == 1 {
                    return Folding::FastString;
                }
            } else if !decoded.is_string_instruction() {
                let accessed = factory.info(&decoded).used_memory().iter();
                let widest = accessed.map(|used| used.memory_size().size()).max();
                if widest > Some(WORD) {
                    found = Folding::Parts;
                }
            }
        }
        address = address.wrapping_add(length.into());
        bytes = rest;
    }
    found
}
