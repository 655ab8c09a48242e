//! Memory with which a panic of our own can be told.
//!
//! A panic here is a bug, and ends the process. But first Rust's machinery allocates: for the message, the
//! environment, a backtrace, the exception. A thread that has a lock of ours would wait for itself, for ever. A panic
//! hook that does without memory is no help: the message becomes a string before any hook is called, and in a Rust
//! program that has this crate as its allocator the hook is the program's. So such a thread gets what its cache does
//! not have from here, where no lock is needed, and nothing is freed but into its cache. The process ends when the
//! panic comes to the lock ([`crate::lock::Guard`]).

use core::ptr;

use crate::{sys, tls};

/// Bytes of an object's header, which holds its size.
const HEADER: usize = 16;

/// Returns true if the calling thread panicked while it held one of our locks.
#[inline]
pub fn is_raised() -> bool {
    tls::has_lock() && std::thread::panicking()
}

/// Zeroed memory: a mapping for each object, because the process ends soon.
#[cold]
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    let align = align.max(HEADER);
    let memory = size.checked_add(2 * align).and_then(sys::map);
    let Some(memory) = memory else {
        // Not null: what Rust does then waits for the backtrace that this is for.
        sys::die(format_args!("out of memory while reporting a panic"))
    };
    let address = (memory.as_ptr() as usize + HEADER).next_multiple_of(align);
    // SAFETY: the mapping is ours, and reaches from before the header to behind the object.
    unsafe { ((address - HEADER) as *mut usize).write(size) };
    address as *mut u8
}

/// As `heap::reallocate`, for an object that has `old` bytes, or is from here. It is not freed.
///
/// # Safety
/// As there.
#[cold]
pub unsafe fn reallocate(memory: *mut u8, old: Option<usize>, size: usize) -> *mut u8 {
    let new = allocate(size, HEADER);
    // SAFETY: what is from here has its size before it; both are long enough, and the new one is nobody
    // else's.
    unsafe {
        let old = old.unwrap_or_else(|| ((memory as usize - HEADER) as *const usize).read());
        ptr::copy_nonoverlapping(memory, new, old.min(size));
    }
    new
}
