//! The page heap behind one lock, and the clock that makes it give memory back.
//!
//! System calls about memory take the kernel microseconds to milliseconds, during which no other thread
//! waits for the heap's lock: the heap names a huge page under the lock, the calls are made without it, and the heap
//! notes what came of them. One thread gives memory back at a time ([`RELEASING`]), and one gets some
//! ([`GROWING`]). Only addresses are reserved under the lock, a gigabyte at a time.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contigua_pageheap::{
    Allocated, Attempt, Config, Needed, PageHeap, Rank, Span, Statistics, Supply,
};

use crate::lock::{Guarded, Lock};
use crate::pagemap::PAGE_BYTES;
use crate::system::{self, System};
use crate::{harden, sanitizer, sys};

/// How often the page heap may give memory back.
const PERIOD_NANOSECONDS: u64 = 1_000_000_000;

static HEAP: Guarded<PageHeap<System>> =
    Guarded::new(PageHeap::new(System::new(), Config::DEFAULT));
/// Held by who gives memory back, before the heap's lock. Memory on its way is unowned: a
/// request that would fail waits for it, and so does a fork.
static RELEASING: Guarded<()> = Guarded::new(());

/// Held by who makes memory usable, between the two. A request that needs memory waits for it, and then often
/// finds room in what was got.
static GROWING: Guarded<()> = Guarded::new(());

/// How often a request that was refused is tried again after memory went back: what makes room may change
/// where the request goes, and others may take it. Our choice.
const ATTEMPTS: u32 = 4;

/// Huge pages that the system may refuse to take (locked memory) before a release is over. Our choice.
const REFUSALS: u32 = 1000;

/// Heap pages of whole free huge pages that one slow path gives back of what decayed, 64 MB: a fraction of
/// a millisecond. Our choice.
const STEP: u64 = (64 << 20) / PAGE_BYTES as u64;
/// The same of parts of huge pages, 4 MB: each may take a call of its own.
const PART_STEP: u64 = (4 << 20) / PAGE_BYTES as u64;
/// Heap pages of surplus from which on it is worth a slow path, 8 MB. Our choice.
const SURPLUS: u64 = (8 << 20) / PAGE_BYTES as u64;
/// Heap pages that decay from which on every miss of a cache looks whether a period has
/// passed: a program that is done with its memory has few. Our choice: 8 MB.
const IDLE: u64 = (8 << 20) / PAGE_BYTES as u64;

/// Heap pages of whole free huge pages that a program which frees much at once keeps for the moment, 128 MB. Our
/// choice.
const KEPT: u64 = (128 << 20) / PAGE_BYTES as u64;

/// Whether as much is free.
static IDLING: AtomicBool = AtomicBool::new(false);
/// Heap pages of whole free huge pages, and then of others, that the next slow paths are to give back.
static OWED: AtomicU64 = AtomicU64::new(0);
static OWED_PARTS: AtomicU64 = AtomicU64::new(0);
static LAST_PERIOD: AtomicU64 = AtomicU64::new(0);
static AMORTISED: AtomicBool = AtomicBool::new(true);

/// Pages as the page heap gave them.
pub struct Pages {
    /// Where they begin.
    pub address: usize,
    /// Whether they are known to be zero.
    pub zeroed: bool,
}

/// The locks, for the fork handlers, the outer one first.
pub fn locks() -> [&'static Lock; 3] {
    [&RELEASING.lock, &GROWING.lock, &HEAP.lock]
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
    let guarded = u32::try_from(count + harden::guards()).ok()?;
    let (count, align) = (guarded, u32::try_from(align).ok()?);
    let tried = attempt(count, align);
    let found = match tried.allocated {
        Some(found) => found,
        None => make_room(count, align, tried.excess)?,
    };
    if tried.excess > 0 {
        keep_limit();
    }
    let bytes = (count as usize - harden::guards()) * PAGE_BYTES;
    sanitizer::allocated(found.span.address, || bytes);
    harden::guard(found.span.address + bytes, true);
    amortise();
    Some(Pages {
        address: found.span.address,
        zeroed: found.zeroed,
    })
}

/// A request as things are, with memory from the system if it needs some.
fn attempt(count: u32, align: u32) -> Attempt {
    supplied(|heap, supply| heap.try_allocate(count, align, supply))
}

/// Do something with the heap for which memory may have to be made usable first.
fn supplied<R>(act: impl Fn(&mut PageHeap<System>, Supply) -> Result<R, Needed>) -> R {
    supplied_through(act, system::back, system::release)
}

/// The same through `back` and `release`, which get addresses and lengths and say whether they did so.
pub fn supplied_through<R>(
    act: impl Fn(&mut PageHeap<System>, Supply) -> Result<R, Needed>,
    back: impl Fn(usize, usize) -> bool,
    release: impl Fn(usize, usize) -> bool,
) -> R {
    let first = act(&mut HEAP.lock(), Supply::Deferred);
    if let Ok(done) = first {
        return done;
    }
    let _one = GROWING.lock();
    let mut supply = Supply::Deferred;
    let mut arrived = None;
    loop {
        let mut arrival = {
            let mut heap = HEAP.lock();
            if let Some(arrival) = arrived.take() {
                supply = heap.end_arrival(arrival);
            }
            match act(&mut heap, supply) {
                Ok(done) => return done,
                Err(needed) => heap.begin_arrival(needed, supply),
            }
        };
        loop {
            let goes_on = HEAP.lock().advance(&mut arrival);
            if !goes_on {
                break;
            }
            arrival.work(&back, &release);
        }
        arrived = Some(arrival);
    }
}

/// Serve a request that was refused by giving back `excess` heap pages of free memory, and what caches
/// hold.
#[cold]
fn make_room(count: u32, align: u32, mut excess: u64) -> Option<Allocated> {
    for drained in [false, true] {
        if drained {
            // What is cached may be all that there is.
            crate::front::drain();
        }
        for _ in 0..ATTEMPTS {
            let tried = {
                let _one = RELEASING.lock();
                if give_back_for_limit(excess) == 0 && !drained {
                    break;
                }
                attempt(count, align)
            };
            if tried.allocated.is_some() {
                return tried.allocated;
            }
            excess = tried.excess;
            if excess == 0 {
                break;
            }
        }
    }
    // Others may have taken what went back. Nothing leaves now, and all else waits.
    let _one = RELEASING.lock();
    let mut tried = attempt(count, align);
    for _ in 0..ATTEMPTS {
        if tried.allocated.is_some() || give_back_for_limit(tried.excess) == 0 {
            break;
        }
        tried = attempt(count, align);
    }
    if tried.allocated.is_none() {
        HEAP.lock().count_failure(tried.limited);
    }
    tried.allocated
}

/// Give memory back that is above a limit, unless somebody gives back some already.
fn keep_limit() {
    if let Some(_one) = RELEASING.try_lock() {
        let excess = HEAP.lock().excess();
        give_back_for_limit(excess);
    }
}

/// Give back `pages` heap pages, or all that are free; how many. The caller has [`RELEASING`].
fn give_back_for_limit(pages: u64) -> u64 {
    let done = give_back(&system::release, pages);
    if done > 0 {
        HEAP.lock().count_for_limit(done);
    }
    done
}

/// The same through `release`, whatever for.
fn give_back(release: &impl Fn(usize, usize) -> bool, pages: u64) -> u64 {
    let whole = release_whole(release, pages, u64::MAX);
    whole + release_parts(release, pages.saturating_sub(whole))
}

/// Give pages back.
pub fn free(address: usize, count: usize) {
    harden::guard(address + count * PAGE_BYTES, false);
    let pages = (count + harden::guards()) as u32;
    sanitizer::freed(address, || count * PAGE_BYTES);
    let (freed, idling, surplus) = {
        let mut heap = HEAP.lock();
        let freed = heap.free(Span { address, pages });
        let idling = heap.is_decaying(IDLE);
        (freed, idling, if idling { heap.surplus(KEPT) } else { 0 })
    };
    if idling && !IDLING.load(Ordering::Relaxed) {
        IDLING.store(true, Ordering::Relaxed);
    }
    if !freed {
        sys::die(format_args!(
            "pages at {address:#x} were freed and not in use: memory is corrupted"
        ));
    }
    if surplus < SURPLUS || !release_surplus(surplus.min(STEP.max(count as u64))) {
        amortise();
    }
}

/// Give back heap pages of which a program that shrinks has too many: it may be idle from now on, and come to
/// no slow path. `false` if others do that.
#[cold]
fn release_surplus(pages: u64) -> bool {
    if !AMORTISED.load(Ordering::Relaxed) || crate::front::is_emptying() {
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

/// Make a run longer where it is.
pub fn grow(address: usize, from: usize, to: usize) -> bool {
    let (Ok(pages), Ok(to)) = (u32::try_from(from), u32::try_from(to)) else {
        return false;
    };
    let span = Span { address, pages };
    let grown = supplied(|heap, supply| heap.try_grow(span, to, supply)).is_some();
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
    // Caches that are being emptied may give many pages up: that is one slow path.
    if !AMORTISED.load(Ordering::Relaxed) || crate::front::is_emptying() {
        return;
    }
    if periodic() {
        crate::background::consider(false);
    } else if is_owing() {
        release_owed();
    } else {
        return;
    }
    if is_idling() {
        // A program that is hardly busy would find all it needs in caches, and not come here again.
        crate::front::rest();
    }
}

/// Whether so much memory is free that misses of caches are an occasion to look at the time.
#[inline]
pub fn is_idling() -> bool {
    IDLING.load(Ordering::Relaxed)
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
        release_periodically();
        system::collapse_early();
        crate::telemetry::update();
    }
    due
}

/// Give back at least `bytes` now, or all that is free; how much it was.
pub fn release(bytes: usize) -> usize {
    release_through(system::release, bytes)
}

/// The same through `release`, which gets addresses and lengths and says whether they went.
pub fn release_through(release: impl Fn(usize, usize) -> bool, bytes: usize) -> usize {
    let _one = RELEASING.lock();
    give_back(&release, bytes.div_ceil(PAGE_BYTES) as u64) as usize * PAGE_BYTES
}

fn release_periodically() {
    // Somebody else is at it, and gives back what he was asked for.
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
    let stepwise = plan.decays && AMORTISED.load(Ordering::Relaxed);
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
        crate::front::wake();
    }
    collapse();
}

/// What is left of `planned` heap pages after a step; nothing if the step did not give as many back.
fn remaining(planned: u64, step: u64, done: u64) -> u64 {
    if done < step {
        0
    } else {
        planned.saturating_sub(done)
    }
}

/// Whether something is left of what decayed in this period.
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

/// Give back whole free huge pages until `least` heap pages are reached, but no more than `most`; how
/// many it were.
fn release_whole(release: &impl Fn(usize, usize) -> bool, least: u64, most: u64) -> u64 {
    let mut done = 0;
    while done < least {
        let leaving = HEAP.lock().begin_whole(most - done);
        let Some(mut leaving) = leaving else {
            break;
        };
        leaving.give(release);
        let step = HEAP.lock().end_release(leaving);
        if step == 0 {
            break;
        }
        done += step;
    }
    done
}

/// Give back `most` free heap pages of partly used huge pages, or all there are; returns the number given back.
fn release_parts(release: &impl Fn(usize, usize) -> bool, most: u64) -> u64 {
    let mut done = 0;
    let mut refused: Option<Rank> = None;
    let mut refusals = 0;
    while done < most && refusals < REFUSALS {
        let leaving = HEAP.lock().begin_part(most - done, refused);
        let Some(mut leaving) = leaving else {
            break;
        };
        let rank = leaving.rank();
        leaving.give(release);
        let step = HEAP.lock().end_release(leaving);
        if step == 0 {
            refused = Some(rank);
            refusals += 1;
        }
        done += step;
    }
    done
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

/// Set the soft and the hard limit.
pub fn set_limits(soft: u64, hard: u64) {
    let _one = RELEASING.lock();
    let excess = {
        let mut heap = HEAP.lock();
        heap.change_limits(soft, hard);
        heap.excess()
    };
    give_back_for_limit(excess);
}

/// Set the release rate in bytes per second and both intervals in nanoseconds.
/// From now on the rate alone decides, and nothing decays.
pub fn set_policy(rate: u64, interval: u64, cache_interval: u64) {
    let mut heap = HEAP.lock();
    heap.set_policy(rate, interval, cache_interval);
    heap.set_half_life(0);
}

/// Set the half-life of free memory in nanoseconds; 0: the rate alone decides.
pub fn set_half_life(half_life: u64) {
    HEAP.lock().set_half_life(half_life);
}

/// What the page heap was told.
pub fn config() -> Config {
    *HEAP.lock().config()
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
