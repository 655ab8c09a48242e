//! Folios of 16 KB to 1 MB: aligned runs of small pages that one fault maps (Linux's `alloc_anon_folio`,
//! `mm/memory.c`, since 6.8).
//!
//! Of the orders that a policy wants, the largest one whose folio lies in the mapping and has nothing mapped in it
//! is allocated; where no block is free, smaller ones are tried. All its entries are written at once, used and, in
//! a mapping that may be written, dirty.
//!
//! Simplified: memory is not compacted for a fault of less than 2 MB, whatever `defrag` says. A folio's pages are
//! blocks of their own afterwards: compaction moves them one by one, and each is freed when it is unmapped, where
//! Linux moves folios whole and keeps those that are mapped in part until memory is short.

use contigua_frames::{FrameClass, Request};
use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::{Effects, Fault, FaultKind};
use crate::memory::Memory;
use crate::policy::MappingPolicy;
use crate::space::{AddressSpace, GROUP, free};
use crate::table::Leaf;
use crate::vma::{Vma, VmaKind};

impl AddressSpace {
    /// Maps the largest folio around an address that is wanted and fits, and for which a block is free.
    pub(crate) fn fault_in_folio(
        &mut self,
        address: VirtAddr,
        range: VirtRange,
        vma: Vma,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Option<Fault>, Error> {
        if vma.kind != VmaKind::Anonymous || vma.shared || vma.hugetlb {
            return Ok(None);
        }
        let orders = policy.folio_orders(vma.under(self.disabled));
        for order in orders.largest_first() {
            let folio = VirtRange::with_length(address.align_down(order.bytes()), order.bytes());
            if !range.covers(folio) || self.table.pages(folio).next().is_some() {
                continue;
            }
            let Some(frame) = memory.allocate(&Request::new(order, FrameClass::Anonymous)) else {
                *effects.folios_failed.of(order) += 1;
                continue;
            };
            memory.split(frame).expect("the block was just allocated");
            let is_marked = policy.marks_groups() && order >= GROUP;
            self.map_folio(folio, frame, vma.writable, is_marked, memory, effects)?;
            *effects.folios.of(order) += 1;
            effects.zeroed_4k += u64::from(order.frames());
            let within = (address - folio.start) / PAGE_BYTES;
            effects.write(frame, order.frames(), within as u32);
            return Ok(Some(Fault {
                kind: FaultKind::Anonymous,
                size: PageSize::Size4K,
            }));
        }
        Ok(None)
    }

    fn map_folio(
        &mut self,
        folio: VirtRange,
        frame: Frame,
        writable: bool,
        contiguous: bool,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let pages = (folio.bytes() / PAGE_BYTES) as u32;
        for i in 0..pages {
            let leaf = Leaf {
                accessed: true,
                dirty: writable,
                contiguous,
                ..Leaf::new(frame.offset(i), PageSize::Size4K, writable)
            };
            let at = folio.start + u64::from(i) * PAGE_BYTES;
            if let Err(error) = self.install(at, leaf, memory, effects) {
                (i + 1..pages).for_each(|i| free(frame.offset(i), memory));
                return Err(error);
            }
        }
        if contiguous {
            effects.folds += u64::from(pages / GROUP.frames());
        }
        Ok(())
    }
}
