//! Call stacks, through the compiler's unwinder.
//!
//! Frame pointers would be faster, and Debian's libraries have none. The unwinder
//! (`_Unwind_Backtrace` of libgcc) reads the tables that are there for exceptions. It is linked into
//! the library, so that a program in a folder without `libgcc_s.so.1` (chroot) starts. It allocates
//! nothing; with glibc 2.35 and libgcc 12 or later it takes no lock either (`_dl_find_object`), with
//! older ones the dynamic linker's, which a thread that is inside the dynamic linker may take again.
//! In a program that is linked statically it takes a mutex of libgcc, which nothing frees in the child
//! of a fork: forks wait until nobody walks. No lock of the profile or of the heap is held meanwhile.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{lock, sys};

/// The unwinder's context of a frame.
type Context = *mut c_void;

#[cfg_attr(
    all(feature = "interpose", target_env = "gnu"),
    link(name = "gcc_eh", kind = "static", modifiers = "-bundle")
)]
unsafe extern "C" {
    fn _Unwind_Backtrace(
        step: extern "C" fn(Context, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: Context, before: *mut c_int) -> usize;
    fn _Unwind_GetRegionStart(context: Context) -> usize;
}

const GO_ON: c_int = 0;
const STOP: c_int = 5; // _URC_END_OF_STACK
/// Frames of this allocator that a stack begins with at most.
const OWN_FRAMES: usize = 16;

/// Threads that walk their stacks.
static WALKING: AtomicUsize = AtomicUsize::new(0);
/// Forks that take place.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// Yields for which a fork waits until no thread walks. A signal handler that interrupted a walk may
/// fork: it must not wait for its own thread.
const MAX_YIELDS: u32 = 10_000;

/// Waits until no thread walks its stack; until [`after_fork`], other threads' walks wait.
pub fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    for _ in 0..MAX_YIELDS {
        if WALKING.load(Ordering::SeqCst) == 0 {
            break;
        }
        sys::yield_now();
    }
}

/// Allows walks again, in the parent.
pub fn after_fork() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// Allows walks in the child, which has one thread.
pub fn in_child() {
    FORKS.store(0, Ordering::SeqCst);
    WALKING.store(0, Ordering::SeqCst);
}

struct Walk<'a> {
    frames: &'a mut [usize],
    without: &'a [usize],
    seen: usize,
    depth: usize,
}

/// The addresses of the calls that led here, the innermost first, from the caller of the last of the functions `without`
/// on; returns their number. Waits while another thread forks.
#[inline(never)]
pub fn capture(frames: &mut [usize], without: &[usize]) -> usize {
    loop {
        WALKING.fetch_add(1, Ordering::SeqCst);
        let may = FORKS.load(Ordering::SeqCst) == 0 || lock::is_forking();
        let depth = if may { walk(frames, without) } else { 0 };
        WALKING.fetch_sub(1, Ordering::SeqCst);
        if may {
            return depth;
        }
        sys::yield_now();
    }
}

#[inline(always)]
fn walk(frames: &mut [usize], without: &[usize]) -> usize {
    let mut walk = Walk {
        frames,
        without,
        seen: 0,
        depth: 0,
    };
    // SAFETY: `step` gets the walk back, which outlives the call. Needed because the language has
    // no stacks.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    walk.depth
}

extern "C" fn step(context: Context, walk: *mut c_void) -> c_int {
    let mut before = 0;
    // SAFETY: the unwinder passes its own context and what `capture` gave it.
    let (walk, address, function) = unsafe {
        (
            &mut *walk.cast::<Walk<'_>>(),
            _Unwind_GetIPInfo(context, &raw mut before),
            _Unwind_GetRegionStart(context),
        )
    };
    if address == 0 || walk.depth == walk.frames.len() {
        return STOP;
    }
    walk.seen += 1;
    if walk.seen <= OWN_FRAMES && walk.without.contains(&function) {
        walk.depth = 0;
        return GO_ON;
    }
    // A return address lies behind its call, perhaps in the next function.
    walk.frames[walk.depth] = address - usize::from(before == 0);
    walk.depth += 1;
    GO_ON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the unwinder is no Rust")]
    fn is_the_caller_on_the_stack() {
        let mut frames = [0; 8];
        let depth = capture(&mut frames, &[]);
        assert!(depth > 2);
        let own = capture as *const () as usize;
        assert!(
            (own..own + 4096).contains(&frames[0]),
            "the innermost first"
        );
        let inner = frames;
        assert_eq!(capture(&mut frames[..1], &[]), 1);
        assert!(capture(&mut frames, &[own]) > 1);
        assert_eq!(frames[1], inner[2], "without its own frame");
    }

    #[test]
    #[cfg_attr(miri, ignore = "the unwinder is no Rust")]
    fn no_other_thread_walks_during_a_fork() {
        static DEPTH: AtomicUsize = AtomicUsize::new(0);
        before_fork();
        let other = std::thread::spawn(|| {
            DEPTH.store(capture(&mut [0; 8], &[]), Ordering::SeqCst);
        });
        for _ in 0..MAX_YIELDS {
            sys::yield_now();
        }
        let during = DEPTH.load(Ordering::SeqCst);
        after_fork();
        other.join().expect("it ends after the fork");
        assert_eq!(during, 0);
        assert!(DEPTH.load(Ordering::SeqCst) > 2);
    }
}
