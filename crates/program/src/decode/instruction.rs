//! Decoded instructions, whatever the architecture.

use std::fmt;

use super::class::OperationClass;

/// Registers of an architecture, one bit each. Models use bits 0 to 61.
///
/// Only sets of one architecture can be compared. The constants and functions here are of x86-64; those
/// of aarch64 are in [`aarch64`](super::aarch64).
///
/// A register and all its parts are one bit, since a core renames them together: `al`, `ax` and
/// `eax` are `rax`; `xmm3` and `ymm3` are `zmm3`. An instruction that keeps the rest of a general
/// register (`mov al, 1`) or may leave a register as it is (`cmov`) counts as reading it, too.
/// Not told apart: the six status flags; the x87 and MMX registers, which share a stack; all
/// registers that programs use rarely (segments, tiles, control and debug registers, the flags
/// that are modes such as `DF`). The instruction pointer is left out, as it is known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RegisterSet(pub u64);

impl RegisterSet {
    /// No register.
    pub const EMPTY: Self = Self(0);
    /// The status flags: CF, PF, AF, ZF, SF and OF.
    pub const FLAGS: Self = Self(1 << 16);
    /// The x87 and MMX registers, and the state that goes with them.
    pub const X87: Self = Self(1 << 57);
    /// Everything that has no bit of its own.
    pub const OTHER: Self = Self(1 << 58);

    /// General register 0 to 15, as instructions encode them: `rax`, `rcx`, `rdx`, `rbx`, `rsp`,
    /// `rbp`, `rsi`, `rdi`, `r8`...
    ///
    /// # Panics
    /// When there is no such register.
    #[must_use]
    pub const fn general(number: u32) -> Self {
        assert!(number < 16, "there are 16 general registers");
        Self(1 << number)
    }

    /// Mask register `k0` to `k7`.
    ///
    /// # Panics
    /// When there is no such register.
    #[must_use]
    pub const fn mask(number: u32) -> Self {
        assert!(number < 8, "there are 8 mask registers");
        Self(1 << (17 + number))
    }

    /// Vector register `zmm0` to `zmm31`.
    ///
    /// # Panics
    /// When there is no such register.
    #[must_use]
    pub const fn vector(number: u32) -> Self {
        assert!(number < 32, "there are 32 vector registers");
        Self(1 << (25 + number))
    }

    /// The registers of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the sets have a register in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true if the set has any of the general registers.
    #[must_use]
    pub const fn has_general(self) -> bool {
        self.0 & 0xffff != 0
    }

    /// Returns true if the set has any of the vector or mask registers.
    #[must_use]
    pub const fn has_vectors(self) -> bool {
        self.0 & (((1 << 40) - 1) << 17) != 0
    }
}

impl fmt::Debug for RegisterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = (0..u64::BITS).filter(|bit| self.0 >> bit & 1 != 0);
        f.debug_set().entries(members).finish()
    }
}

/// One instruction, as a core model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Execution class.
    pub class: OperationClass,
    /// Registers that it waits for.
    pub reads: RegisterSet,
    /// Those of `reads` that say where its memory operands are: an access waits for no more.
    pub addresses: RegisterSet,
    /// Registers that it writes.
    pub writes: RegisterSet,
    /// Operands that it loads from memory. A repeated string instruction counts once, and so do the
    /// registers of one instruction of aarch64.
    pub loads: u8,
    /// Operands that it stores to memory.
    pub stores: u8,
    /// True if a conditional branch right behind it is executed with it, as one operation (Intel
    /// 248966, "Macro-fusion"; AMD's cores fuse the same and some more; Arm, Neoverse V2 software
    /// optimization guide, "Instruction fusion").
    pub fuses: bool,
    /// True if it copies a whole register to another of its kind, which cores do by renaming (Intel
    /// 248966, "Move Elimination"; AMD 57647, "Zero-Cycle Moves"). On aarch64 never set.
    pub copies: bool,
}

impl Instruction {
    /// Bytes that are no instruction, or whose code is not known.
    pub const UNKNOWN: Self = Self {
        class: OperationClass::Other,
        reads: RegisterSet::EMPTY,
        addresses: RegisterSet::EMPTY,
        writes: RegisterSet::EMPTY,
        loads: 0,
        stores: 0,
        fuses: false,
        copies: false,
    };
}

/// Rule by which a block's accesses are merged.
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
    /// Some instruction accesses several registers' worth of memory, which comes in parts of any size.
    Elements,
}
