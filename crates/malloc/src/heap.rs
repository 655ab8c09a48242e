//! Allocation, from a size to memory and back: the decisions that all interfaces share.
//!
//! A free small object carries a canary: its first word is the process's key exclusive-or its
//! address (a program writes that word by chance once in 2^64). An allocation checks the canary
//! and clears it: so nothing that was freed twice is ever handed out twice, and a write after a
//! free ends the process when it could do harm. A free writes the canary and does not look: its object is often cold, and waiting for its memory would double the cost of a
//! free. What notices a second free at once is a comparison with the objects that the CPU got back
//! last ([`front::free`]), the bitmap of a span, and, where caches belong to threads, the canary.
//! One multiplication checks that an object begins at a freed address.

use core::ops::Range;
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};

use contigua_pageheap::HUGE_BYTES;

use crate::classes::{self, CLASSES, COUNT, MAX_SMALL, class_of, class_of_aligned};
use crate::pagemap;
use crate::profile::{self, Stack};
use crate::rseq;
use crate::sampler::{self, Owner};
use crate::sizes::{PAGE_BYTES, PAGE_SHIFT};
use crate::span::Span;
use crate::{front, guarded, harden, pages, panic_alloc, sanitizer, setup, sys};

/// Largest size that any request may have (C11: differences of pointers must fit).
const MAX_BYTES: usize = isize::MAX as usize;

/// From this size on the system is asked whether it would commit so much.
const VAST_BYTES: usize = 1 << 30;

/// From this size on copying costs more than memory that is mapped a little longer. Our choice.
const COSTLY_BYTES: usize = 32 << 20;

static LARGE_BYTES: AtomicUsize = AtomicUsize::new(0);
static LARGE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Bytes in large objects, and how many there are.
pub fn large() -> (usize, usize) {
    (
        LARGE_BYTES.load(Ordering::Relaxed),
        LARGE_COUNT.load(Ordering::Relaxed),
    )
}

/// Memory for `size` bytes, aligned to 16 (to 8 if `size` is at most 8); null if there is none.
pub fn allocate(size: usize) -> *mut u8 {
    if size > MAX_SMALL {
        return allocate_generic(size, 1).0;
    }
    let memory = pop_cached(class_of(size));
    if memory.is_null() {
        return allocate_generic(size, 1).0;
    }
    memory
}

/// Memory for `size` bytes at a multiple of `align`, that is not at hand; and its bytes that may not be zero.
#[inline(never)]
pub fn allocate_generic(size: usize, align: usize) -> (*mut u8, Range<usize>) {
    setup::ensure();
    if panic_alloc::is_raised() {
        (panic_alloc::allocate(size, align), 0..0)
    } else if harden::is_on() {
        harden::allocate(size, align)
    } else {
        allocate_plainly(size, 0, align)
    }
}

/// Allocates without hardening; `tail` bytes are added unless the object is guarded.
pub fn allocate_plainly(size: usize, tail: usize, align: usize) -> (*mut u8, Range<usize>) {
    let Some(bytes) = size.checked_add(tail) else {
        return (null_mut(), 0..0);
    };
    match class_of_aligned(bytes, align) {
        Some(class) => (allocate_small(class, size, align), 0..size),
        None => allocate_large(bytes, align.div_ceil(PAGE_BYTES)),
    }
}

/// The canary of the small object at `address`: its first word as long as it is free.
#[inline(always)]
pub fn canary_of(address: usize) -> usize {
    rseq::hot().key.load(Ordering::Relaxed) ^ address
}

/// A small object of `class` if one is at hand: null if the CPU has none cached. Then
/// [`pop_cached_sampling`] and [`refill_or_sample`] go on; a caller that ends in a call to what does them needs no stack
/// on its fast path.
#[inline(always)]
pub fn pop_cached(class: usize) -> *mut u8 {
    check_canary(class, front::pop_cached(class))
}

/// Like [`pop_cached`], for an allocation that is counted.
#[inline(always)]
pub fn pop_cached_sampling(class: usize) -> *mut u8 {
    check_canary(class, front::pop_cached_sampling(class))
}

/// Allocates `size` bytes at a multiple of `align` if neither had an object: refills the cache or
/// takes a sample; null if there is no memory.
#[inline(never)]
pub fn refill_or_sample(class: usize, size: usize, align: usize) -> *mut u8 {
    if panic_alloc::is_raised() {
        return panic_alloc::allocate(CLASSES[class].size as usize, 1);
    }
    if !setup::is_ready() {
        // Nobody knew the hardening level before.
        return allocate_generic(size, align).0;
    }
    if sampler::is_due() {
        let memory = sampled(class, size, align);
        if !memory.is_null() {
            return memory;
        }
    }
    check_canary(class, front::refill(class))
}

/// An allocation as a sample; null if it is none, or there is no room for it.
#[cold]
#[inline(never)]
fn sampled(class: usize, size: usize, align: usize) -> *mut u8 {
    let bytes = CLASSES[class].size as usize;
    sys::preserving_errno(|| {
        let taken = sampler::of_small(bytes, |owner| match owner {
            Owner::Profile => (profile::stack(bytes), null_mut()),
            Owner::Guard => (None, guarded::allocate(size, align)),
        });
        match taken {
            Some((None, memory)) => memory,
            Some((stack, _)) => map_large(bytes.div_ceil(PAGE_BYTES), 1, stack).0,
            None => null_mut(),
        }
    })
}

#[inline(always)]
fn allocate_small(class: usize, size: usize, align: usize) -> *mut u8 {
    let mut memory = pop_cached(class);
    if memory.is_null() {
        memory = pop_cached_sampling(class);
    }
    if memory.is_null() {
        memory = refill_or_sample(class, size, align);
    }
    memory
}

/// Check and clear the canary of an object of `class` (0: there is none) that is about to be handed out.
#[inline(always)]
fn check_canary(class: usize, object: usize) -> *mut u8 {
    let object = object as *mut usize;
    if !object.is_null() {
        sanitizer::allocated(object as usize, || CLASSES[class].size as usize);
        // SAFETY: the front end gave an object of at least 8 bytes that is nobody else's. Needed
        // to check and clear its canary.
        unsafe {
            if object.read() != canary_of(object as usize) {
                let object = corrupted(object as usize);
                // Callers that end here need no frame for the call.
                core::hint::assert_unchecked(!object.is_null());
                return object;
            }
            object.write(0);
        }
    }
    object.cast()
}

/// Memory for `size` bytes at a multiple of `align`, a power of two; null if there is none.
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    if let Some(class) = class_of_aligned(size, align) {
        let memory = pop_cached(class);
        if !memory.is_null() {
            return memory;
        }
    }
    allocate_generic(size, align).0
}

/// Zeroed memory for `size` bytes; null if there is none.
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    let memory = if size > MAX_SMALL {
        null_mut()
    } else {
        pop_cached(class_of(size))
    };
    let (memory, dirty) = if memory.is_null() {
        allocate_generic(size, 1)
    } else {
        (memory, 0..size)
    };
    let end = dirty.end.min(size);
    if !memory.is_null() && dirty.start < end {
        // SAFETY: the memory was just allocated with at least this size.
        unsafe { memory.add(dirty.start).write_bytes(0, end - dirty.start) };
    }
    memory
}

#[cold]
#[inline(never)]
fn allocate_large(size: usize, align_pages: usize) -> (*mut u8, Range<usize>) {
    if size > MAX_BYTES {
        return (null_mut(), 0..0);
    }
    setup::ensure();
    sys::preserving_errno(|| {
        if size >= VAST_BYTES && !sys::would_commit(size) {
            return (null_mut(), 0..0);
        }
        let count = pages::pages_for(size).max(1);
        map_large(count, align_pages, profile::large(count * PAGE_BYTES))
    })
}

/// A large object of `count` pages, a sample of a profile if it has a stack; and its bytes that may
/// not be zero.
pub fn map_large(
    count: usize,
    align_pages: usize,
    stack: Option<&'static Stack>,
) -> (*mut u8, Range<usize>) {
    let Some(found) = pages::allocate(count, align_pages) else {
        return (null_mut(), 0..0);
    };
    if let Some(span) = Span::create(found.address, count as u32, 0) {
        // SAFETY: the span is not published yet.
        unsafe { profile::keep(span, stack) };
        if pagemap::enter_large(found.address, span) {
            LARGE_BYTES.fetch_add(count * PAGE_BYTES, Ordering::Relaxed);
            LARGE_COUNT.fetch_add(1, Ordering::Relaxed);
            return (found.address as *mut u8, found.dirty);
        }
        // SAFETY: the span is not published yet.
        unsafe {
            profile::drop(span);
            Span::recycle(span);
        }
    }
    pages::free(found.address, count);
    (null_mut(), 0..0)
}

/// Kind of allocation at an address.
enum Found {
    Small(usize),
    Large(NonNull<Span>),
    Guarded(usize),
}

/// Finds the allocation at `memory`; ends the process if there never was one.
fn find(memory: *mut u8, doing: &'static str) -> Found {
    let address = memory as usize;
    let tag = pagemap::tag(address);
    let class = usize::from(tag & 0xff);
    if class.wrapping_sub(1) < COUNT - 1 {
        let offset = usize::from(tag >> 8) << PAGE_SHIFT | address & (PAGE_BYTES - 1);
        if CLASSES[class].begins_at(offset) {
            return Found::Small(class);
        }
    } else if tag == pagemap::LARGE
        && address.is_multiple_of(PAGE_BYTES)
        && let Some(span) = pagemap::span(address)
    {
        return Found::Large(span);
    } else if guarded::contains(address) {
        return Found::Guarded(guarded::size_of(address, doing));
    }
    invalid(address, doing)
}

/// Returns true if the memory at `address` is this allocator's.
pub fn is_ours(address: usize) -> bool {
    pagemap::tag(address) != 0 || guarded::contains(address)
}

#[cold]
#[inline(never)]
fn invalid(address: usize, doing: &str) -> ! {
    sys::die(format_args!(
        "{doing} of {address:#x}, where no allocated object begins (freed before, or never ours)"
    ))
}

/// End the process because of a second free.
#[cold]
#[inline(never)]
pub fn double(address: usize) -> ! {
    sys::die(format_args!("double free of {address:#x}"))
}

#[cold]
#[inline(never)]
extern "C" fn corrupted(address: usize) -> *mut u8 {
    if !harden::checks_canaries() {
        // SAFETY: as in `check_canary`.
        unsafe { (address as *mut usize).write(0) };
        return address as *mut u8;
    }
    sys::die(format_args!(
        "double free of {address:#x}, or a write to it after it was freed (found when it was to be \
         used again; CONTIGUA_MALLOC_PER_CPU=off finds a double free at once)"
    ))
}

/// Take memory back of which the program says how long it is.
///
/// # Safety
/// As [`free`].
#[inline(always)]
pub unsafe fn free_sized(memory: *mut u8, size: usize) {
    if rseq::free_area() == 0 && harden::is_on() {
        harden::check_size(memory, size);
    }
    // SAFETY: the caller's promise.
    unsafe { free(memory) };
}

/// Write the canary of a small object.
///
/// # Safety
/// The caller owns the object.
#[inline(always)]
pub unsafe fn write_canary(address: usize) {
    // SAFETY: objects are aligned and not smaller than a word.
    unsafe { (address as *mut usize).write(canary_of(address)) };
}

/// Write what a free small object of `bytes` has in it.
///
/// # Safety
/// The caller owns the object.
pub unsafe fn set_free(address: usize, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { write_canary(address) };
    if harden::is_on() {
        harden::poison(address, bytes);
    }
}

/// Take memory back. Null is allowed. Ends the process if `memory` is nothing that is allocated.
///
/// # Safety
/// The memory is not used any more.
#[inline(always)]
pub unsafe fn free(memory: *mut u8) {
    let address = memory as usize;
    let Some(tag) = pagemap::find_tag(address) else {
        free_large(memory);
        return;
    };
    let class = tag & 0xff;
    let offset = (tag >> 8) << PAGE_SHIFT | address & (PAGE_BYTES - 1);
    if !classes::begins_at(class, offset) {
        free_large(memory);
        return;
    }
    sanitizer::freed(address + 8, || CLASSES[class].size as usize - 8);
    // SAFETY: an object of the class begins here, and the caller gave it up.
    unsafe { front::free(class, address) };
}

// `extern "C"`, here and elsewhere: what cannot unwind can be the last thing that a C function does,
// which then needs no frame.
#[cold]
#[inline(never)]
extern "C" fn free_large(memory: *mut u8) {
    if memory.is_null() || panic_alloc::is_raised() {
        return;
    }
    sys::preserving_errno(|| {
        if guarded::contains(memory as usize) {
            guarded::free(memory as usize);
            return;
        }
        let Found::Large(span) = find(memory, "free") else {
            return;
        };
        if harden::is_on() {
            // SAFETY: an allocated object keeps its span alive.
            let count = unsafe { (*span.as_ptr()).pages as usize };
            harden::check(memory as usize, count * PAGE_BYTES);
        }
        // Of two threads that free the same object one must notice.
        if !pagemap::leave_large(memory as usize) {
            double(memory as usize);
        }
        // SAFETY: whoever took the object out of the page map owns its span.
        unsafe {
            let (address, count) = ((*span.as_ptr()).address, (*span.as_ptr()).pages as usize);
            profile::drop(span);
            Span::recycle(span);
            LARGE_BYTES.fetch_sub(count * PAGE_BYTES, Ordering::Relaxed);
            LARGE_COUNT.fetch_sub(1, Ordering::Relaxed);
            harden::free_large(address, count);
        }
    });
}

/// Bytes that may be used at `memory`; 0 for null.
pub fn usable_size(memory: *mut u8) -> usize {
    if memory.is_null() {
        return 0;
    }
    let bytes = plain_size(memory).0;
    if harden::is_on() && !guarded::contains(memory as usize) {
        harden::check(memory as usize, bytes)
    } else {
        bytes
    }
}

/// Bytes of the object at `memory`, and whether it is a small one; ends the process if there is none.
pub fn plain_size(memory: *mut u8) -> (usize, bool) {
    match find(memory, "size") {
        Found::Small(class) => (CLASSES[class].size as usize, true),
        // SAFETY: an allocated object keeps its span alive.
        Found::Large(span) => unsafe { ((*span.as_ptr()).pages as usize * PAGE_BYTES, false) },
        Found::Guarded(size) => (size, false),
    }
}

/// Make memory `size` bytes long, where it is or elsewhere with its contents; null, and nothing
/// changes, if there is no memory. `memory` is not null and `size` not 0.
///
/// # Safety
/// `memory` is not used any more unless the result is null.
pub unsafe fn reallocate(memory: *mut u8, size: usize) -> *mut u8 {
    if panic_alloc::is_raised() {
        let old = is_ours(memory as usize).then(|| usable_size(memory));
        // SAFETY: the caller's promise.
        return unsafe { panic_alloc::reallocate(memory, old, size) };
    }
    let (old, large) = match find(memory, "realloc") {
        Found::Small(class) => {
            let address = memory as usize;
            // SAFETY: an object begins here, of at least a word, that is about to be read anyway.
            if unsafe { (address as *const usize).read() } == canary_of(address)
                && harden::checks_canaries()
            {
                sys::die(format_args!(
                    "realloc of {address:#x}, which was freed before"
                ));
            }
            (CLASSES[class].size as usize, None)
        }
        Found::Large(span) => (
            // SAFETY: an allocated object keeps its span alive.
            unsafe { (*span.as_ptr()).pages as usize * PAGE_BYTES },
            Some(span),
        ),
        // Its new place has its own bounds.
        Found::Guarded(old) => {
            // SAFETY: the caller's promise; the object has so many bytes.
            return unsafe { relocate(memory, old, size, size) };
        }
    };
    if harden::is_on() {
        // SAFETY: the caller's promise.
        return unsafe { harden::reallocate(memory, old, size) };
    }
    // A little smaller stays where it is.
    if size <= old && size >= old / 2 && (large.is_none() || old - size < PAGE_BYTES) {
        return memory;
    }
    if let Some(span) = large
        && size > MAX_SMALL
        && size <= MAX_BYTES
        && sys::preserving_errno(|| resize(span, size))
    {
        return memory;
    }
    // What grows will probably grow again: a quarter more makes a chain of reallocations linear.
    let generous = if size > old {
        size.max(
            old.saturating_add(old / 4)
                .min(MAX_SMALL.max(old + old / 8)),
        )
    } else {
        size
    };
    // SAFETY: the caller's promise; the object has so many bytes.
    unsafe { relocate(memory, old, size, generous) }
}

/// Move an object of `old` bytes to where there are `size` for it, better `generous`.
///
/// # Safety
/// As [`reallocate`]; the object has `old` bytes.
unsafe fn relocate(memory: *mut u8, old: usize, size: usize, generous: usize) -> *mut u8 {
    let mut new = allocate(generous);
    if new.is_null() && generous > size {
        new = allocate(size);
    }
    if new.is_null() {
        // What shrinks may stay where it is.
        return if size <= old { memory } else { null_mut() };
    }
    // SAFETY: both are allocated, apart from each other, and at least this long.
    unsafe {
        ptr::copy_nonoverlapping(memory, new, old.min(size));
        free(memory);
    }
    new
}

/// Returns true if growing in place is better than moving. Into the next huge page only what is
/// costly to copy grows: a huge page behind it may have no memory while others that are free do,
/// and a chain of reallocations would map each huge page that it passes.
fn may_grow(address: usize, from: usize, to: usize) -> bool {
    // The length that a caller wishes may be any number.
    if to >= VAST_BYTES / PAGE_BYTES {
        return false;
    }
    let last_huge = |pages: usize| (address + pages * PAGE_BYTES - 1) / HUGE_BYTES;
    to * PAGE_BYTES >= COSTLY_BYTES || last_huge(from) == last_huge(to)
}

/// Change the length of a large object in place.
fn resize(span: NonNull<Span>, size: usize) -> bool {
    // SAFETY: the caller of `reallocate` has the object, and with it its span, alone.
    let (address, count) = unsafe { ((*span.as_ptr()).address, (*span.as_ptr()).pages as usize) };
    let wanted = pages::pages_for(size);
    let now = if wanted > count {
        if !may_grow(address, count, wanted) || !pages::grow(address, count, wanted) {
            return false;
        }
        wanted
    } else {
        pages::shrink(address, count, wanted)
    };
    LARGE_BYTES.fetch_add(
        now.wrapping_sub(count).wrapping_mul(PAGE_BYTES),
        Ordering::Relaxed,
    );
    // SAFETY: as above.
    unsafe {
        (*span.as_ptr()).pages = now as u32;
        profile::resize(span, now * PAGE_BYTES);
    }
    true
}
