//! A thread that gives memory back as time passes, for programs that go idle: a program that does
//! nothing reaches no slow path of ours.
//!
//! It also empties the caches of all CPUs when nobody missed in them for some seconds.

use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::settings::Background;
use crate::{dump, front, pages, sys};

/// Free and mapped bytes from which on an idle thread is worth its stack. Our choice.
const IDLE_BYTES: u64 = 32 << 20;
/// Seconds without a miss after which caches are emptied. Our choice.
const IDLE_SECONDS: u32 = 5;
const STACK_BYTES: usize = 128 << 10;

static MODE: AtomicU8 = AtomicU8::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);

/// Remember what the environment says.
pub fn configure(mode: Background) {
    MODE.store(mode as u8, Ordering::Relaxed);
}

/// Start the thread if the mode says so. Allocates; not to be called under a lock.
pub fn consider(constructing: bool) {
    let mode = MODE.load(Ordering::Relaxed);
    if mode == Background::Off as u8 || STARTED.load(Ordering::Relaxed) {
        return;
    }
    if mode == Background::Idle as u8
        && (constructing || pages::statistics().free_mapped < IDLE_BYTES)
    {
        return;
    }
    if !STARTED.swap(true, Ordering::AcqRel) && !start() {
        // No second try: the process has no room for a thread, and slow paths do the work.
        MODE.store(Background::Off as u8, Ordering::Relaxed);
    }
}

/// The child of a fork has no such thread.
pub fn after_fork() {
    STARTED.store(false, Ordering::Relaxed);
    pages::set_amortised(true);
}

fn start() -> bool {
    // SAFETY: all structures are initialised before they are used and outlive their use; the
    // thread's function lives as long as the library, which is never unloaded. Needed because a
    // thread of the standard library would run its hooks and keep handles.
    unsafe {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return false;
        }
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        // The program's signals are for the program's threads.
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        // A number to some C libraries, a pointer to others.
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        let started =
            libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, null_mut()) == 0;
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        started
    }
}

extern "C" fn run(_: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: names the calling thread with a string that ends in zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"contigua-malloc".as_ptr()) };
    pages::set_amortised(false);
    let (mut seen, mut idle) = (0, 0);
    loop {
        let second = libc::timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        // SAFETY: the time is valid; nothing is written back.
        unsafe { libc::nanosleep(&raw const second, null_mut()) };
        sys::preserving_errno(pages::periodic);
        dump::occasion();
        let misses = front::misses();
        idle = if misses == seen { idle + 1 } else { 0 };
        seen = misses;
        if idle == IDLE_SECONDS {
            front::drain();
        }
    }
}
