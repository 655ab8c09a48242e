//! Contiguity-aware placement of faults (CA paging: Alverti and others, ISCA 2020): a mapping keeps the offset
//! between its addresses and frames. Its first fault chooses a free run as long as the mapping, later ones take
//! the frame at the offset. Where that is in use, another run is chosen for the rest of the mapping.
//!
//! As in the paper, runs are sought from the end of the last one on (next fit), in blocks of the largest order.
//! Where no such block is free, the page allocator places the page. Simplified: a space seeks on its own, and
//! mappings keep any number of offsets.

use std::collections::BTreeMap;

use contigua_frames::{FrameClass, Request};
use contigua_state::Plain;
use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::memory::Memory;

/// Offsets of a space's mappings.
#[derive(Clone, Debug, Default, Plain)]
pub(crate) struct Offsets {
    /// Frame less page, by the first address for which it was chosen.
    of: BTreeMap<u64, i64>,
    /// Frame at which the next run is sought first.
    next: u32,
}

impl Offsets {
    /// Takes the frames for a page of a mapping at its offset, or of a run chosen now.
    pub(crate) fn take(
        &mut self,
        address: VirtAddr,
        size: PageSize,
        mapping: VirtRange,
        memory: &mut Memory,
    ) -> Option<Frame> {
        let first = address.align_down(size.bytes());
        let mut known = self.of.range(mapping.start.get()..=address.get());
        let known = known.next_back().map(|(_, &offset)| offset);
        if let Some(frame) = known.and_then(|offset| at(first, offset, size, memory)) {
            return Some(frame);
        }
        let start = if known.is_some() {
            first
        } else {
            mapping.start
        };
        // As aligned as the addresses are, for huge pages.
        let skewed = start.page().get() % u64::from(PageSize::Size2M.frames());
        let pages = (mapping.end - start) / PAGE_BYTES + skewed;
        let wanted = u32::try_from(pages).unwrap_or(u32::MAX);
        let (run, frames) = memory.free_run(FrameClass::Anonymous, self.next, wanted)?;
        self.next = run.get() + frames;
        let frame = i64::from(run.get()) + skewed.cast_signed();
        let offset = frame - start.page().get().cast_signed();
        self.of.insert(start.get(), offset);
        at(first, offset, size, memory)
    }
}

/// Takes the block at an offset from an address, if it is free.
fn at(address: VirtAddr, offset: i64, size: PageSize, memory: &mut Memory) -> Option<Frame> {
    let frame = address.page().get().checked_add_signed(offset)?;
    let frame = Frame::new(u32::try_from(frame).ok()?);
    let request = Request::new(size.order(), FrameClass::Anonymous);
    memory.allocate_block_at(frame, &request).ok()?;
    Some(frame)
}
