//! Small pages of huge ones that hold zeros still, and their recovery (HawkEye: Panwar, Bansal and Gopinath, ASPLOS
//! 2019, section 3.2; `bloat_recovery/remove.c` of its source).
//!
//! A huge page that a fault or the background pass makes holds zeros where nothing was before. HawkEye finds them by
//! reading memory; a simulator has no contents, so whoever runs the program tells of its stores before it makes them
//! ([`AddressSpace::enter`]), which says to which other addresses accesses change nothing. A page that the program
//! filled with zeros itself counts as written, and so do all pages of a huge one that was split or moved.

use contigua_units::{PAGE_BYTES, PageSize, VirtAddr};

use crate::Error;
use crate::effects::Effects;
use crate::memory::Memory;
use crate::primary::Place;
use crate::space::{AddressSpace, release};
use crate::table::Leaf;

impl AddressSpace {
    /// Notes an access that the program is about to make where a policy takes zeros back; where it lies.
    pub fn enter(&mut self, address: VirtAddr, write: bool) -> Place {
        if write {
            self.blanks.fill(address);
        }
        Place {
            range: self.blanks.known_around(address),
            delta: 0,
        }
    }

    /// Small pages of this space's huge ones that hold zeros.
    #[must_use]
    pub fn blank_pages(&self) -> u64 {
        self.blanks.total()
    }

    /// Splits huge pages of which at least so many small ones hold zeros, and maps the zero page in the place of
    /// these, until so many frames came free.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when there is no frame for a node of the page table.
    pub fn recover_zeros(
        &mut self,
        least: u32,
        wanted: u64,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let found = self.blanks.with_at_least(least);
        let before = effects.zeros_recovered;
        for (start, pages) in found {
            if effects.zeros_recovered - before >= wanted {
                break;
            }
            let is_alone = self.table.leaf(start).is_some_and(|leaf| {
                leaf.size == PageSize::Size2M
                    && memory.references(leaf.frame) == 1
                    && memory.order(leaf.frame) == Some(leaf.size.order())
                    && (0..leaf.size.frames()).all(|i| !memory.is_pinned(leaf.frame.offset(i)))
            });
            let Some(zeros) = memory.zero_page().filter(|_| is_alone) else {
                continue;
            };
            self.split(start, memory, effects)?;
            for page in 0..u64::from(PageSize::Size2M.frames()) {
                if pages[(page / 64) as usize] >> (page % 64) & 1 == 0 {
                    continue;
                }
                let address = start + page * PAGE_BYTES;
                if let Some(leaf) = self.take(address, memory, effects) {
                    release(leaf, memory, effects);
                }
                let zero = Leaf::new(zeros, PageSize::Size4K, false);
                self.install(address, zero, memory, effects)?;
                effects.zeros_recovered += 1;
            }
        }
        Ok(())
    }
}
