//! The page map: from an address to what lies there, in two dependent loads and without locks.
//!
//! A root in zeroed static memory points to leaves of 2 GB each. A leaf keeps a *tag* of two bytes
//! and a pointer to span metadata for each page. The tag is all that `free` needs, so that 32
//! pages' worth of it lie in a cache line; the pointer is for slow paths.
//!
//! Tags and pointers are written before a span's first object is handed out and cleared after its
//! last one came back, so whoever legitimately holds an object reads what belongs to it. Reading
//! for any other address is defined, too: it answers "not ours".

use core::ops::Range;
use core::ptr::{NonNull, null_mut};

use crate::near::near;
use crate::sizes::{PAGE_BYTES, PAGE_SHIFT};
use crate::span::Span;
use crate::sync::{AtomicPtr, AtomicU16, Ordering};
use crate::sys;

const ADDRESS_BITS: u32 = 48;
const LEAF_BITS: u32 = 18;
const LEAF_PAGES: usize = 1 << LEAF_BITS;
const ROOT_LENGTH: usize = 1 << (ADDRESS_BITS - PAGE_SHIFT - LEAF_BITS);

/// The class in the tag of the first page of a large object.
pub const LARGE: u16 = 0xff;

/// Tag of a page: a size class in the low byte (0: not ours, [`LARGE`]: the beginning of a large
/// object) and in the high byte the number of the page in its span.
pub type Tag = u16;

struct Leaf {
    tags: [AtomicU16; LEAF_PAGES],
    spans: [AtomicPtr<Span>; LEAF_PAGES],
}

static ROOT: [AtomicPtr<Leaf>; ROOT_LENGTH] = [const { AtomicPtr::new(null_mut()) }; ROOT_LENGTH];

#[inline(always)]
fn leaf(address: usize) -> Option<&'static Leaf> {
    let pointer = near!(ROOT: [AtomicPtr<Leaf>; ROOT_LENGTH])
        .get(address >> (PAGE_SHIFT + LEAF_BITS))?
        .load(Ordering::Acquire);
    // SAFETY: a leaf is zeroed memory from the system, valid as atomics, published once and never
    // unmapped. Needed because leaves come from the system, not from Rust.
    unsafe { pointer.as_ref() }
}

#[inline(always)]
fn slot(address: usize) -> usize {
    (address >> PAGE_SHIFT) & (LEAF_PAGES - 1)
}

/// The tag of the page at `address`, if a page near it was ever entered.
#[inline(always)]
pub fn find_tag(address: usize) -> Option<usize> {
    leaf(address).map(|leaf| usize::from(leaf.tags[slot(address)].load(Ordering::Relaxed)))
}

/// The tag of the page at `address`.
pub fn tag(address: usize) -> Tag {
    find_tag(address).unwrap_or(0) as Tag
}

/// The metadata of the span that the page at `address` belongs to.
pub fn span(address: usize) -> Option<NonNull<Span>> {
    NonNull::new(leaf(address)?.spans[slot(address)].load(Ordering::Acquire))
}

/// Ask for what lies at `address`, which will be needed soon.
#[inline(always)]
pub fn prefetch(address: usize) {
    // Miri runs no assembly.
    if cfg!(miri) {
        return;
    }
    // SAFETY: a prefetch changes nothing that a program can see, whatever the address. Needed
    // because the language has no such operation.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("prefetcht0 byte ptr [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
}

/// Make a leaf for `address`; `false` if there is no memory.
fn ensure(address: usize) -> bool {
    let Some(root) = ROOT.get(address >> (PAGE_SHIFT + LEAF_BITS)) else {
        return false;
    };
    if !root.load(Ordering::Acquire).is_null() {
        return true;
    }
    let Some(fresh) = sys::map(size_of::<Leaf>()) else {
        return false;
    };
    let fresh = fresh.as_ptr() as usize as *mut Leaf;
    if root
        .compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        sys::unmap(fresh.cast(), size_of::<Leaf>());
    }
    true
}

/// Enter the pages of a span of small objects, which get their tags later ([`open`]). `false` if there
/// is no memory.
pub fn enter_small(address: usize, pages: usize, span: NonNull<Span>) -> bool {
    let last = address + (pages - 1) * PAGE_BYTES;
    if !ensure(address) || !ensure(last) {
        return false;
    }
    for index in 0..pages {
        set(address + index * PAGE_BYTES, 0, span.as_ptr());
    }
    true
}

/// Tag pages of a span of `class` that begins at `address`: from now on its objects there may be
/// freed.
pub fn open(address: usize, pages: Range<usize>, class: usize) {
    for index in pages {
        let page = address + index * PAGE_BYTES;
        if let Some(leaf) = leaf(page) {
            leaf.tags[slot(page)].store((index << 8 | class) as Tag, Ordering::Release);
        }
    }
}

/// Enter a large object: only its first page answers. `false` if there is no memory.
pub fn enter_large(address: usize, span: NonNull<Span>) -> bool {
    if !ensure(address) {
        return false;
    }
    set(address, LARGE, span.as_ptr());
    true
}

/// Forget `pages` pages.
pub fn leave(address: usize, pages: usize) {
    for index in 0..pages {
        set(address + index * PAGE_BYTES, 0, null_mut());
    }
}

/// Forget a large object if nobody else has yet; of several callers one gets `true`.
pub fn leave_large(address: usize) -> bool {
    leaf(address).is_some_and(|leaf| {
        leaf.tags[slot(address)]
            .compare_exchange(LARGE, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })
}

fn set(address: usize, tag: Tag, span: *mut Span) {
    if let Some(leaf) = leaf(address) {
        leaf.spans[slot(address)].store(span, Ordering::Release);
        leaf.tags[slot(address)].store(tag, Ordering::Release);
    }
}
