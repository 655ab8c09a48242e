//! Memory of each mapping, as Linux adds it up for `/proc/PID/smaps` (`fs/proc/task_mmu.c`).

use contigua_units::{PageSize, VirtAddr, VirtRange};

use contigua_frames::FrameClass;

use crate::memory::Memory;
use crate::space::AddressSpace;
use crate::vma::Vma;

/// A mapping, and the pages that are mapped in it. Zero pages are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingMemory {
    /// Its addresses.
    pub range: VirtRange,
    /// The mapping.
    pub vma: Vma,
    /// It is the main thread's stack.
    pub is_stack: bool,
    /// Bytes of all pages.
    pub resident: u64,
    /// Bytes of pages that no file has.
    pub anonymous: u64,
    /// Bytes of pages of 2 MB and larger.
    pub huge: u64,
}

impl AddressSpace {
    /// Mappings in the order of addresses, with their memory: a look at every page. Those in a primary
    /// region are one.
    #[must_use]
    pub fn memory_by_mapping(&self, memory: &Memory) -> Vec<MappingMemory> {
        let mappings = self.vmas.iter().map(|(range, &vma)| {
            let mut range = VirtRange::new(VirtAddr::new(range.start), VirtAddr::new(range.end));
            let stack = self.stack.filter(|stack| stack.end() == range.end);
            if let Some(stack) = stack {
                range.start = range.start.max(stack.start());
            }
            let mut found = MappingMemory {
                range,
                vma,
                is_stack: stack.is_some(),
                resident: 0,
                anonymous: 0,
                huge: 0,
            };
            for (_, leaf) in self.table.pages(range) {
                if memory.is_zero(leaf) {
                    continue;
                }
                let bytes = leaf.size.bytes();
                found.resident += bytes;
                if memory.class(leaf.frame) == Some(FrameClass::Anonymous) && !vma.shared {
                    found.anonymous += bytes;
                }
                if leaf.size > PageSize::Size4K {
                    found.huge += bytes;
                }
            }
            found
        });
        mappings.collect()
    }
}
