//! Files in memory that the program shares: `memfd_create`, POSIX shared memory and other files of
//! `tmpfs`, and `hugetlbfs`.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use contigua_program::syscall::{Known, MemoryFile, MemoryFileKind};
use contigua_program::wire::Syscall;
use libc::{MAP_ANONYMOUS, MAP_HUGE_MASK, MAP_HUGE_SHIFT, MAP_HUGETLB, MAP_SHARED};

use crate::plugin;

/// Bytes of a huge page, unless a call says another size.
const HUGE: u64 = 2 << 20;
/// Bits of an inode's number in a name; those of the device come before them.
const INODE_BITS: u32 = 36;

/// A system call as the simulated kernel takes it: an `mmap` whose mapping is one of anonymous memory is told
/// as such, a length in huge pages is whole, and the descriptor of a file in memory is replaced by the
/// file: processes may have it under other numbers, and other files under the same one.
pub fn told(syscall: Syscall) -> Syscall {
    let [_, length, _, flags, descriptor, _] = syscall.arguments;
    let is_mmap = Known::of(plugin().architecture, syscall.number) == Some(Known::Mmap);
    if !is_mmap || syscall.result < 0 {
        return syscall;
    }
    let descriptor = descriptor as i32;
    let mut told = syscall;
    if let Some(size) = huge_page_size(flags, descriptor) {
        told.arguments[1] = length.next_multiple_of(size);
    }
    if flags & MAP_ANONYMOUS as u64 != 0 {
        return told;
    }
    match file(descriptor) {
        Some(file) if flags & MAP_SHARED as u64 != 0 => told.arguments[4] = file.encode(),
        // Pages of its own, which the pool has.
        Some(MemoryFile {
            kind: MemoryFileKind::HugeTlb,
            ..
        }) => told.arguments[3] |= (MAP_ANONYMOUS | MAP_HUGETLB) as u64,
        // Memory without a file (`mmap_zero`, `drivers/char/mem.c`).
        None if is_zero_device(descriptor) => told.arguments[3] |= MAP_ANONYMOUS as u64,
        _ => {}
    }
    told
}

/// Size of the huge pages of `HugeTLB` that an `mmap` maps, of which it maps whole ones
/// (`ksys_mmap_pgoff`, `mm/mmap.c`).
pub fn huge_page_size(flags: u64, descriptor: i32) -> Option<u64> {
    let has = |flag: i32| flags & flag as u64 != 0;
    if !has(MAP_ANONYMOUS) {
        let (_, system) = regular_file(descriptor)?;
        let is_huge = system.f_type == libc::HUGETLBFS_MAGIC;
        return is_huge.then(|| system.f_bsize.cast_unsigned());
    }
    let shift = flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK as u64;
    has(MAP_HUGETLB).then_some(if shift == 0 { HUGE } else { 1 << shift })
}

/// Returns true for a descriptor of `/dev/zero`.
pub fn is_zero_device(descriptor: i32) -> bool {
    let mut status: MaybeUninit<libc::stat> = MaybeUninit::zeroed();
    // SAFETY: `fstat` writes a whole structure, unless it fails.
    let status = unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
            return false;
        }
        status.assume_init()
    };
    status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == libc::makedev(1, 5)
}

/// The file in memory that a descriptor is of.
pub fn file(descriptor: i32) -> Option<MemoryFile> {
    // Devices lie in a `tmpfs`, too.
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
