//! Locks that need no initialization, no memory and no thread identity on their fast path, and
//! that survive `fork`.
//!
//! A word is 0 (free), 1 (held) or 2 (held, somebody may sleep): the third mutex of Drepper's
//! "Futexes Are Tricky" (2011). Before a fork the forking thread takes every lock of the allocator, so that the child
//! finds all structures whole; until the fork is over that one thread walks through locks that it
//! holds, because handlers of other libraries may allocate in between.

use core::cell::UnsafeCell;
use core::hint;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicUsize;

use crate::sync::{AtomicU32, Ordering, SPINS};
use crate::{sys, tls};

/// The thread that holds every lock for a fork, by its thread pointer; 0 if there is none.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// Name the thread that holds every lock (or 0).
pub fn set_forking(thread: usize) {
    FORKING.store(thread, Ordering::Release);
}

/// Returns true if the calling thread holds every lock for a fork.
pub fn is_forking() -> bool {
    FORKING.load(Ordering::Relaxed) == tls::thread_pointer()
}

/// A futex-based lock.
pub struct Lock(AtomicU32);

impl Lock {
    /// A free lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Take the lock. `false` if the calling thread is forking and holds it already.
    #[inline]
    fn acquire(&self) -> bool {
        if self
            .0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return true;
        }
        self.acquire_contended()
    }

    /// Take the lock if that takes no more than a moment. For signal handlers: the interrupted
    /// thread may hold it.
    fn try_acquire(&self) -> bool {
        for _ in 0..100 {
            if self
                .0
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
            hint::spin_loop();
        }
        false
    }

    #[cold]
    fn acquire_contended(&self) -> bool {
        if is_forking() {
            return false;
        }
        // Held for microseconds at most, as long as a batch of cold spans takes; longer means that the
        // holder was preempted.
        for _ in 0..SPINS {
            if self.0.load(Ordering::Relaxed) == 0
                && self
                    .0
                    .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return true;
            }
            hint::spin_loop();
        }
        sys::preserving_errno(|| {
            while self.0.swap(2, Ordering::Acquire) != 0 {
                sys::futex_wait(&self.0, 2);
            }
        });
        true
    }

    #[inline]
    fn release(&self) {
        if self.0.swap(0, Ordering::Release) == 2 {
            sys::preserving_errno(|| sys::futex_wake(&self.0));
        }
    }

    /// Take the lock for a fork.
    pub fn hold(&self) {
        self.acquire();
    }

    /// Give the lock back in the parent.
    pub fn unhold(&self) {
        self.release();
    }

    /// Give the lock back in the child, where nobody can be waiting.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A value behind a [`Lock`], on cache lines of its own: who takes a lock must not slow down who
/// takes its neighbor.
#[repr(align(64))]
pub struct Guarded<T> {
    /// The lock, for the fork handlers.
    pub lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, one at a time. Needed because the cell is not
// `Sync`. `Send` is not asked of `T`: spans are linked by raw pointers, which the lock protects.
unsafe impl<T> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// An unlocked value.
    pub const fn new(value: T) -> Self {
        Self {
            lock: Lock::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Lock the value.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let owned = self.lock.acquire();
        Guard::new(self, owned)
    }

    /// Lock the value, unless somebody has it and keeps it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Lazily: a guard that is not given out must not be dropped.
        self.lock.try_acquire().then(|| Guard::new(self, true))
    }
}

/// Access to a locked value, until dropped.
pub struct Guard<'a, T> {
    guarded: &'a Guarded<T>,
    owned: bool,
    /// True if the thread panicked before: then the panic is no fault of the locked value.
    panicked: bool,
}

impl<'a, T> Guard<'a, T> {
    #[inline]
    fn new(guarded: &'a Guarded<T>, owned: bool) -> Self {
        tls::count_lock(1);
        Self {
            guarded,
            owned,
            panicked: std::thread::panicking(),
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as the guard lives.
        unsafe { &*self.guarded.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held as long as the guard lives, and the guard is borrowed mutably.
        unsafe { &mut *self.guarded.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // What is locked may be damaged, and nobody may go on with it.
        if !self.panicked && std::thread::panicking() {
            sys::end_of_panic();
        }
        tls::count_lock(-1);
        if self.owned {
            self.guarded.lock.release();
        }
    }
}
