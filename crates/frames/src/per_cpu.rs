//! Per-CPU lists of single free frames (Linux, `mm/page_alloc.c`): most allocations and frees stay
//! on their CPU, and frames come from and go to the free lists in batches.

use crate::block::MigrateType;
use crate::chain::Chain;

/// The lists of one CPU.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct CpuRecord {
    pub(crate) lists: [Chain; MigrateType::PER_CPU],
}

impl CpuRecord {
    /// Frames on all lists.
    #[inline]
    pub(crate) fn length(&self) -> u32 {
        self.lists.iter().map(|list| list.length).sum()
    }
}

/// The slot of a type, if it has per-CPU lists.
#[inline]
pub(crate) fn slot(kind: MigrateType) -> Option<usize> {
    let slot = kind as usize;
    (slot < MigrateType::PER_CPU).then_some(slot)
}
