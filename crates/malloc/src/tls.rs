//! One word for each thread, and who the thread is.
//!
//! The word holds the thread's cache where there are no restartable sequences. It is declared in
//! assembly, in the initial-exec model: `std::thread_local!` would compile to a call that, for a
//! library loaded with `dlopen`, may allocate.

use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss.contigua_malloc_thread, \"awT\", @nobits",
    ".globl contigua_malloc_thread",
    ".hidden contigua_malloc_thread",
    ".type contigua_malloc_thread, %object",
    ".size contigua_malloc_thread, 8",
    ".balign 8",
    "contigua_malloc_thread:",
    ".zero 8",
    ".popsection",
);

/// A number that no other living thread of the process has.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads the thread control block's pointer to itself (x86-64 psABI) or the thread
    // register. Needed because the language has no allocation-free name of the current thread.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}

/// Where the thread's word lies.
#[inline(always)]
fn address() -> *mut usize {
    let offset: usize;
    // SAFETY: reads the offset that the dynamic linker assigned to the symbol above. Needed
    // because initial-exec thread-locals are not in the stable language.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov {}, qword ptr [rip + contigua_malloc_thread@GOTTPOFF]",
            out(reg) offset,
            options(nostack, preserves_flags, readonly, pure)
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "adrp {0}, :gottprel:contigua_malloc_thread",
            "ldr {0}, [{0}, :gottprel_lo12:contigua_malloc_thread]",
            out(reg) offset,
            options(nostack, preserves_flags, readonly, pure)
        );
    }
    thread_pointer().wrapping_add(offset) as *mut usize
}

/// The thread's word, 0 at first.
#[inline(always)]
pub fn get() -> usize {
    // SAFETY: the word is the thread's own and lives as long as the thread.
    unsafe { address().read() }
}

/// Set the thread's word.
pub fn set(value: usize) {
    // SAFETY: as in `get`.
    unsafe { address().write(value) }
}
