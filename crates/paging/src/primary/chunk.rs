//! The chunk of contiguous memory behind a direct segment, which maps the front of a primary
//! region: taken once, mapped as the segment grows.

use contigua_frames::FrameClass;
use contigua_units::{Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::{Effects, Fault, FaultKind};
use crate::memory::Memory;
use crate::space::{AddressSpace, free, free_page, release};
use crate::table::Leaf;

const HUGE: u64 = PageSize::Size2M.bytes();

impl AddressSpace {
    /// Takes contiguous memory for a segment: at most as much as asked for, and as much as there
    /// is in one piece. Returns the bytes.
    pub fn take_chunk(
        &mut self,
        bytes: u64,
        memory: &mut Memory,
        moves: &mut dyn contigua_frames::Moves,
    ) -> u64 {
        let Some(primary) = &mut self.primary else {
            return 0;
        };
        if std::mem::replace(&mut primary.asked, true) {
            return 0;
        }
        let wanted = bytes.min(primary.range.bytes()) / HUGE;
        let taken = memory.allocate_run(wanted as usize, FrameClass::Anonymous, moves);
        let Some((first, blocks)) = taken else {
            return 0;
        };
        let physical = first.address().get();
        primary.segment.offset = physical.wrapping_sub(primary.range.start.get());
        primary.chunk = Some((first, blocks as u32));
        blocks as u64 * HUGE
    }

    /// Memory that was taken for the segment and that it does not map yet.
    #[must_use]
    pub fn chunk_unused(&self) -> u64 {
        let chunk = self.primary.as_ref().and_then(|primary| {
            let (_, blocks) = primary.chunk?;
            Some((u64::from(blocks) * HUGE).saturating_sub(primary.segment_frames() * PAGE_BYTES))
        });
        chunk.unwrap_or(0)
    }

    /// A touch of the region beyond the segment: lets the segment grow over it, when there is
    /// memory for that. Pages that lie there are copied, after their translations are gone from
    /// every core (mechanisms D2).
    pub(crate) fn grow_segment(
        &mut self,
        address: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Option<Fault> {
        let primary = self.primary.as_mut()?;
        let (_, blocks) = primary.chunk?;
        let end = primary.range.start + u64::from(blocks) * HUGE;
        if !primary.range.contains(address) || address >= end {
            return None;
        }
        let old = primary.segment.limit;
        let wanted = address.align_down(HUGE) + HUGE * u64::from(primary.step);
        let new = wanted.min(end);
        let grown = VirtRange::new(old, new);
        let pages: Vec<_> = self.table.pages(grown).collect();
        for (address, leaf) in &pages {
            self.take(*address, memory, effects);
            effects.unmapped += 1;
            if !memory.is_zero(*leaf) {
                effects.copied_4k += u64::from(leaf.size.frames());
            }
        }
        effects.invalidations.push(grown);
        for (_, leaf) in pages {
            release(leaf, memory, effects);
        }
        self.prune(grown, memory, effects);
        let primary = self.primary.as_mut()?;
        primary.segment.limit = new;
        self.resident.segment_frames = primary.segment_frames();
        effects.zeroed_2m += grown.bytes() / HUGE;
        let start = primary.segment.translate(old)?.frame();
        let target = (address.get() - old.get()) / PAGE_BYTES;
        effects.write(start, (grown.bytes() / PAGE_BYTES) as u32, target as u32);
        effects.segment_updates += 1;
        Some(Fault {
            kind: FaultKind::Segment,
            size: PageSize::Size2M,
        })
    }

    /// Makes the end of the segment pages on the same frames, from an address on. Page-table
    /// entries come first, then the registers: both say the same in between (the Direct Segments
    /// paper, section 4.2).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; what has become pages stays pages.
    pub fn shrink_segment(
        &mut self,
        to: VirtAddr,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let segment = self.segment();
        let to = to.align_up(HUGE).max(segment.base);
        let mut limit = segment.limit;
        let mut done = Ok(());
        while limit > to {
            let page = VirtAddr::new(limit.get() - HUGE);
            let Some(physical) = segment.translate(page) else {
                break;
            };
            let leaf = Leaf {
                accessed: true,
                dirty: true,
                ..Leaf::new(physical.frame(), PageSize::Size2M, true)
            };
            // `install` gives the block up when there is no frame for a node: keep it.
            if !memory.share(leaf.frame) {
                done = Err(Error::OutOfMemory);
                break;
            }
            if let Err(error) = self.install(page, leaf, memory, effects) {
                done = Err(error);
                break;
            }
            free(leaf.frame, memory);
            let owner = contigua_frames::Owner {
                space: self.id.0,
                page: page.page(),
            };
            let _ = memory.set_owner(leaf.frame, Some(owner));
            limit = page;
        }
        let Some(primary) = &mut self.primary else {
            return done;
        };
        // The blocks that became pages are no longer the chunk's, nor are those behind them.
        if let Some((first, blocks)) = primary.chunk {
            let kept = (limit.get() - primary.range.start.get()) / HUGE;
            let mapped = (segment.limit.get() - primary.range.start.get()) / HUGE;
            for block in mapped..u64::from(blocks) {
                free(first.offset(block as u32 * Order::HUGE_2M.frames()), memory);
            }
            primary.chunk = (kept > 0).then_some((first, kept as u32));
        }
        primary.segment.limit = limit;
        self.resident.segment_frames = primary.segment_frames();
        effects.segment_updates += 1;
        done
    }

    /// Gives the chunk of a process that ends back.
    pub(crate) fn free_chunk(&mut self, memory: &mut Memory, effects: &mut Effects) {
        let Some(primary) = &mut self.primary else {
            return;
        };
        if let Some((first, blocks)) = primary.chunk.take() {
            for block in 0..blocks {
                let frame = first.offset(block * Order::HUGE_2M.frames());
                free_page(frame, memory, effects);
            }
        }
        primary.segment.limit = primary.segment.base;
        self.resident.segment_frames = 0;
    }
}
