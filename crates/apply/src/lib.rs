//! Huge pages for the mappings that an advice names, in a program that knows nothing of it.
//!
//! `contigua-node apply` preloads this library and passes the advice in [`rules::VARIABLE`]. The library
//! replaces `mmap` alone: a mapping that a rule names is aligned to 2 MB and gets `MADV_HUGEPAGE`. Nothing
//! else of the program changes, and nothing happens in programs other than the one that is named.
//!
//! Nothing here allocates, or takes a lock: `mmap` is called inside of mallocs.

#![no_std]

// For panics, which are bugs and end the process. The unwinder is linked into the library, so that programs in a
// folder without `libgcc_s.so.1` start.
extern crate std;

#[cfg_attr(
    target_env = "gnu",
    link(name = "gcc_eh", kind = "static", modifiers = "-bundle")
)]
unsafe extern "C" {}

mod code;
mod maps;
mod objects;
mod report;
pub mod rules;
mod stack;

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use report::Report;
use rules::Rules;

/// Rules of the process and their counters; written once, before there is a second thread.
struct Applied {
    rules: UnsafeCell<Rules>,
    report: UnsafeCell<Report>,
    is_ready: AtomicBool,
}

// SAFETY: `start` writes the cells before it sets `is_ready`, and nothing reads them before.
unsafe impl Sync for Applied {}

static APPLIED: Applied = Applied {
    rules: UnsafeCell::new(Rules::none()),
    report: UnsafeCell::new(Report::NONE),
    is_ready: AtomicBool::new(false),
};

impl Applied {
    /// The rules of this process, and where to count; `None` where there are none.
    fn get(&self) -> Option<(&Rules, &Report)> {
        // SAFETY: nothing writes the cells once `is_ready` is set.
        let read = || unsafe { (&*self.rules.get(), &*self.report.get()) };
        self.is_ready.load(Ordering::Acquire).then(read)
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Reads the rules, before the program's own code runs.
extern "C" fn start() {
    // SAFETY: the name is NUL-terminated; nobody changes the environment before `main`.
    let value = unsafe { libc::getenv(rules::VARIABLE.as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: `getenv` returns a NUL-terminated string.
    let text = unsafe { core::ffi::CStr::from_ptr(value) };
    // SAFETY: one thread runs, and `is_ready` is not set: nobody else reads or writes the cells.
    let (rules, report) = unsafe { (&mut *APPLIED.rules.get(), &mut *APPLIED.report.get()) };
    if rules.read(text.to_bytes()).is_none() || !objects::is_program(&rules.program) {
        return;
    }
    objects::resolve(rules);
    *report = Report::open();
    report.started();
    if let Some(rule) = rules.code() {
        report.count(rule, code::move_to_huge_pages());
    }
    APPLIED.is_ready.store(true, Ordering::Release);
}

/// `mmap`, and where it was called: the return address, and the caller's stack pointer.
#[allow(
    clippy::too_many_arguments,
    reason = "the six of mmap, and the place of its call"
)]
unsafe extern "C" fn map(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
    caller: usize,
    stack: usize,
) -> *mut c_void {
    let request = maps::Request {
        address,
        bytes,
        protection,
        flags,
        file,
        offset,
    };
    let rule = APPLIED.get().and_then(|(rules, report)| {
        let kind = request.is_plain_memory();
        let rule = rules.find(
            kind.then_some(request.pages()),
            caller,
            stack,
            objects::resolve_late,
        )?;
        Some((rule, report))
    });
    match rule {
        None => request.map(),
        Some((rule, report)) => {
            let (memory, result) = request.map_huge();
            report.count(rule, result);
            memory
        }
    }
}

/// Defines a function that passes its arguments, its return address and its caller's stack pointer to [`map`].
macro_rules! entry {
    ($name:ident) => {
        /// `mmap(2)`.
        ///
        /// # Safety
        /// As of `mmap`.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            bytes: usize,
            protection: c_int,
            flags: c_int,
            file: c_int,
            offset: libc::off_t,
        ) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "lea rax, [rsp + 8]",
                "mov r10, [rsp]",
                // Eight bytes more keep the stack aligned to 16.
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                "push r10",
                ".cfi_adjust_cfa_offset 8",
                "call {map}",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                ".cfi_endproc",
                map = sym map,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "hint #34", // bti c
                "mov x6, x30",
                "mov x7, sp",
                "b {map}",
                map = sym map,
            );
        }
    };
}

entry!(mmap);
entry!(mmap64);
