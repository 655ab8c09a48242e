//! C++ `operator new` and `operator delete` in all forms, without linking the C++ library.
//!
//! A failing throwing form calls the program's new-handler and tries again, as the standard says,
//! and throws `std::bad_alloc` when there is no handler. Both live in the C++ library, which a C
//! program does not have: they are found as weak symbols, or in the library if it was loaded
//! later, and if there is none the process ends with a message.

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;

use contigua_syscalls::weak;

use crate::c_api::malloc_missed;
use crate::classes::{MAX_SMALL, class_of};
use crate::{heap, sys};

type Handler = extern "C-unwind" fn();

/// A function of the C++ library, or null.
fn find(weak: *const c_void, name: &CStr) -> *const c_void {
    if !weak.is_null() {
        return weak;
    }
    // SAFETY: the names are NUL-terminated; a library that is not loaded is not loaded by this either,
    // and the handle, if any, keeps it loaded. Needed because the library is not linked.
    unsafe {
        let library = libc::dlopen(
            c"libstdc++.so.6".as_ptr(),
            libc::RTLD_LAZY | libc::RTLD_NOLOAD,
        );
        if library.is_null() {
            return core::ptr::null();
        }
        libc::dlsym(library, name.as_ptr())
    }
}

#[cold]
#[inline(never)]
fn new_failed(size: usize, align: usize, throws: bool) -> *mut c_void {
    let get_handler = find(weak!("_ZSt15get_new_handlerv"), c"_ZSt15get_new_handlerv");
    while !get_handler.is_null() {
        // SAFETY: `std::get_new_handler()` takes nothing and gives a function or null.
        let handler: Option<Handler> = unsafe {
            let get: extern "C" fn() -> Option<Handler> = core::mem::transmute(get_handler);
            get()
        };
        let Some(handler) = handler else { break };
        handler();
        let memory = heap::allocate_aligned(size, align);
        if !memory.is_null() {
            return memory.cast();
        }
    }
    if !throws {
        return null_mut();
    }
    let throw = find(
        weak!("_ZSt17__throw_bad_allocv"),
        c"_ZSt17__throw_bad_allocv",
    );
    if throw.is_null() {
        sys::die(format_args!(
            "operator new: no memory for {size} bytes, and no C++ library to throw std::bad_alloc"
        ));
    }
    // SAFETY: `std::__throw_bad_alloc()` takes nothing and does not return.
    unsafe {
        let throw: extern "C-unwind" fn() -> ! = core::mem::transmute(throw);
        throw()
    }
}

#[inline(always)]
fn new(size: usize, throws: bool) -> *mut c_void {
    if size <= MAX_SMALL {
        let memory = heap::pop_cached(class_of(size));
        if !memory.is_null() {
            return memory.cast();
        }
    }
    new_missed(size, throws)
}

#[cold]
#[inline(never)]
extern "C-unwind" fn new_missed(size: usize, throws: bool) -> *mut c_void {
    let memory = malloc_missed(size);
    if memory.is_null() {
        return new_failed(size, 1, throws);
    }
    memory
}

#[inline(always)]
fn new_aligned(size: usize, align: usize, throws: bool) -> *mut c_void {
    let memory = heap::allocate_aligned(size, align);
    if memory.is_null() {
        return new_failed(size, align, throws);
    }
    memory.cast()
}

macro_rules! operators {
    (new: $($name:ident($($argument:ident: $type:ty),*) = $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the C++ ABI's names")]
            extern "C-unwind" fn $name($($argument: $type),*) -> *mut c_void {
                $body
            }
        )*
    };
    (delete: $($name:ident($($argument:ident: $type:ty),*) = $size:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the C++ ABI's names")]
            unsafe extern "C" fn $name(memory: *mut c_void $(, $argument: $type)*) {
                // SAFETY: the C++ program promises what `free` asks.
                unsafe {
                    match $size {
                        Some(size) => heap::free_sized(memory.cast(), size),
                        None => heap::free(memory.cast()),
                    }
                }
            }
        )*
    };
}

operators! { new:
    _Znwm(size: usize) = new(size, true);
    _Znam(size: usize) = new(size, true);
    _ZnwmRKSt9nothrow_t(size: usize, _tag: *const c_void) = new(size, false);
    _ZnamRKSt9nothrow_t(size: usize, _tag: *const c_void) = new(size, false);
    _ZnwmSt11align_val_t(size: usize, align: usize) = new_aligned(size, align, true);
    _ZnamSt11align_val_t(size: usize, align: usize) = new_aligned(size, align, true);
    _ZnwmSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, _tag: *const c_void)
        = new_aligned(size, align, false);
    _ZnamSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, _tag: *const c_void)
        = new_aligned(size, align, false);
}

operators! { delete:
    _ZdlPv() = None;
    _ZdaPv() = None;
    _ZdlPvm(size: usize) = Some(size);
    _ZdaPvm(size: usize) = Some(size);
    _ZdlPvRKSt9nothrow_t(_tag: *const c_void) = None;
    _ZdaPvRKSt9nothrow_t(_tag: *const c_void) = None;
    _ZdlPvSt11align_val_t(_align: usize) = None;
    _ZdaPvSt11align_val_t(_align: usize) = None;
    _ZdlPvmSt11align_val_t(size: usize, _align: usize) = Some(size);
    _ZdaPvmSt11align_val_t(size: usize, _align: usize) = Some(size);
    _ZdlPvSt11align_val_tRKSt9nothrow_t(_align: usize, _tag: *const c_void) = None;
    _ZdaPvSt11align_val_tRKSt9nothrow_t(_align: usize, _tag: *const c_void) = None;
}
