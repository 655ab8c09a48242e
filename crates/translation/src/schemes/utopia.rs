//! Utopia (Kanellopoulos and others, MICRO 2023): part of memory consists of restrictive segments (`RestSegs`), one of 4 KB
//! pages and one of 2 MB pages, in which a page may lie only in the ways of the set that its number names
//! (`paging/rest_segs.rs`). A miss of the L2 TLB makes a *`RestSeg` walk* first: of each segment it reads the set filter (SF),
//! which counts the pages of the set, and where there are any the tag array (TAR), which says which way has the page. Both
//! have small caches. Where no segment has the page, hardware walks the page table of the rest, the flexible segment.
//!
//! First touches put pages into a free way, 2 MB pages before others (`paging/faults.rs`). A 4 KB page of the flexible
//! segment that is costly to translate, by two counters in its page-table entry, moves into its set, and a page that is used
//! last moves out where the set is full (`paging/restrict.rs`, `machine/kernel/restrict.rs`).
//!
//! The paper was not at hand but for its abstract. Mechanism and values are those of the authors' simulator
//! (CMU-SAFARI/Virtuoso: `mmu_designs/mmu_utopia.cc`, `config/virtuoso_configs/utopia.cfg`, `virtuoso_utopia.cfg`).
//!
//! Simplified: filters and tags are read at once, as that simulator times them, and a walk of the page table begins
//! behind them. Where the segments are taken when the program begins, in place of boot, they are as large as the longest run
//! that a server's history left. Caches of SF and TAR have lines by address and are as coherent as data caches. The counters lie in a table beside, by the page's number; hardware hands costly pages to the kernel in a queue,
//! which it empties at an interval. There are no segments in virtual machines.

use contigua_cache::Sets;
use contigua_paging::{Leaf, MappingPolicy, RestSegPlan, SpaceId};
use contigua_state::{Plain, State};
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables, Translation,
    Translator, TranslatorCounters, Upkeep, allows, behind, page,
};
use contigua_units::{
    Bytes, Cycles, LINE_BYTES, Nanoseconds, PageSize, PhysAddr, VirtAddr, VirtRange,
};
use serde::{Deserialize, Serialize};

/// Size of the restrictive segments, and when pages move there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "utopia")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Memory of the segment of 4 KB pages, its tables included, as a share of all: 1 of 16 GB
    /// (`virtuoso_utopia.cfg`).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub base_share: f64,
    /// Memory of the segment of 2 MB pages, as a share of all: 1 of 16 GB.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub huge_share: f64,
    /// Pages of a set of 4 KB pages: 16 (`utopia.cfg`).
    #[schemars(range(min = 1, max = 16))]
    pub base_ways: u32,
    /// Pages of a set of 2 MB pages: 8 (`utopia.cfg`).
    #[schemars(range(min = 1, max = 16))]
    pub huge_ways: u32,
    /// Size of the cache of SF lines, and of that of TAR lines: 2 KB, four ways, 1 cycle (`utopia.cfg`).
    #[schemars(extend("x-minimum" = "256", "x-maximum" = "64KiB"))]
    pub cache: Bytes,
    /// Cycles of a look-up of these caches.
    #[schemars(extend("maximum" = 1000))]
    pub cache_cycles: Cycles,
    /// Walks of a page from which it is costly: more than 4 (a comment of `mmu_utopia.cc`; its values are in no file).
    #[schemars(range(min = 1, max = 15))]
    pub least_walks: u8,
    /// Reads of memory by these walks from which it is: more than 3 (as above).
    #[schemars(range(min = 0, max = 15))]
    pub least_reads: u8,
    /// The segments are taken at boot, else when the program begins.
    pub from_boot: bool,
    /// Costly pages move.
    pub moves: bool,
    /// Time after which the kernel looks for costly pages. Ours: theirs move at once.
    #[schemars(extend("x-minimum" = "1us", "x-maximum" = "1s"))]
    pub interval: Nanoseconds,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            base_share: 1.0 / 16.0,
            huge_share: 1.0 / 16.0,
            base_ways: 16,
            huge_ways: 8,
            cache: Bytes::new(2 << 10),
            cache_cycles: Cycles::new(1),
            least_walks: 5,
            least_reads: 4,
            from_boot: true,
            moves: true,
            interval: Nanoseconds::new(100_000),
        }
    }
}

/// Ways of the caches of SF and TAR.
const WAYS: u32 = 4;
/// Pages with counters, of which pages of the same number modulo this share theirs.
const COUNTED: u64 = 1 << 20;
const MOST: u8 = 15;
/// Costly pages that wait for the kernel at most.
const QUEUE: usize = 64;

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        let lines = self.cache.get() / LINE_BYTES;
        let cache = || Sets::new("utopia.cache", lines, WAYS);
        Ok(Box::new(Utopia {
            radix: Radix::new(hardware)?,
            filters: cache()?,
            tags: cache()?,
            costs: vec![0; COUNTED as usize],
            costly: Vec::with_capacity(QUEUE),
            config: self.clone(),
            counters: Counters::default(),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn rest_segs(&self, memory: Bytes) -> Vec<RestSegPlan> {
        let plan = |size, share: f64, ways| RestSegPlan {
            size,
            bytes: (memory.get() as f64 * share) as u64,
            ways,
            from_boot: self.from_boot,
        };
        vec![
            plan(PageSize::Size4K, self.base_share, self.base_ways),
            plan(PageSize::Size2M, self.huge_share, self.huge_ways),
        ]
    }

    fn upkeep(&self) -> Upkeep {
        Upkeep {
            costly_pages: self.moves.then_some(self.interval),
            ..Upkeep::default()
        }
    }

    fn register_bits(&self) -> u64 {
        /// First frame, number of sets and ways, addresses of SF and TAR.
        const SEGMENT_BITS: u64 = 32 + 32 + 5 + 2 * 40;
        2 * SEGMENT_BITS
    }
}

#[derive(Clone, Copy, Debug, Default, Plain)]
struct Counters {
    walks: u64,
    hits: u64,
    filter_reads: u64,
    tag_lookups: u64,
    tag_reads: u64,
    costly: u64,
}

#[derive(State)]
struct Utopia {
    radix: Radix,
    /// Lines of the SF.
    filters: Sets<()>,
    /// Lines of the TAR.
    tags: Sets<()>,
    /// Walks of pages, and in the lower four bits what they read from memory.
    costs: Vec<u8>,
    /// Costly pages, for the kernel.
    costly: Vec<(SpaceId, VirtAddr)>,
    #[state(skip)]
    config: Config,
    counters: Counters,
}

/// Returns true if a cache has the line of an address, which it has from now on.
fn looks_up(cache: &mut Sets<()>, address: PhysAddr) -> bool {
    let line = address.get() / LINE_BYTES;
    let is_there = cache.lookup(line, line).is_some();
    if !is_there {
        cache.insert(line, line, ());
    }
    is_there
}

/// Reads of walkers that memory served; without caches, all of them.
fn reads_from_memory(radix: &Radix, port: &mut dyn MemoryPort) -> u64 {
    let lines = port.translation_lines();
    lines.map_or(radix.counters().references, |lines| {
        lines.walk_reads_from_memory()
    })
}

/// Permissions of a page of a segment, as its tag has them, marked for an access; `None` where that is not allowed.
fn permit(request: &Request, leaf: Leaf, tables: &mut Tables<'_>) -> Option<Leaf> {
    let store = request.access == contigua_translation::Access::Write;
    let entry = tables.table.walk_and_mark(request.address, store).leaf;
    // The first store must come back, to mark the page as dirty.
    let writable = entry.is_none_or(|entry| entry.writable && entry.dirty);
    let leaf = Leaf { writable, ..leaf };
    allows(leaf, request.access).then_some(leaf)
}

impl Utopia {
    /// The page that a segment has, and the time until that was known; true if anything was read for it.
    fn walk_segments(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> (Option<Leaf>, Cycles, bool) {
        let Some(segments) = tables
            .rest_segs
            .as_deref_mut()
            .filter(|segments| tables.host.is_none() && !segments.segments.is_empty())
        else {
            return (None, Cycles::ZERO, false);
        };
        self.counters.walks += 1;
        let (address, space) = (request.address, request.space);
        let mut reads = [PhysAddr::new(0); 4];
        let mut count = 0;
        let mut found = None;
        for segment in &mut segments.segments {
            let filter = segment.filter_address(space, address);
            if !looks_up(&mut self.filters, filter) {
                self.counters.filter_reads += 1;
                reads[count] = filter;
                count += 1;
            }
            if segment.pages_in_set(space, address) == 0 {
                continue;
            }
            self.counters.tag_lookups += 1;
            let tags = segment.tags_address(space, address);
            if !looks_up(&mut self.tags, tags) {
                self.counters.tag_reads += 1;
                reads[count] = tags;
                count += 1;
            }
            if let Some(frame) = segment.find(space, address) {
                found = Some(Leaf::new(frame, segment.size(), true));
            }
        }
        let mut latency = self.config.cache_cycles;
        if count > 0 {
            latency += port.references_at_once(&reads[..count]);
        }
        (found, latency, count > 0)
    }

    /// Counts a walk of the page table, and hands a page that is costly to the kernel.
    fn count_walk(&mut self, request: &Request, size: PageSize, reads: u64) {
        if size != PageSize::Size4K || !self.config.moves {
            return;
        }
        let page = request.address.page();
        let number = page.get() ^ u64::from(request.space.0) << 8;
        let costs = &mut self.costs[(number % COUNTED) as usize];
        let walks = (*costs >> 4).saturating_add(1).min(MOST);
        let cost = (*costs & MOST)
            .saturating_add(reads.min(15) as u8)
            .min(MOST);
        *costs = walks << 4 | cost;
        if walks >= self.config.least_walks
            && cost >= self.config.least_reads
            && self.costly.len() < QUEUE
        {
            *costs = 0;
            self.counters.costly += 1;
            self.costly.push((request.space, page.address()));
        }
    }
}

impl Translator for Utopia {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let (found, begun, has_read) = self.walk_segments(request, tables, port);
        if let Some(leaf) = found.and_then(|leaf| permit(request, leaf, tables)) {
            self.counters.hits += 1;
            if !has_read {
                self.radix.count_hit(leaf.size);
            }
            self.radix.fill(request, leaf);
            return page(leaf, self.radix.latency() + begun, has_read);
        }
        let before = reads_from_memory(&self.radix, port);
        match behind(begun, self.radix.walk(request, tables, port)) {
            Ok((leaf, latency)) => {
                let reads = reads_from_memory(&self.radix, port).saturating_sub(before);
                self.count_walk(request, leaf.size, reads);
                self.radix.fill(request, leaf);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.filters.clear();
        self.tags.clear();
    }

    fn take_costly_page(&mut self) -> Option<(SpaceId, VirtAddr)> {
        self.costly.pop()
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        vec![
            ("restseg_walks", counters.walks),
            ("restseg_hits", counters.hits),
            ("restseg_filter_reads", counters.filter_reads),
            ("restseg_tag_lookups", counters.tag_lookups),
            ("restseg_tag_reads", counters.tag_reads),
            ("restseg_costly_pages", counters.costly),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// A line, its address, and whether it is valid.
        const LINE_BITS: u64 = 8 * LINE_BYTES + 40 + 1;
        /// Space and page of a costly one.
        const COSTLY_BITS: u64 = 12 + 36;
        let lines = (self.filters.capacity() + self.tags.capacity()) as u64;
        self.radix.storage_bits() + lines * LINE_BITS + QUEUE as u64 * COSTLY_BITS
    }
}
