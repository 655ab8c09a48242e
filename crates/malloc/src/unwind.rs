//! Call stacks, through the compiler's unwinder.
//!
//! Frame pointers would be faster, and Debian's libraries have none. The unwinder
//! (`_Unwind_Backtrace` of libgcc) reads the tables that are there for exceptions. It is linked into
//! the library, so that a program in a folder without `libgcc_s.so.1` (chroot) starts. It allocates nothing; with glibc 2.35 and libgcc 12 or later it takes no lock
//! either (`_dl_find_object`), with older ones the dynamic linker's, which a thread that is inside
//! the dynamic linker may take again. No lock of this allocator is held meanwhile.

use core::ffi::{c_int, c_void};

/// What the unwinder knows of a frame.
type Context = *mut c_void;

#[cfg_attr(
    all(feature = "interpose", target_env = "gnu"),
    link(name = "gcc_eh", kind = "static", modifiers = "-bundle")
)]
unsafe extern "C" {
    fn _Unwind_Backtrace(
        step: extern "C" fn(Context, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: Context, before: *mut c_int) -> usize;
    fn _Unwind_FindEnclosingFunction(address: *mut c_void) -> *mut c_void;
}

const GO_ON: c_int = 0;
const STOP: c_int = 5; // _URC_END_OF_STACK

struct Walk {
    frames: *mut usize,
    room: usize,
    depth: usize,
}

/// The addresses of the calls that led here, the innermost first; returns their number.
#[inline(never)]
pub fn capture(frames: &mut [usize]) -> usize {
    let mut walk = Walk {
        frames: frames.as_mut_ptr(),
        room: frames.len(),
        depth: 0,
    };
    // SAFETY: `step` gets the walk back, which outlives the call. Needed because the language has
    // no stacks.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    walk.depth
}

/// Where the function begins that has an instruction at `address`; 0 if nobody knows.
pub fn function_of(address: usize) -> usize {
    // SAFETY: the unwinder looks the address up and does not use it.
    unsafe { _Unwind_FindEnclosingFunction(address as *mut c_void) as usize }
}

extern "C" fn step(context: Context, walk: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes its own context and what `capture` gave it; the write is below
    // `room`.
    unsafe {
        let walk = &mut *walk.cast::<Walk>();
        let mut before = 0;
        let address = _Unwind_GetIPInfo(context, &raw mut before);
        if address == 0 || walk.depth == walk.room {
            return STOP;
        }
        // A return address lies behind its call, perhaps in the next function.
        walk.frames
            .add(walk.depth)
            .write(address - usize::from(before == 0));
        walk.depth += 1;
    }
    GO_ON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the unwinder is no Rust")]
    fn is_the_caller_on_the_stack() {
        let mut frames = [0; 8];
        let depth = capture(&mut frames);
        assert!(depth > 2);
        let own = capture as *const () as usize;
        assert!(
            (own..own + 4096).contains(&frames[0]),
            "the innermost first"
        );
        assert_eq!(function_of(frames[0]), own);
        assert_eq!(function_of(8), 0);
        assert_eq!(capture(&mut frames[..1]), 1);
    }
}
