//! The heap on the running machine.

use crate::os::{METADATA_ALIGN, Metadata, Os};
use core::ptr::{NonNull, null_mut};

/// Linux, through `mmap` and `madvise`.
#[derive(Debug, Default)]
pub struct Linux(());

impl Linux {
    /// The running system.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

/// An anonymous private mapping that is not accounted for, or nothing.
fn map(bytes: usize, protection: libc::c_int) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice changes nobody's memory.
    let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start as usize)
}

/// Gives addresses back that `map` gave.
fn unmap(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: only called on ends of a mapping that was just made and that nobody knows of.
        unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
    }
}

fn advise(address: usize, bytes: usize, advice: libc::c_int) -> bool {
    // SAFETY: the heap only passes ranges of what it reserved here, and gives back only what no
    // allocation lies in.
    unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) == 0 }
}

impl Os for Linux {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        const { assert!(METADATA_ALIGN <= 4096) };
        let start = map(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        let start = NonNull::new(start as *mut u8)?;
        // SAFETY: anonymous memory is zero, pages are aligned to more than a cache line, and the
        // mapping is new and never unmapped.
        Some(unsafe { Metadata::new(start, bytes) })
    }

    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let more = bytes.checked_add(align)?;
        let start = map(more, libc::PROT_NONE)?;
        let address = start.next_multiple_of(align);
        unmap(start, address - start);
        unmap(address + bytes, start + more - address - bytes);
        Some(address)
    }

    fn back(&mut self, address: usize, bytes: usize) -> bool {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is the heap's own reservation; access is only added.
        if unsafe { libc::mprotect(address as *mut libc::c_void, bytes, protection) } != 0 {
            return false;
        }
        // A kernel without transparent huge pages refuses, and small pages do as well.
        advise(address, bytes, libc::MADV_HUGEPAGE);
        true
    }

    fn release(&mut self, address: usize, bytes: usize) -> bool {
        advise(address, bytes, libc::MADV_DONTNEED)
    }

    fn collapse(&mut self, address: usize) -> bool {
        advise(address, crate::HUGE_BYTES, libc::MADV_COLLAPSE)
    }

    fn now(&self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to a live value. The coarse clock is a few milliseconds late and
        // several times as cheap, which suits epochs of a second.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}
