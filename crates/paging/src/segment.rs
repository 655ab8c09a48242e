//! The registers of a direct segment (Direct Segments, section 3).

use contigua_units::{PhysAddr, VirtAddr};

/// BASE, LIMIT and OFFSET: an address `V` with `BASE <= V < LIMIT` is at `V + OFFSET`, whatever the
/// page table says. Equal BASE and LIMIT map nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub struct Segment {
    /// First address.
    pub base: VirtAddr,
    /// The address after the last one.
    pub limit: VirtAddr,
    /// Physical less virtual address, modulo 2^64.
    pub offset: u64,
}

impl Segment {
    /// Maps nothing.
    pub const NONE: Self = Self {
        base: VirtAddr::new(0),
        limit: VirtAddr::new(0),
        offset: 0,
    };

    /// Translates an address, if the segment maps it.
    #[inline]
    #[must_use]
    pub const fn translate(&self, address: VirtAddr) -> Option<PhysAddr> {
        if address.get().wrapping_sub(self.base.get()) < self.limit.get() - self.base.get() {
            Some(PhysAddr::new(address.get().wrapping_add(self.offset)))
        } else {
            None
        }
    }

    /// Bytes that it maps.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.limit.get() - self.base.get()
    }

    /// The segment that does what this one and then `next` does, as far as both go: `next` maps
    /// what this one yields. Both must be page-granular.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        if self.bytes() == 0 {
            return Self::NONE;
        }
        let first = self.base.get().wrapping_add(self.offset);
        let last = first + self.bytes();
        let (from, to) = (first.max(next.base.get()), last.min(next.limit.get()));
        if from >= to {
            return Self::NONE;
        }
        Self {
            base: VirtAddr::new(from.wrapping_sub(self.offset)),
            limit: VirtAddr::new(to.wrapping_sub(self.offset)),
            offset: self.offset.wrapping_add(next.offset),
        }
    }
}
