//! Registers that an instruction of aarch64 reads and writes.
//!
//! The table lists operands in the order of assembler text: the first one is the result, but for
//! stores, comparisons and branches, which have none, and for a few more.

use disarm64::Insn;
use disarm64_defn::InsnClass as Group;
use disarm64_defn::InsnOperandKind as Kind;

use super::class::{BUT_REGISTER, READ_FLAGS, WRITE_FLAGS};
use super::{NZCV, RegisterSet, STACK_POINTER, general, vector};

/// The register in which calls leave where they return to.
const LINK: u32 = 30;

/// Registers that an instruction uses.
#[derive(Clone, Copy, Default)]
pub(super) struct Used {
    pub(super) reads: RegisterSet,
    /// Those of `reads` that say where its memory operand is.
    pub(super) addresses: RegisterSet,
    pub(super) writes: RegisterSet,
}

/// Registers that an operand names.
enum Operand {
    Register(RegisterSet),
    Address(RegisterSet),
    /// Neither.
    Other,
}

/// The registers of an instruction that loads and stores, or not.
pub(super) fn used(definition: &Insn, word: u32, loads: bool, stores: bool) -> Used {
    let name = definition.mnemonic;
    let mut used = Used::default();
    let mut registers = Vec::with_capacity(definition.operands.len());
    let mut before = None;
    for operand in definition.operands {
        let named = match (operand.kind, before.replace(operand.kind)) {
            (Kind::PAIRREG, Some(Kind::Rs)) => Operand::Register(next_of_pair(word, 16)),
            (Kind::PAIRREG, _) => Operand::Register(next_of_pair(word, 0)),
            (kind, _) => operand_of(kind, name, word),
        };
        match named {
            Operand::Register(set) => registers.push(set),
            Operand::Address(set) => {
                used.reads = used.reads.with(set);
                if loads || stores {
                    used.addresses = used.addresses.with(set);
                }
            }
            Operand::Other => {}
        }
    }
    // The amount that an access moves its address on, when that is in a register.
    if before == Some(Kind::SIMD_ADDR_POST) {
        used.reads = used.reads.with(general(field(word, 16)));
    }
    for (place, &set) in registers.iter().enumerate() {
        let (reads, writes) = role(definition, place, loads, stores);
        if reads {
            used.reads = used.reads.with(set);
        }
        if writes {
            used.writes = used.writes.with(set);
        }
    }
    if is_zeroing(definition.class, stores) {
        used.addresses = used.reads;
    }
    if matches!(definition.class, Group::BRANCH_IMM | Group::BRANCH_REG) {
        if name.starts_with("bl") {
            used.writes = used.writes.with(general(LINK));
        } else if name.starts_with("reta") {
            used.reads = used.reads.with(general(LINK)).with(STACK_POINTER);
        }
    }
    if reads_flags(definition, word) {
        used.reads = used.reads.with(NZCV);
    }
    if writes_flags(definition, word) {
        used.writes = used.writes.with(NZCV);
    }
    used
}

/// `dc zva`, the only one of its group that stores: its register is an address.
fn is_zeroing(group: Group, stores: bool) -> bool {
    group == Group::IC_SYSTEM && stores
}

/// Returns whether the instruction reads, and whether it writes, the register operand at a place.
fn role(definition: &Insn, place: usize, loads: bool, stores: bool) -> (bool, bool) {
    let name = definition.mnemonic;
    let first = place == 0;
    match definition.class {
        Group::CONDCMP_IMM
        | Group::CONDCMP_REG
        | Group::FLOATCMP
        | Group::FLOATCCMP
        | Group::BRANCH_REG
        | Group::COMPBRANCH
        | Group::TESTBRANCH => (true, false),
        Group::IC_SYSTEM => {
            let result = matches!(name, "mrs" | "sysl");
            (!result, result)
        }
        // Whether it stored comes first.
        Group::LDSTEXCL if stores && name.contains('x') => (!first, first),
        // What was there replaces what it is compared with; of the others, it is the second one.
        Group::LSE_ATOMIC if name.starts_with("casp") => (true, place < 2),
        Group::LSE_ATOMIC if name.starts_with("cas") => (true, first),
        Group::LSE_ATOMIC if loads && stores => (first, !first),
        _ if stores => (true, false),
        // A lane of a vector is loaded.
        Group::ASISDLSO | Group::ASISDLSOP if loads => (!name.ends_with('r'), true),
        _ if loads => (false, true),
        _ if first => (keeps_some(definition), true),
        _ => (true, false),
    }
}

/// Returns true if part of the result's register is left in it, or goes into the result.
fn keeps_some(definition: &Insn) -> bool {
    let name = definition.mnemonic;
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    match definition.class {
        Group::MOVEWIDE => name == "movk",
        Group::BITFIELD => name == "bfm",
        // Signs and checks the address that is there.
        Group::DP_1SRC => has(&["pac", "aut"]),
        Group::ASIMDINS => name == "ins",
        Group::ASIMDTBL => name == "tbx",
        Group::ASIMDIMM => matches!(name, "bic" | "orr"),
        Group::DOTPRODUCT | Group::AARCH64_MISC | Group::CRYPTOSM3 => true,
        Group::CRYPTOAES => matches!(name, "aese" | "aesd"),
        Group::CRYPTOSHA2 => name != "sha1h",
        Group::CRYPTOSHA3 => name.starts_with("sha"),
        Group::BFLOAT16 => !matches!(name, "bfcvt" | "bfcvtn"),
        Group::ASIMDPERM => false,
        group if super::class::is_vector(group) => {
            // Products that are added up; sums of differences; the upper half of a vector.
            has(&["mla", "mls", "aba"])
                || name.ends_with("n2")
                || name.ends_with("sra")
                || matches!(name, "bif" | "bit" | "bsl" | "sri" | "sli")
                || matches!(name, "sadalp" | "uadalp" | "suqadd" | "usqadd")
        }
        _ => false,
    }
}

fn reads_flags(definition: &Insn, word: u32) -> bool {
    matches!(
        definition.class,
        Group::ADDSUB_CARRY
            | Group::CONDBRANCH
            | Group::CONDCMP_IMM
            | Group::CONDCMP_REG
            | Group::CONDSEL
            | Group::FLOATCCMP
            | Group::FLOATSEL
    ) || changes_flags(definition)
        || word & BUT_REGISTER == READ_FLAGS
}

fn writes_flags(definition: &Insn, word: u32) -> bool {
    let sets = match definition.class {
        Group::CONDCMP_IMM | Group::CONDCMP_REG | Group::FLOATCMP | Group::FLOATCCMP => true,
        Group::ADDSUB_CARRY
        | Group::ADDSUB_EXT
        | Group::ADDSUB_IMM
        | Group::ADDSUB_SHIFT
        | Group::LOG_IMM
        | Group::LOG_SHIFT => definition.mnemonic.ends_with('s'),
        Group::DP_2SRC => definition.mnemonic == "subps",
        _ => false,
    };
    sets || changes_flags(definition) || word & BUT_REGISTER == WRITE_FLAGS
}

/// Instructions that set some of the flags, or all of them from what they were.
fn changes_flags(definition: &Insn) -> bool {
    matches!(
        definition.mnemonic,
        "cfinv" | "rmif" | "setf8" | "setf16" | "axflag" | "xaflag"
    )
}

/// Five bits of an instruction: the number of a register.
const fn field(word: u32, from: u32) -> u32 {
    word >> from & 31
}

/// A general register, or the stack pointer as 31.
const fn or_stack_pointer(number: u32) -> RegisterSet {
    match number {
        31 => STACK_POINTER,
        number => general(number),
    }
}

/// So many vector registers in a row; v0 follows v31.
fn row(first: u32, count: u32) -> RegisterSet {
    let numbers = (first..first + count).map(|number| vector(number % 32));
    numbers.fold(RegisterSet::EMPTY, RegisterSet::with)
}

/// The second register of a pair, of which the first has an even number.
fn next_of_pair(word: u32, from: u32) -> RegisterSet {
    general(field(word, from) | 1)
}

fn operand_of(kind: Kind, name: &str, word: u32) -> Operand {
    Operand::Register(match kind {
        Kind::Rd | Kind::Rt | Kind::Rt_SYS => general(field(word, 0)),
        Kind::Rd_SP | Kind::Rt_SP => or_stack_pointer(field(word, 0)),
        Kind::Rn => general(field(word, 5)),
        Kind::Rn_SP => or_stack_pointer(field(word, 5)),
        Kind::Ra | Kind::Rt2 => general(field(word, 10)),
        Kind::Rm | Kind::Rm_EXT | Kind::Rm_SFT | Kind::Rm_LSL | Kind::Rs => {
            general(field(word, 16))
        }
        Kind::Rm_SP => or_stack_pointer(field(word, 16)),
        Kind::Fd | Kind::Sd | Kind::Vd | Kind::Ed | Kind::VdD1 | Kind::Ft => vector(field(word, 0)),
        Kind::Fn | Kind::Sn | Kind::Vn | Kind::En | Kind::VnD1 => vector(field(word, 5)),
        Kind::Fa | Kind::Va | Kind::Ft2 => vector(field(word, 10)),
        // Of halves, the fifth bit is part of the element's index.
        Kind::Em16 if word >> 22 & 2 == 0 => vector(field(word, 16) & 15),
        Kind::Fm | Kind::Sm | Kind::Vm | Kind::Em | Kind::Em16 => vector(field(word, 16)),
        Kind::LVn => row(field(word, 5), (word >> 13 & 3) + 1),
        Kind::LVt => row(field(word, 0), structures(word)),
        Kind::LEt | Kind::LVt_AL => row(field(word, 0), digit(name)),
        Kind::ADDR_SIMPLE
        | Kind::ADDR_OFFSET
        | Kind::ADDR_SIMM7
        | Kind::ADDR_SIMM9
        | Kind::ADDR_SIMM10
        | Kind::ADDR_SIMM11
        | Kind::ADDR_SIMM13
        | Kind::ADDR_UIMM12
        | Kind::SIMD_ADDR_SIMPLE
        | Kind::SIMD_ADDR_POST
        | Kind::RCPC3_ADDR_OFFSET
        | Kind::RCPC3_ADDR_POSTIND
        | Kind::RCPC3_ADDR_PREIND_WB
        | Kind::RCPC3_ADDR_OPT_POSTIND
        | Kind::RCPC3_ADDR_OPT_PREIND_WB => {
            return Operand::Address(or_stack_pointer(field(word, 5)));
        }
        Kind::ADDR_REGOFF => {
            let base = or_stack_pointer(field(word, 5));
            return Operand::Address(base.with(general(field(word, 16))));
        }
        _ => return Operand::Other,
    })
}

/// Registers of a load or store of multiple structures, by its opcode (Arm ARM, "Advanced SIMD
/// load/store multiple structures").
const fn structures(word: u32) -> u32 {
    match word >> 12 & 15 {
        0b0000 | 0b0010 => 4,
        0b0100 | 0b0110 => 3,
        0b1000 | 0b1010 => 2,
        _ => 1,
    }
}

/// The digit of `ld1` to `ld4r`: registers of a load or store of one structure.
fn digit(name: &str) -> u32 {
    let digit = name.chars().find_map(|letter| letter.to_digit(10));
    digit.unwrap_or(1).clamp(1, 4)
}
