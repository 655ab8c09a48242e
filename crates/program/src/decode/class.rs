//! Execution class of an instruction: the unit that executes it.

/// Kinds of operations, as far as core models tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperationClass {
    /// Does nothing: `nop`, hints, prefetches.
    Nop,
    /// Integer addition, logic, comparison, bit counts, moves between general registers; on aarch64 shifts
    /// and selections, too.
    IntegerSimple,
    /// Shifts and rotations by a constant, those of BMI2 by a register, tests of one bit.
    IntegerShift,
    /// Shifts and rotations by `cl`, which leave the flags as they are where it is 0.
    IntegerShiftVariable,
    /// Operations that depend on flags and are no branches: `setcc`, `cmovcc`, `adc`, `sbb`.
    IntegerSelect,
    /// Integer multiplication.
    IntegerMultiply,
    /// Integer division of up to 64 bits by up to 32.
    IntegerDivide,
    /// Integer division of 128 bits by 64, on aarch64 of 64 bits by 64.
    IntegerDivide64,
    /// Floating-point addition, subtraction, minimum and maximum, scalar or vector.
    FloatAdd,
    /// Floating-point multiplication, with or without an addition in the same operation.
    FloatMultiply,
    /// Floating-point division and square root.
    FloatDivide,
    /// Other floating-point work: conversion of precision, comparison, rounding, x87 functions.
    FloatOther,
    /// Conversion between a general register, or an integer in memory, and a floating-point number.
    FloatConvert,
    /// Vector logic, shuffles, integer addition, moves between vector or mask registers.
    VectorSimple,
    /// Vector integer multiplication.
    VectorMultiply,
    /// From vector to general registers or flags, or back: `movd`, `pmovmskb`, `pextr`, `comisd`, `ptest`.
    VectorTransfer,
    /// Only loads: a move from memory to a register, `pop`.
    Load,
    /// Only stores: a move to memory, `push`.
    Store,
    /// A read-modify-write that no other core may come between, and that orders what is around it:
    /// `lock`, `xchg` with memory; on aarch64 `casa`, `ldaddal` and their like.
    Atomic,
    /// A branch that may not be taken.
    BranchConditional,
    /// A jump to a fixed place.
    Jump,
    /// A jump to a computed place.
    JumpIndirect,
    /// A call of a fixed place.
    Call,
    /// A call of a computed place.
    CallIndirect,
    /// A return.
    Return,
    /// An entry into the kernel.
    Syscall,
    /// Waits until everything before it is done: `cpuid`, fences, barriers.
    Serializing,
    /// A repeated `movs` or `stos`, whose microcode copies or fills many bytes at a time.
    FastString,
    /// Everything else, such as other string and state-saving instructions, which cores execute from
    /// microcode, and bytes that could not be decoded.
    Other,
}

impl OperationClass {
    /// All classes, in order.
    pub const ALL: [Self; 29] = [
        Self::Nop,
        Self::IntegerSimple,
        Self::IntegerShift,
        Self::IntegerShiftVariable,
        Self::IntegerSelect,
        Self::IntegerMultiply,
        Self::IntegerDivide,
        Self::IntegerDivide64,
        Self::FloatAdd,
        Self::FloatMultiply,
        Self::FloatDivide,
        Self::FloatOther,
        Self::FloatConvert,
        Self::VectorSimple,
        Self::VectorMultiply,
        Self::VectorTransfer,
        Self::Load,
        Self::Store,
        Self::Atomic,
        Self::BranchConditional,
        Self::Jump,
        Self::JumpIndirect,
        Self::Call,
        Self::CallIndirect,
        Self::Return,
        Self::Syscall,
        Self::Serializing,
        Self::FastString,
        Self::Other,
    ];
}
