//! Counters of each rule, in a file that `contigua-node` reads when the program has ended.
//!
//! Words of 64 bits, native byte order: processes that applied the rules; then for each rule the mappings that
//! it named, and the last `errno` of one that the kernel refused.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::maps::Result;
use crate::rules::MAX_RULES;

/// Variable with the name of the file.
const VARIABLE: &core::ffi::CStr = c"CONTIGUA_APPLY_REPORT";
/// Words of the file.
const WORDS: usize = 1 + 2 * MAX_RULES;

/// Counters in the file, or nowhere.
pub struct Report(Option<&'static [AtomicU64; WORDS]>);

impl Report {
    pub const NONE: Self = Self(None);

    /// Maps the file that the environment names; counts nowhere if it is not there.
    pub fn open() -> Self {
        // SAFETY: NUL-terminated, before `main`; the descriptor is ours. The mapping is as long as the array
        // and never unmapped, and the file was checked to be as long.
        unsafe {
            let path = libc::getenv(VARIABLE.as_ptr());
            if path.is_null() {
                return Self::NONE;
            }
            let file = libc::open(path, libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW);
            if file < 0 {
                return Self::NONE;
            }
            let mut status: libc::stat = core::mem::zeroed();
            let fits = libc::fstat(file, &raw mut status) == 0
                && status.st_mode & libc::S_IFMT == libc::S_IFREG
                && status.st_size as usize >= size_of::<[AtomicU64; WORDS]>();
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let memory = if fits {
                let bytes = size_of::<[AtomicU64; WORDS]>();
                libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, file, 0)
            } else {
                libc::MAP_FAILED
            };
            libc::close(file);
            Self((memory != libc::MAP_FAILED).then(|| &*memory.cast()))
        }
    }

    pub fn started(&self) {
        if let Some(words) = self.0 {
            words[0].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a mapping that a rule named.
    pub fn count(&self, rule: usize, result: Result) {
        if let Some(words) = self.0 {
            words[1 + 2 * rule].fetch_add(1, Ordering::Relaxed);
            if let Err(errno) = result {
                words[2 + 2 * rule].store(errno as u64, Ordering::Relaxed);
            }
        }
    }
}
