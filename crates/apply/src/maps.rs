//! `mmap`, with and without huge pages.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Arguments of `mmap`.
#[derive(Clone, Copy)]
pub struct Request {
    pub address: *mut c_void,
    pub bytes: usize,
    pub protection: c_int,
    pub flags: c_int,
    pub file: c_int,
    pub offset: libc::off_t,
}

/// Result of a rule that was applied: an `errno` where the kernel refused.
pub type Result = core::result::Result<(), c_int>;

impl Request {
    /// Returns true for private memory of no file, without a size or place of its own kind.
    pub fn is_plain_memory(&self) -> bool {
        let asked = self.flags
            & (libc::MAP_PRIVATE
                | libc::MAP_SHARED
                | libc::MAP_ANONYMOUS
                | libc::MAP_HUGETLB
                | libc::MAP_STACK
                | libc::MAP_GROWSDOWN);
        asked == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
    }

    /// Bytes of its pages.
    pub fn pages(&self) -> u64 {
        (self.bytes as u64).next_multiple_of(PAGE as u64)
    }

    /// `mmap`, and nothing else.
    pub fn map(&self) -> *mut c_void {
        // SAFETY: the caller's arguments reach the kernel unchanged; what they do is the caller's to know.
        // The C library's own `mmap` is this one.
        let found = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                self.address,
                self.bytes,
                self.protection,
                self.flags,
                self.file,
                self.offset,
            )
        };
        found as *mut c_void
    }

    /// `mmap` at an aligned address where the program left the choice to the kernel, then `MADV_HUGEPAGE`.
    pub fn map_huge(&self) -> (*mut c_void, Result) {
        let memory = self.map();
        if memory == libc::MAP_FAILED {
            return (memory, Err(errno()));
        }
        // `mmap` that succeeds leaves `errno` alone.
        let before = errno();
        let is_free = self.address.is_null() && self.bytes >= HUGE;
        let start = if is_free && !(memory as usize).is_multiple_of(HUGE) {
            align(memory as usize, self.pages() as usize)
        } else {
            memory as usize
        };
        let mut result = advise(start, self.bytes, libc::MADV_HUGEPAGE);
        if result.is_ok() && self.flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0 {
            // Its pages are there already.
            result = advise(start, self.bytes, libc::MADV_COLLAPSE);
        }
        set_errno(before);
        (start as *mut c_void, result)
    }
}

/// Moves a new mapping to an aligned address; returns where it is then.
fn align(memory: usize, bytes: usize) -> usize {
    let reserved = Request {
        protection: libc::PROT_NONE,
        flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        ..plain(bytes + HUGE)
    };
    let room = reserved.map();
    if room == libc::MAP_FAILED {
        return memory;
    }
    let (room, end) = (room as usize, room as usize + reserved.bytes);
    let start = room.next_multiple_of(HUGE);
    if relocate(memory, bytes, start).is_err() {
        unmap(room, end - room);
        return memory;
    }
    unmap(room, start - room);
    unmap(start + bytes, end - (start + bytes));
    start
}

/// Moves a mapping over what lies at `to`.
pub fn relocate(from: usize, bytes: usize, to: usize) -> Result {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: callers pass a mapping of theirs, and a place that they may replace.
    let moved = unsafe { libc::mremap(from as *mut c_void, bytes, bytes, flags, to) };
    if moved == libc::MAP_FAILED {
        return Err(errno());
    }
    Ok(())
}

/// `madvise`, with advice that changes no contents.
pub fn advise(start: usize, bytes: usize, advice: c_int) -> Result {
    // SAFETY: advice on huge pages changes no contents.
    if unsafe { libc::madvise(start as *mut c_void, bytes, advice) } != 0 {
        return Err(errno());
    }
    Ok(())
}

/// Private memory of no file, readable and writable, at an address of the kernel's choice.
pub fn plain(bytes: usize) -> Request {
    Request {
        address: null_mut(),
        bytes,
        protection: libc::PROT_READ | libc::PROT_WRITE,
        flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        file: -1,
        offset: 0,
    }
}

pub fn unmap(start: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: callers pass mappings that they made and nobody else knows.
        unsafe { libc::munmap(start as *mut c_void, bytes) };
    }
}

pub fn errno() -> c_int {
    // SAFETY: the C library returns a valid pointer of the calling thread.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}
