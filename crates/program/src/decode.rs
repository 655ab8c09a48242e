//! Effects of the instructions of a block on registers and memory, for models of cores.
//!
//! A core model wants to know two things of an instruction: which unit executes it, and which
//! earlier instructions it has to wait for. The first is an [`OperationClass`]; the second follows
//! from the [`RegisterSet`]s that it reads and writes. Both are worked out once for each block, by
//! `x86_64` or [`aarch64`]. [`RegisterSet`] says how registers are told apart.

pub mod aarch64;
mod class;
pub(crate) mod instruction;
pub mod regdeps;
pub mod registers;
mod x86_64;

pub use class::OperationClass;
pub use instruction::{Folding, Instruction, RegisterSet};

use crate::code::BlockCode;
use crate::syscall::Architecture;

/// Decodes the code of a block into `out`, which then has one entry for each of its instructions.
/// [`Instruction::UNKNOWN`] stands for those that cannot be decoded, or whose length is not what the
/// block says.
pub fn decode_block(architecture: Architecture, code: BlockCode<'_>, out: &mut Vec<Instruction>) {
    out.clear();
    match architecture {
        Architecture::X86_64 => x86_64::decode_block(code, out),
        Architecture::Aarch64 => {
            out.extend(code.encodings().map(|(_, bytes)| aarch64::decode(bytes)));
        }
    }
}

/// Rule by which consecutive accesses of a block are merged into one.
#[must_use]
pub fn folding(architecture: Architecture, code: BlockCode<'_>) -> Folding {
    match architecture {
        Architecture::X86_64 => x86_64::folding(code),
        Architecture::Aarch64 => aarch64::folding(code),
    }
}
