//! Effects of changes and faults, for callers that perform or account for the rest.

use crate::orders::FolioCounts;
use contigua_units::{Bytes, Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

/// Work that an operation caused, for others to do or to pay for. The caller clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub struct Effects {
    /// Ranges whose translations may be cached and are no longer valid.
    pub invalidations: Vec<VirtRange>,
    /// Ranges whose pages allow more than before. Only the running core has to forget them: what
    /// others have cached allows less, and a store that it refuses walks again (Linux's
    /// `flush_tlb_fix_spurious_fault`; x86 needs no flush).
    pub upgrades: Vec<VirtRange>,
    /// Page-table entries cleared; a huge page has one.
    pub unmapped: u64,
    /// Page-table entries rewritten: another permission, the parts of a split page, a move.
    pub rewritten: u64,
    /// Lines of hashed tables that moved, to make room or to grow.
    pub lines_moved: u64,
    /// Page-table entries copied to a child.
    pub inherited: u64,
    /// Pages of a file that were mapped around the one that a fault was for.
    pub around: u64,
    /// Pages of any size whose last use ended and that were freed. Page cache is not: it stays
    /// cached in Linux.
    pub freed: u64,
    /// Page-table nodes freed.
    pub freed_nodes: u64,
    /// Pages mapped by a call, without a page fault for each.
    pub populated: u64,
    /// 4 KB pages zeroed.
    pub zeroed_4k: u64,
    /// 2 MB pages zeroed.
    pub zeroed_2m: u64,
    /// 4 KB pages that faults mapped and that were zeroed before.
    pub prezeroed: u64,
    /// 4 KB pages of zeros in huge pages that were taken back.
    pub zeros_recovered: u64,
    /// Pages of 1 GB that faults mapped from free memory.
    pub giants: u64,
    /// Those that faults wanted and for which no range was free.
    pub giants_failed: u64,
    /// Pages of 1 GB made of smaller ones.
    pub giants_made: u64,
    /// 4 KB pages copied.
    pub copied_4k: u64,
    /// Page-table nodes made.
    pub nodes: u64,
    /// Huge pages that were wanted and for which no block was free.
    pub fallbacks: u64,
    /// Huge pages made of small ones.
    pub collapses: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Accesses that no mapping explained; a page was mapped for each.
    pub unexplained: u64,
    /// Pages for which all frames that their hashes name were in use.
    pub conflicts: u64,
    /// Those that were placed anywhere, because nothing in these frames could be evicted.
    pub misplaced: u64,
    /// Pages of any size that first touches put into restrictive segments.
    pub restricted: u64,
    /// Those for which no way of their set was free.
    pub sets_full: u64,
    /// 4 KB pages that moved into a restrictive segment.
    pub moved_in: u64,
    /// 4 KB pages that moved out of one.
    pub moved_out: u64,
    /// Perforated pages made.
    pub perforations: u64,
    /// Holes made in pages that were mapped.
    pub punches: u64,
    /// Holes filled.
    pub patches: u64,
    /// Folios of less than 2 MB that faults mapped.
    pub folios: FolioCounts,
    /// Those that were wanted and for which no block was free.
    pub folios_failed: FolioCounts,
    /// Groups of 16 pages that were marked as contiguous, or lost the mark.
    pub folds: u64,
    /// Areas of page tables that go back to the host: first frames, and how many.
    pub returned: Vec<(Frame, u64)>,
    /// Times that a direct segment changed: every core that runs the process must load its
    /// registers anew.
    pub segment_updates: u64,
    /// Sub-pages (first frame of the 2 MB, number) that became holes in one of several spaces
    /// that share the 2 MB: each other one must learn of it with [`AddressSpace::point_back`].
    pub shared_punches: Vec<(Frame, u32)>,
    /// Frames that faults zeroed or copied to on the running core. (What khugepaged writes is in
    /// the caches of another one.)
    pub written: Vec<Written>,
}

/// Frames that the kernel wrote whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub struct Written {
    /// The first of them.
    pub frame: Frame,
    /// Number of consecutive frames.
    pub frames: u32,
    /// Index of the frame written last.
    pub target: u32,
}

impl Effects {
    /// Notes that a fault at an address zeroed its page.
    pub(crate) fn zero(&mut self, address: VirtAddr, frame: Frame, size: PageSize) {
        if size == PageSize::Size4K {
            self.zeroed_4k += 1;
        } else {
            self.zeroed_2m += size.bytes() / PageSize::Size2M.bytes();
        }
        let within = address.get() % size.bytes() / PAGE_BYTES;
        self.write(frame, size.frames(), within as u32);
    }

    /// Notes that a fault wrote these frames on its core, the one of the access last
    /// (`process_huge_page` in Linux's `mm/memory.c`).
    pub(crate) fn write(&mut self, frame: Frame, frames: u32, target: u32) {
        debug_assert!(target < frames);
        self.written.push(Written {
            frame,
            frames,
            target,
        });
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        let mut invalidations = std::mem::take(&mut self.invalidations);
        let mut upgrades = std::mem::take(&mut self.upgrades);
        let mut shared_punches = std::mem::take(&mut self.shared_punches);
        let mut written = std::mem::take(&mut self.written);
        written.clear();
        invalidations.clear();
        upgrades.clear();
        shared_punches.clear();
        *self = Self {
            invalidations,
            upgrades,
            shared_punches,
            written,
            ..Self::default()
        };
    }
}

/// Resolution of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A zero-filled page was mapped.
    Anonymous,
    /// The zero page was mapped, or the huge one.
    Zero,
    /// A page of a file was mapped.
    File,
    /// A page was copied, because others see the original.
    CopyOnWrite,
    /// The page was there; at most its protection changed.
    Spurious,
    /// A direct segment grew over the address.
    Segment,
}

/// A fault that was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Resolution of the fault.
    pub kind: FaultKind,
    /// Size of the page that is mapped now.
    pub size: PageSize,
}

/// Memory that pages are mapped to, by size of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub struct Resident {
    /// Pages of 4 KB.
    pub pages_4k: u64,
    /// Pages of 2 MB.
    pub pages_2m: u64,
    /// Pages of 1 GB.
    pub pages_1g: u64,
    /// Perforated pages of 2 MB.
    pub perforated: u64,
    /// Frames that perforated pages and their holes map.
    pub perforated_frames: u64,
    /// Memory that a direct segment maps, in 4 KB pages.
    pub segment_frames: u64,
    /// Frames that wait for holes to be touched; not part of the rest.
    pub reserved_frames: u64,
}

impl Resident {
    pub(crate) fn of(&mut self, size: PageSize) -> &mut u64 {
        match size {
            PageSize::Size4K => &mut self.pages_4k,
            PageSize::Size2M => &mut self.pages_2m,
            PageSize::Size1G => &mut self.pages_1g,
        }
    }

    /// Puts `after` in the place of `before`, which is part of this.
    pub fn replace(&mut self, before: &Self, after: &Self) {
        let all = [
            (&mut self.pages_4k, before.pages_4k, after.pages_4k),
            (&mut self.pages_2m, before.pages_2m, after.pages_2m),
            (&mut self.pages_1g, before.pages_1g, after.pages_1g),
            (&mut self.perforated, before.perforated, after.perforated),
            (
                &mut self.perforated_frames,
                before.perforated_frames,
                after.perforated_frames,
            ),
            (
                &mut self.segment_frames,
                before.segment_frames,
                after.segment_frames,
            ),
            (
                &mut self.reserved_frames,
                before.reserved_frames,
                after.reserved_frames,
            ),
        ];
        for (sum, before, after) in all {
            *sum = *sum + after - before;
        }
    }

    /// All of it that is mapped.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes::new(
            self.pages_4k * PageSize::Size4K.bytes()
                + self.pages_2m * PageSize::Size2M.bytes()
                + self.pages_1g * PageSize::Size1G.bytes()
                + (self.perforated_frames + self.segment_frames) * PageSize::Size4K.bytes(),
        )
    }
}
