//! Do translations in lines of the L2 cache (Victima) replace walks, are they made where walks are dear, and do they go
//! when they are invalidated or data needs the lines?

use std::collections::BTreeSet;

use contigua_cache::coherent::{CoreRequest, MemorySystem};
use contigua_cache::migration::Table;
use contigua_cache::{AccessKind, HierarchyConfig};
use contigua_translation::{Access, MemoryPort, TranslationLines};
use contigua_units::{Cycles, Megahertz, PAGE_BYTES, PhysAddr, VirtAddr, VirtRange};
use proptest::prelude::*;

use crate::common::counter;
use crate::rivals::{PAGES, SPACE, START, World};

const NEVER: &str = "huge = { enabled = \"never\" }";
/// Every page is costly.
const ALL: &str = "huge = { enabled = \"never\" }\nleast_walks = 0\nleast_cost = 0\nmost_cost = 15";
const L2_CACHE: u64 = 14;

/// Caches and memory of one core, through which walks go.
struct Caches {
    memory: MemorySystem,
    time: u64,
    /// Bytes of data that were read.
    data: u64,
}

impl Caches {
    /// With an L2 cache of so many KiB.
    fn new(l2: u32) -> Self {
        let text = format!(
            r#"
            l1i = {{ size = "32KiB", ways = 8, latency_cycles = 4 }}
            l1d = {{ size = "32KiB", ways = 8, latency_cycles = 4 }}
            l2 = {{ size = "{l2}KiB", ways = 16, latency_cycles = {L2_CACHE} }}
            llc = {{ size = "2MiB", ways = 16, latency_cycles = 50 }}
            memory_latency = "80ns"
            shared = {{ slices = 1, inclusive = false, directory_entries = 65536, directory_ways = 16, topology = "ring", hop_cycles = 2, migration_entries = 16 }}
            prefetch = {{ next_line = false, stride = false, stream_lines = 0, next_page = false }}
            dram = {{ channels = 2, banks = 8, row = "8KiB", activate = "14ns", precharge = "14ns", channel_megabytes_per_second = 20000 }}
            "#
        );
        let config: HierarchyConfig = toml::from_str(&text).unwrap();
        let memory = MemorySystem::new(&config, Megahertz::new(2000), 1, Table::new(16)).unwrap();
        Self {
            memory,
            time: 0,
            data: 0,
        }
    }

    fn read(&mut self, address: u64, kind: AccessKind) -> Cycles {
        self.time += 100;
        let time = Cycles::new(self.time);
        let request = CoreRequest::new(0, PhysAddr::new(address), kind, time);
        self.memory.access(&request, |()| ())
    }

    /// Reads so many KiB of data behind the pages, which were not read before.
    fn read_data(&mut self, kib: u64) {
        for _ in 0..kib * 16 {
            self.data += 64;
            self.read((1 << 30) + self.data, AccessKind::Read);
        }
    }
}

impl MemoryPort for Caches {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.read(address.get(), AccessKind::Walk)
    }

    fn translation_lines(&mut self) -> Option<&mut dyn TranslationLines> {
        Some(self)
    }
}

impl TranslationLines for Caches {
    fn find(&mut self, block: u64) -> u8 {
        self.memory.find_block(0, block)
    }

    fn keep(&mut self, block: u64, translations: u8) {
        self.memory.keep_block(0, block, translations);
    }

    fn drop_block(&mut self, block: u64) {
        self.memory.drop_block(0, block);
    }

    fn drop_blocks(&mut self, unwanted: &dyn Fn(u64) -> bool) {
        self.memory.drop_blocks(0, unwanted);
    }

    fn spare(&mut self, turns: u8) {
        self.memory.spare_blocks(0, turns);
    }

    fn blocks(&self) -> u64 {
        self.memory.blocks(0)
    }

    fn misses(&self) -> u64 {
        self.memory.second_level_misses(0)
    }

    fn walk_reads_from_memory(&self) -> u64 {
        self.memory.walk_reads_from_memory()
    }

    fn latency(&self) -> Cycles {
        self.memory.second_level_latency()
    }
}

/// A page without order for each number.
fn random(step: u64) -> u64 {
    let mut mixed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
}

/// Walks of 20,000 random reads of 64 MB, after a pass over all pages, and blocks at the end.
fn walks(world: &mut World, caches: &mut Caches) -> (u64, u64) {
    for page in 0..PAGES {
        world.read_through(page, 0, caches);
    }
    world.mmu.reset_counters();
    for step in 0..20_000 {
        world.read_through(random(step) % PAGES, 0, caches);
    }
    caches.memory.validate().unwrap();
    (world.mmu.translator_counters().walks(), caches.blocks())
}

#[test]
fn lines_hold_eight_translations_each_and_end_walks() {
    let (base, none) = walks(&mut World::new("base", "", false), &mut Caches::new(1024));
    assert!(base > 10_000 && none == 0, "{base} walks");
    for nested in [false, true] {
        let mut world = World::new("victima", ALL, nested);
        let found = walks(&mut world, &mut Caches::new(1024));
        // 2,048 of 16,384 lines, for eight times what the L2 TLB translates.
        assert_eq!(found, (0, PAGES / 8), "nested: {nested}");
        // 1,024 lines, 16 in a set, hold half of the blocks, which all are data's neighbors.
        let mut world = World::new("victima", ALL, nested);
        let (walks, blocks) = walks(&mut world, &mut Caches::new(64));
        assert!(walks > base / 4 && walks < base, "{walks} of {base} walks");
        assert!(blocks > 256 && blocks <= 1024, "{blocks} blocks");
    }
}

#[test]
fn a_hit_takes_as_long_as_one_of_the_l2_cache() {
    let (mut world, mut caches) = (World::new("victima", ALL, false), Caches::new(1024));
    walks(&mut world, &mut caches);
    let took = |step: u64| world.read_through(random(step) % PAGES, 0, &mut caches);
    let took: BTreeSet<u64> = (20_000..30_000).map(took).collect();
    // The first level, the L2 TLB, and the L2 cache after it.
    assert_eq!(took, BTreeSet::from([0, 7, 7 + L2_CACHE]));
}

#[test]
fn blocks_are_made_of_pages_whose_walks_read_memory() {
    let run = |more: &str, caches: &mut Caches| {
        let mut world = World::new("victima", &format!("{NEVER}\n{more}"), false);
        walks(&mut world, caches);
        counter(&world.mmu, "victima_hits")
    };
    let cold = |more: &str| run(more, &mut Caches::new(256));
    // Each line of entries is read from memory by the first walk of its first page.
    let some = cold("");
    assert!(some > 10_000, "{some} hits");
    assert_eq!(cold("least_cost = 8"), 0);
    let seldom = cold("least_cost = 0\nmost_cost = 0\nleast_walks = 7");
    assert!(seldom < 100, "{seldom} hits");
    // The tables lie in caches already.
    let mut warm = Caches::new(256);
    walks(&mut World::new("base", "", false), &mut warm);
    let few = run("", &mut warm);
    let all = run("least_cost = 0", &mut warm);
    assert!(few < 100 && all >= some, "{few} and {all} hits");
}

#[test]
fn the_predictor_is_not_asked_where_the_l2_cache_misses_often() {
    let hits = |misses: u64| {
        let mut world = World::new("victima", "least_cost = 15", false);
        let mut caches = Caches::new(1024);
        for step in 0..8_000 {
            world.position += 1000;
            for line in step * misses..(step + 1) * misses {
                caches.read((1 << 30) + line * 64, AccessKind::Read);
            }
            world.read_through(random(step) % 4096, 0, &mut caches);
        }
        counter(&world.mmu, "victima_hits")
    };
    // So many misses in 1,000 instructions, and those of walks.
    let (often, seldom) = (hits(8), hits(0));
    assert!(often > 2_000 && seldom == 0, "{often} and {seldom} hits");
}

#[test]
fn blocks_are_spared_while_the_l2_tlb_misses_often() {
    // 16 pages in turn of one set of the L2 TLB, four blocks in a set of the L2 cache, and lines of data for it from one
    // use to the next: four in a KiB.
    let walks = |instructions: u64, turns: u8, kib: u64| {
        let more = format!("{ALL}\non_evictions = false\nturns = {turns}");
        let mut world = World::new("victima", &more, false);
        let mut caches = Caches::new(64);
        for step in 0..1_000 {
            world.position += instructions;
            world.read_through(step % 16 * 128, 0, &mut caches);
            caches.read_data(kib);
        }
        world.mmu.translator_counters().walks()
    };
    let (often, seldom) = (walks(100, 2, 6), walks(10_000, 2, 6));
    assert!(seldom > 900, "{seldom} walks");
    assert!(often < seldom / 2, "{often} of {seldom} walks");
    // After 16 lines, and 12 more for each time.
    let found = [0, 1, 2].map(|turns| [6, 9].map(|kib| walks(100, turns, kib) > 900));
    assert_eq!(found, [[true, true], [false, true], [false, false]]);
}

#[test]
fn evicted_pages_make_blocks() {
    // Costs are known only of pages that were walked for twice; evictions come after the second walk.
    let blocks = |more: &str| {
        let more = format!("{NEVER}\nleast_walks = 0\nleast_cost = 0\nmost_cost = 15\n{more}");
        let (mut world, mut caches) = (World::new("victima", &more, false), Caches::new(1024));
        for page in 0..PAGES {
            world.read_through(page, 0, &mut caches);
            // Lines for data only.
            caches.drop_blocks(&|_| true);
        }
        ["evictions", "walks"].map(|of| counter(&world.mmu, &format!("victima_blocks_after_{of}")))
    };
    assert_eq!(blocks("on_evictions = false"), [0, PAGES]);
    // All but the last that the L2 TLB holds.
    assert_eq!(blocks(""), [PAGES - 1536, PAGES]);
}

#[test]
fn a_block_lets_no_first_store_through() {
    let (mut world, mut caches) = (World::new("victima", ALL, false), Caches::new(1024));
    let address = |page: u64| VirtAddr::new(START + page * PAGE_BYTES);
    let leaf = world.table.leaf(address(3)).unwrap();
    world.table.unmap(address(3), |_| ());
    let clean = contigua_paging::Leaf {
        dirty: false,
        ..leaf
    };
    world.table.map(address(3), clean, |_| None).unwrap();
    world.read_through(2, 0, &mut caches);
    let walks = world.mmu.translator_counters().walks();
    // It reads through the block, and a store walks.
    assert_eq!(world.read_through(3, 0, &mut caches), 7 + L2_CACHE);
    assert_eq!(world.mmu.translator_counters().walks(), walks);
    world.access_by(3, 0, Access::Write, &mut caches);
    assert_eq!(world.mmu.translator_counters().walks(), walks + 1);
    assert!(world.table.leaf(address(3)).unwrap().dirty);
}

#[derive(Clone, Debug)]
enum Operation {
    Read(u64),
    Invalidate(u64, u64),
    Flush,
    ReadData(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        60 => (0..400_u64).prop_map(Operation::Read),
        6 => (0..400_u64, 1..4_u64).prop_map(|(page, pages)| Operation::Invalidate(page, pages)),
        2 => (0..400_u64, 1..1024_u64).prop_map(|(page, pages)| Operation::Invalidate(page, pages)),
        1 => Just(Operation::Flush),
        2 => (1..32_u64).prop_map(Operation::ReadData),
    ]
}

proptest! {
    #[test]
    fn what_was_invalidated_is_walked_for(operations in proptest::collection::vec(operation(), 1..300)) {
        let more = format!("{ALL}\non_evictions = false");
        let (mut world, mut caches) = (World::new("victima", &more, false), Caches::new(64));
        // Blocks that may be there, and pages that may be in TLBs.
        let (mut blocks, mut entries) = (BTreeSet::new(), BTreeSet::new());
        // Many pages that share a set of the L2 TLB, and their neighbors.
        let place = |page: u64| page % 25 * 128 + page / 25;
        for operation in operations {
            match operation {
                Operation::Read(page) => {
                    let page = place(page);
                    let before = world.mmu.translator_counters().walks();
                    let took = world.read_through(page, 0, &mut caches);
                    let walked = world.mmu.translator_counters().walks() > before;
                    let is_known = entries.contains(&page) || blocks.contains(&(page / 8));
                    prop_assert!(took == 0 || walked || is_known, "page {page}");
                    entries.insert(page);
                    if walked {
                        blocks.insert(page / 8);
                    }
                }
                Operation::Invalidate(page, pages) => {
                    let (first, end) = (place(page), place(page) + pages);
                    let start = VirtAddr::new(START + first * PAGE_BYTES);
                    world.mmu.invalidate(SPACE, VirtRange::with_length(start, pages * PAGE_BYTES));
                    blocks.retain(|&block| block < first / 8 || block > (end - 1) / 8);
                    entries.retain(|page| !(first..end).contains(page));
                }
                Operation::Flush => {
                    world.mmu.flush();
                    blocks.clear();
                    entries.clear();
                }
                Operation::ReadData(kib) => caches.read_data(kib),
            }
        }
        caches.memory.validate().unwrap();
    }
}
