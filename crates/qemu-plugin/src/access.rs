//! The callback for every load and store.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use contigua_program::wire::{ACCESS, ADDRESS_MASK, INSTRUCTION_SHIFT, SIZE_SHIFT, STORE_SHIFT};

use crate::api::{self, MemoryInfo};
use crate::vcpu;

/// Where QEMU 7.2 to 8.2 keep log2 of the size within a [`MemoryInfo`] (three bits).
const INFO_SIZE_SHIFT: u32 = 4;
/// Where they keep the store bit.
const INFO_STORE_SHIFT: u32 = 17;

/// Whether this QEMU lays out [`MemoryInfo`] as the constants above say.
///
/// QEMU wants plugins to ask its functions, and two calls per access cost a third of the speed
/// (measured: 351 against 534 million instructions a second on sqlite3). So those functions are
/// asked once, about every bit, and the bits are read directly only when they agree.
static KNOWN_LAYOUT: AtomicBool = AtomicBool::new(false);

/// Compares the assumed layout with QEMU's own functions.
pub fn learn_memory_information() {
    let agrees = |info: MemoryInfo| {
        // SAFETY: both functions are pure and take any value.
        let (size, store) = unsafe {
            (
                api::qemu_plugin_mem_size_shift(info),
                api::qemu_plugin_mem_is_store(info),
            )
        };
        size == size_of_info(info) && u64::from(store) == store_of_info(info)
    };
    let single_bits = (0..MemoryInfo::BITS).map(|bit| 1 << bit);
    let all_known = [0, MemoryInfo::MAX]
        .into_iter()
        .chain(single_bits)
        .all(agrees);
    KNOWN_LAYOUT.store(all_known, Ordering::Relaxed);
}

const fn size_of_info(info: MemoryInfo) -> u32 {
    info >> INFO_SIZE_SHIFT & 7
}

const fn store_of_info(info: MemoryInfo) -> u64 {
    (info >> INFO_STORE_SHIFT & 1) as u64
}

/// The callback that fits this QEMU.
pub fn callback() -> api::MemoryCallback {
    if KNOWN_LAYOUT.load(Ordering::Relaxed) {
        on_access
    } else {
        on_access_asking
    }
}

/// What the callback is given for an instruction: all of the word that translation knows.
pub fn template(instruction: usize) -> *mut c_void {
    (ACCESS | (instruction as u64) << INSTRUCTION_SHIFT) as *mut c_void
}

extern "C" fn on_access(index: c_uint, info: MemoryInfo, address: u64, template: *mut c_void) {
    let (size, store) = (size_of_info(info), store_of_info(info));
    if vcpu::passes_over(index, address, size, store) {
        return;
    }
    let word = template as u64
        | address & ADDRESS_MASK
        | u64::from(size) << SIZE_SHIFT
        | store << STORE_SHIFT;
    vcpu::append_access(index, word);
}

extern "C" fn on_access_asking(
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
    let word = template as u64
        | address & ADDRESS_MASK
        | u64::from(size & 7) << SIZE_SHIFT
        | u64::from(store) << STORE_SHIFT;
    vcpu::append_access(index, word);
}
