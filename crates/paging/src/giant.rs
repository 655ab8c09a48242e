//! Pages of 1 GB from free memory: at faults, and made of smaller ones in the background (Trident: Ram, Panwar and
//! Basu, MICRO 2021).
//!
//! A fault takes an aligned range that is free; nothing moves for it. The background may empty the range with the
//! fewest frames in use, which its caller does: what is moved out of it must be followed before pages are promoted.

use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::Effects;
use crate::memory::Memory;
use crate::policy::MappingPolicy;
use crate::space::{AddressSpace, EVERYTHING, free, free_node, release};
use crate::table::Leaf;
use crate::vma::{Vma, VmaKind};

const GIANT: u64 = PageSize::Size1G.bytes();

impl AddressSpace {
    /// The next aligned 1 GB, from where the last call ended, that lies in one private anonymous mapping and of which
    /// the policy makes one page; `None` at the end of the space.
    pub fn next_giant(&mut self, policy: &dyn MappingPolicy, memory: &Memory) -> Option<VirtAddr> {
        loop {
            let from = VirtAddr::new(self.giant_position);
            let rest = VirtRange {
                start: from,
                ..EVERYTHING
            };
            let Some((page, leaf)) = self.table.pages(rest).next() else {
                self.giant_position = 0;
                return None;
            };
            let whole = VirtRange::page_around(page.max(from), PageSize::Size1G);
            self.giant_position = whole.end.get();
            if leaf.size == PageSize::Size1G {
                continue;
            }
            let fits = self.vma(page.max(from)).filter(|(range, vma)| {
                let is_private = vma.kind == VmaKind::Anonymous && !vma.shared && !vma.hugetlb;
                is_private && range.covers(whole)
            });
            if let Some((_, vma)) = fits
                && self.can_be_giant(whole, vma, policy, memory)
            {
                return Some(whole.start);
            }
        }
    }

    /// Returns true if the policy makes one page of 1 GB, and nothing in it has to stay where it is.
    fn can_be_giant(
        &self,
        whole: VirtRange,
        vma: Vma,
        policy: &dyn MappingPolicy,
        memory: &Memory,
    ) -> bool {
        let mut present = 0;
        for (_, leaf) in self.table.pages(whole) {
            if memory.is_zero(leaf) {
                continue;
            }
            present += u64::from(leaf.size.frames());
            let blocks = if memory.order(leaf.frame) == Some(leaf.size.order()) {
                1
            } else {
                leaf.size.frames()
            };
            let stays = (0..blocks).any(|i| {
                let frame = leaf.frame.offset(i);
                memory.references(frame) != 1 || memory.is_pinned(frame)
            });
            if stays || leaf.is_discardable() || leaf.writable != vma.writable {
                return false;
            }
        }
        policy.makes_giant(vma.under(self.disabled), present)
    }

    /// Makes one page of the 1 GB at an address, on frames that the caller took for it; gives them back where that is
    /// not possible any more.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], when a table has no room.
    pub fn promote_giant(
        &mut self,
        address: VirtAddr,
        frame: Frame,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let whole = VirtRange::page_around(address, PageSize::Size1G);
        let vma = self.vma(whole.start).map(|(_, vma)| vma);
        let Some(vma) = vma.filter(|&vma| self.can_be_giant(whole, vma, policy, memory)) else {
            free(frame, memory);
            return Ok(());
        };
        let parts: Vec<_> = self.table.pages(whole).collect();
        let mut present = 0;
        let mut is_dirty = false;
        for &(at, leaf) in &parts {
            self.take(at, memory, effects);
            if !memory.is_zero(leaf) {
                present += u64::from(leaf.size.frames());
                is_dirty |= leaf.dirty;
            }
            release(leaf, memory, effects);
        }
        self.table
            .prune(whole, |node| free_node(node, memory, effects));
        self.settle_table(memory, effects);
        let leaf = Leaf {
            accessed: true,
            dirty: is_dirty,
            ..Leaf::new(frame, PageSize::Size1G, vma.writable)
        };
        effects.unmapped += parts.len() as u64;
        effects.copied_4k += present;
        let rest = GIANT / PAGE_BYTES - present;
        if memory.take_zeroed(rest as u32) {
            effects.prezeroed += rest;
        } else {
            effects.zeroed_4k += rest;
        }
        effects.invalidations.push(whole);
        effects.giants_made += 1;
        self.install(whole.start, leaf, memory, effects)
    }
}
