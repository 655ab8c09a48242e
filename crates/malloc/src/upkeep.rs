//! Periodic work of slow paths: release memory as time passes, and write the dumps that a signal
//! requested.
//!
//! Time passes in periods of a second. What a period finds free for too long is *owed*: this and
//! the next slow paths give it back in steps, unless the background thread does it at once. Paths
//! through here lead up: to the caches of CPUs, which are in backoff while much memory is free, to the
//! background thread, the shared page and the dump (ARCHITECTURE.md, "Circles").

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contigua_pageheap::{Config, PageHeap};

use crate::pages::{HEAP, RELEASING, give_back_for_limit, release_parts, release_whole};
use crate::sizes::PAGE_BYTES;
use crate::system::{self, System};
use crate::{background, clock, dump, front, telemetry};

/// Time between releases of the page heap.
const PERIOD_NANOSECONDS: u64 = 1_000_000_000;
/// Heap pages of whole free huge pages that one slow path gives back of what decayed, 64 MB: a fraction of
/// a millisecond. Our choice.
const STEP: u64 = (64 << 20) / PAGE_BYTES as u64;
/// Heap pages that a step releases from parts of huge pages, 4 MB: each may take a call of its own.
const PART_STEP: u64 = (4 << 20) / PAGE_BYTES as u64;
/// Heap pages of surplus from which on it is worth a slow path, 8 MB. Our choice.
const SURPLUS: u64 = (8 << 20) / PAGE_BYTES as u64;
/// Free heap pages, in whole huge pages or in others, from which on every miss of a cache looks whether a
/// period has passed: a program that is done with its memory has few. Our choice: 8 MB.
const IDLE: u64 = (8 << 20) / PAGE_BYTES as u64;
/// Heap pages of whole free huge pages that a program which frees much at once keeps for the moment, 64 MB. Our
/// choice.
const KEPT: u64 = (64 << 20) / PAGE_BYTES as u64;

/// True if at least [`IDLE`] is free.
static IDLING: AtomicBool = AtomicBool::new(false);
/// Heap pages of whole free huge pages, and then of others, that the next slow paths are to give back.
static OWED: AtomicU64 = AtomicU64::new(0);
static OWED_PARTS: AtomicU64 = AtomicU64::new(0);
static LAST_PERIOD: AtomicU64 = AtomicU64::new(0);
static SLOW_PATHS_RELEASE: AtomicBool = AtomicBool::new(true);

/// Memory that a program which goes idle should not keep after a free.
#[derive(Clone, Copy)]
pub struct Excess {
    /// Heap pages of surplus, if much is free that may decay.
    surplus: Option<u64>,
    /// True if that is worth a background thread.
    thread: bool,
}

/// Excess memory of the page heap.
pub fn excess(heap: &PageHeap<System>) -> Excess {
    Excess {
        surplus: heap.may_decay(IDLE).then(|| heap.surplus(KEPT)),
        thread: background::is_awaited() && background::is_worthwhile(heap.free_mapped()),
    }
}

/// Do what is due after a free of `count` heap pages that left this [`excess`].
pub fn after_free(excess: Excess, count: u64) {
    if excess.surplus.is_some() && !IDLING.load(Ordering::Relaxed) {
        IDLING.store(true, Ordering::Relaxed);
    }
    // Whoever frees all at once may come to no other slow path.
    if excess.thread && !front::is_emptying() {
        background::maybe_start_thread(false);
    }
    let surplus = excess.surplus.unwrap_or(0);
    if surplus < SURPLUS || !release_surplus(surplus.min(STEP.max(count))) {
        do_periodic_work();
    }
}

/// Give back heap pages of which a program that shrinks has too many: it may be idle from now on, and come to
/// no slow path. `false` if others do that.
#[cold]
fn release_surplus(pages: u64) -> bool {
    if !SLOW_PATHS_RELEASE.load(Ordering::Relaxed) || front::is_emptying() {
        return false;
    }
    let Some(_one) = RELEASING.try_lock() else {
        return false;
    };
    let done = release_whole(&system::release, pages, u64::MAX);
    if done > 0 {
        HEAP.lock().note_early();
    }
    done > 0
}

/// Lets slow paths give memory back as time passes (a background thread may do it instead).
pub fn set_slow_paths_release(yes: bool) {
    SLOW_PATHS_RELEASE.store(yes, Ordering::Relaxed);
}

/// Do what is due in a slow path: give memory back, tell what a signal asked for.
pub fn do_periodic_work() {
    dump::write_pending_dump();
    // Caches that are being emptied may give many pages up: that is one slow path.
    if !SLOW_PATHS_RELEASE.load(Ordering::Relaxed) || front::is_emptying() {
        return;
    }
    if periodic() {
        background::maybe_start_thread(false);
    } else if is_owing() {
        release_owed();
    } else {
        return;
    }
    if is_idling() {
        // A program that is hardly busy would find all it needs in caches, and not come here again.
        front::back_off();
    }
}

/// Returns true if so much memory is free that misses of caches check the time.
#[inline]
pub fn is_idling() -> bool {
    IDLING.load(Ordering::Relaxed)
}

/// Give memory back if a period has passed; whether it had.
pub fn periodic() -> bool {
    let now = clock::coarse_nanoseconds();
    let last = LAST_PERIOD.load(Ordering::Relaxed);
    let due = now.wrapping_sub(last) >= PERIOD_NANOSECONDS
        && LAST_PERIOD
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
    if due {
        front::begin_round();
        release_periodically();
        system::collapse_early();
        telemetry::update();
    }
    due
}

fn release_periodically() {
    // Another thread is releasing memory already.
    let Some(_one) = RELEASING.try_lock() else {
        return;
    };
    let excess = HEAP.lock().excess();
    give_back_for_limit(excess);
    let plan = HEAP.lock().begin_periodic();
    let Some(plan) = plan else {
        return;
    };
    // What decays may be much after a pause: the slow paths that follow do their part.
    let stepwise = plan.decays && SLOW_PATHS_RELEASE.load(Ordering::Relaxed);
    let (step, part_step) = if stepwise {
        (plan.whole.min(STEP), plan.partial.min(PART_STEP))
    } else {
        (plan.whole, plan.partial)
    };
    let whole = release_whole(&system::release, step, plan.whole_most);
    let owed = remaining(plan.whole, step, whole);
    // No huge page is broken while whole ones are to go.
    let partial = if owed > 0 {
        0
    } else {
        release_parts(&system::release, part_step)
    };
    let owed_parts = if owed > 0 {
        plan.partial
    } else {
        remaining(plan.partial, part_step, partial)
    };
    OWED.store(owed, Ordering::Relaxed);
    OWED_PARTS.store(owed_parts, Ordering::Relaxed);
    let idling = {
        let mut heap = HEAP.lock();
        let _ = heap.end_periodic(&plan, whole, partial);
        heap.is_decaying(IDLE) || plan.decays && heap.spare().1 >= IDLE
    };
    // What the system does not take (locked memory) is no reason to come back soon.
    let refused = whole == 0 && step > 0 || partial == 0 && part_step > 0 && owed == 0;
    let idling = idling && !refused;
    IDLING.store(idling, Ordering::Relaxed);
    if !idling {
        front::end_backoff();
    }
    collapse();
}

/// Heap pages of `planned` left after a step; 0 if the step released fewer than it was to.
fn remaining(planned: u64, step: u64, done: u64) -> u64 {
    if done < step {
        0
    } else {
        planned.saturating_sub(done)
    }
}

/// Returns true if some of the memory that decayed in this period is left.
fn is_owing() -> bool {
    OWED.load(Ordering::Relaxed) + OWED_PARTS.load(Ordering::Relaxed) > 0
}

/// Give back the next step of it, unless it was needed meanwhile. `false` if somebody else gives back.
#[cold]
fn release_owed() -> bool {
    let Some(_one) = RELEASING.try_lock() else {
        return false;
    };
    let (spare, spare_parts) = HEAP.lock().spare();
    let owed = OWED.load(Ordering::Relaxed);
    if owed > 0 {
        let step = owed.min(STEP);
        let done = release_whole(&system::release, step, spare);
        OWED.store(remaining(owed, step, done), Ordering::Relaxed);
        return true;
    }
    let owed = OWED_PARTS.load(Ordering::Relaxed).min(spare_parts);
    let step = owed.min(PART_STEP);
    // Whole huge pages that became free meanwhile are first to go.
    let mut done = release_whole(&system::release, step, spare);
    if done < step && !HEAP.lock().is_decaying(1) {
        done += release_parts(&system::release, step - done);
    }
    OWED_PARTS.store(remaining(owed, step, done), Ordering::Relaxed);
    if done > 0 {
        HEAP.lock().note_early();
    }
    true
}

/// Do the periodic work if it is due, to its end; whether it was.
pub fn periodic_at_once() -> bool {
    let due = periodic();
    while is_owing() && release_owed() {}
    due
}

/// Have broken huge pages made whole whose memory is all there.
fn collapse() {
    let mut first = None;
    for _ in 0..Config::DEFAULT.collapses {
        let next = HEAP.lock().begin_collapse();
        let Some(address) = next.filter(|&address| first != Some(address)) else {
            break;
        };
        first = first.or(next);
        if system::collapse(address) {
            HEAP.lock().end_collapse(address);
        }
    }
}
