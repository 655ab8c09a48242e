//! Functions that QEMU's program finds elsewhere than in the C library.
//!
//! A dynamic program calls its libraries through a table of addresses (`.got`), filled by its loader from
//! relocations that name the functions. QEMU loads plugins only if it is such a program. Entries of
//! other libraries, and of this one, stay: they call the C library itself.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

/// Entries of the dynamic section (`elf.h`).
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
/// Relocations that put a function's address into the table (`R_X86_64_JUMP_SLOT` and
/// `R_X86_64_GLOB_DAT`; aarch64's have the same names).
const SLOTS: [u64; 2] = if cfg!(target_arch = "aarch64") {
    [1026, 1025]
} else {
    [7, 6]
};

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

#[derive(Default)]
struct Program {
    /// Distance of addresses from those in the file.
    bias: u64,
    dynamic: u64,
    /// Addresses that are read-only once the loader is done (`PT_GNU_RELRO`).
    sealed: (u64, u64),
}

/// Gives QEMU's program `function` for the functions of these names. Some may be missing, not all.
pub fn replace(names: &[&str], function: *const c_void) -> Result<(), String> {
    let mut program = Program::default();
    // SAFETY: the callback has the type that is asked for, and its data live during the call.
    unsafe { libc::dl_iterate_phdr(Some(find), (&raw mut program).cast()) };
    let mut count = 0;
    // SAFETY: the loader has mapped the program's dynamic section and what it names, and they end as
    // they say. Slots are written while no other thread of QEMU's runs its program.
    unsafe {
        let (mut strings, mut symbols) = (0, 0);
        let mut tables = [(0, 0); 2];
        let mut entry = program.dynamic as *const Dynamic;
        while !entry.is_null() && (*entry).tag != 0 {
            let value = (*entry).value;
            // The GNU C library has made addresses of these; others leave them as they are in the file.
            let address = if value < program.bias {
                value + program.bias
            } else {
                value
            };
            match (*entry).tag {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_JMPREL => tables[0].0 = address,
                DT_PLTRELSZ => tables[0].1 = value,
                DT_RELA => tables[1].0 = address,
                DT_RELASZ => tables[1].1 = value,
                _ => {}
            }
            entry = entry.add(1);
        }
        for (start, bytes) in tables {
            let length = if start == 0 {
                0
            } else {
                bytes as usize / size_of::<Relocation>()
            };
            for index in 0..length {
                let relocation = &*(start as *const Relocation).add(index);
                if !SLOTS.contains(&(relocation.info & 0xffff_ffff)) {
                    continue;
                }
                let symbol =
                    (symbols as *const libc::Elf64_Sym).add((relocation.info >> 32) as usize);
                let name = CStr::from_ptr((strings + u64::from((*symbol).st_name)) as *const _);
                if names.iter().any(|one| one.as_bytes() == name.to_bytes()) {
                    program.write(program.bias + relocation.offset, function)?;
                    count += 1;
                }
            }
        }
    }
    if count == 0 {
        return Err(format!(
            "this QEMU does not call {} of the C library",
            names[0]
        ));
    }
    Ok(())
}

impl Program {
    /// Writes an entry of the table.
    ///
    /// # Safety
    /// `slot` is one, and its page has no code.
    unsafe fn write(&self, slot: u64, function: *const c_void) -> Result<(), String> {
        let page = slot & !4095;
        // SAFETY: as the caller promises.
        unsafe {
            if libc::mprotect(
                page as *mut c_void,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
            ) != 0
            {
                let error = std::io::Error::last_os_error();
                return Err(format!(
                    "QEMU's table of functions cannot be written: {error}"
                ));
            }
            ptr::write_volatile(slot as *mut *const c_void, function);
            if page >= self.sealed.0 & !4095 && page + 4096 <= self.sealed.1 {
                libc::mprotect(page as *mut c_void, 4096, libc::PROT_READ);
            }
        }
        Ok(())
    }
}

/// Notes where the program's tables are; the program comes first.
unsafe extern "C" fn find(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    program: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, and `replace` its own data.
    unsafe {
        let (info, program) = (&*info, &mut *program.cast::<Program>());
        program.bias = info.dlpi_addr;
        for index in 0..usize::from(info.dlpi_phnum) {
            let header = &*info.dlpi_phdr.add(index);
            let start = info.dlpi_addr + header.p_vaddr;
            match header.p_type {
                libc::PT_DYNAMIC => program.dynamic = start,
                libc::PT_GNU_RELRO => program.sealed = (start, start + header.p_memsz),
                _ => {}
            }
        }
    }
    1
}
