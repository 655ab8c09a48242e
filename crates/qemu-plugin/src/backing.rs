//! Memory behind the guest's mappings, as far as it decides about their addresses.

use std::ffi::{OsStr, c_int};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use contigua_program::layout::{AlignedShmem, Backing, Layout, Linux};
use contigua_program::syscall::MemoryFileKind;
use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, MAP_SHARED, SHM_RDONLY};

use crate::memory_files;

const PAGE: u64 = 4096;
/// Names in `/proc/self/maps` of shared mappings without a file, of segments and of `memfd_create`.
const UNMOUNTED: [&[u8]; 3] = [b"/dev/zero (deleted)", b"/SYSV", b"/memfd:"];

/// Memory that an `mmap` maps.
pub fn of_mmap(layout: Layout, flags: u64, file: c_int, offset: u64) -> Backing {
    let has = |flag: c_int| flags & flag as u64 != 0;
    if let Some(size) = memory_files::huge_page_size(flags, file) {
        return Backing::HugePages(size);
    }
    if has(MAP_ANONYMOUS) {
        return if has(MAP_PRIVATE) {
            Backing::Anonymous
        } else {
            shmem(layout, AlignedShmem::Unmounted, 0)
        };
    }
    if memory_files::is_zero_device(file) {
        return if has(MAP_SHARED) {
            shmem(layout, AlignedShmem::Unmounted, offset)
        } else {
            private_zeros(layout, offset)
        };
    }
    match memory_files::file(file).map(|file| file.kind) {
        Some(MemoryFileKind::Memfd) => shmem(layout, AlignedShmem::Unmounted, offset),
        Some(MemoryFileKind::Mounted) => shmem(layout, AlignedShmem::All, offset),
        // Others are taken to be on a file system with large folios, as those are that distributions
        // choose: addresses do not depend on the host's.
        None if memory_files::regular_file(file).is_some() => Backing::File(offset),
        Some(MemoryFileKind::HugeTlb) | None => Backing::Other,
    }
}

/// Memory of a segment of System V. It is attached for a moment: the calls that describe segments say nothing
/// of huge pages.
pub fn of_segment(layout: Layout, id: c_int) -> Backing {
    // SAFETY: the kernel chooses an address where nothing is.
    let at = unsafe { libc::shmat(id, ptr::null(), SHM_RDONLY) };
    if at == MAP_FAILED {
        return Backing::Other;
    }
    let backing = of_mapping(layout, at as u64);
    // SAFETY: attached above, and nobody else knows the address.
    unsafe { libc::shmdt(at) };
    backing
}

/// Memory at an address of the host, from there on, unless it is private memory without a file.
pub fn of_mapping(layout: Layout, address: u64) -> Backing {
    let Some(mapping) = Mapping::at(address) else {
        return Backing::Other;
    };
    if mapping.page > PAGE {
        return Backing::HugePages(mapping.page);
    }
    let path = mapping.path.as_slice();
    if UNMOUNTED.iter().any(|name| path.starts_with(name)) {
        shmem(layout, AlignedShmem::Unmounted, mapping.offset)
    } else if path == b"/dev/zero" {
        private_zeros(layout, mapping.offset)
    } else if !path.starts_with(b"/") {
        Backing::Other
    } else if is_in_memory(Path::new(OsStr::from_bytes(path))) {
        shmem(layout, AlignedShmem::All, mapping.offset)
    } else {
        Backing::File(mapping.offset)
    }
}

/// Shared memory, which is aligned if so much is.
fn shmem(layout: Layout, if_aligned: AlignedShmem, offset: u64) -> Backing {
    if layout.aligned_shmem >= if_aligned {
        Backing::Shmem(offset)
    } else {
        Backing::Other
    }
}

/// Private memory of `/dev/zero` (`get_unmapped_area_zero`, `drivers/char/mem.c`).
fn private_zeros(layout: Layout, offset: u64) -> Backing {
    if layout.linux >= Linux::V6_18 {
        Backing::File(offset)
    } else {
        Backing::Other
    }
}

/// Returns true if a file's folder is in a mounted `tmpfs`; the file may be deleted.
fn is_in_memory(file: &Path) -> bool {
    let folder = file.parent().unwrap_or(file);
    File::open(folder).is_ok_and(|folder| memory_files::is_tmpfs(&folder))
}

/// A mapping of this process, from an address on.
struct Mapping {
    offset: u64,
    path: Vec<u8>,
    /// Size of its pages (`KernelPageSize`).
    page: u64,
}

impl Mapping {
    fn at(address: u64) -> Option<Self> {
        let mut lines = BufReader::new(File::open("/proc/self/smaps").ok()?).split(b'\n');
        let mut found = loop {
            if let Some(found) = Self::of_head(&lines.next()?.ok()?, address) {
                break found;
            }
        };
        for line in lines {
            let line = String::from_utf8_lossy(&line.ok()?).into_owned();
            if let Some(size) = line.strip_prefix("KernelPageSize:") {
                let kilobytes: u64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
                found.page = kilobytes << 10;
                break;
            }
        }
        Some(found)
    }

    /// Reads `START-END RIGHTS OFFSET DEVICE INODE PATH`, if the address is there.
    fn of_head(line: &[u8], address: u64) -> Option<Self> {
        let text = String::from_utf8_lossy(line);
        let mut fields = text.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        let path = line.iter().position(|&byte| byte == b'/');
        (start..end).contains(&address).then(|| Self {
            offset: offset + (address - start),
            path: path.map_or_else(Vec::new, |at| line[at..].to_vec()),
            page: PAGE,
        })
    }
}
