//! What the instructions of a block do to registers and memory, for models of cores.
//!
//! A core model wants to know two things of an instruction: which unit executes it, and which
//! earlier instructions it has to wait for. The first is an [`OperationClass`]; the second follows
//! from the [`RegisterSet`]s that it reads and writes. Both are worked out once for each block.
//! [`RegisterSet`] says how registers are told apart.

mod class;
mod folding;

use std::fmt;

use iced_x86::{
    Decoder, DecoderOptions, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits,
};

pub use class::OperationClass;
pub use folding::{Folding, folding};

use crate::code::BlockCode;

/// Registers of x86-64, one bit each.
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

    /// Whether the sets have a register in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set has any of the vector or mask registers.
    #[must_use]
    pub const fn has_vectors(self) -> bool {
        self.0 & (((1 << 40) - 1) << 17) != 0
    }

    fn of(register: Register) -> Self {
        if register.is_gpr() {
            Self::general(register.full_register().number() as u32)
        } else if register.is_vector_register() {
            Self::vector(register.number() as u32)
        } else if register.is_k() {
            Self::mask(register.number() as u32)
        } else if register.is_st() || register.is_mm() {
            Self::X87
        } else if register.is_ip() || register == Register::None {
            Self::EMPTY
        } else {
            Self::OTHER
        }
    }

    /// The registers that hold these flags.
    fn of_flags(bits: u32) -> Self {
        const STATUS: u32 = RflagsBits::CF
            | RflagsBits::PF
            | RflagsBits::AF
            | RflagsBits::ZF
            | RflagsBits::SF
            | RflagsBits::OF;
        const X87: u32 = RflagsBits::C0 | RflagsBits::C1 | RflagsBits::C2 | RflagsBits::C3;
        [
            (STATUS, Self::FLAGS),
            (X87, Self::X87),
            (!(STATUS | X87), Self::OTHER),
        ]
        .into_iter()
        .filter(|(mask, _)| bits & mask != 0)
        .fold(Self::EMPTY, |set, (_, register)| set.with(register))
    }
}

impl fmt::Debug for RegisterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GENERAL: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15",
        ];
        let name = |bit: u32| match bit {
            0..16 => GENERAL[bit as usize].to_owned(),
            16 => "flags".to_owned(),
            17..25 => format!("k{}", bit - 17),
            25..57 => format!("zmm{}", bit - 25),
            57 => "x87".to_owned(),
            _ => "other".to_owned(),
        };
        let members = (0..u64::BITS)
            .filter(|bit| self.0 >> bit & 1 != 0)
            .map(name);
        f.debug_set().entries(members).finish()
    }
}

/// One instruction, as a core model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What executes it.
    pub class: OperationClass,
    /// What it waits for.
    pub reads: RegisterSet,
    /// Those of `reads` that say where its memory operands are: an access waits for no more.
    pub addresses: RegisterSet,
    /// What waits for it.
    pub writes: RegisterSet,
    /// Operands that it loads from memory. A repeated string instruction counts once.
    pub loads: u8,
    /// Operands that it stores to memory.
    pub stores: u8,
    /// Whether a conditional branch right behind it is executed with it, as one operation (Intel
    /// 248966, "Macro-fusion"; AMD's cores fuse the same and some more).
    pub fuses: bool,
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
    };
}

/// Decodes the x86-64 code of a block into `out`, which then has one entry for each of its
/// instructions. [`Instruction::UNKNOWN`] stands for those that cannot be decoded, or whose length
/// is not what the block says.
pub fn decode_block(code: BlockCode<'_>, out: &mut Vec<Instruction>) {
    out.clear();
    let mut factory = InstructionInfoFactory::new();
    let mut address = code.address.get();
    let mut bytes = code.bytes;
    for &length in code.lengths {
        let (instruction, rest) = bytes.split_at_checked(length.into()).unwrap_or_default();
        out.push(decode(instruction, address, &mut factory));
        address = address.wrapping_add(length.into());
        bytes = rest;
    }
}

fn decode(bytes: &[u8], address: u64, factory: &mut InstructionInfoFactory) -> Instruction {
    let decoded = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    if decoded.is_invalid() || decoded.len() != bytes.len() {
        return Instruction::UNKNOWN;
    }
    analyse(&decoded, factory.info(&decoded))
}

fn analyse(decoded: &iced_x86::Instruction, info: &InstructionInfo) -> Instruction {
    let mut reads = RegisterSet::of_flags(decoded.rflags_read());
    let mut writes = RegisterSet::of_flags(decoded.rflags_modified());
    // Clearing the upper halves of all vector registers makes nobody wait: cores keep one bit for
    // whether there is anything in them (Intel's optimisation manual, section 15.3.1).
    if !matches!(
        decoded.mnemonic(),
        Mnemonic::Vzeroupper | Mnemonic::Vzeroall
    ) {
        for used in info.used_registers() {
            let register = RegisterSet::of(used.register());
            if is_read(used.access()) || keeps_some(used.register(), used.access()) {
                reads = reads.with(register);
            }
            if is_written(used.access()) {
                writes = writes.with(register);
            }
        }
    }
    let count = |matching: fn(OpAccess) -> bool| {
        let operands = info.used_memory().iter();
        operands
            .filter(|used| matching(used.access()))
            .count()
            .min(255) as u8
    };
    let (loads, stores) = (count(is_read), count(is_written));
    let addresses = info
        .used_memory()
        .iter()
        .filter(|used| is_read(used.access()) || is_written(used.access()))
        .flat_map(|used| [used.base(), used.index(), segment_with_base(used.segment())])
        .fold(RegisterSet::EMPTY, |set, register| {
            set.with(RegisterSet::of(register))
        });
    Instruction {
        class: OperationClass::of(decoded, reads.with(writes).has_vectors(), loads, stores),
        reads,
        addresses: RegisterSet(addresses.0 & reads.0),
        writes,
        loads,
        stores,
        fuses: stores == 0 && fuses(decoded),
    }
}

/// Conditions that do not go with a comparison (sign, parity, overflow) are not told apart.
fn fuses(decoded: &iced_x86::Instruction) -> bool {
    let sets_flags = matches!(
        decoded.mnemonic(),
        Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::And
            | Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Inc
            | Mnemonic::Dec
    );
    // Intel's cores do not fuse what has both an immediate and an address relative to RIP.
    let last = decoded.op_kind(decoded.op_count().saturating_sub(1));
    let is_immediate = !matches!(last, OpKind::Register | OpKind::Memory);
    sets_flags && !(is_immediate && decoded.is_ip_rel_memory_operand())
}

/// The segment register, if it adds anything to an address: in 64-bit mode only FS and GS do.
const fn segment_with_base(segment: Register) -> Register {
    match segment {
        Register::FS | Register::GS => segment,
        _ => Register::None,
    }
}

const fn is_read(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

const fn is_written(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Whether a write leaves something in the register that was there before.
fn keeps_some(register: Register, access: OpAccess) -> bool {
    access == OpAccess::CondWrite
        || is_written(access) && (register.is_gpr8() || register.is_gpr16())
}
