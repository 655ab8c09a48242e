//! A primary region: its addresses, its contents, and its free parts.

use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::effects::Effects;
use crate::segment::Segment;
use crate::vma::{Vma, VmaKind};

const HUGE: u64 = PageSize::Size2M.bytes();

/// Kinds of a process's memory that are placed in its primary region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub enum Eligible {
    /// Private anonymous memory that may be written, all of it.
    ByDefault,
    /// Such memory that was mapped with `MAP_HUGETLB`, which stands for the paper's flag.
    OnRequest,
}

/// A range of the program's addresses, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub struct Place {
    /// The program's addresses.
    pub range: VirtRange,
    /// Offset to add to them, modulo 2^64; 0 outside the primary region.
    pub delta: u64,
}

impl Place {
    /// Returns the placed address.
    #[inline]
    #[must_use]
    pub const fn of(&self, address: VirtAddr) -> VirtAddr {
        VirtAddr::new(address.get().wrapping_add(self.delta))
    }

    pub(super) fn moved(&self, range: VirtRange) -> VirtRange {
        VirtRange::new(self.of(range.start), self.of(range.end))
    }
}

/// A process's primary region.
#[derive(Clone, Debug, contigua_state::Plain)]
pub struct Primary {
    pub(super) range: VirtRange,
    pub(super) eligible: Eligible,
    /// Contents of the region, by the program's addresses.
    pub(super) pieces: Vec<Place>,
    /// Addresses of the region that are not in use, ascending.
    pub(super) free: Vec<VirtRange>,
    /// Below it, addresses that are not in use may have contents of mappings that are gone.
    pub(super) stale: VirtAddr,
    /// Contiguous memory for a segment: first frame and blocks of 2 MB.
    pub(super) chunk: Option<(Frame, u32)>,
    pub(super) segment: Segment,
    /// 2 MB blocks by which the segment grows at a time.
    pub(super) step: u32,
    /// Contiguous memory was asked for already.
    pub(super) asked: bool,
}

impl Primary {
    /// Memory that the segment maps, in 4 KB pages.
    pub(crate) fn segment_frames(&self) -> u64 {
        self.segment.bytes() / PAGE_BYTES
    }

    pub(super) fn accepts(&self, vma: Vma, requested: bool) -> bool {
        let fits = vma.kind == VmaKind::Anonymous && vma.writable && !vma.shared;
        fits && (self.eligible == Eligible::ByDefault || requested)
    }

    /// Takes addresses of the region.
    pub(super) fn take(&mut self, bytes: u64) -> Option<VirtAddr> {
        // Large areas begin at a huge page, as allocators ask for them.
        let alignment = if bytes >= HUGE { HUGE } else { PAGE_BYTES };
        let found = self
            .free
            .iter()
            .position(|gap| gap.start.align_up(alignment).get() + bytes <= gap.end.get())?;
        let gap = self.free.remove(found);
        let start = gap.start.align_up(alignment);
        let rest = [
            VirtRange::new(gap.start, start),
            VirtRange::new(start + bytes, gap.end),
        ];
        for (i, range) in rest
            .into_iter()
            .filter(|range| !range.is_empty())
            .enumerate()
        {
            self.free.insert(found + i, range);
        }
        Some(start)
    }

    /// Zeroes what a new mapping finds of those that were in the segment before.
    pub(super) fn clear(&self, range: VirtRange, effects: &mut Effects) {
        let stale = range.intersection(VirtRange::new(self.range.start, self.stale));
        effects.zeroed_2m += stale.bytes() / HUGE;
        effects.zeroed_4k += stale.bytes() % HUGE / PAGE_BYTES;
    }

    /// Gives addresses of the region back. What the segment maps keeps its contents until it is used
    /// again.
    pub(super) fn give(&mut self, range: VirtRange) {
        self.stale = self.stale.max(range.end.min(self.segment.limit));
        let at = self.free.partition_point(|gap| gap.start < range.start);
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }

    /// Index of the first piece that ends behind an address.
    pub(super) fn first_behind(&self, address: VirtAddr) -> usize {
        self.pieces
            .partition_point(|piece| piece.range.end <= address)
    }

    pub(super) fn overlapping(&self, range: VirtRange) -> Vec<Place> {
        let pieces = self.pieces[self.first_behind(range.start)..].iter();
        pieces
            .take_while(|piece| piece.range.start < range.end)
            .map(|piece| Place {
                range: piece.range.intersection(range),
                ..*piece
            })
            .collect()
    }

    pub(super) fn insert(&mut self, place: Place) {
        let at = self.first_behind(place.range.start);
        self.pieces.insert(at, place);
        for left in [at + 1, at] {
            if left == 0 || left >= self.pieces.len() {
                continue;
            }
            let (a, b) = (self.pieces[left - 1], self.pieces[left]);
            if a.range.end == b.range.start && a.delta == b.delta {
                self.pieces[left - 1].range.end = b.range.end;
                self.pieces.remove(left);
            }
        }
    }

    pub(super) fn remove(&mut self, range: VirtRange) {
        let first = self.first_behind(range.start);
        let mut at = first;
        while at < self.pieces.len() && self.pieces[at].range.start < range.end {
            let piece = self.pieces.remove(at);
            let rest = [
                VirtRange::new(piece.range.start, range.start),
                VirtRange::new(range.end, piece.range.end),
            ];
            for range in rest.into_iter().filter(|rest| rest.start < rest.end) {
                self.pieces.insert(at, Place { range, ..piece });
                at += 1;
            }
        }
    }
}
