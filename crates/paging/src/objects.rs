//! Shared objects: what their mappings have of them, and where their pages are.

use std::collections::BTreeMap;

use contigua_state::Plain;
use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr};

use crate::effects::Resident;

/// Pages of 4 KB in one of 2 MB.
pub(crate) const PARTS: u64 = PageSize::Size2M.frames() as u64;

/// Names a shared object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Plain)]
pub struct ObjectId(pub u64);

/// The part of a shared object that a mapping has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
pub struct Backing {
    /// The object.
    pub object: ObjectId,
    /// Address at which a mapping of all of the object would begin, modulo 2^64.
    pub origin: u64,
    /// The object is a file of a `tmpfs` that is mounted, which has huge pages by its own option.
    pub mounted: bool,
}

impl Backing {
    /// Number of the object's page at an address.
    pub(crate) fn page(&self, address: VirtAddr) -> u64 {
        address.get().wrapping_sub(self.origin) / PAGE_BYTES
    }

    /// The part at addresses that are a distance further.
    pub(crate) fn moved(self, distance: u64) -> Self {
        Self {
            origin: self.origin.wrapping_add(distance),
            ..self
        }
    }
}

/// A shared object.
#[derive(Clone, Debug, Default, Plain)]
pub(crate) struct Object {
    /// Pages of 4 KB in mappings, once for each mapping.
    pub(crate) mapped: u64,
    /// Pages of 4 KB up to the farthest that was ever mapped.
    pub(crate) length: u64,
    /// `HugeTLB` has its pages.
    pub(crate) hugetlb: bool,
    /// First frame and size of its pages, by number of their first 4 KB.
    pub(crate) pages: BTreeMap<u64, (Frame, PageSize)>,
}

impl Object {
    /// The page that holds a page of 4 KB.
    pub(crate) fn page(&self, page: u64) -> Option<(Frame, PageSize)> {
        let (&first, &found) = self.pages.range(..=page).next_back()?;
        (page < first + u64::from(found.1.frames())).then_some(found)
    }

    pub(crate) fn has_page_within(&self, first: u64) -> bool {
        self.page(first).is_some() || self.pages.range(first..first + PARTS).next().is_some()
    }
}

/// All shared objects.
#[derive(Clone, Debug, Default, Plain)]
pub(crate) struct Objects {
    /// Objects that were made for a mapping, so far.
    pub(crate) unnamed: u64,
    pub(crate) all: BTreeMap<ObjectId, Object>,
    pub(crate) resident: Resident,
    /// Pages of `HugeTLB` among `resident`.
    pub(crate) hugetlb: u64,
}
