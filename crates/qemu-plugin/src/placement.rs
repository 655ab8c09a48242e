//! Addresses of the guest's mappings: Linux's, instead of QEMU's.
//!
//! QEMU 7.2 calls `mmap` with a hint of its own, from which it goes upwards; QEMU 10 without one. Both take
//! what the C library returns. So their calls come here first ([`got`]), and a mapping whose address the
//! guest leaves to the kernel goes where [`Mappings::place`] says. The rest of QEMU notices nothing, and no
//! access costs more.
//!
//! Calls that are the guest's are known by the system call that a thread is in ([`enter`]), those of
//! QEMU's loader by their arguments ([`State::loaders`]). QEMU holds a lock of its own over all of them.

use std::cell::Cell;
use std::ffi::{OsStr, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use contigua_program::executable;
use contigua_program::layout::{Areas, Backing, Kind, Layout, Mappings};
use contigua_program::syscall::{Architecture, Known};
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE,
    MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_EXEC, PROT_NONE, off_t, size_t,
};

use crate::{backing, exec, got, guest, memory_files};

const PAGE: u64 = 4096;
/// Lowest address that a program gets (`vm.mmap_min_addr`).
const LOWEST: u64 = 0x1_0000;
/// Smallest stack that QEMU maps (`TARGET_DEFAULT_STACK_SIZE`), and its guard page.
const LEAST_STACK: u64 = 8 << 20;
/// `MAP_32BIT` of x86-64, and the addresses that it means (`find_start_end`,
/// `arch/x86/kernel/sys_x86_64.c`).
const MAP_32BIT: u64 = 0x40;
const LOW: (u64, u64) = (0x4000_0000, 0x8000_0000);
/// Addresses tried before the choice is left to the host.
const TRIES: u32 = 8;

/// Reason of a thread's mapping calls.
#[derive(Clone, Copy)]
enum Purpose {
    /// Loading the program, or QEMU's own needs.
    Loader,
    /// `mmap`, by its arguments from the third on.
    Map {
        hint: u64,
        flags: u64,
        file: c_int,
        offset: u64,
    },
    /// `mremap`, by its flags.
    Remap { flags: c_int },
    /// `shmat`, by its segment.
    Attach { id: c_int },
    /// `brk`.
    Break,
    /// Another system call.
    Other,
}

thread_local! {
    static PURPOSE: Cell<Purpose> = const { Cell::new(Purpose::Loader) };
}

struct State {
    architecture: Architecture,
    layout: Layout,
    areas: Areas,
    mappings: Mappings,
    /// Host address of the guest's address 0: QEMU's `-B`, else 0, unless the program is lower than the host
    /// allows.
    base: u64,
    /// Where a program with large segments has to be a multiple of.
    alignment: u64,
    /// Bytes that QEMU maps for the main thread's stack.
    stack_bytes: u64,
    has_stack: bool,
    /// Addresses of the kernel's own mappings in every process; the part that is free.
    vdso: Option<(u64, u64)>,
}

/// True until the guest's first system call.
static LOADING: AtomicBool = AtomicBool::new(true);
static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes QEMU's calls over, before QEMU loads the program of a process with its address 0 at `base`.
pub fn install(
    architecture: Architecture,
    layout: Layout,
    process: u32,
    base: u64,
) -> Result<(), String> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the buffer is this function's own.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    let alignment = exec::own_program().map_or(PAGE, |path| {
        let path = OsStr::from_bytes(path.as_bytes());
        executable::alignment(Path::new(path)).max(PAGE)
    });
    let stack_bytes = match limit.rlim_cur {
        libc::RLIM_INFINITY => LEAST_STACK,
        bytes => bytes.max(LEAST_STACK),
    };
    let mut new = State {
        architecture,
        layout,
        areas: Areas::of(architecture, limit.rlim_cur, layout.seed, process),
        mappings: Mappings::new(layout.linux),
        base,
        alignment,
        stack_bytes: stack_bytes.next_multiple_of(PAGE) + PAGE,
        has_stack: false,
        vdso: None,
    };
    new.read_mappings();
    *state() = Some(new);
    let replaced: [(&[&str], *const c_void); 5] = [
        (&["mmap", "mmap64"], mmap as *const c_void),
        (&["munmap"], munmap as *const c_void),
        (&["mremap"], mremap as *const c_void),
        (&["shmat"], shmat as *const c_void),
        (&["shmdt"], shmdt as *const c_void),
    ];
    for (names, function) in replaced {
        got::replace(names, function)?;
    }
    Ok(())
}

/// The thread is about to perform a system call of the guest.
pub fn enter(call: Option<Known>, arguments: &[u64; 6]) {
    let [hint, _, _, flags, file, offset] = *arguments;
    let purpose = match call {
        Some(Known::Shmat) => Purpose::Attach {
            id: arguments[0] as c_int,
        },
        Some(Known::Mmap) => Purpose::Map {
            hint,
            flags,
            file: file as c_int,
            offset,
        },
        Some(Known::Mremap) => Purpose::Remap {
            flags: flags as c_int,
        },
        Some(Known::Brk) => Purpose::Break,
        _ => Purpose::Other,
    };
    PURPOSE.set(purpose);
    if LOADING.load(Ordering::Relaxed)
        && LOADING.swap(false, Ordering::Relaxed)
        && let Some(state) = state().as_mut()
    {
        state.base = guest::base();
        state.keep_vdso();
    }
}

/// Where a mapping is to be.
enum Place {
    /// Where QEMU, or the host, wants it.
    Theirs,
    /// At an address of the host, else at the highest one.
    At(u64),
    /// At the guest's hint, else where its backing allows.
    Chosen { hint: u64, backing: Backing },
}

impl State {
    /// Place of a mapping for a guest's call.
    fn place(&mut self, length: u64, protection: c_int, flags: c_int) -> Place {
        match PURPOSE.get() {
            Purpose::Loader if LOADING.load(Ordering::Relaxed) => {
                self.loaders(length, protection, flags)
            }
            Purpose::Map {
                hint,
                flags,
                file,
                offset,
            } => {
                let hint = match hint & !(PAGE - 1) {
                    0 => 0,
                    low => low.max(LOWEST) + self.base,
                };
                if hint == 0 && flags & MAP_32BIT != 0 && self.architecture == Architecture::X86_64
                {
                    let (low, high) = (self.base + LOW.0, self.base + LOW.1);
                    let low = self.mappings.place_low(length, low, high);
                    return low.map_or(Place::Theirs, Place::At);
                }
                Place::Chosen {
                    hint,
                    backing: backing::of_mmap(self.layout, flags, file, offset),
                }
            }
            // Where it stays if the mapping cannot grow in place.
            Purpose::Remap { .. } => Place::Chosen {
                hint: 0,
                backing: Backing::Other,
            },
            // QEMU reserves the addresses.
            Purpose::Attach { id } if is_reservation(protection, flags) => Place::Chosen {
                hint: 0,
                backing: backing::of_segment(self.layout, id),
            },
            _ => Place::Theirs,
        }
    }

    /// Place of a mapping that QEMU makes while it loads: the program unless it has a fixed address, the
    /// stack, the interpreter, then a few pages: its vDSO, and tables that no program sees.
    fn loaders(&mut self, length: u64, protection: c_int, flags: c_int) -> Place {
        let translations = protection == PROT_NONE && flags & MAP_NORESERVE == 0;
        if translations || protection & PROT_EXEC != 0 {
            Place::Theirs
        } else if length == self.stack_bytes && !self.has_stack {
            self.has_stack = true;
            Place::At(self.base + self.areas.stack - length)
        } else if !self.has_stack {
            Place::At((self.base + self.areas.program) & !(self.alignment - 1))
        } else if length <= self.layout.linux.vdso() {
            let (start, end) = self.keep_vdso();
            if start + length > end {
                return Place::Theirs;
            }
            self.vdso = Some((start, end - length));
            Place::At(end - length)
        } else {
            Place::Chosen {
                hint: 0,
                backing: Backing::Other,
            }
        }
    }

    /// Keeps the addresses that the kernel's own mappings have.
    fn keep_vdso(&mut self) -> (u64, u64) {
        if let Some(vdso) = self.vdso {
            return vdso;
        }
        let length = self.layout.linux.vdso();
        let start = if self.layout.vdso_follows_stack() {
            self.base + self.areas.stack
        } else {
            let base = self.base + self.areas.base;
            let start = self.mappings.place(length, Backing::Other, base);
            start.unwrap_or(0)
        };
        let vdso = (start, start + length);
        self.mappings.insert(start, start + length, Kind::Other);
        self.vdso = Some(vdso);
        vdso
    }

    /// Maps by `map`, which takes an address, at a place where nothing is.
    fn map_at(
        &mut self,
        place: &Place,
        length: u64,
        map: impl Fn(u64) -> *mut c_void,
    ) -> Option<*mut c_void> {
        let (hint, backing) = match *place {
            Place::Theirs => return None,
            Place::At(address) => (address, Backing::Other),
            Place::Chosen { hint, backing } => (hint, backing),
        };
        if hint != 0 {
            let at = map(hint);
            if at as u64 == hint {
                return Some(at);
            }
        }
        for _ in 0..TRIES {
            let base = self.base + self.areas.base;
            let wanted = self.mappings.place(length, backing, base)?;
            let at = map(wanted);
            if at as u64 == wanted {
                return Some(at);
            }
            if errno() != libc::EEXIST {
                return Some(at);
            }
            // QEMU has mapped something in between.
            self.read_mappings();
        }
        None
    }

    /// Reads which addresses are taken.
    fn read_mappings(&mut self) {
        let Ok(text) = fs::read_to_string("/proc/self/maps") else {
            return;
        };
        self.mappings = Mappings::new(self.layout.linux);
        if let Some((start, end)) = self.vdso {
            self.mappings.insert(start, end, Kind::Other);
        }
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some((start, end)) = fields.next().and_then(|range| range.split_once('-')) else {
                continue;
            };
            let private = fields.next().is_some_and(|flags| flags.ends_with('p'));
            let kind = if private && fields.nth(2) == Some("0") {
                Kind::Anonymous
            } else {
                Kind::Other
            };
            if let (Ok(start), Ok(end)) =
                (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
            {
                self.mappings.insert(start, end, kind);
            }
        }
    }
}

/// QEMU reserves addresses so before it maps something else at them.
fn is_reservation(protection: c_int, flags: c_int) -> bool {
    protection == PROT_NONE && flags & MAP_NORESERVE != 0
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    let mapped = |address: *mut c_void, more: c_int| {
        // SAFETY: QEMU's own call, at an address that it gives or where nothing is.
        unsafe { libc::mmap(address, length, protection, flags | more, file, offset) }
    };
    let mut state = state();
    let Some(state) = state.as_mut() else {
        return mapped(address, 0);
    };
    let bytes = (length as u64).next_multiple_of(PAGE);
    let place = if flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) != 0 || bytes == 0 {
        Place::Theirs
    } else {
        state.place(bytes, protection, flags)
    };
    let chosen = state.map_at(&place, bytes, |at| {
        mapped(at as *mut c_void, MAP_FIXED_NOREPLACE)
    });
    let at = chosen.unwrap_or_else(|| mapped(address, 0));
    if at != MAP_FAILED {
        let huge = match PURPOSE.get() {
            Purpose::Map { flags, file, .. } => memory_files::huge_page_size(flags, file),
            _ => None,
        };
        let kind = match huge {
            Some(size) => Kind::HugePages(size),
            None if flags & MAP_ANONYMOUS != 0 && flags & MAP_PRIVATE != 0 => Kind::Anonymous,
            None => Kind::Other,
        };
        let bytes = huge.map_or(bytes, |size| bytes.next_multiple_of(size));
        state.mappings.insert(at as u64, at as u64 + bytes, kind);
    }
    at
}

unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    let mut state = state();
    // SAFETY: QEMU's own call.
    let result = unsafe { libc::munmap(address, length) };
    if let Some(state) = state.as_mut()
        && result == 0
    {
        let start = address as u64;
        state
            .mappings
            .remove(start, start + (length as u64).next_multiple_of(PAGE));
    }
    result
}

/// Of QEMU's calls, those for a guest's that leaves the address to the kernel come with an address that
/// QEMU has reserved. Linux moves a mapping only if it cannot grow where it is.
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: size_t,
    new_length: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let remapped = |flags: c_int, new: *mut c_void| {
        // SAFETY: QEMU's own call; `new` is where it wants it, or where nothing is.
        unsafe { libc::mremap(old, old_length, new_length, flags, new) }
    };
    let mut state = state();
    let Some(state) = state.as_mut() else {
        return remapped(flags, new);
    };
    let start = old as u64;
    let kind = state.mappings.kind(start).unwrap_or(Kind::Other);
    let page = match kind {
        Kind::HugePages(size) => size,
        Kind::Anonymous | Kind::Other => PAGE,
    };
    let round = |length: size_t| (length as u64).next_multiple_of(page);
    let (old_bytes, new_bytes) = (round(old_length), round(new_length));
    let reserved = flags & MREMAP_FIXED != 0
        && matches!(PURPOSE.get(), Purpose::Remap { flags } if flags & MREMAP_FIXED == 0);
    let at = if reserved {
        // SAFETY: QEMU has just reserved these addresses, and nothing is there.
        unsafe { libc::munmap(new, new_length) };
        state.mappings.remove(new as u64, new as u64 + new_bytes);
        let in_place = if flags & MREMAP_DONTUNMAP == 0 && old_length != 0 {
            remapped(0, std::ptr::null_mut())
        } else {
            MAP_FAILED
        };
        if in_place == MAP_FAILED {
            let backing = match kind {
                Kind::Anonymous => Backing::Anonymous,
                Kind::HugePages(size) => Backing::HugePages(size),
                Kind::Other => backing::of_mapping(state.layout, start),
            };
            state.move_mapping(new_bytes, backing, |to| {
                remapped(flags | MREMAP_MAYMOVE, to)
            })
        } else {
            in_place
        }
    } else {
        remapped(flags, new)
    };
    if at != MAP_FAILED {
        if flags & MREMAP_DONTUNMAP == 0 && old_length != 0 {
            state.mappings.remove(start, start + old_bytes);
        }
        state
            .mappings
            .insert(at as u64, at as u64 + new_bytes, kind);
    }
    at
}

impl State {
    /// Moves a mapping by `remap`, which takes an address, to where Linux would map as many bytes.
    fn move_mapping(
        &mut self,
        bytes: u64,
        backing: Backing,
        remap: impl Fn(*mut c_void) -> *mut c_void,
    ) -> *mut c_void {
        let reserve = |at: u64| {
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
            // SAFETY: at an address where nothing is, or nowhere.
            unsafe { libc::mmap(at as *mut c_void, bytes as usize, PROT_NONE, flags, -1, 0) }
        };
        let place = Place::Chosen { hint: 0, backing };
        let Some(to) = self
            .map_at(&place, bytes, reserve)
            .filter(|&to| to != MAP_FAILED)
        else {
            return MAP_FAILED;
        };
        let moved = remap(to);
        if moved == MAP_FAILED {
            let why = errno();
            // SAFETY: the addresses reserved above; the C library gives every thread its `errno`.
            unsafe {
                libc::munmap(to, bytes as usize);
                *libc::__errno_location() = why;
            }
        }
        moved
    }
}

unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let mut state = state();
    // SAFETY: QEMU's own call.
    let at = unsafe { libc::shmat(id, address, flags) };
    if let Some(state) = state.as_mut()
        && at != MAP_FAILED
    {
        // The call does not have the segment's length.
        state.read_mappings();
    }
    at
}

unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    let mut state = state();
    // SAFETY: QEMU's own call.
    let result = unsafe { libc::shmdt(address) };
    if let Some(state) = state.as_mut()
        && result == 0
    {
        state.read_mappings();
    }
    result
}
