//! Transfer caches: between the caches of CPUs and the spans, an array of objects of each class.
//!
//! A program that allocates on one CPU and frees on another moves objects in batches through
//! these arrays, under one short lock, without looking at a span.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::central;
use crate::classes::{CLASSES, COUNT, MAX_BATCH};
use crate::lock::{Guarded, Lock};
use crate::metadata;

struct Transfer {
    slots: *mut usize,
    length: usize,
}

/// A transfer cache, and its length as the lock's last holder left it, for those who only count.
struct Counted {
    cache: Guarded<Transfer>,
    length: AtomicUsize,
}

static TRANSFER: [Counted; COUNT] = [const {
    Counted {
        cache: Guarded::new(Transfer {
            slots: null_mut(),
            length: 0,
        }),
        length: AtomicUsize::new(0),
    }
}; COUNT];

/// The lock of a class, for the fork handlers.
pub fn lock(class: usize) -> &'static Lock {
    &TRANSFER[class].cache.lock
}

/// Objects of `class` in the transfer cache, without its lock.
pub fn length(class: usize) -> usize {
    TRANSFER[class].length.load(Ordering::Relaxed)
}

impl Transfer {
    fn set_length(&mut self, class: usize, length: usize) {
        self.length = length;
        TRANSFER[class].length.store(length, Ordering::Relaxed);
    }

    fn slots(&mut self, class: usize) -> &mut [usize] {
        let capacity = usize::from(CLASSES[class].transfer_slots);
        if self.slots.is_null() {
            match metadata::permanent(capacity * 8) {
                Some(memory) => self.slots = memory.as_ptr().cast(),
                None => return &mut [],
            }
        }
        // SAFETY: `metadata` gave this many zeroed words, which only this class uses, under its
        // lock. Needed because the array lies outside of Rust's heap.
        unsafe { core::slice::from_raw_parts_mut(self.slots, capacity) }
    }
}

/// Take up to `out.len()` objects, at least one unless there is no memory; returns the number taken.
pub fn take(class: usize, out: &mut [usize]) -> usize {
    {
        let mut cache = TRANSFER[class].cache.lock();
        let count = cache.length.min(out.len());
        if count > 0 {
            let rest = cache.length - count;
            out[..count].copy_from_slice(&cache.slots(class)[rest..rest + count]);
            cache.set_length(class, rest);
            return count;
        }
    }
    central::take(class, out)
}

/// Return a batch to the transfer cache, or to the spans if that is full. A single object goes to sparse spans: the
/// next one will come out of a fuller one.
pub fn give(class: usize, objects: &[usize]) {
    {
        let mut cache = TRANSFER[class].cache.lock();
        let length = cache.length;
        let slots = cache.slots(class);
        let direct = objects.len() == 1 && central::is_sparse(class);
        if !direct && length + objects.len() <= slots.len() {
            slots[length..length + objects.len()].copy_from_slice(objects);
            cache.set_length(class, length + objects.len());
            return;
        }
    }
    central::give(class, objects);
}

/// Move everything back into the spans.
pub fn drain() {
    (1..COUNT).for_each(|class| shrink(class, 0));
}

/// Move half of what each class has back.
pub fn halve() {
    (1..COUNT).for_each(|class| shrink(class, length(class) / 2));
}

/// Move what `class` has above `most` objects back.
pub fn shrink(class: usize, most: usize) {
    let mut buffer = [0; MAX_BATCH];
    loop {
        let count = {
            let mut cache = TRANSFER[class].cache.lock();
            let count = cache.length.saturating_sub(most).min(MAX_BATCH);
            if count > 0 {
                let rest = cache.length - count;
                buffer[..count].copy_from_slice(&cache.slots(class)[rest..rest + count]);
                cache.set_length(class, rest);
            }
            count
        };
        if count == 0 {
            break;
        }
        central::give(class, &buffer[..count]);
    }
}
