//! The main thread's stack.

use contigua_units::{PageSize, VirtAddr, VirtRange};

/// Part of the main thread's stack below its first page that is mapped from the start
/// (`stack_expand` of `setup_arg_pages`, `fs/exec.c`).
const STACK_EXPAND: u64 = 128 << 10;

/// The main thread's stack, which grows towards lower addresses as it is touched (`expand_stack`,
/// `mm/vma.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub(crate) struct Stack {
    /// Addresses that it may have.
    range: VirtRange,
    /// Start of those that it has.
    start: VirtAddr,
}

impl Stack {
    /// A stack that may have these addresses, before it is touched.
    pub(crate) fn new(range: VirtRange) -> Self {
        Self {
            range,
            start: range.end,
        }
    }

    /// Start of the addresses that it has.
    pub(crate) fn start(&self) -> VirtAddr {
        self.start
    }

    /// End of its addresses.
    pub(crate) fn end(&self) -> VirtAddr {
        self.range.end
    }

    /// An address is touched.
    pub(crate) fn touch(&mut self, address: VirtAddr) {
        if let Some(start) = self.start_with(address) {
            self.start = start;
        }
    }

    /// Start of the mapping once an address in it is touched.
    pub(crate) fn start_with(&self, address: VirtAddr) -> Option<VirtAddr> {
        let page = address.align_down(PageSize::Size4K.bytes());
        self.range.contains(address).then(|| {
            if self.start == self.range.end {
                let room = page.get() - self.range.start.get();
                VirtAddr::new(page.get() - room.min(STACK_EXPAND))
            } else {
                self.start.min(page)
            }
        })
    }
}
