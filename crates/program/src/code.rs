//! Blocks of guest code: what was translated once and is executed many times.
//!
//! The stream names blocks by number only. What a number stands for is looked up in a
//! [`CodeLog`], which the ring, a trace and the importers of foreign formats each provide, and
//! which grows while the program runs. A consumer asks for a block when it meets it first.

use contigua_units::VirtAddr;

#[cfg(feature = "sources")]
use crate::decode::instruction::Instruction;
use crate::wire::BlockId;

/// The code of one block, borrowed from the log that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCode<'a> {
    /// Address of the first instruction.
    pub address: VirtAddr,
    /// Length of each instruction in bytes, in order. Its length is the instruction count.
    pub lengths: &'a [u8],
    /// The instruction bytes, back to back; empty where a foreign trace does not have them.
    pub bytes: &'a [u8],
}

impl BlockCode<'_> {
    /// Instructions in the block.
    #[inline]
    #[must_use]
    pub fn instructions(&self) -> u32 {
        self.lengths.len() as u32
    }

    /// Bytes that the block's instructions take in memory.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.lengths.iter().map(|&length| u32::from(length)).sum()
    }

    /// Address and bytes of each instruction; no bytes where the block has too few.
    #[cfg(feature = "sources")]
    pub(crate) fn encodings(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut address = self.address.get();
        let mut bytes = self.bytes;
        self.lengths.iter().map(move |&length| {
            let (instruction, rest) = bytes.split_at_checked(length.into()).unwrap_or_default();
            let start = address;
            address = address.wrapping_add(length.into());
            bytes = rest;
            (start, instruction)
        })
    }
}

/// Says what the block numbers of a stream stand for.
pub trait CodeLog {
    /// The code of `block`, or `None` when the stream has not described it.
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>>;

    /// Returns the instructions of `block`, if the stream has their effects instead of their bytes.
    #[cfg(feature = "sources")]
    fn instructions(&self, _block: BlockId) -> Option<&[Instruction]> {
        None
    }
}
