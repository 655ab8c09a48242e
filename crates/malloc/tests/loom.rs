//! The lock and the page map under loom: the files of the library, with atomics that explore every
//! interleaving and every value that the memory model of C11 lets a load see.
//!
//! `src/sync.rs` is all that differs. The futex is a model, in which a waiter that nobody wakes is a
//! deadlock, which loom reports. (Loom prunes: it looks for an interleaving that matters at the last
//! access to an atomic only, so that not every order of three accesses is tried. Miri and
//! `ThreadSanitizer` look at the same code in other ways.)

#![cfg(not(miri))]

#[path = "../src/lock.rs"]
#[allow(dead_code, unreachable_pub, reason = "fork handlers are not here")]
mod lock;
#[path = "../src/pagemap.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::inline_always,
    reason = "as in the library, whose spans are not here"
)]
mod pagemap;
#[path = "../src/sizes.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the sizes of slabs are not used here"
)]
mod sizes;

/// Loom's atomics, made so that zeroed memory is one of value 0 and that statics begin anew in each
/// execution.
mod sync {
    use std::cell::UnsafeCell;
    use std::ptr::null_mut;
    pub use std::sync::atomic::Ordering;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    pub const SPINS: usize = 1;

    /// Number of the execution; 0 stands for none.
    pub static EXECUTION: AtomicUsize = AtomicUsize::new(1);
    /// Makes all operations relaxed, which must be noticed.
    pub static WEAK: AtomicBool = AtomicBool::new(false);

    fn order(order: Ordering) -> Ordering {
        if WEAK.load(Relaxed) { Relaxed } else { order }
    }

    macro_rules! atomics {
        ($($name:ident$(<$generic:ident>)?: $value:ty, $loom:ty;)*) => {$(
            pub struct $name$(<$generic>)? {
                initial: $value,
                execution: UnsafeCell<usize>,
                atomic: UnsafeCell<*mut $loom>,
            }

            // SAFETY: loom runs all of its threads on one, and changes them in its own calls only.
            unsafe impl$(<$generic>)? Sync for $name$(<$generic>)? {}

            #[allow(dead_code, reason = "not every operation is used with every type")]
            impl$(<$generic>)? $name$(<$generic>)? {
                pub const fn new(initial: $value) -> Self {
                    Self {
                        initial,
                        execution: UnsafeCell::new(0),
                        atomic: UnsafeCell::new(null_mut()),
                    }
                }

                /// Let the calling thread be the one that initializes it.
                pub fn touch(&self) -> &$loom {
                    let now = EXECUTION.load(Relaxed);
                    // SAFETY: as above; what belonged to another execution is left alone.
                    unsafe {
                        if *self.execution.get() != now {
                            *self.execution.get() = now;
                            *self.atomic.get() = Box::into_raw(Box::new(<$loom>::new(self.initial)));
                        }
                        &**self.atomic.get()
                    }
                }

                pub fn load(&self, with: Ordering) -> $value {
                    self.touch().load(order(with))
                }

                pub fn store(&self, value: $value, with: Ordering) {
                    self.touch().store(value, order(with));
                }

                pub fn swap(&self, value: $value, with: Ordering) -> $value {
                    self.touch().swap(value, order(with))
                }

                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.touch().compare_exchange(old, new, order(success), order(failure))
                }
            }
        )*};
    }

    atomics! {
        AtomicU16: u16, loom::sync::atomic::AtomicU16;
        AtomicU32: u32, loom::sync::atomic::AtomicU32;
        AtomicPtr<T>: *mut T, loom::sync::atomic::AtomicPtr<T>;
    }
}

/// The system: futexes, and memory for leaves.
mod sys {
    use super::sync::{AtomicPtr, AtomicU16, AtomicU32, Ordering};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::cell::RefCell;
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Drops all wake-ups, which must be noticed.
    pub static DEAF: AtomicBool = AtomicBool::new(false);

    /// Waiters of a futex, and the lock inside the kernel.
    pub struct Futex {
        pub queue: loom::sync::Mutex<()>,
        pub waiters: loom::sync::Condvar,
    }

    thread_local! {
        pub static FUTEX: RefCell<Option<Arc<Futex>>> = const { RefCell::new(None) };
        static MAPPED: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
    }

    fn futex() -> Arc<Futex> {
        FUTEX.with_borrow(|futex| Arc::clone(futex.as_ref().expect("inside a model")))
    }

    pub fn futex_wait(word: &AtomicU32, value: u32) {
        let futex = futex();
        let guard = futex.queue.lock().unwrap();
        if word.load(Ordering::Relaxed) == value {
            drop(futex.waiters.wait(guard).unwrap());
        }
    }

    pub fn futex_wake(_word: &AtomicU32) {
        let futex = futex();
        let _guard = futex.queue.lock().unwrap();
        if !DEAF.load(Relaxed) {
            futex.waiters.notify_one();
        }
    }

    pub fn preserving_errno<T>(body: impl FnOnce() -> T) -> T {
        body()
    }

    /// Models that are to fail panic here.
    pub fn end_of_panic() {}

    const PAGES: usize = 1 << 18;

    /// A leaf. What the kernel zeroed is initialized by the caller.
    pub fn map(bytes: usize) -> Option<NonNull<u8>> {
        let (tag, span) = (size_of::<AtomicU16>(), size_of::<AtomicPtr<()>>());
        assert_eq!(bytes, PAGES * (tag + span));
        let layout = Layout::from_size_align(bytes, 64).ok()?;
        // SAFETY: not empty, and freed below with the same layout; zeroed memory is an atomic.
        unsafe {
            let memory = NonNull::new(alloc_zeroed(layout))?;
            let tags = memory.as_ptr() as usize as *const AtomicU16;
            let spans = (memory.as_ptr() as usize + PAGES * tag) as *const AtomicPtr<()>;
            for page in 0..super::PAGES_USED {
                (*tags.add(page)).touch();
                (*spans.add(page)).touch();
            }
            MAPPED.with_borrow_mut(|all| all.push((memory.as_ptr() as usize, bytes)));
            Some(memory)
        }
    }

    pub fn unmap(_memory: *mut u8, _bytes: usize) {}

    /// Between executions.
    pub fn unmap_all() {
        for (address, bytes) in MAPPED.take() {
            let layout = Layout::from_size_align(bytes, 64).unwrap();
            // SAFETY: allocated in `map` with this layout, and its execution is over.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }
}

mod tls {
    /// Constant: nothing forks here.
    pub fn thread_pointer() -> usize {
        1
    }

    pub fn count_lock(_by: isize) {}
}

mod near {
    macro_rules! near {
        ($name:path: $type:ty) => {{
            let address: &'static $type = &$name;
            address
        }};
    }
    pub(crate) use near;
}

mod span {
    /// A span with something to read that loom watches.
    pub struct Span(pub loom::cell::UnsafeCell<usize>);
}

use lock::Guarded;
use loom::thread;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

const PAGES_USED: usize = 2;
/// Address of a leaf of the page map.
const LEAF: usize = 0x4000_0000_0000;

fn explore(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    // Statics are shared by all models.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        sys::unmap_all();
        sync::EXECUTION.fetch_add(1, Relaxed);
        // The root is initialized before any thread starts.
        assert_eq!(pagemap::tag(LEAF), 0);
        sys::FUTEX.set(Some(Arc::new(sys::Futex {
            queue: loom::sync::Mutex::new(()),
            waiters: loom::sync::Condvar::new(),
        })));
        body();
        sys::FUTEX.set(None);
    });
}

/// A number that may only be accessed in order.
struct Watched(loom::cell::UnsafeCell<usize>);

// SAFETY: loom reports what would make this wrong.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

fn increment(counter: &Guarded<Watched>) {
    let guard = counter.lock();
    // SAFETY: loom watches the access.
    guard.0.with_mut(|value| unsafe { *value += 1 });
}

#[allow(
    clippy::arc_with_non_send_sync,
    reason = "raw pointers that loom watches"
)]
fn count(threads: usize, times: usize, preemptions: Option<usize>) {
    explore(preemptions, move || {
        let counter = Arc::new(Guarded::new(Watched(loom::cell::UnsafeCell::new(0))));
        // Initialized before anybody else knows it, as a static is.
        drop(counter.lock());
        let all: Vec<_> = (1..threads)
            .map(|_| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || (0..times).for_each(|_| increment(&counter)))
            })
            .collect();
        (0..times).for_each(|_| increment(&counter));
        for thread in all {
            thread.join().unwrap();
        }
        let guard = counter.lock();
        // SAFETY: loom watches the access.
        guard
            .0
            .with(|value| assert_eq!(unsafe { *value }, threads * times));
    });
}

#[test]
fn lock_excludes_publishes_and_wakes_two_threads() {
    count(2, 1, None);
    count(2, 2, Some(3));
}

#[test]
fn lock_excludes_three_threads() {
    count(3, 1, Some(2));
}

fn enter_and_look(page: usize, number: usize) {
    let address = LEAF + page * sizes::PAGE_BYTES;
    let span = Box::leak(Box::new(span::Span(loom::cell::UnsafeCell::new(0))));
    // SAFETY: nobody else knows it yet, which loom checks.
    span.0.with_mut(|value| unsafe { *value = number });
    assert!(pagemap::enter_large(address, span.into()));
    look(page, number);
}

fn look(page: usize, number: usize) {
    let address = LEAF + page * sizes::PAGE_BYTES;
    assert_eq!(pagemap::tag(address), pagemap::LARGE);
    let found = pagemap::span(address).expect("it was entered");
    // SAFETY: spans live for ever here, and loom watches the access.
    unsafe { found.as_ref().0.with(|value| assert_eq!(*value, number)) };
}

#[test]
fn do_two_threads_that_make_the_same_leaf_both_find_what_they_entered() {
    explore(Some(3), || {
        let other = thread::spawn(|| enter_and_look(0, 7));
        enter_and_look(1, 8);
        other.join().unwrap();
        look(0, 7);
        look(1, 8);
    });
}

/// Wait for a span that another thread enters.
fn find() {
    explore(Some(3), || {
        let other = thread::spawn(|| enter_and_look(0, 7));
        let found = loop {
            match pagemap::span(LEAF) {
                Some(found) => break found,
                None => thread::yield_now(),
            }
        };
        // SAFETY: as in `look`.
        unsafe { found.as_ref().0.with(|value| assert_eq!(*value, 7)) };
        other.join().unwrap();
    });
}

#[test]
fn finder_of_a_span_sees_its_contents() {
    find();
}

#[test]
fn does_one_of_two_threads_that_free_a_large_object_learn_that_it_was_the_first() {
    explore(Some(3), || {
        enter_and_look(0, 7);
        let other = thread::spawn(|| pagemap::leave_large(LEAF));
        let here = pagemap::leave_large(LEAF);
        assert!(here != other.join().unwrap());
    });
}

/// These must fail, each in a process of its own: loom gives up in the middle of everything.
mod faults {
    use super::*;

    #[test]
    #[ignore = "must fail: run by a test that expects it"]
    fn lock_without_order() {
        sync::WEAK.store(true, Relaxed);
        count(2, 1, None);
    }

    #[test]
    #[ignore = "must fail: run by a test that expects it"]
    fn lock_that_wakes_nobody() {
        sys::DEAF.store(true, Relaxed);
        count(2, 1, None);
    }

    #[test]
    #[ignore = "must fail: run by a test that expects it"]
    fn page_map_without_order() {
        sync::WEAK.store(true, Relaxed);
        find();
    }
}

#[test]
fn is_each_fault_refuted() {
    for (fault, message) in [
        ("faults::lock_without_order", "Causality violation"),
        ("faults::lock_that_wakes_nobody", "deadlock"),
        ("faults::page_map_without_order", "Causality violation"),
    ] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", fault, "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{fault} went unnoticed");
        assert!(text.contains(message), "{fault}: {text}");
    }
}
