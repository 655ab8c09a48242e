//! Files: system calls that are no cancellation points (a thread must
//! not end inside of `malloc`) and do not allocate; and names with the process's number in them.

use core::ffi::CStr;
use core::fmt::Write;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::{self as sys, Line, Purpose};

fn result<T: TryFrom<i64>>(value: i64) -> Result<T, i32> {
    let value = if value < 0 {
        None
    } else {
        T::try_from(value).ok()
    };
    value.ok_or_else(sys::errno)
}

/// A system call with a path. `openat` is the one that every architecture has.
fn open(path: &CStr, flags: i32) -> Result<i32, i32> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated. Needed because files are the system's.
    let value = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            0o600,
        )
    };
    result(value)
}

/// Have `write` write a file, which takes its name when it is whole, in place of the one that had it.
/// Only its owner may read it: it says what a program does.
///
/// The name may lie where others may write, too. What it names must be a regular file or nothing
/// (else: `EEXIST`), so that no link leads elsewhere and no pipe blocks, and until the file is whole
/// it has a name that nobody can guess.
///
/// # Errors
/// The system's number; then there is nothing new.
pub fn replace(path: &CStr, write: impl FnOnce(i32) -> Result<(), i32>) -> Result<(), i32> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if !is_free_or_regular(path)? {
        return Err(libc::EEXIST);
    }
    let bytes = path.to_bytes();
    let folder = bytes
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |at| at + 1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let number = u64::from(sys::process().cast_unsigned()) << 32 | u64::from(count);
    let random = sys::random(Purpose::Names, number);
    let mut line = Line::<{ FileName::EXPANDED + 64 }>::new();
    bytes[..folder].iter().for_each(|&byte| line.push(byte));
    write!(line, ".contigua-malloc.{random:016x}\0").map_err(|_| libc::ENAMETOOLONG)?;
    let name = CStr::from_bytes_with_nul(line.as_bytes()).map_err(|_| libc::ENAMETOOLONG)?;

    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let file = open(name, flags)?;
    let written = write(file);
    close(file);
    // SAFETY: both names are NUL-terminated. Needed because files are the system's.
    let done = written
        .and_then(|()| unsafe { result::<i32>(libc::rename(name.as_ptr(), path.as_ptr()).into()) });
    if done.is_err() {
        // SAFETY: as above.
        unsafe { libc::unlink(name.as_ptr()) };
    }
    done.map(|_| ())
}

/// Returns true if a name is free or a regular file's; the name itself, not the target of a link.
fn is_free_or_regular(path: &CStr) -> Result<bool, i32> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is NUL-terminated, and the kernel fills in the status if it succeeds.
    unsafe {
        let value = libc::lstat(path.as_ptr(), status.as_mut_ptr());
        match result::<i32>(value.into()) {
            Ok(_) => Ok(status.assume_init().st_mode & libc::S_IFMT == libc::S_IFREG),
            Err(libc::ENOENT) => Ok(true),
            Err(number) => Err(number),
        }
    }
}

/// Make a file, or open it to write behind its end. Neither follows a link nor waits for the reader of
/// a pipe.
///
/// # Errors
/// The system's number.
pub fn append(path: &CStr) -> Result<i32, i32> {
    let safe = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | safe)
}

/// Close a file.
pub fn close(file: i32) {
    // SAFETY: callers pass what they opened.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

/// Write all of `bytes`.
///
/// # Errors
/// The system's number. A file that would be longer than `RLIMIT_FSIZE` allows is an error, too (`EFBIG`),
/// and not the end of the process.
pub fn write(file: i32, mut bytes: &[u8]) -> Result<(), i32> {
    while !bytes.is_empty() {
        let written = if sys::file_limit() == libc::RLIM_INFINITY {
            write_some(file, bytes)
        } else {
            without_signal(libc::SIGXFSZ, || write_some(file, bytes))
        };
        match written {
            Ok(0) => return Err(libc::EIO),
            Ok(count) => bytes = &bytes[count..],
            Err(libc::EINTR) => {}
            Err(number) => return Err(number),
        }
    }
    Ok(())
}

/// Text for a file, in pieces: there is no memory for all of it.
pub struct Writer {
    file: i32,
    bytes: [u8; 1024],
    length: usize,
    error: Option<i32>,
}

impl Writer {
    /// Begin to write to an open file.
    pub const fn new(file: i32) -> Self {
        Self {
            file,
            bytes: [0; 1024],
            length: 0,
            error: None,
        }
    }

    /// Begin anew.
    pub fn begin(&mut self, file: i32) {
        (self.file, self.length, self.error) = (file, 0, None);
    }

    fn flush(&mut self) {
        if self.error.is_none() {
            self.error = write(self.file, &self.bytes[..self.length]).err();
        }
        self.length = 0;
    }

    /// Write bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.length == self.bytes.len() {
                self.flush();
            }
            self.bytes[self.length] = byte;
            self.length += 1;
        }
    }

    /// Write the rest.
    ///
    /// # Errors
    /// The system's number if something was not written.
    pub fn finish(&mut self) -> Result<(), i32> {
        self.flush();
        self.error.map_or(Ok(()), Err)
    }
}

impl Write for Writer {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

/// Write all that is in a file.
///
/// # Errors
/// The system's number if it cannot be opened.
pub fn copy(path: &CStr, out: &mut Writer) -> Result<(), i32> {
    let file = open(path, libc::O_RDONLY)?;
    let (mut piece, mut offset) = ([0; 1024], 0);
    loop {
        let length = read_at(file, offset, &mut piece);
        out.put(&piece[..length]);
        offset += length as u64;
        if length == 0 {
            break;
        }
    }
    close(file);
    Ok(())
}

fn write_some(file: i32, bytes: &[u8]) -> Result<usize, i32> {
    // SAFETY: pointer and length belong to one slice.
    result(unsafe { libc::syscall(libc::SYS_write, file, bytes.as_ptr(), bytes.len()) })
}

/// Run `body`, and forget the signal if the kernel sends it to this thread meanwhile.
fn without_signal<T>(signal: i32, body: impl FnOnce() -> T) -> T {
    // SAFETY: all sets are filled in before they are used. Needed because signals are the system's.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        let mut old = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        let mut pending = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old);
        libc::sigpending(&raw mut pending);
        let answer = body();
        if libc::sigismember(&raw const pending, signal) == 0 {
            let now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // Not the C library's function, which is a cancellation point. The kernel's set has 64
            // signals.
            let none = null_mut::<libc::siginfo_t>();
            let bytes = 8;
            let number = libc::SYS_rt_sigtimedwait;
            sys::preserving_errno(|| {
                libc::syscall(number, &raw const set, none, &raw const now, bytes)
            });
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, null_mut());
        answer
    }
}

/// The program's path, as much as fits; nothing if the kernel does not tell.
pub fn program(buffer: &mut [u8]) -> &[u8] {
    let path = c"/proc/self/exe".as_ptr();
    // SAFETY: the path is NUL-terminated; pointer and length belong to one slice.
    let length = unsafe { libc::readlink(path, buffer.as_mut_ptr().cast(), buffer.len()) };
    &buffer[..usize::try_from(length).unwrap_or(0)]
}

/// Read what lies at `offset`, as much as there is and fits.
fn read_at(file: i32, offset: u64, buffer: &mut [u8]) -> usize {
    let mut length = 0;
    while length < buffer.len() {
        let rest = &mut buffer[length..];
        // SAFETY: pointer and length belong to one slice.
        let value = unsafe {
            libc::syscall(
                libc::SYS_pread64,
                file,
                rest.as_mut_ptr(),
                rest.len(),
                offset + length as u64,
            )
        };
        match result::<usize>(value) {
            Err(libc::EINTR) => {}
            Ok(0) | Err(_) => break,
            Ok(count) => length += count,
        }
    }
    length
}

/// The beginning of a file, as much as fits; nothing if it cannot be read.
pub fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let Ok(file) = open(path, libc::O_RDONLY) else {
        return &[];
    };
    let length = read_at(file, 0, buffer);
    close(file);
    &buffer[..length]
}

/// A file's name from the environment, in which `%p` stands for the process's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName {
    bytes: [u8; FileName::MOST],
    length: usize,
}

impl FileName {
    const MOST: usize = 240;
    /// Bytes that an expanded name needs at most.
    pub const EXPANDED: usize = 1024;

    /// The name, unless it is empty, too long, or has a zero in it.
    pub fn new(name: &[u8]) -> Option<Self> {
        if name.is_empty() || name.len() > Self::MOST || name.contains(&0) {
            return None;
        }
        let mut bytes = [0; Self::MOST];
        bytes[..name.len()].copy_from_slice(name);
        Some(Self {
            bytes,
            length: name.len(),
        })
    }

    /// The file's name for this process. Unless the environment spoke to it alone (`own`), a name
    /// without `%p` gets the process's number behind it: children of a fork must not overwrite
    /// their parent's file.
    pub fn expand<'a>(
        &self,
        line: &'a mut Line<{ Self::EXPANDED }>,
        own: bool,
    ) -> Option<&'a CStr> {
        let mut rest = &self.bytes[..self.length];
        let mut named = own;
        while let Some((&byte, after)) = rest.split_first() {
            if let Some(after) = rest.strip_prefix(b"%p") {
                write!(line, "{}", sys::process()).ok()?;
                (rest, named) = (after, true);
            } else {
                line.push(byte);
                rest = after;
            }
        }
        if !named {
            write!(line, ".{}", sys::process()).ok()?;
        }
        line.push(0);
        CStr::from_bytes_with_nul(line.as_bytes()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn does_a_name_get_the_number_of_its_process() {
        let expand = |name: &[u8], own| {
            let mut line = Line::new();
            let name = FileName::new(name)?.expand(&mut line, own)?;
            Some(format!("{}", name.to_string_lossy()))
        };
        let own = sys::process();
        assert_eq!(expand(b"a%pb%p", true), Some(format!("a{own}b{own}")));
        assert_eq!(expand(b"a%pb", false), Some(format!("a{own}b")));
        assert_eq!(expand(b"100%", true), Some("100%".into()));
        assert_eq!(expand(b"a", false), Some(format!("a.{own}")));
        assert_eq!(
            expand(&[b'%', b'p'].repeat(120), true).map(|n| n.len() % 120),
            Some(0)
        );
        assert_eq!(FileName::new(b""), None);
        assert_eq!(FileName::new(&[b'x'; 241]), None);
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("contigua-replace-{}", sys::process()));
        std::fs::create_dir(&folder).unwrap();
        let path = format!("{}/result\0", folder.display());
        let path = CStr::from_bytes_with_nul(path.as_bytes()).unwrap();
        let names = || std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(replace(path, |_| Err(libc::ENOSPC)), Err(libc::ENOSPC));
        assert_eq!(names(), 0);
        assert_eq!(replace(path, |file| super::write(file, b"whole")), Ok(()));
        assert_eq!(names(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
