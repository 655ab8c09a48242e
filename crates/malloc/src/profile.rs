//! The sampled heap profile: which call stacks have the memory, and which allocated how much.
//!
//! Samples are taken at points of a Poisson process over allocated bytes, one in `rate` bytes on
//! average: each thread draws an exponentially distributed distance and counts it down. Such
//! distances have no memory, so threads may count apart from each other. An allocation of `s`
//! bytes is hit with probability `1 - exp(-s / rate)`, and a hit stands for the inverse of that
//! many allocations, which makes every sum unbiased.
//!
//! **What it costs.** A process without a profile pays nothing: the fast path of an allocation
//! is left through a test that it makes anyway (`rseq::Hot::fast`), and only then somebody asks
//! whether allocations are counted. A sampled small object gets pages of its own, as if it were
//! large. So the free of an object that is not sampled asks nothing either, and the free of one
//! that is finds its stack at the span of its pages.
//!
//! Stacks are in a table that only grows (`table`), so that nobody needs a lock, a fork finds it
//! whole, and a profile can be written (`pprof`) while others allocate.

mod math;
mod pprof;
mod stream;
mod table;
mod unwind;

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::classes::{CLASSES, COUNT, Class};
use crate::files::{self, FileName};
use crate::lock::Guarded;
use crate::near::near;
use crate::rseq::HOT;
use crate::sizes::PAGE_BYTES;
use crate::span::Span;
use crate::{dump, front, harden, heap, sys, tls};
pub use table::Stack;

/// Frames that a stack keeps.
const DEPTH: usize = 64;
/// In the thread's word: it has drawn its first distance.
const STARTED: usize = 1;
/// In the thread's word: it is taking a sample; what that allocates is not sampled.
const BUSY: usize = 2;

/// Mean bytes between samples; 0: no profile.
static RATE: AtomicU64 = AtomicU64::new(0);
/// State of the generator of random numbers.
static SEED: AtomicU64 = AtomicU64::new(0);
/// Where the environment wants profiles, and the process that it said so to.
static FILE: Guarded<Option<FileName>> = Guarded::new(None);
static OWNER: AtomicI32 = AtomicI32::new(0);
static WRITING: AtomicBool = AtomicBool::new(false);

/// Why no profile was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The process takes no samples, or the environment names no file.
    Off,
    /// Another thread is writing one.
    Busy,
    /// The system's error number.
    System(i32),
}

impl core::fmt::Display for Error {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::Off => out.write_str(
                "no heap profile: set CONTIGUA_MALLOC_PROFILE=FILE in the environment of the process",
            ),
            Error::Busy => out.write_str("another thread is writing a heap profile; try again"),
            Error::System(libc::EEXIST) => out.write_str(
                "the heap profile is not written: its name is that of something else than a regular file",
            ),
            Error::System(number) => write!(out, "the heap profile cannot be written: error {number}"),
        }
    }
}

impl core::error::Error for Error {}

/// The lock of the file's name, for the fork handlers.
pub fn lock() -> &'static crate::lock::Lock {
    &FILE.lock
}

/// Whether allocations are counted.
#[inline(always)]
pub fn is_on() -> bool {
    near!(RATE: AtomicU64).load(Ordering::Relaxed) != 0
}

/// Begin to count, once the allocator works.
pub fn start(rate: u64, file: Option<FileName>) {
    SEED.store(sys::random(sys::Purpose::Samples), Ordering::Relaxed);
    *FILE.lock() = file;
    OWNER.store(sys::process(), Ordering::Relaxed);
    // The unwinder resolves its symbols and initialises itself now, not inside of an allocation
    // that somebody makes under who knows which lock.
    let thread = tls::thread();
    // SAFETY: the thread's own words.
    let sampling = unsafe { &(*thread).sampling };
    sampling.store(BUSY, Ordering::Relaxed);
    unwind::capture(&mut [0; DEPTH]);
    sampling.store(0, Ordering::Relaxed);
    RATE.store(rate, Ordering::Relaxed);
    HOT.fast.store(0, Ordering::Relaxed);
}

/// In the child of a fork: nobody is writing.
pub fn after_fork() {
    WRITING.store(false, Ordering::Relaxed);
}

/// A distance to the next sample, in bytes.
fn draw(rate: u64) -> i64 {
    // Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014), figure 17.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut random = SEED.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
    random = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    random ^= random >> 31;
    let uniform = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-math::ln(uniform) * rate as f64) as i64
}

/// Count a small object of `class` that is about to be allocated; whether it may be one to sample.
#[inline(always)]
pub fn small(class: usize) -> bool {
    debug_assert!(class < COUNT);
    let classes = near!(CLASSES: [Class; COUNT]);
    // SAFETY: callers pass a class. Needed because the check would be a tenth of what counting
    // costs.
    let size = unsafe { classes.get_unchecked(class) }.size;
    tls::spend(size as usize)
}

/// Whether the thread has to take a sample.
pub fn is_due() -> bool {
    // SAFETY: the thread's own words.
    is_on() && unsafe { &(*tls::thread()).left }.load(Ordering::Relaxed) < 0
}

/// Functions that allocations go through, from outside to inside: the frames that a profile does not
/// show. None is `#[inline]`: such a function has an address in each part of the program that calls
/// it. What may be inlined into its callers whole has no frame.
fn allocators() -> [usize; 11] {
    type Address = *const ();
    [
        heap::reallocate as Address,
        heap::allocate_zeroed as Address,
        heap::allocate_aligned as Address,
        heap::allocate as Address,
        heap::allocate_slowly as Address,
        harden::allocate as Address,
        harden::reallocate as Address,
        heap::missed as Address,
        front::missed as Address,
        sample_small as Address,
        sample as Address,
    ]
    .map(|function| function as usize)
}

/// Allocate a small object of `class` that `small` found, if it is one to sample; else 0.
#[inline(never)]
pub fn sample_small(class: usize) -> usize {
    let bytes = CLASSES[class].size as usize;
    sys::preserving_errno(|| {
        sample(bytes).map_or(0, |stack| {
            let count = bytes.div_ceil(PAGE_BYTES);
            heap::map_large(count, 1, Some(stack)).0 as usize
        })
    })
}

/// Count a large object of `bytes` that is about to be allocated; its stack if it is one to
/// sample.
pub fn large(bytes: usize) -> Option<&'static Stack> {
    if is_on() && tls::spend(bytes) {
        sample(bytes)
    } else {
        None
    }
}

/// The calling stack, if the thread may take a sample and its distance is over.
#[cold]
#[inline(never)]
fn sample(bytes: usize) -> Option<&'static Stack> {
    // SAFETY: the thread's own words.
    let thread = unsafe { &*tls::thread() };
    let sampling = thread.sampling.load(Ordering::Relaxed);
    if sampling & BUSY != 0 {
        return None;
    }
    let rate = RATE.load(Ordering::Relaxed);
    if sampling & STARTED == 0 {
        thread.sampling.store(STARTED, Ordering::Relaxed);
        let left = thread.left.load(Ordering::Relaxed);
        let left = left.saturating_add(draw(rate));
        thread.left.store(left, Ordering::Relaxed);
        if left >= 0 {
            return None;
        }
    }
    thread.sampling.store(STARTED | BUSY, Ordering::Relaxed);
    let mut frames = [0; DEPTH];
    let depth = unwind::capture(&mut frames);
    let stack = table::find(&frames[..depth], bytes);
    thread.left.store(draw(rate), Ordering::Relaxed);
    dump::occasion();
    thread.sampling.store(STARTED, Ordering::Relaxed);
    stack
}

/// A sampled object has been allocated at `span`, which nobody else knows yet.
///
/// # Safety
/// `span` is the span of a large object, and the caller's alone.
pub unsafe fn keep(span: NonNull<Span>, stack: Option<&'static Stack>) {
    if let Some(stack) = stack {
        stack.allocated.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller has the span alone.
        unsafe { (*span.as_ptr()).previous = (&raw const *stack).cast_mut().cast() };
    }
}

/// The large object at `span` goes away.
///
/// # Safety
/// As [`keep`].
pub unsafe fn drop(span: NonNull<Span>) {
    // SAFETY: the caller has the span alone; `keep` wrote null or a stack, which lives for ever.
    unsafe {
        let stack = (*span.as_ptr()).previous.cast::<Stack>();
        if let Some(stack) = stack.as_ref() {
            stack.freed.fetch_add(1, Ordering::Relaxed);
            (*span.as_ptr()).previous = core::ptr::null_mut();
        }
    }
}

/// The large object at `span` now has `bytes`: as if it had been freed and allocated again, so
/// that what grows in place is seen, too.
///
/// # Safety
/// As [`keep`].
pub unsafe fn resize(span: NonNull<Span>, bytes: usize) {
    if is_on() {
        // SAFETY: the caller's promise.
        unsafe {
            drop(span);
            keep(span, large(bytes));
        }
    }
}

/// Write the profile to `path`, or where the environment says.
pub fn write(path: Option<&CStr>) -> Result<(), Error> {
    if !is_on() {
        return Err(Error::Off);
    }
    let mut name = sys::Line::<{ FileName::EXPANDED }>::new();
    let path = if let Some(path) = path {
        path
    } else {
        let own = OWNER.load(Ordering::Relaxed) == sys::process();
        let file = (*FILE.lock()).ok_or(Error::Off)?;
        file.expand(&mut name, own).ok_or(Error::Off)?
    };
    if WRITING.swap(true, Ordering::Acquire) {
        return Err(Error::Busy);
    }
    let rate = RATE.load(Ordering::Relaxed);
    let result = sys::preserving_errno(|| files::replace(path, |file| pprof::write(file, rate)));
    WRITING.store(false, Ordering::Release);
    result.map_err(Error::System)
}

/// Write the profile where the environment says; say so if that fails.
pub fn write_to_environment() {
    match write(None) {
        // Who is writing one writes what was wanted.
        Ok(()) | Err(Error::Off | Error::Busy) => {}
        Err(error) => sys::message(format_args!("CONTIGUA_MALLOC_PROFILE: {error}")),
    }
}

/// At the end of the process.
#[cfg(not(test))]
pub fn at_exit() {
    if is_on() {
        write_to_environment();
    }
}
