//! REGDEPS, the synthetic instructions of Google's workload traces: registers and kinds of operations
//! without the code (`DynamoRIO`, `core/ir/isa_regdeps/encoding_common.h`).
//!
//! ```text
//! header    categories: 22 | reads flags: 1 | writes flags: 1 | registers read: 4 | written: 4
//! operands  size of the operation: 8 | numbers of registers, 8 each: written, then read
//! ```
//!
//! Operands are missing where there are none. An encoding is padded to 4 bytes. Registers of memory
//! operands count as read, and are not told from others: of what an instruction reads, its addresses are
//! taken to be made of all but vector registers, and but what it writes as well if it computes. The stack
//! pointer is the register that the first call reads and writes, where it writes no other.

use super::class::OperationClass as Class;
use super::instruction::{Instruction, RegisterSet};
use super::registers::{NumberedRegisters, RegisterKind};

/// Operands that an instruction has at most.
const MAX_OPERANDS: usize = 8;
/// Bytes of the longest encoding.
pub const MAX_ENCODING: usize = 16;

/// Kinds of operations, bits of a header from bit 10 on.
mod category {
    pub(super) const FLOAT: u32 = 1;
    pub(super) const LOAD: u32 = 1 << 1;
    pub(super) const STORE: u32 = 1 << 2;
    pub(super) const SIMD: u32 = 1 << 4;
    pub(super) const STATE: u32 = 1 << 5;
    pub(super) const MOVE: u32 = 1 << 6;
    pub(super) const CONVERT: u32 = 1 << 7;
    pub(super) const MATH: u32 = 1 << 8;
}
use category::{CONVERT, FLOAT, LOAD, MATH, MOVE, SIMD, STATE, STORE};

const WRITES_FLAGS: u32 = 1 << 8;
const READS_FLAGS: u32 = 1 << 9;
const CATEGORIES_SHIFT: u32 = 10;

/// Registers of a trace of REGDEPS instructions.
#[derive(Clone, Debug, Default)]
pub struct Regdeps {
    registers: NumberedRegisters,
    stack_pointer: Option<u8>,
}

impl Regdeps {
    /// Decodes an instruction, which is a branch of class `branch` if the trace says so. `None` where
    /// the bytes are no encoding.
    pub fn decode(&mut self, bytes: &[u8], branch: Option<Class>) -> Option<Instruction> {
        let header = u32::from_le_bytes(*bytes.first_chunk()?);
        let (written, read) = (header as usize & 15, header as usize >> 4 & 15);
        let operands = match written + read {
            0 => &[],
            count if count <= MAX_OPERANDS => bytes.get(5..5 + count)?,
            _ => return None,
        };
        let (written, read) = operands.split_at(written);
        let categories = header >> CATEGORIES_SHIFT;
        let class = branch.unwrap_or_else(|| class(categories, header, written, read));
        if let (Class::Call | Class::CallIndirect, None, [only]) =
            (class, self.stack_pointer, written)
            && read.contains(only)
        {
            self.stack_pointer = Some(*only);
        }
        let on_stack = self
            .stack_pointer
            .filter(|pointer| written.contains(pointer) && read.contains(pointer));
        let calls = on_stack.is_some() && matches!(class, Class::Call | Class::CallIndirect);
        let returns = on_stack.is_some() && class == Class::Return;
        let is_vector = categories & (FLOAT | SIMD) != 0;
        let accesses = categories & (LOAD | STORE) != 0 || calls || returns;
        let kind = |vector: bool| {
            if vector {
                RegisterKind::Vector
            } else {
                RegisterKind::General
            }
        };
        let mut writes = self.set(written, kind(is_vector));
        let reads = self.set(read, kind(is_vector && !accesses));
        let mut addresses = RegisterSet::EMPTY;
        if accesses {
            let computes = categories & (MATH | FLOAT | SIMD | CONVERT) != 0;
            let operands = if computes { writes.0 } else { 0 };
            let general = reads.0 & !vectors();
            addresses = [general & !operands, general, reads.0]
                .into_iter()
                .find(|&set| set != 0)
                .map_or(RegisterSet::EMPTY, RegisterSet);
            if let Some(pointer) = on_stack
                && matches!(
                    class,
                    Class::Load | Class::Store | Class::Call | Class::CallIndirect | Class::Return
                )
            {
                // They move it by a constant, for which nobody waits.
                let register = self.registers.of(pointer, RegisterKind::General);
                writes = RegisterSet(writes.0 & !register.0);
                if class != Class::CallIndirect {
                    addresses = register;
                }
            }
        }
        let flags = |bit| {
            if header & bit == 0 {
                RegisterSet::EMPTY
            } else {
                RegisterSet::FLAGS
            }
        };
        Some(Instruction {
            class,
            reads: reads.with(flags(READS_FLAGS)),
            addresses,
            writes: writes.with(flags(WRITES_FLAGS)),
            loads: u8::from(categories & LOAD != 0 || returns),
            stores: u8::from(categories & STORE != 0 || calls),
            fuses: false,
            copies: false,
        })
    }

    fn set(&mut self, numbers: &[u8], kind: RegisterKind) -> RegisterSet {
        let one = |set: RegisterSet, &number: &u8| set.with(self.registers.of(number, kind));
        numbers.iter().fold(RegisterSet::EMPTY, one)
    }
}

/// Bits that vector registers have as long as there are enough.
const fn vectors() -> u64 {
    ((1 << 40) - 1) << 17
}

/// Execution class of an instruction that is no branch. Additions, multiplications and divisions
/// are one category: multiplications of integers that write two registers are told by these,
/// divisions by a third that they read.
fn class(categories: u32, header: u32, written: &[u8], read: &[u8]) -> Class {
    let has = |category: u32| categories & category != 0;
    match () {
        () if has(STATE) => Class::Other,
        () if has(FLOAT) && has(CONVERT) => Class::FloatConvert,
        () if has(FLOAT) && has(MATH) => Class::FloatAdd,
        () if !has(MATH) && has(LOAD) && !has(STORE) => Class::Load,
        () if !has(MATH) && has(STORE) && !has(LOAD) => Class::Store,
        () if has(FLOAT) && !has(MOVE) => Class::FloatOther,
        () if has(FLOAT) || has(SIMD) => Class::VectorSimple,
        () if has(MATH) && written.len() == 2 && read.len() >= 3 => Class::IntegerDivide,
        () if has(MATH) && written.len() == 2 => Class::IntegerMultiply,
        () if header & READS_FLAGS != 0 => Class::IntegerSelect,
        () if written.is_empty() && read.is_empty() && header & WRITES_FLAGS == 0 => Class::Nop,
        () => Class::IntegerSimple,
    }
}
