//! Does decoding tell what an instruction of aarch64 waits for, and who executes it?

use contigua_program::code::BlockCode;
use contigua_program::decode::{
    Folding, Instruction, OperationClass as Class, RegisterSet, aarch64, decode_block, folding,
};
use contigua_program::syscall::Architecture;
use contigua_units::VirtAddr;
use proptest::prelude::*;

/// Registers by their names, separated by blanks.
fn registers(names: &str) -> RegisterSet {
    let one = |name: &str| {
        let number = || name[1..].parse().unwrap();
        match name {
            "sp" => aarch64::STACK_POINTER,
            "nzcv" => aarch64::NZCV,
            name if name.starts_with('x') => aarch64::general(number()),
            _ => aarch64::vector(number()),
        }
    };
    let names = names.split_whitespace().map(one);
    names.fold(RegisterSet::EMPTY, RegisterSet::with)
}

fn block<'a>(lengths: &'a [u8], bytes: &'a [u8]) -> BlockCode<'a> {
    BlockCode {
        address: VirtAddr::new(0x40_1000),
        lengths,
        bytes,
    }
}

fn decode(word: u32) -> Instruction {
    let mut out = vec![Instruction::UNKNOWN; 3];
    let bytes = word.to_le_bytes();
    decode_block(Architecture::Aarch64, block(&[4], &bytes), &mut out);
    assert_eq!(out.len(), 1);
    out[0]
}

type Case = (
    &'static str,
    u32,
    Class,
    &'static str,
    &'static str,
    &'static str,
    (u8, u8),
);

/// Text, what GNU's assembler makes of it, class, registers that it reads, those of them that are its
/// address, registers that it writes, loads and stores.
#[rustfmt::skip]
const CASES: &[Case] = &[
    ("add x0, x1, x2", 0x8b02_0020, Class::IntegerSimple, "x1 x2", "", "x0", (0, 0)),
    ("add sp, sp, #16", 0x9100_43ff, Class::IntegerSimple, "sp", "", "sp", (0, 0)),
    ("add x3, sp, x4, lsl #3", 0x8b24_6fe3, Class::IntegerSimple, "sp x4", "", "x3", (0, 0)),
    ("mov x0, #5", 0xd280_00a0, Class::IntegerSimple, "", "", "x0", (0, 0)),
    ("movk x0, #5, lsl #16", 0xf2a0_00a0, Class::IntegerSimple, "x0", "", "x0", (0, 0)),
    ("mov x28, x19", 0xaa13_03fc, Class::IntegerSimple, "x19", "", "x28", (0, 0)),
    ("mov x29, sp", 0x9100_03fd, Class::IntegerSimple, "sp", "", "x29", (0, 0)),
    ("subs w1, w2, w3", 0x6b03_0041, Class::IntegerSimple, "x2 x3", "", "x1 nzcv", (0, 0)),
    ("cmp x1, #3", 0xf100_0c3f, Class::IntegerSimple, "x1", "", "nzcv", (0, 0)),
    ("cmp x1, x2, lsl #2", 0xeb02_083f, Class::IntegerSimple, "x1 x2", "", "nzcv", (0, 0)),
    ("tst x5, #0xff", 0xf240_1cbf, Class::IntegerSimple, "x5", "", "nzcv", (0, 0)),
    ("bics xzr, x1, x2", 0xea22_003f, Class::IntegerSimple, "x1 x2", "", "nzcv", (0, 0)),
    ("adcs x0, x1, x2", 0xba02_0020, Class::IntegerSimple, "x1 x2 nzcv", "", "x0 nzcv", (0, 0)),
    ("csel x0, x1, x2, ne", 0x9a82_1020, Class::IntegerSimple, "x1 x2 nzcv", "", "x0", (0, 0)),
    ("ccmp x1, #3, #0, eq", 0xfa43_0820, Class::IntegerSimple, "x1 nzcv", "", "nzcv", (0, 0)),
    ("ubfx x0, x1, #3, #5", 0xd343_1c20, Class::IntegerSimple, "x1", "", "x0", (0, 0)),
    ("bfi x0, x1, #3, #5", 0xb37d_1020, Class::IntegerSimple, "x0 x1", "", "x0", (0, 0)),
    ("extr x0, x1, x2, #7", 0x93c2_1c20, Class::IntegerSimple, "x1 x2", "", "x0", (0, 0)),
    ("clz x0, x1", 0xdac0_1020, Class::IntegerSimple, "x1", "", "x0", (0, 0)),
    ("pacia x0, x1", 0xdac1_0020, Class::IntegerSimple, "x0 x1", "", "x0", (0, 0)),
    ("lsl x0, x1, x2", 0x9ac2_2020, Class::IntegerSimple, "x1 x2", "", "x0", (0, 0)),
    ("adrp x16, .", 0x9000_0010, Class::IntegerSimple, "", "", "x16", (0, 0)),
    ("mul x0, x1, x2", 0x9b02_7c20, Class::IntegerMultiply, "x1 x2", "", "x0", (0, 0)),
    ("madd x0, x1, x2, x3", 0x9b02_0c20, Class::IntegerMultiply, "x1 x2 x3", "", "x0", (0, 0)),
    ("umulh x0, x1, x2", 0x9bc2_7c20, Class::IntegerMultiply, "x1 x2", "", "x0", (0, 0)),
    ("crc32cx w0, w1, x2", 0x9ac2_5c20, Class::IntegerMultiply, "x1 x2", "", "x0", (0, 0)),
    ("udiv w0, w1, w2", 0x1ac2_0820, Class::IntegerDivide, "x1 x2", "", "x0", (0, 0)),
    ("sdiv x0, x1, x2", 0x9ac2_0c20, Class::IntegerDivide64, "x1 x2", "", "x0", (0, 0)),
    ("ldr x0, [x1]", 0xf940_0020, Class::Load, "x1", "x1", "x0", (1, 0)),
    ("ldr x4, [x4]", 0xf940_0084, Class::Load, "x4", "x4", "x4", (1, 0)),
    ("ldrsw x0, [sp, #8]", 0xb980_0be0, Class::Load, "sp", "sp", "x0", (1, 0)),
    ("ldr x0, [x1, x2, lsl #3]", 0xf862_7820, Class::Load, "x1 x2", "x1 x2", "x0", (1, 0)),
    ("ldr x0, [x1], #8", 0xf840_8420, Class::Load, "x1", "x1", "x0", (1, 0)),
    ("ldr w0, [x1, #4]!", 0xb840_4c20, Class::Load, "x1", "x1", "x0", (1, 0)),
    ("ldr x0, .", 0x5800_0000, Class::Load, "", "", "x0", (1, 0)),
    ("ldur x0, [x1, #-3]", 0xf85f_d020, Class::Load, "x1", "x1", "x0", (1, 0)),
    ("ldp x29, x30, [sp], #32", 0xa8c2_7bfd, Class::Load, "sp", "sp", "x29 x30", (1, 0)),
    ("ldp q0, q1, [x1, #32]", 0xad41_0420, Class::Load, "x1", "x1", "v0 v1", (1, 0)),
    ("ldr q7, [x1]", 0x3dc0_0027, Class::Load, "x1", "x1", "v7", (1, 0)),
    ("ldr d7, .", 0x5c00_0007, Class::Load, "", "", "v7", (1, 0)),
    ("ld1 {v30.16b - v31.16b}, [x1]", 0x4c40_a03e, Class::Load, "x1", "x1", "v30 v31", (1, 0)),
    ("ld4 {v30.4s, v31.4s, v0.4s, v1.4s}, [x1], x2", 0x4cc2_083e, Class::Load, "x1 x2", "x1", "v30 v31 v0 v1", (1, 0)),
    ("ld1 {v3.s}[1], [x1]", 0x0d40_9023, Class::Load, "v3 x1", "x1", "v3", (1, 0)),
    ("ld2r {v3.2d, v4.2d}, [x1]", 0x4d60_cc23, Class::Load, "x1", "x1", "v3 v4", (1, 0)),
    ("ldxr x0, [x1]", 0xc85f_7c20, Class::Load, "x1", "x1", "x0", (1, 0)),
    ("ldaxp x0, x2, [x1]", 0xc87f_8820, Class::Load, "x1", "x1", "x0 x2", (1, 0)),
    ("ldar x0, [x1]", 0xc8df_fc20, Class::Load, "x1", "x1", "x0", (1, 0)),
    ("str x0, [x1]", 0xf900_0020, Class::Store, "x0 x1", "x1", "", (0, 1)),
    ("str xzr, [x1]", 0xf900_003f, Class::Store, "x1", "x1", "", (0, 1)),
    ("str w0, [x1, w2, sxtw]", 0xb822_c820, Class::Store, "x0 x1 x2", "x1 x2", "", (0, 1)),
    ("str x0, [sp, #-16]!", 0xf81f_0fe0, Class::Store, "x0 sp", "sp", "", (0, 1)),
    ("stp x29, x30, [sp, #-32]!", 0xa9be_7bfd, Class::Store, "x29 x30 sp", "sp", "", (0, 1)),
    ("stp q0, q1, [x1]", 0xad00_0420, Class::Store, "v0 v1 x1", "x1", "", (0, 1)),
    ("st3 {v0.8h - v2.8h}, [x1], #48", 0x4c9f_4420, Class::Store, "v0 v1 v2 x1", "x1", "", (0, 1)),
    ("stxr w0, x2, [x1]", 0xc800_7c22, Class::Store, "x2 x1", "x1", "x0", (0, 1)),
    ("stlxp w0, x2, x3, [x1]", 0xc820_8c22, Class::Store, "x2 x3 x1", "x1", "x0", (0, 1)),
    ("stlr x0, [x1]", 0xc89f_fc20, Class::Store, "x0 x1", "x1", "", (0, 1)),
    ("dc zva, x3", 0xd50b_7423, Class::Store, "x3", "x3", "", (0, 1)),
    ("prfm pldl1keep, [x1]", 0xf980_0020, Class::Nop, "x1", "", "", (0, 0)),
    ("ldadd x0, x2, [x1]", 0xf820_0022, Class::IntegerSimple, "x0 x1", "x1", "x2", (1, 1)),
    ("ldaddal x0, x2, [x1]", 0xf8e0_0022, Class::Atomic, "x0 x1", "x1", "x2", (1, 1)),
    ("stadd x0, [x1]", 0xf820_003f, Class::IntegerSimple, "x0 x1", "x1", "", (1, 1)),
    ("swpa x0, x2, [x1]", 0xf8a0_8022, Class::Atomic, "x0 x1", "x1", "x2", (1, 1)),
    ("cas x0, x2, [x1]", 0xc8a0_7c22, Class::IntegerSimple, "x0 x1 x2", "x1", "x0", (1, 1)),
    ("casal x0, x2, [x1]", 0xc8e0_fc22, Class::Atomic, "x0 x1 x2", "x1", "x0", (1, 1)),
    ("casl x0, x2, [x1]", 0xc8a0_fc22, Class::Atomic, "x0 x1 x2", "x1", "x0", (1, 1)),
    ("caspal x0, x1, x2, x3, [x4]", 0x4860_fc82, Class::Atomic, "x0 x1 x2 x3 x4", "x4", "x0 x1", (1, 1)),
    ("b .", 0x1400_0000, Class::Jump, "", "", "", (0, 0)),
    ("bl .", 0x9400_0000, Class::Call, "", "", "x30", (0, 0)),
    ("blr x8", 0xd63f_0100, Class::CallIndirect, "x8", "", "x30", (0, 0)),
    ("br x17", 0xd61f_0220, Class::JumpIndirect, "x17", "", "", (0, 0)),
    ("ret", 0xd65f_03c0, Class::Return, "x30", "", "", (0, 0)),
    ("retaa", 0xd65f_0bff, Class::Return, "x30 sp", "", "", (0, 0)),
    ("b.ne .", 0x5400_0001, Class::BranchConditional, "nzcv", "", "", (0, 0)),
    ("cbz x0, .", 0xb400_0000, Class::BranchConditional, "x0", "", "", (0, 0)),
    ("tbnz w5, #3, .", 0x3718_0005, Class::BranchConditional, "x5", "", "", (0, 0)),
    ("svc #0", 0xd400_0001, Class::Syscall, "", "", "", (0, 0)),
    ("brk #1", 0xd420_0020, Class::Other, "", "", "", (0, 0)),
    ("nop", 0xd503_201f, Class::Nop, "", "", "", (0, 0)),
    ("bti c", 0xd503_245f, Class::Nop, "", "", "", (0, 0)),
    ("paciasp", 0xd503_233f, Class::Nop, "", "", "", (0, 0)),
    ("dmb ish", 0xd503_3bbf, Class::Serializing, "", "", "", (0, 0)),
    ("isb", 0xd503_3fdf, Class::Serializing, "", "", "", (0, 0)),
    ("mrs x0, tpidr_el0", 0xd53b_d040, Class::IntegerSimple, "", "", "x0", (0, 0)),
    ("mrs x0, nzcv", 0xd53b_4200, Class::IntegerSimple, "nzcv", "", "x0", (0, 0)),
    ("msr nzcv, x0", 0xd51b_4200, Class::IntegerSimple, "x0", "", "nzcv", (0, 0)),
    ("mrs x0, fpcr", 0xd53b_4400, Class::Other, "", "", "x0", (0, 0)),
    ("msr fpcr, x0", 0xd51b_4400, Class::Other, "x0", "", "", (0, 0)),
    ("fadd d0, d1, d2", 0x1e62_2820, Class::FloatAdd, "v1 v2", "", "v0", (0, 0)),
    ("fmax v0.4s, v1.4s, v2.4s", 0x4e22_f420, Class::FloatAdd, "v1 v2", "", "v0", (0, 0)),
    ("fmul v0.2d, v1.2d, v2.d[1]", 0x4fc2_9820, Class::FloatMultiply, "v1 v2", "", "v0", (0, 0)),
    ("fmadd d0, d1, d2, d3", 0x1f42_0c20, Class::FloatMultiply, "v1 v2 v3", "", "v0", (0, 0)),
    ("fmla v0.2d, v1.2d, v2.2d", 0x4e62_cc20, Class::FloatMultiply, "v0 v1 v2", "", "v0", (0, 0)),
    ("fnmul s0, s1, s2", 0x1e22_8820, Class::FloatMultiply, "v1 v2", "", "v0", (0, 0)),
    ("fdiv d0, d1, d2", 0x1e62_1820, Class::FloatDivide, "v1 v2", "", "v0", (0, 0)),
    ("fsqrt v0.2d, v1.2d", 0x6ee1_f820, Class::FloatDivide, "v1", "", "v0", (0, 0)),
    ("fcvt d0, s1", 0x1e22_c020, Class::FloatOther, "v1", "", "v0", (0, 0)),
    ("fcvtzs x0, d1", 0x9e78_0020, Class::FloatOther, "v1", "", "x0", (0, 0)),
    ("scvtf d0, x1", 0x9e62_0020, Class::FloatOther, "x1", "", "v0", (0, 0)),
    ("fcmp d0, d1", 0x1e61_2000, Class::FloatOther, "v0 v1", "", "nzcv", (0, 0)),
    ("fccmp d0, d1, #0, eq", 0x1e61_0400, Class::FloatOther, "v0 v1 nzcv", "", "nzcv", (0, 0)),
    ("fcmeq v0.2d, v1.2d, v2.2d", 0x4e62_e420, Class::FloatOther, "v1 v2", "", "v0", (0, 0)),
    ("frintm d0, d1", 0x1e65_4020, Class::FloatOther, "v1", "", "v0", (0, 0)),
    ("fcsel d0, d1, d2, gt", 0x1e62_cc20, Class::VectorSimple, "v1 v2 nzcv", "", "v0", (0, 0)),
    ("fmov d0, x1", 0x9e67_0020, Class::VectorSimple, "x1", "", "v0", (0, 0)),
    ("fmov x0, d1", 0x9e66_0020, Class::VectorSimple, "v1", "", "x0", (0, 0)),
    ("fmov d0, #1.0", 0x1e6e_1000, Class::VectorSimple, "", "", "v0", (0, 0)),
    ("fabs d0, d1", 0x1e60_c020, Class::VectorSimple, "v1", "", "v0", (0, 0)),
    ("movi v0.4s, #0", 0x4f00_0400, Class::VectorSimple, "", "", "v0", (0, 0)),
    ("orr v0.4s, #1", 0x4f00_1420, Class::VectorSimple, "v0", "", "v0", (0, 0)),
    ("dup v0.16b, w1", 0x4e01_0c20, Class::VectorSimple, "x1", "", "v0", (0, 0)),
    ("ins v0.s[1], w1", 0x4e0c_1c20, Class::VectorSimple, "v0 x1", "", "v0", (0, 0)),
    ("umov w0, v1.b[3]", 0x0e07_3c20, Class::VectorSimple, "v1", "", "x0", (0, 0)),
    ("add v0.4s, v1.4s, v2.4s", 0x4ea2_8420, Class::VectorSimple, "v1 v2", "", "v0", (0, 0)),
    ("cmeq v0.16b, v1.16b, v2.16b", 0x6e22_8c20, Class::VectorSimple, "v1 v2", "", "v0", (0, 0)),
    ("bsl v0.16b, v1.16b, v2.16b", 0x6e62_1c20, Class::VectorSimple, "v0 v1 v2", "", "v0", (0, 0)),
    ("trn2 v0.4s, v1.4s, v2.4s", 0x4e82_6820, Class::VectorSimple, "v1 v2", "", "v0", (0, 0)),
    ("xtn2 v0.8h, v1.4s", 0x4e61_2820, Class::VectorSimple, "v0 v1", "", "v0", (0, 0)),
    ("usra v0.4s, v1.4s, #3", 0x6f3d_1420, Class::VectorSimple, "v0 v1", "", "v0", (0, 0)),
    ("uaddlv h0, v1.16b", 0x6e30_3820, Class::VectorSimple, "v1", "", "v0", (0, 0)),
    ("tbl v0.16b, {v1.16b, v2.16b}, v3.16b", 0x4e03_2020, Class::VectorSimple, "v1 v2 v3", "", "v0", (0, 0)),
    ("tbx v0.16b, {v31.16b, v0.16b}, v3.16b", 0x4e03_33e0, Class::VectorSimple, "v0 v31 v3", "", "v0", (0, 0)),
    ("mul v0.4s, v1.4s, v2.4s", 0x4ea2_9c20, Class::VectorMultiply, "v1 v2", "", "v0", (0, 0)),
    ("mla v0.8h, v1.8h, v15.h[3]", 0x6f7f_0020, Class::VectorMultiply, "v0 v1 v15", "", "v0", (0, 0)),
    ("smlal2 v0.4s, v1.8h, v2.8h", 0x4e62_8020, Class::VectorMultiply, "v0 v1 v2", "", "v0", (0, 0)),
    ("pmull v0.1q, v1.1d, v2.1d", 0x0ee2_e020, Class::VectorMultiply, "v1 v2", "", "v0", (0, 0)),
    ("sdot v0.4s, v1.16b, v2.16b", 0x4e82_9420, Class::VectorMultiply, "v0 v1 v2", "", "v0", (0, 0)),
    ("aese v0.16b, v1.16b", 0x4e28_4820, Class::VectorSimple, "v0 v1", "", "v0", (0, 0)),
    ("aesmc v0.16b, v1.16b", 0x4e28_6820, Class::VectorSimple, "v1", "", "v0", (0, 0)),
    ("sha256h q0, q1, v2.4s", 0x5e02_4020, Class::VectorMultiply, "v0 v1 v2", "", "v0", (0, 0)),
];

#[test]
fn are_classes_registers_and_accesses_told_apart() {
    for &(text, word, class, reads, addresses, writes, (loads, stores)) in CASES {
        let decoded = decode(word);
        let expected = Instruction {
            class,
            reads: registers(reads),
            addresses: registers(addresses),
            writes: registers(writes),
            loads,
            stores,
            fuses: decoded.fuses,
            copies: decoded.copies,
        };
        assert_eq!(decoded, expected, "{text}");
    }
}

#[test]
fn has_every_register_a_bit_that_models_have() {
    /// Models use the others for themselves (`contigua-core`, `window/blocks.rs`).
    const USABLE: u64 = (1 << 62) - 1;
    let general = (0..31).map(aarch64::general);
    let vectors = (0..32).map(aarch64::vector);
    let others = [aarch64::STACK_POINTER, aarch64::NZCV];
    let all: Vec<RegisterSet> = general.chain(vectors).chain(others).collect();
    let mut shared = Vec::new();
    for (place, &one) in all.iter().enumerate() {
        assert!(one.0.is_power_of_two() && one.0 & USABLE != 0, "{place}");
        let same = (0..place).filter(|&other| all[other] == one);
        shared.extend(same.map(|other| (other, place)));
    }
    assert_eq!(shared, [(16, 17), (16, 18), (17, 18), (29, 30)]);
    assert_eq!(aarch64::general(31), RegisterSet::EMPTY);
}

#[test]
fn are_comparisons_fused_with_a_branch_behind_them() {
    let fused = ["cmp x1, #3", "tst x5, #0xff", "bics xzr, x1, x2"];
    for &(text, word, ..) in CASES {
        assert_eq!(decode(word).fuses, fused.contains(&text), "{text}");
    }
}

#[test]
fn does_code_that_accesses_several_registers_worth_have_elements() {
    let wide = ["ldp", "stp", "ld1", "ld2r", "ld4", "st3", "ldaxp", "stlxp"];
    for &(text, word, ..) in CASES {
        let expected = if wide.contains(&text.split(' ').next().unwrap()) || text.contains(" q7") {
            Folding::Elements
        } else {
            Folding::Nothing
        };
        let bytes = word.to_le_bytes();
        let found = folding(Architecture::Aarch64, block(&[4], &bytes));
        // One of a vector register of 8 bytes is told as one, and so cannot be part of another.
        if !text.starts_with("ldr d7") {
            assert_eq!(found, expected, "{text}");
        }
    }
    // Somewhere in a block.
    let code = [0xd503_201f_u32, 0xa940_0400, 0xd65f_03c0].map(u32::to_le_bytes);
    let found = folding(Architecture::Aarch64, block(&[4; 3], code.as_flattened()));
    assert_eq!(found, Folding::Elements);
}

#[test]
fn bytes_that_are_no_instruction_are_unknown() {
    // udf; ptrue p0.b (SVE), which programs do not find.
    for word in [0x0000_dead_u32, 0x2518_e3e0] {
        let decoded = decode(word);
        assert!(decoded.reads == RegisterSet::EMPTY && decoded.writes == RegisterSet::EMPTY);
        assert_eq!(decoded.class, Class::Other, "{word:#x}");
    }
    let mut out = Vec::new();
    let ret = 0xd65f_03c0_u32.to_le_bytes();
    for lengths in [&[3][..], &[2, 2], &[5]] {
        decode_block(Architecture::Aarch64, block(lengths, &ret), &mut out);
        assert!(out.iter().all(|one| *one == Instruction::UNKNOWN));
        assert_eq!(out.len(), lengths.len());
    }
    decode_block(Architecture::Aarch64, block(&[4, 4], &[]), &mut out);
    assert_eq!(out, [Instruction::UNKNOWN; 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn arbitrary_words_never_panic(word: u32) {
        let decoded = decode(word);
        // Where an access is follows from what it reads.
        prop_assert_eq!(decoded.addresses.0 & !decoded.reads.0, 0);
        prop_assert!(decoded.loads <= 1 && decoded.stores <= 1);
        let _ = folding(Architecture::Aarch64, block(&[4], &word.to_le_bytes()));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
        lengths in proptest::collection::vec(0..20_u8, 0..16),
    ) {
        let mut out = Vec::new();
        decode_block(Architecture::Aarch64, block(&lengths, &bytes), &mut out);
        let _ = folding(Architecture::Aarch64, block(&lengths, &bytes));
        prop_assert_eq!(out.len(), lengths.len());
    }
}
