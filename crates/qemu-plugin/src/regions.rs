//! Regions that the program begins and ends: its markers, and calls of the function of interest.

use std::ffi::{c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

use contigua_program::cues::{self, Marker, Transfer};
use contigua_program::plan::Function;
use contigua_program::syscall::Architecture;
use contigua_program::wire::Cue;
use contigua_units::PAGE_BYTES;

use crate::api::{self, MemoryInfo};
use crate::{access, guest, plugin, vcpu};

/// Argument of the callback of a block that begins or ends regions.
struct Cued {
    cues: Vec<What>,
    word: u64,
}

/// Event of a region before a block.
#[derive(Clone, Copy)]
enum What {
    Begin,
    End,
    Toggle,
    Enter,
}

/// Returns the callback's argument for a block that begins or ends regions; `None` for other
/// blocks. The argument of [`on_execute`] lives as long as QEMU's translation, which never says
/// that it ends.
pub fn argument(address: u64, lengths: &[u8], bytes: &[u8], word: u64) -> Option<*mut c_void> {
    let plan = &plugin().plan;
    if plugin().architecture != Architecture::X86_64 || !plan.tells_accesses() {
        return None;
    }
    let cues: Vec<What> = if let Some(function) = plan.function() {
        let enters = is_entry(function, address);
        enters.then_some(What::Enter).into_iter().collect()
    } else {
        cues::markers(lengths, bytes)
            .filter_map(|marker| match marker {
                Marker::Begin => Some(What::Begin),
                Marker::End => Some(What::End),
                Marker::Toggle => Some(What::Toggle),
                Marker::Unknown if plan.outside_cues().is_some() => crate::fail(&format!(
                    "the marker (xchg %bx, %bx) in the code at {address:#x} has a command that \
                     cannot be read: compile with optimization, or use contigua.h"
                )),
                Marker::Unknown | Marker::Other => None,
            })
            .collect()
    };
    let cued = (!cues.is_empty()).then(|| Box::new(Cued { cues, word }));
    cued.map(|cued| Box::into_raw(cued).cast())
}

/// A block begins to execute that begins or ends regions.
pub extern "C" fn on_execute(index: c_uint, cued: *mut c_void) {
    // SAFETY: `argument` made it, and nobody frees it.
    let cued = unsafe { &*cued.cast::<Cued>() };
    for what in &cued.cues {
        match what {
            What::End => vcpu::mark(index, Cue::End),
            What::Toggle if plugin().producer.ring().is_marked() => vcpu::mark(index, Cue::End),
            What::Begin | What::Toggle => vcpu::mark(index, Cue::Begin),
            What::Enter => vcpu::enter_function(index),
        }
    }
    vcpu::execute(index, cued.word);
}

/// The callback for the accesses of an instruction that calls or returns, where calls of a function
/// are the regions.
pub fn transfer_callback(code: &[u8]) -> Option<api::MemoryCallback> {
    plugin().plan.function()?;
    match cues::transfer(code)? {
        Transfer::Call => Some(on_call),
        Transfer::Return => Some(on_return),
    }
}

extern "C" fn on_call(index: c_uint, info: MemoryInfo, address: u64, template: *mut c_void) {
    access::tell_asking(index, info, address, template);
    // SAFETY: `info` comes from QEMU. A call may load where it leads to.
    if unsafe { api::qemu_plugin_mem_is_store(info) } {
        vcpu::follow(index, |calls| calls.call(address));
    }
}

extern "C" fn on_return(index: c_uint, info: MemoryInfo, address: u64, template: *mut c_void) {
    access::tell_asking(index, info, address, template);
    vcpu::follow(index, |calls| calls.ret(address));
}

/// Returns true if the code at an address is the beginning of the function in its file.
fn is_entry(function: &Function, address: u64) -> bool {
    // Mappings are of whole pages.
    address % PAGE_BYTES == function.offset % PAGE_BYTES && is_mapped_from(function, address)
}

/// Looks for the mapping of an address.
fn is_mapped_from(function: &Function, address: u64) -> bool {
    let address = address.wrapping_add(guest::base());
    let maps = std::fs::read("/proc/self/maps")
        .unwrap_or_else(|error| crate::fail(&format!("/proc/self/maps: {error}")));
    let mut lines = maps.split(|&byte| byte == b'\n');
    lines.any(|line| {
        mapped(line, address) == Some((function.offset, function.file.as_os_str().as_bytes()))
    })
}

/// File and offset of an address, if a line `start-end permissions offset device inode path` has
/// it.
fn mapped(line: &[u8], address: u64) -> Option<(u64, &[u8])> {
    let path = line.iter().position(|&byte| byte == b'/')?;
    let (head, path) = line.split_at(path);
    let mut fields = std::str::from_utf8(head).ok()?.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end, offset) = (number(start)?, number(end)?, number(fields.nth(1)?)?);
    (start..end)
        .contains(&address)
        .then(|| (offset + (address - start), path))
}
