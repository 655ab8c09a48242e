//! `madvise`: what a program, or its allocator, tells the kernel about its memory.

use contigua_paging::{CollapseContext, HugeAdvice, Vma};
use contigua_program::syscall::Advice;
use contigua_units::{Bytes, Cycles, Order, PageSize, VirtRange};

use super::{Kernel, OutOfMemory};
use crate::processors::Mmus;

const HUGE: u64 = PageSize::Size2M.bytes();

impl Kernel {
    /// `madvise`; the work that it took.
    pub(super) fn advise(
        &mut self,
        range: VirtRange,
        advice: Advice,
        mmu: &mut Mmus,
    ) -> Result<Cycles, OutOfMemory> {
        let counters = &mut self.advice;
        match advice {
            Advice::DontNeed => counters.dont_need += 1,
            Advice::Free => counters.free += 1,
            Advice::HugePage => counters.huge += 1,
            Advice::NoHugePage => counters.no_huge += 1,
            Advice::PopulateRead | Advice::PopulateWrite => counters.populate += 1,
            Advice::Collapse => counters.collapse += 1,
            Advice::Other => return Ok(Cycles::ZERO),
        }
        match advice {
            Advice::DontNeed => self.release(range, mmu),
            Advice::Free => {
                let broken = self.counters.huge_page_splits;
                let work = self.change(mmu, |space, memory, effects, _| {
                    space.free_lazily(range, memory, effects)
                });
                self.advice.huge_pages_broken += self.counters.huge_page_splits - broken;
                work
            }
            Advice::HugePage | Advice::NoHugePage => {
                let huge = if advice == Advice::HugePage {
                    HugeAdvice::Huge
                } else {
                    HugeAdvice::NoHuge
                };
                self.change(mmu, |space, memory, effects, _| {
                    space.advise_huge(range, huge, memory, effects)
                })
            }
            Advice::PopulateRead | Advice::PopulateWrite => {
                let write = advice == Advice::PopulateWrite;
                self.change(mmu, |space, memory, effects, policy| {
                    space.populate(range, write, policy, memory, effects)
                })
            }
            Advice::Collapse => self.collapse(range, mmu),
            Advice::Other => Ok(Cycles::ZERO),
        }
    }

    /// `MADV_DONTNEED`. Huge pages that reach beyond the range are split first; one of `HugeTLB` stays
    /// (`madvise_dontneed_free_valid_vma`, `mm/madvise.c`).
    fn release(&mut self, mut range: VirtRange, mmu: &mut Mmus) -> Result<Cycles, OutOfMemory> {
        if self
            .running()
            .cuts_hugetlb(VirtRange::new(range.end, range.end))
        {
            range.end = range.end.align_down(HUGE);
        }
        let (before, broken) = (self.resident(), self.counters.huge_page_splits);
        let work = self.change(mmu, |space, memory, effects, _| {
            space.discard(range, memory, effects)
        });
        let broken = self.counters.huge_page_splits - broken;
        let after = self.resident();
        let given_back = before.bytes().get().saturating_sub(after.bytes().get());
        let whole = before.pages_2m.saturating_sub(after.pages_2m + broken);
        let counters = &mut self.advice;
        counters.given_back = Bytes::new(counters.given_back.get() + given_back);
        counters.given_back_whole = Bytes::new(counters.given_back_whole.get() + whole * HUGE);
        counters.huge_pages_broken += broken;
        work
    }

    /// `MADV_COLLAPSE`. Linux compacts memory for it whatever `defrag` says, and minds neither
    /// `enabled` nor `max_ptes_none`, but `MADV_NOHUGEPAGE` (`hugepage_vma_check` and
    /// `alloc_charge_folio` in `mm/khugepaged.c`). Designs without transparent huge pages have no
    /// such call.
    fn collapse(&mut self, range: VirtRange, mmu: &mut Mmus) -> Result<Cycles, OutOfMemory> {
        let best = CollapseContext {
            vma: Vma {
                huge: HugeAdvice::Huge,
                ..Vma::ANONYMOUS
            },
            present: PageSize::Size2M.frames(),
            fragmentation: 100,
        };
        let mut work = Cycles::ZERO;
        if !self.policy.collapse(&best) {
            return Ok(work);
        }
        let mut at = range.start.align_up(HUGE);
        while at.get() + HUGE <= range.end.get() {
            let whole = VirtRange::with_length(at, HUGE);
            let space = self.running();
            if !space.allows_collapse(at) || space.present_around(at, &self.memory) == 0 {
                at = at + HUGE;
                continue;
            }
            if !self.memory.has_free_block(Order::HUGE_2M) {
                let (moving, stalled) = self.compact(mmu);
                work += moving + stalled;
            }
            let (made, missed) = (
                self.counters.huge_page_collapses,
                self.counters.huge_page_fallbacks,
            );
            work += self.change(mmu, |space, memory, effects, policy| {
                space.collapse_range(whole, policy, memory, effects);
                Ok(())
            })?;
            self.advice.collapsed += self.counters.huge_page_collapses - made;
            self.advice.collapses_failed += self.counters.huge_page_fallbacks - missed;
            at = at + HUGE;
        }
        Ok(work)
    }
}
