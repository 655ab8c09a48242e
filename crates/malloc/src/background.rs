//! A thread that gives memory back as time passes, for programs that go idle: a program that does
//! nothing reaches no slow path of ours.
//!
//! It also empties the caches of all CPUs when nobody missed in them for some seconds.
//!
//! A process ends with its last thread, and after its main thread called `pthread_exit` this one may
//! be the last; nor would anybody take a signal then, since this thread blocks all. So it ends when
//! the main thread does, and from then on slow paths give memory back.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use crate::settings::Background;
use crate::sizes::PAGE_BYTES;
use crate::{dump, front, pages, sys, upkeep};

/// Free and mapped bytes from which on an idle thread is worth its stack. Our choice.
const IDLE_BYTES: u64 = 32 << 20;
/// Seconds without a miss after which caches are emptied. Our choice.
const IDLE_SECONDS: u32 = 5;
const STACK_BYTES: usize = 128 << 10;

static MODE: AtomicU8 = AtomicU8::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);
/// Key whose destructor runs when the main thread ends, plus one; 0 if there is none.
static WATCHED: AtomicU32 = AtomicU32::new(0);
/// 1 once the main thread has ended. The background thread sleeps on this word.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Remember what the environment says.
pub fn configure(mode: Background) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Notice when the main thread, which calls this, ends before the process does. May allocate.
pub fn watch_main_thread() {
    if MODE.load(Ordering::Relaxed) == Background::Off as u8 || !sys::is_main_thread() {
        return;
    }
    let mut watched = WATCHED.load(Ordering::Relaxed);
    let mut key = 0;
    // SAFETY: the destructor is a function of this library, which is never unloaded; the key exists.
    // Its value only has to be none that is null. Needed because the C library tells the end of a
    // thread in no other way.
    unsafe {
        if watched == 0 && libc::pthread_key_create(&raw mut key, Some(main_thread_ends)) == 0 {
            watched = key + 1;
        }
        if watched != 0 && libc::pthread_setspecific(watched - 1, (&raw const WATCHED).cast()) != 0
        {
            watched = 0;
        }
    }
    WATCHED.store(watched, Ordering::Relaxed);
}

unsafe extern "C" fn main_thread_ends(_: *mut libc::c_void) {
    // A child of a fork in another thread has the key, too, and not this main thread.
    if sys::is_main_thread() {
        ENDED.store(1, Ordering::Relaxed);
        sys::preserving_errno(|| sys::futex_wake(&ENDED));
    }
}

/// Returns true if the thread starts once much memory is free.
#[inline]
pub fn is_awaited() -> bool {
    MODE.load(Ordering::Relaxed) == Background::Idle as u8 && !STARTED.load(Ordering::Relaxed)
}

/// Returns true if so many free and mapped heap pages are worth starting an awaited thread.
pub fn is_worthwhile(pages: u64) -> bool {
    pages * PAGE_BYTES as u64 >= IDLE_BYTES
}

/// Start the thread if the mode says so. Allocates; not to be called under a lock.
pub fn maybe_start_thread(constructing: bool) {
    let mode = MODE.load(Ordering::Relaxed);
    let may_start = WATCHED.load(Ordering::Relaxed) != 0 && ENDED.load(Ordering::Relaxed) == 0;
    if mode == Background::Off as u8 || STARTED.load(Ordering::Relaxed) || !may_start {
        return;
    }
    if mode == Background::Idle as u8 && (constructing || !is_worthwhile(pages::free_mapped())) {
        return;
    }
    if !STARTED.swap(true, Ordering::AcqRel) && !sys::spawn(run, STACK_BYTES) {
        // No second try: the process has no room for a thread, and slow paths do the work.
        MODE.store(Background::Off as u8, Ordering::Relaxed);
    }
}

/// The child of a fork has no such thread.
pub fn after_fork() {
    STARTED.store(false, Ordering::Relaxed);
    ENDED.store(0, Ordering::Relaxed);
    upkeep::set_slow_paths_release(true);
    watch_main_thread();
}

extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    sys::name_thread(c"contigua-malloc");
    upkeep::set_slow_paths_release(false);
    let (mut seen, mut idle) = (0, 0);
    loop {
        sys::futex_wait_seconds(&ENDED, 0, 1);
        if ENDED.load(Ordering::Relaxed) != 0 {
            upkeep::set_slow_paths_release(true);
            return null_mut();
        }
        sys::preserving_errno(upkeep::periodic);
        dump::write_pending_dump();
        let misses = front::misses();
        idle = if misses == seen { idle + 1 } else { 0 };
        seen = misses;
        if idle == IDLE_SECONDS {
            front::drain();
        }
    }
}
