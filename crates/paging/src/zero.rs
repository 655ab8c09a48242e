//! The zero page and the huge zero page: what reads of untouched private anonymous memory map
//! (`do_anonymous_page` in Linux's `mm/memory.c`, `do_huge_pmd_anonymous_page` in
//! `mm/huge_memory.c`).
//!
//! They are no memory of any process. Their frames are taken at the first use and stay; Linux has
//! the small one in the kernel's image, and frees the huge one when no process uses it and memory
//! is short.

use contigua_frames::FrameClass;
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};

use crate::Error;
use crate::effects::{Effects, Fault, FaultKind};
use crate::memory::Memory;
use crate::policy::{FaultContext, MappingPolicy};
use crate::space::AddressSpace;
use crate::table::Leaf;
use crate::vma::{Vma, VmaKind};

impl AddressSpace {
    /// Maps zeros for a read of untouched memory, whose mapping the program has made. (Of other
    /// memory nobody knows whether it was written before.) `None` leaves it to the ordinary way.
    pub(crate) fn read_zeros(
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
        let fits = self.largest_fit(address, range, vma);
        let context = FaultContext {
            address,
            vma: vma.under(self.disabled),
            fits,
        };
        let wanted = policy.on_fault(&context).min(fits);
        let mut found = None;
        if wanted >= PageSize::Size2M {
            if !policy.uses_huge_zero_page() {
                return Ok(None);
            }
            found = memory
                .huge_zero_page(effects)
                .map(|frame| (frame, PageSize::Size2M));
            effects.fallbacks += u64::from(found.is_none());
        }
        let small = |memory: &mut Memory| Some((memory.zero_page()?, PageSize::Size4K));
        let Some((frame, size)) = found.or_else(|| small(memory)) else {
            return Ok(None);
        };
        self.install(address, Leaf::new(frame, size, false), memory, effects)?;
        let kind = FaultKind::Zero;
        Ok(Some(Fault { kind, size }))
    }

    /// Gives a page that is written and was zeros its own memory. In the place of the huge zero
    /// page comes what a first touch maps, since Linux 6.13 (`do_huge_zero_wp_pmd`); where that is
    /// a small page, the others are zeros still.
    #[allow(
        clippy::too_many_arguments,
        reason = "one step of `fault`, kept apart to be read"
    )]
    pub(crate) fn write_to_zeros(
        &mut self,
        address: VirtAddr,
        zeros: Leaf,
        range: VirtRange,
        vma: Vma,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<Fault, Error> {
        let page = VirtRange::page_around(address, zeros.size);
        if zeros.size == PageSize::Size4K {
            let frame = self.obtain_page(address, FrameClass::Anonymous, memory, effects)?;
            self.take(address, memory, effects);
            let leaf = Leaf {
                dirty: true,
                ..Leaf::new(frame, zeros.size, true)
            };
            self.install(address, leaf, memory, effects)?;
            if memory.take_zeroed(1) {
                effects.prezeroed += 1;
            } else {
                effects.zeroed_4k += 1;
                effects.write(frame, 1, 0);
            }
            effects.invalidations.push(page);
            let kind = FaultKind::Anonymous;
            return Ok(Fault {
                kind,
                size: zeros.size,
            });
        }
        self.take(address, memory, effects);
        effects.invalidations.push(page);
        let fault = self.fault_in(address, true, range, vma, policy, memory, effects)?;
        if fault.size == PageSize::Size4K
            && let Some(frame) = memory.zero_page()
        {
            effects.splits += 1;
            effects.rewritten += u64::from(zeros.size.frames());
            let zeros = Leaf::new(frame, PageSize::Size4K, false);
            for i in 0..page.bytes() / PAGE_BYTES {
                let at = page.start + i * PAGE_BYTES;
                if self.table.leaf(at).is_none() {
                    self.install(at, zeros, memory, effects)?;
                }
            }
        }
        Ok(fault)
    }

    /// 4 KB pages with memory of their own that are mapped in the aligned 2 MB around an address:
    /// khugepaged counts zero pages as absent (`hpage_collapse_scan_pmd`).
    #[must_use]
    pub fn present_around(&self, address: VirtAddr, memory: &Memory) -> u32 {
        let all = self.table.base_pages_around(address);
        if all == 0 || memory.zero_frames() == 0 {
            return all;
        }
        let pages = self
            .table
            .pages(VirtRange::page_around(address, PageSize::Size2M));
        pages.filter(|(_, leaf)| !memory.is_zero(*leaf)).count() as u32
    }

    /// Splits huge pages that cannot be perforated where they reach across an end of a range.
    pub(crate) fn split_odd_edges(
        &mut self,
        range: VirtRange,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        for edge in [range.start, range.end] {
            if let Some(leaf) = self.table.leaf(edge)
                && (memory.is_zero(leaf) || self.is_of_object(edge))
                && !edge.is_aligned(leaf.size.bytes())
            {
                self.split(edge, memory, effects)?;
            }
        }
        Ok(())
    }
}
