//! System calls of a malloc on Linux: memory, futexes, threads, files, signals, random numbers, and
//! a last message.
//!
//! Nothing here allocates or needs the standard library, and nothing knows of a heap. Calls that may change `errno` on the way to success are wrapped by
//! [`preserving_errno`], because `free` must not change it (POSIX.1-2024).

#![no_std]
#![allow(
    clippy::must_use_candidate,
    reason = "most are called for their effect"
)]
#![allow(
    clippy::new_without_default,
    reason = "for statics, which no trait can make"
)]

#[cfg(test)]
extern crate std;

pub mod files;
pub mod random;
pub mod signals;
mod weak;

use core::ffi::{CStr, c_int, c_void};
use core::fmt::{self, Write};
use core::hash::Hasher;
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null, null_mut};
use core::sync::atomic::AtomicU32;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A private mapping of no file, zeroed: at a place of the kernel's choice (0), or at `address` with `MAP_FIXED`, which
/// callers pass for addresses that they reserved.
fn mmap(address: usize, bytes: usize, access: c_int, flags: c_int) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: touches no memory of ours, or what the caller reserved. Needed because memory comes from system calls.
    let found = unsafe { libc::mmap(address as *mut c_void, bytes, access, flags, -1, 0) };
    (found != libc::MAP_FAILED).then_some(found as usize)
}

/// Zeroed private memory from the system, on base pages.
pub fn map(bytes: usize) -> Option<NonNull<u8>> {
    // A flag that Miri does not know.
    let no_reserve = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
    let address = mmap(0, bytes, READ_WRITE, no_reserve)? as *mut u8;
    // Metadata is touched sparsely; huge pages would make all of it resident. (Miri has no advice.)
    if !cfg!(miri) {
        // SAFETY: the range was just mapped and is ours; advice does not change contents.
        unsafe { libc::madvise(address.cast(), bytes, libc::MADV_NOHUGEPAGE) };
    }
    NonNull::new(address)
}

/// Give memory that [`map`] gave back to the system; it stays mapped and is zero from now on.
pub fn discard(address: usize, bytes: usize) {
    // Miri has no advice.
    if bytes > 0 && !cfg!(miri) {
        // SAFETY: callers pass memory of theirs whose contents nobody needs.
        unsafe { libc::madvise(address as *mut libc::c_void, bytes, libc::MADV_DONTNEED) };
    }
}

/// Give memory from [`map`] back.
pub fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: callers pass what `map` gave them and nobody else knows. Needed because memory goes
    // back by system calls.
    unsafe { libc::munmap(address.cast(), bytes) };
}

/// Addresses without memory.
pub fn reserve(bytes: usize) -> Option<usize> {
    mmap(0, bytes, libc::PROT_NONE, libc::MAP_NORESERVE)
}

/// Take away what lies in a part of what [`reserve`] gave: accesses to it are faults.
pub fn close(address: usize, bytes: usize) {
    let flags = libc::MAP_NORESERVE | libc::MAP_FIXED;
    mmap(address, bytes, libc::PROT_NONE, flags);
}

/// Have zeroed memory at addresses of the caller's, in place of what is there; whether there is some. (Not `mprotect`: who forbids itself
/// calls allows `mmap`.)
pub fn open(address: usize, bytes: usize) -> bool {
    let flags = libc::MAP_NORESERVE | libc::MAP_FIXED;
    mmap(address, bytes, READ_WRITE, flags).is_some()
}

/// Zeroed private memory under a name that `/proc/PID/maps` shows: of an anonymous file, whose descriptor is closed. A
/// child of a fork gets a copy, by the same name.
///
/// The kernel holds such a file to `RLIMIT_FSIZE`, too, and one that would be longer ends the process (`SIGXFSZ`): then
/// there is none.
pub fn map_named(name: &CStr, bytes: usize) -> Option<NonNull<u8>> {
    if file_limit() < bytes as u64 {
        return None;
    }
    // SAFETY: the name is NUL-terminated; the mapping is new, and of a file that has this length. Needed because memory
    // comes from system calls.
    let found = unsafe {
        let file = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return None;
        }
        let found = if libc::ftruncate(file, bytes.cast_signed() as libc::off_t) == 0 {
            libc::mmap(null_mut(), bytes, READ_WRITE, libc::MAP_PRIVATE, file, 0)
        } else {
            libc::MAP_FAILED
        };
        libc::close(file);
        found
    };
    if found == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(found.cast())
}

/// Returns true if the system's overcommit policy would let a program have `bytes` more.
/// Reservations do not ask, so that a request which no machine can serve would succeed and end in
/// the out-of-memory killer.
pub fn would_commit(bytes: usize) -> bool {
    let address = mmap(0, bytes, READ_WRITE, 0);
    address
        // SAFETY: the mapping is ours, and was never used.
        .is_some_and(|address| unsafe { libc::munmap(address as *mut c_void, bytes) == 0 })
}

/// A futex call, for blocking without the C library's locks, which may allocate.
fn futex(word: &AtomicU32, operation: c_int, value: u32, time: *const libc::timespec) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call; the kernel only reads it. The time is null or valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, time) };
}

/// Sleep while `word` is `value`, or until woken.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    futex(word, libc::FUTEX_WAIT, value, null());
}

/// Waits like `futex_wait`, for at most `seconds` seconds.
pub fn futex_wait_seconds(word: &AtomicU32, value: u32, seconds: u32) {
    let time = libc::timespec {
        tv_sec: seconds.into(),
        tv_nsec: 0,
    };
    futex(word, libc::FUTEX_WAIT, value, &raw const time);
}

/// Wake one thread that sleeps on `word`.
pub fn futex_wake(word: &AtomicU32) {
    futex(word, libc::FUTEX_WAKE, 1, null());
}

/// Start a detached thread with a stack of so many bytes, which gets no signals: those are for the program's threads.
/// `false` if there is no room for one. (A thread of the standard library would run its hooks and keep handles.)
pub fn spawn(run: extern "C" fn(*mut c_void) -> *mut c_void, stack_bytes: usize) -> bool {
    // SAFETY: all structures are initialized before they are used and outlive their use. Needed because threads are
    // the C library's.
    unsafe {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return false;
        }
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        // A number to some C libraries, a pointer to others.
        let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
        let started =
            libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, null_mut()) == 0;
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        started
    }
}

/// Name the calling thread.
pub fn name_thread(name: &CStr) {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Let another thread run.
pub fn yield_now() {
    // SAFETY: no arguments, no memory.
    unsafe { libc::sched_yield() };
}

/// Nanoseconds since 1970.
pub fn real_nanoseconds() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

/// Time of a clock of the system.
pub fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Purpose of a random number. Knowing one says nothing of the others.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// The key of canaries.
    Canary,
    /// Address of the heap.
    Layout,
    /// Choice of sampled allocations.
    Samples,
    /// The order of reuse.
    Order,
    /// Names of temporary files.
    Names,
}

/// An unpredictable number, different in each process; of the same purpose, one for each `number`.
///
/// The kernel's 16 random bytes are also the C library's stack and pointer guards, and a canary can
/// be read from any freed object. So they are the key of a pseudorandom function (`SipHash-2-4`), which
/// does not tell its key. `getrandom` would be a system call on the way of every program's start.
pub fn random(purpose: Purpose, number: u64) -> u64 {
    let key: [u64; 2] = if cfg!(miri) {
        [1, 2]
    } else {
        // SAFETY: no arguments but a number.
        let bytes = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u64; 2];
        if bytes.is_null() {
            [(&raw const bytes) as u64, real_nanoseconds()]
        } else {
            // SAFETY: 16 bytes that stay readable for ever. Needed because the auxiliary vector
            // holds addresses.
            unsafe { bytes.read_unaligned() }
        }
    };
    #[allow(deprecated, reason = "the only one without an allocator")]
    let mut hasher = core::hash::SipHasher::new_with_keys(key[0], key[1]);
    hasher.write_u64(purpose as u64);
    hasher.write_u64(number);
    hasher.finish()
}

/// Returns true if the kernel was told to place nothing at random (`setarch -R`, debuggers).
pub fn is_layout_fixed() -> bool {
    // Miri does not know the call, and chooses addresses itself.
    if cfg!(miri) {
        return true;
    }
    // SAFETY: no memory. This argument asks and changes nothing.
    let personality = unsafe { libc::personality(0xffff_ffff) };
    personality >= 0 && personality & libc::ADDR_NO_RANDOMIZE != 0
}

/// Bytes in a base page of the running kernel.
pub fn page_bytes() -> usize {
    // SAFETY: no arguments but a number.
    (unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize).max(4096)
}

/// One more than the largest number that a CPU of this machine can have.
pub fn possible_cpus() -> u32 {
    let mut buffer = [0u8; 128];
    let text = files::read(c"/sys/devices/system/cpu/possible", &mut buffer);
    let mut last = None;
    let mut number = None;
    for &byte in text {
        if byte.is_ascii_digit() {
            number = Some(number.unwrap_or(0) * 10 + u32::from(byte - b'0'));
        } else {
            last = number.take().or(last);
        }
    }
    // Without the file, as in some sandboxes, a thread on a CPU above the guess uses a cache of
    // its own.
    number.or(last).map_or(64, |last| last + 1).min(4096)
}

/// Returns true if no dynamic linker started the program.
pub fn is_static() -> bool {
    // SAFETY: no arguments but a number.
    unsafe { libc::getauxval(libc::AT_BASE) == 0 }
}

/// The soft limit of the sizes of files (`RLIMIT_FSIZE`), in bytes.
pub fn file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is valid for the write.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Returns true if the calling thread is the process's first.
pub fn is_main_thread() -> bool {
    // SAFETY: no arguments, no memory.
    unsafe { libc::syscall(libc::SYS_gettid) == i64::from(libc::getpid()) }
}

/// The process's number.
pub fn process() -> i32 {
    // SAFETY: no arguments, no memory.
    unsafe { libc::getpid() }
}

/// `errno`.
#[inline]
pub fn errno() -> i32 {
    // SAFETY: the C library keeps a valid `errno` for each thread.
    unsafe { *libc::__errno_location() }
}

/// Set `errno`.
#[inline]
pub fn set_errno(value: i32) {
    // SAFETY: the C library keeps a valid `errno` for each thread.
    unsafe { *libc::__errno_location() = value };
}

/// Run `body` and leave `errno` as it was.
#[inline]
pub fn preserving_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: as in `set_errno`.
    let errno = unsafe { *libc::__errno_location() };
    let result = body();
    set_errno(errno);
    result
}

/// Text in a buffer on the stack; what does not fit is cut off.
pub struct Line<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Line<N> {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    /// Begin anew.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Append a byte.
    pub fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.length) {
            *slot = byte;
            self.length += 1;
        }
    }

    /// Bytes written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<const N: usize> Write for Line<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = N - self.length;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
        Ok(())
    }
}

/// Write all of `bytes` to a file descriptor, as far as it takes them.
pub fn write_all(descriptor: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: pointer and length belong to one slice.
        let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
        if written <= 0 {
            return;
        }
        bytes = &bytes[written as usize..];
    }
}

/// One line on standard error in the malloc's name, in one system call.
pub fn message(arguments: fmt::Arguments<'_>) {
    let mut line = Line::<256>::new();
    let _ = writeln!(line, "contigua-malloc: {arguments}");
    write_all(2, line.as_bytes());
}

/// Say why and end the process.
#[cold]
pub fn die(arguments: fmt::Arguments<'_>) -> ! {
    message(arguments);
    // SAFETY: `abort` takes no arguments and does not return.
    unsafe { libc::abort() }
}

/// End the process after a panic of our own, which has told what happened.
#[cold]
pub fn end_of_panic() -> ! {
    die(format_args!("this is a bug of the allocator"))
}

/// Address space backed by `HugeTLB` pages of `1 << log` bytes, if the kernel has enough of them.
pub fn map_huge(bytes: usize, log: i32) -> Option<usize> {
    // `MAP_POPULATE` is not needed: such pages are reserved by the call.
    let flags = libc::MAP_HUGETLB | log << libc::MAP_HUGE_SHIFT;
    mmap(0, bytes, READ_WRITE, flags)
}
