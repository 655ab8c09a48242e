//! The page heap's operating system: Linux, but for the first megabytes.
//!
//! A heap of a few megabytes gains nothing from huge pages: the second-level TLB of any current
//! core reaches that far with base pages (1,024 to 3,072 entries of 4 KB), and half-used huge pages
//! would double what a small program occupies. So the first [`EARLY_BYTES`] get base pages. When
//! the heap outgrows them they may become huge, too, and the next periodic work makes them so.

use core::sync::atomic::{AtomicBool, Ordering};

use contigua_pageheap::linux::Linux;
use contigua_pageheap::{HUGE_BYTES, Metadata, Os, RESERVE_ALIGN};

use crate::lock::Guarded;
use crate::{clock, primary, sys};

/// Bytes that are backed with base pages at first.
const EARLY_BYTES: usize = 8 << 20;
const EARLY_HUGE: usize = EARLY_BYTES / HUGE_BYTES;

/// The huge pages that were backed early, and whether that is over.
struct Early {
    addresses: [usize; EARLY_HUGE],
    count: usize,
    over: bool,
}

static EARLY: Guarded<Early> = Guarded::new(Early {
    addresses: [0; EARLY_HUGE],
    count: 0,
    over: false,
});
static OUTGROWN: AtomicBool = AtomicBool::new(false);

/// The lock, for the fork handlers.
pub fn lock() -> &'static crate::lock::Lock {
    &EARLY.lock
}

fn advise(address: usize, bytes: usize, advice: libc::c_int) {
    // SAFETY: callers pass memory of the heap, and advice that keeps contents. Needed because
    // page sizes are the kernel's.
    unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) };
}

/// Make the early huge pages huge, if the heap has outgrown them. Once.
pub fn collapse_early() {
    if !OUTGROWN.swap(false, Ordering::Relaxed) {
        return;
    }
    // They do not change any more, and the kernel takes its time: not under the lock.
    let (addresses, count) = {
        let early = EARLY.lock();
        (early.addresses, early.count)
    };
    for &address in &addresses[..count] {
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

    fn back(&mut self, address: usize, bytes: usize) -> bool {
        if primary::contains(address) {
            return primary::back(address, bytes);
        }
        if !self.linux.back(address, bytes) {
            return false;
        }
        let mut early = EARLY.lock();
        if early.over {
            return true;
        }
        let count = early.count;
        let known = early.addresses[..count].contains(&address);
        if bytes == HUGE_BYTES && (known || count < EARLY_HUGE) {
            if !known {
                early.addresses[count] = address;
                early.count += 1;
            }
            advise(address, bytes, libc::MADV_NOHUGEPAGE);
            return true;
        }
        early.over = true;
        for &address in &early.addresses[..count] {
            advise(address, HUGE_BYTES, libc::MADV_HUGEPAGE);
        }
        OUTGROWN.store(true, Ordering::Relaxed);
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
