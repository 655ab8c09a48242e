//! The caches of CPUs (`contigua_percpu`), what the fast paths read beside them, and what a sanitizer
//! must be told of them.

use core::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use contigua_percpu::{self as percpu, Slabs};

use crate::near::near;
use crate::sanitizer::{acquire, release};

/// Values that each operation reads, on one cache line.
#[repr(C, align(64))]
pub struct Hot {
    /// The caches.
    pub slabs: Slabs,
    /// Key of the canaries of free objects.
    pub key: AtomicUsize,
    /// `slabs.offset` as allocation's fast path sees it: 0 while allocations are counted for samples,
    /// so that each of them leaves that path, which need not ask.
    pub fast: AtomicIsize,
    /// `slabs.offset` as free's fast path sees it: 0 at hardening level 2.
    pub free: AtomicIsize,
}

/// The process's.
pub static HOT: Hot = Hot {
    slabs: Slabs::new(),
    key: AtomicUsize::new(0),
    fast: AtomicIsize::new(0),
    free: AtomicIsize::new(0),
};

/// [`HOT`], by the short way.
#[inline(always)]
pub fn hot() -> &'static Hot {
    near!(HOT: Hot)
}

/// Offset of a thread's shared area from its thread pointer; 0 if there is none.
#[inline(always)]
pub fn area() -> isize {
    hot().slabs.offset.load(Ordering::Relaxed)
}

/// [`area`] as free's fast path sees it: 0 at hardening level 2, too.
#[inline(always)]
pub fn free_area() -> isize {
    hot().free.load(Ordering::Relaxed)
}

/// [`area`] as allocation's fast path sees it: 0 while allocations are counted for samples, too.
#[inline(always)]
pub fn fast_area() -> isize {
    hot().fast.load(Ordering::Relaxed)
}

/// Pattern around an object: unpredictable, but never what programs write most: text, small
/// numbers, or all ones.
pub fn pattern() -> u8 {
    (HOT.key.load(Ordering::Relaxed) >> 16) as u8 & 0x7e | 0x80
}

// ThreadSanitizer sees neither the accesses of a sequence nor that the kernel orders what runs on one CPU. Each object
// carries its own order: who takes it sees what who put it there did, and nothing else.

/// Take the object on top of this CPU's stack; 0 if there is none.
#[inline(always)]
pub fn pop(area: isize, class: usize) -> usize {
    // SAFETY: `HOT` has the slabs that `front::start` mapped, with stacks of all classes; callers pass its area.
    let item = unsafe { percpu::pop(&hot().slabs, area, class) };
    acquire(item);
    item
}

/// Put an object on top of this CPU's stack; `false` if that is full, or the object is one of the two on its top.
#[inline(always)]
pub fn push(area: isize, class: usize, item: usize) -> bool {
    release(item);
    // SAFETY: as in `pop`.
    unsafe { percpu::push(&hot().slabs, area, class, item) }
}

/// Put as many of `items` on this CPU's stack as there is room for; returns the number put.
pub fn push_all(class: usize, items: &[usize]) -> usize {
    items.iter().copied().for_each(release);
    // SAFETY: as in `pop`.
    unsafe { percpu::push_all(&hot().slabs, class, items) }
}

/// Take up to `out.len()` objects from the top of this CPU's stack; returns the number taken.
pub fn pop_all(class: usize, out: &mut [usize]) -> usize {
    // SAFETY: as in `pop`.
    let count = unsafe { percpu::pop_all(&hot().slabs, class, out) };
    out[..count].iter().copied().for_each(acquire);
    count
}

/// The CPU that the thread runs on, or a very large number if the C library does not tell.
pub fn cpu() -> u32 {
    // SAFETY: as in `pop`.
    unsafe { percpu::cpu(&hot().slabs) }
}

/// Write the header of a class of `cpu`'s slab if it is still 0 and the thread runs there.
pub fn open(cpu: u32, class: usize, header: u64) {
    // SAFETY: as in `pop`.
    unsafe { percpu::open(&hot().slabs, cpu, class, header) }
}
