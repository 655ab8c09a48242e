//! Repeated string instructions (`rep movsb` and its like).
//!
//! QEMU 7.2 ends a block with such an instruction and executes it once for each iteration, and once
//! more to find that none is left. Since 10.0 it iterates within the block, which it executes once.
//! Counts and models should not depend on the version, so each iteration is told as 7.2 would: as a
//! block of its own. It is recognized by its first access, which comes from a callback of its own;
//! nothing else pays for it. What differs: comparisons (`cmps`, `scas`) that end before they have
//! counted down are told once more than by 7.2, and 65,536 iterations once more.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

use contigua_program::syscall::Architecture;

use crate::api::{self, Instruction, MemoryInfo};
use crate::{access, plugin, vcpu};

/// Accesses that begin an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Load,
    Store,
    /// `cmps` loads twice in an iteration.
    EveryOtherLoad,
}

/// Argument of the callback of such an instruction.
struct Repeated {
    begin: Begin,
    /// Argument of [`vcpu::execute`] for a block that is the instruction.
    block: u64,
}

thread_local! {
    static SECOND_LOAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns the access by which iterations of an instruction are recognized; `None` for all but
/// repeated string instructions that QEMU iterates by itself.
pub fn begin(code: &[u8]) -> Option<Begin> {
    if plugin().architecture == Architecture::X86_64 && api::is_10_or_newer() {
        begin_x86(code)
    } else {
        None
    }
}

/// By prefixes and opcode (Intel's manual, volume 2, appendix A).
fn begin_x86(code: &[u8]) -> Option<Begin> {
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
    let prefixes = code.iter().take_while(|byte| is_prefix(byte)).count();
    let (prefixes, rest) = code.split_at(prefixes);
    if !prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3)) {
        return None;
    }
    match rest.first()? {
        // movs, lods, scas
        0xa4 | 0xa5 | 0xac..=0xaf => Some(Begin::Load),
        0xa6 | 0xa7 => Some(Begin::EveryOtherLoad),
        0xaa | 0xab => Some(Begin::Store),
        _ => None,
    }
}

/// Asks QEMU to tell the accesses of such an instruction; `block` is what [`vcpu::execute`] takes for
/// an iteration.
///
/// # Safety
/// The instruction is one of a block that is being translated.
pub unsafe fn observe(instruction: *mut Instruction, begin: Begin, block: u64) {
    // Lives as long as QEMU's translation, which never says that it ends.
    let repeated = Box::into_raw(Box::new(Repeated { begin, block }));
    // SAFETY: by this function's contract; the callback takes this argument.
    unsafe {
        api::qemu_plugin_register_vcpu_mem_cb(
            instruction,
            on_access,
            api::NO_REGISTERS,
            api::READ_WRITE,
            repeated.cast(),
        );
    }
}

/// The callback for every load and store of a repeated string instruction.
extern "C" fn on_access(index: c_uint, info: MemoryInfo, address: u64, repeated: *mut c_void) {
    // SAFETY: `observe` made it, and nobody frees it.
    let repeated = unsafe { &*repeated.cast::<Repeated>() };
    // SAFETY: `info` comes from QEMU.
    let is_store = unsafe { api::qemu_plugin_mem_is_store(info) };
    let begins = match repeated.begin {
        Begin::Load => !is_store,
        Begin::Store => is_store,
        Begin::EveryOtherLoad => !SECOND_LOAD.replace(!SECOND_LOAD.get()),
    };
    if begins {
        vcpu::execute(index, repeated.block);
    }
    access::tell_asking(index, info, address, access::template(0));
}
