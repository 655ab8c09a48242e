//! No bytes make the decoder panic, and every instruction gets its entry.

#![no_main]

use contigua_program::code::BlockCode;
use contigua_program::decode::{decode_block, folding};
use contigua_program::syscall::Architecture;
use contigua_units::VirtAddr;
use libfuzzer_sys::fuzz_target;

// The input: the number of instructions, their lengths, their bytes.
fuzz_target!(|input: &[u8]| {
    let Some((&count, rest)) = input.split_first() else {
        return;
    };
    let (lengths, bytes) = rest.split_at(usize::from(count).min(rest.len()));
    let address = VirtAddr::new(0x40_0000);
    let code = BlockCode {
        address,
        lengths,
        bytes,
    };
    let mut out = Vec::new();
    for architecture in Architecture::ALL {
        decode_block(architecture, code, &mut out);
        assert_eq!(out.len(), lengths.len());
        let _ = folding(architecture, code);
    }
});
