//! Tells the lab which code of a program asks for which memory of `malloc`.
//!
//! `contigua profile --sites` preloads this library. Its functions call those of the program's allocator, and tell
//! of each block by a `prctl` that no kernel knows ([`TOLD`]), whose arguments the lab's plugin sees: address, size
//! and return address. That blocks are freed is not told: later ones at their addresses replace them.
//!
//! Nothing here allocates. The allocator's functions are looked up before the program's code runs, which takes the
//! loader's lock; later only C++'s operators of a library that is loaded later.

#![no_std]

// For panics, which are bugs and end the process. The unwinder is linked into the library, so that programs in a
// folder without `libgcc_s.so.1` start.
extern crate std;

#[cfg_attr(
    target_env = "gnu",
    link(name = "gcc_eh", kind = "static", modifiers = "-bundle")
)]
unsafe extern "C" {}

use core::arch::{asm, naked_asm};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// First argument of the `prctl`: "sITE". `contigua_program::syscall` has the same number.
const TOLD: usize = 0x7349_5445;

/// A function of the allocator behind this library.
struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// Looks it up behind this library.
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is NUL-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }

    /// Its address; null where the allocator does not have it.
    fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let mut found = self.find();
        // C++ that a C program loads is behind no library that was there from the start.
        for library in [c"libstdc++.so.6", c"libc++.so.1"] {
            if found.is_null() {
                let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
                // SAFETY: names are NUL-terminated; what is not loaded has no handle.
                found = unsafe {
                    let handle = libc::dlopen(library.as_ptr(), flags);
                    if handle.is_null() {
                        continue;
                    }
                    libc::dlsym(handle, self.name.as_ptr())
                };
            }
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Looks up all functions, before the program's own code runs.
extern "C" fn start() {
    for next in ALL {
        next.find();
    }
}

/// Tells of a block. The kernel refuses the request, and `errno` stays as it was.
fn tell(block: *mut c_void, bytes: usize, caller: usize) {
    if block.is_null() {
        return;
    }
    // SAFETY: the kernel knows no such request, and changes nothing.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_prctl => _,
            in("rdi") TOLD,
            in("rsi") block,
            in("rdx") bytes,
            in("r10") caller,
            in("r8") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, readonly, preserves_flags),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc #0",
            in("x8") libc::SYS_prctl,
            inlateout("x0") TOLD => _,
            in("x1") block,
            in("x2") bytes,
            in("x3") caller,
            in("x4") 0,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// Defines functions of an allocator: what they take, what their return address is passed to, and which block of
/// which size they made.
macro_rules! allocates {
    ($($name:ident, $caller:literal, $caller_arm:literal, ($($argument:ident: $type:ty),*) -> $result:ty,
        |$made:ident| $block:expr, $bytes:expr;)*) => {$(
        #[allow(non_snake_case, reason = "C++ mangles names so")]
        mod $name {
            use super::*;

            pub static NEXT: Next = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without NUL"),
                },
            );

            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;

            // C++'s operators throw.
            unsafe extern "C-unwind" fn call($($argument: $type,)* caller: usize) -> $result {
                let next = NEXT.get();
                assert!(!next.is_null(), "an allocator without its functions");
                // SAFETY: the allocator's function has the type of this one.
                let next = unsafe { core::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: the program's arguments.
                let $made = unsafe { next($($argument),*) };
                tell($block, $bytes, caller);
                $made
            }

            /// The allocator's function, whose block the lab is told of.
            ///
            /// # Safety
            /// As of the allocator's.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
                #[cfg(target_arch = "x86_64")]
                naked_asm!("endbr64", concat!("mov ", $caller, ", [rsp]"), "jmp {call}", call = sym call);
                #[cfg(target_arch = "aarch64")]
                naked_asm!("hint #34", concat!("mov ", $caller_arm, ", x30"), "b {call}", call = sym call);
            }
        }
    )*
        /// All of them.
        static ALL: &[&Next] = &[$(&$name::NEXT),*];
    };
}

allocates! {
    malloc, "rsi", "x1", (bytes: usize) -> *mut c_void, |made| made, bytes;
    calloc, "rdx", "x2", (count: usize, size: usize) -> *mut c_void, |made| made, count.wrapping_mul(size);
    realloc, "rdx", "x2", (old: *mut c_void, bytes: usize) -> *mut c_void, |made| made, bytes;
    reallocarray, "rcx", "x3", (old: *mut c_void, count: usize, size: usize) -> *mut c_void,
        |made| made, count.wrapping_mul(size);
    memalign, "rdx", "x2", (alignment: usize, bytes: usize) -> *mut c_void, |made| made, bytes;
    aligned_alloc, "rdx", "x2", (alignment: usize, bytes: usize) -> *mut c_void, |made| made, bytes;
    posix_memalign, "rcx", "x3", (place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int,
        |made| match made {
            // SAFETY: it has written the block's address.
            0 => unsafe { *place },
            _ => null_mut(),
        }, bytes;
    valloc, "rsi", "x1", (bytes: usize) -> *mut c_void, |made| made, bytes;
    pvalloc, "rsi", "x1", (bytes: usize) -> *mut c_void, |made| made, bytes;
    // `operator new` and `operator new[]`, also with `nothrow_t`, with `align_val_t` and with both. What they get from
    // `malloc` is told once more, for their callers.
    _Znwm, "rsi", "x1", (bytes: usize) -> *mut c_void, |made| made, bytes;
    _Znam, "rsi", "x1", (bytes: usize) -> *mut c_void, |made| made, bytes;
    _ZnwmRKSt9nothrow_t, "rdx", "x2", (bytes: usize, tag: *const c_void) -> *mut c_void, |made| made, bytes;
    _ZnamRKSt9nothrow_t, "rdx", "x2", (bytes: usize, tag: *const c_void) -> *mut c_void, |made| made, bytes;
    _ZnwmSt11align_val_t, "rdx", "x2", (bytes: usize, alignment: usize) -> *mut c_void, |made| made, bytes;
    _ZnamSt11align_val_t, "rdx", "x2", (bytes: usize, alignment: usize) -> *mut c_void, |made| made, bytes;
    _ZnwmSt11align_val_tRKSt9nothrow_t, "rcx", "x3",
        (bytes: usize, alignment: usize, tag: *const c_void) -> *mut c_void, |made| made, bytes;
    _ZnamSt11align_val_tRKSt9nothrow_t, "rcx", "x3",
        (bytes: usize, alignment: usize, tag: *const c_void) -> *mut c_void, |made| made, bytes;
}
