//! The state of each vCPU: the chunk that it is filling.

use std::cell::UnsafeCell;
use std::ptr;

use contigua_program::ring::{CHUNK_WORDS, Held};
use contigua_program::wire::{Event, MAX_RECORD_WORDS};

use crate::{clock, plugin};

/// Guest threads that one process can have at a time.
const MAX_VCPUS: usize = 4096;

/// A vCPU's place to write. On a cache line of its own.
#[repr(align(64))]
struct Vcpu {
    /// Where the next word goes; null when no chunk is held.
    cursor: *mut u64,
    /// Where the chunk ends; null when no chunk is held, so that one comparison finds both.
    limit: *mut u64,
    held: Option<Held>,
    thread: u32,
    started: bool,
}

struct Vcpus(UnsafeCell<[Vcpu; MAX_VCPUS]>);

// SAFETY: element i is used by the host thread of vCPU i only. The exceptions are `publish_all`
// and `start_after_fork`, which run while no other vCPU executes callbacks.
unsafe impl Sync for Vcpus {}

static VCPUS: Vcpus = Vcpus(UnsafeCell::new(
    [const {
        Vcpu {
            cursor: ptr::null_mut(),
            limit: ptr::null_mut(),
            held: None,
            thread: 0,
            started: false,
        }
    }; MAX_VCPUS],
));

/// The state of a vCPU.
///
/// # Safety
/// Only for the vCPU's own host thread, with no other reference to it alive. `index` must have
/// passed [`start`].
#[inline]
unsafe fn state<'a>(index: u32) -> &'a mut Vcpu {
    // SAFETY: in bounds since `start` checked the index; exclusive by this function's contract.
    unsafe { &mut *VCPUS.0.get().cast::<Vcpu>().add(index as usize) }
}

/// Prepares the state of a new guest thread.
pub fn start(index: u32) {
    if index as usize >= MAX_VCPUS {
        crate::fail(&format!(
            "the program has more than {MAX_VCPUS} threads at a time, which is not supported"
        ));
    }
    // SAFETY: called on the new vCPU's own thread, before any other callback of it.
    let vcpu = unsafe { state(index) };
    vcpu.thread = plugin().producer.ring().new_thread();
    vcpu.started = true;
}

/// Forgets, in a forked child, the chunks that belong to the parent, and gives the only thread
/// that is left a new identity.
pub fn start_after_fork(index: u32) {
    // SAFETY: a forked child has one thread.
    for vcpu in unsafe { &mut *VCPUS.0.get() } {
        // The parent still fills this chunk: forgotten, not given back.
        vcpu.held = None;
        vcpu.cursor = ptr::null_mut();
        vcpu.limit = ptr::null_mut();
        vcpu.started = false;
    }
    start(index);
}

/// Appends one word to the chunk of a vCPU.
#[inline]
pub fn append(index: u32, word: u64) {
    // SAFETY: QEMU calls back on the vCPU's own thread, and callbacks do not nest.
    let vcpu = unsafe { state(index) };
    if vcpu.cursor == vcpu.limit {
        refill(vcpu);
    }
    // SAFETY: `cursor` lies within the chunk that this vCPU holds, below `limit`.
    unsafe {
        vcpu.cursor.write(word);
        vcpu.cursor = vcpu.cursor.add(1);
    }
}

/// Appends an event; all its words go into one chunk.
pub fn append_event(index: u32, event: &Event) {
    // SAFETY: as in `append`.
    let vcpu = unsafe { state(index) };
    let room = (vcpu.limit as usize - vcpu.cursor as usize) / size_of::<u64>();
    if room < MAX_RECORD_WORDS {
        refill(vcpu);
    }
    for &word in event.encode().words() {
        append(index, word);
    }
}

/// Publishes what a vCPU has written. It then holds no chunk.
pub fn publish(index: u32) {
    // SAFETY: as in `append`.
    give_back(unsafe { state(index) });
}

/// Publishes what every vCPU has written. Only while none of them executes guest code.
pub fn publish_all() {
    // SAFETY: QEMU calls the exit callback after it took all vCPUs out of instrumented code.
    for vcpu in unsafe { &mut *VCPUS.0.get() } {
        if vcpu.started {
            give_back(vcpu);
        }
    }
}

#[cold]
#[inline(never)]
fn refill(vcpu: &mut Vcpu) {
    give_back(vcpu);
    let (held, words) = plugin().producer.acquire();
    vcpu.held = Some(held);
    vcpu.cursor = words;
    // SAFETY: one past the end of the chunk's words.
    vcpu.limit = unsafe { words.add(CHUNK_WORDS) };
}

fn give_back(vcpu: &mut Vcpu) {
    if let Some(held) = vcpu.held.take() {
        let free = (vcpu.limit as usize - vcpu.cursor as usize) / size_of::<u64>();
        let length = CHUNK_WORDS - free;
        if clock::is_on() {
            // SAFETY: the chunk's words up to the cursor were written by this vCPU, which still
            // holds it.
            clock::advance(unsafe { std::slice::from_raw_parts(vcpu.cursor.sub(length), length) });
        }
        plugin().producer.publish(held, vcpu.thread, length);
    }
    vcpu.cursor = ptr::null_mut();
    vcpu.limit = ptr::null_mut();
}
