//! The program and its libraries, as they are loaded, by their build ids.

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::rules::{Identity, Rules};

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
/// `NT_GNU_BUILD_ID`.
const BUILD_ID: u32 = 3;

/// A loaded file.
#[derive(Clone, Copy)]
pub struct Object {
    /// Address of its first byte's virtual address 0.
    base: usize,
    headers: &'static [libc::Elf64_Phdr],
}

impl Object {
    fn of(info: &libc::dl_phdr_info) -> Self {
        let headers = if info.dlpi_phdr.is_null() {
            &[][..]
        } else {
            // SAFETY: the loader's own table, which stays as long as the object.
            unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
        };
        Self {
            base: info.dlpi_addr as usize,
            headers,
        }
    }

    /// The object that is mapped from `start` on; `None` where there is no ELF header.
    fn at(start: usize) -> Option<Self> {
        // SAFETY: the loader says that a file is mapped here, whose first page has the header.
        let header = unsafe { &*(start as *const libc::Elf64_Ehdr) };
        if header.e_ident[..4] != *b"\x7fELF" || header.e_phoff > 4096 {
            return None;
        }
        let table = start + header.e_phoff as usize;
        // SAFETY: the table follows the header in the first page, as linkers put it.
        let headers = unsafe { slice::from_raw_parts(table as *const _, header.e_phnum.into()) };
        let mut found = Self { base: 0, headers };
        let first = found.loaded().next()?;
        found.base = start.wrapping_sub(first.p_vaddr as usize);
        Some(found)
    }

    fn loaded(&self) -> impl Iterator<Item = &'static libc::Elf64_Phdr> {
        self.headers
            .iter()
            .filter(|header| header.p_type == PT_LOAD)
    }

    fn build_id(&self) -> Option<&'static [u8]> {
        let notes = self
            .headers
            .iter()
            .filter(|header| header.p_type == PT_NOTE);
        notes.into_iter().find_map(|header| {
            // Of what is loaded only.
            let offset = header.p_offset;
            let start = self
                .address(offset)
                .filter(|_| header.p_memsz == header.p_filesz)?;
            self.address(offset + header.p_filesz.saturating_sub(1))?;
            // SAFETY: both ends lie in what is loaded.
            let bytes =
                unsafe { slice::from_raw_parts(start as *const u8, header.p_memsz as usize) };
            build_id(bytes)
        })
    }

    /// Address of a byte of the file.
    fn address(&self, offset: u64) -> Option<usize> {
        let header = self.loaded().find(|header| {
            (header.p_offset..header.p_offset + header.p_filesz).contains(&offset)
        })?;
        let from_base = header.p_vaddr.wrapping_add(offset - header.p_offset);
        Some(self.base.wrapping_add(from_base as usize))
    }
}

/// The build id among notes.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (head, rest) = notes.split_at_checked(12)?;
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name_bytes, id_bytes) = (word(0) as usize, word(4) as usize);
        let (name, rest) = rest.split_at_checked(name_bytes.checked_next_multiple_of(4)?)?;
        let padded = id_bytes.checked_next_multiple_of(4)?;
        if word(8) == BUILD_ID && name.starts_with(b"GNU\0") {
            return rest.get(..id_bytes);
        }
        notes = rest.get(padded..)?;
    }
}

/// Calls `visit` with each loaded object until it returns true. The first one is the program.
fn each(visit: &mut dyn FnMut(Object) -> bool) {
    unsafe extern "C" fn one(info: *mut libc::dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader passes its description, and what `each` passed.
        let (info, visit) =
            unsafe { (&*info, &mut *visit.cast::<&mut dyn FnMut(Object) -> bool>()) };
        visit(Object::of(info)).into()
    }
    let mut visit = visit;
    // SAFETY: `one` takes what is passed here, and does not outlive the call.
    unsafe { libc::dl_iterate_phdr(Some(one), (&raw mut visit).cast()) };
}

fn program() -> Option<Object> {
    let mut found = None;
    each(&mut |object| {
        found = Some(object);
        true
    });
    found
}

/// Returns true if this process runs the program.
pub fn is_program(identity: &Identity) -> bool {
    match identity {
        Identity::BuildId(id) => program().and_then(|object| object.build_id()) == Some(id.bytes()),
        Identity::Path(path) => {
            let mut found = [0_u8; crate::rules::MAX_PATH + 1];
            // SAFETY: the buffer is as long as is said.
            let bytes = unsafe {
                libc::readlink(
                    c"/proc/self/exe".as_ptr(),
                    found.as_mut_ptr().cast(),
                    found.len(),
                )
            };
            usize::try_from(bytes).is_ok_and(|bytes| found[..bytes] == *path.bytes())
        }
    }
}

/// First and last address of the program's code.
pub fn program_code() -> Option<(usize, usize)> {
    let object = program()?;
    let code = object.loaded().find(|header| header.p_flags & PF_X != 0)?;
    let start = object.base.wrapping_add(code.p_vaddr as usize);
    Some((start, start + code.p_filesz as usize))
}

/// `_dl_find_object`, where the C library has it.
static FIND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds the callers of all rules that lie in objects which are loaded now.
pub fn resolve(rules: &Rules) {
    // Not later: `dlsym` takes a lock.
    // SAFETY: a NUL-terminated name.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND.store(find, Ordering::Relaxed);
    each(&mut |object| {
        resolve_in(rules, object);
        false
    });
}

fn resolve_in(rules: &Rules, object: Object) {
    if let Some(index) = object.build_id().and_then(|id| rules.object(id)) {
        rules.loaded(index, |offset| object.address(offset));
    }
}

/// `struct dl_find_object` of glibc, with room for what later versions add.
#[repr(C)]
struct Found {
    flags: u64,
    start: *mut c_void,
    rest: [u64; 16],
}

/// Finds the callers that lie in the object of an address: one that was loaded later. Takes no lock
/// (`_dl_find_object`, from glibc 2.35 on; nothing is found with others).
pub fn resolve_late(rules: &Rules, address: usize) {
    let function = FIND.load(Ordering::Relaxed);
    if function.is_null() {
        return;
    }
    // SAFETY: that is its type.
    let find: unsafe extern "C" fn(*const c_void, *mut Found) -> c_int =
        unsafe { core::mem::transmute(function) };
    // SAFETY: all zeros are a value; it is at least as long as what the function writes.
    let mut found: Found = unsafe { zeroed() };
    // SAFETY: any address may be asked for.
    let result = unsafe { find(address as *const c_void, &raw mut found) };
    if result == 0
        && !found.start.is_null()
        && let Some(object) = Object::at(found.start as usize)
    {
        resolve_in(rules, object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let note = |kind: u32, name: &[u8], text: &[u8]| {
            let mut bytes = std::vec::Vec::new();
            for word in [name.len() as u32, text.len() as u32, kind] {
                bytes.extend(word.to_ne_bytes());
            }
            for part in [name, text] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let other = note(5, b"GNU\0", b"properties");
        let id = note(3, b"GNU\0", b"0123456789abcdefghij");
        let both = [other.clone(), id.clone()].concat();
        assert_eq!(build_id(&both), Some(&b"0123456789abcdefghij"[..]));
        assert_eq!(build_id(&other), None);
        for cut in 0..id.len() {
            assert_eq!(build_id(&id[..cut]), None);
        }
    }

    #[test]
    fn this_test_finds_its_own_code() {
        let (start, end) = program_code().unwrap();
        let here = this_test_finds_its_own_code as *const () as usize;
        assert!((start..end).contains(&here), "{start:x} {here:x} {end:x}");
    }
}
