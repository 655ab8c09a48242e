//! No sequences, where there is no kernel that restarts them (Miri): caches belong to threads.

/// No CPU.
pub fn cpu() -> u32 {
    u32::MAX
}
/// Nothing.
#[inline(always)]
pub fn pop(_area: isize, _class: usize) -> usize {
    0
}
/// Not done.
#[inline(always)]
pub fn push(_area: isize, _class: usize, _item: usize) -> bool {
    false
}
/// None.
pub fn push_all(_class: usize, _items: &[usize]) -> usize {
    0
}
/// None.
pub fn pop_all(_class: usize, _out: &mut [usize]) -> usize {
    0
}
/// Nothing.
pub fn open(_cpu: u32, _class: usize, _header: u64) {}
