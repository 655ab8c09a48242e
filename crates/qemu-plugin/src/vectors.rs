//! Vectors of system calls (`struct iovec`): which of the program's memory a call moved.

use contigua_program::pieces::MOST_PIECES;
use contigua_program::syscall::Known;
use contigua_program::wire::{Event, Syscall};
use contigua_units::{VirtAddr, VirtRange};

use crate::{guest, plugin, vcpu};

/// Bytes of `struct iovec`, `struct msghdr` and `struct mmsghdr` where words have 64 bits.
const ELEMENT: usize = 16;
const MESSAGE: usize = 56;
const COUNTED_MESSAGE: usize = 64;
/// Where `msg_iov` and `msg_iovlen` are in a `struct msghdr`, and `msg_len` in a `struct mmsghdr`.
const VECTOR: usize = 16;
const VECTOR_LENGTH: usize = 24;
const MESSAGE_BYTES: usize = 56;

/// A system call as the simulated kernel takes it: a `vmsplice` from a pipe copies, as `readv` does
/// (`vmsplice_to_user`, `fs/splice.c`).
pub fn told(syscall: Syscall) -> Syscall {
    let architecture = plugin().architecture;
    if Known::of(architecture, syscall.number) != Some(Known::Vmsplice) {
        return syscall;
    }
    // SAFETY: asks for the flags of a descriptor, which need not be valid.
    let flags = unsafe { libc::fcntl(syscall.arguments[0] as i32, libc::F_GETFL) };
    let reads = flags >= 0 && flags & libc::O_ACCMODE == libc::O_RDONLY;
    match Known::Readv.number(architecture) {
        Some(number) if reads => Syscall { number, ..syscall },
        _ => syscall,
    }
}

/// Tells the elements of the vectors of a call that has returned, up to what it moved.
pub fn tell(index: u32, syscall: &Syscall) {
    let Some(known) = Known::of(plugin().architecture, syscall.number) else {
        return;
    };
    let Ok(result @ 1..) = u64::try_from(syscall.result) else {
        return;
    };
    let [_, address, count, ..] = syscall.arguments;
    match known {
        Known::Readv
        | Known::Preadv
        | Known::Preadv2
        | Known::Writev
        | Known::Pwritev
        | Known::Pwritev2
        | Known::Vmsplice => tell_vector(index, address, count, result),
        Known::Recvmsg | Known::Sendmsg => tell_message(index, address, result),
        // The result counts messages.
        Known::Recvmmsg | Known::Sendmmsg => {
            for message in 0..result.min(MOST_PIECES as u64) {
                let at = address.wrapping_add(message * COUNTED_MESSAGE as u64);
                let mut bytes = [0; 4];
                if guest::read(at.wrapping_add(MESSAGE_BYTES as u64), &mut bytes).is_some() {
                    tell_message(index, at, u64::from(u32::from_le_bytes(bytes)));
                }
            }
        }
        _ => {}
    }
}

fn tell_message(index: u32, address: u64, moved: u64) {
    let mut message = [0; MESSAGE];
    if guest::read(address, &mut message).is_some() {
        let [vector, count] = [VECTOR, VECTOR_LENGTH].map(|at| word(&message[at..]));
        tell_vector(index, vector, count, moved);
    }
}

fn tell_vector(index: u32, address: u64, count: u64, mut moved: u64) {
    let mut elements = vec![0; ELEMENT * count.min(MOST_PIECES as u64) as usize];
    if guest::read(address, &mut elements).is_none() {
        return;
    }
    for element in elements.chunks_exact(ELEMENT) {
        let [start, bytes] = [0, 8].map(|at| word(&element[at..]));
        let taken = bytes.min(moved);
        moved -= taken;
        if taken > 0 {
            let range = VirtRange {
                start: VirtAddr::new(start),
                end: VirtAddr::new(start.wrapping_add(taken)),
            };
            vcpu::append_event(index, &Event::Piece { range });
        }
    }
}

/// The first word of 64 bits.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|at| bytes[at]))
}
