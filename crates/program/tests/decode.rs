//! Does decoding tell what an instruction waits for, and who executes it?

use contigua_program::code::BlockCode;
use contigua_program::decode::{
    Folding, Instruction, OperationClass as Class, RegisterSet, decode_block, folding,
};
use contigua_program::syscall::Architecture;
use contigua_units::VirtAddr;
use proptest::prelude::*;

const RAX: u32 = 0;
const RCX: u32 = 1;
const RDX: u32 = 2;
const RBX: u32 = 3;
const RSP: u32 = 4;
const RBP: u32 = 5;
const RSI: u32 = 6;
const RDI: u32 = 7;

fn general(numbers: &[u32]) -> RegisterSet {
    let registers = numbers.iter().map(|&number| RegisterSet::general(number));
    registers.fold(RegisterSet::EMPTY, RegisterSet::with)
}

fn vectors(numbers: &[u32]) -> RegisterSet {
    let registers = numbers.iter().map(|&number| RegisterSet::vector(number));
    registers.fold(RegisterSet::EMPTY, RegisterSet::with)
}

fn decode(bytes: &[u8]) -> Instruction {
    let mut out = vec![Instruction::UNKNOWN; 3];
    let code = BlockCode {
        address: VirtAddr::new(0x40_1000),
        lengths: &[bytes.len() as u8],
        bytes,
    };
    decode_block(Architecture::X86_64, code, &mut out);
    assert_eq!(out.len(), 1);
    out[0]
}

#[track_caller]
fn check(bytes: &[u8], class: Class, reads: RegisterSet, writes: RegisterSet, memory: (u8, u8)) {
    let decoded = decode(bytes);
    let expected = Instruction {
        class,
        reads,
        addresses: decoded.addresses,
        writes,
        loads: memory.0,
        stores: memory.1,
        fuses: decoded.fuses,
        copies: decoded.copies,
    };
    assert_eq!(decoded, expected);
}

const NONE: RegisterSet = RegisterSet::EMPTY;
const FLAGS: RegisterSet = RegisterSet::FLAGS;

#[test]
fn are_registers_of_addresses_told_apart_from_operands() {
    let cases: [(&[u8], RegisterSet); 6] = [
        // add rax, [rbx+rcx*8]
        (&[0x48, 0x03, 0x04, 0xcb], general(&[RBX, RCX])),
        // mov [rbx], rax
        (&[0x48, 0x89, 0x03], general(&[RBX])),
        // lea rax, [rbx+rcx*8]: no access
        (&[0x48, 0x8d, 0x04, 0xcb], NONE),
        // push rax
        (&[0x50], general(&[RSP])),
        // mov rax, fs:[0]
        (
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0],
            RegisterSet::OTHER,
        ),
        // mov rax, [rip]
        (&[0x48, 0x8b, 0x05, 0, 0, 0, 0], NONE),
    ];
    for (bytes, addresses) in cases {
        assert_eq!(decode(bytes).addresses, addresses, "{bytes:x?}");
    }
}

#[test]
fn are_comparisons_fused_with_a_branch_behind_them() {
    let cases: [(&[u8], bool); 9] = [
        // cmp rax, rbx
        (&[0x48, 0x39, 0xd8], true),
        // test al, al
        (&[0x84, 0xc0], true),
        // cmp [rbx], rax; cmp qword [rbx], 1
        (&[0x48, 0x39, 0x03], true),
        (&[0x48, 0x83, 0x3b, 0x01], true),
        // cmp [rip], eax; cmp dword [rip], 1
        (&[0x39, 0x05, 0, 0, 0, 0], true),
        (&[0x83, 0x3d, 0, 0, 0, 0, 1], false),
        // sub [rbx], rax
        (&[0x48, 0x29, 0x03], false),
        // or eax, eax
        (&[0x09, 0xc0], false),
        // lea rax, [rbx]
        (&[0x48, 0x8d, 0x03], false),
    ];
    for (bytes, fuses) in cases {
        assert_eq!(decode(bytes).fuses, fuses, "{bytes:x?}");
    }
}

#[test]
fn are_plain_operands_told_apart() {
    // add rax, rbx
    check(
        &[0x48, 0x01, 0xd8],
        Class::IntegerSimple,
        general(&[RAX, RBX]),
        general(&[RAX]).with(FLAGS),
        (0, 0),
    );
    // mov r9, [rbp + rcx*8 + 16]
    check(
        &[0x4c, 0x8b, 0x4c, 0xcd, 0x10],
        Class::Load,
        general(&[RBP, RCX]),
        general(&[9]),
        (1, 0),
    );
    // mov [rdi], eax
    check(
        &[0x89, 0x07],
        Class::Store,
        general(&[RAX, RDI]),
        NONE,
        (0, 1),
    );
    // add [rdi], eax
    check(
        &[0x01, 0x07],
        Class::IntegerSimple,
        general(&[RAX, RDI]),
        FLAGS,
        (1, 1),
    );
    // lea rax, [rip + 4]
    check(
        &[0x48, 0x8d, 0x05, 4, 0, 0, 0],
        Class::IntegerSimple,
        NONE,
        general(&[RAX]),
        (0, 0),
    );
    // mov rax, rbx
    check(
        &[0x48, 0x89, 0xd8],
        Class::IntegerSimple,
        general(&[RBX]),
        general(&[RAX]),
        (0, 0),
    );
}

#[test]
fn are_implicit_operands_found() {
    // mul rcx
    check(
        &[0x48, 0xf7, 0xe1],
        Class::IntegerMultiply,
        general(&[RAX, RCX]),
        general(&[RAX, RDX]).with(FLAGS),
        (0, 0),
    );
    // div ecx
    check(
        &[0xf7, 0xf1],
        Class::IntegerDivide,
        general(&[RAX, RCX, RDX]),
        general(&[RAX, RDX]).with(FLAGS),
        (0, 0),
    );
    // idiv rcx
    check(
        &[0x48, 0xf7, 0xf9],
        Class::IntegerDivide64,
        general(&[RAX, RCX, RDX]),
        general(&[RAX, RDX]).with(FLAGS),
        (0, 0),
    );
    // push rbx; pop rbx
    check(
        &[0x53],
        Class::Store,
        general(&[RBX, RSP]),
        general(&[RSP]),
        (0, 1),
    );
    check(
        &[0x5b],
        Class::Load,
        general(&[RSP]),
        general(&[RBX, RSP]),
        (1, 0),
    );
    // rep movsb: also the direction flag, which is not one of the status flags
    let string = decode(&[0xf3, 0xa4]);
    assert_eq!(string.class, Class::FastString);
    assert_eq!((string.loads, string.stores), (1, 1));
    assert_eq!(string.writes, general(&[RCX, RSI, RDI]));
    assert!(!string.reads.intersects(FLAGS));
    for register in [RCX, RSI, RDI] {
        assert!(string.reads.intersects(general(&[register])));
    }
    // cpuid
    check(
        &[0x0f, 0xa2],
        Class::Serializing,
        general(&[RAX, RCX]),
        general(&[RAX, RBX, RCX, RDX]),
        (0, 0),
    );
    // lock cmpxchg [rdi], rcx
    check(
        &[0xf0, 0x48, 0x0f, 0xb1, 0x0f],
        Class::Atomic,
        general(&[RAX, RCX, RDI]),
        general(&[RAX]).with(FLAGS),
        (1, 1),
    );
    // shl rax, cl
    let shift = decode(&[0x48, 0xd3, 0xe0]);
    assert_eq!(shift.reads, general(&[RAX, RCX]));
}

#[test]
fn are_flags_a_register() {
    // cmp rax, rbx; adc rax, rbx
    check(
        &[0x48, 0x39, 0xd8],
        Class::IntegerSimple,
        general(&[RAX, RBX]),
        FLAGS,
        (0, 0),
    );
    check(
        &[0x48, 0x11, 0xd8],
        Class::IntegerSelect,
        general(&[RAX, RBX]).with(FLAGS),
        general(&[RAX]).with(FLAGS),
        (0, 0),
    );
    // cmove rax, rbx may leave rax as it is
    check(
        &[0x48, 0x0f, 0x44, 0xc3],
        Class::IntegerSelect,
        general(&[RAX, RBX]).with(FLAGS),
        general(&[RAX]),
        (0, 0),
    );
    // cld touches none of the status flags
    check(
        &[0xfc],
        Class::IntegerSimple,
        NONE,
        RegisterSet::OTHER,
        (0, 0),
    );
}

#[test]
fn are_parts_the_whole_register() {
    // mov al, 1 and mov ah, 1 and mov ax, 1 keep the rest; mov eax, 1 clears it
    for kept in [&[0xb0, 1][..], &[0xb4, 1], &[0x66, 0xb8, 1, 0]] {
        check(
            kept,
            Class::IntegerSimple,
            general(&[RAX]),
            general(&[RAX]),
            (0, 0),
        );
    }
    check(
        &[0xb8, 1, 0, 0, 0],
        Class::IntegerSimple,
        NONE,
        general(&[RAX]),
        (0, 0),
    );
    // mov r8b, 1
    check(
        &[0x41, 0xb0, 1],
        Class::IntegerSimple,
        general(&[8]),
        general(&[8]),
        (0, 0),
    );
    // pxor xmm1, xmm2; vpxor ymm1, ymm2, ymm3
    check(
        &[0x66, 0x0f, 0xef, 0xca],
        Class::VectorSimple,
        vectors(&[1, 2]),
        vectors(&[1]),
        (0, 0),
    );
    check(
        &[0xc5, 0xed, 0xef, 0xcb],
        Class::VectorSimple,
        vectors(&[2, 3]),
        vectors(&[1]),
        (0, 0),
    );
    // vpaddd zmm17{k2}{z}, zmm18, zmm19
    check(
        &[0x62, 0xa1, 0x6d, 0xc2, 0xfe, 0xcb],
        Class::VectorSimple,
        vectors(&[18, 19]).with(RegisterSet::mask(2)),
        vectors(&[17]),
        (0, 0),
    );
}

#[test]
fn does_clearing_a_register_depend_on_nothing() {
    // xor eax, eax; pxor xmm1, xmm1
    check(
        &[0x31, 0xc0],
        Class::IntegerSimple,
        NONE,
        general(&[RAX]).with(FLAGS),
        (0, 0),
    );
    check(
        &[0x66, 0x0f, 0xef, 0xc9],
        Class::VectorSimple,
        NONE,
        vectors(&[1]),
        (0, 0),
    );
    // vzeroupper
    check(&[0xc5, 0xf8, 0x77], Class::VectorSimple, NONE, NONE, (0, 0));
}

#[test]
fn are_branches_told_apart() {
    let class = |bytes: &[u8]| decode(bytes).class;
    assert_eq!(class(&[0x74, 0x10]), Class::BranchConditional);
    assert_eq!(class(&[0xe3, 0x10]), Class::BranchConditional); // jrcxz
    assert_eq!(class(&[0xeb, 0x10]), Class::Jump);
    assert_eq!(class(&[0xff, 0xe0]), Class::JumpIndirect); // jmp rax
    assert_eq!(class(&[0xe8, 0, 0, 0, 0]), Class::Call);
    assert_eq!(class(&[0xff, 0xd0]), Class::CallIndirect); // call rax
    assert_eq!(class(&[0xc3]), Class::Return);
    assert_eq!(class(&[0x0f, 0x05]), Class::Syscall);
    // je reads the flags; call stores the return address; ret loads it
    assert_eq!(decode(&[0x74, 0x10]).reads, FLAGS);
    assert_eq!(decode(&[0xe8, 0, 0, 0, 0]).stores, 1);
    assert_eq!(decode(&[0xc3]).loads, 1);
}

#[test]
fn does_each_unit_get_its_operations() {
    let cases: &[(&[u8], Class)] = &[
        (&[0x90], Class::Nop),
        (&[0x0f, 0x1f, 0x40, 0x00], Class::Nop), // nop [rax]
        (&[0xf3, 0x0f, 0x1e, 0xfa], Class::Nop), // endbr64
        (&[0x0f, 0x18, 0x08], Class::Nop),       // prefetcht0 [rax]
        (&[0x48, 0x0f, 0xaf, 0xc3], Class::IntegerMultiply), // imul rax, rbx
        (&[0xf2, 0x0f, 0x58, 0xc1], Class::FloatAdd), // addsd xmm0, xmm1
        (&[0xc5, 0xf4, 0x58, 0xc2], Class::FloatAdd), // vaddps ymm0, ymm1, ymm2
        (&[0xf2, 0x0f, 0x59, 0xc1], Class::FloatMultiply), // mulsd xmm0, xmm1
        (&[0xc4, 0xe2, 0xf5, 0xb8, 0xc2], Class::FloatMultiply), // vfmadd231pd
        (&[0xf2, 0x0f, 0x5e, 0xc1], Class::FloatDivide), // divsd xmm0, xmm1
        (&[0x0f, 0x51, 0xc1], Class::FloatDivide), // sqrtps xmm0, xmm1
        (&[0xf2, 0x48, 0x0f, 0x2a, 0xc0], Class::FloatConvert), // cvtsi2sd xmm0, rax
        (&[0xf2, 0x0f, 0x2c, 0x00], Class::FloatConvert), // cvttsd2si eax, [rax]
        (&[0xf3, 0x0f, 0x5a, 0xc1], Class::FloatOther), // cvtss2sd xmm0, xmm1
        (&[0x66, 0x0f, 0x2e, 0xc1], Class::VectorTransfer), // ucomisd xmm0, xmm1
        (&[0x66, 0x48, 0x0f, 0x6e, 0xc0], Class::VectorTransfer), // movq xmm0, rax
        (&[0x66, 0x0f, 0x6e, 0x00], Class::Load), // movd xmm0, [rax]
        (&[0x66, 0x0f, 0xd7, 0xc1], Class::VectorTransfer), // pmovmskb eax, xmm1
        (&[0xc5, 0xfd, 0xd7, 0xc1], Class::VectorTransfer), // vpmovmskb eax, ymm1
        (&[0x66, 0x0f, 0x38, 0x17, 0xc1], Class::VectorTransfer), // ptest xmm0, xmm1
        (&[0x48, 0xc1, 0xe8, 0x03], Class::IntegerShift), // shr rax, 3
        (&[0x48, 0xd1, 0xe8], Class::IntegerShift), // shr rax, 1
        (&[0xd3, 0xe0], Class::IntegerShiftVariable), // shl eax, cl
        (&[0x48, 0x0f, 0xa5, 0xd8], Class::IntegerShiftVariable), // shld rax, rbx, cl
        (&[0xc4, 0xe2, 0xf1, 0xf7, 0xc3], Class::IntegerShift), // shlx rax, rbx, rcx
        (&[0x48, 0x0f, 0xa3, 0xd8], Class::IntegerShift), // bt rax, rbx
        (&[0x0f, 0x94, 0xc0], Class::IntegerSelect), // sete al
        (&[0x48, 0x0f, 0x44, 0xc3], Class::IntegerSelect), // cmove rax, rbx
        (&[0x48, 0x11, 0xd8], Class::IntegerSelect), // adc rax, rbx
        (&[0xf2, 0x0f, 0xc2, 0xc1, 0], Class::FloatOther), // cmpeqsd xmm0, xmm1
        (&[0xa7], Class::Other),                 // cmpsd, the string instruction
        (&[0xd8, 0xc1], Class::FloatAdd),        // fadd st, st(1)
        (&[0xdd, 0x00], Class::Load),            // fld qword [rax]
        (&[0xd9, 0xff], Class::FloatOther),      // fcos
        (&[0x66, 0x0f, 0xd5, 0xc1], Class::VectorMultiply), // pmullw xmm0, xmm1
        (&[0x0f, 0x28, 0xc1], Class::VectorSimple), // movaps xmm0, xmm1
        (&[0x0f, 0x28, 0x00], Class::Load),      // movaps xmm0, [rax]
        (&[0xc5, 0xfe, 0x7f, 0x00], Class::Store), // vmovdqu [rax], ymm0
        (&[0xf2, 0x0f, 0x10, 0x00], Class::Load), // movsd xmm0, [rax]
        (&[0x0f, 0xb6, 0x00], Class::Load),      // movzx eax, byte [rax]
        (&[0x0f, 0x50, 0xc0], Class::VectorTransfer), // movmskps eax, xmm0
        (&[0x48, 0x87, 0x07], Class::Atomic),    // xchg [rdi], rax
        (&[0x48, 0x93], Class::IntegerSimple),   // xchg rbx, rax
        (&[0xf3, 0x48, 0x0f, 0xb8, 0xc3], Class::IntegerSimple), // popcnt rax, rbx
        (&[0x0f, 0xae, 0xf0], Class::Serializing), // mfence
        (&[0x0f, 0xae, 0x00], Class::Other),     // fxsave [rax]
        (&[0x0f, 0x31], Class::Other),           // rdtsc
        (&[0x0f, 0x0b], Class::Other),           // ud2
        (&[0xf4], Class::Other),                 // hlt
    ];
    for &(bytes, class) in cases {
        assert_eq!(decode(bytes).class, class, "{bytes:x?}");
    }
}

#[test]
fn are_repeated_copies_and_fills_fast_strings() {
    let fast: &[&[u8]] = &[
        &[0xf3, 0xa4],       // rep movsb
        &[0xf3, 0x48, 0xa5], // rep movsq
        &[0xf3, 0xaa],       // rep stosb
        &[0xf2, 0xab],       // repne stosd, which repeats too
    ];
    let others: &[&[u8]] = &[
        &[0xa4],                   // movsb
        &[0xf3, 0xac],             // rep lodsb
        &[0xf2, 0xae],             // repne scasb
        &[0xf3, 0xa6],             // repe cmpsb
        &[0xf3, 0x0f, 0x10, 0x00], // movss xmm0, [rax]
        &[0xf2, 0x0f, 0x10, 0x00], // movsd xmm0, [rax], the other instruction of that name
    ];
    let fold = |bytes: &[u8]| {
        folding(
            Architecture::X86_64,
            BlockCode {
                address: VirtAddr::new(0x1000),
                lengths: &[bytes.len() as u8],
                bytes,
            },
        )
    };
    for &bytes in fast {
        assert_eq!(decode(bytes).class, Class::FastString, "{bytes:x?}");
        assert_eq!(fold(bytes), Folding::FastString, "{bytes:x?}");
    }
    for &bytes in others {
        assert_ne!(decode(bytes).class, Class::FastString, "{bytes:x?}");
        assert_eq!(fold(bytes), Folding::Nothing, "{bytes:x?}");
    }
}

#[test]
fn does_code_with_wide_accesses_have_parts() {
    let fold = |lengths: &[u8], bytes: &[u8]| {
        folding(
            Architecture::X86_64,
            BlockCode {
                address: VirtAddr::new(0x1000),
                lengths,
                bytes,
            },
        )
    };
    // movdqu xmm0, [rbx]; vmovdqu [rbx + 64], ymm1
    assert_eq!(fold(&[4], &[0xf3, 0x0f, 0x6f, 0x03]), Folding::Parts);
    assert_eq!(
        fold(&[1, 5], &[0x53, 0xc5, 0xfe, 0x7f, 0x4b, 0x40]),
        Folding::Parts
    );
    // push rbx; lea rax, [rbx]; movq xmm0, [rbx]; vpgatherqq ymm1, [rax + ymm2], ymm3
    let narrow = [0x53, 0x48, 0x8d, 0x03, 0xf3, 0x0f, 0x7e, 0x03];
    assert_eq!(fold(&[1, 3, 4], &narrow), Folding::Nothing);
    let gather = [0xc4, 0xe2, 0xe5, 0x91, 0x0c, 0x10];
    assert_eq!(fold(&[6], &gather), Folding::Nothing);
    // The end of a block that is a repeated instruction is no block of iterations.
    assert_eq!(fold(&[1, 2], &[0x53, 0xf3, 0xa4]), Folding::Nothing);
    // Unknown code.
    assert_eq!(fold(&[3, 4], &[]), Folding::Nothing);
}

#[test]
fn is_the_list_of_classes_in_their_order() {
    let numbers = Class::ALL.map(|class| class as usize);
    assert!(numbers.into_iter().eq(0..Class::ALL.len()));
}

#[test]
fn bytes_that_are_no_instruction_are_unknown() {
    assert_eq!(decode(&[0x06]), Instruction::UNKNOWN); // push es, gone in 64-bit mode
    assert_eq!(decode(&[0x48]), Instruction::UNKNOWN); // a prefix alone
    assert_eq!(decode(&[0x90, 0x90]), Instruction::UNKNOWN); // shorter than the block says
    let mut out = Vec::new();
    let foreign = BlockCode {
        address: VirtAddr::new(0),
        lengths: &[3, 4],
        bytes: &[],
    };
    decode_block(Architecture::X86_64, foreign, &mut out);
    assert_eq!(out, [Instruction::UNKNOWN; 2]);
}

#[test]
fn are_the_instructions_of_a_block_kept_in_order() {
    let mut out = Vec::new();
    let code = BlockCode {
        address: VirtAddr::new(0x1000),
        lengths: &[1, 3, 1, 2],
        bytes: &[0x53, 0x48, 0x01, 0xd8, 0x06, 0x74, 0x10],
    };
    decode_block(Architecture::X86_64, code, &mut out);
    let classes: Vec<_> = out.iter().map(|instruction| instruction.class).collect();
    let expected = [
        Class::Store,
        Class::IntegerSimple,
        Class::Other,
        Class::BranchConditional,
    ];
    assert_eq!(classes, expected);
}

#[test]
fn is_a_copy_of_a_whole_register_told_apart() {
    let cases: [(&[u8], bool); 8] = [
        (&[0x48, 0x89, 0xd8], true),              // mov rax, rbx
        (&[0x89, 0xd8], true),                    // mov eax, ebx
        (&[0x66, 0x89, 0xd8], false),             // mov ax, bx
        (&[0x48, 0x8b, 0x03], false),             // mov rax, [rbx]
        (&[0x48, 0x89, 0x03], false),             // mov [rbx], rax
        (&[0xb8, 0x01, 0x00, 0x00, 0x00], false), // mov eax, 1
        (&[0x0f, 0x28, 0xc1], true),              // movaps xmm0, xmm1
        (&[0x0f, 0x28, 0x03], false),             // movaps xmm0, [rbx]
    ];
    for (bytes, copies) in cases {
        assert_eq!(decode(bytes).copies, copies, "{bytes:x?}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        lengths in proptest::collection::vec(0..20_u8, 0..16),
        address: u64,
    ) {
        let mut out = Vec::new();
        let address = VirtAddr::new(address);
        let code = BlockCode { address, lengths: &lengths, bytes: &bytes };
        decode_block(Architecture::X86_64, code, &mut out);
        let _ = folding(Architecture::X86_64, code);
        prop_assert_eq!(out.len(), lengths.len());
    }
}
