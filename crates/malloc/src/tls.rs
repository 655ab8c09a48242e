//! Four words for each thread, and who the thread is.
//!
//! The first word holds the thread's cache where there are no restartable sequences; the others
//! belong to samples, and to a panic of our own. They are declared in assembly, in the initial-exec model:
//! `std::thread_local!` would compile to a call that, for a library loaded with `dlopen`, may
//! allocate.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicI64, AtomicUsize};

global_asm!(
    ".pushsection .tbss.contigua_malloc_thread, \"awT\", @nobits",
    ".globl contigua_malloc_thread",
    ".hidden contigua_malloc_thread",
    ".type contigua_malloc_thread, %object",
    ".size contigua_malloc_thread, 32",
    ".balign 8",
    "contigua_malloc_thread:",
    ".zero 32",
    ".popsection",
);

/// State of each thread; zero at first. Atomics, because signal handlers may allocate.
#[repr(C)]
pub struct Thread {
    /// Its cache, where there are no restartable sequences.
    cache: usize,
    /// Charge left before the next sample; see `sampler`.
    pub left: AtomicI64,
    /// Bit 0: the thread began to count; bit 1: it is taking a sample.
    pub sampling: AtomicUsize,
    /// Locks of ours that it has.
    locks: usize,
}
const _: () = assert!(size_of::<Thread>() == 32);

/// A number that no other living thread of the process has.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads the thread control block's pointer to itself (x86-64 psABI) or the thread
    // register. Needed because the language has no allocation-free name of the current thread.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}

/// The calling thread's words. They live as long as the thread.
#[inline(always)]
pub fn thread() -> *mut Thread {
    let offset: usize;
    // SAFETY: reads the offset that the dynamic linker assigned to the symbol above. Needed
    // because initial-exec thread-locals are not in the stable language.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov {}, qword ptr [rip + contigua_malloc_thread@GOTTPOFF]",
            out(reg) offset,
            options(nostack, preserves_flags, readonly, pure)
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "adrp {0}, :gottprel:contigua_malloc_thread",
            "ldr {0}, [{0}, :gottprel_lo12:contigua_malloc_thread]",
            out(reg) offset,
            options(nostack, preserves_flags, readonly, pure)
        );
    }
    thread_pointer().wrapping_add(offset) as *mut Thread
}

/// The thread's first word, 0 at first.
#[inline(always)]
pub fn get() -> usize {
    // SAFETY: the word is the thread's own and lives as long as the thread.
    unsafe { (*thread()).cache }
}

/// Set the thread's first word.
pub fn set(value: usize) {
    // SAFETY: as in `get`.
    unsafe { (*thread()).cache = value }
}

/// Count a lock that the thread takes (1) or gives back (-1).
#[inline(always)]
pub fn count_lock(by: isize) {
    // SAFETY: as in `get`. A signal handler leaves the count as it was.
    unsafe { (*thread()).locks = (*thread()).locks.wrapping_add_signed(by) };
}

/// Returns true if the thread has one of our locks.
#[inline(always)]
pub fn has_lock() -> bool {
    // SAFETY: as in `get`.
    unsafe { (*thread()).locks > 0 }
}

/// Take a charge off what the thread has left; whether it has overdrawn.
#[inline(always)]
pub fn spend(charge: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes the thread's own second word (`Thread::left`) in one instruction. Needed
    // because on the path of a profiled allocation three instructions are half of what the
    // language makes of it.
    unsafe {
        asm!(
            "mov rcx, qword ptr [rip + contigua_malloc_thread@GOTTPOFF]",
            "sub qword ptr fs:[rcx + {left}], {charge}",
            "js {over}",
            left = const core::mem::offset_of!(Thread, left),
            charge = in(reg) charge,
            over = label { return true },
            out("rcx") _,
            options(nostack)
        );
        false
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use core::sync::atomic::Ordering;
        // SAFETY: the thread's own words.
        let left = unsafe { &(*thread()).left };
        let now = left
            .load(Ordering::Relaxed)
            .wrapping_sub(charge.cast_signed() as i64);
        left.store(now, Ordering::Relaxed);
        now < 0
    }
}
