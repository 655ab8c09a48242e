//! `dc zva`, with which C libraries of aarch64 zero memory.
//!
//! QEMU performs it in a function of its own and tells plugins of no access, so the plugin asks for the
//! register that has the address. Since QEMU 10 the interface reads registers. In 7.2 they are behind
//! what generated code keeps in a register of the host's (`TCG_AREG0`, `tcg/i386/tcg-target.h`), at
//! the start of each block and behind a function that may read them, as this one is: in 7.2 the
//! question is asked before the next instruction of the block. Whether they are where 7.2 has them is
//! compared with the arguments of the process's first system call; what was zeroed before that is told
//! then.
//!
//! Not told: a `dc zva` that is the last instruction of a block, but not its first, in 7.2.

use std::cell::{Cell, RefCell};
use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use contigua_program::syscall::Architecture;

use crate::api::{self, Instruction};
use crate::{access, plugin};

/// The instruction but for its register, which is in the lowest five bits (Arm ARM, DDI 0487, "DC
/// ZVA").
const ZERO: u32 = 0xd50b_7420;
const REGISTER: u32 = 31;
/// `svc #0`.
const SYSCALL: u32 = 0xd400_0001;

/// log2 of the bytes of one told store: a line.
const STORE_LOG2: u32 = 6;
/// Bytes that the instruction zeroes.
static BLOCK: AtomicU32 = AtomicU32::new(1 << STORE_LOG2);

/// Result of the check that registers are where QEMU 7.2 has them.
static PLACE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const KNOWN: u8 = 1;
const OTHER: u8 = 2;

/// Offset of x0 to x30 in `CPUARMState` of QEMU 7.2 (`target/arm/cpu.h`): behind sixteen registers
/// of 32 bits.
const FIRST: usize = 16 * size_of::<u32>();

/// QEMU's names of registers, since version 10, in their order.
static HANDLES: OnceLock<Option<[usize; 31]>> = OnceLock::new();

thread_local! {
    /// Value of the host's register at the last system call.
    static STATE: Cell<usize> = const { Cell::new(0) };
    /// Addresses that were zeroed before it was known where registers are.
    static EARLY: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Learns from the processor's name how much is zeroed at once (`target/arm/cpu64.c`, QEMU 7.2:
/// `dcz_blocksize`).
pub fn choose_block(processor: Option<&str>) {
    let model = processor.and_then(|name| name.split(',').next());
    let bytes = match model {
        Some("max") => 512,
        Some("a64fx") => 256,
        _ => 64,
    };
    BLOCK.store(bytes, Ordering::Relaxed);
}

/// The instruction before the one that is being translated, if it zeroes: its place and register.
pub type Before = Option<(usize, u32)>;

/// Asks QEMU to call back where memory is zeroed. Takes the instructions of a block in their order,
/// with what this returned for the one before.
///
/// # Safety
/// The instruction is one of a block that is being translated, at this place.
pub unsafe fn observe(
    instruction: *mut Instruction,
    place: usize,
    code: &[u8],
    before: Before,
) -> Before {
    if plugin().architecture != Architecture::Aarch64 {
        return None;
    }
    let word = u32::from_le_bytes(code.try_into().ok()?);
    let register = (word & !REGISTER == ZERO).then_some(word & REGISTER);
    let ask = |callback, flags, (place, register): (usize, u32)| {
        let argument = access::template(place) as usize | register as usize;
        // SAFETY: by this function's contract; the callbacks take this argument.
        unsafe {
            api::qemu_plugin_register_vcpu_insn_exec_cb(
                instruction,
                callback,
                flags,
                argument as *mut c_void,
            );
        }
    };
    if api::is_10_or_newer() {
        if let Some(register) = register {
            ask(on_zero, api::READ_REGISTERS, (place, register));
        }
        return None;
    }
    if let Some(before) = before {
        ask(on_zeroed, api::NO_REGISTERS, before);
    }
    if word == SYSCALL && PLACE.load(Ordering::Relaxed) == UNKNOWN {
        ask(on_syscall, api::NO_REGISTERS, (0, 0));
    }
    let register = register?;
    if place == 0 {
        ask(on_zeroed, api::NO_REGISTERS, (place, register));
        return None;
    }
    Some((place, register))
}

/// Compares what is taken for the registers x0 to x8 with a system call's arguments and number.
pub fn check_place(index: c_uint, number: i64, arguments: &[u64; 6]) {
    let state = STATE.get();
    if state == 0 || PLACE.load(Ordering::Relaxed) != UNKNOWN {
        return;
    }
    let found: Vec<u64> = (0..9).map(|register| read(state, register)).collect();
    let early = EARLY.take();
    if found[..6] == arguments[..] && found[8] == number.cast_unsigned() {
        PLACE.store(KNOWN, Ordering::Relaxed);
        for address in early {
            tell(index, address, access::template(0));
        }
    } else {
        PLACE.store(OTHER, Ordering::Relaxed);
        eprintln!(
            "contigua plugin: this QEMU does not show which memory `dc zva` zeroes: these stores are \
             not counted; use QEMU 7.2 as Debian builds it, or 10.0 to 10.2"
        );
    }
}

/// A register, of what generated code has of the processor.
fn read(state: usize, register: u32) -> u64 {
    // SAFETY: QEMU keeps a pointer to the emulated processor's state in the host's register while
    // generated code runs. That is larger than what is read of it.
    unsafe {
        ((state + FIRST) as *const u64)
            .add(register as usize)
            .read()
    }
}

/// Tells the stores to the block of memory that has `address`.
fn tell(index: c_uint, address: u64, template: *mut c_void) {
    let bytes = u64::from(BLOCK.load(Ordering::Relaxed));
    let start = address & !(bytes - 1);
    for store in (start..start + bytes).step_by(1 << STORE_LOG2) {
        access::tell_store(index, store, STORE_LOG2, template);
    }
}

/// The template and the register of what [`observe`] gives callbacks.
fn parts(argument: *mut c_void) -> (*mut c_void, u32) {
    let argument = argument as usize;
    let register = argument & REGISTER as usize;
    ((argument - register) as *mut c_void, register as u32)
}

/// QEMU 7.2 has zeroed, or begins a block with it. `state` is what the host's register has.
extern "C" fn tell_zeroed(index: c_uint, argument: *mut c_void, state: usize) {
    let (template, register) = parts(argument);
    // The last one is the zero register.
    let address = match register {
        REGISTER => 0,
        register => read(state, register),
    };
    match PLACE.load(Ordering::Relaxed) {
        KNOWN => tell(index, address, template),
        UNKNOWN => EARLY.with_borrow_mut(|early| early.push(address)),
        _ => {}
    }
}

/// QEMU 7.2 begins a system call.
extern "C" fn keep_state(_: c_uint, _: *mut c_void, state: usize) {
    STATE.set(state);
}

/// Calls a function with the host's register as third argument.
macro_rules! with_state {
    ($name:ident, $function:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        extern "C" fn $name(_: c_uint, _: *mut c_void) {
            std::arch::naked_asm!("mov rdx, rbp", "jmp {function}", function = sym $function)
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        extern "C" fn $name(_: c_uint, _: *mut c_void) {
            std::arch::naked_asm!("mov x2, x19", "b {function}", function = sym $function)
        }
    };
}

with_state!(on_zeroed, tell_zeroed);
with_state!(on_syscall, keep_state);

/// QEMU 10 is about to zero.
extern "C" fn on_zero(index: c_uint, argument: *mut c_void) {
    let (template, register) = parts(argument);
    let address = match HANDLES.get_or_init(handles) {
        _ if register == REGISTER => Some(0),
        Some(handles) => api::read_register(handles[register as usize]),
        None => None,
    };
    match address {
        Some(address) => tell(index, address, template),
        None => crate::fail("this QEMU does not read the registers of aarch64"),
    }
}

/// QEMU's handles of x0 to x30.
fn handles() -> Option<[usize; 31]> {
    let known = api::registers();
    let handle = |number: usize| {
        let name = format!("x{number}");
        let found = known.iter().find(|(found, _)| *found == name)?;
        Some(found.1)
    };
    let mut handles = [0; 31];
    for (number, place) in handles.iter_mut().enumerate() {
        *place = handle(number)?;
    }
    Some(handles)
}
