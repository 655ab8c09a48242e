//! Hardening levels (`CONTIGUA_MALLOC_HARDEN`).
//!
//! Level 0: the canaries of free objects are not looked at. Level 1 is what `heap` does. Level 2: mistakes are noticed at the next free, and most writes after
//! a free at the next allocation of the object.
//!
//! | object | words |
//! |---|---|
//! | free | canary, up to seven words of poison, ..., tail |
//! | allocated | the program's bytes, up to 64 bytes of fill, ..., tail |
//!
//! The tail is the last word: its address and the key, and for an allocated object the bytes between the
//! program's last and the tail, twice. So an object has the size that was asked for, and a write of one byte behind it
//! is noticed. Batches from the transfer caches are shuffled, so that the order of reuse is unpredictable.
//!
//! Level 3: a freed object first takes the place of an earlier one, at random, and that one may be reused; a large one is
//! inaccessible until then. Behind each
//! span and large object lies a guard page, an access to which is a `SIGSEGV`: a guard region of Linux 6.13, since a mapping for each
//! would soon be more than a process may have. Older kernels have none.
//!
//! At level 1 nothing of this runs: both fast paths are left through tests that they make anyway
//! (`rseq::Hot::fast`, `rseq::Hot::free`).

use core::mem;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use contigua_syscalls::random::Random;

use crate::classes::{CLASSES, COUNT};
use crate::heap::canary_of;
use crate::lock::{Guarded, Lock};
use crate::rseq::{HOT, pattern};
use crate::sizes::PAGE_BYTES;
use crate::{guarded, heap, pages, sys, transfer};

/// Bytes that each object is longer.
const TAIL: usize = size_of::<usize>();
/// Bytes of an object that are poisoned or filled at most: what longer ones cost more than they find. Our choice.
const COVERED: usize = 64;

/// Freed objects of a class that wait at level 3, at most; and their bytes, if the objects are large. Our choice.
const QUARANTINED_SMALL: usize = 64;
const QUARANTINED_SMALL_BYTES: usize = 1 << 20;

static LEVEL: AtomicU8 = AtomicU8::new(1);
static RANDOM: Random = Random::new();
static WAITING: [[AtomicUsize; QUARANTINED_SMALL]; COUNT] =
    [const { [const { AtomicUsize::new(0) }; QUARANTINED_SMALL] }; COUNT];

/// Large objects that were freed and are inaccessible at level 3, at most, and the bytes of each. Our choice.
const QUARANTINED_COUNT: usize = 16;
const QUARANTINED_BYTES: usize = 32 << 20;
/// Their addresses and numbers of pages.
static QUARANTINED_LARGE: Guarded<[(usize, usize); QUARANTINED_COUNT]> =
    Guarded::new([(0, 0); QUARANTINED_COUNT]);

/// The lock of freed large objects, for the fork handlers.
pub fn lock() -> &'static Lock {
    &QUARANTINED_LARGE.lock
}

/// Returns true at hardening level 2 and above.
#[inline]
pub fn is_on() -> bool {
    LEVEL.load(Ordering::Relaxed) >= 2
}

/// The level.
pub fn level() -> u8 {
    LEVEL.load(Ordering::Relaxed)
}

/// Returns true if canaries are checked: at hardening level 1 and above.
pub fn checks_canaries() -> bool {
    LEVEL.load(Ordering::Relaxed) >= 1
}

fn quarantines() -> bool {
    LEVEL.load(Ordering::Relaxed) >= 3
}

/// Set the level. Before the first allocation only, and before caches of CPUs are set up.
pub fn start(level: u8) {
    RANDOM.seed(sys::random(sys::Purpose::Order, 0));
    LEVEL.store(level, Ordering::Relaxed);
}

/// Have every allocation and free leave its fast path, from level 2 on.
pub fn leave_fast_paths() {
    if is_on() {
        HOT.fast.store(0, Ordering::Relaxed);
        HOT.free.store(0, Ordering::Relaxed);
    }
}

/// Memory for `size` bytes at a multiple of `align`, and its bytes that may not be zero.
#[inline(never)]
pub fn allocate(size: usize, align: usize) -> (*mut u8, Range<usize>) {
    let tail = TAIL + usize::from(size == 0);
    let (memory, dirty) = heap::allocate_plainly(size, tail, align);
    if !memory.is_null() && !guarded::contains(memory as usize) {
        let (bytes, small) = heap::plain_size(memory);
        let address = memory as usize;
        if small && !is_poisoned(address, bytes) {
            sys::die(format_args!(
                "write to {address:#x} after it was freed, or beyond an object before it"
            ));
        }
        seal(address, size, bytes);
    }
    (memory, dirty)
}

/// Fill what lies behind the program's bytes of an object that has `bytes`.
pub fn seal(address: usize, size: usize, bytes: usize) {
    let slack = bytes - TAIL - size;
    let tail = address + bytes - TAIL;
    // SAFETY: callers own the object, which has so many bytes.
    unsafe {
        ((address + size) as *mut u8).write_bytes(pattern(), slack.min(COVERED));
        (tail as *mut usize).write(canary_of(tail) ^ (slack | slack << 32));
    }
}

/// The size that the object at `address`, which has `bytes`, was asked for with; ends the process if what lies behind
/// the program's bytes was written to.
pub fn check(address: usize, bytes: usize) -> usize {
    let tail = address + bytes - TAIL;
    // SAFETY: an allocated object of so many bytes begins here. Bytes of a wrong slack are the object's, too.
    unsafe {
        let word = (tail as *const usize).read() ^ canary_of(tail);
        let slack = word & 0xffff_ffff;
        if word >> 32 == slack && slack <= bytes - TAIL {
            let behind = (tail - slack) as *const u8;
            let filled = core::slice::from_raw_parts(behind, slack.min(COVERED));
            if filled.iter().all(|&byte| byte == pattern()) {
                return bytes - TAIL - slack;
            }
        }
    }
    sys::die(format_args!(
        "write behind the end of {address:#x}, or before the object that follows it"
    ))
}

/// The words of a free object that are poisoned, but for the first.
fn poisoned(bytes: usize) -> impl Iterator<Item = usize> {
    (TAIL..(bytes - TAIL).min(COVERED)).step_by(size_of::<usize>())
}

/// Poison a free small object of `bytes`, but for its canary.
pub fn poison(address: usize, bytes: usize) {
    let tail = address + bytes - TAIL;
    // SAFETY: callers own the object, which has so many bytes.
    unsafe {
        for offset in poisoned(bytes) {
            ((address + offset) as *mut usize).write(!canary_of(address + offset));
        }
        (tail as *mut usize).write(!canary_of(tail));
    }
}

fn is_poisoned(address: usize, bytes: usize) -> bool {
    // SAFETY: the object was just allocated, with so many bytes.
    poisoned(bytes).chain([bytes - TAIL]).all(|offset| unsafe {
        ((address + offset) as *const usize).read() == !canary_of(address + offset)
    })
}

/// Make an object of `bytes` `size` bytes long, where it is or elsewhere; null if there is no memory.
///
/// # Safety
/// As `heap::reallocate`.
pub unsafe fn reallocate(memory: *mut u8, bytes: usize, size: usize) -> *mut u8 {
    let old = check(memory as usize, bytes);
    if size.saturating_add(TAIL) <= bytes && size >= bytes / 2 {
        seal(memory as usize, size, bytes);
        return memory;
    }
    let new = allocate(size, 1).0;
    if !new.is_null() {
        // SAFETY: both are allocated, apart from each other, and at least this long.
        unsafe {
            core::ptr::copy_nonoverlapping(memory, new, old.min(size));
            heap::free(memory);
        }
    }
    new
}

/// Check the size that a program says an object has.
pub fn check_size(memory: *mut u8, size: usize) {
    if memory.is_null() {
        return;
    }
    let known = heap::usable_size(memory);
    if known != size {
        sys::die(format_args!(
            "free of {memory:p} with a size of {size}, which was allocated with {known}"
        ));
    }
}

/// Put objects into an unpredictable order.
pub fn shuffle(objects: &mut [usize]) {
    if !is_on() {
        return;
    }
    for last in (1..objects.len()).rev() {
        objects.swap(last, RANDOM.below(last + 1));
    }
}

/// Have a free object of `class` wait at level 3. The object that may be reused instead, or 0.
pub fn quarantine_swap(class: usize, object: usize) -> usize {
    if !quarantines() {
        return object;
    }
    let waiting =
        (QUARANTINED_SMALL_BYTES / CLASSES[class].size as usize).clamp(1, QUARANTINED_SMALL);
    WAITING[class][RANDOM.below(waiting)].swap(object, Ordering::AcqRel)
}

/// Move what waits back into the transfer caches and the page heap.
pub fn end_quarantine() {
    if !quarantines() {
        return;
    }
    for (class, waiting) in WAITING.iter().enumerate() {
        for place in waiting {
            let object = place.swap(0, Ordering::AcqRel);
            if object != 0 {
                transfer::give(class, &[object]);
            }
        }
    }
    for place in 0..QUARANTINED_COUNT {
        let quarantined = mem::take(&mut QUARANTINED_LARGE.lock()[place]);
        free_quarantined(quarantined);
    }
}

/// Write the canaries of what waits, as `front::write_canaries` does.
pub fn write_canaries() {
    for (class, waiting) in WAITING.iter().enumerate() {
        for place in waiting {
            let object = place.load(Ordering::Relaxed);
            if object != 0 {
                // SAFETY: the child has one thread; what waits is a free object.
                unsafe { heap::set_free(object, CLASSES[class].size as usize) };
            }
        }
    }
}

/// Pages that lie behind each run of pages.
#[inline]
pub fn guards() -> usize {
    usize::from(quarantines())
}

/// Forbid, or allow again, accesses to the page behind a run that ends at `end`.
pub fn guard(end: usize, forbid: bool) {
    if guards() > 0 {
        protect(end, PAGE_BYTES, forbid);
    }
}

/// Forbid, or allow again, accesses to pages of the heap that nobody's object lies in. `false` if the kernel does not.
/// Their contents are lost.
fn protect(address: usize, bytes: usize, forbid: bool) -> bool {
    // The kernel's numbers, which not every C library's header has.
    const MADV_GUARD_INSTALL: i32 = 102;
    const MADV_GUARD_REMOVE: i32 = 103;
    let advice = if forbid {
        MADV_GUARD_INSTALL
    } else {
        MADV_GUARD_REMOVE
    };
    // Larger base pages reach into what follows.
    (address | bytes).is_multiple_of(sys::page_bytes())
        && sys::preserving_errno(|| {
            // SAFETY: the pages are the heap's, and nobody's object lies in them.
            unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) == 0 }
        })
}

/// Free the `count` pages of a large object; at level 3, first in place of an earlier one.
pub fn free_large(address: usize, count: usize) {
    let bytes = count * PAGE_BYTES;
    if !quarantines() || bytes > QUARANTINED_BYTES || !protect(address, bytes, true) {
        pages::free(address, count);
        return;
    }
    let place = RANDOM.below(QUARANTINED_COUNT);
    let earlier = mem::replace(&mut QUARANTINED_LARGE.lock()[place], (address, count));
    free_quarantined(earlier);
}

fn free_quarantined((address, count): (usize, usize)) {
    if count > 0 {
        protect(address, count * PAGE_BYTES, false);
        pages::free(address, count);
    }
}
