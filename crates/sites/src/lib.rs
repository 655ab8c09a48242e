//! Tells the lab which code of a program asks for which memory of `malloc`.
//!
//! `contigua profile --sites` preloads this library. Its functions call those of the program's allocator, and tell
//! of each block by a `prctl` that no kernel knows ([`TOLD`]), whose arguments the lab's plugin sees: address, size
//! and return address. That blocks are freed is not told: later ones at their addresses replace them.
//!
//! Nothing here allocates or takes a lock.

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

/// A function of the allocator behind this library, found at its first call.
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

    /// Its address; null where the allocator does not have it.
    fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is NUL-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
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

            static NEXT: Next = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without NUL"),
                },
            );

            type Function = unsafe extern "C" fn($($type),*) -> $result;

            unsafe extern "C" fn call($($argument: $type,)* caller: usize) -> $result {
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
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                #[cfg(target_arch = "x86_64")]
                naked_asm!("endbr64", concat!("mov ", $caller, ", [rsp]"), "jmp {call}", call = sym call);
                #[cfg(target_arch = "aarch64")]
                naked_asm!("hint #34", concat!("mov ", $caller_arm, ", x30"), "b {call}", call = sym call);
            }
        }
    )*};
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
    // `operator new(unsigned long)`, `operator new[](unsigned long)`: their blocks are told once more, for their
    // callers.
    _Znwm, "rsi", "x1", (bytes: usize) -> *mut c_void, |made| made, bytes;
    _Znam, "rsi", "x1", (bytes: usize) -> *mut c_void, |made| made, bytes;
}
