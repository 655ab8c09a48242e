//! The page heap's operating system: Linux, but for the first huge page.
//!
//! A process that needs less than 2 MB would occupy more with a huge page, and wait for the kernel to
//! clear it. So the first one gets base pages. With the second, at most half of the heap is unused, and
//! a huge page costs a fifth of what its base pages do (0.18 ms against 0.85 ms to touch 2 MB on a
//! virtual Zen 4). The first may then become huge, too, and the next periodic work makes it so.

use core::sync::atomic::{AtomicUsize, Ordering};

use contigua_pageheap::linux::Linux;
use contigua_pageheap::{HUGE_BYTES, Metadata, Os, RESERVE_ALIGN};

use crate::{clock, primary, sys};

/// The huge page that has base pages: 0 before there is one, [`OVER`] when the heap is larger.
static EARLY: AtomicUsize = AtomicUsize::new(0);
const OVER: usize = usize::MAX;
/// The huge page of [`EARLY`] once it may become huge; else 0.
static OUTGROWN: AtomicUsize = AtomicUsize::new(0);

fn advise(address: usize, bytes: usize, advice: libc::c_int) {
    // SAFETY: callers pass memory of the heap, and advice that keeps contents. Needed because
    // page sizes are the kernel's.
    unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) };
}

/// Make the early huge page huge, if the heap has outgrown it. Once.
pub fn collapse_early() {
    let address = OUTGROWN.load(Ordering::Relaxed);
    if address != 0 {
        OUTGROWN.store(0, Ordering::Relaxed);
        // A page that was given back meanwhile is left alone by the kernel: it has no memory.
        collapse(address);
    }
}

/// Make memory of the heap usable; whether it is. One thread at a time.
pub fn back(address: usize, bytes: usize) -> bool {
    System::new().back(address, bytes)
}

/// Give free memory of the heap back; whether it went.
pub fn release(address: usize, bytes: usize) -> bool {
    System::new().release(address, bytes)
}

/// Make 2 MB of the heap one huge page; whether they are.
pub fn collapse(address: usize) -> bool {
    System::new().collapse(address)
}

/// The running system.
pub struct System {
    linux: Linux,
    align: usize,
}

impl System {
    /// The running system.
    pub const fn new() -> Self {
        Self {
            linux: Linux::new(),
            align: RESERVE_ALIGN,
        }
    }

    /// The running system, with a heap that begins at one of 2^25.6 places that `random` chooses.
    ///
    /// The kernel's own choice has 28 bits of pages of 4 KB, of which alignment to 1 GB leaves 10.
    /// So we choose, in steps of a huge page and from most of the 47 bits that programs have: not
    /// the lowest, where old programs lie, nor the highest, where the kernel puts stacks and
    /// libraries. Sanitizers reserve most of the addresses for themselves.
    pub const fn scattered(random: u64) -> Self {
        const LOWEST: u64 = 1 << 36;
        const CHOICES: u64 = (96 << 40) / HUGE_BYTES as u64;
        if cfg!(any(
            contigua_sanitizer = "thread",
            contigua_sanitizer = "address"
        )) {
            return Self::new();
        }
        // The high half of a product: uniform but for 2^-38.
        let choice = ((random as u128 * CHOICES as u128) >> 64) as u64;
        Self {
            linux: Linux::beginning_at((LOWEST + choice * HUGE_BYTES as u64) as usize),
            align: HUGE_BYTES,
        }
    }
}

impl Os for System {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        self.linux.metadata(bytes)
    }

    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        // Whether the system would give that much was asked before, without the heap's lock.
        self.linux.addresses(bytes, align)
    }

    fn reserve_align(&self) -> usize {
        self.align
    }

    // One thread at a time, as [`back`] says.
    fn back(&mut self, address: usize, bytes: usize) -> bool {
        if primary::contains(address) {
            return primary::back(address, bytes);
        }
        if !self.linux.back(address, bytes) {
            return false;
        }
        let early = EARLY.load(Ordering::Relaxed);
        if early == OVER {
            return true;
        }
        if bytes == HUGE_BYTES && (early == 0 || early == address) {
            EARLY.store(address, Ordering::Relaxed);
            advise(address, bytes, libc::MADV_NOHUGEPAGE);
            return true;
        }
        EARLY.store(OVER, Ordering::Relaxed);
        if early != 0 {
            advise(early, HUGE_BYTES, libc::MADV_HUGEPAGE);
            OUTGROWN.store(early, Ordering::Relaxed);
        }
        true
    }

    /// Kernels with base pages of 16 or 64 KB, which aarch64 has, round the length up to whole
    /// ones: pieces that are none stay.
    fn release(&mut self, address: usize, bytes: usize) -> bool {
        (address | bytes).is_multiple_of(sys::page_bytes()) && self.linux.release(address, bytes)
    }

    fn release_zeroes(&self) -> bool {
        self.linux.release_zeroes()
    }

    fn collapse(&mut self, address: usize) -> bool {
        self.linux.collapse(address)
    }

    fn now(&self) -> u64 {
        clock::coarse_nanoseconds()
    }
}
