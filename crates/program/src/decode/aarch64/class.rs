//! Execution class of an instruction of aarch64, and its access to memory.

use disarm64::Insn;
use disarm64_defn::InsnClass as Group;

use super::OperationClass as Class;

/// `dc zva`, but for its register: zeroes a block of memory.
const ZERO_BLOCK: u32 = 0xd50b_7420;
/// `mrs` from NZCV and from `TPIDR_EL0`, where a thread's variables are, but for the register; `msr` to
/// NZCV.
pub(super) const READ_FLAGS: u32 = 0xd53b_4200;
const READ_THREAD: u32 = 0xd53b_d040;
pub(super) const WRITE_FLAGS: u32 = 0xd51b_4200;
/// All bits but those of the register in bits 0 to 4.
pub(super) const BUT_REGISTER: u32 = !31;

/// The class of an instruction, and whether it loads and stores; `None` for groups that are not
/// modeled.
pub(super) fn of(definition: &Insn, word: u32) -> Option<(Class, bool, bool)> {
    let name = definition.mnemonic;
    Some(match definition.class {
        group if is_access(group) => access(name),
        Group::LSE_ATOMIC => atomic(name, word),
        Group::IC_SYSTEM => return Some(system(name, word)),
        group => (compute(group, name, word)?, false, false),
    })
}

/// Returns true if the access is of more than a general register's worth.
pub(super) fn is_wide(definition: &Insn, word: u32) -> bool {
    /// Loads and stores of vector registers have this bit (Arm ARM, C4.1, "Loads and Stores").
    const VECTOR: u32 = 1 << 26;
    match definition.class {
        Group::LDSTPAIR_OFF | Group::LDSTPAIR_INDEXED | Group::LDSTNAPAIR_OFFS => true,
        Group::LDSTEXCL => definition.mnemonic.ends_with('p'),
        group => is_access(group) && word & VECTOR != 0,
    }
}

/// The groups of loads and stores that are no atomic operations.
fn is_access(group: Group) -> bool {
    matches!(
        group,
        Group::LDST_IMM10
            | Group::LDST_IMM9
            | Group::LDST_POS
            | Group::LDST_REGOFF
            | Group::LDST_UNPRIV
            | Group::LDST_UNSCALED
            | Group::LDSTEXCL
            | Group::LDSTNAPAIR_OFFS
            | Group::LDSTPAIR_INDEXED
            | Group::LDSTPAIR_OFF
            | Group::LOADLIT
            | Group::RCPC3
            | Group::ASISDLSE
            | Group::ASISDLSEP
            | Group::ASISDLSO
            | Group::ASISDLSOP
    )
}

fn access(name: &str) -> (Class, bool, bool) {
    if name.starts_with("ld") {
        (Class::Load, true, false)
    } else if name.starts_with("st") {
        (Class::Store, false, true)
    } else {
        // prfm, prfum
        (Class::Nop, false, false)
    }
}

/// Those that order nothing around them are read-modify-writes as any other.
fn atomic(name: &str, word: u32) -> (Class, bool, bool) {
    if name.starts_with("ld64") {
        return (Class::Load, true, false);
    }
    if name.starts_with("st") {
        return (Class::Store, false, true);
    }
    // Acquire and release (Arm ARM, "Compare and Swap", "Atomic memory operations").
    let order = if name.starts_with("cas") {
        1 << 22 | 1 << 15
    } else {
        1 << 23 | 1 << 22
    };
    if word & order == 0 {
        (Class::IntegerSimple, true, true)
    } else {
        (Class::Atomic, true, true)
    }
}

fn system(name: &str, word: u32) -> (Class, bool, bool) {
    let class = match (name, word & BUT_REGISTER) {
        (_, ZERO_BLOCK) => return (Class::Store, false, true),
        (_, READ_FLAGS | READ_THREAD | WRITE_FLAGS)
        | ("cfinv" | "rmif" | "setf8" | "setf16", _) => Class::IntegerSimple,
        // Of the hints, those that sign and check return addresses (`paciasp`), too.
        ("hint" | "clrex", _) => Class::Nop,
        ("dmb" | "dsb" | "isb" | "sb", _) => Class::Serializing,
        _ => Class::Other,
    };
    (class, false, false)
}

/// Everything that accesses no memory.
fn compute(group: Group, name: &str, word: u32) -> Option<Class> {
    /// Registers are of 64 bits.
    const WIDE: u32 = 1 << 31;
    Some(match group {
        // axflag, xaflag
        Group::AARCH64_MISC if name.ends_with("flag") => Class::IntegerSimple,
        Group::DP_2SRC if name.ends_with("div") && word & WIDE != 0 => Class::IntegerDivide64,
        Group::DP_2SRC if name.ends_with("div") => Class::IntegerDivide,
        Group::DP_2SRC if name.starts_with("crc32") => Class::IntegerMultiply,
        Group::ADDSUB_CARRY
        | Group::ADDSUB_EXT
        | Group::ADDSUB_IMM
        | Group::ADDSUB_SHIFT
        | Group::BITFIELD
        | Group::CONDCMP_IMM
        | Group::CONDCMP_REG
        | Group::CONDSEL
        | Group::CSSC
        | Group::DP_1SRC
        | Group::DP_2SRC
        | Group::EXTRACT
        | Group::LOG_IMM
        | Group::LOG_SHIFT
        | Group::MOVEWIDE
        | Group::PCRELADDR => Class::IntegerSimple,
        Group::DP_3SRC => Class::IntegerMultiply,
        Group::BRANCH_IMM if name == "bl" => Class::Call,
        Group::BRANCH_IMM => Class::Jump,
        Group::BRANCH_REG if name.starts_with("blr") => Class::CallIndirect,
        Group::BRANCH_REG if name.starts_with("br") => Class::JumpIndirect,
        Group::BRANCH_REG if name.starts_with("ret") => Class::Return,
        Group::CONDBRANCH | Group::COMPBRANCH | Group::TESTBRANCH => Class::BranchConditional,
        Group::EXCEPTION if name == "svc" => Class::Syscall,
        Group::BRANCH_REG | Group::EXCEPTION => Class::Other,
        Group::FLOATCMP | Group::FLOATCCMP => Class::FloatOther,
        Group::FLOATDP3 => Class::FloatMultiply,
        Group::CRYPTOSHA2 | Group::CRYPTOSHA3 | Group::CRYPTOSM3 | Group::CRYPTOSM4 => {
            Class::VectorMultiply
        }
        Group::AARCH64_MISC if !name.ends_with("mmla") && name != "usdot" => Class::Other,
        group if is_vector(group) => vector(name),
        _ => return None,
    })
}

/// The groups in which the name tells what a vector unit does.
pub(super) fn is_vector(group: Group) -> bool {
    matches!(
        group,
        Group::AARCH64_MISC
            | Group::ASIMDALL
            | Group::ASIMDDIFF
            | Group::ASIMDELEM
            | Group::ASIMDEXT
            | Group::ASIMDIMM
            | Group::ASIMDINS
            | Group::ASIMDMISC
            | Group::ASIMDPERM
            | Group::ASIMDSAME
            | Group::ASIMDSHF
            | Group::ASIMDTBL
            | Group::ASISDDIFF
            | Group::ASISDELEM
            | Group::ASISDMISC
            | Group::ASISDONE
            | Group::ASISDPAIR
            | Group::ASISDSAME
            | Group::ASISDSHF
            | Group::BFLOAT16
            | Group::CRYPTOAES
            | Group::DOTPRODUCT
            | Group::FLOAT2FIX
            | Group::FLOAT2INT
            | Group::FLOATDP1
            | Group::FLOATDP2
            | Group::FLOATIMM
            | Group::FLOATSEL
    )
}

/// Names of operations on floating-point numbers begin with an f, conversions to them end with one.
fn vector(name: &str) -> Class {
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if begins(&["fml", "fmul", "fnmul", "fcmla", "frecps", "frsqrts"]) {
        Class::FloatMultiply
    } else if begins(&[
        "fcvt", "frint", "fcm", "fac", "frecp", "frsqrt", "fjcvt", "bfcvt", "scvtf", "ucvtf",
        "urecpe", "ursqrte",
    ]) {
        Class::FloatOther
    } else if begins(&["fdiv", "fsqrt"]) {
        Class::FloatDivide
    } else if begins(&[
        "fadd", "fsub", "fmax", "fmin", "fabd", "fcadd", "famax", "famin",
    ]) {
        Class::FloatAdd
    } else if has(&["mul", "mla", "mls", "dot"]) {
        Class::VectorMultiply
    } else {
        Class::VectorSimple
    }
}
