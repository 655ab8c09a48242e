//! The guest's memory, which lies in QEMU's own at a fixed distance.

use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};

/// Host address of guest address 0.
static BASE: AtomicU64 = AtomicU64::new(0);

/// Longest string that is read: the kernel's limit for one `execve` argument (`MAX_ARG_STRLEN`).
const MAX_STRING: usize = 128 << 10;
/// Most arguments that are read.
const MAX_STRINGS: usize = 1 << 20;
/// Strings are read in pieces that do not cross a page, of which the next may be unmapped.
const PAGE: u64 = 4096;

/// Tells where guest memory lies, as learnt from translated code.
pub fn set_base(base: u64) {
    BASE.store(base, Ordering::Relaxed);
}

/// Copies `into.len()` bytes from a guest address; `None` where the guest could not read either.
pub fn read(address: u64, into: &mut [u8]) -> Option<()> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: (base().wrapping_add(address)) as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the local side is a live buffer. The remote side is this process's own memory,
    // which the kernel checks: a bad address is an error, not a fault.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    (copied == into.len().cast_signed()).then_some(())
}

/// The 32-bit number at a guest address.
pub fn word(address: u64) -> Option<i32> {
    let mut bytes = [0; 4];
    read(address, &mut bytes)?;
    Some(i32::from_le_bytes(bytes))
}

/// Copies bytes to a guest address; nothing where the guest could not write either.
pub fn write(address: u64, bytes: &[u8]) {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: (base().wrapping_add(address)) as *mut libc::c_void,
        iov_len: bytes.len(),
    };
    // SAFETY: the local side is a live buffer that is only read. The remote side is memory of the
    // guest, which asked for the bytes there; the kernel checks the address.
    unsafe {
        libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0);
    }
}

/// The NUL-terminated string at a guest address.
pub fn string(address: u64) -> Option<CString> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_STRING {
        let at = address.wrapping_add(bytes.len() as u64);
        let mut piece = vec![0; (PAGE - at % PAGE) as usize];
        read(at, &mut piece)?;
        if let Some(end) = piece.iter().position(|&b| b == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return CString::new(bytes).ok();
        }
        bytes.extend_from_slice(&piece);
    }
    None
}

/// The strings of a null-terminated array of pointers, such as `argv`; none for a null array.
pub fn strings(array: u64) -> Option<Vec<CString>> {
    let mut strings = Vec::new();
    if array == 0 {
        return Some(strings);
    }
    while strings.len() < MAX_STRINGS {
        let mut pointer = [0; 8];
        read(array.wrapping_add(8 * strings.len() as u64), &mut pointer)?;
        match u64::from_le_bytes(pointer) {
            0 => return Some(strings),
            pointer => strings.push(string(pointer)?),
        }
    }
    None
}

/// Host address of guest address 0.
pub fn base() -> u64 {
    BASE.load(Ordering::Relaxed)
}
