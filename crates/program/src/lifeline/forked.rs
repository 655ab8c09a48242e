//! Descriptors that a forked process does not have.
//!
//! Python programs fork while runs go on (`multiprocessing`). The copy would hold the run's end of
//! the lifeline, and the guest would live as long as the copy does.

use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::descriptors::check;

/// A place in the list of descriptors. Places are never freed: there are as many as there were
/// descriptors at a time.
#[derive(Debug)]
struct Slot {
    /// -1 where nobody uses the place.
    fd: AtomicI32,
    next: *const Self,
}

static FIRST: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// Replacement of descriptors in forked processes: their owner there may still use and close the
/// number. -1 until [`prepare`] was called.
static INSTEAD: AtomicI32 = AtomicI32::new(-1);

/// While this lives, processes that this one forks do not have a descriptor.
#[derive(Debug)]
pub(super) struct NotInherited(&'static Slot);

impl NotInherited {
    /// For an open descriptor, which is closed later than this is dropped.
    pub(super) fn new(fd: i32) -> io::Result<Self> {
        static PREPARED: OnceLock<Option<i32>> = OnceLock::new();
        let error = PREPARED.get_or_init(|| prepare().err().and_then(|e| e.raw_os_error()));
        if let Some(code) = error {
            return Err(io::Error::from_raw_os_error(*code));
        }
        let mut at = FIRST.load(Ordering::Acquire).cast_const();
        // SAFETY: places are leaked, so every pointer of the list is valid for ever.
        while let Some(slot) = unsafe { at.as_ref() } {
            let taken = slot
                .fd
                .compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                return Ok(Self(slot));
            }
            at = slot.next;
        }
        let slot = Box::leak(Box::new(Slot {
            fd: AtomicI32::new(fd),
            next: ptr::null(),
        }));
        let mut first = FIRST.load(Ordering::Acquire);
        loop {
            slot.next = first;
            let pushed = FIRST.compare_exchange(first, slot, Ordering::AcqRel, Ordering::Acquire);
            match pushed {
                Ok(_) => return Ok(Self(slot)),
                Err(other) => first = other,
            }
        }
    }
}

// SAFETY: places are immutable but for their atomics once they are in the list.
unsafe impl Send for NotInherited {}
// SAFETY: as above.
unsafe impl Sync for NotInherited {}

impl Drop for NotInherited {
    fn drop(&mut self) {
        self.0.fd.store(-1, Ordering::Release);
    }
}

fn prepare() -> io::Result<()> {
    // SAFETY: plain system call.
    let instead = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    INSTEAD.store(instead, Ordering::Release);
    // SAFETY: the handler only reads atomics and makes system calls, as a forked process may.
    match unsafe { libc::pthread_atfork(None, None, Some(replace)) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Runs in a process that was forked.
extern "C" fn replace() {
    let instead = INSTEAD.load(Ordering::Acquire);
    let mut at = FIRST.load(Ordering::Acquire).cast_const();
    // SAFETY: as above.
    while let Some(slot) = unsafe { at.as_ref() } {
        let fd = slot.fd.load(Ordering::Acquire);
        if fd >= 0 {
            // SAFETY: plain system call; the number is one that this process holds.
            unsafe { libc::dup3(instead, fd, libc::O_CLOEXEC) };
        }
        at = slot.next;
    }
}
