//! Descriptors that are passed between processes.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The first number that is not standard input, output or error.
pub const FIRST: RawFd = 3;

/// Descriptors that a process of a guest needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handles<T> {
    /// The QEMU plugin's file.
    pub plugin: T,
    /// The memory of the ring.
    pub ring: T,
    /// The guest's end of the lifeline.
    pub lifeline: T,
}

impl<T> Handles<T> {
    /// Does the same with each.
    ///
    /// # Errors
    /// The first of `each`.
    pub fn try_map<U, E>(self, mut each: impl FnMut(T) -> Result<U, E>) -> Result<Handles<U>, E> {
        Ok(Handles {
            plugin: each(self.plugin)?,
            ring: each(self.ring)?,
            lifeline: each(self.lifeline)?,
        })
    }
}

impl Handles<RawFd> {
    /// Lets the next program inherit these, or not. Safe between `fork` and `execve`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn inherit(self, inherit: bool) -> io::Result<()> {
        let flags = if inherit { 0 } else { libc::FD_CLOEXEC };
        // SAFETY: plain system call; a number that is not open is an error.
        let set = |file| check(unsafe { libc::fcntl(file, libc::F_SETFD, flags) });
        self.try_map(set).map(drop)
    }

    /// The start of QEMU's `-plugin` option, for a process that inherits these.
    #[must_use]
    pub fn option(self) -> String {
        let Self {
            plugin,
            ring,
            lifeline,
        } = self;
        format!("/proc/self/fd/{plugin},plugin={plugin},ring={ring},lifeline={lifeline}")
    }
}

/// A new file in anonymous memory.
///
/// # Errors
/// The kernel's.
pub fn anonymous_file(name: &CStr) -> io::Result<File> {
    // SAFETY: the name is NUL-terminated; the call has no other requirement.
    let file = owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    above_standard(file).map(File::from)
}

/// Moves a descriptor above the standard ones, which are free where they were closed, and to which
/// others write whatever they are. It is closed on `execve`.
///
/// # Errors
/// The kernel's.
pub fn above_standard(file: OwnedFd) -> io::Result<OwnedFd> {
    if file.as_raw_fd() >= FIRST {
        return Ok(file);
    }
    // SAFETY: plain system call on an open descriptor.
    owned(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST) })
}

/// Takes a descriptor that a system call returned.
pub(crate) fn owned(returned: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a call that makes a descriptor gives it to its caller.
    check(returned).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn check(returned: i32) -> io::Result<i32> {
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(returned)
}
