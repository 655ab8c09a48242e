//! The sequences on aarch64, where the thread pointer is `tpidr_el0`.
//!
//! An instruction has one store, of a register or a pair, so that the last one of a sequence can
//! be its effect as on x86-64. The signature before an abort handler is the instruction
//! `brk #0x45e0`, as the C library registers it.

use core::arch::asm;
use core::sync::atomic::Ordering;

use crate::{SLAB_SHIFT, Slabs};

/// The descriptor of the sequence from label 3 to 4, and its abort handler, which starts it again
/// at 2; then label 2, which tells the kernel, and 3.
macro_rules! begin {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "6: .word 0, 0\n",
            ".quad 3f, (4f - 3f), 7f\n",
            ".popsection\n",
            ".pushsection __rseq_failure, \"ax\"\n",
            ".inst 0xd428bc00\n",
            "7: b 2f\n",
            ".popsection\n",
            "2:\n",
            "adrp {slab}, 6b\n",
            "add {slab}, {slab}, :lo12:6b\n",
            "str {slab}, [{area}, #8]\n",
            "3:",
        )
    };
}

/// The slab of the CPU that the thread runs on, and the header of the class; to label 5 if there is
/// none. The number of CPUs is loaded with acquire: who sees that a drain is over must see the
/// headers that it left.
macro_rules! slab {
    () => {
        concat!(
            "ldr {slab:w}, [{area}, #4]\n",
            "add {head}, {hot}, #8\n",
            "ldar {head:w}, [{head}]\n",
            "cmp {slab:w}, {head:w}\n",
            "b.hs 5f\n",
            "ldr {head}, [{hot}]\n",
            "add {slab}, {head}, {slab}, lsl #{shift}\n",
            "add {head}, {slab}, {class}, lsl #3",
        )
    };
}

/// The area of the calling thread, which lies `offset` behind its thread pointer.
#[inline(always)]
fn area(offset: isize) -> *const u32 {
    let pointer: *const u32;
    // SAFETY: reads the thread register.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer.wrapping_byte_offset(offset)
}

/// The CPU that the thread runs on by its area, or a very large number if none is registered.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn cpu(slabs: &Slabs) -> u32 {
    let offset = slabs.offset.load(Ordering::Relaxed);
    if offset == 0 {
        return u32::MAX;
    }
    // SAFETY: the C library keeps the area as long as the thread lives; the kernel changes the word.
    unsafe { area(offset).add(1).read_volatile() }
}

/// Take the object on top of this CPU's stack; 0 if there is none, and one time in 65,536: so that what
/// is due is done in a program that always finds an object.
///
/// # Safety
/// That of the [crate](crate#safety).
#[inline(always)]
pub unsafe fn pop(slabs: &Slabs, offset: isize, class: usize) -> usize {
    let item: usize;
    // SAFETY: reads and writes only the thread's own area and, between labels 3 and 4, the slab of
    // the CPU it runs on, whose stacks nobody else touches while the sequence lasts; an interrupted
    // sequence has written nothing and starts again at 2. Needed because the language cannot
    // express a sequence that the kernel restarts.
    unsafe {
        asm!(
            begin!(),
            "mov {item}, xzr",
            slab!(),
            "ldrh {current:w}, [{head}]",
            "ldrh {begin:w}, [{head}, #2]",
            "cmp {current:w}, {begin:w}",
            "b.ls 5f",
            "ldrh {begin:w}, [{slab}, #6]",
            "sub {begin:w}, {begin:w}, #1",
            "strh {begin:w}, [{slab}, #6]",
            "tst {begin:w}, #0xffff",
            "b.eq 5f",
            "sub {current:w}, {current:w}, #1",
            "ldr {item}, [{slab}, {current}, lsl #3]",
            "strh {current:w}, [{head}]",
            "4:",
            "5:",
            item = out(reg) item,
            slab = out(reg) _,
            head = out(reg) _,
            current = out(reg) _,
            begin = out(reg) _,
            area = in(reg) area(offset),
            class = in(reg) class,
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
    item
}

/// Put an object on top of this CPU's stack; `false` if the stack is full, or if the object is one
/// of the two on its top.
///
/// # Safety
/// That of the [crate](crate#safety).
#[inline(always)]
pub unsafe fn push(slabs: &Slabs, offset: isize, class: usize, item: usize) -> bool {
    let done: u32;
    // SAFETY: as in `pop`. The slot above the top belongs to nobody before `current` counts it, so
    // a sequence that is interrupted behind the first store has changed nothing. What lies below
    // the first slot of a class is another one's, or a header, and only compared.
    unsafe {
        asm!(
            begin!(),
            "mov {done:w}, wzr",
            slab!(),
            "ldrh {current:w}, [{head}]",
            "ldrh {other:w}, [{head}, #4]",
            "cmp {current:w}, {other:w}",
            "b.hs 5f",
            "add {slab}, {slab}, {current}, lsl #3",
            "ldp {other}, {done:x}, [{slab}, #-16]",
            "cmp {other}, {item}",
            "ccmp {done:x}, {item}, #4, ne",
            "mov {done:w}, wzr",
            "b.eq 5f",
            "str {item}, [{slab}]",
            "add {current:w}, {current:w}, #1",
            "strh {current:w}, [{head}]",
            "4:",
            "mov {done:w}, #1",
            "5:",
            done = out(reg) done,
            slab = out(reg) _,
            head = out(reg) _,
            current = out(reg) _,
            other = out(reg) _,
            area = in(reg) area(offset),
            class = in(reg) class,
            item = in(reg) item,
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
    done != 0
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
            begin!(),
            "mov {done}, xzr",
            slab!(),
            "ldrh {current:w}, [{head}]",
            "ldrh {room:w}, [{head}, #4]",
            "subs {room}, {room}, {current}",
            "b.ls 5f",
            "cmp {room}, {count}",
            "csel {room}, {count}, {room}, hi",
            "8:",
            "ldr {item}, [{items}, {done}, lsl #3]",
            "str {item}, [{slab}, {current}, lsl #3]",
            "add {done}, {done}, #1",
            "add {current:w}, {current:w}, #1",
            "cmp {done}, {room}",
            "b.lo 8b",
            "strh {current:w}, [{head}]",
            "4:",
            "5:",
            done = out(reg) done,
            slab = out(reg) _,
            head = out(reg) _,
            current = out(reg) _,
            room = out(reg) _,
            item = out(reg) _,
            area = in(reg) area(offset),
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
            begin!(),
            "mov {done}, xzr",
            slab!(),
            "ldrh {current:w}, [{head}]",
            "ldrh {held:w}, [{head}, #2]",
            "subs {held}, {current}, {held}",
            "b.le 5f",
            "cmp {held}, {count}",
            "csel {held}, {count}, {held}, hi",
            "8:",
            "sub {current:w}, {current:w}, #1",
            "ldr {item}, [{slab}, {current}, lsl #3]",
            "str {item}, [{out}, {done}, lsl #3]",
            "add {done}, {done}, #1",
            "cmp {done}, {held}",
            "b.lo 8b",
            "strh {current:w}, [{head}]",
            "4:",
            "5:",
            done = out(reg) done,
            slab = out(reg) _,
            head = out(reg) _,
            current = out(reg) _,
            held = out(reg) _,
            item = out(reg) _,
            area = in(reg) area(offset),
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
            begin!(),
            "ldr {slab:w}, [{area}, #4]",
            "cmp {slab:w}, {cpu:w}",
            "b.ne 5f",
            slab!(),
            "ldr {slab}, [{head}]",
            "cbnz {slab}, 5f",
            "str {header}, [{head}]",
            "4:",
            "5:",
            slab = out(reg) _,
            head = out(reg) _,
            area = in(reg) area(offset),
            class = in(reg) class,
            cpu = in(reg) cpu,
            header = in(reg) header,
            hot = in(reg) slabs,
            shift = const SLAB_SHIFT,
            options(nostack)
        );
    }
}
