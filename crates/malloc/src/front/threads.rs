//! Caches of threads, where there are none of CPUs: a slab for each thread that allocates, handed on
//! when it ends.

use contigua_percpu::{SLAB_BYTES, Slab};

use super::drain_slab;
use crate::classes::STACKS;
use crate::lock::{Guarded, Lock};
use crate::{setup, sys, tls};

/// The thread's word after its cache was given up.
pub const DEAD: usize = 1;

struct Slabs {
    /// Unowned slabs, linked through their first slot.
    recycled: usize,
    key: Option<libc::pthread_key_t>,
}

static SLABS: Guarded<Slabs> = Guarded::new(Slabs {
    recycled: 0,
    key: None,
});

/// The lock of the slabs of threads, for the fork handlers.
pub fn lock() -> &'static Lock {
    &SLABS.lock
}

/// Offset of the link to the next recycled slab: behind all slots.
const LINK: usize = SLAB_BYTES - 8;

/// The slab of the calling thread, a new one if it has none; `None` once it has ended.
pub fn thread_slab() -> Option<Slab> {
    let word = tls::get();
    if word > DEAD {
        // SAFETY: the word is 0, DEAD, or the address of the thread's slab.
        return Some(unsafe { Slab::at(word, &STACKS) });
    }
    if word == DEAD || !setup::is_ready() {
        return None;
    }
    new_thread_slab()
}

#[cold]
fn new_thread_slab() -> Option<Slab> {
    let (address, key) = {
        let mut slabs = SLABS.lock();
        let recycled = slabs.recycled;
        if recycled != 0 {
            // SAFETY: recycled slabs are mapped, and nobody else uses them.
            slabs.recycled = unsafe { ((recycled + LINK) as *const usize).read() };
        }
        (recycled, slabs.key)
    };
    let address = if address == 0 {
        sys::map(SLAB_BYTES)?.as_ptr() as usize
    } else {
        address
    };
    // Setting a key's value may allocate: the cache must be in place before.
    tls::set(address);
    let key = key.or_else(create_key);
    if let Some(key) = key {
        // SAFETY: the key exists.
        unsafe { libc::pthread_setspecific(key, address as *const libc::c_void) };
    }
    // SAFETY: the slab is mapped and zero, or empty after its last thread.
    Some(unsafe { Slab::at(address, &STACKS) })
}

fn create_key() -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: the destructor is a function of this library, which is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(end_of_thread)) } != 0 {
        return None;
    }
    let mut slabs = SLABS.lock();
    // Two threads may both have made one; the first is kept, and the other is never used.
    Some(*slabs.key.get_or_insert(key))
}

/// Hand what the thread cached over to all others.
unsafe extern "C" fn end_of_thread(slab: *mut libc::c_void) {
    let address = slab as usize;
    tls::set(DEAD);
    // SAFETY: the value of the key is the thread's slab.
    drain_slab(unsafe { Slab::at(address, &STACKS) });
    let mut slabs = SLABS.lock();
    // SAFETY: the slab is mapped, and the thread does not use it any more.
    unsafe { ((address + LINK) as *mut usize).write(slabs.recycled) };
    slabs.recycled = address;
}
