//! Elastic cuckoo page tables (Skarlatos, Kokolis, Xu and Torrellas, ASPLOS 2020), and memory-efficient ones
//! (ME-HPT: Stojkovic, Mantri, Skarlatos, Xu and Torrellas, HPCA 2023): the entry of a page lies in one of a few
//! places that hashes tell, all of which are read at once. [`contigua_paging::Hashed`] has the tables, and how they
//! grow.
//!
//! Cuckoo walk tables tell of which sizes the pages of a section of 2 MB or 1 GB are, and in which way a huge
//! page's entry lies. A walk looks for their lines in two small caches (CWC). With a section of 2 MB there, it reads
//! all ways of the table for 4 KB, or the one with a huge page; with one of 1 GB there, all ways of all sizes up to
//! 2 MB; else all ways of all sizes. What was missing is read then, with nobody waiting for it.
//!
//! The ways of the first paper are contiguous and grow together, each to a new place. Those of the second are
//! in chunks, which a table in the processor names, and grow one by one, in place.
//!
//! Simplified: a fault needs no walk tables, whose lines say at once what the kernel has changed; tables do not
//! shrink, and chunks have one size (in the second paper, it grows with the ways from 8 KB on). Virtual machines have
//! such tables in the guest only, and read no walk tables.

use contigua_cache::Sets;
use contigua_paging::{Hashing, MAX_WAYS, MappingPolicy, SpaceId};
use contigua_state::State;
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables, Translation,
    Translator, TranslatorCounters, page,
};
use contigua_units::{
    Bytes, Cycles, LINE_BYTES, Order, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange,
};
use serde::{Deserialize, Serialize};

/// The tables, and the caches of the walk tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "ecpt")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Ways of each table: 3 (the paper).
    #[schemars(range(min = 2, max = 4))]
    pub ways: u32,
    /// Size of a way at first: 1 MB, which are 16,384 lines (the paper, and a kernel
    /// for it, `ECPT_4K_PER_WAY_ENTRIES`). Those for huge pages begin with at most 1 MB.
    #[schemars(extend("x-minimum" = "4KiB", "x-maximum" = "1GiB", "x-power-of-two" = true))]
    pub way: Bytes,
    /// Size of the chunks of a way (ME-HPT: 1 MB); 0: ways are contiguous.
    #[schemars(extend("x-minimum" = "0B", "x-maximum" = "1MiB", "x-power-of-two" = true))]
    pub chunk: Bytes,
    /// Places of a table that have lines, in percent, above which it grows: 60 (the paper).
    #[schemars(range(min = 1, max = 90))]
    pub full_percent: u32,
    /// Entries of the cache for sections of 2 MB, each of which has 64. 16, cited from memory.
    #[schemars(range(min = 1, max = 1024))]
    pub cwc_2m_entries: u32,
    /// Entries of the cache for sections of 1 GB. 2, cited from memory.
    #[schemars(range(min = 1, max = 1024))]
    pub cwc_1g_entries: u32,
    /// Cycles of these caches. 4, cited from memory.
    #[schemars(extend("maximum" = 1000))]
    pub cwc_cycles: Cycles,
    /// Cycles of the hash functions. 2, cited from memory.
    #[schemars(extend("maximum" = 1000))]
    pub hash_cycles: Cycles,
    /// Cycles of the table of chunks, where there are some. Not in what of the paper the project has; chosen.
    #[schemars(extend("maximum" = 1000))]
    pub chunk_cycles: Cycles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            ways: 3,
            way: Bytes::new(1 << 20),
            chunk: Bytes::new(0),
            full_percent: 60,
            cwc_2m_entries: 16,
            cwc_1g_entries: 2,
            cwc_cycles: Cycles::new(4),
            hash_cycles: Cycles::new(2),
            chunk_cycles: Cycles::new(4),
        }
    }
}

/// The order of the smallest block for so many bytes.
fn order(bytes: Bytes) -> Order {
    let pages = bytes.get().div_ceil(PAGE_BYTES).next_power_of_two();
    Order::new(pages.ilog2() as u8)
}

impl Config {
    fn chunk(&self) -> Option<Order> {
        (self.chunk.get() > 0).then(|| order(self.chunk))
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        let cache = |what, entries| Sets::new(what, u64::from(entries), entries);
        let chunks = self.chunk().map_or(Cycles::ZERO, |_| self.chunk_cycles);
        Ok(Box::new(Ecpt {
            radix: Radix::new(hardware)?,
            sections_2m: cache("ecpt.cwc_2m_entries", self.cwc_2m_entries)?,
            sections_1g: cache("ecpt.cwc_1g_entries", self.cwc_1g_entries)?,
            begun: hardware.walk_cache.start_cycles + self.cwc_cycles + self.hash_cycles + chunks,
            reads: 0,
            hits: 0,
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn hashing(&self) -> Option<Hashing> {
        let way = order(self.way).max(self.chunk().unwrap_or(Order::BASE));
        Some(Hashing {
            ways: self.ways,
            lines: way.bytes() / LINE_BYTES,
            chunk: self.chunk(),
            full: self.full_percent,
        })
    }

    fn register_bits(&self) -> u64 {
        /// First frame, size and pointer of a way; those of the way that it grows to.
        const WAY_BITS: u64 = 2 * (40 + 5 + 24);
        /// Chunks of each way that the processor's table names: 64 MB.
        const CHUNKS: u64 = 64;
        let chunks = self.chunk().map_or(0, |_| CHUNKS * 40);
        let tables = PageSize::ALL.len() as u64 * u64::from(self.ways);
        tables * (WAY_BITS + chunks)
    }
}

#[derive(State)]
struct Ecpt {
    radix: Radix,
    /// Lines of the walk tables.
    sections_2m: Sets<()>,
    sections_1g: Sets<()>,
    #[state(skip)]
    begun: Cycles,
    reads: u64,
    hits: u64,
}

/// log2 of the bytes that a line of the walk table for a size of section covers: 64 sections.
fn shift(section: PageSize) -> u32 {
    section.shift() + 6
}

/// Number and key of a line of a walk table. A cache has one set.
fn key(address: VirtAddr, space: SpaceId, section: PageSize) -> u64 {
    address.get() >> shift(section) | u64::from(space.0) << 45
}

/// Lines to read at once.
#[derive(Default)]
struct Lines {
    list: [PhysAddr; MAX_WAYS * PageSize::ALL.len()],
    count: usize,
}

impl Lines {
    fn add(&mut self, lines: impl IntoIterator<Item = PhysAddr>) {
        for line in lines {
            self.list[self.count] = line;
            self.count += 1;
        }
    }
}

impl Ecpt {
    /// The lines that a walk reads, and lines of the walk tables for which nobody waits.
    fn lines(&mut self, request: &Request, tables: &Tables<'_>, missing: &mut Lines) -> Lines {
        let mut lines = Lines::default();
        let Some(hashed) = tables.table.hashed() else {
            return lines;
        };
        let Request { address, space, .. } = *request;
        let found = tables.table.leaf(address).map(|leaf| leaf.size);
        let mut knows = |cache: &mut Sets<()>, section| {
            let key = key(address, space, section);
            let is_here = cache.lookup(0, key).is_some();
            if !is_here {
                cache.insert(0, key, ());
                missing.add(hashed.walk_line(address, section));
            }
            is_here
        };
        let knows_2m = knows(&mut self.sections_2m, PageSize::Size2M);
        let knows_1g = knows_2m || knows(&mut self.sections_1g, PageSize::Size1G);
        self.hits += u64::from(knows_2m);
        match found {
            Some(size @ PageSize::Size2M) if knows_2m => lines.add(hashed.place(address, size)),
            Some(size @ PageSize::Size1G) if knows_1g => lines.add(hashed.place(address, size)),
            _ => {
                for size in PageSize::ALL {
                    let may_be = match size {
                        PageSize::Size4K => !knows_2m || has_small(tables, address),
                        PageSize::Size2M => !knows_2m,
                        PageSize::Size1G => !knows_1g,
                    };
                    if may_be && hashed.has(size) {
                        lines.add(hashed.candidates(address, size));
                    }
                }
            }
        }
        self.reads += lines.count as u64;
        lines
    }
}

/// Returns true if the 2 MB around an address have pages of 4 KB.
fn has_small(tables: &Tables<'_>, address: VirtAddr) -> bool {
    tables.table.base_pages_around(address) > 0
}

impl Translator for Ecpt {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let mut missing = Lines::default();
        let lines = self.lines(request, tables, &mut missing);
        let lines = &lines.list[..lines.count];
        let found = self.radix.probe(request, lines, self.begun, tables, port);
        if tables.host.is_none() {
            for &line in &missing.list[..missing.count] {
                port.reference_aside(line);
            }
        }
        match found {
            Ok((leaf, latency)) => {
                self.radix.fill(request, leaf);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        for (cache, section) in [
            (&mut self.sections_2m, PageSize::Size2M),
            (&mut self.sections_1g, PageSize::Size1G),
        ] {
            let first = key(range.start, space, section);
            let last = key(VirtAddr::new(range.end.get() - 1), space, section);
            cache.remove_if(|key, ()| (first..=last).contains(&key));
        }
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.sections_2m.clear();
        self.sections_1g.clear();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![("ecpt_reads", self.reads), ("ecpt_cwc_hits", self.hits)]
    }

    fn reset_counters(&mut self) {
        (self.reads, self.hits) = (0, 0);
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// Number of a line and its space, and four bits for each of 64 sections, cited from memory.
        const SECTIONS_BITS: u64 = 48 - 27 + 12 + 64 * 4;
        let caches = self.sections_2m.capacity() + self.sections_1g.capacity();
        self.radix.storage_bits_without_walk_caches() + caches as u64 * SECTIONS_BITS
    }
}
