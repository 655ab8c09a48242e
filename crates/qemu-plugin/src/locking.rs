//! Keeps a guest that locks all of its memory (`mlockall`) from locking QEMU's and ours.
//!
//! The kernel would populate all that is mapped in the process: gigabytes of the ring, of the map of
//! touched pages, and of what QEMU reserves. A plugin cannot answer a system call, but the kernel can:
//! a filter of the guest's thread lets the call succeed without doing anything. To the simulated
//! server, whether the host has memory in a swap file makes no difference.

use std::cell::Cell;
use std::mem::offset_of;

use contigua_program::syscall::Architecture;

thread_local! {
    static FILTERED: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is about to perform a system call of the guest's.
pub fn keep_from(architecture: Architecture, number: i64) {
    let locks_all = match architecture {
        Architecture::X86_64 => 151,
        Architecture::Aarch64 => 230,
    };
    if number == locks_all && may_lock() && !FILTERED.replace(true) {
        // Where the kernel takes no filter, it locks what there is.
        filter();
    }
}

/// Returns true if the guest may lock memory: without privileges and a limit, the call fails.
fn may_lock() -> bool {
    // SAFETY: plain system calls on a live structure.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit);
        limit.rlim_cur > 0 || libc::geteuid() == 0
    }
}

/// The kernel's name of a call's architecture (`include/uapi/linux/audit.h`).
const AUDIT_ARCHITECTURE: u32 = if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else {
    0xc000_003e
};

/// Lets the kernel answer `mlockall` of this thread, and of those that it starts, with success.
fn filter() {
    const fn statement(code: u32, value: u32) -> libc::sock_filter {
        jump(code, value, 0, 0)
    }
    const fn jump(code: u32, value: u32, then: u8, otherwise: u8) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: then,
            jf: otherwise,
            k: value,
        }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    /// An error that is none.
    const SUCCESS: u32 = libc::SECCOMP_RET_ERRNO;
    let mut instructions = [
        statement(LOAD, offset_of!(libc::seccomp_data, arch) as u32),
        jump(IS, AUDIT_ARCHITECTURE, 0, 3),
        statement(LOAD, offset_of!(libc::seccomp_data, nr) as u32),
        jump(IS, libc::SYS_mlockall as u32, 0, 1),
        statement(RETURN, SUCCESS),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: instructions.len() as u16,
        filter: instructions.as_mut_ptr(),
    };
    // SAFETY: plain system calls; the program and its instructions live during the second one. That
    // programs which are executed gain no privileges changes nothing: they are QEMU, which has none.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        );
    }
}
