//! The callback for every load and store.

use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;

use contigua_program::wire::AccessWord;

use crate::api::{self, Instruction, MemoryInfo};
use crate::{plugin, vcpu};

/// Position of log2 of the size within QEMU's [`MemoryInfo`] (three bits): up to 10.0, and 10.2.
const SIZE_SHIFTS: [u32; 2] = [4, 5];
/// Position of the store bit.
const INFO_STORE_SHIFT: u32 = 17;
/// log2 of the size of the accesses that QEMU 7.2 makes in two halves.
const WHOLE: u32 = 4;

/// The callback that fits this QEMU and the plan.
///
/// QEMU wants plugins to ask its functions, and two calls per access cost a third of the speed
/// (measured: 351 against 534 million instructions a second on sqlite3). So those functions are
/// asked once, about every bit, and the bits are read directly only when they agree.
static CALLBACK: OnceLock<api::MemoryCallback> = OnceLock::new();

/// Compares the known layouts with QEMU's own functions.
pub fn learn_memory_information() {
    let agrees = |shift: u32, info: MemoryInfo| {
        // SAFETY: both functions are pure and take any value.
        let (size, store) = unsafe {
            (
                api::qemu_plugin_mem_size_shift(info),
                api::qemu_plugin_mem_is_store(info),
            )
        };
        size == info >> shift & 7 && u64::from(store) == store_of_info(info)
    };
    let is_layout = |shift: &u32| {
        let single_bits = (0..MemoryInfo::BITS).map(|bit| 1 << bit);
        let mut all = [0, MemoryInfo::MAX].into_iter().chain(single_bits);
        all.all(|info| agrees(*shift, info))
    };
    let layout = SIZE_SHIFTS.into_iter().find(is_layout);
    let forward = plugin().plan.goes_forward();
    let callback = match (layout, api::is_10_or_newer()) {
        (Some(4), false) => Known::<4, false>::callback(forward),
        (Some(4), true) => Known::<4, true>::callback(forward),
        (Some(5), _) => Known::<5, true>::callback(forward),
        _ => Asking::callback(forward),
    };
    let _ = CALLBACK.set(callback);
}

/// Asks QEMU to tell the accesses of an instruction, to `callback` if it has one of its own.
///
/// # Safety
/// The instruction is one of a block that is being translated.
pub unsafe fn observe(
    instruction: *mut Instruction,
    index: usize,
    callback: Option<api::MemoryCallback>,
) {
    let callback = callback.unwrap_or_else(|| {
        *CALLBACK
            .get()
            .expect("installation learns it before anything is translated")
    });
    // SAFETY: by this function's contract; the callback takes a template.
    unsafe {
        // QEMU 7.2 tells loads to callbacks for stores, and stores to both.
        api::qemu_plugin_register_vcpu_mem_cb(
            instruction,
            callback,
            api::NO_REGISTERS,
            api::READ_WRITE,
            template(index),
        );
    }
}

const fn store_of_info(info: MemoryInfo) -> u64 {
    (info >> INFO_STORE_SHIFT & 1) as u64
}

/// Argument of the callback of an instruction: all of the word that translation knows.
pub fn template(instruction: usize) -> *mut c_void {
    AccessWord::template(instruction as u16).0 as *mut c_void
}

/// Source of the size and the kind of an access.
trait Reading: Sized + 'static {
    /// log2 of the size, and whether it is a store: 0 or 1.
    fn read(info: MemoryInfo) -> (u32, u64);
    /// True if accesses of 16 bytes come whole.
    const WHOLES: bool;

    fn callback(goes_forward: bool) -> api::MemoryCallback {
        if goes_forward {
            on_access::<Self>
        } else {
            tell::<Self>
        }
    }
}

/// By where QEMU keeps them.
struct Known<const SIZE_SHIFT: u32, const WHOLES: bool>;
/// By QEMU's functions.
struct Asking;

impl<const SHIFT: u32, const WHOLES: bool> Reading for Known<SHIFT, WHOLES> {
    const WHOLES: bool = WHOLES;

    fn read(info: MemoryInfo) -> (u32, u64) {
        (info >> SHIFT & 7, store_of_info(info))
    }
}

impl Reading for Asking {
    const WHOLES: bool = true;

    fn read(info: MemoryInfo) -> (u32, u64) {
        // SAFETY: `info` comes from QEMU.
        unsafe {
            (
                api::qemu_plugin_mem_size_shift(info) & 7,
                api::qemu_plugin_mem_is_store(info).into(),
            )
        }
    }
}

/// An access of a program that may go forward: most return at once.
extern "C" fn on_access<R: Reading>(
    index: c_uint,
    info: MemoryInfo,
    address: u64,
    template: *mut c_void,
) {
    if !vcpu::passes_over(index, address, R::read(info).1) {
        tell::<R>(index, info, address, template);
    }
}

/// An access, which is told unless the vCPU goes forward and knows it.
#[inline(never)]
extern "C" fn tell<R: Reading>(
    index: c_uint,
    info: MemoryInfo,
    address: u64,
    template: *mut c_void,
) {
    let (size, store) = R::read(info);
    if R::WHOLES && size == WHOLE {
        tell_halves(index, address, store, template);
    } else {
        tell_one(index, address, size, store, template);
    }
}

/// Records an access under any QEMU: asks which processor runs.
pub extern "C" fn tell_asking(
    index: c_uint,
    info: MemoryInfo,
    address: u64,
    template: *mut c_void,
) {
    tell::<Asking>(index, info, address, template);
}

/// A store that QEMU tells nobody of.
pub fn tell_store(index: c_uint, address: u64, size_log2: u32, template: *mut c_void) {
    tell_one(index, address, size_log2, 1, template);
}

/// An access of 16 bytes is told as the two that QEMU 7.2 makes of it, so that counts and traces
/// do not depend on the version.
#[inline(never)]
fn tell_halves(index: c_uint, address: u64, store: u64, template: *mut c_void) {
    let half = 1 << (WHOLE - 1);
    for address in [address, address + half] {
        tell_one(index, address, WHOLE - 1, store, template);
    }
}

#[inline]
fn tell_one(index: c_uint, address: u64, size: u32, store: u64, template: *mut c_void) {
    let word = AccessWord(template as u64).with(address, size, store != 0);
    vcpu::append_access(index, word);
}
