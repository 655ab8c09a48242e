//! Shared memory that has a name: files in memory, and segments of System V.

use std::collections::BTreeMap;

use contigua_paging::{AddressSpace, Backing, ObjectId, Vma};
use contigua_program::syscall::{MemoryFile, MemoryFileKind};
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};

/// Objects of files. Those without a name count from 1.
const FILES: u64 = 1 << 63;
/// Objects of segments.
const SEGMENTS: u64 = 1 << 62;

/// The part of a file that a mapping at an address has.
pub(super) fn backing_of(file: MemoryFile, at: VirtAddr, offset: u64) -> Backing {
    Backing {
        object: ObjectId(FILES | file.name),
        origin: at.get().wrapping_sub(offset),
        mounted: file.kind == MemoryFileKind::Mounted,
    }
}

/// Segments of System V shared memory, as far as the program made or found them itself.
#[derive(Default, contigua_state::Plain)]
pub(super) struct Segments {
    /// Size, and whether `HugeTLB` has the pages, by identifier.
    all: BTreeMap<u32, (u64, bool)>,
}

impl Segments {
    /// `shmget` returned a segment. Who finds one may say less than its size.
    pub(super) fn note(&mut self, id: u32, bytes: u64, hugetlb: bool) {
        let page = if hugetlb {
            PageSize::Size2M.bytes()
        } else {
            PAGE_BYTES
        };
        let (size, huge) = self.all.entry(id).or_default();
        *size = (*size).max(bytes.next_multiple_of(page));
        *huge |= hugetlb;
    }

    /// Mapping of a segment at an address.
    pub(super) fn mapping(
        &self,
        id: u32,
        at: VirtAddr,
        writable: bool,
    ) -> Option<(VirtRange, Vma)> {
        let &(bytes, hugetlb) = self.all.get(&id)?;
        let backing = Backing {
            object: ObjectId(SEGMENTS | u64::from(id)),
            origin: at.get(),
            mounted: false,
        };
        let vma = Vma {
            writable,
            shared: true,
            hugetlb,
            backing: Some(backing),
            ..Vma::ANONYMOUS
        };
        Some((VirtRange::with_length(at, bytes), vma))
    }

    /// Range of the segment that a space has at an address.
    pub(super) fn attached(&self, space: &AddressSpace, at: VirtAddr) -> Option<VirtRange> {
        let backing = space.vma(at)?.1.backing?;
        let id = backing.object.0.checked_sub(SEGMENTS)?;
        let &(bytes, _) = self.all.get(&u32::try_from(id).ok()?)?;
        (backing.origin == at.get()).then(|| VirtRange::with_length(at, bytes))
    }
}
