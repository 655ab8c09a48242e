//! A very large TLB in memory (Ryoo, Gulur, Song and John, ISCA 2017): behind the L2 TLB, before the
//! page walk, 16 MB of translations that the data caches hold like any memory.
//!
//! A set of four entries is one line of 64 bytes, so a look-up is one read. Pages of 4 KB and of 2 MB
//! have arrays of their own; a small table predicts which to read first. In a virtual machine an entry
//! goes from the guest's addresses to the host's, so that a hit replaces the two-dimensional walk.
//!
//! As in the paper the array is memory of its own (die-stacked there), at addresses behind the
//! server's: it needs no contiguity of the server. Here it is reached through all data caches and has
//! the latency of the server's memory behind them, each core has an array of its own, and the paper's
//! bypass of caches is left out. Pages of 1 GB are walked for.

use contigua_cache::Sets;
use contigua_paging::{Leaf, MappingPolicy, SpaceId};
use contigua_state::{Plain, State};
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables, Translation,
    Translator, TranslatorCounters, allows, behind, page,
};
use contigua_units::{Bytes, Cycles, Frame, LINE_BYTES, PAGE_BYTES, PageSize, PhysAddr, VirtRange};
use serde::{Deserialize, Serialize};

/// Size of the array in memory, and the table that predicts sizes of pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "pom-tlb")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Memory for translations, half of it for each size of page: 16 MB (the paper, abstract).
    #[schemars(extend("x-minimum" = "64KiB", "x-maximum" = "1GiB"))]
    pub size: Bytes,
    /// Entries of one bit that predict the size of a page, by its number. The paper predicts it, too; 512 is
    /// our choice.
    #[schemars(range(min = 1, max = 65_536))]
    pub predictor_entries: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            size: Bytes::new(16 << 20),
            predictor_entries: 512,
        }
    }
}

/// Bytes of an entry: the paper's, four to a line.
const ENTRY_BYTES: u64 = 16;
const WAYS: u32 = (LINE_BYTES / ENTRY_BYTES) as u32;
/// First address of the arrays: the last gigabyte of physical addresses, above the memory of any server
/// (4 TB at most); the arrays have 1 GB at most.
const BASE: PhysAddr = PhysAddr::new(PhysAddr::END - (1 << 30));
/// Bytes of a range up to which its pages are looked for one by one when it is invalidated.
const SHORT: u64 = 4096 * PAGE_BYTES;

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        let entries = self.size.get() / 2 / ENTRY_BYTES;
        let array = || Sets::new("pom-tlb.size", entries, WAYS);
        Ok(Box::new(PomTlb {
            radix: Radix::new(hardware)?,
            base: array()?,
            huge: array()?,
            is_huge: vec![false; self.predictor_entries as usize],
            array_bytes: entries * ENTRY_BYTES,
            entered: 0,
            last: Place::default(),
            counters: Counters::default(),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

/// An entry in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Plain)]
struct Entry {
    frame: Frame,
    writable: bool,
}

/// Array, number and key of an entry.
#[derive(Clone, Copy, Debug, Default, Plain)]
struct Place {
    array: u64,
    number: u64,
    key: u64,
}

#[derive(Clone, Copy, Debug, Default, Plain)]
struct Counters {
    hits: u64,
    reads: u64,
    mispredictions: u64,
}

/// Sizes of pages that have an array, in the order of the arrays in memory.
const SIZES: [PageSize; 2] = [PageSize::Size4K, PageSize::Size2M];

#[derive(State)]
struct PomTlb {
    radix: Radix,
    /// Pages of 4 KB.
    base: Sets<Entry>,
    /// Pages of 2 MB.
    huge: Sets<Entry>,
    /// True where the last page that was found was one of 2 MB.
    is_huge: Vec<bool>,
    #[state(skip)]
    array_bytes: u64,
    /// Entries made since everything was forgotten, and the last one. While a program goes forward, each
    /// page that it touches is translated once and forgotten: the arrays are too large to be cleared then.
    entered: u64,
    last: Place,
    counters: Counters,
}

/// Number of a page, and the key of its entry.
fn key(request: &Request, size: PageSize) -> (u64, u64) {
    let number = request.address.get() >> size.shift();
    // Ours: spaces with the same addresses use different sets.
    let space = u64::from(request.space.0);
    (number ^ space, number | space << 45)
}

impl PomTlb {
    fn predicted(&mut self, request: &Request) -> &mut bool {
        let entries = self.is_huge.len() as u64;
        &mut self.is_huge[(request.address.page().get() % entries) as usize]
    }

    fn array(&mut self, array: usize) -> &mut Sets<Entry> {
        match SIZES[array] {
            PageSize::Size4K => &mut self.base,
            _ => &mut self.huge,
        }
    }

    /// Reads the line of a page of this size.
    fn look_up(
        &mut self,
        request: &Request,
        array: usize,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Option<Leaf> {
        let (set, key) = key(request, SIZES[array]);
        self.counters.reads += 1;
        let start = BASE + array as u64 * self.array_bytes;
        let sets = self.array(array);
        *latency += port.reference(start + sets.set_of(set) * LINE_BYTES);
        let entry = sets.lookup(set, key)?;
        let leaf = Leaf::new(entry.frame, SIZES[array], entry.writable);
        // The tables may allow by now what they did not allow before.
        allows(leaf, request.access).then_some(leaf)
    }

    /// Enters a page that was walked for; its line was read before, and is written back with others.
    fn fill(&mut self, request: &Request, leaf: Leaf) {
        let Some(array) = SIZES.iter().position(|&size| size == leaf.size) else {
            return;
        };
        let (set, key) = key(request, leaf.size);
        let entry = Entry {
            frame: leaf.frame,
            writable: leaf.writable,
        };
        self.entered += 1;
        self.last = Place {
            array: array as u64,
            number: set,
            key,
        };
        let array = self.array(array);
        match array.peek_mut(set, key) {
            Some(known) => *known = entry,
            None => {
                array.insert(set, key, entry);
            }
        }
    }
}

impl Translator for PomTlb {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let first = usize::from(*self.predicted(request));
        let mut read = Cycles::ZERO;
        for array in [first, 1 - first] {
            if let Some(leaf) = self.look_up(request, array, port, &mut read) {
                self.counters.hits += 1;
                self.counters.mispredictions += u64::from(array != first);
                *self.predicted(request) = array == 1;
                self.radix.fill(request, leaf);
                return page(leaf, self.radix.latency() + read, true);
            }
        }
        match behind(read, self.radix.walk(request, tables, port)) {
            Ok((leaf, latency)) => {
                *self.predicted(request) = leaf.size != PageSize::Size4K;
                self.fill(request, leaf);
                self.radix.fill(request, leaf);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        for (array, size) in [&mut self.base, &mut self.huge].into_iter().zip(SIZES) {
            if range.bytes() > SHORT {
                array.remove_if(|key, _| {
                    let start = (key & ((1 << 45) - 1)) << size.shift();
                    key >> 45 == u64::from(space.0)
                        && start < range.end.get()
                        && start + size.bytes() > range.start.get()
                });
                continue;
            }
            let mut address = range.start.align_down(size.bytes());
            while address < range.end {
                let request = Request::new(address, space, contigua_translation::Access::Read);
                let (set, key) = key(&request, size);
                array.remove(set, key);
                address = address + size.bytes();
            }
        }
    }

    fn flush(&mut self) {
        self.radix.flush();
        match std::mem::take(&mut self.entered) {
            0 => {}
            1 => {
                let Place { array, number, key } = self.last;
                self.array(array as usize).remove(number, key);
            }
            _ => {
                self.base.clear();
                self.huge.clear();
            }
        }
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("pom_tlb_hits", self.counters.hits),
            ("pom_tlb_reads", self.counters.reads),
            ("pom_tlb_mispredicted_sizes", self.counters.mispredictions),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        // The array is memory.
        self.radix.storage_bits() + self.is_huge.len() as u64
    }
}
