//! What the operating-system half of a translation design decides.

use contigua_units::{PageSize, VirtAddr};

use crate::vma::Vma;

/// What a policy may look at when a page is touched for the first time.
#[derive(Clone, Copy, Debug)]
pub struct FaultContext {
    /// The address that was touched.
    pub address: VirtAddr,
    /// The mapping that it lies in.
    pub vma: Vma,
    /// The largest page that would fit: wholly inside the mapping, where nothing is mapped yet.
    pub fits: PageSize,
}

/// What a policy may look at when the background pass comes to an aligned 2 MB range.
#[derive(Clone, Copy, Debug)]
pub struct CollapseContext {
    /// The mapping, which covers the range.
    pub vma: Vma,
    /// 4 KB pages that are mapped in the range, out of 512; at least one is.
    pub present: u32,
}

/// Decides which sizes of pages the kernel uses. The mechanism acts on the verdict, and falls back
/// to 4 KB when there is no memory for a larger page.
pub trait MappingPolicy: Send {
    /// The size of page to map for a fault; at most `context.fits`.
    fn on_fault(&self, context: &FaultContext) -> PageSize;

    /// Whether the background pass should make a 2 MB page of a range.
    fn collapse(&self, context: &CollapseContext) -> bool;
}
