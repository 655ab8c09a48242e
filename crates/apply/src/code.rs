//! The program's code on huge pages.
//!
//! Kernels have huge pages for files of few file systems, so the code is copied to anonymous memory, which then
//! takes its place (as Intel's iodlr and BOLT's `--hugify` do). The whole blocks of 2 MB are moved.

use core::ptr::copy_nonoverlapping;

use crate::maps::{HUGE, Result, advise, errno, plain, relocate, unmap};
use crate::objects;

/// Moves the program's code. Refused with `ENOENT` where it has no whole block.
///
/// Only before the program's own code runs, while there is one thread.
pub fn move_to_huge_pages() -> Result {
    let Some((start, end)) = objects::program_code() else {
        return Err(libc::ENOENT);
    };
    let (start, end) = (start.next_multiple_of(HUGE), end / HUGE * HUGE);
    if end <= start {
        return Err(libc::ENOENT);
    }
    let bytes = end - start;
    let room = plain(bytes + HUGE).map();
    if room == libc::MAP_FAILED {
        return Err(errno());
    }
    let (room, room_end) = (room as usize, room as usize + bytes + HUGE);
    let copy = room.next_multiple_of(HUGE);
    let moved = advise(copy, bytes, libc::MADV_HUGEPAGE).and_then(|()| {
        // SAFETY: the code is mapped and readable, the copy is ours, as long, and elsewhere.
        unsafe { copy_nonoverlapping(start as *const u8, copy as *mut u8, bytes) };
        let access = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the copy is ours.
        if unsafe { libc::mprotect(copy as *mut _, bytes, access) } != 0 {
            return Err(errno());
        }
        // The replaced bytes are equal, and nothing of them runs now.
        relocate(copy, bytes, start)
    });
    if moved.is_err() {
        unmap(room, room_end - room);
        return moved;
    }
    unmap(room, copy - room);
    unmap(copy + bytes, room_end - (copy + bytes));
    moved
}
