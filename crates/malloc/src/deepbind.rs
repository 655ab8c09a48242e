//! `dlopen` without `RTLD_DEEPBIND`.
//!
//! A library that is loaded with that flag looks names up in itself and in what it depends on
//! before it asks the program, and so finds the C library's `malloc` and `free`, although the
//! program uses ours. It then frees what others allocated, or others free what it allocated: either
//! ends in a crash. PHP loads its extensions so. No allocator that replaces the C library's can work
//! there; without the flag, names are found as for any other library.
//!
//! The C library knows by the return address which library asks, whose `RUNPATH` and name space
//! apply. So this is a jump, not a call.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The C library's `dlopen`, once it was needed.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The next `dlopen` after ours.
extern "C" fn next() -> *mut c_void {
    let known = NEXT.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is NUL-terminated. Needed because the name that we define hides the function.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    if found.is_null() {
        return nowhere as *mut c_void;
    }
    NEXT.store(found, Ordering::Relaxed);
    found
}

/// In a program without a dynamic linker nothing can be loaded.
extern "C" fn nowhere(_name: *const c_char, _flags: c_int) -> *mut c_void {
    core::ptr::null_mut()
}

/// POSIX `dlopen`; `RTLD_DEEPBIND` is ignored.
///
/// # Safety
/// As the C library's: `name` is null or NUL-terminated, and the library's constructors are run.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "and esi, {keep}",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        keep = const !libc::RTLD_DEEPBIND,
        next = sym next,
    )
}

/// POSIX `dlopen`; `RTLD_DEEPBIND` is ignored.
///
/// # Safety
/// As the C library's: `name` is null or NUL-terminated, and the library's constructors are run.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "and w1, w1, {keep}",
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {next}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        keep = const !libc::RTLD_DEEPBIND,
        next = sym next,
    )
}
