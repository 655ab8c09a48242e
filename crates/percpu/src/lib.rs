//! Stacks of words, a set (a *slab*) for each CPU, through restartable sequences.
//!
//! The kernel promises that a thread which is preempted, migrated or hit by a signal inside a
//! registered sequence of instructions continues at an abort handler, so a sequence that ends in
//! one store is atomic on its CPU without a locked instruction. The C library registers the area
//! that kernel and thread share (since glibc 2.35, `__rseq_offset` and `__rseq_size`); this
//! crate never registers one itself.
//!
//! Each sequence reads `cpus` and `base` anew: while `cpus` is 0, no sequence passes, and after a
//! [`fence`] whoever set it owns all slabs.
//!
//! # Safety
//!
//! Of all sequences: [`Slabs`] holds what it says, for as long as anybody uses it; `area` is its `offset`; `class` is
//! a class of its slabs; items are not 0.

#![no_std]
#![allow(
    clippy::inline_always,
    reason = "an allocator's fast path is measured with them"
)]
#![allow(
    clippy::must_use_candidate,
    reason = "most are called for their effect"
)]

mod slab;

use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize};

#[cfg(not(miri))]
use contigua_syscalls::weak;

pub use slab::{SLAB_BYTES, SLAB_SHIFT, SLAB_WORDS, Slab, Stack, header_words};

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(miri, path = "none.rs")]
mod sequences;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("restartable sequences are written for x86-64 and aarch64");

pub use sequences::{cpu, open, pop, pop_all, push, push_all};

/// Values that each sequence reads. Sequences know where the fields lie.
#[derive(Debug)]
#[repr(C)]
pub struct Slabs {
    /// Address of the slab of CPU 0.
    pub base: AtomicUsize,
    /// CPUs that have a slab; 0 before initialization, and while the slabs are being drained.
    pub cpus: AtomicU32,
    /// Offset of a thread's shared area from its thread pointer ([`find`]); 0 if there is none.
    pub offset: AtomicIsize,
}

impl Slabs {
    /// None yet.
    #[allow(clippy::new_without_default, reason = "a static's")]
    pub const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            cpus: AtomicU32::new(0),
            offset: AtomicIsize::new(0),
        }
    }
}

/// Offset of the areas that the C library registers; 0 if it registers none, and under Miri.
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

/// Abort the restartable sequences that any thread of the process is in. `false` if the kernel
/// cannot.
pub fn fence() -> bool {
    const PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
    const REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;
    let call = |command: i32| {
        // SAFETY: membarrier touches no memory of the caller's.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    call(PRIVATE_EXPEDITED_RSEQ)
        || (call(REGISTER_PRIVATE_EXPEDITED_RSEQ) && call(PRIVATE_EXPEDITED_RSEQ))
}
