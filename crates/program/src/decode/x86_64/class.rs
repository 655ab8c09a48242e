//! Execution class of an instruction of x86-64.
//!
//! x86 has some 1,900 mnemonics and a core a dozen kinds of units, so the classes follow from the
//! regular way in which mnemonics are named, and only what is irregular is listed. The rules run
//! once for every mnemonic there is; after that an instruction costs one look-up.

use std::sync::LazyLock;

use iced_x86::{Code, FlowControl, Mnemonic, OpKind, Register};

use crate::decode::class::OperationClass;

/// The class of an instruction that makes these numbers of accesses.
pub(super) fn of(
    instruction: &iced_x86::Instruction,
    vectors: bool,
    loads: u8,
    stores: u8,
) -> OperationClass {
    if let Some(class) = of_flow(instruction) {
        return class;
    }
    if is_fast_string(instruction) {
        return OperationClass::FastString;
    }
    if instruction.is_string_instruction() || instruction.is_privileged() {
        return OperationClass::Other;
    }
    let mnemonic = instruction.mnemonic();
    let exchange = mnemonic == Mnemonic::Xchg && stores > 0;
    if instruction.has_lock_prefix() || exchange {
        return OperationClass::Atomic;
    }
    match (KINDS[mnemonic as usize], loads, stores) {
        (Kind::Always(OperationClass::IntegerDivide), ..) if divides_128_bits(instruction) => {
            OperationClass::IntegerDivide64
        }
        (Kind::Always(OperationClass::IntegerShift), ..) if shifts_by_register(instruction) => {
            OperationClass::IntegerShiftVariable
        }
        (Kind::Always(class), ..) => class,
        (Kind::Move, 1.., 0) => OperationClass::Load,
        (Kind::Move, 0, 1..) => OperationClass::Store,
        (Kind::Move, ..) if vectors && has_general_register(instruction) => {
            OperationClass::VectorTransfer
        }
        _ if vectors => OperationClass::VectorSimple,
        _ => OperationClass::IntegerSimple,
    }
}

fn of_flow(instruction: &iced_x86::Instruction) -> Option<OperationClass> {
    Some(match instruction.flow_control() {
        FlowControl::Next | FlowControl::Exception => return None,
        FlowControl::UnconditionalBranch => OperationClass::Jump,
        FlowControl::IndirectBranch => OperationClass::JumpIndirect,
        FlowControl::ConditionalBranch => OperationClass::BranchConditional,
        FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => OperationClass::Return,
        FlowControl::Call if is_syscall(instruction.mnemonic()) => OperationClass::Syscall,
        FlowControl::Call => OperationClass::Call,
        FlowControl::IndirectCall => OperationClass::CallIndirect,
        FlowControl::Interrupt => OperationClass::Syscall,
        FlowControl::Return | FlowControl::XbeginXabortXend => OperationClass::Other,
    })
}

/// Both prefixes repeat these: they set no flags.
pub(super) fn is_fast_string(instruction: &iced_x86::Instruction) -> bool {
    let fills = matches!(
        instruction.mnemonic(),
        Mnemonic::Movsb
            | Mnemonic::Movsw
            | Mnemonic::Movsd
            | Mnemonic::Movsq
            | Mnemonic::Stosb
            | Mnemonic::Stosw
            | Mnemonic::Stosd
            | Mnemonic::Stosq
    );
    fills
        && instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

fn divides_128_bits(instruction: &iced_x86::Instruction) -> bool {
    matches!(instruction.code(), Code::Div_rm64 | Code::Idiv_rm64)
}

/// By `cl`, that is: `shlx` and its like have a destination of their own.
fn shifts_by_register(instruction: &iced_x86::Instruction) -> bool {
    let last = instruction.op_count().saturating_sub(1);
    instruction.op_kind(last) == OpKind::Register && instruction.op_register(last) == Register::CL
}

fn has_general_register(instruction: &iced_x86::Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| {
        instruction.op_kind(operand) == OpKind::Register
            && instruction.op_register(operand).is_gpr()
    })
}

const fn is_syscall(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Syscall | Mnemonic::Sysenter)
}

/// Effect of a mnemonic on the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All there is to know.
    Always(OperationClass),
    /// A plain copy: the operands decide.
    Move,
    /// Simple work: the registers decide.
    Simple,
}

/// By mnemonic.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    Mnemonic::values()
        .map(|mnemonic| kind_of(&format!("{mnemonic:?}")))
        .collect()
});

fn kind_of(name: &str) -> Kind {
    let irregular = match name {
        "Nop" | "Fnop" | "Wait" | "Pause" | "Endbr64" | "Endbr32" => Some(OperationClass::Nop),
        "Mul" | "Imul" | "Mulx" => Some(OperationClass::IntegerMultiply),
        "Shl" | "Shr" | "Sal" | "Sar" | "Rol" | "Ror" | "Rcl" | "Rcr" | "Shld" | "Shrd"
        | "Shlx" | "Shrx" | "Sarx" | "Rorx" | "Bt" | "Bts" | "Btr" | "Btc" => {
            Some(OperationClass::IntegerShift)
        }
        "Adc" | "Sbb" | "Adcx" | "Adox" => Some(OperationClass::IntegerSelect),
        "Cvtsi2sd" | "Cvtsi2ss" | "Cvtsd2si" | "Cvtss2si" | "Cvttsd2si" | "Cvttss2si"
        | "Vcvtsi2sd" | "Vcvtsi2ss" | "Vcvtsd2si" | "Vcvtss2si" | "Vcvttsd2si" | "Vcvttss2si" => {
            Some(OperationClass::FloatConvert)
        }
        "Ptest" | "Vptest" | "Vtestps" | "Vtestpd" => Some(OperationClass::VectorTransfer),
        "Div" | "Idiv" => Some(OperationClass::IntegerDivide),
        "Cpuid" | "Serialize" | "Lfence" | "Mfence" | "Sfence" => Some(OperationClass::Serializing),
        "Vzeroupper" => Some(OperationClass::VectorSimple),
        "Enter" | "Pushf" | "Pushfd" | "Pushfq" | "Popf" | "Popfd" | "Popfq" | "Emms" => {
            Some(OperationClass::Other)
        }
        _ => None,
    };
    if let Some(class) = irregular {
        return Kind::Always(class);
    }
    // `setssbsy` belongs to shadow stacks.
    if starts_with_any(name, &["Set", "Cmov"]) && name != "Setssbsy" {
        return Kind::Always(OperationClass::IntegerSelect);
    }
    if starts_with_any(name, &["Prefetch"]) {
        return Kind::Always(OperationClass::Nop);
    }
    let microcoded = [
        "Xsave", "Xrstor", "Fxsave", "Fxrstor", "Fnsave", "Frstor", "Fldenv", "Fnstenv", "Rdtsc",
        "Rdrand", "Rdseed", "Rdpid", "Rdpmc", "Xgetbv", "Ldmxcsr", "Stmxcsr", "Clflush", "Clwb",
        "Ud",
    ];
    if starts_with_any(name, &microcoded) {
        return Kind::Always(OperationClass::Other);
    }
    x87(name).or_else(|| vector(name)).unwrap_or_else(|| {
        let copies = matches!(name, "Push" | "Pop" | "Lddqu");
        if copies || name.starts_with("Mov") && !name.starts_with("Movmsk") {
            Kind::Move
        } else {
            Kind::Simple
        }
    })
}

fn starts_with_any(name: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| name.starts_with(start))
}

/// Mnemonics of the x87 unit begin with an F, and no others do.
fn x87(name: &str) -> Option<Kind> {
    let operation = name.strip_prefix('F')?;
    let class = if matches!(operation, "ld" | "ild" | "st" | "stp" | "ist" | "istp") {
        return Some(Kind::Move);
    } else if starts_with_any(operation, &["add", "iadd", "sub", "isub"]) {
        OperationClass::FloatAdd
    } else if starts_with_any(operation, &["mul", "imul"]) {
        OperationClass::FloatMultiply
    } else if starts_with_any(operation, &["div", "idiv", "sqrt"]) {
        OperationClass::FloatDivide
    } else {
        OperationClass::FloatOther
    };
    Some(Kind::Always(class))
}

/// SSE, AVX and AVX-512. The last two letters give the type: P or S for packed or scalar, then
/// the precision.
fn vector(name: &str) -> Option<Kind> {
    let operation = name.strip_prefix('V').map_or_else(
        || name.to_owned(),
        |rest| rest[..1].to_uppercase() + &rest[1..],
    );
    let float = ["ps", "pd", "ss", "sd", "ph", "sh", "bf16"]
        .iter()
        .any(|kind| operation.ends_with(kind));
    let class = if starts_with_any(&operation, &["Broadcast", "Pbroadcast", "Kmov", "Lddqu"])
        || name.starts_with("Vmov") && !name.starts_with("Vmovmsk")
    {
        return Some(Kind::Move);
    } else if starts_with_any(
        &operation,
        &[
            "Ucomi",
            "Comi",
            "Movmsk",
            "Pmovmsk",
            "Pextr",
            "Pinsr",
            "Extractps",
            "Kortest",
            "Ktest",
        ],
    ) {
        OperationClass::VectorTransfer
    } else if starts_with_any(&operation, &["Cvt", "Rcp", "Rsqrt", "Round"]) {
        OperationClass::FloatOther
    } else if float && starts_with_any(&operation, &["Add", "Sub", "Hadd", "Hsub", "Min", "Max"]) {
        OperationClass::FloatAdd
    } else if float
        && starts_with_any(
            &operation,
            &["Mul", "Fmadd", "Fmsub", "Fnmadd", "Fnmsub", "Dp"],
        )
    {
        OperationClass::FloatMultiply
    } else if float && starts_with_any(&operation, &["Div", "Sqrt"]) {
        OperationClass::FloatDivide
    } else if float
        && starts_with_any(
            &operation,
            &["Cmp", "Rndscale", "Reduce", "Scalef", "Get", "Range"],
        )
    {
        OperationClass::FloatOther
    } else if starts_with_any(&operation, &["Pmul", "Pmadd", "Pclmul", "Pdp", "Psadbw"]) {
        OperationClass::VectorMultiply
    } else {
        return None;
    };
    Some(Kind::Always(class))
}
