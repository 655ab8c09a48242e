//! Translation lookaside buffers.

use contigua_cache::{Geometry, Sets};
use contigua_paging::{Leaf, SpaceId};
use contigua_units::{Cycles, Frame, PageSize, PhysAddr, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Geometry of all TLBs of a core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbConfig {
    /// For loads and stores.
    pub l1d: L1Config,
    /// For instruction fetches.
    pub l1i: L1Config,
    /// Behind both; none, or several for different sizes of pages.
    #[serde(default)]
    pub l2: Vec<L2Config>,
}

/// A first-level TLB: one array for each size of page. A page of a size that has no array is
/// entered in pieces of the next smaller size that has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct L2Config {
    /// Entries in all.
    pub entries: u32,
    /// Entries of a set.
    pub ways: u32,
    /// From the first level's miss to the answer.
    pub latency_cycles: Cycles,
    /// Sizes of pages that share it.
    pub holds: Vec<PageSize>,
}

/// A translation as a TLB keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// First frame of the page.
    frame: Frame,
    writable: bool,
}

/// Bits of a page number: 48-bit addresses of 4 KB pages.
const PAGE_BITS: u32 = 36;
const SIZE_SHIFT: u32 = 56;

/// The key under which a page of a space is kept. Sizes differ in it, so that they can share an
/// array.
#[inline]
fn key(space: SpaceId, page: u64, size: PageSize) -> u64 {
    page | u64::from(space.0) << PAGE_BITS | (size as u64) << SIZE_SHIFT
}

#[inline]
fn page(address: VirtAddr, size: PageSize) -> u64 {
    address.get() >> size.shift()
}

/// Whether the page of a key belongs to a space and overlaps a range.
fn overlaps(key: u64, space: SpaceId, range: VirtRange) -> bool {
    let size = PageSize::ALL[(key >> SIZE_SHIFT) as usize & 3];
    let start = (key & ((1 << PAGE_BITS) - 1)) << size.shift();
    (key >> PAGE_BITS) as u16 == space.0
        && start < range.end.get()
        && start + size.bytes() > range.start.get()
}

/// An array of translations.
#[derive(Clone, Debug)]
struct Array(Sets<Entry>);

impl Array {
    #[inline]
    fn most_recent(&mut self, address: VirtAddr, space: SpaceId, size: PageSize) -> Option<Entry> {
        let page = page(address, size);
        self.0.most_recent(page, key(space, page, size)).copied()
    }

    #[inline]
    fn lookup(&mut self, address: VirtAddr, space: SpaceId, size: PageSize) -> Option<Entry> {
        let page = page(address, size);
        self.0.lookup(page, key(space, page, size)).copied()
    }

    fn insert(&mut self, address: VirtAddr, space: SpaceId, size: PageSize, entry: Entry) {
        let page = page(address, size);
        self.0.insert(page, key(space, page, size), entry);
    }

    fn remove(&mut self, address: VirtAddr, space: SpaceId, size: PageSize) {
        let page = page(address, size);
        self.0.remove(page, key(space, page, size));
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.0.remove_if(|key, _| overlaps(key, space, range));
    }
}

#[inline]
fn physical(entry: Entry, address: VirtAddr, size: PageSize) -> PhysAddr {
    entry.frame.address() + (address.get() & (size.bytes() - 1))
}

/// A first-level TLB.
#[derive(Clone, Debug)]
pub(crate) struct L1Tlb {
    base: Array,
    huge: Option<Array>,
    giant: Option<Array>,
}

/// A first-level hit.
pub(crate) struct Hit {
    pub physical: PhysAddr,
    pub writable: bool,
}

impl L1Tlb {
    pub(crate) fn new(what: &'static str, config: &L1Config) -> Result<Self, Error> {
        let array = |size: &str, geometry: &Option<Geometry>| -> Result<_, Error> {
            let what = format!("tlb.{what}.{size}");
            let sets = geometry
                .map(|g| Sets::with_geometry(&what, g))
                .transpose()?;
            Ok(sets.map(Array))
        };
        Ok(Self {
            base: array("4k", &config.pages_4k)?.ok_or(Error::NoBasePages(what))?,
            huge: array("2m", &config.pages_2m)?,
            giant: array("1g", &config.pages_1g)?,
        })
    }

    /// Looks an address up. The entries that were used last in their sets come first, because a
    /// hit there changes nothing; the outcome does not depend on the order.
    #[inline]
    pub(crate) fn lookup(&mut self, address: VirtAddr, space: SpaceId) -> Option<Hit> {
        let hit = |entry: Entry, size| Hit {
            physical: physical(entry, address, size),
            writable: entry.writable,
        };
        if let Some(entry) = self.base.most_recent(address, space, PageSize::Size4K) {
            return Some(hit(entry, PageSize::Size4K));
        }
        if let Some(huge) = &mut self.huge
            && let Some(entry) = huge.most_recent(address, space, PageSize::Size2M)
        {
            return Some(hit(entry, PageSize::Size2M));
        }
        self.lookup_all(address, space)
            .map(|(entry, size)| hit(entry, size))
    }

    fn lookup_all(&mut self, address: VirtAddr, space: SpaceId) -> Option<(Entry, PageSize)> {
        for size in PageSize::ALL {
            if let Some(array) = self.array(size)
                && let Some(entry) = array.lookup(address, space, size)
            {
                return Some((entry, size));
            }
        }
        None
    }

    #[inline]
    fn array(&mut self, size: PageSize) -> Option<&mut Array> {
        match size {
            PageSize::Size4K => Some(&mut self.base),
            PageSize::Size2M => self.huge.as_mut(),
            PageSize::Size1G => self.giant.as_mut(),
        }
    }

    /// Enters a page, or the piece around the address where its size has no array.
    pub(crate) fn insert(&mut self, address: VirtAddr, space: SpaceId, leaf: Leaf) {
        for size in PageSize::ALL.into_iter().rev() {
            if size > leaf.size {
                continue;
            }
            if let Some(array) = self.array(size) {
                let piece = address.align_down(size.bytes());
                let entry = Entry {
                    frame: leaf.physical(piece).frame(),
                    writable: leaf.writable,
                };
                array.insert(address, space, size, entry);
                return;
            }
        }
    }

    /// Removes the entry that translates an address.
    pub(crate) fn remove(&mut self, address: VirtAddr, space: SpaceId) {
        for size in PageSize::ALL {
            if let Some(array) = self.array(size) {
                array.remove(address, space, size);
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
    /// Which array holds a size, by size.
    holder: [Option<usize>; PageSize::ALL.len()],
}

/// Bits of an entry: page number, 12-bit PCID, 40-bit frame number, size, permissions and flags.
const ENTRY_BITS: u64 = 36 + 12 + 40 + 2 + 6;

impl L2Tlb {
    pub(crate) fn new(configs: &[L2Config]) -> Result<Self, Error> {
        let mut tlb = Self {
            arrays: Vec::new(),
            holder: [None; PageSize::ALL.len()],
        };
        for (index, config) in configs.iter().enumerate() {
            let sets = Sets::new("tlb.l2", u64::from(config.entries), config.ways)?;
            tlb.arrays.push((Array(sets), config.latency_cycles));
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

    pub(crate) fn lookup(&mut self, address: VirtAddr, space: SpaceId) -> Option<Leaf> {
        PageSize::ALL.into_iter().find_map(|size| {
            let (array, _) = &mut self.arrays[self.holder[size as usize]?];
            let entry = array.lookup(address, space, size)?;
            Some(Leaf {
                frame: entry.frame,
                size,
                writable: entry.writable,
                lazily_freed: false,
            })
        })
    }

    /// Enters a page, if its size is held at all.
    pub(crate) fn insert(&mut self, address: VirtAddr, space: SpaceId, leaf: Leaf) {
        if let Some(index) = self.holder[leaf.size as usize] {
            let entry = Entry {
                frame: leaf.frame,
                writable: leaf.writable,
            };
            self.arrays[index]
                .0
                .insert(address, space, leaf.size, entry);
        }
    }

    /// Removes the entry that translates an address.
    pub(crate) fn remove(&mut self, address: VirtAddr, space: SpaceId) {
        for size in PageSize::ALL {
            if let Some(index) = self.holder[size as usize] {
                self.arrays[index].0.remove(address, space, size);
            }
        }
    }

    pub(crate) fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        if range.bytes() <= PageSize::Size4K.bytes() {
            self.remove(range.start, space);
            return;
        }
        for (array, _) in &mut self.arrays {
            array.invalidate(space, range);
        }
    }

    pub(crate) fn storage_bits(&self) -> u64 {
        let entries = self
            .arrays
            .iter()
            .map(|(array, _)| array.0.capacity() as u64);
        entries.sum::<u64>() * ENTRY_BITS
    }
}
