//! Lifeline: a pipe that binds the processes of a guest to the run that started them.
//!
//! Every process of the guest holds its reading end, the run holds the only writing end. When the
//! run ends, in whatever way, the kernel closes that, and sends `SIGKILL` to all who wait at the
//! other end, also to those that are stopped or blocked. The run sees when nobody is left. So
//! neither side needs a process number: those belong to PID namespaces, and are given to others.
//! Nor does it matter whether somebody has waited for the dead.

mod forked;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use forked::NotInherited;

use crate::descriptors::{above_standard, check, owned};

/// The run's end.
#[derive(Debug)]
pub struct Lifeline {
    /// Dropped before the descriptor is closed.
    _not_inherited: NotInherited,
    end: OwnedFd,
}

impl Lifeline {
    /// A new lifeline, and the end that is for the guest: the run must close its own copy of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let mut ends = [0; 2];
        // SAFETY: the array has room for both descriptors.
        check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
        let [guest, own] = [owned(ends[0])?, owned(ends[1])?];
        // A guest that has dropped its privileges opens its end again (`/proc` shows it to nobody
        // else). It may only read.
        // SAFETY: plain system call on an open descriptor.
        check(unsafe { libc::fchmod(guest.as_raw_fd(), 0o444) })?;
        let end = above_standard(own)?;
        let own = Self {
            _not_inherited: NotInherited::new(end.as_raw_fd())?,
            end,
        };
        Ok((own, above_standard(guest)?))
    }

    /// Returns true if any process holds the guest's end.
    #[must_use]
    pub fn is_held(&self) -> bool {
        events(self.end.as_raw_fd(), 0) & libc::POLLERR == 0
    }

    /// Ends all processes of the guest, and those that they are starting.
    pub fn cut(&self) {
        // What is written stays, and so is seen by processes that look later.
        // SAFETY: the byte lives during the call; a full pipe or one without readers is an error.
        unsafe { libc::write(self.end.as_raw_fd(), [0_u8].as_ptr().cast(), 1) };
    }
}

/// Lets the kernel end this process when the lifeline is cut. For a description of the pipe that
/// no other process has: the kernel keeps one process for each.
///
/// # Errors
/// The kernel's.
pub fn bind(guest: BorrowedFd<'_>) -> io::Result<()> {
    let fd = guest.as_raw_fd();
    // SAFETY: plain system calls on an open descriptor. The process names itself.
    unsafe {
        check(libc::fcntl(fd, libc::F_SETOWN, libc::getpid()))?;
        check(libc::fcntl(fd, F_SETSIG, libc::SIGKILL))?;
        let flags = libc::O_NONBLOCK | libc::O_ASYNC;
        check(libc::fcntl(fd, libc::F_SETFL, flags)).map(drop)
    }
}

/// `include/uapi/asm-generic/fcntl.h`
const F_SETSIG: i32 = 10;

/// Waits until the lifeline is cut. Allocates nothing.
pub fn wait_for_cut(guest: BorrowedFd<'_>) {
    const FOR_EVER: i32 = -1;
    while events_within(guest.as_raw_fd(), libc::POLLIN, FOR_EVER) == 0 {}
}

fn events(fd: RawFd, wanted: i16) -> i16 {
    events_within(fd, wanted, 0)
}

fn events_within(fd: RawFd, wanted: i16, milliseconds: i32) -> i16 {
    let mut poll = libc::pollfd {
        fd,
        events: wanted,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
    poll.revents
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, ExitStatus};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Waits for the other tests of this process: what a test forks holds what all have open.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that is stopped, bound to the lifeline and to nothing else.
    fn stopped(guest: &OwnedFd) -> Child {
        let path = format!("/proc/self/fd/{}\0", guest.as_raw_fd());
        let mut command = Command::new("sh");
        command.args(["-c", "kill -STOP $$"]);
        // SAFETY: the closure only makes system calls.
        unsafe {
            command.pre_exec(move || {
                let own = owned(libc::open(path.as_ptr().cast(), libc::O_NONBLOCK))?;
                bind(own.as_fd())?;
                std::mem::forget(own);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let mut status = 0;
        // SAFETY: the status is a live integer.
        unsafe { libc::waitpid(child.id().cast_signed(), &raw mut status, libc::WUNTRACED) };
        assert!(ExitStatus::from_raw(status).stopped_signal().is_some());
        child
    }

    #[test]
    fn a_stopped_process_ends_when_its_lifeline_is_cut() {
        let _alone = alone();
        let (own, guest) = Lifeline::new().unwrap();
        let mut child = stopped(&guest);
        drop(guest);
        assert!(own.is_held());
        own.cut();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(!own.is_held());
    }

    #[test]
    fn a_stopped_process_ends_when_its_owner_is_gone() {
        let _alone = alone();
        let (own, guest) = Lifeline::new().unwrap();
        let mut child = stopped(&guest);
        drop(guest);
        drop(own);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_fork_of_the_owner_does_not_hold_the_lifeline() {
        let _alone = alone();
        let (own, guest) = Lifeline::new().unwrap();
        let mut child = stopped(&guest);
        // SAFETY: the copy only makes system calls.
        let copy = unsafe { libc::fork() };
        if copy == 0 {
            // SAFETY: as above. The copy waits for its signal and never returns.
            unsafe {
                libc::close(guest.as_raw_fd());
                libc::pause();
                libc::_exit(0);
            }
        }
        drop(guest);
        drop(own);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        // SAFETY: plain system calls on the child that was just made.
        unsafe {
            libc::kill(copy, libc::SIGKILL);
            libc::waitpid(copy, std::ptr::null_mut(), 0);
        }
    }

    #[test]
    fn an_end_opened_too_late_tells_that_it_was_cut() {
        let _alone = alone();
        let (own, guest) = Lifeline::new().unwrap();
        let path = format!("/proc/self/fd/{}", guest.as_raw_fd());
        own.cut();
        wait_for_cut(File::open(&path).unwrap().as_fd());
        drop(own);
        wait_for_cut(guest.as_fd());
    }
}
