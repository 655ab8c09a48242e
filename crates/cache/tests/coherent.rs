//! Do several cores and devices always read what was written last, whatever is evicted, shared,
//! prefetched or migrated meanwhile? (Mechanisms E-B 1 to 5, 14.)

use std::collections::HashMap;

use contigua_cache::coherent::{
    CoreRequest, DramConfig, Insertion, MemorySystem, MigrationTraffic, PrefetchConfig,
    SharedConfig, Topology,
};
use contigua_cache::migration::{Alias, EntryId, Mode, SwitchOrder, Table};
use contigua_cache::{AccessKind, HierarchyConfig, LevelConfig};
use contigua_units::{Bytes, Cycles, Frame, Megahertz, Nanoseconds, PhysAddr};
use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const LINES: u64 = 64;

fn level(lines: u64, ways: u32, latency: u64) -> LevelConfig {
    LevelConfig {
        size: Bytes::new(lines * 64),
        ways,
        latency_cycles: Cycles::new(latency),
    }
}

fn config(inclusive: bool, slices: u32, prefetch: bool) -> HierarchyConfig {
    HierarchyConfig {
        l1i: level(8, 2, 4),
        l1d: level(16, 2, 4),
        l2: level(64, 4, 14),
        llc: level(u64::from(slices) * 64, 4, 50),
        memory_latency: Nanoseconds::new(80),
        shared: SharedConfig {
            slices,
            inclusive,
            insertion: if inclusive {
                Insertion::Adaptive
            } else {
                Insertion::Recent
            },
            directory_entries: 48,
            directory_ways: 4,
            topology: Topology::Mesh,
            hop_cycles: Cycles::new(2),
            migration_entries: 16,
        },
        prefetch: PrefetchConfig {
            next_line: prefetch,
            next_line_adapts: inclusive,
            stride: prefetch,
            stream_lines: if prefetch { 20 } else { 0 },
            next_page: prefetch,
        },
        dram: DramConfig {
            channels: 2,
            banks: 8,
            row: Bytes::new(8192),
            activate: Nanoseconds::new(14),
            precharge: Nanoseconds::new(14),
            channel_megabytes_per_second: 20_000,
            loaded: Vec::new(),
        },
    }
}

fn table() -> Table {
    Table::new(16)
}

/// A page of the program, and what is known of where it is.
#[derive(Clone)]
struct Page {
    frame: Frame,
    migration: Option<Migration>,
}

#[derive(Clone)]
struct Migration {
    entry: EntryId,
    destination: Frame,
    order: SwitchOrder,
    copied: u8,
    started: bool,
    /// Page tables name the destination.
    switched: bool,
    /// Cores' TLBs, and the IOTLB (the last), that still name the source.
    stale: Vec<bool>,
}

/// A server with an operating system that migrates pages all the time.
struct Server {
    memory: MemorySystem<u64>,
    cores: usize,
    pages: Vec<Page>,
    free: Vec<Frame>,
    /// Last value written, by page and line; a missing one was never written.
    expected: HashMap<(usize, u64), u64>,
    written: u64,
    time: u64,
    mode: Mode,
    refusals: u64,
    /// Cycles from one access to the next.
    pace: u64,
    /// The longest that an access took.
    longest: Cycles,
    /// Translations that were kept, by core and block.
    kept: HashMap<(usize, u64), u8>,
}

impl Server {
    fn new(config: &HierarchyConfig, cores: usize, pages: usize, mode: Mode) -> Self {
        let memory = MemorySystem::new(config, Megahertz::new(2000), cores, table()).unwrap();
        let frame = |n: usize| Frame::new(3 * n as u32 + 1);
        Self {
            memory,
            cores,
            pages: (0..pages)
                .map(|n| Page {
                    frame: frame(n),
                    migration: None,
                })
                .collect(),
            free: (pages..2 * pages).map(frame).collect(),
            expected: HashMap::new(),
            written: 0,
            time: 0,
            mode,
            refusals: 0,
            pace: 7,
            longest: Cycles::ZERO,
            kept: HashMap::new(),
        }
    }

    /// The address that an agent (a core, or the device after them) uses for a line of a page.
    fn address(&self, agent: usize, page: usize, line: u64) -> PhysAddr {
        let page = &self.pages[page];
        let frame = match &page.migration {
            Some(migration) if migration.switched && !migration.stale[agent] => {
                migration.destination
            }
            _ => page.frame,
        };
        PhysAddr::new(frame.address().get() + line * 64)
    }

    fn access(&mut self, core: usize, page: usize, line: u64, kind: AccessKind) {
        self.time += self.pace;
        let request = CoreRequest {
            core,
            address: self.address(core, page, line),
            kind,
            time: Cycles::new(self.time),
            instruction: (page % 5) as u64,
        };
        if kind == AccessKind::Write {
            self.written += 1;
            let value = self.written;
            let took = self.memory.access(&request, |data| *data = value);
            self.longest = self.longest.max(took);
            self.expected.insert((page, line), value);
        } else {
            let mut read = 0;
            let took = self.memory.access(&request, |data| read = *data);
            self.longest = self.longest.max(took);
            if let Some(&expected) = self.expected.get(&(page, line)) {
                assert_eq!(
                    read, expected,
                    "core {core} read line {line} of page {page}"
                );
            }
        }
    }

    /// The kernel of a core writes a line, which nothing counts.
    fn write_for_kernel(&mut self, core: usize, page: usize, line: u64) {
        self.written += 1;
        let value = self.written;
        let before = self.memory.counters();
        let address = self.address(core, page, line);
        self.memory
            .write_for_kernel(core, address, |data| *data = value);
        assert_eq!(self.memory.counters(), before);
        self.expected.insert((page, line), value);
    }

    /// A walk ahead of the program changes no data, and nothing counts it.
    fn walk_ahead(&mut self, core: usize, page: usize, line: u64) {
        let before = self.memory.counters();
        let address = self.address(core, page, line);
        self.memory.walk_ahead(core, address);
        assert_eq!(self.memory.counters(), before);
    }

    /// A core's second level keeps translations, until their line is needed. Nothing counts that.
    fn keep_block(&mut self, core: usize, block: u64, choice: usize) {
        let before = self.memory.counters();
        let kept = self.kept.entry((core, block)).or_default();
        let found = self.memory.find_block(core, block);
        assert!(found == 0 || found == *kept, "{found:b}, not {kept:b}");
        *kept = found;
        match choice % 16 {
            0 => {
                self.memory.drop_block(core, block);
                *kept = 0;
            }
            1 => {
                self.memory.drop_blocks(core, |block| block % 2 == 0);
                self.kept
                    .retain(|&(of, block), _| of != core || block % 2 == 1);
            }
            2 => self.memory.spare_blocks(core, block as u8 % 4),
            choice => {
                let more = 1 << (choice % 8);
                self.memory.keep_block(core, block, more);
                *kept |= more;
                assert_eq!(self.memory.find_block(core, block), *kept);
            }
        }
        assert_eq!(self.memory.counters(), before);
    }

    /// Reads a page to its end, behind which another one comes.
    fn stream(&mut self, core: usize, page: usize, next: usize) {
        for line in LINES - 8..LINES {
            self.access(core, page, line, AccessKind::Read);
            if self.memory.page_wanted().is_some() {
                let (here, there) = (self.address(core, page, line), self.address(core, next, 0));
                self.memory.join_pages(core, here, Some(there));
            }
        }
    }

    fn device(&mut self, page: usize, line: u64, write: bool) {
        let address = self.address(self.cores, page, line);
        self.time += 7;
        let time = Cycles::new(self.time);
        if write {
            self.written += 1;
            let value = self.written;
            self.memory
                .device(address, true, time, |data| *data = value);
            self.expected.insert((page, line), value);
        } else {
            let mut read = 0;
            self.memory
                .device(address, false, time, |data| read = *data);
            if let Some(&expected) = self.expected.get(&(page, line)) {
                assert_eq!(read, expected, "the device read line {line} of page {page}");
            }
        }
    }

    /// Takes one step of a page's migration, or begins one.
    fn migrate(&mut self, page: usize, choice: usize, order: SwitchOrder) {
        let time = Cycles::new(self.time);
        let agents = self.cores + 1;
        let Some(mut migration) = self.pages[page].migration.take() else {
            let Some(destination) = self.free.pop() else {
                return;
            };
            let source = self.pages[page].frame;
            self.memory.flush(destination, time);
            let accepted = self
                .memory
                .migrate(source, destination, self.mode, order, time);
            if let Ok(entry) = accepted {
                self.pages[page].migration = Some(Migration {
                    entry,
                    destination,
                    order,
                    copied: 0,
                    started: order == SwitchOrder::CopyThenSwitch,
                    switched: false,
                    stale: vec![true; agents],
                });
            } else {
                self.refusals += 1;
                self.free.push(destination);
            }
            return;
        };
        let stale: Vec<usize> = (0..agents).filter(|&a| migration.stale[a]).collect();
        let all_copied = migration.copied == LINES as u8;
        let may_switch = migration.order == SwitchOrder::SwitchThenCopy || all_copied;
        if !migration.switched && may_switch {
            migration.switched = true;
        } else if migration.switched && !stale.is_empty() {
            migration.stale[stale[choice % stale.len()]] = false;
        } else if !migration.started {
            self.memory.start_copy(migration.entry);
            migration.started = true;
        } else if !all_copied {
            for _ in 0..=choice % 4 {
                if self.memory.copy_line(migration.entry, time).is_some() {
                    migration.copied += 1;
                }
            }
        } else {
            self.memory.clear(migration.entry, time).unwrap();
            let source = self.pages[page].frame;
            self.pages[page].frame = migration.destination;
            // The frame that was left is used again soon.
            self.free.push(source);
            return;
        }
        self.pages[page].migration = Some(migration);
    }

    fn step(&mut self, random: &mut Xoshiro256PlusPlus) {
        let mut below = |bound: usize| random.next_u64() as usize % bound;
        let page = below(self.pages.len());
        let line = below(LINES as usize) as u64;
        let core = below(self.cores);
        let choice = below(1000);
        match below(100) {
            0..35 => self.access(core, page, line, AccessKind::Read),
            35..65 => self.access(core, page, line, AccessKind::Write),
            65..70 => self.access(core, page, line, AccessKind::Fetch),
            70..72 => self.access(core, page, line, AccessKind::Walk),
            72..77 => self.device(page, line, false),
            77..80 => self.device(page, line, true),
            80..81 => self.write_for_kernel(core, page, line),
            81..82 => self.keep_block(core, line, choice),
            82..84 => self.walk_ahead(core, page, line),
            84..88 => self.stream(core, page, choice % self.pages.len()),
            number => {
                let order = if number % 2 == 0 {
                    SwitchOrder::CopyThenSwitch
                } else {
                    SwitchOrder::SwitchThenCopy
                };
                self.migrate(page, choice, order);
            }
        }
    }
}

fn run(inclusive: bool, prefetch: bool, mode: Mode, cores: usize, steps: usize, seed: u64) {
    let config = config(inclusive, 4, prefetch);
    let mut server = Server::new(&config, cores, 24, mode);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for step in 0..steps {
        server.step(&mut random);
        if step % 251 == 0 {
            server.memory.validate().unwrap();
        }
    }
    server.memory.validate().unwrap();
    let counters = server.memory.counters();
    assert!(counters.coherence.lines_migrated > 0 || steps < 1000);
    if cores == 8 && steps >= 100_000 {
        assert!(server.refusals > 0, "the table was never full");
        let coherence = counters.coherence;
        let all = [
            coherence.upgrades,
            coherence.invalidations,
            coherence.cache_to_cache,
            coherence.back_invalidations,
            coherence.device_reads,
            coherence.device_writes,
            coherence.redirected,
        ];
        assert!(all.iter().all(|&count| count > 0), "{coherence:?}");
        assert_eq!(coherence.uncached > 0, mode == Mode::Noncacheable);
        assert_eq!(coherence.alias_recalls > 0, mode == Mode::Cacheable);
        assert_eq!(coherence.prefetches > 0, prefetch);
        assert_eq!(coherence.prefetches_used > 0, prefetch);
        assert_eq!(coherence.pages_ahead > 0, prefetch);
    }
}

#[test]
fn every_read_on_eight_cores_returns_what_was_written_last() {
    for (inclusive, prefetch) in [(false, false), (true, false), (false, true), (true, true)] {
        for mode in [Mode::Cacheable, Mode::Noncacheable] {
            run(inclusive, prefetch, mode, 8, 1_000_000, 11);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(25)))]
    #[test]
    fn short_runs_of_any_seed_read_what_was_written(
        seed: u64, cores in 1..5usize, inclusive: bool, prefetch: bool, cacheable: bool
    ) {
        let mode = if cacheable { Mode::Cacheable } else { Mode::Noncacheable };
        run(inclusive, prefetch, mode, cores, 4000, seed);
    }
}

/// E-B 8: a migration makes no access wait longer than for a recall of the other address and the
/// way to the other line's home. Copying a line is atomic, and nobody waits for more than one.
#[test]
fn a_migration_delays_no_access_by_more_than_a_recall_and_a_hop() {
    let longest = |migrates: bool| {
        let config = config(false, 4, false);
        let mut server = Server::new(&config, 4, 24, Mode::Cacheable);
        // No access meets the traffic of another one.
        server.pace = 100_000;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        for _ in 0..100_000 {
            let mut below = |bound: usize| random.next_u64() as usize % bound;
            let (page, line, core) = (below(24), below(64) as u64, below(4));
            let (kind, choice) = (below(100), below(1000));
            match kind {
                0..50 => server.access(core, page, line, AccessKind::Read),
                50..90 => server.access(core, page, line, AccessKind::Write),
                _ if migrates => server.migrate(page, choice, SwitchOrder::CopyThenSwitch),
                _ => {}
            }
        }
        server.longest.get()
    };
    let (without, with) = (longest(false), longest(true));
    // Four slices of a mesh of two by two, two cycles a hop: the mean way there and back is 4.
    let mean = 4;
    assert!(
        with <= without + mean + mean / 2,
        "{with} with, {without} without"
    );
}

fn request(core: usize, line: u64, kind: AccessKind, time: u64) -> CoreRequest {
    CoreRequest {
        core,
        address: PhysAddr::new(line * 64),
        kind,
        time: Cycles::new(time),
        instruction: 1,
    }
}

fn quiet(cores: usize) -> MemorySystem {
    MemorySystem::new(
        &config(false, 4, false),
        Megahertz::new(2000),
        cores,
        table(),
    )
    .unwrap()
}

#[test]
fn a_second_reader_gets_a_modified_line_from_the_first_writers_caches() {
    let mut memory = quiet(2);
    assert!(memory.access(&request(0, 5, AccessKind::Write, 0), |()| ()) > Cycles::new(100));
    let shared = memory.access(&request(1, 5, AccessKind::Read, 0), |()| ());
    assert!(shared < Cycles::new(100), "{shared:?}");
    assert_eq!(memory.counters().coherence.cache_to_cache, 1);
    assert_eq!(
        memory.access(&request(1, 5, AccessKind::Read, 0), |()| ()),
        Cycles::ZERO
    );
    // The writer has to ask before it writes again.
    assert!(memory.access(&request(0, 5, AccessKind::Write, 0), |()| ()) > Cycles::ZERO);
    let coherence = memory.counters().coherence;
    assert_eq!((coherence.upgrades, coherence.invalidations), (1, 1));
}

#[test]
fn a_line_that_one_core_reads_is_written_without_asking() {
    let mut memory = quiet(2);
    memory.access(&request(0, 5, AccessKind::Read, 0), |()| ());
    assert_eq!(
        memory.access(&request(0, 5, AccessKind::Write, 0), |()| ()),
        Cycles::ZERO
    );
}

#[test]
fn the_seventeenth_migration_is_told_to_try_again() {
    let mut memory = quiet(1);
    let mut begin = |number: u32| {
        let (source, destination) = (Frame::new(number), Frame::new(100 + number));
        let order = SwitchOrder::CopyThenSwitch;
        memory.migrate(source, destination, Mode::Cacheable, order, Cycles::ZERO)
    };
    for number in 0..16 {
        begin(number).unwrap();
    }
    assert!(begin(16).is_err());
}

#[test]
fn stale_lines_of_a_former_owner_do_not_return() {
    let config = config(false, 4, false);
    let mut memory: MemorySystem<u64> =
        MemorySystem::new(&config, Megahertz::new(2000), 2, table()).unwrap();
    // The destination's former owner wrote it, and the line is still modified in its cache.
    memory.access(&request(0, 200 * 64 + 3, AccessKind::Write, 0), |data| {
        *data = 666;
    });
    memory.access(&request(1, 100 * 64 + 3, AccessKind::Write, 0), |data| {
        *data = 42;
    });
    let order = SwitchOrder::CopyThenSwitch;
    let (source, destination) = (Frame::new(100), Frame::new(200));
    memory.flush(destination, Cycles::ZERO);
    let entry = memory
        .migrate(source, destination, Mode::Cacheable, order, Cycles::ZERO)
        .unwrap();
    // Evict everything that core 0 has.
    for line in 0..64 {
        memory.access(&request(0, line, AccessKind::Read, 0), |_| ());
    }
    while memory.copy_line(entry, Cycles::ZERO).is_some() {}
    for page in [100, 200] {
        let mut read = 0;
        memory.access(&request(0, page * 64 + 3, AccessKind::Read, 0), |data| {
            read = *data;
        });
        assert_eq!(read, 42);
    }
}

#[test]
fn redirection_follows_the_pointer_for_both_addresses() {
    let mut memory = quiet(1);
    let order = SwitchOrder::CopyThenSwitch;
    let (source, destination) = (Frame::new(100), Frame::new(200));
    let entry = memory
        .migrate(source, destination, Mode::Cacheable, order, Cycles::ZERO)
        .unwrap();
    for copied in 0..64u8 {
        let table = memory.table();
        for line in 0..64 {
            let expected = if line < copied {
                Alias::Destination
            } else {
                Alias::Source
            };
            let service = table.serve(entry, line, contigua_cache::migration::Request::Read);
            assert_eq!(service.location, expected);
        }
        memory.copy_line(entry, Cycles::ZERO).unwrap();
    }
    assert!(memory.copy_line(entry, Cycles::ZERO).is_none());
    assert_eq!(memory.counters().coherence.lines_migrated, 64);
}

#[test]
fn the_table_is_searched_for_each_request_while_it_has_an_entry() {
    let mut memory = quiet(1);
    let read = |memory: &mut MemorySystem, line| {
        memory.access(&request(0, line, AccessKind::Read, 0), |()| ());
    };
    let counted = |memory: &MemorySystem| {
        let traffic = memory.migration_traffic();
        (traffic.lookups, traffic.forwarded)
    };
    read(&mut memory, 5);
    assert_eq!(counted(&memory), (0, 0));
    let order = SwitchOrder::CopyThenSwitch;
    let (source, destination) = (Frame::new(100), Frame::new(200));
    let entry = memory
        .migrate(source, destination, Mode::Cacheable, order, Cycles::ZERO)
        .unwrap();
    // Another page's line, the source's and the destination's: the last one's data is at the source.
    read(&mut memory, 6);
    read(&mut memory, 100 * 64 + 1);
    assert_eq!(counted(&memory), (2, 0));
    read(&mut memory, 200 * 64 + 2);
    assert_eq!(counted(&memory), (3, 1));
    // A hit in a private cache asks nobody.
    read(&mut memory, 200 * 64 + 2);
    assert_eq!(counted(&memory), (3, 1));
    while memory.copy_line(entry, Cycles::ZERO).is_some() {}
    let traffic = memory.migration_traffic();
    // Lines 1 and 2 were read before.
    let read_past = memory.counters().dram.reads - 4;
    assert_eq!(traffic.copies_from_memory, read_past);
    assert!((62..=64).contains(&read_past), "{read_past}");
    // Five picojoules for three look-ups of 1.7.
    assert_eq!(traffic.lookup_picojoules, 5);
    memory.reset_counters();
    assert_eq!(memory.migration_traffic(), MigrationTraffic::default());
}
