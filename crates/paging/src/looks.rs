//! Access coverage of 2 MB ranges: how many of their small pages the program used while the kernel looked (HawkEye's
//! `access_map`: Panwar, Bansal and Gopinath, ASPLOS 2019, section 3.3; `mm/ohp.c` of its kernel).
//!
//! A look begins with accessed bits cleared and TLBs flushed, so that hardware's next walks set them again; at its end,
//! the pages that have theirs count. Ranges lie in ten buckets by a moving average of that number: one that moves up
//! goes to the front of its bucket, any other to the end. The same looks say how many huge pages are idle, which
//! Ingens' fairness asks for (Kwon and others, OSDI 2016, section 4.4).
//!
//! Simplified: HawkEye's kernel clears bits without a flush, so that pages whose translations stay cached count as
//! unused; here they are flushed, in one go for a space. Its first three looks rank nothing; here all do.

use std::collections::BTreeMap;

use contigua_units::{PageSize, VirtAddr, VirtRange};

use crate::effects::Effects;
use crate::memory::Memory;
use crate::policy::{CollapseContext, MappingPolicy};
use crate::space::{AddressSpace, EVERYTHING};
use crate::table::Leaf;
use crate::table::visit::Cursor;
use crate::vma::VmaKind;

const HUGE: u64 = PageSize::Size2M.bytes();

impl AddressSpace {
    /// Clears accessed bits of private anonymous memory: a look begins.
    pub fn begin_look(&mut self, effects: &mut Effects) {
        let mut span: Option<VirtRange> = None;
        self.visit_looked_at(|space, address, leaf| {
            if leaf.accessed {
                space.table.update(address, |leaf| leaf.accessed = false);
                effects.rewritten += 1;
                let page = VirtRange::page_around(address, leaf.size);
                let start = span.map_or(page.start, |span| span.start);
                span = Some(VirtRange::new(start, page.end));
            }
        });
        effects.invalidations.extend(span);
    }

    /// Counts accessed bits: a look ends. The newest count's weight in the averages is given in percent.
    pub fn end_look(&mut self, newest_percent: u32, memory: &Memory) {
        let mut used = BTreeMap::new();
        let (mut huge, mut huge_used) = (0, 0);
        self.visit_looked_at(|_, address, leaf| match leaf.size {
            PageSize::Size4K => {
                let counts = leaf.accessed && !memory.is_zero(leaf);
                *used.entry(address.get() / HUGE).or_default() += u32::from(counts);
            }
            _ if memory.is_zero(leaf) => {}
            size => {
                let pages = size.bytes() / HUGE;
                huge += pages;
                huge_used += pages * u64::from(leaf.accessed);
            }
        });
        (self.coverage.huge, self.coverage.huge_used) = (huge, huge_used);
        self.coverage.take(&used, newest_percent);
    }

    fn visit_looked_at(&mut self, mut visit: impl FnMut(&mut Self, VirtAddr, Leaf)) {
        let mut pages = Cursor::new(EVERYTHING);
        let mut known = VirtRange::new(VirtAddr::new(0), VirtAddr::new(0));
        let mut is_looked_at = false;
        while let Some((address, leaf)) = pages.next(&self.table) {
            if !known.contains(address) {
                let Some((range, vma)) = self.vma(address) else {
                    continue;
                };
                known = range;
                is_looked_at = vma.kind == VmaKind::Anonymous && !vma.shared && !vma.hugetlb;
            }
            if is_looked_at {
                visit(self, address, leaf);
            }
        }
    }

    /// The bucket of the range that is promoted next.
    #[must_use]
    pub fn hottest_bucket(&self) -> Option<usize> {
        self.coverage.hottest().map(|(bucket, _)| bucket)
    }

    /// Takes the range that is promoted next from its bucket, and makes a 2 MB page of it where the policy lets it.
    pub fn promote_hottest(
        &mut self,
        policy: &dyn MappingPolicy,
        memory: &mut Memory,
        effects: &mut Effects,
    ) {
        let Some(address) = self.coverage.take_hottest() else {
            return;
        };
        let whole = VirtRange::with_length(address, HUGE);
        let Some((range, vma)) = self.vma(address) else {
            return;
        };
        let present = self.present_around(address, memory);
        if !range.covers(whole)
            || vma.kind != VmaKind::Anonymous
            || vma.shared
            || present == 0
            || self
                .fragmentation
                .is_some_and(|scenario| !scenario.of_page(address).is_empty())
        {
            return;
        }
        let context = CollapseContext {
            vma: vma.under(self.disabled),
            present,
            fragmentation: memory.fragmentation_of_free(),
        };
        if policy.collapse(&context) {
            self.collapse(address, policy, memory, effects);
        }
    }

    /// Huge pages that a space lacks for all of its private memory, over those that it has, where an idle one counts
    /// as so many: Ingens' promotion metric, the larger the sooner (OSDI 2016, section 4.4; `osa_compute_fairness_metric`).
    #[must_use]
    pub fn promotion_metric(&self, idle_tax: f64) -> f64 {
        let resident = self.resident();
        let wanted = (resident.pages_2m + resident.pages_4k / u64::from(PageSize::Size2M.frames()))
            .max(1) as f64;
        let has = resident.pages_2m.max(1) as f64;
        let looked_at = self.coverage.huge.max(1) as f64;
        let used = if self.coverage.huge == 0 {
            1.0
        } else {
            self.coverage.huge_used as f64 / looked_at
        };
        wanted / (has * (used + idle_tax * (1.0 - used)))
    }
}
