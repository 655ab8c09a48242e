//! The heap on the running machine.

use crate::os::{METADATA_ALIGN, Metadata, Os};
use crate::{HUGE_BYTES, Primary};
use core::fmt;
use core::ptr::NonNull;

/// Reservations of more than this are tried out at once, see [`Linux::reserve`]. 1 GB, what the heap
/// asks at a time for all but larger requests.
const LARGE_BYTES: usize = 1 << 30;

/// Linux, through `mmap` and `madvise`.
#[derive(Debug, Default)]
pub struct Linux {
    /// Next address to ask for; 0: an address of the kernel's choice.
    next: usize,
}

impl Linux {
    /// The running system.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0 }
    }

    /// The running system, with reservations from `address` on as long as nobody else has the
    /// addresses, and then wherever the kernel likes.
    #[must_use]
    pub const fn beginning_at(address: usize) -> Self {
        Self { next: address }
    }

    /// `bytes` of addresses without access, aligned to `align`, where `next` says if they are free there.
    pub fn addresses(&mut self, bytes: usize, align: usize) -> Option<usize> {
        if let Some(wanted) = self.next.checked_next_multiple_of(align)
            && wanted != 0
        {
            self.next = 0;
            let start = map(wanted, bytes, libc::PROT_NONE, 0).ok()?;
            if start == wanted {
                self.next = start + bytes;
                return Some(start);
            }
            unmap(start, bytes);
        }
        let more = bytes.checked_add(align)?;
        let start = map(0, more, libc::PROT_NONE, 0).ok()?;
        let address = start.next_multiple_of(align);
        unmap(start, address - start);
        unmap(address + bytes, start + more - address - bytes);
        Some(address)
    }
}

/// Maps anonymous private memory at an unused address, at `wanted` if that is possible (0: wherever
/// the kernel likes), or says why not.
fn map(
    wanted: usize,
    bytes: usize,
    protection: libc::c_int,
    more: libc::c_int,
) -> Result<usize, i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more;
    let hint = wanted as *mut libc::c_void;
    // SAFETY: a new mapping without `MAP_FIXED` changes nobody's memory.
    let start = unsafe { libc::mmap(hint, bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        // SAFETY: glibc's and musl's pointer to this thread's number is always valid.
        Err(unsafe { *libc::__errno_location() })
    } else {
        Ok(start as usize)
    }
}

/// Gives back addresses that `map` gave.
fn unmap(address: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: only called on parts of a mapping that was just made and that nobody knows of.
        unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
    }
}

fn make_usable(address: usize, bytes: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the heap passes only what it reserved here; access is added, never taken away.
    unsafe { libc::mprotect(address as *mut libc::c_void, bytes, protection) == 0 }
}

fn advise(address: usize, bytes: usize, advice: libc::c_int) -> bool {
    // SAFETY: the heap passes only what it reserved here, and gives back only what no allocation
    // lies in.
    unsafe { libc::madvise(address as *mut libc::c_void, bytes, advice) == 0 }
}

impl Os for Linux {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        const { assert!(METADATA_ALIGN <= 4096) };
        let usable = libc::PROT_READ | libc::PROT_WRITE;
        // Much more is mapped than is ever touched, which must not count as memory.
        let start = map(0, bytes, usable, libc::MAP_NORESERVE).ok()?;
        let start = NonNull::new(start as *mut u8)?;
        // SAFETY: anonymous memory is zero, pages are aligned to more than a cache line, and the
        // mapping is new and never unmapped.
        Some(unsafe { Metadata::new(start, bytes) })
    }

    /// Addresses without access, which count against no limit but that of addresses (`RLIMIT_AS`).
    ///
    /// A reservation of more than 1 GB is for one allocation. The kernel refuses what is obviously
    /// more than the machine has (`vm.overcommit_memory`) only when memory becomes usable, and the
    /// heap would have made records for all of it by then; so it becomes usable here.
    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let address = self.addresses(bytes, align)?;
        if bytes > LARGE_BYTES && !make_usable(address, bytes) {
            unmap(address, bytes);
            return None;
        }
        Some(address)
    }

    fn back(&mut self, address: usize, bytes: usize) -> bool {
        if !make_usable(address, bytes) {
            return false;
        }
        // A kernel without transparent huge pages refuses, and small pages do as well.
        advise(address, bytes, libc::MADV_HUGEPAGE);
        true
    }

    fn release(&mut self, address: usize, bytes: usize) -> bool {
        advise(address, bytes, libc::MADV_DONTNEED)
    }

    /// Linux 6.1 and later; others refuse.
    fn collapse(&mut self, address: usize) -> bool {
        // The kernel's number, which not every C library's header has yet (musl's has not).
        const MADV_COLLAPSE: i32 = 25;
        advise(address, HUGE_BYTES, MADV_COLLAPSE)
    }

    /// The coarse clock: a few milliseconds late and several times as cheap, which suits epochs of
    /// a second.
    fn now(&self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is to a live value.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Page size of a primary region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryPages {
    /// `HugeTLB` pages of 1 GB, set aside with `hugepagesz=1G hugepages=N` when the machine starts.
    HugeTlb1G,
    /// `HugeTLB` pages of 2 MB, set aside in `/proc/sys/vm/nr_hugepages`.
    HugeTlb2M,
    /// Ordinary memory in a row, with transparent huge pages.
    Transparent,
}

impl PrimaryPages {
    /// Page size to use if there is none of this.
    const fn next(self) -> Option<Self> {
        match self {
            Self::HugeTlb1G => Some(Self::HugeTlb2M),
            Self::HugeTlb2M => Some(Self::Transparent),
            Self::Transparent => None,
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::HugeTlb1G => 1 << 30,
            Self::HugeTlb2M | Self::Transparent => HUGE_BYTES,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::HugeTlb1G => "1 GB HugeTLB pages",
            Self::HugeTlb2M => "2 MB HugeTLB pages",
            Self::Transparent => "transparent huge pages",
        }
    }

    fn map(self, bytes: usize) -> Result<usize, i32> {
        let usable = libc::PROT_READ | libc::PROT_WRITE;
        match self {
            // Without `MAP_NORESERVE`, the kernel promises the pages here or refuses here.
            Self::HugeTlb1G => map(0, bytes, usable, libc::MAP_HUGETLB | libc::MAP_HUGE_1GB),
            Self::HugeTlb2M => map(0, bytes, usable, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB),
            Self::Transparent => {
                let align = HUGE_BYTES;
                Linux::new().reserve(bytes, align).ok_or(libc::ENOMEM)
            }
        }
    }
}

/// A primary region that was asked for, and what became of it. Its text is one line for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrimaryOutcome {
    /// The page size that was requested.
    pub wanted: PrimaryPages,
    /// Bytes that were asked for, rounded up to whole pages of what was got.
    pub bytes: usize,
    /// The page size that was available, and the region for
    /// [`Config::primary`](crate::Config::primary); `None` if there is not even address space.
    pub got: Option<(PrimaryPages, Primary)>,
    /// The system's error number for what was asked for, or 0.
    pub error: i32,
}

impl fmt::Display for PrimaryOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.wanted.name();
        let mib = self.bytes >> 20;
        match self.got {
            Some((got, _)) if got == self.wanted => {
                write!(f, "primary region: {mib} MB of {wanted}")
            }
            Some((got, _)) => write!(
                f,
                "primary region: no {mib} MB of {wanted} (error {}), using {} instead; see \
                 /sys/kernel/mm/hugepages",
                self.error,
                got.name()
            ),
            None => write!(
                f,
                "primary region: no {mib} MB of {wanted} (error {}), nor of addresses; going on \
                 without",
                self.error
            ),
        }
    }
}

/// Reserves a primary region of at least `bytes` of the wanted pages, or of the next kind that there
/// is. `HugeTLB` memory is the process's from then on and never given back.
#[must_use]
pub fn reserve_primary(bytes: usize, wanted: PrimaryPages) -> PrimaryOutcome {
    let mut outcome = PrimaryOutcome {
        wanted,
        bytes,
        got: None,
        error: 0,
    };
    let mut pages = Some(wanted);
    while let Some(kind) = pages {
        let rounded = bytes.max(1).checked_next_multiple_of(kind.bytes());
        match rounded
            .ok_or(libc::ENOMEM)
            .and_then(|bytes| kind.map(bytes))
        {
            Ok(address) => {
                outcome.bytes = rounded.unwrap_or(bytes);
                let primary = Primary {
                    address,
                    bytes: outcome.bytes,
                    releasable: kind == PrimaryPages::Transparent,
                };
                outcome.got = Some((kind, primary));
                return outcome;
            }
            Err(error) if kind == wanted => outcome.error = error,
            Err(_) => {}
        }
        pages = kind.next();
    }
    outcome
}
