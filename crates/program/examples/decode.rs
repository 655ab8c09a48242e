//! Registers and classes of a block of x86-64: `cargo run -p contigua-program --example decode`.

use contigua_program::code::BlockCode;
use contigua_program::decode::decode_block;
use contigua_program::syscall::Architecture;
use contigua_units::VirtAddr;

fn main() {
    // mov (%rdi),%rax; add %rax,%rbx; mov %rbx,8(%rdi); dec %ecx; jne
    let code = BlockCode {
        address: VirtAddr::new(0x40_1000),
        lengths: &[3, 3, 4, 2, 2],
        bytes: &[
            0x48, 0x8b, 0x07, 0x48, 0x01, 0xc3, 0x48, 0x89, 0x5f, 0x08, 0xff, 0xc9, 0x75, 0xf2,
        ],
    };
    let mut instructions = Vec::new();
    decode_block(Architecture::X86_64, code, &mut instructions);
    let mut address = code.address.get();
    for (instruction, length) in instructions.iter().zip(code.lengths) {
        println!(
            "{address:#x}: {:?}, {} loads, {} stores, fuses with a branch behind it: {}",
            instruction.class, instruction.loads, instruction.stores, instruction.fuses
        );
        address += u64::from(*length);
    }
}
