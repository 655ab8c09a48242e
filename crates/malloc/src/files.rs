//! Files, for the allocator's own use: system calls that are no cancellation points (a thread must
//! not end inside of `malloc`) and do not allocate; and names with the process's number in them.

use core::ffi::CStr;
use core::fmt::Write;

use crate::sys::{self, Line};

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
    // SAFETY: the path ends in zero. Needed because files are the system's.
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

/// Open a file to read; the system's error number if that fails.
pub fn open_to_read(path: &CStr) -> Result<i32, i32> {
    open(path, libc::O_RDONLY)
}

/// Make a file, or empty it, to write. Only its owner may read it: it says what a program does.
pub fn create(path: &CStr) -> Result<i32, i32> {
    open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)
}

/// Make a file, or open it to write behind its end.
pub fn append(path: &CStr) -> Result<i32, i32> {
    open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND)
}

/// Close a file.
pub fn close(file: i32) {
    // SAFETY: callers pass what they opened.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

/// Write all of `bytes`.
pub fn write(file: i32, mut bytes: &[u8]) -> Result<(), i32> {
    while !bytes.is_empty() {
        // SAFETY: pointer and length belong to one slice.
        let value = unsafe { libc::syscall(libc::SYS_write, file, bytes.as_ptr(), bytes.len()) };
        match result::<usize>(value) {
            Ok(0) => return Err(libc::EIO),
            Ok(count) => bytes = &bytes[count..],
            Err(libc::EINTR) => {}
            Err(number) => return Err(number),
        }
    }
    Ok(())
}

/// Read what lies at `offset`, as much as there is and fits.
pub fn read_at(file: i32, offset: u64, buffer: &mut [u8]) -> usize {
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
}
