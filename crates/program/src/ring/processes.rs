//! Processes that take part, identified by the kernel and not by numbers.
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

use super::layout::{BOUND, FAILURE_BYTES, MAX_PROCESSES};
use super::pool::Ring;
use crate::error::Error;

/// The kernel's list of the words that a thread owns (`struct robust_list_head`).
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
    /// Returns true if the ring's owner lives, and has not asked producers to stop.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let header = self.header();
        header.owner.load(Ordering::Acquire) & libc::FUTEX_TID_MASK != 0
            && header.stop.load(Ordering::SeqCst) == 0
    }

    /// Makes the calling thread the one by whose end the kernel tells that this process has ended.
    /// `bound`: whether the process holds the guest's end of the lifeline. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::TooManyProcesses`], [`Error::NoRobustFutexes`].
    ///
    /// # Safety
    /// `list` and the ring's mapping must outlive the thread, and the thread must use no robust
    /// mutexes of the C library's.
    pub unsafe fn join(&self, list: *mut RobustList, bound: bool) -> Result<Member, Error> {
        let header = self.header();
        // SAFETY: plain system call.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        for (index, place) in (0..).zip(&header.places) {
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
                place
                    .state
                    .store(u32::from(bound) * BOUND, Ordering::Relaxed);
                place.holder.store(holder, Ordering::Release);
                return Ok(Member {
                    holder,
                    place: index,
                });
            }
        }
        Err(Error::TooManyProcesses)
    }

    /// Frees what processes held that have ended, and says whether any is left. `held`: whether
    /// anybody holds the guest's end of the lifeline. The kernel marks no place for a process that
    /// has unmapped its list.
    #[must_use]
    pub fn reap(&self, held: bool) -> bool {
        let header = self.header();
        let mut left = false;
        for place in &header.places {
            let owner = place.owner.load(Ordering::Acquire);
            if owner == 0 {
                continue;
            }
            let state = place.state.load(Ordering::Acquire);
            let is_marked = owner & libc::FUTEX_TID_MASK == 0;
            if !is_marked && (held || state & BOUND == 0) {
                left = true;
                continue;
            }
            match place.holder.swap(0, Ordering::AcqRel) {
                0 => {}
                holder => self.reclaim(holder),
            }
            place.owner.store(0, Ordering::Release);
        }
        left
    }

    /// A process is about to become another program, under an emulator or not.
    pub fn begin_execution(&self, process: u32, observed: bool) {
        let executing = &self.header().executing;
        let entry = execution(process, observed);
        let is_noted = executing.iter().any(|place| {
            let free = place.compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed);
            free.is_ok()
        });
        if !is_noted {
            self.fail("too many processes ended while they became another program");
        }
    }

    /// Ends [`begin_execution`](Self::begin_execution): the program has begun, or could not be
    /// executed.
    pub fn end_execution(&self, process: u32, observed: bool) {
        let entry = execution(process, observed);
        for place in &self.header().executing {
            let found = place.compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed);
            if found.is_ok() {
                return;
            }
        }
    }

    /// The program does what may kill processes of its own.
    pub fn note_kill(&self) {
        self.header().kills.store(1, Ordering::Release);
    }

    /// A process of the program learns that a signal ended one of its children.
    pub fn note_killed_child(&self, child: u32, signal: i32) {
        /// Signals of what an emulator does itself, if it crashes.
        const CRASHES: [i32; 7] = [
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGSEGV,
            libc::SIGSYS,
        ];
        if signal == libc::SIGKILL {
            self.header().killed.store(1, Ordering::Release);
        }
        // Ended before the emulator of its next program had begun.
        if !CRASHES.contains(&signal) {
            self.end_execution(child, true);
        }
    }

    /// Notes why the program cannot be observed any more. The first reason stays.
    pub fn fail(&self, reason: &str) {
        let header = self.header();
        let length = &header.failure_length;
        let begun = length.compare_exchange(0, u32::MAX, Ordering::AcqRel, Ordering::Relaxed);
        if begun.is_err() {
            return;
        }
        let mut bytes = reason.len().min(FAILURE_BYTES);
        while !reason.is_char_boundary(bytes) {
            bytes -= 1;
        }
        for (to, &from) in header.failure.iter().zip(&reason.as_bytes()[..bytes]) {
            to.store(from, Ordering::Relaxed);
        }
        length.store(bytes as u32, Ordering::Release);
    }

    /// Returns true if a process has reported that it cannot be observed any more.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.header().failure_length.load(Ordering::Acquire) != 0
    }

    /// Why the program was not observed to its end, once all of its processes have ended.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let header = self.header();
        match header.failure_length.load(Ordering::Acquire) {
            0 => {}
            u32::MAX => return Some("a process ended while it told why".to_owned()),
            length => {
                let bytes = header.failure.iter().take(length as usize);
                let bytes: Vec<u8> = bytes.map(|byte| byte.load(Ordering::Relaxed)).collect();
                return Some(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        let mut executing = header.executing.iter();
        if executing.any(|place| place.load(Ordering::Acquire) != 0) {
            return Some("a program that it executed could not be observed".to_owned());
        }
        let is_set = |flag: &AtomicU32| flag.load(Ordering::Acquire) != 0;
        (is_set(&header.killed) && !is_set(&header.kills)).then(|| {
            "the emulator of one of its processes was killed from outside, or crashed".to_owned()
        })
    }
}

/// Entry of a process that becomes another program. The kernel's numbers have 22 bits at most
/// (`PID_MAX_LIMIT`, `include/linux/threads.h`).
fn execution(process: u32, observed: bool) -> u32 {
    process << 1 | u32::from(observed)
}

/// A process that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number as a holder of chunks, which is not 0.
    pub holder: u32,
    /// Its place.
    pub place: u32,
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
        assert!(!ring.reap(true));
        let join = || {
            let list = Box::leak(Box::new(RobustList::new()));
            // SAFETY: the list is never freed, and the ring outlives the scope.
            let member = unsafe { ring.join(list, true) };
            assert!(ring.reap(true), "it runs");
            member.unwrap().holder
        };
        let holders: Vec<u32> = std::thread::scope(|scope| {
            (0..3)
                .map(|_| {
                    let holder = scope.spawn(join).join().unwrap();
                    assert!(!ring.reap(true), "it has ended");
                    holder
                })
                .collect()
        });
        assert_eq!(holders, [1, 2, 3], "no number is given twice");
    }

    #[test]
    fn a_child_that_nobody_of_the_program_killed_is_a_failure() {
        let ring = Ring::create().unwrap();
        ring.note_killed_child(7, libc::SIGKILL);
        assert!(ring.failure().unwrap().contains("killed from outside"));
        ring.note_kill();
        assert_eq!(ring.failure(), None);
    }

    #[test]
    fn a_child_that_is_killed_while_it_becomes_another_program_is_no_failure() {
        for (observed, signal, is_failure) in [
            (true, libc::SIGTERM, false),
            (true, libc::SIGSEGV, true),
            (false, libc::SIGTERM, true),
        ] {
            let ring = Ring::create().unwrap();
            ring.begin_execution(6, true);
            ring.begin_execution(7, observed);
            ring.end_execution(6, true);
            assert!(ring.failure().is_some());
            ring.note_killed_child(8, signal);
            assert!(ring.failure().is_some());
            ring.note_killed_child(7, signal);
            assert_eq!(ring.failure().is_some(), is_failure, "{signal}");
        }
    }

    #[test]
    fn the_first_reason_of_a_failure_stays() {
        let ring = Ring::create().unwrap();
        assert_eq!(ring.failure(), None);
        ring.begin_execution(7, false);
        assert!(ring.failure().unwrap().contains("could not be observed"));
        ring.end_execution(7, false);
        ring.fail(&"é".repeat(FAILURE_BYTES));
        ring.fail("later");
        assert_eq!(ring.failure().unwrap(), "é".repeat(FAILURE_BYTES / 2));
    }

    /// Lets a process join, do something, and end.
    fn process(ring: &Ring, bound: bool, does: impl FnOnce(u32) + Send) {
        std::thread::scope(|scope| {
            let run = || {
                let list = Box::leak(Box::new(RobustList::new()));
                // SAFETY: the list is never freed, and the ring outlives the scope.
                does(unsafe { ring.join(list, bound) }.unwrap().place);
            };
            scope.spawn(run).join().unwrap();
        });
    }

    #[test]
    fn a_place_that_the_kernel_did_not_mark_is_free_when_nobody_holds_the_lifeline() {
        let ring = Ring::create().unwrap();
        for (bound, is_left) in [(true, false), (false, true)] {
            process(&ring, bound, |place| {
                let owner = &ring.header().places[place as usize].owner;
                // As if the list had been unmapped: the kernel does not find the word.
                owner.store(1, Ordering::SeqCst);
            });
            assert!(ring.reap(true));
            assert_eq!(ring.reap(false), is_left);
        }
    }
}
