//! Room beside this library, for what QEMU maps next: the code that it generates.
//!
//! That code calls the callbacks. Within 2 GB it does so directly; from further away through a word of
//! memory, and the processor has to guess where each such call goes. Programs with much code have tens
//! of thousands of them: sqlite3 going forward took a third longer. Linux maps downwards from where
//! libraries lie, so the large mappings of this library must not come between.

use std::ffi::c_void;
use std::ptr;

/// As much as is kept free; QEMU's code takes 128 MB, and all of its neighbors fit in.
const BYTES: usize = 1 << 30;

/// Addresses that nothing else is mapped at until this is dropped.
pub struct Room(*mut c_void);

impl Room {
    /// Keeps room where Linux would map next. Where there is none, code is as far away as it is.
    pub fn keep() -> Option<Self> {
        // SAFETY: a private mapping at an address of the kernel's choice, which nobody uses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        (start != libc::MAP_FAILED).then_some(Self(start))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping that `keep` made.
        unsafe { libc::munmap(self.0, BYTES) };
    }
}
