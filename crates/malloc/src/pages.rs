//! The page heap behind one lock.
//!
//! System calls about memory take the kernel microseconds to milliseconds, during which no other thread
//! waits for the heap's lock: the heap names a huge page under the lock, the calls are made without it, and the heap
//! notes what came of them. One thread gives memory back at a time ([`RELEASING`]), and one gets some
//! ([`GROWING`]). Only addresses are reserved under the lock, a gigabyte at a time.

use core::ops::Range;

use contigua_pageheap::{
    Allocated, Attempt, Config, Needed, PageHeap, Rank, Span, Statistics, Supply,
};

use crate::lock::{Guarded, Lock};
use crate::sizes::PAGE_BYTES;
use crate::system::{self, System};
use crate::{front, harden, sanitizer, sys, upkeep};

pub static HEAP: Guarded<PageHeap<System>> =
    Guarded::new(PageHeap::new(System::new(), Config::DEFAULT));
/// Held by who gives memory back, before the heap's lock. Memory on its way is unowned: a
/// request that would fail waits for it, and so does a fork.
pub static RELEASING: Guarded<()> = Guarded::new(());

/// Held by who makes memory usable, between the two. A request that needs memory waits for it, and then often
/// finds room in what was got.
static GROWING: Guarded<()> = Guarded::new(());

/// Retries of a refused request after memory was released: the release may change where the request
/// goes, and other threads may take the memory. Our choice.
const ATTEMPTS: u32 = 4;

/// Huge pages that the system may refuse to take (locked memory) before a release is over. Our choice.
const REFUSALS: u32 = 1000;

/// Pages as the page heap gave them.
pub struct Pages {
    /// Address of the first page.
    pub address: usize,
    /// Offsets of the bytes outside of which every byte is known to be zero.
    pub dirty: Range<usize>,
}

/// The locks, for the fork handlers, the outer one first.
pub fn locks() -> [&'static Lock; 3] {
    [&RELEASING.lock, &GROWING.lock, &HEAP.lock]
}

/// Use `config` from now on. Before the first allocation only.
/// Its addresses are unpredictable if `scattered`, and the kernel was not told otherwise.
pub fn configure(config: Config, scattered: bool) {
    let system = if scattered && !sys::is_layout_fixed() {
        System::scattered(sys::random(sys::Purpose::Layout, 0))
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
    upkeep::do_periodic_work();
    Some(Pages {
        address: found.span.address,
        dirty: found.dirty(),
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

/// [`supplied`] with its system calls as parameters: `back` and `release` get addresses and lengths
/// and return whether they succeeded.
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
            front::drain();
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
pub fn give_back_for_limit(pages: u64) -> u64 {
    let done = give_back(&system::release, pages);
    if done > 0 {
        HEAP.lock().count_for_limit(done);
    }
    done
}

/// Releases `pages` heap pages through `release`.
fn give_back(release: &impl Fn(usize, usize) -> bool, pages: u64) -> u64 {
    let whole = release_whole(release, pages, u64::MAX);
    whole + release_parts(release, pages.saturating_sub(whole))
}

/// Give pages back.
pub fn free(address: usize, count: usize) {
    harden::guard(address + count * PAGE_BYTES, false);
    let pages = (count + harden::guards()) as u32;
    sanitizer::freed(address, || count * PAGE_BYTES);
    let (freed, excess) = {
        let mut heap = HEAP.lock();
        let freed = heap.free(Span { address, pages });
        (freed, upkeep::excess(&heap))
    };
    if !freed {
        sys::die(format_args!(
            "pages at {address:#x} were freed and not in use: memory is corrupted"
        ));
    }
    upkeep::after_free(excess, count as u64);
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

/// Give back at least `bytes` now, or all that is free; how much it was.
pub fn release(bytes: usize) -> usize {
    release_through(system::release, bytes)
}

/// [`release`] with its system call as a parameter, which gets addresses and lengths and returns
/// whether it succeeded.
pub fn release_through(release: impl Fn(usize, usize) -> bool, bytes: usize) -> usize {
    let _one = RELEASING.lock();
    give_back(&release, bytes.div_ceil(PAGE_BYTES) as u64) as usize * PAGE_BYTES
}

/// Give back whole free huge pages until `least` heap pages are reached, but no more than `most`; returns
/// the number given back.
pub fn release_whole(release: &impl Fn(usize, usize) -> bool, least: u64, most: u64) -> u64 {
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
pub fn release_parts(release: &impl Fn(usize, usize) -> bool, most: u64) -> u64 {
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

/// Configuration of the page heap.
pub fn config() -> Config {
    *HEAP.lock().config()
}

/// Heap pages that are free and mapped.
pub fn free_mapped() -> u64 {
    HEAP.lock().free_mapped()
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
