//! The sampled heap profile: which call stacks have the memory, and which allocated how much.
//!
//! `sampler` says which allocations are samples. One of `s` bytes is hit with probability `1 - exp(-s / rate)`, and
//! a hit stands for the inverse of that many allocations, which makes every sum unbiased.
//!
//! A sampled small object gets pages of its own, as if it were large. So the free of an object that
//! is not sampled asks nothing, and the free of one that is finds its stack at the span of its pages.
//!
//! Stacks are in a table that only grows (`table`), so that nobody needs a lock, a fork finds it
//! whole, and a profile can be written (`text`) while others allocate.

mod table;
mod text;

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::files::{self, FileName};
use crate::lock::Guarded;
use crate::span::Span;
use crate::{dump, harden, heap, sampler, sys, unwind};
pub use table::Stack;

/// Frames that a stack keeps.
const DEPTH: usize = 64;

/// Mean bytes between samples; 0: no profile.
static RATE: AtomicU64 = AtomicU64::new(0);
/// File name of profiles from the environment, and the process that read it.
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

/// Mean bytes between samples; 0: the process takes none for a profile.
pub fn rate() -> u64 {
    RATE.load(Ordering::Relaxed)
}

/// Returns true if the process takes samples for a profile.
pub fn is_on() -> bool {
    rate() != 0
}

/// Keep the samples from now on.
pub fn start(rate: u64, file: Option<FileName>) {
    *FILE.lock() = file;
    OWNER.store(sys::process(), Ordering::Relaxed);
    RATE.store(rate, Ordering::Relaxed);
}

/// In the child of a fork: nobody is writing.
pub fn after_fork() {
    WRITING.store(false, Ordering::Relaxed);
}

/// Functions that allocations go through, from outside to inside: the frames that a profile does not
/// have where this library has no file of its own, by which readers hide its frames. None is
/// `#[inline]`: such a function has an address in each part of the program that calls it. What may be inlined into its callers whole has no frame.
fn allocators() -> [usize; 8] {
    type Address = *const ();
    [
        heap::reallocate as Address,
        heap::allocate_zeroed as Address,
        heap::allocate_aligned as Address,
        heap::allocate as Address,
        heap::allocate_generic as Address,
        harden::allocate as Address,
        harden::reallocate as Address,
        heap::refill_or_sample as Address,
    ]
    .map(|function| function as usize)
}

/// The calling stack, of an allocation of `bytes` that is a sample; `None` if there is no room for it.
#[inline(never)]
pub fn stack(bytes: usize) -> Option<&'static Stack> {
    let mut frames = [0; DEPTH];
    let depth = unwind::capture(&mut frames, &allocators());
    let stack = table::find(&frames[..depth], bytes);
    dump::write_pending_dump();
    stack
}

/// Count a large object of `bytes` that is about to be allocated; its stack if it is one to
/// sample.
pub fn large(bytes: usize) -> Option<&'static Stack> {
    if sampler::large(bytes) {
        sampler::of_large(bytes, || stack(bytes)).flatten()
    } else {
        None
    }
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
    let result = sys::preserving_errno(|| files::replace(path, |file| text::write(file, rate())));
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
