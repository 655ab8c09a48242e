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
#[cfg(not(miri))]
use crate::weak::weak;

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
    /// What the canaries of free objects are made with.
    pub key: AtomicUsize,
    /// `offset` as allocation's fast path sees it: 0 while allocations are counted for samples,
    /// so that each of them leaves that path, which need not ask.
    pub fast: AtomicIsize,
    /// `offset` as free's fast path sees it: 0 at hardening level 2.
    pub free: AtomicIsize,
}

/// The process's.
pub static HOT: Hot = Hot {
    base: AtomicUsize::new(0),
    cpus: AtomicU32::new(0),
    reserved: AtomicU32::new(0),
    offset: AtomicIsize::new(0),
    key: AtomicUsize::new(0),
    fast: AtomicIsize::new(0),
    free: AtomicIsize::new(0),
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

/// The same as free's fast path sees it: 0 at hardening level 2, too.
#[inline(always)]
pub fn free_area() -> isize {
    hot().free.load(Ordering::Relaxed)
}

/// The same as allocation's fast path sees it: 0 while allocations are counted for samples, too.
#[inline(always)]
pub fn fast_area() -> isize {
    hot().fast.load(Ordering::Relaxed)
}

/// Where the C library says that the areas are; 0 if it registers none, and under Miri.
pub fn find() -> isize {
    #[cfg(miri)]
    return 0;
    #[cfg(not(miri))]
    {
        let (offset, size) = (weak!("__rseq_offset"), weak!("__rseq_size"));
        // SAFETY: numbers of the C library's.
        unsafe {
            if offset.is_null() || size.is_null() || *size.cast::<u32>() < 16 {
                0
            } else {
                *offset.cast::<isize>()
            }
        }
    }
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

pub use sequences::{cpu, open};
#[cfg(not(contigua_sanitizer = "thread"))]
pub use sequences::{pop, pop_all, push, push_all};

#[cfg(contigua_sanitizer = "thread")]
pub use annotated::{pop, pop_all, push, push_all};

/// The sequences for ThreadSanitizer, which sees neither their accesses nor that the kernel orders
/// what runs on one CPU. Each object carries its own order: who takes it sees what who put it there
/// did, and nothing else.
#[cfg(contigua_sanitizer = "thread")]
mod annotated {
    use super::sequences;
    use crate::sanitizer::{acquire, release};

    pub fn pop(area: isize, class: usize) -> usize {
        let item = sequences::pop(area, class);
        acquire(item);
        item
    }

    pub fn push(area: isize, class: usize, item: usize) -> bool {
        release(item);
        sequences::push(area, class, item)
    }

    pub fn push_all(class: usize, items: &[usize]) -> usize {
        items.iter().copied().for_each(release);
        sequences::push_all(class, items)
    }

    pub fn pop_all(class: usize, out: &mut [usize]) -> usize {
        let count = sequences::pop_all(class, out);
        out[..count].iter().copied().for_each(acquire);
        count
    }
}
