//! The time: the system's, or that of the program which `contigua run` simulates.
//!
//! The second is no switch for tests. `contigua run --malloc contigua` studies the library that is
//! installed, not another build, and only a clock that counts instructions gives the same result
//! twice. It is the feature `program-clock`.

use crate::sys;

/// The clock that `contigua run` answers.
#[cfg(feature = "program-clock")]
mod program {
    use core::sync::atomic::{AtomicBool, Ordering};

    use crate::sys;

    /// `PROGRAM_CLOCK` of the crate `program`: it counts the instructions that the program has
    /// executed.
    const PROGRAM_CLOCK: i32 = 0x00c0_417a;
    /// True if the program's clock is in use.
    static COUNTS_INSTRUCTIONS: AtomicBool = AtomicBool::new(false);

    /// Use that clock from now on, if somebody answers.
    pub fn start() -> bool {
        let there = read().is_some();
        COUNTS_INSTRUCTIONS.store(there, Ordering::Relaxed);
        there
    }

    /// The program's time, if its clock is in use.
    #[inline]
    pub fn now() -> Option<u64> {
        if COUNTS_INSTRUCTIONS.load(Ordering::Relaxed) {
            read()
        } else {
            None
        }
    }

    /// Reads the program's clock; `None` if there is none. The call fails even where it is
    /// answered.
    fn read() -> Option<u64> {
        let mut time = libc::timespec {
            tv_sec: -1,
            tv_nsec: 0,
        };
        sys::preserving_errno(|| {
            // SAFETY: `time` is valid for the write. Needed because the C library's function may
            // look at the clock's number itself.
            unsafe { libc::syscall(libc::SYS_clock_gettime, PROGRAM_CLOCK, &raw mut time) };
        });
        // SAFETY: a live local. Volatile, because who writes it is not the kernel.
        let time = unsafe { (&raw const time).read_volatile() };
        (time.tv_sec >= 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// In a library without it.
#[cfg(not(feature = "program-clock"))]
mod program {
    pub fn start() -> bool {
        false
    }

    pub fn now() -> Option<u64> {
        None
    }
}

pub use program::start as use_program_clock;

/// Nanoseconds of the monotonic clock, cheap and coarse (a few milliseconds); of the program's own
/// where [`use_program_clock`] found one.
pub fn coarse_nanoseconds() -> u64 {
    // Under Miri a look takes a millisecond: of the machine's time so much passes that periodic work would always
    // be due.
    #[cfg(miri)]
    {
        use core::sync::atomic::{AtomicU64, Ordering};
        static NOW: AtomicU64 = AtomicU64::new(0);
        return NOW.fetch_add(1_000_000, Ordering::Relaxed);
    }
    #[cfg(not(miri))]
    program::now().unwrap_or_else(|| sys::nanoseconds(libc::CLOCK_MONOTONIC_COARSE))
}
