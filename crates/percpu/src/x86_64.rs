//! The sequences on x86-64, where the thread pointer is the base of segment FS.

use core::arch::asm;
use core::sync::atomic::Ordering;

use crate::{SLAB_SHIFT, Slabs};

/// The CPU that the thread runs on by its area, or a very large number if none is registered.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn cpu(slabs: &Slabs) -> u32 {
    let offset = slabs.offset.load(Ordering::Relaxed);
    if offset == 0 {
        return u32::MAX;
    }
    let cpu;
    // SAFETY: the C library keeps the area as long as the thread lives.
    unsafe {
        asm!(
            "mov {0:e}, dword ptr fs:[{1} + 4]",
            out(reg) cpu,
            in(reg) offset,
            options(nostack, preserves_flags, readonly)
        );
    }
    cpu
}

/// Take the object on top of this CPU's stack; 0 if there is none, and one time in 65,536: so that what
/// is due is done in a program that always finds an object.
///
/// # Safety
/// That of the [crate](crate#safety).
#[inline(always)]
pub unsafe fn pop(slabs: &Slabs, area: isize, class: usize) -> usize {
    let item: usize;
    // SAFETY: reads and writes only the thread's own area and, between labels 3 and 4, the
    // slab of the CPU it runs on, whose stacks nobody else touches while the sequence lasts;
    // an interrupted sequence has written nothing and starts again at 2. Needed because the
    // language cannot express a sequence that the kernel restarts.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "6: .long 0, 0",
            ".quad 3f, (4f - 3f), 7f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: jmp 2f",
            ".popsection",
            "2:",
            "lea {slab}, [rip + 6b]",
            "mov qword ptr fs:[{offset} + 8], {slab}",
            "3:",
            "xor {item:e}, {item:e}",
            "mov {slab:e}, dword ptr fs:[{offset} + 4]",
            "cmp {slab:e}, dword ptr [{hot} + 8]",
            "jae 5f",
            "shl {slab}, {shift}",
            "add {slab}, qword ptr [{hot}]",
            "movzx {current:e}, word ptr [{slab} + {class}*8]",
            "cmp {current:x}, word ptr [{slab} + {class}*8 + 2]",
            "jbe 5f",
            "dec word ptr [{slab} + 6]",
            "je 5f",
            "mov {item}, qword ptr [{slab} + {current}*8 - 8]",
            "dec {current:e}",
            "mov word ptr [{slab} + {class}*8], {current:x}",
            "4:",
            "5:",
            item = out(reg) item,
            slab = out(reg) _,
            current = out(reg) _,
            offset = in(reg) area,
            class = in(reg) class,
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
    item
}

/// Put an object on top of this CPU's stack; `false` if it is full.
///
/// # Safety
/// That of the [crate](crate#safety).
#[inline(always)]
pub unsafe fn push(slabs: &Slabs, area: isize, class: usize, item: usize) -> bool {
    // SAFETY: as in `pop`. The slot above the top belongs to nobody before `current` counts
    // it, so a sequence that is interrupted behind the first store has changed nothing.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "6: .long 0, 0",
            ".quad 3f, (4f - 3f), 7f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: jmp 2f",
            ".popsection",
            "2:",
            "lea r8, [rip + 6b]",
            "mov qword ptr fs:[{offset} + 8], r8",
            "3:",
            "mov r8d, dword ptr fs:[{offset} + 4]",
            "cmp r8d, dword ptr [{hot} + 8]",
            "jae {full}",
            "shl r8, {shift}",
            "add r8, qword ptr [{hot}]",
            "movzx r9d, word ptr [r8 + {class}*8]",
            "cmp r9w, word ptr [r8 + {class}*8 + 4]",
            "jae {full}",
            "cmp {item}, qword ptr [r8 + r9*8 - 8]",
            "je {full}",
            "cmp {item}, qword ptr [r8 + r9*8 - 16]",
            "je {full}",
            "mov qword ptr [r8 + r9*8], {item}",
            "inc r9d",
            "mov word ptr [r8 + {class}*8], r9w",
            "4:",
            out("r8") _,
            out("r9") _,
            offset = in(reg) area,
            full = label { return false },
            class = in(reg) class,
            item = in(reg) item,
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
    true
}

/// Put as many of `items` as there is room for on this CPU's stack, the last one on top; returns the
/// number put.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn push_all(slabs: &Slabs, class: usize, items: &[usize]) -> usize {
    let offset = slabs.offset.load(Ordering::Relaxed);
    if offset == 0 || items.is_empty() {
        return 0;
    }
    let done: usize;
    // SAFETY: as in `push`; reads `items`.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "6: .long 0, 0",
            ".quad 3f, (4f - 3f), 7f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: jmp 2f",
            ".popsection",
            "2:",
            "lea {slab}, [rip + 6b]",
            "mov qword ptr fs:[{offset} + 8], {slab}",
            "3:",
            "xor {done:e}, {done:e}",
            "mov {slab:e}, dword ptr fs:[{offset} + 4]",
            "cmp {slab:e}, dword ptr [{hot} + 8]",
            "jae 5f",
            "shl {slab}, {shift}",
            "add {slab}, qword ptr [{hot}]",
            "movzx {current:e}, word ptr [{slab} + {class}*8]",
            "movzx {room:e}, word ptr [{slab} + {class}*8 + 4]",
            "sub {room}, {current}",
            "jbe 5f",
            "cmp {room}, {count}",
            "cmova {room}, {count}",
            "8:",
            "mov {item}, qword ptr [{items} + {done}*8]",
            "mov qword ptr [{slab} + {current}*8], {item}",
            "inc {done}",
            "inc {current:e}",
            "cmp {done}, {room}",
            "jb 8b",
            "mov word ptr [{slab} + {class}*8], {current:x}",
            "4:",
            "5:",
            done = out(reg) done,
            slab = out(reg) _,
            current = out(reg) _,
            room = out(reg) _,
            item = out(reg) _,
            offset = in(reg) offset,
            class = in(reg) class,
            items = in(reg) items.as_ptr(),
            count = in(reg) items.len(),
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
    done
}

/// Take up to `out.len()` objects from the top of this CPU's stack; returns the number taken.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn pop_all(slabs: &Slabs, class: usize, out: &mut [usize]) -> usize {
    let offset = slabs.offset.load(Ordering::Relaxed);
    if offset == 0 || out.is_empty() {
        return 0;
    }
    let done: usize;
    // SAFETY: as in `pop`; writes `out` only, which nobody else sees before it is over.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "6: .long 0, 0",
            ".quad 3f, (4f - 3f), 7f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: jmp 2f",
            ".popsection",
            "2:",
            "lea {slab}, [rip + 6b]",
            "mov qword ptr fs:[{offset} + 8], {slab}",
            "3:",
            "xor {done:e}, {done:e}",
            "mov {slab:e}, dword ptr fs:[{offset} + 4]",
            "cmp {slab:e}, dword ptr [{hot} + 8]",
            "jae 5f",
            "shl {slab}, {shift}",
            "add {slab}, qword ptr [{hot}]",
            "movzx {current:e}, word ptr [{slab} + {class}*8]",
            "movzx {held:e}, word ptr [{slab} + {class}*8 + 2]",
            "neg {held}",
            "add {held}, {current}",
            "jle 5f",
            "cmp {held}, {count}",
            "cmova {held}, {count}",
            "8:",
            "mov {item}, qword ptr [{slab} + {current}*8 - 8]",
            "mov qword ptr [{out} + {done}*8], {item}",
            "inc {done}",
            "dec {current:e}",
            "cmp {done}, {held}",
            "jb 8b",
            "mov word ptr [{slab} + {class}*8], {current:x}",
            "4:",
            "5:",
            done = out(reg) done,
            slab = out(reg) _,
            current = out(reg) _,
            held = out(reg) _,
            item = out(reg) _,
            offset = in(reg) offset,
            class = in(reg) class,
            out = in(reg) out.as_mut_ptr(),
            count = in(reg) out.len(),
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
    done
}

/// Write the header of a class of `cpu`'s slab if it is still 0 and the thread runs there.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn open(slabs: &Slabs, cpu: u32, class: usize, header: u64) {
    let offset = slabs.offset.load(Ordering::Relaxed);
    if offset == 0 {
        return;
    }
    // SAFETY: as in `pop`; the last store is the whole effect.
    unsafe {
        asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "6: .long 0, 0",
            ".quad 3f, (4f - 3f), 7f",
            ".popsection",
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: jmp 2f",
            ".popsection",
            "2:",
            "lea {slab}, [rip + 6b]",
            "mov qword ptr fs:[{offset} + 8], {slab}",
            "3:",
            "mov {slab:e}, dword ptr fs:[{offset} + 4]",
            "cmp {slab:e}, {cpu:e}",
            "jne 5f",
            "cmp {slab:e}, dword ptr [{hot} + 8]",
            "jae 5f",
            "shl {slab}, {shift}",
            "add {slab}, qword ptr [{hot}]",
            "cmp qword ptr [{slab} + {class}*8], 0",
            "jne 5f",
            "mov qword ptr [{slab} + {class}*8], {header}",
            "4:",
            "5:",
            slab = out(reg) _,
            offset = in(reg) offset,
            class = in(reg) class,
            cpu = in(reg) cpu,
            header = in(reg) header,
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
}
