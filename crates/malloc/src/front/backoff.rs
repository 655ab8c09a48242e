//! Backoff of caches while much memory is free: they are empty and do not grow, until the program is
//! busy again.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use super::{Place, empty, place};
use crate::classes::COUNT;
use crate::{clock, transfer};

/// Misses after which caches in backoff are looked at, and the nanoseconds that these take at least in a
/// program that is hardly busy: at 100,000 misses a second they cost 2 % of a CPU. Our choice.
const BACKOFF_MISSES: i32 = 5_000;
const BACKOFF_NANOSECONDS: u64 = 50_000_000;
/// Misses left; caches are in backoff as long as it is positive.
static BACKOFF_LEFT: AtomicI32 = AtomicI32::new(0);
/// When they began.
static BACKOFF_SINCE: AtomicU64 = AtomicU64::new(0);
/// True while a thread empties its cache.
static EMPTYING: AtomicBool = AtomicBool::new(false);

/// Returns true while a thread empties its cache.
pub fn is_emptying() -> bool {
    EMPTYING.load(Ordering::Relaxed)
}

/// Empty and close the cache of the calling thread's CPU, and half of the transfer caches, while much memory
/// is free: a few objects in them keep whole pages, and a program that is hardly busy comes to slow
/// paths, which give memory back. A busy one has its caches again within milliseconds.
pub fn back_off() {
    emptying(close_all);
}

/// Empty caches, unless another thread is at it: what goes back to spans may give pages up, which is a slow path.
pub fn emptying(body: impl FnOnce()) {
    if !EMPTYING.swap(true, Ordering::Acquire) {
        body();
        EMPTYING.store(false, Ordering::Release);
    }
}

fn close_all() {
    BACKOFF_SINCE.store(clock::coarse_nanoseconds(), Ordering::Relaxed);
    BACKOFF_LEFT.store(BACKOFF_MISSES, Ordering::Relaxed);
    transfer::halve();
    let place = place();
    if let Place::Cpu(_, slab) | Place::Thread(slab) = place {
        for class in 1..COUNT {
            slab.close(class);
            empty(place, slab, class, transfer::give);
        }
    }
}

/// Count a miss of a cache in backoff, and end the backoff if the program is busy.
#[cold]
pub fn count() {
    if BACKOFF_LEFT.fetch_sub(1, Ordering::Relaxed) != 1 {
        return;
    }
    let now = clock::coarse_nanoseconds();
    let since = BACKOFF_SINCE.swap(now, Ordering::Relaxed);
    if now.wrapping_sub(since) >= BACKOFF_NANOSECONDS {
        BACKOFF_LEFT.store(BACKOFF_MISSES, Ordering::Relaxed);
    }
}

/// End the backoff: caches grow as they are needed.
pub fn end_backoff() {
    BACKOFF_LEFT.store(0, Ordering::Relaxed);
}

/// In the child of a fork: no thread empties its cache.
pub fn after_fork() {
    EMPTYING.store(false, Ordering::Relaxed);
}

/// Returns true if caches are in backoff.
#[inline]
pub fn is_on() -> bool {
    BACKOFF_LEFT.load(Ordering::Relaxed) > 0
}
