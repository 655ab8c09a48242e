//! Hardening level 2 (`CONTIGUA_MALLOC_HARDEN=2`): mistakes are noticed at the next free, and most writes after
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
//! At level 1 nothing of this runs: both fast paths are left through tests that they make anyway
//! (`rseq::Hot::fast`, `rseq::Hot::free`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::heap::canary_of;
use crate::rseq::{self, HOT};
use crate::{heap, sys};

/// Bytes that each object is longer.
const TAIL: usize = size_of::<usize>();
/// Bytes of an object that are poisoned or filled at most: what longer ones cost more than they find. Our choice.
const COVERED: usize = 64;

static ON: AtomicBool = AtomicBool::new(false);
static SEED: AtomicU64 = AtomicU64::new(0);

/// Whether level 2 is on.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Turn it on. Before the first allocation only, and before caches of CPUs are set up.
pub fn start() {
    SEED.store(sys::random(sys::Purpose::Order), Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
}

/// Have every allocation and free leave its fast path, if level 2 is on.
pub fn leave_fast_paths() {
    if is_on() {
        HOT.fast.store(0, Ordering::Relaxed);
        HOT.free.store(0, Ordering::Relaxed);
    }
}

fn fill() -> u8 {
    (rseq::hot().key.load(Ordering::Relaxed) >> 8) as u8
}

/// Memory for `size` bytes at a multiple of `align`, and whether it is zero.
#[inline(never)]
pub fn allocate(size: usize, align: usize) -> (*mut u8, bool) {
    let Some(longer) = size.max(1).checked_add(TAIL) else {
        return (core::ptr::null_mut(), false);
    };
    let (memory, zeroed) = heap::allocate_plainly(longer, align);
    if !memory.is_null() {
        let (bytes, small) = heap::plain_size(memory);
        let address = memory as usize;
        if small && !is_poisoned(address, bytes) {
            sys::die(format_args!(
                "write to {address:#x} after it was freed, or beyond an object before it"
            ));
        }
        seal(address, size, bytes);
    }
    (memory, zeroed)
}

/// Fill what lies behind the program's bytes of an object that has `bytes`.
pub fn seal(address: usize, size: usize, bytes: usize) {
    let slack = bytes - TAIL - size;
    let tail = address + bytes - TAIL;
    // SAFETY: callers own the object, which has so many bytes.
    unsafe {
        ((address + size) as *mut u8).write_bytes(fill(), slack.min(COVERED));
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
            if filled.iter().all(|&byte| byte == fill()) {
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
    // Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014), figure 17.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    if !is_on() {
        return;
    }
    for last in (1..objects.len()).rev() {
        let mut random = SEED.fetch_add(STEP, Ordering::Relaxed);
        random = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        objects.swap(last, (random ^ random >> 31) as usize % (last + 1));
    }
}
