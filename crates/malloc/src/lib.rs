//! A malloc for Linux whose heap knows about huge pages.
//!
//! It is a library to preload (`LD_PRELOAD=libcontigua_malloc.so`), to link from C
//! (`contigua_malloc.h`), and a Rust global allocator ([`ContiguaMalloc`]). The path of an
//! allocation, from the program down:
//!
//! 1. `heap` turns a size into a class (`classes`) or a number of pages.
//! 2. `front` takes an object from the stack of the CPU it runs on, through a restartable sequence
//!    (`contigua_percpu`), or of its thread where the kernel or the C library has none.
//! 3. A miss moves a batch from the `transfer` cache of the class,
//! 4. which takes from spans in the `central` cache (`span` has the bitmaps),
//! 5. which get pages from the page heap (`pages`), as large objects do directly.
//!
//! A free finds its class in the `pagemap` and goes the same way back. Everything below `heap` is
//! ignorant of C; `c_api`, `cxx` and [`ContiguaMalloc`] only translate.
//!
//! Nothing here uses Rust's heap: it is the heap. The standard library is linked for what a panic
//! does (a bug: it ends the process, see `panic_alloc`) and not used.
//!
//! `docs/malloc.md` has the guide and the measurements.

#![no_std]
// A hot path of a few nanoseconds is decided here, not by thresholds.
#![allow(clippy::inline_always, reason = "the hot path is measured with them")]

extern crate std;

mod background;
mod central;
mod classes;
mod clock;
pub mod control;
mod dump;
mod fork;
mod front;
mod guarded;
mod harden;
mod heap;
mod info;
mod lock;
mod math;
mod metadata;
mod near;
mod pagemap;
mod pages;
mod panic_alloc;
mod primary;
mod profile;
mod rseq;
mod sampler;
mod sanitizer;
mod settings;
mod setup;
mod sizes;
mod span;
mod sync;
#[cfg_attr(miri, path = "system_model.rs")]
mod system;
mod telemetry;
#[cfg(test)]
mod tests;
#[cfg_attr(miri, path = "tls_model.rs")]
mod tls;
mod transfer;
mod unwind;
mod upkeep;

#[allow(clippy::must_use_candidate, reason = "their callers are C")]
pub mod c_api;
#[cfg(feature = "interpose")]
mod cxx;
#[cfg(feature = "interpose")]
mod deepbind;

use core::alloc::{GlobalAlloc, Layout};

use contigua_syscalls::{self as sys, files, signals};

/// The allocator as a Rust global allocator.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: contigua_malloc::ContiguaMalloc = contigua_malloc::ContiguaMalloc;
/// # fn main() { assert_eq!(vec![1; 100_000].iter().sum::<i32>(), 100_000); }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ContiguaMalloc;

// SAFETY: memory is allocated with the layout's size and alignment, apart from all other live
// memory, and stays until it is freed; nothing here unwinds. Needed to be a global allocator.
unsafe impl GlobalAlloc for ContiguaMalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= 8 || (layout.align() == 16 && layout.size() > 8) {
            heap::allocate(layout.size())
        } else {
            heap::allocate_aligned(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { heap::free_sized(memory, layout.size()) };
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= 8 || (layout.align() == 16 && layout.size() > 8) {
            return heap::allocate_zeroed(layout.size());
        }
        let memory = heap::allocate_aligned(layout.size(), layout.align());
        if !memory.is_null() {
            // SAFETY: just allocated with this size.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= 8 || (layout.align() == 16 && size > 8) {
            // SAFETY: the caller's promise; sizes are not 0.
            return unsafe { heap::reallocate(memory, size) };
        }
        let new = heap::allocate_aligned(size, layout.align());
        if !new.is_null() {
            // SAFETY: both are allocated, apart from each other, and at least this long.
            unsafe {
                core::ptr::copy_nonoverlapping(memory, new, layout.size().min(size));
                heap::free(memory);
            }
        }
        new
    }
}

/// Run by the loader before the program. A program that does not use the allocator for everything
/// may not use it at all, but read the figures of others: then nothing happens before its first
/// allocation.
#[cfg(all(not(test), feature = "interpose"))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn construct() {
        setup::ensure();
        setup::begin_samples();
        background::maybe_start_thread(true);
    }
    construct
};

/// Run at the end of the program.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = telemetry_at_exit;

#[cfg(not(test))]
extern "C" fn telemetry_at_exit() {
    telemetry::at_exit();
    profile::at_exit();
}
