//! Annotations for sanitizers, in builds for them (`scripts/sanitize-malloc`). In all other builds
//! these functions are empty.

#![allow(
    clippy::inline_always,
    reason = "nothing of it may be left in other builds"
)]

#[cfg(contigua_sanitizer = "thread")]
unsafe extern "C" {
    fn __tsan_acquire(address: *mut core::ffi::c_void);
    fn __tsan_release(address: *mut core::ffi::c_void);
}

#[cfg(contigua_sanitizer = "address")]
unsafe extern "C" {
    fn __asan_poison_memory_region(address: *const core::ffi::c_void, bytes: usize);
    fn __asan_unpoison_memory_region(address: *const core::ffi::c_void, bytes: usize);
}

/// Acquires the release at this address: what was done before it happened before.
#[inline(always)]
pub fn acquire(_address: usize) {
    #[cfg(contigua_sanitizer = "thread")]
    if _address != 0 {
        // SAFETY: the address is a name here.
        unsafe { __tsan_acquire(_address as *mut core::ffi::c_void) };
    }
}

/// Releases to the thread that acquires this address.
#[inline(always)]
pub fn release(_address: usize) {
    #[cfg(contigua_sanitizer = "thread")]
    // SAFETY: the address is a name here.
    unsafe {
        __tsan_release(_address as *mut core::ffi::c_void);
    }
}

/// The memory may be used. (A closure, so that nothing is computed in other builds.)
#[inline(always)]
pub fn allocated(_address: usize, _bytes: impl FnOnce() -> usize) {
    #[cfg(contigua_sanitizer = "address")]
    // SAFETY: the memory is the allocator's, and only its shadow changes.
    unsafe {
        __asan_unpoison_memory_region(_address as *const core::ffi::c_void, _bytes());
    }
}

/// The memory may not be used.
#[inline(always)]
pub fn freed(_address: usize, _bytes: impl FnOnce() -> usize) {
    #[cfg(contigua_sanitizer = "address")]
    // SAFETY: as in `allocated`.
    unsafe {
        __asan_poison_memory_region(_address as *const core::ffi::c_void, _bytes());
    }
}
