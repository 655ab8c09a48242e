//! The callback for every load and store.

use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;

use contigua_program::wire::{ACCESS, ADDRESS_MASK, INSTRUCTION_SHIFT, SIZE_SHIFT, STORE_SHIFT};

use crate::api::{self, MemoryInfo};
use crate::vcpu;

/// Where QEMU keeps log2 of the size within a [`MemoryInfo`] (three bits): up to 10.0, and 10.2.
const SIZE_SHIFTS: [u32; 2] = [4, 5];
/// Where it keeps the store bit.
const INFO_STORE_SHIFT: u32 = 17;
/// log2 of the size of the accesses that QEMU 7.2 makes in two halves.
const WHOLE: u32 = 4;

/// The callback that fits this QEMU.
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
    let callback: api::MemoryCallback = match (layout, api::is_10_or_newer()) {
        (Some(4), false) => on_access::<4, false>,
        (Some(4), true) => on_access::<4, true>,
        (Some(5), _) => on_access::<5, true>,
        _ => on_access_asking,
    };
    let _ = CALLBACK.set(callback);
}

const fn store_of_info(info: MemoryInfo) -> u64 {
    (info >> INFO_STORE_SHIFT & 1) as u64
}

/// The callback that fits this QEMU.
pub fn callback() -> api::MemoryCallback {
    *CALLBACK
        .get()
        .expect("installation learns it before anything is translated")
}

/// What the callback is given for an instruction: all of the word that translation knows.
pub fn template(instruction: usize) -> *mut c_void {
    (ACCESS | (instruction as u64) << INSTRUCTION_SHIFT) as *mut c_void
}

extern "C" fn on_access<const LAYOUT: u32, const WHOLES: bool>(
    index: c_uint,
    info: MemoryInfo,
    address: u64,
    template: *mut c_void,
) {
    let (size, store) = (info >> LAYOUT & 7, store_of_info(info));
    if WHOLES && size == WHOLE {
        tell_halves(index, address, store, template);
    } else {
        tell(index, address, size, store, template);
    }
}

pub extern "C" fn on_access_asking(
    index: c_uint,
    info: MemoryInfo,
    address: u64,
    template: *mut c_void,
) {
    // SAFETY: `info` comes from QEMU.
    let (size, store) = unsafe {
        (
            api::qemu_plugin_mem_size_shift(info),
            api::qemu_plugin_mem_is_store(info),
        )
    };
    if size == WHOLE {
        tell_halves(index, address, store.into(), template);
    } else {
        tell(index, address, size & 7, store.into(), template);
    }
}

/// An access of 16 bytes is told as the two that QEMU 7.2 makes of it, so that counts and traces
/// do not depend on the version.
#[inline(never)]
fn tell_halves(index: c_uint, address: u64, store: u64, template: *mut c_void) {
    let half = 1 << (WHOLE - 1);
    for address in [address, address + half] {
        tell(index, address, WHOLE - 1, store, template);
    }
}

#[inline]
fn tell(index: c_uint, address: u64, size: u32, store: u64, template: *mut c_void) {
    if vcpu::passes_over(index, address, size, store) {
        return;
    }
    let word = template as u64
        | address & ADDRESS_MASK
        | u64::from(size) << SIZE_SHIFT
        | store << STORE_SHIFT;
    vcpu::append_access(index, word);
}
