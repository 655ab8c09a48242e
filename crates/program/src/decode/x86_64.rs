//! Code of x86-64.

mod class;

use iced_x86::{
    Decoder, DecoderOptions, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits,
};

use self::class::is_fast_string;
use super::instruction::{Folding, Instruction, RegisterSet};
use crate::code::BlockCode;

/// The widest access that QEMU makes at once.
const WORD: usize = 8;

fn register(register: Register) -> RegisterSet {
    if register.is_gpr() {
        RegisterSet::general(register.full_register().number() as u32)
    } else if register.is_vector_register() {
        RegisterSet::vector(register.number() as u32)
    } else if register.is_k() {
        RegisterSet::mask(register.number() as u32)
    } else if register.is_st() || register.is_mm() {
        RegisterSet::X87
    } else if register.is_ip() || register == Register::None {
        RegisterSet::EMPTY
    } else {
        RegisterSet::OTHER
    }
}

/// The registers that hold these flags.
fn flags(bits: u32) -> RegisterSet {
    const STATUS: u32 = RflagsBits::CF
        | RflagsBits::PF
        | RflagsBits::AF
        | RflagsBits::ZF
        | RflagsBits::SF
        | RflagsBits::OF;
    const X87: u32 = RflagsBits::C0 | RflagsBits::C1 | RflagsBits::C2 | RflagsBits::C3;
    [
        (STATUS, RegisterSet::FLAGS),
        (X87, RegisterSet::X87),
        (!(STATUS | X87), RegisterSet::OTHER),
    ]
    .into_iter()
    .filter(|(mask, _)| bits & mask != 0)
    .fold(RegisterSet::EMPTY, |set, (_, register)| set.with(register))
}

/// Appends the instructions of a block.
pub(super) fn decode_block(code: BlockCode<'_>, out: &mut Vec<Instruction>) {
    let mut factory = InstructionInfoFactory::new();
    out.extend(
        code.encodings()
            .map(|(address, bytes)| decode(bytes, address, &mut factory)),
    );
}

fn decode(bytes: &[u8], address: u64, factory: &mut InstructionInfoFactory) -> Instruction {
    let decoded = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    if decoded.is_invalid() || decoded.len() != bytes.len() {
        return Instruction::UNKNOWN;
    }
    analyze(&decoded, factory.info(&decoded))
}

fn analyze(decoded: &iced_x86::Instruction, info: &InstructionInfo) -> Instruction {
    let mut reads = flags(decoded.rflags_read());
    let mut writes = flags(decoded.rflags_modified());
    // Clearing the upper halves of all vector registers makes nobody wait: cores keep one bit for
    // whether there is anything in them (Intel's optimization manual, section 15.3.1).
    if !matches!(
        decoded.mnemonic(),
        Mnemonic::Vzeroupper | Mnemonic::Vzeroall
    ) {
        for used in info.used_registers() {
            let register = register(used.register());
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
        .fold(RegisterSet::EMPTY, |set, used| set.with(register(used)));
    Instruction {
        class: class::of(decoded, reads.with(writes).has_vectors(), loads, stores),
        reads,
        addresses: RegisterSet(addresses.0 & reads.0),
        writes,
        loads,
        stores,
        fuses: stores == 0 && fuses(decoded),
        copies: loads == 0 && stores == 0 && copies(decoded),
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

/// Moves between whole registers of one kind. A move of 32 bits clears the others.
fn copies(decoded: &iced_x86::Instruction) -> bool {
    let (to, from) = (decoded.op0_register(), decoded.op1_register());
    match decoded.mnemonic() {
        Mnemonic::Mov => to.is_gpr64() && from.is_gpr64() || to.is_gpr32() && from.is_gpr32(),
        Mnemonic::Movaps
        | Mnemonic::Movapd
        | Mnemonic::Movups
        | Mnemonic::Movupd
        | Mnemonic::Movdqa
        | Mnemonic::Movdqu
        | Mnemonic::Vmovaps
        | Mnemonic::Vmovapd
        | Mnemonic::Vmovups
        | Mnemonic::Vmovupd
        | Mnemonic::Vmovdqa
        | Mnemonic::Vmovdqu => to.is_vector_register() && from.is_vector_register(),
        _ => false,
    }
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

/// Returns true if a write leaves part of the register's former contents.
fn keeps_some(register: Register, access: OpAccess) -> bool {
    access == OpAccess::CondWrite
        || is_written(access) && (register.is_gpr8() || register.is_gpr16())
}

/// Folding of a block's accesses.
pub(super) fn folding(code: BlockCode<'_>) -> Folding {
    let mut factory = InstructionInfoFactory::new();
    let mut found = Folding::Nothing;
    for (address, instruction) in code.encodings() {
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
    }
    found
}
