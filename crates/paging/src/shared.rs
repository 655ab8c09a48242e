//! Shared memory: objects of which every mapping sees the same pages (Linux's `mm/shmem.c`, and
//! `fs/hugetlbfs` for huge pages that the program asks for).
//!
//! The first touch of a page, by any process, allocates it. Faults of others map its frame, as those of
//! children after a fork: page tables of shared memory are not copied (`vma_needs_copy`).
//!
//! Simplifications, on purpose: an object ends with its last mapping, and its pages do not move.

use contigua_frames::FrameClass;
use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::{Effects, Fault, FaultKind};
use crate::faults::fault_around;
use crate::memory::Memory;
use crate::objects::{Backing, ObjectId, PARTS};
use crate::policy::{MappingPolicy, SharedContext};
use crate::space::{AddressSpace, effort_for, release};
use crate::table::Leaf;
use crate::vma::Vma;

/// Memory of shared objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMemory {
    /// Pages of 4 KB.
    pub pages_4k: u64,
    /// Pages of 2 MB that `shmem_enabled` allowed (`ShmemHugePages`).
    pub pages_2m: u64,
    /// Pages of 2 MB of `HugeTLB`.
    pub hugetlb: u64,
}

impl Memory {
    /// An object that only its mapping and those inherited from it have.
    pub fn unnamed_object(&mut self) -> ObjectId {
        self.objects.unnamed += 1;
        ObjectId(self.objects.unnamed)
    }

    /// Memory of shared objects, mapped now or not.
    #[must_use]
    pub fn shared_memory(&self) -> SharedMemory {
        let objects = &self.objects;
        SharedMemory {
            pages_4k: objects.resident.pages_4k,
            pages_2m: objects.resident.pages_2m - objects.hugetlb,
            hugetlb: objects.hugetlb,
        }
    }

    /// A mapping begins to have a range.
    pub(crate) fn map_object(&mut self, range: VirtRange, vma: &Vma) {
        if let Some(backing) = vma.backing {
            let object = self.objects.all.entry(backing.object).or_default();
            object.mapped += range.bytes() / PAGE_BYTES;
            object.length = object.length.max(backing.page(range.end));
            object.hugetlb |= vma.hugetlb;
        }
    }

    /// A mapping has a range no longer. The object goes with its last.
    pub(crate) fn unmap_object(&mut self, range: VirtRange, vma: &Vma, effects: &mut Effects) {
        let Some(backing) = vma.backing else {
            return;
        };
        let Some(object) = self.objects.all.get_mut(&backing.object) else {
            return;
        };
        object.mapped -= range.bytes() / PAGE_BYTES;
        if object.mapped > 0 {
            return;
        }
        let object = self.objects.all.remove(&backing.object).unwrap_or_default();
        for (frame, size) in object.pages.into_values() {
            *self.objects.resident.of(size) -= 1;
            self.objects.hugetlb -= u64::from(object.hugetlb && size == PageSize::Size2M);
            self.unshare_huge(frame, size);
            release(Leaf::new(frame, size, false), self, effects);
        }
    }

    /// Adds a page, whose frame the caller holds, to an object.
    fn extend_object(&mut self, object: ObjectId, first: u64, frame: Frame, size: PageSize) {
        let objects = &mut self.objects;
        let extended = objects.all.entry(object).or_default();
        extended.pages.insert(first, (frame, size));
        *objects.resident.of(size) += 1;
        objects.hugetlb += u64::from(extended.hugetlb && size == PageSize::Size2M);
        // Compaction would have to find every mapping.
        let _ = self.set_owner(frame, None);
    }

    /// Makes small pages of an object's huge page. Mappings of it stay.
    fn split_object(&mut self, object: ObjectId, first: u64, frame: Frame) {
        let objects = &mut self.objects;
        let Some(split) = objects.all.get_mut(&object) else {
            return;
        };
        split.pages.extend(
            (0..PARTS as u32).map(|i| (first + u64::from(i), (frame.offset(i), PageSize::Size4K))),
        );
        objects.resident.pages_2m -= 1;
        objects.resident.pages_4k += PARTS;
        objects.hugetlb -= u64::from(split.hugetlb);
        self.unshare_huge(frame, PageSize::Size2M);
        self.forget_reserved(frame);
        self.split_to(frame, PageSize::Size4K.order())
            .expect("an object's page is allocated");
    }
}

impl AddressSpace {
    /// Resolves a fault in a mapping of a shared object, where nothing is mapped yet.
    #[allow(
        clippy::too_many_arguments,
        reason = "one step of `fault`, kept apart to be read"
    )]
    pub(crate) fn fault_in_shared(
        &mut self,
        address: VirtAddr,
        write: bool,
        range: VirtRange,
        vma: Vma,
        backing: Backing,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        let Backing { object, .. } = backing;
        let page = backing.page(address);
        let first = page - page % PARTS;
        let fits = self.fits_shared(address, range, backing);
        let page_of = |memory: &Memory| memory.objects.all.get(&object)?.page(page);
        let known = page_of(memory);
        if known.is_none() {
            let wanted = self.wanted_of_object(address, range, vma, backing, policy, memory);
            let effort = effort_for(vma, memory);
            let class = FrameClass::Anonymous;
            let huge = Self::allocate_huge(wanted, class, effort, policy, memory, effects);
            let (frame, size) = match huge {
                Some(huge) => huge,
                None => (self.obtain_base(class, memory, effects)?, PageSize::Size4K),
            };
            let is_huge = size > PageSize::Size4K;
            memory.extend_object(object, if is_huge { first } else { page }, frame, size);
            effects.zero(address, frame, size);
        }
        if let Some((frame, PageSize::Size2M)) = page_of(memory)
            && !fits
        {
            memory.split_object(object, first, frame);
        }
        let (frame, size) = page_of(memory).ok_or(Error::OutOfMemory)?;
        let leaf = Leaf {
            dirty: write,
            ..Leaf::new(frame, size, vma.writable)
        };
        self.inherit(address, leaf, memory, effects)?;
        if known.is_some() && !write {
            self.map_object_around(address, range, vma, backing, memory, effects);
        }
        let kind = known.map_or(FaultKind::Anonymous, |_| FaultKind::File);
        Ok(Fault { kind, size })
    }

    /// Returns true if a shared object has the page at an address.
    pub(crate) fn is_of_object(&self, address: VirtAddr) -> bool {
        self.vma(address)
            .is_some_and(|(_, vma)| vma.backing.is_some())
    }

    /// Returns true if the 2 MB around an address can be one page of a mapping of an object.
    fn fits_shared(&self, address: VirtAddr, range: VirtRange, backing: Backing) -> bool {
        let whole = VirtRange::page_around(address, PageSize::Size2M);
        let congruent = whole.start.get().wrapping_sub(backing.origin);
        range.covers(whole)
            && congruent.is_multiple_of(PageSize::Size2M.bytes())
            && self.table.is_vacant(address, PageSize::Size2M)
    }

    /// Size of the page that the first touch of an object's page wants.
    pub(crate) fn wanted_of_object(
        &self,
        address: VirtAddr,
        range: VirtRange,
        vma: Vma,
        backing: Backing,
        policy: &dyn MappingPolicy,
        memory: &Memory,
    ) -> PageSize {
        let page = backing.page(address);
        let first = page - page % PARTS;
        let object = memory.objects.all.get(&backing.object);
        let context = SharedContext {
            vma: vma.under(self.disabled),
            mounted: backing.mounted,
            within_size: object.is_some_and(|object| first + PARTS <= object.length),
        };
        let is_wanted = vma.hugetlb || policy.maps_shared_huge(&context);
        let is_vacant = object.is_none_or(|object| !object.has_page_within(first));
        if is_wanted && is_vacant && self.fits_shared(address, range, backing) {
            PageSize::Size2M
        } else {
            PageSize::Size4K
        }
    }

    /// Maps the small pages of an object around one that a read found (`filemap_map_pages`).
    fn map_object_around(
        &mut self,
        address: VirtAddr,
        mapping: VirtRange,
        vma: Vma,
        backing: Backing,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        for at in fault_around(address, mapping, memory) {
            let object = memory.objects.all.get(&backing.object);
            let page = object.and_then(|object| object.page(backing.page(at)));
            let Some((frame, PageSize::Size4K)) = page else {
                continue;
            };
            if self.table.leaf(at).is_some() {
                continue;
            }
            let leaf = Leaf::new(frame, PageSize::Size4K, vma.writable);
            if self.inherit(at, leaf, memory, effects).is_err() {
                return;
            }
            effects.around += 1;
        }
    }
}
