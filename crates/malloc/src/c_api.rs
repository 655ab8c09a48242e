//! The C and POSIX surface, and the control functions of `contigua_malloc.h`.
//!
//! Without the feature `interpose` the functions are the same, but not the process's: only Rust
//! code that names them calls them, as fuzzing does.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use crate::classes::{MAX_SMALL, TABLE_BYTES, class_of};
use crate::{control, front, harden, heap, info, setup, sys, telemetry, upkeep};

#[inline(always)]
fn or_no_memory(memory: *mut u8) -> *mut c_void {
    if memory.is_null() {
        no_memory();
    }
    memory.cast()
}

#[cold]
fn no_memory() {
    sys::set_errno(libc::ENOMEM);
}

/// C `malloc`.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    if size > TABLE_BYTES {
        return malloc_above_table(size);
    }
    malloc_cached(size)
}

#[inline(always)]
fn malloc_cached(size: usize) -> *mut c_void {
    let memory = heap::pop_cached(class_of(size));
    if memory.is_null() {
        return malloc_missed(size);
    }
    memory.cast()
}

/// A function of its own, so that small sizes take no jump.
#[inline(never)]
extern "C" fn malloc_above_table(size: usize) -> *mut c_void {
    if size > MAX_SMALL {
        return malloc_missed(size);
    }
    malloc_cached(size)
}

/// Allocates what the cache has not: every object while allocations are counted. Its calls are the last
/// thing that it does, so that counting takes no frame.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn malloc_missed(size: usize) -> *mut c_void {
    if size > MAX_SMALL || harden::is_on() {
        return malloc_generic(size);
    }
    let memory = heap::pop_cached_sampling(class_of(size));
    if memory.is_null() {
        return malloc_refill(size);
    }
    memory.cast()
}

#[cold]
#[inline(never)]
extern "C" fn malloc_generic(size: usize) -> *mut c_void {
    or_no_memory(heap::allocate(size))
}

#[cold]
#[inline(never)]
extern "C" fn malloc_refill(size: usize) -> *mut c_void {
    or_no_memory(heap::refill_or_sample(class_of(size), size, 1))
}

/// C `calloc`.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    or_no_memory(
        count
            .checked_mul(size)
            .map_or(null_mut(), heap::allocate_zeroed),
    )
}

/// C `free`.
///
/// # Safety
/// As the C standard says: `memory` is null or allocated, and not used any more.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { heap::free(memory.cast()) };
}

/// C `realloc`. Size 0 frees and gives null, as glibc does.
///
/// # Safety
/// As the C standard says: `memory` is null or allocated.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    if memory.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { heap::free(memory.cast()) };
        return null_mut();
    }
    // SAFETY: the caller's promise; neither argument is 0.
    or_no_memory(unsafe { heap::reallocate(memory.cast(), size) })
}

/// BSD `reallocarray`.
///
/// # Safety
/// As [`realloc`].
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(
    memory: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(size) => unsafe { realloc(memory, size) },
        None => or_no_memory(null_mut()),
    }
}

/// C23 `free_sized`.
///
/// # Safety
/// As [`free`].
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn free_sized(memory: *mut c_void, size: usize) {
    // SAFETY: the caller's promise. The size is looked up all the same, which finds mistakes.
    unsafe { heap::free_sized(memory.cast(), size) };
}

/// C23 `free_aligned_sized`.
///
/// # Safety
/// As [`free`].
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn free_aligned_sized(memory: *mut c_void, _align: usize, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { heap::free_sized(memory.cast(), size) };
}

/// C11 `aligned_alloc`.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// `memalign`. An alignment that is no power of two is an error.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        sys::set_errno(libc::EINVAL);
        return null_mut();
    }
    or_no_memory(heap::allocate_aligned(size, align))
}

/// POSIX `posix_memalign`.
///
/// # Safety
/// `out` can be written to.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let memory = heap::allocate_aligned(size, align);
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(memory.cast()) };
    0
}

/// `valloc`: aligned to a page of the system.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    or_no_memory(heap::allocate_aligned(size, sys::page_bytes()))
}

/// `pvalloc`: whole pages of the system.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    or_no_memory(
        size.max(1)
            .checked_next_multiple_of(sys::page_bytes())
            .map_or(null_mut(), |size| {
                heap::allocate_aligned(size, sys::page_bytes())
            }),
    )
}

/// GNU `malloc_usable_size`.
///
/// # Safety
/// `memory` is null or allocated.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    heap::usable_size(memory.cast())
}

/// GNU `malloc_trim`: empty all caches and give all free memory but `keep` bytes back. 1 if that
/// was any.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn malloc_trim(keep: usize) -> c_int {
    c_int::from(control::trim(keep) > 0)
}

/// GNU `mallopt`. No parameter of glibc's heap has a meaning here; 1 says that the call is known,
/// because programs take 0 for a failure.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// GNU `struct mallinfo2`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Mallinfo2 {
    /// Bytes that are mapped for small objects and spans.
    pub arena: usize,
    /// Free chunks; not counted here.
    pub ordblks: usize,
    /// Free fast chunks; none here.
    pub smblks: usize,
    /// Large objects.
    pub hblks: usize,
    /// Bytes in large objects.
    pub hblkhd: usize,
    /// Not used.
    pub usmblks: usize,
    /// Bytes in caches.
    pub fsmblks: usize,
    /// Bytes in use.
    pub uordblks: usize,
    /// Bytes that are free and mapped.
    pub fordblks: usize,
    /// Bytes that `malloc_trim` could give back at least.
    pub keepcost: usize,
}

/// GNU `struct mallinfo`: the same in `int`, which wraps.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Mallinfo {
    fields: [c_int; 10],
}

/// GNU `mallinfo2`.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn mallinfo2() -> Mallinfo2 {
    setup::ensure();
    let page = telemetry::collect();
    let cached = page.cpu_cached + page.transfer_cached;
    Mallinfo2 {
        arena: (page.heap_mapped - page.large_in_use.min(page.heap_mapped)) as usize,
        hblks: page.large_objects as usize,
        hblkhd: page.large_in_use as usize,
        fsmblks: cached as usize,
        uordblks: (page.small_in_use + page.large_in_use) as usize,
        fordblks: (page.heap_free_mapped + page.central_free + cached) as usize,
        keepcost: page.heap_free_mapped as usize,
        ..Mallinfo2::default()
    }
}

/// GNU `mallinfo`.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
#[allow(clippy::cast_possible_wrap, reason = "the interface wraps")]
pub extern "C" fn mallinfo() -> Mallinfo {
    // SAFETY: the structure has ten fields of this type, one behind the other, and nothing else.
    let wide = unsafe { core::mem::transmute::<Mallinfo2, [usize; 10]>(mallinfo2()) };
    Mallinfo {
        fields: wide.map(|value| value as c_int),
    }
}

/// GNU `malloc_stats`: the figures, on standard error.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub extern "C" fn malloc_stats() {
    telemetry::write_to_standard_error();
}

/// GNU `malloc_info`: an XML document.
///
/// # Safety
/// `file` is open for writing.
#[cfg_attr(feature = "interpose", unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_info(options: c_int, file: *mut libc::FILE) -> c_int {
    // As glibc does, which returns the number itself.
    if options != 0 {
        return libc::EINVAL;
    }
    setup::ensure();
    let mut text = sys::Line::<{ 16 << 10 }>::new();
    let _ = info::write_xml(&mut text);
    let text = text.as_bytes();
    // SAFETY: the caller's promise. The file may allocate, and no lock of ours is held.
    let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), file) };
    if written == text.len() { 0 } else { -1 }
}

/// The figures as text, cut off and ended by 0 as `snprintf` does; the length of the whole text.
///
/// # Safety
/// `buffer` can be written to for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn contigua_malloc_stats(buffer: *mut c_char, size: usize) -> usize {
    let mut text = sys::Line::<{ 16 << 10 }>::new();
    let _ = telemetry::write_text(&mut text);
    let text = text.as_bytes();
    if size > 0 {
        let part = text.len().min(size - 1);
        // SAFETY: within the caller's buffer, which is not ours.
        unsafe {
            buffer
                .cast::<u8>()
                .copy_from_nonoverlapping(text.as_ptr(), part);
            buffer.add(part).write(0);
        }
    }
    text.len()
}

/// One figure by its name in `contigua_telemetry::Page`; `-1` if there is none of this name.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn contigua_malloc_figure(name: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    let name = unsafe { core::ffi::CStr::from_ptr(name) }.to_str();
    let value = name.ok().and_then(control::figure);
    value.map_or(-1, u64::cast_signed)
}

/// A setting or a figure by its name. 0, or -1 with `ENOENT`.
///
/// # Safety
/// `name` is NUL-terminated, and `value` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn contigua_malloc_get(name: *const c_char, value: *mut u64) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { core::ffi::CStr::from_ptr(name) }.to_str();
    match name.ok().and_then(control::get) {
        Some(known) => {
            // SAFETY: the caller's promise.
            unsafe { value.write(known) };
            0
        }
        None => failed(libc::ENOENT),
    }
}

/// Change a setting by its name. 0, or -1 with `ENOENT` or `EPERM`.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn contigua_malloc_set(name: *const c_char, value: u64) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { core::ffi::CStr::from_ptr(name) }.to_str();
    match name.map(|name| control::set(name, value)) {
        Ok(Ok(())) => 0,
        Ok(Err(control::SetError::ReadOnly)) => failed(libc::EPERM),
        Ok(Err(control::SetError::Unknown)) | Err(_) => failed(libc::ENOENT),
    }
}

fn failed(number: c_int) -> c_int {
    sys::set_errno(number);
    -1
}

/// Give at least `bytes` back to the system now, or all that is free; how much it was.
#[unsafe(no_mangle)]
pub extern "C" fn contigua_malloc_release(bytes: usize) -> usize {
    control::release(bytes)
}

/// Never map more than `hard` bytes, and give memory back at once above `soft`. 0: no limit.
#[unsafe(no_mangle)]
pub extern "C" fn contigua_malloc_set_limit(soft: usize, hard: usize) {
    control::set_limits(soft, hard);
}

/// Give back at most `rate` bytes a second, and keep whole what was used within `interval`
/// milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn contigua_malloc_set_policy(rate: usize, interval_milliseconds: u64) {
    control::set_policy(rate, interval_milliseconds);
}

/// Empty the caches of all CPUs and of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn contigua_malloc_flush() {
    setup::ensure();
    sys::preserving_errno(front::drain);
}

/// Do what is due: for programs that have an event loop and want no thread. 1 if something was.
#[unsafe(no_mangle)]
pub extern "C" fn contigua_malloc_periodic() -> c_int {
    setup::ensure();
    c_int::from(sys::preserving_errno(upkeep::periodic_at_once))
}

/// 1 if an object of this allocator begins at `memory` or its page belongs to small objects.
#[unsafe(no_mangle)]
pub extern "C" fn contigua_malloc_owns(memory: *const c_void) -> c_int {
    c_int::from(heap::is_ours(memory as usize))
}

/// Write the heap profile to `path`, or for null where the environment says. 0, or -1 with `errno`:
/// `EINVAL` if there is no profile or no file, `EBUSY` if another thread writes one.
///
/// # Safety
/// `path` is null or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn contigua_malloc_profile(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = (!path.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(path) });
    let number = match control::write_profile(path) {
        Ok(()) => return 0,
        Err(control::ProfileError::Off) => libc::EINVAL,
        Err(control::ProfileError::Busy) => libc::EBUSY,
        Err(control::ProfileError::System(number)) => number,
    };
    failed(number)
}
