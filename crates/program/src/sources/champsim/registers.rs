//! Instructions of `ChampSim` traces, by their registers.
//!
//! A register is a number from 1 to 255. Three have meanings (`inc/trace_instruction.h`): the stack
//! pointer, the flags, the instruction pointer. By these, `ChampSim` tells branches apart (`inc/instruction.h`),
//! and so does [`Registers::instruction`]; a branch that its rules do not know counts as conditional.
//!
//! Which registers are part of an address is not said. All that are read are taken to be, but flags, and
//! those that are written as well where the instruction computes with what it loads: it writes flags, or
//! the register is none of the 64-bit general registers of Pin's x86 tracer (3 to 18).

use super::Record;
use crate::decode::registers::{NumberedRegisters, RegisterKind};
use crate::decode::{Instruction, OperationClass, RegisterSet};

const STACK_POINTER: u8 = 6;
const FLAGS: u8 = 25;
const INSTRUCTION_POINTER: u8 = 26;
/// `rdi`, `rsi`, `rbp`, `rsp`, `rbx`, `rdx`, `rcx`, `rax`, `r8` to `r15`, as Pin numbers them.
const GENERAL: std::ops::RangeInclusive<u8> = 3..=18;

/// Registers of a trace.
pub(super) struct Registers(NumberedRegisters);

impl Default for Registers {
    fn default() -> Self {
        let mut registers = NumberedRegisters::default();
        registers.assign(STACK_POINTER, RegisterSet::general(4));
        registers.assign(FLAGS, RegisterSet::FLAGS);
        Self(registers)
    }
}

impl Registers {
    /// Decodes the instruction of a record.
    pub(super) fn instruction(&mut self, record: &Record) -> Instruction {
        let [first, second, sources @ ..] = record.registers;
        let written = [first, second];
        let class = class(record, &written, &sources);
        let writes = self.set(&written);
        let reads = self.set(&sources);
        let computes = written.contains(&FLAGS);
        let operands = written
            .into_iter()
            .filter(|number| computes || !GENERAL.contains(number))
            .collect::<Vec<_>>();
        let operands = self.set(&operands).0 | RegisterSet::FLAGS.0;
        let addresses = [reads.0 & !operands, reads.0 & !RegisterSet::FLAGS.0]
            .into_iter()
            .find(|&set| set != 0)
            .unwrap_or(0);
        let count = |addresses: &[u64]| addresses.iter().filter(|&&a| a != 0).count() as u8;
        let (loads, stores) = (count(&record.loads), count(&record.stores));
        let accesses = loads > 0 || stores > 0;
        Instruction {
            class,
            reads,
            addresses: RegisterSet(if accesses { addresses } else { 0 }),
            writes,
            loads,
            stores,
            fuses: false,
            copies: false,
        }
    }

    fn set(&mut self, numbers: &[u8]) -> RegisterSet {
        let mut set = RegisterSet::EMPTY;
        for &number in numbers {
            if number != 0 && number != INSTRUCTION_POINTER {
                let kind = if GENERAL.contains(&number) {
                    RegisterKind::General
                } else {
                    RegisterKind::Vector
                };
                set = set.with(self.0.of(number, kind));
            }
        }
        set
    }
}

/// Execution class of an instruction: branches as `ChampSim` knows them, others by their accesses.
fn class(record: &Record, written: &[u8], sources: &[u8]) -> OperationClass {
    let writes = |number| written.contains(&number);
    let reads = |number| sources.contains(&number);
    let others = sources
        .iter()
        .any(|number| ![0, STACK_POINTER, FLAGS, INSTRUCTION_POINTER].contains(number));
    let (pointer, flags, stack) = (
        reads(INSTRUCTION_POINTER),
        reads(FLAGS),
        reads(STACK_POINTER),
    );
    if writes(INSTRUCTION_POINTER) {
        return match (stack && writes(STACK_POINTER), pointer, flags, others) {
            (true, true, false, false) => OperationClass::Call,
            (true, true, false, true) => OperationClass::CallIndirect,
            (true, false, ..) => OperationClass::Return,
            (false, _, false, false) if !stack => OperationClass::Jump,
            (false, false, false, true) if !stack => OperationClass::JumpIndirect,
            _ => OperationClass::BranchConditional,
        };
    }
    let loads = record.loads.iter().any(|&address| address != 0);
    let stores = record.stores.iter().any(|&address| address != 0);
    match (record.is_branch, loads, stores) {
        (true, ..) => OperationClass::BranchConditional,
        (_, true, false) if !writes(FLAGS) => OperationClass::Load,
        (_, false, true) if !writes(FLAGS) => OperationClass::Store,
        (_, false, false) if record.registers == [0; 6] => OperationClass::Nop,
        _ => OperationClass::IntegerSimple,
    }
}
