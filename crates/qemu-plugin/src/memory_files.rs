//! Files in memory that the program shares: `memfd_create`, POSIX shared memory and other files of
//! `tmpfs`, and `hugetlbfs`.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use contigua_program::syscall::{Known, MemoryFile, MemoryFileKind};
use contigua_program::wire::Syscall;

use crate::plugin;

/// Bits of an inode's number in a name; those of the device come before them.
const INODE_BITS: u32 = 36;

/// A system call whose descriptor of a file in memory is replaced by the file: processes may have it
/// under other numbers, and other files under the same one.
pub fn named(syscall: Syscall) -> Syscall {
    let [_, _, _, flags, descriptor, _] = syscall.arguments;
    let is_mmap = Known::of(plugin().architecture, syscall.number) == Some(Known::Mmap);
    if !is_mmap || syscall.result < 0 || !MemoryFile::may_be_mapped(flags) {
        return syscall;
    }
    let mut named = syscall;
    if let Some(file) = file(descriptor as i32) {
        named.arguments[4] = file.encode();
    }
    named
}

/// The file in memory that a descriptor is of.
pub fn file(descriptor: i32) -> Option<MemoryFile> {
    // Devices lie in a `tmpfs`, too; each mapping of /dev/zero is an object of its own.
    let (status, system) = regular_file(descriptor)?;
    let kind = match system.f_type {
        libc::HUGETLBFS_MAGIC => MemoryFileKind::HugeTlb,
        libc::TMPFS_MAGIC if is_memfd(descriptor) => MemoryFileKind::Memfd,
        libc::TMPFS_MAGIC => MemoryFileKind::Mounted,
        _ => return None,
    };
    Some(MemoryFile {
        name: status.st_dev << INODE_BITS ^ status.st_ino,
        kind,
    })
}

/// Status of a regular file and of its file system; `None` for other descriptors.
pub fn regular_file(descriptor: i32) -> Option<(libc::stat, libc::statfs)> {
    let (mut status, mut system) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
    // SAFETY: both write a whole structure of theirs, unless they fail.
    let (status, system): (libc::stat, libc::statfs) = unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0
            || libc::fstatfs(descriptor, system.as_mut_ptr()) != 0
        {
            return None;
        }
        (status.assume_init(), system.assume_init())
    };
    (status.st_mode & libc::S_IFMT == libc::S_IFREG).then_some((status, system))
}

/// Block size of a file's system: the page size of `hugetlbfs`.
pub fn block_size(descriptor: i32) -> u64 {
    regular_file(descriptor).map_or(0, |(_, system)| system.f_bsize.cast_unsigned())
}

/// Returns true if a folder is in a mounted `tmpfs`.
pub fn is_tmpfs(folder: &File) -> bool {
    let mut system: MaybeUninit<libc::statfs> = MaybeUninit::zeroed();
    // SAFETY: `fstatfs` writes a whole structure, unless it fails.
    unsafe {
        libc::fstatfs(folder.as_raw_fd(), system.as_mut_ptr()) == 0
            && system.assume_init().f_type == libc::TMPFS_MAGIC
    }
}

fn is_memfd(descriptor: i32) -> bool {
    let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    path.is_ok_and(|path| path.as_os_str().as_bytes().starts_with(b"/memfd:"))
}
