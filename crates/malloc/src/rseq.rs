//! Per-CPU stacks of objects through restartable sequences.
//!
//! The kernel promises that a thread which is preempted, migrated or hit by a signal inside a
//! registered sequence of instructions continues at an abort handler, so a sequence that ends in
//! one store is atomic on its CPU without a locked instruction. The C library registers the area
//! that kernel and thread share (since glibc 2.35, `__rseq_offset` and `__rseq_size`); this
//! library never registers one itself.
//!
//! Each sequence reads `cpus` and `base` anew: while `cpus` is 0, no sequence passes, and after a
//! fence (`sys::fence_rseq`) whoever set it owns all slabs.

use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize, Ordering};

use crate::near::near;

/// What each operation reads, on one cache line.
#[repr(C, align(64))]
pub struct Hot {
    /// Where the slab of CPU 0 lies.
    pub base: AtomicUsize,
    /// CPUs that have a slab; 0 before initialisation, and while the slabs are being drained.
    pub cpus: AtomicU32,
    /// Not used.
    pub reserved: AtomicU32,
    /// Where a thread's shared area lies from its thread pointer; 0 if there is none.
    pub offset: AtomicIsize,
    /// What marks of freed objects are made with.
    pub key: AtomicUsize,
    /// `offset` as allocation's quick path sees it: 0 while allocations are counted for a profile,
    /// so that each of them leaves that path, which need not ask.
    pub quick: AtomicIsize,
}

/// The process's.
pub static HOT: Hot = Hot {
    base: AtomicUsize::new(0),
    cpus: AtomicU32::new(0),
    reserved: AtomicU32::new(0),
    offset: AtomicIsize::new(0),
    key: AtomicUsize::new(0),
    quick: AtomicIsize::new(0),
};

/// [`HOT`], by the short way.
#[inline(always)]
pub fn hot() -> &'static Hot {
    near!(HOT: Hot)
}

/// Where a thread's shared area lies from its thread pointer; 0 if there is none.
#[inline(always)]
pub fn area() -> isize {
    hot().offset.load(Ordering::Relaxed)
}

/// The same as allocation's quick path sees it: 0 while allocations are counted for a profile, too.
#[inline(always)]
pub fn quick_area() -> isize {
    hot().quick.load(Ordering::Relaxed)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[path = "rseq/x86_64.rs"]
mod sequences;
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[path = "rseq/aarch64.rs"]
mod sequences;
#[cfg(miri)]
#[path = "rseq/none.rs"]
mod sequences;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("contigua-malloc runs on x86-64 and aarch64");

pub use sequences::{cpu, find, open, pop, pop_all, push, push_all};
