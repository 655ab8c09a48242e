//! Translations in lines of the L2 cache (Victima: Kanellopoulos, Nam, Bostanci, Bera and others, MICRO 2023): behind the
//! L2 TLB, blocks of eight translations take the place of data.
//!
//! A line of the L2 cache holds the translations of eight neighboring pages of one size. A miss of the L2 TLB looks for
//! one while it begins to walk, which a hit ends. Blocks are made where a *cost predictor* says that walks for a page
//! are frequent and dear: after a walk, of the line of entries that it read, and when the L2 TLB evicts a page, by a walk
//! of their own for which nobody waits. Where the L2 cache misses often anyway, blocks are made without being asked for.
//! While the L2 TLB misses often, blocks are spared twice when the cache needs their lines.
//!
//! The predictor has two counters for each page, of how many walks there were and how many of them read memory. They are
//! in spare bits of page-table entries in the paper; here in a table beside them, by the page's number.
//!
//! Simplified: the L2 cache replaces the least recently used line, where the paper's predicts intervals between uses
//! (SRRIP), so that blocks are spared by making them the most recently used lines again. What a walk reads before a hit ends
//! it is not read, and takes nothing. The line of entries that a block is made of stays where it is. A block has the
//! pages that were used when it was made, and later those that are walked for. In virtual machines, it has translations
//! of both dimensions of pages that were walked for or evicted, one by one, and there are no blocks of a guest's physical
//! addresses. A page that is evicted while another process runs makes no block. Without caches, nothing is kept.

mod predictor;

use contigua_paging::{Leaf, MappingPolicy, SpaceId};
use contigua_state::{Plain, State};
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Evicted, Hardware, MemoryPort, Radix, Request, Scheme, Tables,
    Translation, TranslationLines, Translator, TranslatorCounters, allows, page,
};
use contigua_units::{PageSize, VirtAddr, VirtRange};
use predictor::Predictor;
use serde::{Deserialize, Serialize};

/// When blocks are made, and spared. Values are the paper's from memory, and as simulators of its group have them
/// (Victima's artifact, Virtuoso), where nothing else is said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "victima")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Walks of a page from which it is costly: 1, of a counter of 3 bits.
    #[schemars(range(min = 0, max = 7))]
    pub least_walks: u8,
    /// Walks of a page that read memory from which it is costly: 1, of a counter of 4 bits.
    #[schemars(range(min = 0, max = 15))]
    pub least_cost: u8,
    /// Walks that read memory up to which it is: 12. Virtuoso has 12 for the walks and 7 for these, which the other
    /// counter cannot reach.
    #[schemars(range(min = 0, max = 15))]
    pub most_cost: u8,
    /// Misses of the L2 cache in 1,000 instructions above which the predictor is not asked: 5.
    #[schemars(range(min = 0, max = 1000))]
    pub cache_mpki: u32,
    /// Misses of the L2 TLB in 1,000 instructions above which blocks are spared: 5.
    #[schemars(range(min = 0, max = 1000))]
    pub tlb_mpki: u32,
    /// How often they are then: 2. The paper's L2 cache has intervals of 2 bits between uses, in which data begins at 2
    /// and blocks at 0: lines at 3 go.
    #[schemars(range(min = 0, max = 15))]
    pub turns: u8,
    /// Instructions after which both are counted anew. Chosen.
    #[schemars(range(min = 1000, max = 1_000_000_000))]
    pub window: u64,
    /// Pages that the L2 TLB evicts make blocks, too.
    pub on_evictions: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            least_walks: 1,
            least_cost: 1,
            most_cost: 12,
            cache_mpki: 5,
            tlb_mpki: 5,
            turns: 2,
            window: 10_000,
            on_evictions: true,
        }
    }
}

/// log2 of the translations of a block.
const BLOCK: u32 = 3;
/// Sizes of pages that have blocks.
const SIZES: [PageSize; 2] = [PageSize::Size4K, PageSize::Size2M];
/// Bits of a block's number: its pages', its space's, and its size's.
const SPACE_SHIFT: u32 = 45 - BLOCK;
const SIZE_SHIFT: u32 = SPACE_SHIFT + 16;
/// Ranges to be forgotten, with more of which everything is.
const RANGES: usize = 64;
/// Blocks of a range up to which they are dropped one by one.
const SHORT: u64 = 64;

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Victima {
            radix: Radix::new(hardware)?,
            predictor: Predictor::new(self),
            has_blocks: false,
            forgets_all: false,
            forgotten: Vec::with_capacity(RANGES),
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
}

#[derive(Clone, Copy, Debug, Default, Plain)]
struct Counters {
    hits: u64,
    lookups: u64,
    lines: u64,
    after_walks: u64,
    after_evictions: u64,
    refused: u64,
    aside: u64,
}

#[derive(State)]
struct Victima {
    radix: Radix,
    predictor: Predictor,
    /// There may be blocks.
    has_blocks: bool,
    /// All blocks are to be dropped before the next look-up ...
    forgets_all: bool,
    /// ... or those of these ranges.
    forgotten: Vec<(SpaceId, VirtRange)>,
    #[state(skip)]
    config: Config,
    counters: Counters,
}

/// Number of a page's block, and the page's bit in it.
fn block_of(address: VirtAddr, space: SpaceId, size: PageSize) -> (u64, u8) {
    let number = address.get() >> size.shift();
    (block(number >> BLOCK, space, size), 1 << (number & 7))
}

/// Number of a block. Spaces with the same addresses use different sets: ours.
fn block(number: u64, space: SpaceId, size: PageSize) -> u64 {
    let space = u64::from(space.0);
    (number ^ space) | space << SPACE_SHIFT | (size as u64) << SIZE_SHIFT
}

/// First address and bytes that a block translates.
fn range_of(block: u64) -> (SpaceId, VirtRange) {
    let space = block >> SPACE_SHIFT & u64::from(u16::MAX);
    let size = SIZES[(block >> SIZE_SHIFT) as usize & 1];
    let number = (block & ((1 << SPACE_SHIFT) - 1)) ^ space;
    let start = VirtAddr::new(number << BLOCK << size.shift());
    let range = VirtRange::with_length(start, size.bytes() << BLOCK);
    (SpaceId(space as u16), range)
}

/// The translation of a block's page that is there, as the tables have it.
fn leaf_of(address: VirtAddr, size: PageSize, tables: &Tables<'_>) -> Option<Leaf> {
    let guest = tables.table.leaf(address)?;
    let start = address.align_down(size.bytes());
    let frame = match tables.host {
        None => guest.frame,
        Some(_) => tables.resolve(start)?.frame,
    };
    let fits = guest.size == size || tables.host.is_some() && guest.size > size;
    // A first store must walk, to mark the page as dirty.
    let writable = guest.writable && guest.dirty;
    (fits && guest.accessed).then(|| Leaf::new(frame, size, writable))
}

/// Pages around one that may be in its block, as bits.
fn pages_of(address: VirtAddr, size: PageSize, tables: &Tables<'_>) -> u8 {
    let (_, own) = block_of(address, SpaceId(0), size);
    if tables.host.is_some() {
        return own;
    }
    let start = address.align_down(size.bytes() << BLOCK);
    (0..1 << BLOCK)
        .filter(|&page| leaf_of(start + page * size.bytes(), size, tables).is_some())
        .fold(own, |pages, page| pages | 1 << page)
}

impl Victima {
    fn flush_blocks(&mut self) {
        self.forgotten.clear();
        self.forgets_all |= self.has_blocks;
    }

    /// Drops the blocks of what was invalidated.
    #[cold]
    fn forget(&mut self, lines: &mut dyn TranslationLines) {
        if std::mem::take(&mut self.forgets_all) {
            lines.drop_blocks(&|_| true);
            self.has_blocks = false;
        }
        for (space, range) in self.forgotten.drain(..) {
            let blocks = range.bytes() >> (PageSize::Size4K.shift() + BLOCK);
            if blocks > SHORT {
                lines.drop_blocks(&|block| {
                    let (of, translates) = range_of(block);
                    of == space && translates.start < range.end && translates.end > range.start
                });
                continue;
            }
            for size in SIZES {
                let last = (range.end.get() - 1) >> size.shift() >> BLOCK;
                for number in range.start.get() >> size.shift() >> BLOCK..=last {
                    lines.drop_block(block(number, space, size));
                }
            }
        }
    }

    /// The page that a line of the cache has.
    fn look_up(
        &mut self,
        request: &Request,
        tables: &Tables<'_>,
        lines: &mut dyn TranslationLines,
    ) -> Option<Leaf> {
        self.counters.lookups += 1;
        self.counters.lines += lines.blocks();
        SIZES.into_iter().find_map(|size| {
            let (block, page) = block_of(request.address, request.space, size);
            (lines.find(block) & page != 0)
                .then(|| leaf_of(request.address, size, tables))?
                .filter(|&leaf| allows(leaf, request.access))
        })
    }

    /// Returns true if a page shall be in a block.
    fn is_costly(&mut self, address: VirtAddr, space: SpaceId, size: PageSize) -> bool {
        let is_costly = self.predictor.is_costly(address, space, size);
        self.counters.refused += u64::from(!is_costly);
        is_costly
    }

    /// A walk has found a page.
    fn walked(
        &mut self,
        request: &Request,
        leaf: Leaf,
        read_memory: bool,
        tables: &Tables<'_>,
        port: &mut dyn MemoryPort,
    ) {
        if !SIZES.contains(&leaf.size) {
            return;
        }
        self.predictor.count_walk(request, leaf.size, read_memory);
        if self.is_costly(request.address, request.space, leaf.size)
            && let Some(lines) = port.translation_lines()
        {
            let (block, _) = block_of(request.address, request.space, leaf.size);
            lines.keep(block, pages_of(request.address, leaf.size, tables));
            self.has_blocks = true;
            self.counters.after_walks += 1;
        }
    }

    /// Fills the L2 TLB, and makes a block of what it evicts.
    fn fill(
        &mut self,
        request: &Request,
        leaf: Leaf,
        tables: &Tables<'_>,
        port: &mut dyn MemoryPort,
    ) {
        let evicted = self.radix.fill(request, leaf);
        if self.config.on_evictions
            && let Some(evicted) = evicted
            && evicted.space == request.space
            && SIZES.contains(&evicted.leaf.size)
            && self.is_costly(evicted.address, evicted.space, evicted.leaf.size)
        {
            self.keep_evicted(&evicted, tables, port);
        }
    }

    fn keep_evicted(&mut self, evicted: &Evicted, tables: &Tables<'_>, port: &mut dyn MemoryPort) {
        let (address, space, size) = (evicted.address, evicted.space, evicted.leaf.size);
        let (block, page) = block_of(address, space, size);
        let Some(lines) = port.translation_lines() else {
            return;
        };
        if lines.find(block) & page != 0 || leaf_of(address, size, tables).is_none() {
            return;
        }
        lines.keep(block, pages_of(address, size, tables));
        self.has_blocks = true;
        self.counters.after_evictions += 1;
        if tables.host.is_some() {
            return;
        }
        let levels = tables.table.levels();
        let skipped = self.radix.walker.cache.lookup(address, space, levels);
        for &entry in &tables.table.walk(address).references()[skipped..] {
            port.reference_aside(entry);
            self.counters.aside += 1;
        }
    }
}

impl Translator for Victima {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let mut from_memory = 0;
        if let Some(lines) = port.translation_lines() {
            if self.forgets_all || !self.forgotten.is_empty() {
                self.forget(lines);
            }
            self.predictor.count_miss(request, lines);
            if let Some(leaf) = self.look_up(request, tables, lines) {
                let latency = self.radix.latency() + lines.latency();
                self.counters.hits += 1;
                self.radix.count_hit(leaf.size);
                self.fill(request, leaf, tables, port);
                return page(leaf, latency, false);
            }
            from_memory = lines.walk_reads_from_memory();
        }
        match self.radix.walk(request, tables, port) {
            Ok((leaf, latency)) => {
                let lines = port.translation_lines();
                let reads = lines.map_or(0, |lines| lines.walk_reads_from_memory());
                self.walked(request, leaf, reads > from_memory, tables, port);
                self.fill(request, leaf, tables, port);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        if !self.has_blocks || self.forgets_all {
            return;
        }
        if self.forgotten.len() < RANGES {
            self.forgotten.push((space, range));
        } else {
            self.flush_blocks();
        }
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.flush_blocks();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        vec![
            ("victima_hits", counters.hits),
            ("victima_lookups", counters.lookups),
            // Lines with blocks, at each look-up.
            ("victima_lines", counters.lines),
            ("victima_blocks_after_walks", counters.after_walks),
            ("victima_blocks_after_evictions", counters.after_evictions),
            ("victima_refused", counters.refused),
            ("victima_aside_references", counters.aside),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// Two counters of misses and one of instructions, of 32 bits. Lines and page-table entries have the rest.
        const WINDOW_BITS: u64 = 3 * 32;
        self.radix.storage_bits() + WINDOW_BITS
    }
}
