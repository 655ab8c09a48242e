//! The file that an address lies in, and where in it: what `addr2line` takes.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;

use contigua_syscalls::weak;

/// A program or library, as the dynamic linker describes it.
#[derive(Clone, Copy)]
pub struct Module {
    /// Load base: the difference between addresses in memory and in its file.
    pub base: usize,
    /// The file's path; empty: the program's.
    name: *const c_char,
}

/// The beginning of glibc's `struct link_map` (`link.h`).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
}

/// glibc's `struct dl_find_object` (`dlfcn.h`).
#[repr(C)]
struct Found {
    flags: u64,
    begin: *const c_void,
    end: *const c_void,
    map: *const LinkMap,
    others: [u64; 12],
}

/// Address searched for by `dl_iterate_phdr`, and the result.
struct Search {
    address: usize,
    found: Option<Module>,
}

impl Module {
    /// The module that an address lies in. Since glibc 2.35 this takes no lock; before, that of the dynamic linker, as
    /// the unwinder does.
    pub fn of(address: usize) -> Option<Self> {
        let find = weak!("_dl_find_object");
        if !find.is_null() {
            let mut found = MaybeUninit::<Found>::uninit();
            // SAFETY: the C library's function, which fills in what it finds (returning 0), and that has a link map
            // as long as the module stays.
            return unsafe {
                let find: extern "C" fn(*const c_void, *mut Found) -> c_int =
                    core::mem::transmute(find);
                (find(address as *const c_void, found.as_mut_ptr()) == 0).then(|| {
                    let map = &*found.assume_init_ref().map;
                    Self {
                        base: map.base,
                        name: map.name,
                    }
                })
            };
        }
        let mut search = Search {
            address,
            found: None,
        };
        // SAFETY: `step` gets the search back, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(step), (&raw mut search).cast()) };
        search.found
    }

    /// The file's path; nothing of the program's.
    pub fn name(&self) -> &[u8] {
        // SAFETY: NUL-terminated as long as the module stays.
        unsafe { CStr::from_ptr(self.name) }.to_bytes()
    }

    /// Returns true for this library.
    pub fn is_own(&self) -> bool {
        let file = self.name().rsplit(|&byte| byte == b'/').next();
        file.is_some_and(|file| file.starts_with(b"libcontigua_malloc."))
    }
}

unsafe extern "C" fn step(module: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the C library passes a module with its headers, and what `of` gave it.
    let (module, search, headers) = unsafe {
        let module = &*module;
        let headers = core::slice::from_raw_parts(module.dlpi_phdr, module.dlpi_phnum.into());
        (module, &mut *search.cast::<Search>(), headers)
    };
    let base = module.dlpi_addr as usize;
    let inside = |header: &libc::Elf64_Phdr| {
        let offset = search.address.wrapping_sub(base + header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && offset < header.p_memsz as usize
    };
    if headers.iter().any(inside) {
        search.found = Some(Module {
            base,
            name: module.dlpi_name,
        });
    }
    c_int::from(search.found.is_some())
}
