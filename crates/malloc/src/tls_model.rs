//! The words of each thread under Miri, which runs no assembly.

use core::cell::Cell;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// The sampler's state of each thread.
pub struct Thread {
    /// Charge left before the next sample.
    pub left: AtomicI64,
    /// Bit 0: the thread began to count; bit 1: it is taking a sample.
    pub sampling: AtomicUsize,
}

std::thread_local! {
    static WORD: Cell<usize> = const { Cell::new(0) };
    static LOCKS: Cell<usize> = const { Cell::new(0) };
    static ANCHOR: u64 = const { 0 };
    static THREAD: Thread = const {
        Thread { left: AtomicI64::new(0), sampling: AtomicUsize::new(0) }
    };
}

/// A number that no other living thread of the process has.
pub fn thread_pointer() -> usize {
    ANCHOR.with(|anchor| (&raw const *anchor).addr())
}

/// The calling thread's words. They live as long as the thread.
pub fn thread() -> *const Thread {
    THREAD.with(|thread| &raw const *thread)
}

/// Count a lock that the thread takes (1) or gives back (-1).
pub fn count_lock(by: isize) {
    LOCKS.set(LOCKS.get().wrapping_add_signed(by));
}

/// Returns true if the thread has one of our locks.
pub fn has_lock() -> bool {
    LOCKS.get() > 0
}

/// Take a charge off what the thread has left; whether it has overdrawn.
pub fn spend(charge: usize) -> bool {
    let charge = charge.cast_signed() as i64;
    THREAD.with(|thread| thread.left.fetch_sub(charge, Ordering::Relaxed) < charge)
}

/// The thread's word, 0 at first.
pub fn get() -> usize {
    WORD.get()
}

/// Set the thread's word.
pub fn set(value: usize) {
    WORD.set(value);
}
