//! The mappings of a freshly loaded program.
//!
//! QEMU's loader makes them without system calls of the guest. They are found as the difference
//! of `/proc/self/maps` between installation, before the program is loaded, and the translation
//! of its first block. Meanwhile QEMU maps memory for itself, too. Version 7.2 puts the guest below
//! all that is its own; since version 10.0 it is asked of each page whether it is the guest's.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use contigua_program::wire::{ADDRESS_MASK, Event, ImageKind, ProcessId};
use contigua_units::{PAGE_BYTES, VirtAddr, VirtRange};

use crate::api::{self, Reader};
use crate::{PROCESS, guest, names, plugin, vcpu};

/// One line of `/proc/self/maps`.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Mapping {
    start: u64,
    end: u64,
    writable: bool,
    /// Of the file; 0 where there is none.
    inode: u64,
    /// Where the mapping begins in it.
    offset: u64,
    /// Its path, or the kernel's name of the mapping.
    name: String,
}

/// The first block is translated by the main thread, which is vCPU 0.
const MAIN: u32 = 0;

static BEFORE: Mutex<Option<HashSet<Mapping>>> = Mutex::new(None);
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Notes what is mapped before the program is loaded.
pub fn remember_emulator_mappings() {
    let mut before = BEFORE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    *before = Some(mappings().collect());
}

/// Reports the program's initial mappings on the first call in a process image.
pub fn report_once() {
    if REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let process = ProcessId(PROCESS.load(Ordering::Relaxed));
    vcpu::append_event(MAIN, &Event::ProcessStart { process });
    names::tell_generated(MAIN);
    let before = BEFORE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .take();
    let before = before.unwrap_or_default();
    let new = mappings().filter(|mapping| !before.contains(mapping));
    let loaded: Vec<Mapping> = if let Some(reader) = Reader::new() {
        new.flat_map(|mapping| guests_parts(&reader, &mapping))
            .collect()
    } else {
        let limit = before.iter().map(|mapping| mapping.start).min();
        let limit = limit.unwrap_or(u64::MAX);
        new.filter(|mapping| mapping.end <= limit).collect()
    };
    if let Some(range) = program_code(&loaded) {
        vcpu::append_event(MAIN, &Event::ProgramCode { range });
    }
    for mapping in loaded {
        let range = guest_range(mapping.start, mapping.end);
        if range.is_empty() || range.end.get() > ADDRESS_MASK {
            continue;
        }
        let kind = match mapping.inode {
            0 => ImageKind::Anonymous,
            _ => ImageKind::File,
        };
        let event = Event::Image {
            range,
            writable: mapping.writable,
            kind,
        };
        vcpu::append_event(MAIN, &event);
        if plugin().tells_names && mapping.inode != 0 {
            names::tell(MAIN, mapping.name.as_bytes(), range, mapping.offset);
        }
    }
}

/// Range of the program's code: QEMU's answer, else the mappings of the lowest file: the loader of
/// a dynamic program lies above it.
fn program_code(loaded: &[Mapping]) -> Option<VirtRange> {
    if let Some((start, end)) = api::program_code() {
        return Some(VirtRange::new(VirtAddr::new(start), VirtAddr::new(end)));
    }
    let first = loaded.iter().find(|mapping| mapping.inode != 0)?;
    let last = loaded.iter().rfind(|one| one.inode == first.inode)?;
    Some(guest_range(first.start, last.end))
}

fn guest_range(start: u64, end: u64) -> VirtRange {
    let base = guest::base();
    VirtRange::new(
        VirtAddr::new(start.wrapping_sub(base)),
        VirtAddr::new(end.wrapping_sub(base)),
    )
}

/// The guest's parts of a mapping: the kernel merges the guest's with QEMU's where they adjoin.
fn guests_parts(reader: &Reader, mapping: &Mapping) -> Vec<Mapping> {
    let mut parts: Vec<Mapping> = Vec::new();
    for page in (mapping.start..mapping.end).step_by(PAGE_BYTES as usize) {
        if !reader.is_readable(page.wrapping_sub(guest::base())) {
            continue;
        }
        let end = page + PAGE_BYTES;
        match parts.last_mut() {
            Some(last) if last.end == page => last.end = end,
            _ => parts.push(Mapping {
                start: page,
                end,
                offset: mapping.offset + (page - mapping.start),
                ..mapping.clone()
            }),
        }
    }
    parts
}

fn mappings() -> impl Iterator<Item = Mapping> {
    let text = std::fs::read_to_string("/proc/self/maps")
        .unwrap_or_else(|error| crate::fail(&format!("/proc/self/maps: {error}")));
    let mappings: Vec<_> = text.lines().filter_map(parse).collect();
    mappings.into_iter()
}

/// `start-end perms offset device inode [path]`; accessible mappings only.
fn parse(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let offset = fields.next()?;
    let inode = fields.nth(1)?;
    if permissions[0] != b'r' {
        return None;
    }
    // A path may have spaces; only those before it are padding.
    let name = line.splitn(6, ' ').nth(5).unwrap_or_default().trim_start();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        writable: permissions[1] == b'w',
        inode: inode.parse().ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        name: name.to_owned(),
    })
}
