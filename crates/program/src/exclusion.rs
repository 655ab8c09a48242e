//! Exclusion between a program's threads, for the plugin inside QEMU.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

/// A thread's own state is nobody's: the thread has not begun, or has ended.
const UNUSED: u8 = 0;
/// The thread executes guest code, and touches its state then only.
const IN_GUEST: u8 = 1;
/// The thread touches its state outside of guest code: at a system call, at its beginning.
const OUTSIDE: u8 = 2;
/// The process ends, and the one that ends it has the state.
const CLOSED: u8 = 3;

/// Owner of the state of a thread when the process ends.
///
/// QEMU takes all threads out of *guest code* before it says that a process ends, but not out of
/// system calls. So a thread [leaves](Self::leave) guest code before it touches its state in a system
/// call, which fails when the process has ended it, and whoever ends the process gets the state of
/// threads in guest code only ([`Self::close`]).
#[derive(Debug, Default)]
pub struct Stage(AtomicU8);

impl Stage {
    /// Of a thread that has not begun.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU8::new(UNUSED))
    }

    /// The thread begins, outside of guest code.
    pub fn begin(&self) {
        self.0.store(OUTSIDE, Ordering::Release);
    }

    /// The thread leaves guest code; whether its state is still its own.
    #[must_use]
    pub fn leave(&self) -> bool {
        self.0
            .compare_exchange(IN_GUEST, OUTSIDE, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|stage| stage == OUTSIDE, |_| true)
    }

    /// Returns true if the thread is outside of guest code, and its state its own.
    #[must_use]
    pub fn is_outside(&self) -> bool {
        self.0.load(Ordering::Acquire) == OUTSIDE
    }

    /// The thread returns to guest code.
    pub fn enter(&self) {
        let _ = self
            .0
            .compare_exchange(OUTSIDE, IN_GUEST, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The thread is no more.
    pub fn end(&self) {
        self.0.store(UNUSED, Ordering::Release);
    }

    /// The process ends; whether the thread was in guest code, so that its state is the caller's now.
    #[must_use]
    pub fn close(&self) -> bool {
        self.0
            .compare_exchange(IN_GUEST, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// A call that takes addresses away and is told of when it is over.
const ALONE: u32 = u32::MAX;

/// Keeps calls that take addresses away from those that are given some, until both are told.
///
/// The kernel can give a range that `mremap` leaves to another thread's `mmap` before either is
/// told. What takes addresses is alone from before the kernel does it until it is told; what is given
/// some can be many. (`munmap`, which is told before it happens, needs none of this.)
#[derive(Debug, Default)]
pub struct Turns(AtomicU32);

impl Turns {
    /// A lock that is free.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Begins a call, when no other is in its way.
    pub fn take(&self, alone: bool) {
        /// Looks that yield the processor, before one sleeps.
        const YIELDS: u32 = 64;
        const NAP: Duration = Duration::from_micros(50);
        let next = |held: u32| match (alone, held) {
            (true, 0) => Some(ALONE),
            (false, held) if held < ALONE - 1 => Some(held + 1),
            _ => None,
        };
        let mut looks = 0;
        while self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .is_err()
        {
            if looks < YIELDS {
                looks += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Ends a call.
    pub fn give_back(&self, alone: bool) {
        if alone {
            self.0.store(0, Ordering::Release);
        } else {
            self.0.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Forgets calls of threads that a forked child does not have.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// Plain memory that says, under Miri or by its sum, when two threads touch it.
    struct Plain(UnsafeCell<u64>);

    // SAFETY: what the tests are about.
    unsafe impl Sync for Plain {}

    impl Plain {
        fn add(&self, amount: u64) {
            // SAFETY: as the tests show, nobody else is here.
            unsafe {
                let value = self.0.get().read();
                thread::yield_now();
                self.0.get().write(value + amount);
            }
        }
    }

    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 5_000 };

    #[test]
    fn a_thread_in_a_system_call_keeps_its_state_when_the_process_ends() {
        let stage = Stage::new();
        assert!(!stage.close(), "it has not begun");
        stage.begin();
        assert!(!stage.close(), "it begins");
        assert!(stage.is_outside());
        stage.enter();
        assert!(stage.leave());
        assert!(stage.leave(), "a call that did not return");
        assert!(!stage.close(), "it is in a call");
        stage.enter();
        assert!(stage.close());
        assert!(!stage.leave() && !stage.is_outside(), "its state is gone");
        stage.enter();
        assert!(!stage.leave());
        stage.begin();
        assert!(stage.is_outside(), "another thread with its number");
        stage.end();
        assert!(!stage.close());
    }

    #[test]
    fn no_two_threads_have_a_state() {
        for round in 0..ROUNDS {
            let stage = Stage::new();
            let state = Plain(UnsafeCell::new(0));
            stage.begin();
            stage.enter();
            let (calls, closed) = thread::scope(|scope| {
                let owner = scope.spawn(|| {
                    let mut calls = 0;
                    for _ in 0..round % 8 {
                        if !stage.leave() {
                            break;
                        }
                        state.add(1);
                        calls += 1;
                        stage.enter();
                    }
                    calls
                });
                let closed = stage.close();
                if closed {
                    state.add(100);
                }
                (owner.join().unwrap(), closed)
            });
            let sum = calls + if closed { 100 } else { 0 };
            assert_eq!(state.0.into_inner(), sum);
        }
    }

    #[test]
    fn address_lock_excludes_others() {
        let turns = Turns::new();
        let state = Plain(UnsafeCell::new(0));
        let alone = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS / 5 {
                        turns.take(true);
                        alone.store(true, Ordering::Relaxed);
                        state.add(1);
                        alone.store(false, Ordering::Relaxed);
                        turns.give_back(true);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..ROUNDS / 5 {
                        turns.take(false);
                        assert!(!alone.load(Ordering::Relaxed));
                        turns.give_back(false);
                    }
                });
            }
        });
        assert_eq!(state.0.into_inner(), 2 * (ROUNDS / 5));
    }

    #[test]
    fn many_can_be_given_addresses_at_a_time() {
        let turns = Turns::new();
        turns.take(false);
        turns.take(false);
        turns.give_back(false);
        turns.give_back(false);
        turns.take(true);
        turns.forget();
        turns.take(false);
    }
}
