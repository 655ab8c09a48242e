//! Which processes take part, by what the kernel says and not by numbers.
//!
//! A process has a place in the shared memory whose word one of its threads owns, as a robust
//! futex: when that thread ends in whatever way (`SIGKILL`, `execve`), the kernel marks the word.
//! A place also has a number that is never given again, so what a process held when it died
//! cannot be taken for another one's.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use super::layout::MAX_PROCESSES;
use super::pool::Ring;
use crate::error::Error;

/// What the kernel is told of the words that a thread owns (`struct robust_list_head`).
#[repr(C)]
pub struct RobustList {
    first: *const c_void,
    futex_offset: isize,
    pending: *const c_void,
    /// The only entry: it leads back to the head. The futex need not lie beside it.
    entry: *const c_void,
}

impl RobustList {
    /// Memory for one list.
    #[must_use]
    pub const fn new() -> Self {
        let none = std::ptr::null();
        Self {
            first: none,
            futex_offset: 0,
            pending: none,
            entry: none,
        }
    }

    /// Asks the kernel to mark `futex` when the calling thread ends, if it owns it then.
    fn watch(&mut self, futex: &AtomicU32) -> Result<(), Error> {
        let head = (&raw const *self).cast::<c_void>();
        self.first = (&raw const self.entry).cast();
        self.entry = head;
        self.futex_offset = futex.as_ptr() as isize - self.first as isize;
        // The size of the kernel's structure, which ends before our entry.
        let size = std::mem::offset_of!(Self, entry);
        // SAFETY: the list is well-formed, and lives as long as the thread by the contract of
        // `Ring::join`.
        match unsafe { libc::syscall(libc::SYS_set_robust_list, head, size) } {
            0 => Ok(()),
            _ => Err(Error::NoRobustFutexes(io::Error::last_os_error())),
        }
    }
}

impl Default for RobustList {
    fn default() -> Self {
        Self::new()
    }
}

/// By whose end it is known that the ring has no owner any more.
#[derive(Debug)]
pub struct Owner {
    /// Ends the thread when it is dropped.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Owner {
    /// Makes this process the owner of a ring.
    ///
    /// # Errors
    /// [`Error::Qemu`] when there can be no other thread, [`Error::NoRobustFutexes`].
    pub fn new(ring: Arc<Ring>) -> Result<Self, Error> {
        let (end, until_end) = mpsc::channel();
        let (begun, until_begun) = mpsc::channel();
        // A thread of its own: the kernel marks what a thread owned, and the one that calls this
        // may end before its process.
        let run = move || {
            let owner = &ring.header().owner;
            // Read by the kernel after the thread has run.
            let list = Box::leak(Box::new(RobustList::new()));
            let watched = list.watch(owner);
            if watched.is_err() {
                let _ = begun.send(watched);
                return;
            }
            // SAFETY: plain system call.
            let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
            owner.store(thread, Ordering::Release);
            // Neither fails while the other side lives.
            let _ = begun.send(Ok(()));
            let _ = until_end.recv();
            owner.store(libc::FUTEX_OWNER_DIED, Ordering::Release);
        };
        let thread = thread::Builder::new()
            .spawn(run)
            .map_err(|error| Error::Qemu(format!("a thread beside it: {error}")))?;
        let owner = Self {
            end: Some(end),
            thread: Some(thread),
        };
        until_begun.recv().unwrap_or(Ok(())).map(|()| owner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Ring {
    /// Whether the ring's owner lives, and has not asked producers to stop.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let header = self.header();
        header.owner.load(Ordering::Acquire) & libc::FUTEX_TID_MASK != 0
            && header.stop.load(Ordering::SeqCst) == 0
    }

    /// Makes the calling thread the one by whose end the kernel tells that this process has ended.
    /// Returns the process's number as a holder of chunks, which is not 0. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::TooManyProcesses`], [`Error::NoRobustFutexes`].
    ///
    /// # Safety
    /// `list` and the ring's mapping must outlive the thread, and the thread must use no robust
    /// mutexes of the C library's.
    pub unsafe fn join(&self, list: *mut RobustList) -> Result<u32, Error> {
        let header = self.header();
        // SAFETY: plain system call.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        for place in &header.places {
            if place.owner.load(Ordering::Relaxed) != 0 {
                continue;
            }
            // SAFETY: exclusive by this function's contract.
            unsafe { (*list).watch(&place.owner) }?;
            let taken =
                place
                    .owner
                    .compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                let holder = 1 + header.next_holder.fetch_add(1, Ordering::Relaxed);
                place.holder.store(holder, Ordering::Release);
                return Ok(holder);
            }
        }
        Err(Error::TooManyProcesses)
    }

    /// Frees what processes held that have ended, and says whether any is left.
    #[must_use]
    pub fn reap(&self) -> bool {
        let mut left = false;
        for place in &self.header().places {
            let owner = place.owner.load(Ordering::Acquire);
            if owner & libc::FUTEX_TID_MASK != 0 {
                left = true;
            } else if owner != 0 {
                match place.holder.swap(0, Ordering::AcqRel) {
                    0 => {}
                    holder => self.reclaim(holder),
                }
                place.owner.store(0, Ordering::Release);
            }
        }
        left
    }
}

const _: () = assert!(MAX_PROCESSES < u32::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_wanted_until_its_owner_ends_or_asks_to_stop() {
        let ring = Arc::new(Ring::create().unwrap());
        let owner = Owner::new(ring.clone()).unwrap();
        assert!(ring.is_wanted());
        drop(owner);
        assert!(!ring.is_wanted());
        let _next = Owner::new(ring.clone()).unwrap();
        assert!(ring.is_wanted());
        ring.stop();
        assert!(!ring.is_wanted());
    }

    #[test]
    fn a_process_is_there_until_its_thread_ends() {
        let ring = Ring::create().unwrap();
        assert!(!ring.reap());
        let join = || {
            let list = Box::leak(Box::new(RobustList::new()));
            // SAFETY: the list is never freed, and the ring outlives the scope.
            let holder = unsafe { ring.join(list) };
            assert!(ring.reap(), "it runs");
            holder.unwrap()
        };
        let holders: Vec<u32> = std::thread::scope(|scope| {
            (0..3)
                .map(|_| {
                    let holder = scope.spawn(join).join().unwrap();
                    assert!(!ring.reap(), "it has ended");
                    holder
                })
                .collect()
        });
        assert_eq!(holders, [1, 2, 3], "no number is given twice");
    }
}
