//! Holes of perforated pages: the bitmap of each 2 MB of physical memory, and the filter in front
//! of it (Perforated Page, section 4).

use contigua_units::{Bytes, Frame, Order, PAGE_BYTES, PhysAddr, VirtAddr};

/// 4 KB pages of a 2 MB one.
pub const SUB_PAGES: u32 = Order::HUGE_2M.frames();
/// Sub-pages that a bit of the filter speaks for: 256 KB.
pub const SUB_PAGES_OF_FILTER_BIT: u32 = SUB_PAGES / u8::BITS;
/// Bytes of the bitmap of 2 MB: one cache line.
pub const BITMAP_BYTES: u64 = SUB_PAGES as u64 / 8;

/// Number of the 4 KB page within its 2 MB, 0 to 511.
#[inline]
#[must_use]
pub const fn sub_page(address: VirtAddr) -> u32 {
    (address.get() / PAGE_BYTES) as u32 % SUB_PAGES
}

/// The filter of a perforated page: bit `j` is set when sub-pages 64 `j` to 64 `j` + 63 have a
/// hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, contigua_state::Plain)]
pub struct Filter(pub u8);

impl Filter {
    /// Returns true if the 256 KB around a sub-page may have a hole.
    #[inline]
    #[must_use]
    pub const fn has(self, sub_page: u32) -> bool {
        self.0 >> (sub_page / SUB_PAGES_OF_FILTER_BIT) & 1 != 0
    }

    /// The filter that also covers the 256 KB around a sub-page.
    #[must_use]
    pub const fn with(self, sub_page: u32) -> Self {
        Self(self.0 | 1 << (sub_page / SUB_PAGES_OF_FILTER_BIT))
    }

    /// The combined filter of two dimensions of translation.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Holes among 512 sub-pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, contigua_state::Plain)]
pub struct Holes(pub [u64; 8]);

impl Holes {
    /// No holes.
    pub const NONE: Self = Self([0; 8]);

    /// Returns true if a sub-page is a hole.
    #[inline]
    #[must_use]
    pub const fn has(&self, sub_page: u32) -> bool {
        self.0[(sub_page / 64) as usize] >> (sub_page % 64) & 1 != 0
    }

    /// Makes a sub-page a hole, or whole again.
    pub const fn set(&mut self, sub_page: u32, hole: bool) {
        let word = &mut self.0[(sub_page / 64) as usize];
        let bit = 1 << (sub_page % 64);
        *word = if hole { *word | bit } else { *word & !bit };
    }

    /// Number of holes.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns true if there is no hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 8]
    }

    /// The filter that says where these holes are.
    #[must_use]
    pub fn filter(&self) -> Filter {
        let bits = self.0.iter().enumerate();
        Filter(bits.fold(0, |all, (j, &word)| all | u8::from(word != 0) << j))
    }

    /// The 32 bits around a sub-page, which a bitmap entry of the L2 TLB holds.
    #[must_use]
    pub const fn chunk(&self, sub_page: u32) -> u32 {
        (self.0[(sub_page / 64) as usize] >> (sub_page % 64 / 32 * 32)) as u32
    }

    /// Sub-pages that are holes.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..SUB_PAGES).filter(|&sub_page| self.has(sub_page))
    }
}

impl FromIterator<u32> for Holes {
    fn from_iter<I: IntoIterator<Item = u32>>(sub_pages: I) -> Self {
        let mut holes = Self::NONE;
        for sub_page in sub_pages {
            holes.set(sub_page, true);
        }
        holes
    }
}

/// The bitmaps of all physical memory, in one area that the machine sets aside above the memory
/// that the kernel's allocator manages: 64 bytes for each 2 MB.
#[derive(Clone, Debug, Default, contigua_state::Plain)]
pub struct HoleBitmaps {
    base: PhysAddr,
    /// Empty until a page is perforated: then one for each 2 MB.
    bitmaps: Vec<Holes>,
    /// Perforated pages on each 2 MB.
    sharers: Vec<u16>,
    chunks: usize,
}

impl HoleBitmaps {
    /// The bitmaps of a memory of that many frames; no page has holes.
    #[must_use]
    pub fn new(frames: u64) -> Self {
        let chunks = frames.div_ceil(u64::from(SUB_PAGES));
        Self {
            base: PhysAddr::new(chunks * u64::from(SUB_PAGES) * PAGE_BYTES),
            bitmaps: Vec::new(),
            sharers: Vec::new(),
            chunks: chunks as usize,
        }
    }

    /// Memory that the bitmaps take: one part in 32768 of what they describe.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.chunks as u64 * BITMAP_BYTES)
    }

    /// Address at which hardware finds the bitmap of the 2 MB around a frame.
    #[inline]
    #[must_use]
    pub fn address(&self, chunk: Frame) -> PhysAddr {
        self.base + u64::from(chunk.get() / SUB_PAGES) * BITMAP_BYTES
    }

    /// The bitmap of the 2 MB around a frame.
    #[inline]
    #[must_use]
    pub fn holes(&self, chunk: Frame) -> Holes {
        let index = (chunk.get() / SUB_PAGES) as usize;
        self.bitmaps.get(index).copied().unwrap_or(Holes::NONE)
    }

    /// Makes one sub-page of the 2 MB around a frame a hole, or whole again.
    pub fn mark(&mut self, chunk: Frame, sub_page: u32, hole: bool) {
        let index = self.index(chunk);
        self.bitmaps[index].set(sub_page, hole);
    }

    /// One more perforated page uses the 2 MB around a frame, with these holes of its own. The
    /// bitmap is the union of all of them.
    pub(crate) fn attach(&mut self, chunk: Frame, own: &Holes) {
        let index = self.index(chunk);
        self.sharers[index] += 1;
        for (all, own) in self.bitmaps[index].0.iter_mut().zip(own.0) {
            *all |= own;
        }
    }

    /// One less does. The last one leaves no holes behind.
    pub(crate) fn detach(&mut self, chunk: Frame) {
        let index = self.index(chunk);
        self.sharers[index] -= 1;
        if self.sharers[index] == 0 {
            self.bitmaps[index] = Holes::NONE;
        }
    }

    /// Perforated pages on the 2 MB around a frame.
    #[must_use]
    pub fn sharers(&self, chunk: Frame) -> u32 {
        let index = (chunk.get() / SUB_PAGES) as usize;
        self.sharers.get(index).map_or(0, |&n| u32::from(n))
    }

    fn index(&mut self, chunk: Frame) -> usize {
        if self.bitmaps.is_empty() {
            self.bitmaps.resize(self.chunks, Holes::NONE);
            self.sharers.resize(self.chunks, 0);
        }
        (chunk.get() / SUB_PAGES) as usize
    }
}

/// Distribution of the holes of a fragmented page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub enum Pattern {
    /// Side by side, from the start of the page.
    Clustered,
    /// At equal distances.
    Dispersed,
}

/// Contents of the holes of a fragmented page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub enum HoleKind {
    /// Pages that lie elsewhere.
    Remapped,
    /// Nothing, until they are touched.
    Unallocated,
}

/// A scenario of fragmentation, as Perforated Page, section 6 studies them: which frames of the
/// memory behind each 2 MB page is not available.
#[derive(Clone, Copy, Debug, PartialEq, contigua_state::Plain)]
pub struct Fragmentation {
    /// Share of the 2 MB pages that have holes, 0 to 1. Which ones follows from the seed; a larger
    /// share only adds some.
    pub share: f64,
    /// Share of such a page that is holes, 0 to 1; at least one 4 KB page.
    pub holes: f64,
    /// Distribution of the holes.
    pub pattern: Pattern,
    /// Contents of the holes.
    pub kind: HoleKind,
    /// Chooses the pages.
    pub seed: u64,
}

impl Fragmentation {
    /// The holes of the 2 MB page around an address.
    #[must_use]
    pub fn of_page(&self, address: VirtAddr) -> Holes {
        let number = address.get() / (u64::from(SUB_PAGES) * PAGE_BYTES);
        // Its top 53 bits as a fraction of 1.
        let draw = (mix(number ^ mix(self.seed)) >> 11) as f64 / (1_u64 << 53) as f64;
        if draw >= self.share {
            return Holes::NONE;
        }
        let count = (self.holes * f64::from(SUB_PAGES)).round() as u32;
        let count = count.clamp(1, SUB_PAGES);
        (0..count)
            .map(|i| match self.pattern {
                Pattern::Clustered => i,
                Pattern::Dispersed => i * SUB_PAGES / count,
            })
            .collect()
    }
}

/// The finalizer of `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_counts_as_the_paper_does() {
        // mechanisms C7: evenly dispersed holes set min(8, k) bits, clustered ones k/64.
        for k in [1_u32, 2, 4, 8, 16, 64] {
            let dispersed: Holes = (0..k).map(|i| i * SUB_PAGES / k).collect();
            assert_eq!(dispersed.filter().0.count_ones(), k.min(8), "{k}");
            let clustered: Holes = (0..k).collect();
            assert_eq!(clustered.filter().0.count_ones(), k.div_ceil(64), "{k}");
        }
    }

    #[test]
    fn a_bitmap_lies_where_its_physical_address_says() {
        let bitmaps = HoleBitmaps::new(1 << 21);
        assert_eq!(bitmaps.bytes(), Bytes::new((8 << 30) / 32768));
        let first = bitmaps.address(Frame::new(0));
        assert_eq!(first, PhysAddr::new(8 << 30));
        assert_eq!(bitmaps.address(Frame::new(511)), first);
        assert_eq!(bitmaps.address(Frame::new(3 * 512 + 7)), first + 3 * 64);
    }

    #[test]
    fn a_chunk_of_the_bitmap_is_its_32_bits() {
        let holes: Holes = [0, 31, 32, 95, 511].into_iter().collect();
        assert_eq!(holes.chunk(5), 1 | 1 << 31);
        assert_eq!(holes.chunk(33), 1);
        assert_eq!(holes.chunk(64), 1 << 31);
        assert_eq!(holes.chunk(500), 1 << 31);
        assert_eq!(holes.count(), 5);
        assert_eq!(holes.iter().collect::<Vec<_>>(), [0, 31, 32, 95, 511]);
    }
}
