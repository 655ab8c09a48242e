//! The thread that keeps this process's [`Handles`] and ends the process with its run.
//!
//! A guest may close or replace any descriptor, and must not find some that it did not open. So
//! the handles are in a table of descriptors that only this thread has (`unshare(CLONE_FILES)`).
//! A fork or execution of another program takes them from there through `/proc/self/task`, which
//! also works for a process that has dropped its privileges: a process may always look at itself.
//!
//! The thread has all signals blocked, and allocates nothing: it must not become visible to the
//! guest, nor wait for a lock that a fork has left taken.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use contigua_program::Error;
use contigua_program::descriptors::{Handles, above_standard};
use contigua_program::lifeline;
use contigua_program::ring::RobustList;

use crate::plugin;

/// Enough for a few system calls, and for what the C library puts on a thread's stack.
const STACK_BYTES: usize = 256 << 10;

/// A process without handles looks this often whether it should end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The handles' numbers in the keeper's table; -1 where there are none.
static KEPT: Handles<AtomicI32> = Handles {
    plugin: AtomicI32::new(-1),
    ring: AtomicI32::new(-1),
    lifeline: AtomicI32::new(-1),
};

/// State of the keeper: starting, or the result of its start.
static STATE: AtomicU32 = AtomicU32::new(STARTING);
const STARTING: u32 = 0;
const READY: u32 = 1;
const TOO_MANY_PROCESSES: u32 = 2;
const UNBOUND: u32 = 3;
const UNWATCHED: u32 = 4;

/// Identity of the ring's file, by which the keeper's table is recognized.
static RING_FILE: OnceLock<FileId> = OnceLock::new();

#[derive(PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

struct List(UnsafeCell<RobustList>);
// SAFETY: used by the only keeper of this process.
unsafe impl Sync for List {}
static LIST: List = List(UnsafeCell::new(RobustList::new()));

/// Starts the keeper of this process, and gives it the handles. They are taken out of the table
/// of the calling thread. `None` when a fork could not take them along.
pub fn start(handles: Option<Handles<RawFd>>) -> Result<(), String> {
    for (kept, now) in in_order(&KEPT).into_iter().zip(match &handles {
        Some(handles) => in_order(handles).map(Some),
        None => [None; 3],
    }) {
        kept.store(now.copied().unwrap_or(-1), Ordering::Relaxed);
    }
    if let Some(handles) = handles
        && RING_FILE.get().is_none()
    {
        // Where the plugin is installed, the descriptors are there.
        let ring = fs::metadata(format!("/proc/self/fd/{}", handles.ring));
        let found = ring.map_err(|error| format!("/proc/self/fd: {error}"))?;
        let _ = RING_FILE.set(FileId::of(&found));
    }
    STATE.store(STARTING, Ordering::Relaxed);
    spawn().map_err(|error| format!("cannot start a thread: {error}"))?;
    let state = loop {
        match STATE.load(Ordering::Acquire) {
            STARTING => std::thread::yield_now(),
            state => break state,
        }
    };
    if let Some(handles) = &handles {
        for handle in in_order(handles) {
            // SAFETY: the handles were passed to this process to be taken over.
            unsafe { libc::close(*handle) };
        }
    }
    let error = io::Error::from_raw_os_error(ERROR.load(Ordering::Relaxed));
    match state {
        READY => Ok(()),
        TOO_MANY_PROCESSES => Err(Error::TooManyProcesses.to_string()),
        UNWATCHED => Err(Error::NoRobustFutexes(error).to_string()),
        _ => Err(format!(
            "cannot bind the process to its run, which takes unshare or close_range: {error}"
        )),
    }
}

/// Why the state is [`UNBOUND`] or [`UNWATCHED`].
static ERROR: AtomicI32 = AtomicI32::new(0);

fn in_order<T>(handles: &Handles<T>) -> [&T; 3] {
    [&handles.plugin, &handles.ring, &handles.lifeline]
}

fn spawn() -> io::Result<()> {
    let result = |code| match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    };
    // SAFETY: attributes and masks are initialized before they are used; the thread's function
    // uses nothing of this frame.
    unsafe {
        let mut attributes = std::mem::zeroed();
        result(libc::pthread_attr_init(&raw mut attributes))?;
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let mut thread = 0;
        let none = std::ptr::null_mut();
        let created = libc::pthread_create(&raw mut thread, &raw const attributes, keep, none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        libc::pthread_attr_destroy(&raw mut attributes);
        result(created)
    }
}

/// The thread.
extern "C" fn keep(_: *mut c_void) -> *mut c_void {
    let lifeline = KEPT.lifeline.load(Ordering::Relaxed);
    // SAFETY: the number is that of a handle, which nobody closes in this thread's table.
    let lifeline = (lifeline >= 0).then(|| unsafe { BorrowedFd::borrow_raw(lifeline) });
    let begun = begin(lifeline);
    STATE.store(begun, Ordering::Release);
    if begun == READY {
        match lifeline {
            Some(lifeline) => lifeline::wait_for_cut(lifeline),
            None => {
                while plugin().producer.ring().is_wanted() {
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
        }
        // SAFETY: ends the process at once, without handlers of the guest's or QEMU's, which might
        // wait for a thread that waits for its end. The first process of a PID namespace cannot
        // send itself this signal, so there is a second call.
        unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
            libc::syscall(libc::SYS_exit_group, 128 + libc::SIGKILL);
        }
    }
    std::ptr::null_mut()
}

/// Takes a table of its own, without what the guest has open, and a place in the ring.
fn begin(lifeline: Option<BorrowedFd<'_>>) -> u32 {
    if let Err(error) = take_own_table() {
        return failed(UNBOUND, &error);
    }
    let mut kept = in_order(&KEPT).map(|kept| kept.load(Ordering::Relaxed));
    kept.sort_unstable();
    let mut first = 0;
    for number in kept.into_iter().filter(|&number| number >= 0) {
        close_range(first, number);
        first = number + 1;
    }
    close_range(first, RawFd::MAX);
    if let Some(Err(error)) = lifeline.map(lifeline::bind) {
        return failed(UNBOUND, &error);
    }
    // SAFETY: the list is static, the ring is mapped as long as the process lives, and this thread
    // runs nothing that takes mutexes.
    match unsafe { plugin().producer.join(LIST.0.get(), lifeline.is_some()) } {
        Ok(()) => READY,
        Err(Error::NoRobustFutexes(error)) => failed(UNWATCHED, &error),
        Err(_) => TOO_MANY_PROCESSES,
    }
}

/// Gives this thread a table of descriptors of its own.
fn take_own_table() -> io::Result<()> {
    // SAFETY: plain system calls. They change this thread's table only.
    unsafe {
        if libc::unshare(libc::CLONE_FILES) == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // Docker's filter refuses every `unshare`. Since Linux 5.9 this does the same, and the range
        // is empty.
        let none = u32::MAX;
        match libc::syscall(libc::SYS_close_range, none, none, libc::CLOSE_RANGE_UNSHARE) {
            0 => Ok(()),
            _ => Err(error),
        }
    }
}

fn failed(state: u32, error: &io::Error) -> u32 {
    ERROR.store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
    state
}

/// Closes the descriptors from `first` to the one before `end`.
fn close_range(first: RawFd, end: RawFd) {
    if first >= end {
        return;
    }
    let last = end - 1;
    // SAFETY: these are copies of the guest's, in a table that it does not have.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) != 0 {
            // Before Linux 5.9. Numbers above a limit can be open only if it was lowered.
            let mut limit: libc::rlimit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            let last = last.min(RawFd::try_from(limit.rlim_max).unwrap_or(1 << 20));
            for number in first..=last {
                libc::close(number);
            }
        }
    }
}

/// Opens the handles in the calling thread's table. They are closed on `execve` unless told
/// otherwise, and are nobody else's.
pub fn take() -> io::Result<Handles<OwnedFd>> {
    take_within_limits().or_else(|error| {
        if error.raw_os_error() == Some(libc::EMFILE) {
            raise_limit(take_within_limits)
        } else {
            Err(error)
        }
    })
}

fn take_within_limits() -> io::Result<Handles<OwnedFd>> {
    let folder = keepers_table()?;
    let open = |number: &AtomicI32, write| {
        let path = folder.join(number.load(Ordering::Relaxed).to_string());
        let mut options = fs::File::options();
        // Without O_NONBLOCK, a pipe whose other end is closed would be waited for.
        options
            .read(true)
            .write(write)
            .custom_flags(libc::O_NONBLOCK);
        above_standard(options.open(path)?.into())
    };
    Ok(Handles {
        plugin: open(&KEPT.plugin, false)?,
        ring: open(&KEPT.ring, true)?,
        lifeline: open(&KEPT.lifeline, false)?,
    })
}

/// The folder of the keeper's descriptors. Looked for each time: its number may be another one in
/// the `/proc` that is mounted now.
fn keepers_table() -> io::Result<PathBuf> {
    let number = KEPT.ring.load(Ordering::Relaxed).to_string();
    let is_keepers = |folder: &Path| {
        // Looked at before it is opened: in other tables the number is something of the guest's.
        let found = fs::metadata(folder.join(&number));
        found.is_ok_and(|found| RING_FILE.get() == Some(&FileId::of(&found)))
    };
    for task in fs::read_dir("/proc/self/task")? {
        let folder = task?.path().join("fd");
        if is_keepers(&folder) {
            return Ok(folder);
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOENT))
}

/// Does something with the highest limit of open files that this process may have.
fn raise_limit<T>(something: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    // SAFETY: plain system calls on live structures.
    unsafe {
        let mut before: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before);
        let highest = libc::rlimit {
            rlim_cur: before.rlim_max,
            ..before
        };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const highest);
        let result = something();
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before);
        result
    }
}

impl FileId {
    fn of(found: &fs::Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
        }
    }
}

/// The numbers of handles.
pub fn numbers(handles: &Handles<OwnedFd>) -> Handles<RawFd> {
    Handles {
        plugin: handles.plugin.as_raw_fd(),
        ring: handles.ring.as_raw_fd(),
        lifeline: handles.lifeline.as_raw_fd(),
    }
}
