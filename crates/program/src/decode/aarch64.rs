//! Code of aarch64.
//!
//! `disarm64` finds an instruction in a table that is generated from that of GNU binutils: its name,
//! its group of encodings (Arm ARM, DDI 0487, section C4.1) and its operands. What it writes and
//! which unit executes it follow from the group, and within a group from the name. SVE, SME and
//! what came later is not told apart: the processor that programs find has none of it
//! ([`launch::processor`](crate::launch::processor)).
//!
//! Registers in bits of a [`RegisterSet`]: x0 to x30, the stack pointer, the flags NZCV and v0 to
//! v31 are 65, and models have 62. So some share a bit, which makes one of them wait for the other:
//!
//! - x16, x17 and x18: the first two are for linkers, whose code between a call and a function uses
//!   them together, the third is the platform's (Arm, IHI 0055, "General-purpose registers");
//! - x29 and x30, the frame record: one instruction stores both and one loads both.
//!
//! System registers have no bits. Nor does an address that an access moves on (`ldr x0, [x1], #8`)
//! count as written: cores add in an operation of its own, a cycle after the old value was there, and a
//! model that let it wait for the load would make a chain of independent loads.

mod class;
mod operands;

use disarm64::{Insn, InsnOpcode, decoder};
use disarm64_defn::InsnClass;

use super::class::OperationClass;
use super::instruction::{Folding, Instruction, RegisterSet};
use crate::code::BlockCode;

/// Bytes of an instruction.
const LENGTH: usize = 4;

/// The flags N, Z, C and V. They have the bit of x86-64's stack pointer, which models treat as a stack
/// pointer where it is part of an address; flags never are.
pub const NZCV: RegisterSet = RegisterSet(1 << 4);

/// The stack pointer.
pub const STACK_POINTER: RegisterSet = RegisterSet(1 << 29);

/// General register `x0` to `x30`, and the zero register, which holds nothing, as 31.
///
/// # Panics
/// When there is no such register.
#[must_use]
pub const fn general(number: u32) -> RegisterSet {
    RegisterSet(match number {
        0..4 => 1 << number,
        4..16 => 1 << (number + 1),
        16..19 => 1 << 17,
        19..29 => 1 << (number - 1),
        29 | 30 => 1 << 28,
        31 => 0,
        _ => panic!("there are 31 general registers"),
    })
}

/// Vector register `v0` to `v31`.
///
/// # Panics
/// When there is no such register.
#[must_use]
pub const fn vector(number: u32) -> RegisterSet {
    assert!(number < 32, "there are 32 vector registers");
    RegisterSet(1 << (30 + number))
}

/// Decodes the bytes of an instruction.
pub(super) fn decode(bytes: &[u8]) -> Instruction {
    let Ok(bytes) = <[u8; LENGTH]>::try_from(bytes) else {
        return Instruction::UNKNOWN;
    };
    let word = u32::from_le_bytes(bytes);
    let Some(found) = decoder::decode(word) else {
        return Instruction::UNKNOWN;
    };
    let definition = found.definition();
    let Some((class, loads, stores)) = class::of(definition, word) else {
        return Instruction::UNKNOWN;
    };
    let used = operands::used(definition, word, loads, stores);
    Instruction {
        class,
        reads: used.reads,
        addresses: used.addresses,
        writes: used.writes,
        loads: loads.into(),
        stores: stores.into(),
        fuses: fuses(definition, word),
        copies: false,
    }
}

/// Comparisons: `cmp`, `cmn`, `tst`, and `bics` without a result, with an immediate or a register that
/// is not shifted (Arm, Neoverse V2 software optimization guide, "Instruction fusion").
fn fuses(definition: &Insn, word: u32) -> bool {
    const ZERO_REGISTER: u32 = 31;
    /// The amount of a shift.
    const SHIFT: u32 = 0x3f << 10;
    let is_plain = match definition.class {
        InsnClass::ADDSUB_IMM | InsnClass::LOG_IMM => true,
        InsnClass::ADDSUB_SHIFT | InsnClass::LOG_SHIFT => word & SHIFT == 0,
        _ => false,
    };
    is_plain
        && matches!(definition.mnemonic, "adds" | "subs" | "ands" | "bics")
        && word & 31 == ZERO_REGISTER
}

/// Folding of a block's accesses: those of an instruction that accesses more than a general
/// register's worth are one. QEMU makes them a register at a time, and those of vectors in words,
/// or, where structures are interleaved, in elements.
pub(super) fn folding(code: BlockCode<'_>) -> Folding {
    let accesses_much = |bytes: &[u8]| {
        let word = <[u8; LENGTH]>::try_from(bytes).map(u32::from_le_bytes);
        word.is_ok_and(|word| {
            decoder::decode(word).is_some_and(|found| class::is_wide(found.definition(), word))
        })
    };
    if code.encodings().any(|(_, bytes)| accesses_much(bytes)) {
        Folding::Elements
    } else {
        Folding::Nothing
    }
}
