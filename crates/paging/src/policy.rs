//! Decisions of the operating-system half of a translation design.

use contigua_units::{PageSize, VirtAddr};

use crate::holes::Holes;
use crate::orders::Orders;
use crate::vma::Vma;

/// Inputs of a policy when a page is touched for the first time.
#[derive(Clone, Copy, Debug)]
pub struct FaultContext {
    /// The address that was touched.
    pub address: VirtAddr,
    /// The mapping that it lies in.
    pub vma: Vma,
    /// The largest page that would fit: wholly inside the mapping, where nothing is mapped yet.
    pub fits: PageSize,
}

/// Inputs of a policy when the background pass comes to an aligned 2 MB range.
#[derive(Clone, Copy, Debug)]
pub struct CollapseContext {
    /// The mapping, which covers the range.
    pub vma: Vma,
    /// 4 KB pages that are mapped in the range, out of 512; at least one is.
    pub present: u32,
    /// Percentage of free memory that is in no block of 2 MB: the free memory fragmentation index (Gorman and Healy,
    /// ISMM 2008; Linux's `extfrag_for_order`).
    pub fragmentation: u64,
}

/// Inputs of a policy when a page of shared memory is touched for the first time by anybody, and 2 MB
/// around it would fit.
#[derive(Clone, Copy, Debug)]
pub struct SharedContext {
    /// The mapping that it lies in.
    pub vma: Vma,
    /// It is a file of a `tmpfs` that is mounted, which has huge pages by its own option.
    pub mounted: bool,
    /// The 2 MB end within the object.
    pub within_size: bool,
}

/// Decision on 2 MB of which some frames cannot be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoleVerdict {
    /// 4 KB pages.
    Split,
    /// A perforated page; the holes are translated one by one.
    Perforate,
    /// A 2 MB page: the hardware steps around missing frames.
    Tolerate,
}

/// Order in which the background pass makes 2 MB pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Promotion {
    /// By address, each process as much (Linux).
    #[default]
    ByAddress,
    /// By address, of the process with the largest promotion metric (Ingens). An idle huge page counts as so many.
    Fair {
        /// Weight of an idle huge page.
        idle_tax: f64,
    },
    /// By access coverage, of all processes (HawkEye).
    ByCoverage,
}

/// Decides which sizes of pages the kernel uses. The mechanism acts on the verdict, and falls back
/// to 4 KB when there is no memory for a larger page.
pub trait MappingPolicy: Send {
    /// The size of page to map for a fault; at most `context.fits`.
    fn on_fault(&self, context: &FaultContext) -> PageSize;

    /// Returns true if shared memory gets a page of 2 MB.
    fn maps_shared_huge(&self, context: &SharedContext) -> bool {
        let _ = context;
        false
    }

    /// Returns true if the background pass should make a 2 MB page of a range.
    fn collapse(&self, context: &CollapseContext) -> bool;

    /// Order in which the background pass makes 2 MB pages.
    fn promotion(&self) -> Promotion {
        Promotion::ByAddress
    }

    /// Returns true if the kernel takes back pages of zeros in huge pages, for which whoever runs the program tells of
    /// its stores ([`AddressSpace::enter`](crate::AddressSpace::enter)).
    fn recovers_zeros(&self) -> bool {
        false
    }

    /// Decides on 2 MB with these holes. A policy that perforates is used with tables that have
    /// shadows.
    fn on_holes(&self, holes: &Holes) -> HoleVerdict {
        let _ = holes;
        HoleVerdict::Split
    }

    /// Frames of a block that may be in use when a first touch, or the background pass, makes a perforated page of the
    /// others; 0 where only whole blocks are taken. Only with perforation.
    fn most_missing(&self) -> u32 {
        0
    }

    /// Returns true if huge pages begin with holes that are filled when they are touched, instead
    /// of being zeroed whole (the Perforated Page paper: against bloat). Only with perforation.
    fn is_lazy(&self) -> bool {
        false
    }

    /// Folios that a first touch may map where it maps no 2 MB page.
    fn folio_orders(&self, vma: Vma) -> Orders {
        let _ = vma;
        Orders::default()
    }

    /// Returns true if the aligned groups of 16 pages of folios are marked as contiguous (Arm's contiguous bit).
    fn marks_groups(&self) -> bool {
        false
    }

    /// Returns true if mappings keep the offset between their addresses and frames (CA paging).
    fn keeps_offsets(&self) -> bool {
        false
    }

    /// Returns true if a read maps the huge zero page where a write would map 2 MB (Linux's
    /// `transparent_hugepage/use_zero_page`).
    fn uses_huge_zero_page(&self) -> bool {
        false
    }

    /// Returns true if faults that want 1 GB take a free range of memory (Trident).
    fn takes_giant(&self) -> bool {
        false
    }

    /// Returns true if the background makes a page of 1 GB of a range in which so many 4 KB pages are in use.
    fn makes_giant(&self, vma: Vma, present: u64) -> bool {
        let _ = (vma, present);
        false
    }

    /// Returns true if pages of 2 MB and 1 GB come from those set aside at boot.
    fn uses_reserved(&self) -> bool {
        false
    }
}
