//! A record for each huge page, in slabs of 1 GB of addresses, found by address.

use crate::arena::{Block, Zeroed};
use crate::bits::Bits;
use crate::os::Os;
use crate::{HUGE_BYTES, HUGE_PAGES, PAGE_BYTES};
use core::num::NonZeroU32;

/// log2 of the addresses of a slab, 1 GB.
pub(crate) const SLAB_SHIFT: u32 = 30;
/// Huge pages of a slab.
pub(crate) const SLAB_HUGE: usize = 1 << SLAB_SHIFT >> 21;
/// User addresses have at most 48 bits on x86-64 (with four levels of tables, which `mmap` keeps to
/// unless it is asked otherwise) and on aarch64.
const ADDRESS_BITS: u32 = 48;
/// Slabs that the heap can have: 64 TB.
const MAX_SLABS: usize = 1 << 16;

/// Names a huge page: its slab, and its place there. Never zero, so that a missing one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Huge(NonZeroU32);

impl Huge {
    pub(crate) fn new(slab: usize, place: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add((slab * SLAB_HUGE + place) as u32))
    }

    #[inline]
    pub(crate) const fn slab(self) -> usize {
        (self.0.get() - 1) as usize / SLAB_HUGE
    }

    #[inline]
    pub(crate) const fn place(self) -> usize {
        (self.0.get() - 1) as usize % SLAB_HUGE
    }
}

/// Use of a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Not an address of the heap's.
    #[default]
    Foreign = 0,
    /// Free, without memory.
    Unbacked,
    /// Free, with memory, in the cache.
    Cached,
    /// Shared by allocations, of the filler.
    Filler,
    /// Part of one large allocation.
    Large,
    /// Part of a region.
    Region,
    /// Free, and on its way back to the system.
    Leaving,
    /// Free, with memory, while the rest of a row of huge pages gets some.
    Arriving,
}

/// Record of one huge page. Two cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Record {
    /// Heap pages that belong to an allocation.
    pub used: Bits,
    /// Heap pages without memory: never backed, or given back and not used since.
    pub released: Bits,
    /// Heap pages that read as zeros.
    pub clean: Bits,
    /// Neighbors in the list that the huge page is in.
    pub next: Option<Huge>,
    pub previous: Option<Huge>,
    /// The longest run of heap pages that are not used.
    pub longest_free: u16,
    /// The filler's list that the huge page is in, or the region that it is part of.
    pub list: u16,
    /// The tail of a large allocation, of which nobody else has had a part.
    pub donated: bool,
}

// SAFETY: integers, bitmaps, flags that are false when zero, and `Option<NonZero>`.
unsafe impl Zeroed for Record {}

impl Record {
    /// Heap pages that nobody uses.
    #[inline]
    pub(crate) fn free(&self) -> Bits {
        self.used.not()
    }

    /// Heap pages that nobody uses and that have memory.
    #[inline]
    pub(crate) fn free_mapped(&self) -> Bits {
        self.used.or(self.released).not()
    }
}

/// The huge pages of 1 GB of addresses.
#[repr(C, align(64))]
pub(crate) struct Slab {
    pub records: [Record; SLAB_HUGE],
    /// Heap pages in use, beside the records so that a search by fullness reads little.
    pub used: [u16; SLAB_HUGE],
    /// Heap pages without memory, likewise.
    pub released: [u16; SLAB_HUGE],
    pub states: [State; SLAB_HUGE],
    /// Huge pages that are free, with or without memory.
    pub free: [u64; SLAB_HUGE / 64],
    /// Those of them that have memory.
    pub cached: [u64; SLAB_HUGE / 64],
    /// Huge pages that had memory at some time.
    pub known: [u64; SLAB_HUGE / 64],
    /// Huge pages of which a part was given back since they were last whole: the huge mapping is
    /// gone.
    pub broken: [u64; SLAB_HUGE / 64],
    /// The first address.
    pub base: usize,
    /// Huge pages that are free and have no memory.
    pub unbacked: u16,
}

/// Sets or clears a bit of a slab's bitmap.
fn assign(bits: &mut [u64; SLAB_HUGE / 64], place: usize, value: bool) {
    let bit = 1 << (place % 64);
    if value {
        bits[place / 64] |= bit;
    } else {
        bits[place / 64] &= !bit;
    }
}

// SAFETY: integers, records, and states whose zero is `Foreign`.
unsafe impl Zeroed for Slab {}

/// Finds slabs by address.
pub(crate) struct Directory {
    /// The slab of each gigabyte of addresses, plus one.
    root: Block<u32>,
    slabs: Block<Block<Slab>>,
    /// Slabs by address.
    order: Block<u32>,
    count: usize,
}

impl Directory {
    pub(crate) const fn new() -> Self {
        Self {
            root: Block::EMPTY,
            slabs: Block::EMPTY,
            order: Block::EMPTY,
            count: 0,
        }
    }

    /// Bytes of metadata.
    pub(crate) const fn bytes(&self) -> usize {
        let root = (1 << (ADDRESS_BITS - SLAB_SHIFT)) * size_of::<u32>();
        root + MAX_SLABS * (size_of::<Block<Slab>>() + size_of::<u32>())
            + self.count * size_of::<Slab>()
    }

    /// Gets the tables. False if there is no memory for them.
    pub(crate) fn prepare<O: Os>(&mut self, os: &mut O) -> bool {
        let parts = (
            Block::new(os, 1 << (ADDRESS_BITS - SLAB_SHIFT)),
            Block::new(os, MAX_SLABS),
            Block::new(os, MAX_SLABS),
        );
        let (Some(root), Some(slabs), Some(order)) = parts else {
            return false;
        };
        (self.root, self.slabs, self.order) = (root, slabs, order);
        true
    }

    /// Slabs by address.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order[..self.count]
    }

    /// The slab of an address, if the heap has one there.
    #[inline]
    fn slab_at(&self, address: usize) -> Option<usize> {
        let slab = *self.root.get(address >> SLAB_SHIFT)?;
        (slab as usize).checked_sub(1)
    }

    /// The huge page at an address, if it is the heap's.
    #[inline]
    pub(crate) fn find(&self, address: usize) -> Option<Huge> {
        let slab = self.slab_at(address)?;
        let huge = Huge::new(slab, address / HUGE_BYTES % SLAB_HUGE);
        (self.state(huge) != State::Foreign).then_some(huge)
    }

    #[inline]
    pub(crate) fn slab(&self, slab: usize) -> &Slab {
        &self.slabs[slab][0]
    }

    #[inline]
    pub(crate) fn slab_mut(&mut self, slab: usize) -> &mut Slab {
        &mut self.slabs[slab][0]
    }

    #[inline]
    pub(crate) fn record(&self, huge: Huge) -> &Record {
        &self.slab(huge.slab()).records[huge.place()]
    }

    #[inline]
    pub(crate) fn record_mut(&mut self, huge: Huge) -> &mut Record {
        &mut self.slab_mut(huge.slab()).records[huge.place()]
    }

    #[inline]
    pub(crate) fn state(&self, huge: Huge) -> State {
        self.slab(huge.slab()).states[huge.place()]
    }

    #[inline]
    pub(crate) fn used(&self, huge: Huge) -> u32 {
        u32::from(self.slab(huge.slab()).used[huge.place()])
    }

    /// Changes what a huge page is for.
    pub(crate) fn set_state(&mut self, huge: Huge, state: State) {
        let place = huge.place();
        let slab = self.slab_mut(huge.slab());
        let was_unbacked = slab.states[place] == State::Unbacked;
        let is_unbacked = state == State::Unbacked;
        slab.unbacked = slab.unbacked + u16::from(is_unbacked) - u16::from(was_unbacked);
        slab.states[place] = state;
        let cached = state == State::Cached;
        assign(&mut slab.free, place, cached || is_unbacked);
        assign(&mut slab.cached, place, cached);
    }

    /// Notes that a huge page has memory, or had; returns whether it had before.
    pub(crate) fn set_known(&mut self, huge: Huge) -> bool {
        let (known, place) = (&mut self.slab_mut(huge.slab()).known, huge.place());
        let before = known[place / 64] >> (place % 64) & 1 == 1;
        assign(known, place, true);
        before
    }

    /// Heap pages of a huge page that have no memory.
    #[inline]
    pub(crate) fn released(&self, huge: Huge) -> u32 {
        u32::from(self.slab(huge.slab()).released[huge.place()])
    }

    #[inline]
    pub(crate) fn is_broken(&self, huge: Huge) -> bool {
        self.slab(huge.slab()).broken[huge.place() / 64] >> (huge.place() % 64) & 1 == 1
    }

    pub(crate) fn set_broken(&mut self, huge: Huge, broken: bool) {
        let place = huge.place();
        assign(&mut self.slab_mut(huge.slab()).broken, place, broken);
    }

    #[inline]
    pub(crate) fn address(&self, huge: Huge) -> usize {
        self.slab(huge.slab()).base + huge.place() * HUGE_BYTES
    }

    /// The address of a heap page.
    #[inline]
    pub(crate) fn page_address(&self, huge: Huge, page: u32) -> usize {
        self.address(huge) + page as usize * PAGE_BYTES
    }

    /// Makes the addresses the heap's: free, without memory. False, and nothing changed but slabs
    /// without any, if there is no memory for their records, or if they are beyond what the
    /// directory covers, or already the heap's.
    pub(crate) fn add<O: Os>(&mut self, os: &mut O, address: usize, bytes: usize) -> bool {
        let Some(end) = address.checked_add(bytes) else {
            return false;
        };
        if end > 1 << ADDRESS_BITS {
            return false;
        }
        let addresses = || (address..end).step_by(HUGE_BYTES);
        for gigabyte in address >> SLAB_SHIFT..end.div_ceil(1 << SLAB_SHIFT) {
            if self.root[gigabyte] == 0 && !self.add_slab(os, gigabyte) {
                return false;
            }
        }
        if addresses().any(|address| self.find(address).is_some()) {
            return false;
        }
        for address in addresses() {
            let place = address / HUGE_BYTES % SLAB_HUGE;
            let Some(slab) = self.slab_at(address) else {
                return false;
            };
            let slab = self.slab_mut(slab);
            slab.states[place] = State::Unbacked;
            slab.free[place / 64] |= 1 << (place % 64);
            slab.unbacked += 1;
            slab.released[place] = HUGE_PAGES as u16;
            slab.records[place].released = Bits::ALL;
            slab.records[place].clean = Bits::ALL;
            slab.records[place].longest_free = HUGE_PAGES as u16;
        }
        true
    }

    fn add_slab<O: Os>(&mut self, os: &mut O, gigabyte: usize) -> bool {
        if self.count == MAX_SLABS {
            return false;
        }
        let Some(mut slab) = Block::<Slab>::new(os, 1) else {
            return false;
        };
        let base = gigabyte << SLAB_SHIFT;
        slab[0].base = base;
        let number = self.count;
        let at = self
            .order()
            .partition_point(|&other| self.slab(other as usize).base < base);
        self.order.copy_within(at..number, at + 1);
        self.order[at] = number as u32;
        self.slabs[number] = slab;
        self.root[gigabyte] = number as u32 + 1;
        self.count += 1;
        true
    }
}
