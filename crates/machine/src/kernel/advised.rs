//! Memory that gets `MADV_HUGEPAGE` although the program does not ask: what an advice would change,
//! on the program's own execution.

use std::collections::HashSet;

use contigua_program::syscall::{Advice, Call};
use contigua_program::wire::ProcessId;
use contigua_units::{Cycles, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use rustc_hash::FxBuildHasher;

use super::{Kernel, OutOfMemory};
use crate::config::AdvisedMemory;
use crate::processors::Mmus;

const HUGE: u64 = PageSize::Size2M.bytes();

/// Advised memory, and the calls so far.
#[derive(Default, contigua_state::State)]
pub(super) struct Advised {
    #[state(skip)]
    memory: HashSet<AdvisedMemory, FxBuildHasher>,
    /// By process: mappings so far.
    calls: Vec<u32>,
    /// By process: where its heap begins.
    heaps: Vec<Option<VirtAddr>>,
}

impl Advised {
    pub fn new(memory: &[AdvisedMemory]) -> Self {
        Self {
            memory: memory.iter().copied().collect(),
            calls: Vec::new(),
            heaps: Vec::new(),
        }
    }

    /// True if a mapping that is made now is to be advised.
    fn is_next(&mut self, process: u32) -> bool {
        let index = process as usize;
        if index >= self.calls.len() {
            self.calls.resize(index + 1, 0);
        }
        let call = Some(self.calls[index]);
        self.calls[index] += 1;
        self.memory.contains(&AdvisedMemory { process, call })
    }

    /// Where an advised heap ends after a `brk`; `None` if the heap is not to be advised.
    ///
    /// glibc 2.36's malloc with `glibc.malloc.hugetlb=1` (`sysmalloc`, `systrim`): it grows from
    /// nothing by whole huge pages, later to the end of one, and shrinks by whole ones.
    fn heap_end(
        &mut self,
        process: u32,
        before: Option<VirtAddr>,
        end: VirtAddr,
    ) -> Option<VirtAddr> {
        let heap = AdvisedMemory {
            process,
            call: None,
        };
        if !self.memory.contains(&heap) {
            return None;
        }
        let index = process as usize;
        if index >= self.heaps.len() {
            self.heaps.resize(index + 1, None);
        }
        // The first call asks where the heap begins.
        let Some(before) = before else {
            self.heaps[index] = Some(end.align_up(PAGE_BYTES));
            return None;
        };
        Some(if end <= before {
            end + (before - end) % HUGE
        } else if self.heaps[index] == Some(before) {
            before + (end - before).next_multiple_of(HUGE)
        } else {
            end.align_up(HUGE)
        })
    }
}

impl Kernel {
    /// A system call of a process, and the advice that follows it.
    pub(super) fn call_with_advice(
        &mut self,
        process: ProcessId,
        mut call: Call,
        mmu: &mut Mmus,
    ) -> Result<Cycles, OutOfMemory> {
        if self.advised.memory.is_empty() {
            return self.call(call, mmu);
        }
        let ProcessId(process) = process;
        let wanted = match &mut call {
            Call::Map {
                range, anonymous, ..
            } => (self.advised.is_next(process) && *anonymous).then_some(*range),
            Call::Break { end } => {
                let before = self.running().heap_end();
                self.advised
                    .heap_end(process, before, *end)
                    .zip(before)
                    .and_then(|(granted, before)| {
                        *end = granted;
                        // glibc advises no step that is smaller.
                        (granted >= before + HUGE).then(|| VirtRange::new(before, granted))
                    })
            }
            _ => None,
        };
        let work = self.call(call, mmu)?;
        let Some(range) = wanted else {
            return Ok(work);
        };
        let advice = Advice::HugePage;
        Ok(work + self.call(Call::Advise { range, advice }, mmu)?)
    }
}
