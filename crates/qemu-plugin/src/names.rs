//! Which files are mapped where, told where a profile is made: it names code by file and offset.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use contigua_program::syscall::{Call, Known};
use contigua_program::wire::{Event, FileId, Syscall};
use contigua_units::{VirtAddr, VirtRange};

use crate::{plugin, vcpu};

/// Files whose paths were told by this process or its parents.
static TOLD: Mutex<Option<HashSet<FileId>>> = Mutex::new(None);

/// Tells that addresses hold a part of a file.
pub fn tell(index: u32, path: &[u8], range: VirtRange, offset: u64) {
    let file = FileId::of(path);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.get_or_insert_with(HashSet::new).insert(file) {
        for part in Event::names(file, path) {
            vcpu::append_event(index, &part);
        }
    }
    let mapped = Event::FileMapped {
        file,
        range,
        offset,
    };
    vcpu::append_event(index, &mapped);
}

/// Tells where this process would name the code that it generates (Linux's `perf`, `jit-interface.txt`):
/// a file that is mapped nowhere.
pub fn tell_generated(index: u32) {
    if plugin().tells_names {
        let path = format!("/tmp/perf-{}.map", std::process::id());
        let nowhere = VirtRange {
            start: VirtAddr::new(0),
            end: VirtAddr::new(0),
        };
        tell(index, path.as_bytes(), nowhere, 0);
    }
}

/// Tells which file an `mmap` that has returned mapped.
pub fn tell_mmap(index: u32, syscall: &Syscall) {
    if !plugin().tells_names
        || Known::of(plugin().architecture, syscall.number) != Some(Known::Mmap)
    {
        return;
    }
    let Call::Map {
        range,
        anonymous: false,
        ..
    } = Call::of(plugin().architecture, syscall)
    else {
        return;
    };
    let [.., descriptor, offset] = syscall.arguments;
    // A descriptor that another thread closed meanwhile has no name any more.
    if let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", descriptor as i32)) {
        tell(index, path.as_os_str().as_bytes(), range, offset);
    }
}
