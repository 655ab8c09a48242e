//! No sequences, where there is no kernel that restarts them (Miri): caches belong to threads.

use crate::Slabs;

/// No CPU.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn cpu(_slabs: &Slabs) -> u32 {
    u32::MAX
}
/// Nothing.
///
/// # Safety
/// That of the [crate](crate#safety).
#[inline(always)]
pub unsafe fn pop(_slabs: &Slabs, _area: isize, _class: usize) -> usize {
    0
}
/// Not done.
///
/// # Safety
/// That of the [crate](crate#safety).
#[inline(always)]
pub unsafe fn push(_slabs: &Slabs, _area: isize, _class: usize, _item: usize) -> bool {
    false
}
/// None.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn push_all(_slabs: &Slabs, _class: usize, _items: &[usize]) -> usize {
    0
}
/// None.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn pop_all(_slabs: &Slabs, _class: usize, _out: &mut [usize]) -> usize {
    0
}
/// Nothing.
///
/// # Safety
/// That of the [crate](crate#safety).
pub unsafe fn open(_slabs: &Slabs, _cpu: u32, _class: usize, _header: u64) {}
