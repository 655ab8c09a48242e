//! The page heap behind one lock, and the clock that makes it give memory back.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contigua_pageheap::{Config, PageHeap, Span, Statistics};

use crate::lock::{Guarded, Lock};
use crate::pagemap::PAGE_BYTES;
use crate::system::{self, System};
use crate::{sanitizer, sys};

/// How often the page heap may give memory back.
const PERIOD_NANOSECONDS: u64 = 1_000_000_000;

static HEAP: Guarded<PageHeap<System>> =
    Guarded::new(PageHeap::new(System::new(), Config::DEFAULT));
static LAST_PERIOD: AtomicU64 = AtomicU64::new(0);
static AMORTISED: AtomicBool = AtomicBool::new(true);

/// Pages as the page heap gave them.
pub struct Pages {
    /// Where they begin.
    pub address: usize,
    /// Whether they are known to be zero.
    pub zeroed: bool,
}

/// The lock, for the fork handlers.
pub fn lock() -> &'static Lock {
    &HEAP.lock
}

/// Use `config` from now on. Before the first allocation only.
/// Its addresses are unpredictable if `scattered`, and the kernel was not told otherwise.
pub fn configure(config: Config, scattered: bool) {
    let system = if scattered && !sys::is_layout_fixed() {
        System::scattered(sys::random(sys::Purpose::Layout))
    } else {
        System::new()
    };
    *HEAP.lock() = PageHeap::new(system, config);
}

/// `count` pages at a multiple of `align` pages.
pub fn allocate(count: usize, align: usize) -> Option<Pages> {
    let (count, align) = (u32::try_from(count).ok()?, u32::try_from(align).ok()?);
    let tried = HEAP.lock().try_allocate(count, align);
    let found = if let Some(found) = tried {
        found
    } else {
        // What is cached may be all that there is.
        crate::front::drain();
        HEAP.lock().allocate(count, align)?
    };
    sanitizer::allocated(found.span.address, || count as usize * PAGE_BYTES);
    amortise();
    Some(Pages {
        address: found.span.address,
        zeroed: found.zeroed,
    })
}

/// Give pages back.
pub fn free(address: usize, count: usize) {
    let pages = count as u32;
    sanitizer::freed(address, || count * PAGE_BYTES);
    if !HEAP.lock().free(Span { address, pages }) {
        sys::die(format_args!(
            "pages at {address:#x} were freed and not in use: memory is corrupted"
        ));
    }
    amortise();
}

/// Make a run longer where it is.
pub fn grow(address: usize, from: usize, to: usize) -> bool {
    let (Ok(pages), Ok(to)) = (u32::try_from(from), u32::try_from(to)) else {
        return false;
    };
    let grown = HEAP
        .lock()
        .grow_in_place(Span { address, pages }, to)
        .is_some();
    if grown {
        sanitizer::allocated(address, || to as usize * PAGE_BYTES);
    }
    grown
}

/// Make a run shorter; how many pages it has then.
pub fn shrink(address: usize, from: usize, to: usize) -> usize {
    let pages = from as u32;
    let mut heap = HEAP.lock();
    let now = heap
        .shrink_in_place(Span { address, pages }, to as u32)
        .pages as usize;
    sanitizer::freed(address + now * PAGE_BYTES, || (from - now) * PAGE_BYTES);
    now
}

/// Whether slow paths give memory back as time passes (a background thread may do it instead).
pub fn set_amortised(yes: bool) {
    AMORTISED.store(yes, Ordering::Relaxed);
}

/// Do what is due in a slow path: give memory back, tell what a signal asked for.
pub fn amortise() {
    crate::dump::occasion();
    if AMORTISED.load(Ordering::Relaxed) && periodic() {
        crate::background::consider(false);
    }
}

/// Give memory back if a period has passed; whether it had.
pub fn periodic() -> bool {
    let now = sys::coarse_nanoseconds();
    let last = LAST_PERIOD.load(Ordering::Relaxed);
    let due = now.wrapping_sub(last) >= PERIOD_NANOSECONDS
        && LAST_PERIOD
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
    if due {
        HEAP.lock().periodic();
        system::collapse_early();
        crate::telemetry::update();
    }
    due
}

/// Give back at least `bytes` now, or all that is free; how much it was.
pub fn release(bytes: usize) -> usize {
    HEAP.lock().release(bytes)
}

/// Set the soft and the hard limit.
pub fn set_limits(soft: u64, hard: u64) {
    HEAP.lock().set_limits(soft, hard);
}

/// Set the release rate in bytes per second and both intervals in nanoseconds.
pub fn set_policy(rate: u64, interval: u64, cache_interval: u64) {
    HEAP.lock().set_policy(rate, interval, cache_interval);
}

/// The page heap's figures.
pub fn statistics() -> Statistics {
    HEAP.lock().statistics()
}

/// The page heap's figures, unless its lock is held.
pub fn try_statistics() -> Option<Statistics> {
    HEAP.try_lock().map(|heap| heap.statistics())
}

/// Pages for `bytes`.
pub const fn pages_for(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES)
}
