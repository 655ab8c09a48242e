//! Translation lookaside buffers.

use contigua_cache::{Geometry, Sets};
use contigua_paging::{Filter, Leaf, SpaceId};
use contigua_state::{Reader, State, Writer};
use contigua_units::{Cycles, Frame, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Geometry of all TLBs of a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlbConfig {
    /// For loads and stores.
    pub l1d: L1Config,
    /// For instruction fetches.
    pub l1i: L1Config,
    /// Behind both; none, or several for different sizes of pages.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub l2: Vec<L2Config>,
    /// Entries carry address-space identifiers (PCID, ASID), so that a switch to another process
    /// forgets nothing.
    #[serde(default = "yes")]
    pub address_space_ids: bool,
}

impl TlbConfig {
    /// Time that a look-up of the second-level TLBs takes: all are probed at once. Walks begin after it.
    #[must_use]
    pub fn second_level_cycles(&self) -> Cycles {
        let latencies = self.l2.iter().map(|config| config.latency_cycles);
        latencies.max().unwrap_or(Cycles::ZERO)
    }

    /// Entries for data of the largest TLB that holds pages of this size.
    #[must_use]
    pub fn entries(&self, size: PageSize) -> u32 {
        let first = match size {
            PageSize::Size4K => &self.l1d.pages_4k,
            PageSize::Size2M => &self.l1d.pages_2m,
            PageSize::Size1G => &self.l1d.pages_1g,
        };
        let first = first.as_ref().map(|geometry| geometry.entries);
        let holds = |config: &&L2Config| config.holds.contains(&size);
        let second = self.l2.iter().filter(holds).map(|config| config.entries);
        second.chain(first).max().unwrap_or(0)
    }
}

const fn yes() -> bool {
    true
}

/// A first-level TLB: one array for each size of page. A page of a size that has no array is
/// entered in pieces of the next smaller size that has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct L1Config {
    /// 4 KB pages.
    #[serde(rename = "4k", default, skip_serializing_if = "Option::is_none")]
    pub pages_4k: Option<Geometry>,
    /// 2 MB pages.
    #[serde(rename = "2m", default, skip_serializing_if = "Option::is_none")]
    pub pages_2m: Option<Geometry>,
    /// 1 GB pages.
    #[serde(rename = "1g", default, skip_serializing_if = "Option::is_none")]
    pub pages_1g: Option<Geometry>,
}

/// A second-level TLB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct L2Config {
    /// Entries in all.
    #[schemars(range(min = 1, max = 16_384))]
    pub entries: u32,
    /// Entries of a set.
    #[schemars(range(min = 1, max = 16_384))]
    pub ways: u32,
    /// From the first level's miss to the answer.
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub latency_cycles: Cycles,
    /// Sizes of pages that share it.
    pub holds: Vec<PageSize>,
}

/// A translation as a TLB keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub(crate) struct Entry {
    /// First frame of the page. A bitmap entry has its bits here.
    pub frame: Frame,
    pub writable: bool,
    /// The filter of a perforated page.
    pub perforation: Option<Filter>,
    /// Pages of its aligned group that a run translates, as bits; its frame is that of the group's
    /// first page, modulo 2^32, which need not be part of the run.
    pub run: u8,
}

/// A translation that a TLB dropped to make room for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub struct Evicted {
    /// First address that it translates.
    pub address: VirtAddr,
    /// Address space.
    pub space: SpaceId,
    /// The page, writable if it was written before; of a group, its first page.
    pub leaf: Leaf,
    /// log2 of the pages of the aligned group that it translates; 0 for a single page.
    pub group: u32,
}

impl Evicted {
    /// The addresses that it translates.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        VirtRange::with_length(self.address, self.leaf.size.bytes() << self.group)
    }

    /// Returns true if it translates an address of a space.
    #[must_use]
    pub fn covers(&self, address: VirtAddr, space: SpaceId) -> bool {
        self.space == space && self.range().contains(address)
    }

    /// Returns true if it translates an address of a range of a space.
    #[must_use]
    pub fn overlaps(&self, space: SpaceId, range: VirtRange) -> bool {
        self.space == space && self.address < range.end && self.range().end > range.start
    }
}

impl Entry {
    pub(crate) fn of(leaf: Leaf) -> Self {
        Self {
            frame: leaf.frame,
            writable: leaf.writable,
            perforation: leaf.perforation,
            run: 0,
        }
    }

    fn leaf(self, size: PageSize) -> Leaf {
        Leaf {
            perforation: self.perforation,
            ..Leaf::new(self.frame, size, self.writable)
        }
    }
}

/// Kind of an entry. Entries of several kinds can share an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A page of a size; a perforated one among those of 2 MB.
    Page(PageSize),
    /// 32 bits of a hole bitmap, which speak for 128 KB (Perforated Page, section 5).
    Bitmap,
    /// An aligned group of 4 KB pages that are contiguous, of two to this power.
    Group(u32),
    /// Some pages of such a group, in the group's set.
    Run(u32),
}

impl Kind {
    #[inline]
    const fn code(self) -> u64 {
        match self {
            Self::Page(size) => size as u64,
            Self::Bitmap => 3,
            Self::Group(_) => 4,
            Self::Run(_) => 5,
        }
    }

    /// log2 of the bytes that an entry speaks for.
    #[inline]
    const fn shift(self) -> u32 {
        match self {
            Self::Page(size) => size.shift(),
            Self::Bitmap => 17,
            Self::Group(pages) => PAGE_BYTES.trailing_zeros() + pages,
            Self::Run(_) => PAGE_BYTES.trailing_zeros(),
        }
    }
}

/// Bits of a page number: 57-bit addresses of 4 KB pages.
const PAGE_BITS: u32 = 45;
const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;
const KIND_SHIFT: u32 = PAGE_BITS + u16::BITS;

/// The key under which an entry of a space is kept. Kinds differ in it, so that they can share an
/// array. A group's size is in the bits of its first page's number that are zero, as Svnapot codes it: the highest of
/// them is set.
#[inline]
const fn key(space: SpaceId, number: u64, kind: Kind) -> u64 {
    let number = match kind {
        Kind::Group(pages) => number << pages | 1 << (pages - 1),
        _ => number,
    };
    number | (space.0 as u64) << PAGE_BITS | kind.code() << KIND_SHIFT
}

/// The first address that an entry speaks for.
#[inline]
const fn start(key: u64, kind: Kind) -> u64 {
    let number = key & PAGE_MASK;
    match kind {
        Kind::Group(pages) => number >> pages << kind.shift(),
        _ => number << kind.shift(),
    }
}

#[inline]
const fn number(address: VirtAddr, kind: Kind) -> u64 {
    address.get() >> kind.shift()
}

/// The number by which a set is chosen: runs of a group share one.
#[inline]
const fn set(number: u64, kind: Kind) -> u64 {
    match kind {
        Kind::Run(group) => number >> group,
        _ => number,
    }
}

/// An array of translations.
#[derive(Clone, Debug, contigua_state::State)]
pub(crate) struct Array {
    sets: Sets<Entry>,
    /// log2 of the pages of the largest group, where the array holds groups.
    #[state(skip)]
    group: u32,
}

impl Array {
    pub(crate) fn new(sets: Sets<Entry>, group: u32) -> Self {
        Self { sets, group }
    }

    #[inline]
    fn most_recent(&mut self, address: VirtAddr, space: SpaceId, kind: Kind) -> Option<Entry> {
        let number = number(address, kind);
        self.sets
            .most_recent(number, key(space, number, kind))
            .copied()
    }

    #[inline]
    pub(crate) fn lookup(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        kind: Kind,
    ) -> Option<Entry> {
        let number = number(address, kind);
        let key = key(space, number, kind);
        self.sets.lookup(set(number, kind), key).copied()
    }

    /// Enters what is not present, and returns the translation that had to go.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        kind: Kind,
        entry: Entry,
    ) -> Option<Evicted> {
        let number = number(address, kind);
        let (key, entry) = self
            .sets
            .insert(set(number, kind), key(space, number, kind), entry)?;
        let (kind, group) = match Self::kind(key, self.group) {
            Kind::Page(size) => (Kind::Page(size), 0),
            Kind::Group(pages) => (Kind::Group(pages), pages),
            Kind::Bitmap | Kind::Run(_) => return None,
        };
        let size = match kind {
            Kind::Page(size) => size,
            _ => PageSize::Size4K,
        };
        Some(Evicted {
            address: VirtAddr::new(start(key, kind)),
            space: SpaceId((key >> PAGE_BITS) as u16),
            leaf: entry.leaf(size),
            group,
        })
    }

    /// Enters 32 bits of a hole bitmap that are not present, with so many entries of the set behind
    /// them.
    pub(crate) fn insert_bitmap(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        bits: u32,
        behind: u32,
    ) {
        let number = number(address, Kind::Bitmap);
        let entry = Entry {
            frame: Frame::new(bits),
            ..Entry::default()
        };
        let key = key(space, number, Kind::Bitmap);
        self.sets.insert_behind(number, key, entry, behind as usize);
    }

    pub(crate) fn remove(&mut self, address: VirtAddr, space: SpaceId, kind: Kind) {
        let number = number(address, kind);
        self.sets
            .remove(set(number, kind), key(space, number, kind));
    }

    pub(crate) fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        let group = self.group;
        self.sets.remove_if(|key, entry| {
            let kind = Self::kind(key, group);
            let start = start(key, kind);
            // A run begins with its first page.
            let bytes = match kind {
                Kind::Run(_) => u64::from(entry.run.count_ones()) << kind.shift(),
                _ => 1 << kind.shift(),
            };
            (key >> PAGE_BITS) as u16 == space.0
                && start < range.end.get()
                && start + bytes > range.start.get()
        });
    }

    fn kind(key: u64, group: u32) -> Kind {
        match (key >> KIND_SHIFT) as usize {
            3 => Kind::Bitmap,
            4 => Kind::Group((key & PAGE_MASK).trailing_zeros() + 1),
            5 => Kind::Run(group),
            size => Kind::Page(PageSize::ALL[size & 3]),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.sets.clear();
    }

    pub(crate) fn capacity(&self) -> usize {
        self.sets.capacity()
    }

    /// All entries with their kinds.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Kind, &Entry)> {
        let entries = self.sets.iter();
        entries.map(|(key, entry)| (Self::kind(key, self.group), entry))
    }
}

/// A first-level TLB.
#[derive(Clone, Debug, contigua_state::State)]
pub(crate) struct L1Tlb {
    base: Array,
    #[state(fixed)]
    huge: Option<Array>,
    #[state(fixed)]
    giant: Option<Array>,
    /// log2 of the pages of a group that an entry for 4 KB pages can hold; 0 when it cannot.
    #[state(skip)]
    group: u32,
}

/// A first-level hit.
pub(crate) struct Hit {
    pub physical: PhysAddr,
    pub writable: bool,
}

impl Hit {
    #[inline]
    fn new(entry: Entry, address: VirtAddr, size: PageSize) -> Self {
        Self {
            physical: entry.frame.address() + (address.get() & (size.bytes() - 1)),
            writable: entry.writable,
        }
    }
}

impl L1Tlb {
    pub(crate) fn new(what: &'static str, config: &L1Config, group: u32) -> Result<Self, Error> {
        let array = |size: &str, geometry: &Option<Geometry>| -> Result<_, Error> {
            let what = format!("tlb.{what}.{size}");
            let sets = geometry
                .map(|g| Sets::with_geometry(&what, g))
                .transpose()?;
            Ok(sets.map(|sets| Array::new(sets, group)))
        };
        Ok(Self {
            base: array("4k", &config.pages_4k)?.ok_or(Error::NoBasePages(what))?,
            huge: array("2m", &config.pages_2m)?,
            giant: array("1g", &config.pages_1g)?,
            group,
        })
    }

    /// Looks an address up in the entries used last in their sets: a hit there changes nothing, so
    /// they are asked first.
    #[inline]
    pub(crate) fn most_recent(&mut self, address: VirtAddr, space: SpaceId) -> Option<Hit> {
        let base = Kind::Page(PageSize::Size4K);
        if let Some(entry) = self.base.most_recent(address, space, base) {
            return Some(Hit::new(entry, address, PageSize::Size4K));
        }
        let huge = self.huge.as_mut()?;
        let entry = huge.most_recent(address, space, Kind::Page(PageSize::Size2M))?;
        Some(Hit::new(entry, address, PageSize::Size2M))
    }

    /// Looks an address up in all entries.
    pub(crate) fn lookup_all(&mut self, address: VirtAddr, space: SpaceId) -> Option<Hit> {
        for size in PageSize::ALL {
            if let Some(array) = self.array(size)
                && let Some(entry) = array.lookup(address, space, Kind::Page(size))
            {
                return Some(Hit::new(entry, address, size));
            }
        }
        if self.group == 0 {
            return None;
        }
        let group = Kind::Group(self.group);
        let entry = self.base.lookup(address, space, group)?;
        let part = address.page().get() as u32 & ((1 << self.group) - 1);
        let entry = Entry {
            frame: entry.frame.offset(part),
            ..entry
        };
        Some(Hit::new(entry, address, PageSize::Size4K))
    }

    #[inline]
    fn array(&mut self, size: PageSize) -> Option<&mut Array> {
        match size {
            PageSize::Size4K => Some(&mut self.base),
            PageSize::Size2M => self.huge.as_mut(),
            PageSize::Size1G => self.giant.as_mut(),
        }
    }

    /// Enters the group around an address, and returns what had to go; `leaf` is one page of it.
    pub(crate) fn insert_group(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        leaf: Leaf,
    ) -> Option<Evicted> {
        let kind = Kind::Group(self.group);
        self.base.remove(address, space, kind);
        let part = address.page().get() as u32 & ((1 << self.group) - 1);
        let entry = Entry {
            frame: Frame::new(leaf.frame.get() - part),
            ..Entry::of(leaf)
        };
        self.base.insert(address, space, kind, entry)
    }

    /// Enters a page, or the piece around the address where its size has no array, and returns what
    /// had to go.
    pub(crate) fn insert(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        leaf: Leaf,
    ) -> Option<Evicted> {
        for size in PageSize::ALL.into_iter().rev() {
            if size > leaf.size {
                continue;
            }
            if let Some(array) = self.array(size) {
                let piece = address.align_down(size.bytes());
                let entry = Entry {
                    frame: leaf.physical(piece).frame(),
                    writable: leaf.writable,
                    ..Entry::default()
                };
                return array.insert(address, space, Kind::Page(size), entry);
            }
        }
        None
    }

    /// Removes the entry that translates an address.
    pub(crate) fn remove(&mut self, address: VirtAddr, space: SpaceId) {
        for size in PageSize::ALL {
            if let Some(array) = self.array(size) {
                array.remove(address, space, Kind::Page(size));
            }
        }
        if self.group > 0 {
            self.base.remove(address, space, Kind::Group(self.group));
        }
    }

    /// Bits of storage; `more` says how many an entry for a size of page has beyond its own.
    pub(crate) fn storage_bits(&self, more: impl Fn(PageSize) -> u64) -> u64 {
        let arrays = [Some(&self.base), self.huge.as_ref(), self.giant.as_ref()];
        PageSize::ALL
            .into_iter()
            .zip(arrays)
            .filter_map(|(size, array)| Some(array?.capacity() as u64 * (ENTRY_BITS + more(size))))
            .sum()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        for size in PageSize::ALL {
            if let Some(array) = self.array(size) {
                array.clear();
            }
        }
    }

    pub(crate) fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        for size in PageSize::ALL {
            if let Some(array) = self.array(size) {
                array.invalidate(space, range);
            }
        }
    }
}

/// The second-level TLBs, together.
#[derive(Clone, Debug)]
pub(crate) struct L2Tlb {
    arrays: Vec<(Array, Cycles)>,
    /// Array that holds pages of a size, by size.
    holder: [Option<usize>; PageSize::ALL.len()],
}

impl State for L2Tlb {
    fn save(&self, out: &mut Writer<'_>) {
        for (array, _) in &self.arrays {
            array.save(out);
        }
    }

    fn load(&mut self, input: &mut Reader<'_>) -> Result<(), contigua_state::Error> {
        let mut arrays = self.arrays.iter_mut();
        arrays.try_for_each(|(array, _)| array.load(input))
    }
}

/// Bits of an entry: page number, 12-bit PCID, 40-bit frame number, size, permissions and flags.
const ENTRY_BITS: u64 = 36 + 12 + 40 + 2 + 6;

impl L2Tlb {
    pub(crate) fn new(configs: &[L2Config], group: u32) -> Result<Self, Error> {
        let mut tlb = Self {
            arrays: Vec::new(),
            holder: [None; PageSize::ALL.len()],
        };
        for (index, config) in configs.iter().enumerate() {
            let sets = Sets::new("tlb.l2", u64::from(config.entries), config.ways)?;
            tlb.arrays
                .push((Array::new(sets, group), config.latency_cycles));
            for &size in &config.holds {
                if tlb.holder[size as usize].replace(index).is_some() {
                    return Err(Error::HeldTwice(size.name()));
                }
            }
        }
        Ok(tlb)
    }

    /// Time that a look-up takes: all arrays are probed at once.
    pub(crate) fn latency(&self) -> Cycles {
        let latencies = self.arrays.iter().map(|(_, latency)| *latency);
        latencies.max().unwrap_or(Cycles::ZERO)
    }

    /// The array that holds pages of a size.
    pub(crate) fn array(&mut self, size: PageSize) -> Option<&mut Array> {
        let index = self.holder[size as usize]?;
        Some(&mut self.arrays[index].0)
    }

    pub(crate) fn lookup(&mut self, address: VirtAddr, space: SpaceId) -> Option<Leaf> {
        PageSize::ALL.into_iter().find_map(|size| {
            let entry = self.array(size)?.lookup(address, space, Kind::Page(size))?;
            Some(entry.leaf(size))
        })
    }

    /// Returns true if it translates an address, which is no use of the entry.
    pub(crate) fn holds(&self, address: VirtAddr, space: SpaceId) -> bool {
        PageSize::ALL.into_iter().any(|size| {
            let kind = Kind::Page(size);
            let number = number(address, kind);
            let array = self.holder[size as usize].map(|index| &self.arrays[index].0.sets);
            array.is_some_and(|sets| sets.peek(number, key(space, number, kind)).is_some())
        })
    }

    /// Enters a page, if its size is held at all, and returns what had to go.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        leaf: Leaf,
    ) -> Option<Evicted> {
        let array = self.array(leaf.size)?;
        array.insert(address, space, Kind::Page(leaf.size), Entry::of(leaf))
    }

    /// Removes the entry that translates an address.
    pub(crate) fn remove(&mut self, address: VirtAddr, space: SpaceId) {
        for size in PageSize::ALL {
            if let Some(array) = self.array(size) {
                array.remove(address, space, Kind::Page(size));
            }
        }
    }

    /// Forgets what it holds about a range.
    pub(crate) fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        let one_page = range.bytes() <= PAGE_BYTES;
        for (array, _) in &mut self.arrays {
            if one_page {
                let sizes = PageSize::ALL.map(Kind::Page).into_iter();
                let groups = (1..=array.group).map(Kind::Group);
                for kind in sizes.chain([Kind::Bitmap]).chain(groups) {
                    array.remove(range.start, space, kind);
                }
            } else {
                array.invalidate(space, range);
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.arrays.iter_mut().for_each(|(array, _)| array.clear());
    }

    /// All entries with their kinds.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Kind, &Entry)> {
        self.arrays.iter().flat_map(|(array, _)| array.entries())
    }

    /// Entries of the array that holds a size of page.
    pub(crate) fn capacity_for(&self, size: PageSize) -> u64 {
        let holder = self.holder[size as usize].and_then(|index| self.arrays.get(index));
        holder.map_or(0, |(array, _)| array.capacity() as u64)
    }

    pub(crate) fn capacity(&self) -> u64 {
        let entries = self.arrays.iter().map(|(array, _)| array.capacity() as u64);
        entries.sum()
    }

    pub(crate) fn storage_bits(&self) -> u64 {
        self.capacity() * ENTRY_BITS
    }
}
