//! The front end: caches of CPUs, and of threads where there are no restartable sequences.
//!
//! An allocation takes the object on top of its CPU's stack, a free puts one there; neither uses a
//! lock, a locked instruction or memory of another CPU. What does not succeed comes here: an empty
//! stack is refilled with a batch from the transfer cache, a full one hands a batch over. A stack
//! that keeps missing is allowed to hold more, within a budget for each CPU; when that is spent,
//! other stacks of the CPU give some of theirs up.

mod backoff;
mod sparse;
mod threads;

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use contigua_percpu::{self as percpu, SLAB_BYTES, SLAB_SHIFT, Slab};

pub use backoff::{back_off, end_backoff, is_emptying};
pub use sparse::begin_round;
pub use threads::lock;
use threads::{DEAD, thread_slab};

use crate::classes::{CLASSES, COUNT, MAX_BATCH, STACKS};
use crate::lock;
use crate::pagemap::prefetch;
use crate::rseq::{self, HOT};
use crate::{
    central, harden, heap, panic_alloc, sampler, sanitizer, setup, sys, tls, transfer, upkeep,
};

/// CPUs that have a slab when slabs are not being drained.
static CPUS: AtomicU32 = AtomicU32::new(0);
/// Bytes that the stacks of a CPU, or of a thread, may hold.
static BUDGET: AtomicI32 = AtomicI32::new(2 << 20);
static THREAD_BUDGET: AtomicI32 = AtomicI32::new(512 << 10);
/// Of so many misses of a cache whose budget is spent, one takes room from another class for its own:
/// if each did, they would take it from each other. Our choice.
const STEAL: usize = 16;
/// Misses of caches of threads.
static MISSES: AtomicUsize = AtomicUsize::new(0);

/// Place where the calling thread caches objects at the moment.
#[derive(Clone, Copy)]
enum Place {
    Cpu(u32, Slab),
    Thread(Slab),
    Nowhere,
}

/// Set up per-CPU caches if the C library registered areas, for `cpus` CPUs.
pub fn start(cpus: u32, budget: Option<i32>, per_cpu: bool) {
    if let Some(budget) = budget {
        BUDGET.store(budget, Ordering::Relaxed);
        THREAD_BUDGET.store((budget / 4).max(64 << 10), Ordering::Relaxed);
    }
    let offset = if per_cpu { percpu::find() } else { 0 };
    if offset == 0 {
        return;
    }
    let Some(base) = sys::map(cpus as usize * SLAB_BYTES) else {
        return;
    };
    HOT.slabs
        .base
        .store(base.as_ptr() as usize, Ordering::Relaxed);
    CPUS.store(cpus, Ordering::Relaxed);
    HOT.slabs.offset.store(offset, Ordering::Release);
    HOT.fast.store(offset, Ordering::Release);
    HOT.free.store(offset, Ordering::Release);
    harden::leave_fast_paths();
    HOT.slabs.cpus.store(cpus, Ordering::Release);
}

/// Returns true if caches belong to CPUs.
pub fn is_per_cpu() -> bool {
    CPUS.load(Ordering::Relaxed) != 0
}

fn cpu_slab(cpu: u32) -> Slab {
    let base = HOT.slabs.base.load(Ordering::Relaxed);
    // SAFETY: callers pass a CPU below `CPUS`, whose slabs `start` mapped. Needed because slabs
    // come from the system.
    unsafe { Slab::at(base + ((cpu as usize) << SLAB_SHIFT), &STACKS) }
}

fn place() -> Place {
    let cpus = CPUS.load(Ordering::Relaxed);
    if cpus != 0 {
        let cpu = rseq::cpu();
        if cpu < cpus {
            return if HOT.slabs.cpus.load(Ordering::Relaxed) == 0 {
                Place::Nowhere
            } else {
                Place::Cpu(cpu, cpu_slab(cpu))
            };
        }
    }
    thread_slab().map_or(Place::Nowhere, Place::Thread)
}

impl Place {
    fn pop(self, class: usize) -> Option<usize> {
        match self {
            Place::Cpu(..) => Some(rseq::pop(rseq::area(), class)).filter(|&item| item != 0),
            Place::Thread(slab) if slab.fails() => None,
            // SAFETY: a thread's slab is used by the thread only.
            Place::Thread(slab) => unsafe { slab.pop(class) },
            Place::Nowhere => None,
        }
    }

    fn push(self, class: usize, item: usize) -> bool {
        match self {
            Place::Cpu(..) => rseq::push(rseq::area(), class, item),
            // SAFETY: a thread's slab is used by the thread only.
            Place::Thread(slab) => unsafe { slab.push(class, item) },
            Place::Nowhere => false,
        }
    }

    fn pop_all(self, class: usize, out: &mut [usize]) -> usize {
        match self {
            Place::Cpu(..) => rseq::pop_all(class, out),
            _ => out
                .iter_mut()
                .map_while(|slot| self.pop(class).map(|item| *slot = item))
                .count(),
        }
    }

    fn push_all(self, class: usize, items: &[usize]) -> usize {
        match self {
            Place::Cpu(..) => rseq::push_all(class, items),
            _ => items
                .iter()
                .take_while(|&&item| self.push(class, item))
                .count(),
        }
    }

    /// Let the stack of `class` hold more if that is allowed; how much it may hold.
    fn grow(self, class: usize) -> usize {
        if backoff::is_on() {
            return match self {
                Place::Cpu(_, slab) | Place::Thread(slab) => slab.capacity(class),
                Place::Nowhere => 0,
            };
        }
        let (slab, budget) = match self {
            Place::Cpu(cpu, slab) => {
                if slab.begin(class) == 0 {
                    rseq::open(cpu, class, slab.empty_header(class));
                }
                (slab, BUDGET.load(Ordering::Relaxed))
            }
            Place::Thread(slab) => {
                if slab.begin(class) == 0 {
                    slab.header(class)
                        .store(slab.empty_header(class), Ordering::Relaxed);
                }
                (slab, THREAD_BUDGET.load(Ordering::Relaxed))
            }
            Place::Nowhere => return 0,
        };
        if slab.begin(class) == 0 {
            return 0;
        }
        let held = slab.held(class).load(Ordering::Relaxed);
        if held > 0 {
            slab.held(class).store(held - 1, Ordering::Relaxed);
        } else if slab.may_grow(class)
            && !slab.grow(class, budget)
            && slab.misses().load(Ordering::Relaxed).is_multiple_of(STEAL)
            && let Some(victim) = slab.shrink_next(class)
        {
            self.trim(slab, victim);
            slab.grow(class, budget);
        }
        slab.capacity(class)
    }

    /// Move objects above the capacity of `class` away.
    fn trim(self, slab: Slab, class: usize) {
        let mut buffer = [0; MAX_BATCH];
        let excess = slab.length(class).saturating_sub(slab.capacity(class));
        let count = self.pop_all(class, &mut buffer[..excess.min(MAX_BATCH)]);
        if count > 0 {
            transfer::give(class, &buffer[..count]);
        }
    }
}

/// An object of `class` from the CPU's cache; 0 if none is there.
#[inline(always)]
pub fn pop_cached(class: usize) -> usize {
    match rseq::fast_area() {
        0 => 0,
        area => rseq::pop(area, class),
    }
}

/// Like [`pop_cached`], but counts the allocation. 0 unless allocations are counted, and if this one
/// is a sample or the stack is empty.
#[inline(always)]
pub fn pop_cached_sampling(class: usize) -> usize {
    if !sampler::is_on() || sampler::small(class) {
        return 0;
    }
    match rseq::area() {
        0 => 0,
        area => rseq::pop(area, class),
    }
}

/// Take an object of `class` back, and write its canary.
///
/// # Safety
/// An object of the class begins at `item`, and nobody uses it.
#[inline(always)]
pub unsafe fn free(class: usize, item: usize) {
    let area = rseq::free_area();
    if area == 0 {
        free_generic(item, class);
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { heap::write_canary(item) };
    if !rseq::push(area, class, item) {
        overflow(item, class);
    }
}

/// Without restartable sequences nothing is lost by looking at the canary; at hardening level 2 it is wanted.
#[cold]
#[inline(never)]
extern "C" fn free_generic(item: usize, class: usize) {
    let (word, canary) = (item as *mut usize, heap::canary_of(item));
    // SAFETY: as in `free`.
    unsafe {
        if word.read() == canary && harden::checks_canaries() {
            heap::double(item);
        }
    }
    if harden::is_on() {
        harden::check(item, CLASSES[class].size as usize);
    }
    // SAFETY: as in `free`.
    unsafe { heap::set_free(item, CLASSES[class].size as usize) };
    let item = harden::quarantine_swap(class, item);
    if item != 0 {
        overflow(item, class);
    }
}

/// An object of `class` that is not at hand; 0 if there is no memory.
#[cold]
#[inline(never)]
pub fn refill(class: usize) -> usize {
    setup::ensure();
    let place = place();
    if let Some(item) = place.pop(class) {
        // A pop in 65,536 fails, for programs that always find an object.
        if upkeep::is_idling() && matches!(place, Place::Cpu(..)) && !harden::is_on() {
            sys::preserving_errno(upkeep::do_periodic_work);
        }
        return item;
    }
    sys::preserving_errno(|| {
        count_miss(place);
        let want = place
            .grow(class)
            .clamp(1, usize::from(CLASSES[class].batch));
        let mut buffer = [0; MAX_BATCH];
        let count = transfer::take(class, &mut buffer[..want]);
        if count == 0 {
            return 0;
        }
        let objects = &mut buffer[..count];
        objects.iter().copied().for_each(prefetch);
        // The highest address first, so that the lowest comes out first.
        objects.reverse();
        harden::shuffle(objects);
        let (last, others) = (objects[count - 1], &objects[..count - 1]);
        let pushed = place.push_all(class, others);
        if pushed < others.len() {
            transfer::give(class, &others[pushed..]);
        }
        last
    })
}

// The object first, as `free` gets it: it stays in its register.
#[cold]
#[inline(never)]
extern "C" fn overflow(item: usize, class: usize) {
    if panic_alloc::is_raised() {
        return;
    }
    setup::ensure();
    let place = place();
    if place.push(class, item) {
        return;
    }
    sys::preserving_errno(|| {
        count_miss(place);
        place.grow(class);
        if place.push(class, item) {
            return;
        }
        let mut buffer = [0; MAX_BATCH];
        buffer[0] = item;
        // At least the two that a push compares with.
        let batch = usize::from(CLASSES[class].batch).max(3);
        let count = 1 + place.pop_all(class, &mut buffer[1..batch]);
        if buffer[1..count].contains(&item) {
            heap::double(item);
        }
        transfer::give(class, &buffer[..count]);
    });
}

/// Empty the stack of `class` through `give`.
fn empty(place: Place, slab: Slab, class: usize, give: impl Fn(usize, &[usize])) {
    let mut buffer = [0; MAX_BATCH];
    while slab.length(class) > 0 {
        let count = place.pop_all(class, &mut buffer);
        if count == 0 {
            break;
        }
        give(class, &buffer[..count]);
    }
}

/// Programs that never reach the page heap must give memory back, too.
fn count_miss(place: Place) {
    let counter = match place {
        Place::Cpu(_, slab) => slab.misses(),
        _ => &MISSES,
    };
    // Not a locked addition: it would wait for the canaries of all objects that were freed last. Some
    // misses of other threads are not counted.
    let misses = counter.load(Ordering::Relaxed).wrapping_add(1);
    counter.store(misses, Ordering::Relaxed);
    if backoff::is_on() {
        backoff::count();
    }
    if let Place::Cpu(_, slab) | Place::Thread(slab) = place
        && sparse::left(slab) > 0
    {
        sparse::look(place, slab);
    }
    if misses.is_multiple_of(64) || upkeep::is_idling() {
        upkeep::do_periodic_work();
    }
}

/// Number of times that a cache had to be refilled or emptied.
pub fn misses() -> usize {
    (0..CPUS.load(Ordering::Relaxed))
        .map(misses_on)
        .fold(MISSES.load(Ordering::Relaxed), usize::wrapping_add)
}

/// Misses of the cache of a CPU.
pub fn misses_on(cpu: u32) -> usize {
    cpu_slab(cpu).misses().load(Ordering::Relaxed)
}

/// Empty a slab that nobody else uses.
fn drain_slab(slab: Slab) {
    let mut buffer = [0; MAX_BATCH];
    for class in 1..COUNT {
        let mut count = 0;
        // SAFETY: the caller has the slab alone.
        while let Some(item) = unsafe { slab.pop(class) } {
            sanitizer::acquire(item);
            buffer[count] = item;
            count += 1;
            if count == MAX_BATCH {
                transfer::give(class, &buffer);
                count = 0;
            }
        }
        if count > 0 {
            transfer::give(class, &buffer[..count]);
        }
    }
}

/// The thread that is draining, by its thread pointer, or 0.
static DRAINING: AtomicUsize = AtomicUsize::new(0);

/// Move what the caches of all CPUs, or of the calling thread, and the transfer caches hold back
/// into spans. If another thread does so already, this waits for it.
pub fn drain() {
    let own = tls::thread_pointer();
    let other = DRAINING
        .compare_exchange(0, own, Ordering::Acquire, Ordering::Acquire)
        .err();
    if let Some(mut other) = other {
        // This thread itself drains if that allocates; and it must not wait while it holds every
        // lock for a fork.
        while other != 0 && other != own && !lock::is_forking() {
            sys::yield_now();
            other = DRAINING.load(Ordering::Acquire);
        }
    } else {
        let cpus = CPUS.load(Ordering::Relaxed);
        if cpus != 0 {
            HOT.slabs.cpus.store(0, Ordering::SeqCst);
            if percpu::fence() {
                for cpu in 0..cpus {
                    drain_slab(cpu_slab(cpu));
                }
            }
            HOT.slabs.cpus.store(cpus, Ordering::SeqCst);
        }
        DRAINING.store(0, Ordering::Release);
    }
    if tls::get() > DEAD
        && let Some(slab) = thread_slab()
    {
        drain_slab(slab);
    }
    harden::end_quarantine();
    transfer::drain();
}

/// Bytes in caches of CPUs, in transfer caches, and in spans of small objects as a whole and free.
#[derive(Clone, Copy)]
pub struct Cached {
    /// In caches of CPUs.
    pub cpu: usize,
    /// In transfer caches.
    pub transfer: usize,
    /// Free in spans.
    pub central: usize,
    /// In spans, used or not.
    pub spans: usize,
}

impl Cached {
    /// Nothing.
    pub const NONE: Self = Self {
        cpu: 0,
        transfer: 0,
        central: 0,
        spans: 0,
    };

    /// Bytes in small objects that the program has (or that a thread caches).
    pub fn in_use(&self) -> usize {
        self.spans
            .saturating_sub(self.central + self.transfer + self.cpu)
    }
}

/// Count what is cached of `class`, without a lock: while others allocate, the counts need not be of
/// the same moment.
pub fn cached(class: usize) -> Cached {
    let (occupancy, transferable) = (central::occupancy(class), transfer::length(class));
    let known = &CLASSES[class];
    let size = known.size as usize;
    let cpu: usize = (0..CPUS.load(Ordering::Relaxed))
        .map(|cpu| cpu_slab(cpu).length(class))
        .sum();
    Cached {
        cpu: cpu * size,
        transfer: transferable * size,
        central: occupancy.free * size,
        spans: occupancy.spans * usize::from(known.objects) * size,
    }
}

/// Write the canaries of what the caches of CPUs hold. In the child of a fork whose memory was sent by its parent
/// ([`crate::primary`]), other threads of which went on: what they took from these caches meanwhile
/// is in them here, without its canary.
pub fn write_canaries() {
    harden::write_canaries();
    for cpu in 0..CPUS.load(Ordering::Relaxed) {
        let slab = cpu_slab(cpu);
        for (class, known) in CLASSES.iter().enumerate().skip(1) {
            for index in 0..slab.length(class) {
                // SAFETY: the child has one thread; what is on a stack is a free object.
                unsafe {
                    let item = slab.item(class, index);
                    heap::set_free(item, known.size as usize);
                }
            }
        }
    }
}

/// In the child of a fork: nobody is draining, and the slabs are whole.
pub fn after_fork() {
    let cpus = CPUS.load(Ordering::Relaxed);
    HOT.slabs.cpus.store(cpus, Ordering::Relaxed);
    DRAINING.store(0, Ordering::Relaxed);
    backoff::after_fork();
}
