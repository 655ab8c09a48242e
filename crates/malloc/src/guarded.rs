//! Sampled guarded allocations (`CONTIGUA_MALLOC_GUARDED`), as GWP-ASan has them.
//!
//! One in so many small objects (`sampler`) gets a slot of its own: addresses of which only the object's pages may be
//! accessed, between guard pages. It lies at the end of its pages or at their beginning, at random, so that an access
//! behind or before it is a fault; what is left of its pages has a pattern, which a free checks. A freed slot is
//! inaccessible until all others were used, so an access to a freed object is a fault, too. A fault in the pool, and a
//! second or invalid free of a slot, are reported (`report`) and end the process.
//!
//! The pool is no memory of the heap: `free` and `realloc` come here where they find no object of theirs.

mod module;
mod report;
mod slot;

use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

use self::report::Mistake;
use self::slot::{BEGIN, BYTES, COUNT, MOST, SLOTS, State, begin_of, index_of, stride};
use crate::lock::{Guarded, Lock};
use crate::signals::{self, Former};
use crate::{sampler, sys};

/// Mean number of allocations between samples; 0: nothing is guarded.
static EVERY: AtomicU64 = AtomicU64::new(0);
static FORMER: Former = Former::new();

/// Slots that are free, the one to be used next first.
struct Queue {
    slots: [u16; COUNT],
    first: usize,
    length: usize,
}

static QUEUE: Guarded<Queue> = Guarded::new(Queue {
    slots: {
        let mut slots = [0; COUNT];
        let mut index = 0;
        while index < COUNT {
            slots[index] = index as u16;
            index += 1;
        }
        slots
    },
    first: 0,
    length: COUNT,
});

impl Queue {
    fn take(&mut self) -> Option<usize> {
        let index = self.slots[self.first];
        self.length = self.length.checked_sub(1)?;
        self.first = (self.first + 1) % COUNT;
        Some(index.into())
    }

    fn put(&mut self, index: usize) {
        self.slots[(self.first + self.length) % COUNT] = index as u16;
        self.length += 1;
    }
}

/// The lock of the free slots, for the fork handlers.
pub fn lock() -> &'static Lock {
    &QUEUE.lock
}

/// Mean number of allocations between samples; 0: nothing is guarded.
pub fn every() -> u64 {
    EVERY.load(Ordering::Relaxed)
}

/// Have a pool, and handle faults in it; `false`, after a message, if the system has no addresses for it.
pub fn start(every: u64) -> bool {
    let bytes = COUNT * stride() + sys::page_bytes();
    let Some(begin) = sys::reserve(bytes) else {
        sys::message(format_args!(
            "no addresses for CONTIGUA_MALLOC_GUARDED; nothing is guarded"
        ));
        return false;
    };
    BEGIN.store(begin, Ordering::Relaxed);
    BYTES.store(bytes, Ordering::Relaxed);
    EVERY.store(every, Ordering::Relaxed);
    if let Err(number) = FORMER.replace(libc::SIGSEGV, handle, 0, false) {
        sys::message(format_args!(
            "CONTIGUA_MALLOC_GUARDED: no handler of faults, hence no reports: error {number}"
        ));
    }
    true
}

/// Returns true if `address` lies in the pool.
#[inline]
pub fn contains(address: usize) -> bool {
    address.wrapping_sub(BEGIN.load(Ordering::Relaxed)) < BYTES.load(Ordering::Relaxed)
}

/// A slot for `size` bytes at a multiple of `align`, a power of two; null if none is free, or they do not fit.
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    let page = sys::page_bytes();
    let align = align.max(if size > 8 { 16 } else { 8 });
    // An object without bytes has an address of its own.
    let room = size.max(1);
    if room > MOST || align > page {
        return null_mut();
    }
    let Some(index) = QUEUE.lock().take() else {
        return null_mut();
    };
    let is_last = sampler::RANDOM.next().is_multiple_of(2);
    let bytes = room.next_multiple_of(page);
    let first = begin_of(index) + if is_last { MOST - bytes } else { 0 };
    if !sys::open(first, bytes) {
        QUEUE.lock().put(index);
        return null_mut();
    }
    let address = if is_last {
        (first + bytes - room) & !(align - 1)
    } else {
        first
    };
    let slot = &SLOTS[index];
    slot.begin(address, size);
    slot.fill(first..first + bytes);
    slot.set(State::Live);
    address as *mut u8
}

/// The pages of an object.
fn pages_of(address: usize, size: usize) -> Range<usize> {
    let page = sys::page_bytes();
    let first = address & !(page - 1);
    first..(address + size.max(1)).next_multiple_of(page)
}

/// The bytes of the object that begins at `address`; ends the process if none does. `doing` is what the program
/// wants with it.
pub fn size_of(address: usize, doing: &'static str) -> usize {
    let slot = &SLOTS[index_of(address)];
    if slot.state() != State::Live || slot.address() != address {
        report::end(Mistake::Invalid(doing), address);
    }
    slot.size()
}

/// Free the object that begins at `address`; ends the process if none does.
pub fn free(address: usize) {
    let index = index_of(address);
    let slot = &SLOTS[index];
    if slot.address() != address || !slot.leave() {
        report::end(Mistake::Invalid("free"), address);
    }
    let pages = pages_of(address, slot.size());
    if let Some(damaged) = slot.damaged(pages.clone()) {
        report::end(Mistake::Damaged, damaged);
    }
    sampler::unsampled(|| {
        slot.end();
        sys::close(pages.start, pages.len());
        QUEUE.lock().put(index);
    });
}

/// Of a fault in the pool, a report; of any other, what was there before us decides.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler what belongs to the signal.
    let (address, is_fault) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    if is_fault && contains(address) && report::fault(address, context) {
        // The access fails once more, and now for good.
        FORMER.restore(signal);
        return;
    }
    if FORMER.is_for_once() {
        signals::set_default(signal);
    }
    if FORMER.call(signal, info, context) {
        return;
    }
    if is_fault {
        FORMER.restore(signal);
    } else if !FORMER.is_to_ignore() {
        // Somebody sent it, and it does not come again by itself.
        signals::set_default(signal);
        // SAFETY: no memory. The signal is blocked until this handler returns.
        unsafe { libc::raise(signal) };
    }
}
