//! TLB prefetching (ATP with SBFP: Vavouliotis, Alvarez, Karakostas and others, ISCA 2021): a queue of prefetched
//! translations beside the L2 TLB, whose hits replace page walks.
//!
//! *ATP* chooses one of three prefetchers at each miss: by the distances between the last three pages (H2P), by the
//! instruction's last page and stride (MASP), or the pages around (STP). Each has a fake queue of the pages that it would
//! have prefetched; counters of hits there choose, or switch prefetching off. *SBFP* takes other entries of the line that
//! a walk has read: those at distances whose counters are high enter the queue, the others a sampler that trains the
//! counters.
//!
//! Simplified: walks of prefetches take no time and no bandwidth of memory; they begin where page-walk caches end, and
//! enter nothing there. Only 4 KB pages that the program has used are prefetched, only for loads and stores, not for
//! what data prefetchers translate ahead, and not in virtual machines. Hits in the queue train and prefetch as misses
//! do. Sizes are the paper's as an open simulator (Virtuoso) states them; where a value says so, it was chosen.

mod agile;

use std::collections::VecDeque;

use agile::{Agile, COUNTER_BITS, apart};
use contigua_paging::{Leaf, MappingPolicy, SpaceId};
use contigua_state::{Plain, State};
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables, Translation,
    Translator, TranslatorCounters, allows, page,
};
use contigua_units::{Cycles, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

/// Sizes of queues and tables, and from when entries of a line are prefetched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "atp-sbfp")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Entries of the queue of prefetched translations: 64.
    #[schemars(range(min = 1, max = 1024))]
    pub queue: u32,
    /// Entries of the sampler: 64.
    #[schemars(range(min = 1, max = 1024))]
    pub sampler: u32,
    /// Entries of each fake queue: 16.
    #[schemars(range(min = 1, max = 1024))]
    pub fake_queue: u32,
    /// Entries of the table of strides, in sets of four: 64.
    #[schemars(range(min = 4, max = 4096))]
    pub strides: u32,
    /// Counter of a distance above which its entries are prefetched: 100; at 1,023, none are.
    #[schemars(range(min = 0, max = 1023))]
    pub threshold: u32,
    /// Cycles of a hit in the queue, beyond those of the L2 TLB. Chosen.
    #[schemars(extend("maximum" = 1000))]
    pub latency_cycles: Cycles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            queue: 64,
            sampler: 64,
            fake_queue: 16,
            strides: 64,
            threshold: 100,
            latency_cycles: Cycles::new(2),
        }
    }
}

/// Entries of a line.
const LINE: u64 = 8;
/// Distances in a line: 7 to either side.
const DISTANCES: usize = 14;
/// The highest counter of a distance, of ten bits: all are halved there.
const MOST: u32 = 1023;
/// Bits of a space's number in a key begin here.
const SPACE_SHIFT: u32 = 47;

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Atp {
            radix: Radix::new(hardware)?,
            queue: VecDeque::with_capacity(self.queue as usize),
            sampler: VecDeque::with_capacity(self.sampler as usize),
            distances: vec![0; DISTANCES],
            agile: Agile::new(self)?,
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

/// A prefetched translation, and the distance in its line if it was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
struct Prefetched {
    key: u64,
    leaf: Leaf,
    free: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, Plain)]
struct Counters {
    hits: u64,
    free_hits: u64,
    walks: u64,
    references: u64,
}

#[derive(State)]
struct Atp {
    radix: Radix,
    /// Oldest first.
    queue: VecDeque<Prefetched>,
    /// Pages that were free and not prefetched, with their distances, oldest first.
    sampler: VecDeque<(u64, u8)>,
    /// Counters of distances.
    distances: Vec<u32>,
    agile: Agile,
    #[state(skip)]
    config: Config,
    counters: Counters,
}

/// A space's page.
fn key(space: SpaceId, number: u64) -> u64 {
    number | u64::from(space.0) << SPACE_SHIFT
}

/// Enters a page in a queue of so many, unless it is there.
fn enter<T: PartialEq>(queue: &mut VecDeque<T>, most: u32, new: T) {
    if queue.contains(&new) {
        return;
    }
    if queue.len() >= most as usize {
        queue.pop_front();
    }
    queue.push_back(new);
}

/// The translation of a page, if it may be prefetched.
fn leaf_of(number: u64, tables: &Tables<'_>) -> Option<Leaf> {
    let leaf = tables.table.leaf(VirtAddr::new(number * PAGE_BYTES))?;
    let is_used = leaf.size == PageSize::Size4K && leaf.accessed;
    // A first store must walk, to mark the page as dirty.
    let writable = leaf.writable && leaf.dirty;
    is_used.then_some(Leaf { writable, ..leaf })
}

/// Other pages of a page's line that may be prefetched, with the numbers of their distances.
fn line(number: u64, tables: &Tables<'_>) -> impl Iterator<Item = (u64, Leaf, u8)> {
    let first = number / LINE * LINE;
    (first..first + LINE)
        .filter(move |&other| other != number)
        .filter_map(move |other| {
            let far = apart(other, number);
            let index = if far < 0 { far + 7 } else { far + 6 };
            Some((other, leaf_of(other, tables)?, index as u8))
        })
}

impl Atp {
    /// A distance was right: its counter rises.
    fn credit(&mut self, distance: u8) {
        let counter = &mut self.distances[usize::from(distance)];
        *counter += 1;
        if *counter >= MOST {
            self.distances.iter_mut().for_each(|one| *one /= 2);
        }
    }

    fn find(&self, key: u64) -> Option<usize> {
        self.queue.iter().position(|one| one.key == key)
    }

    /// Neither the L2 TLB nor the queue has a page.
    fn is_new(&self, space: SpaceId, number: u64) -> bool {
        let address = VirtAddr::new(number * PAGE_BYTES);
        !self.radix.holds(address, space) && self.find(key(space, number)).is_none()
    }

    fn prefetch(&mut self, key: u64, leaf: Leaf, free: Option<u8>) {
        enter(
            &mut self.queue,
            self.config.queue,
            Prefetched { key, leaf, free },
        );
    }

    /// Takes the other entries of a walk's line.
    fn take_line(&mut self, space: SpaceId, number: u64, tables: &Tables<'_>) {
        for (other, leaf, distance) in line(number, tables) {
            let page = key(space, other);
            if self.distances[usize::from(distance)] <= self.config.threshold {
                enter(&mut self.sampler, self.config.sampler, (page, distance));
            } else if self.is_new(space, other) {
                self.prefetch(page, leaf, Some(distance));
            }
        }
    }

    /// Learns from a miss whose page is known now, and prefetches for those to come.
    fn after_miss(&mut self, request: &Request, tables: &Tables<'_>, port: &mut dyn MemoryPort) {
        let chosen = self
            .agile
            .choose(key(request.space, request.address.page().get()));
        for (which, pages) in self
            .agile
            .candidates(request, tables)
            .into_iter()
            .enumerate()
        {
            for number in pages.into_iter().flatten() {
                if chosen == Some(which) {
                    self.walk_for(request.space, number, tables, port);
                }
                let would = &mut self.agile.fake[which];
                enter(would, self.config.fake_queue, key(request.space, number));
                for (other, _, distance) in line(number, tables) {
                    if self.distances[usize::from(distance)] > self.config.threshold {
                        enter(would, self.config.fake_queue, key(request.space, other));
                    }
                }
            }
        }
    }

    /// Walks for a page to prefetch, which may be.
    fn walk_for(
        &mut self,
        space: SpaceId,
        number: u64,
        tables: &Tables<'_>,
        port: &mut dyn MemoryPort,
    ) {
        let Some(leaf) = leaf_of(number, tables).filter(|_| self.is_new(space, number)) else {
            return;
        };
        let address = VirtAddr::new(number * PAGE_BYTES);
        let cache = &mut self.radix.walker.cache;
        let skipped = cache.lookup(address, space, tables.table.levels());
        for &reference in &tables.table.walk(address).references()[skipped..] {
            port.reference_aside(reference);
            self.counters.references += 1;
        }
        self.counters.walks += 1;
        self.prefetch(key(space, number), leaf, None);
        self.take_line(space, number, tables);
    }
}

impl Translator for Atp {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let number = request.address.page().get();
        let this = key(request.space, number);
        // Neither a fetch nor what is translated ahead.
        let is_demand = request.instruction != 0 && tables.host.is_none();
        let found = self.find(this);
        let found = found.and_then(|at| self.queue.remove(at));
        if let Some(found) = found.filter(|found| allows(found.leaf, request.access)) {
            self.radix.count_hit(PageSize::Size4K);
            self.radix.fill(request, found.leaf);
            if is_demand {
                self.counters.hits += 1;
                if let Some(distance) = found.free {
                    self.counters.free_hits += 1;
                    self.credit(distance);
                }
                self.after_miss(request, tables, port);
            }
            let latency = self.radix.latency() + self.config.latency_cycles;
            return page(found.leaf, latency, false);
        }
        let (leaf, latency) = match self.radix.walk(request, tables, port) {
            Ok(found) => found,
            Err(fault) => return fault,
        };
        self.radix.fill(request, leaf);
        if is_demand && leaf.size == PageSize::Size4K {
            let sampled = self.sampler.iter().position(|&(page, _)| page == this);
            if let Some((_, distance)) = sampled.and_then(|at| self.sampler.remove(at)) {
                self.credit(distance);
            }
            self.take_line(request.space, number, tables);
            self.after_miss(request, tables, port);
        }
        page(leaf, latency, true)
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        self.queue.retain(|one| {
            let start = (one.key & ((1 << SPACE_SHIFT) - 1)) * PAGE_BYTES;
            let is_outside = start + PAGE_BYTES <= range.start.get() || start >= range.end.get();
            one.key >> SPACE_SHIFT != u64::from(space.0) || is_outside
        });
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.queue.clear();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("atp_hits", self.counters.hits),
            ("atp_free_hits", self.counters.free_hits),
            ("atp_prefetch_walks", self.counters.walks),
            ("atp_prefetch_references", self.counters.references),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        let Config {
            queue,
            sampler,
            fake_queue,
            strides,
            ..
        } = self.config;
        // A page has 36 bits and its space 12, a distance 4; the queue also has a frame of 40, size and permissions of 8,
        // strides an instruction's address of 48 and a stride of 16.
        let entries = queue * (48 + 4 + 48) + sampler * (48 + 4) + strides * (48 + 48 + 16);
        let fake = 3 * fake_queue * 48;
        // Those of distances, those that choose, and the last two pages.
        let counters = 10 * DISTANCES as u32 + COUNTER_BITS.iter().sum::<u32>() + 2 * 36;
        self.radix.storage_bits() + u64::from(entries + fake + counters)
    }
}
