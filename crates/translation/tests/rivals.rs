//! Do the rivals have the effects that their papers claim, on streams of their papers' kind?

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Recorder, counter, memory, mmu_of, scheme, tlb};
use contigua_paging::{
    AddressSpace, Effects, Hashing, HoleBitmaps, Leaf, Levels, PageTable, RestSegs, Segment,
    SpaceId, Vma,
};
use contigua_translation::{
    Access, Answer, Branches, HostTables, Lookup, MemoryPort, Mmu, NestedConfig, Request, Tables,
};
use contigua_units::{Cycles, Frame, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};

pub(crate) const SPACE: SpaceId = SpaceId(1);
pub(crate) const START: u64 = 0x4000_0000;
/// 64 MB: more than the L2 TLB translates.
pub(crate) const PAGES: u64 = 1 << 14;
/// First frame of the process's pages; those before are page tables.
pub(crate) const FRAMES: u64 = 1 << 10;

/// Frames of hashed tables, behind the pages.
const TABLES: u64 = 1 << 13;

/// A process on one core, whose pages all are mapped, used and written.
pub(crate) struct World {
    pub(crate) table: PageTable,
    /// The table of the host, in a virtual machine.
    host: Option<PageTable>,
    holes: HoleBitmaps,
    pub(crate) rest_segs: Option<RestSegs>,
    pub(crate) mmu: Mmu,
    /// Reads of memory by misses of the first level.
    references: u64,
    /// Instructions that were executed; 0 if nobody counts.
    pub(crate) position: u64,
    pub(crate) branches: Branches,
}

/// A table that maps pages from `start` on to frames.
fn table(
    hashing: Option<Hashing>,
    start: u64,
    pages: u64,
    frame_of: impl Fn(u64) -> u64,
) -> PageTable {
    let mut table = match hashing {
        None => PageTable::new(Frame::new(0)),
        Some(hashing) => PageTable::with_hashing(hashing, Levels::Four),
    };
    let mut next = (FRAMES + PAGES) as u32;
    table.grow(|order| {
        let block = next.next_multiple_of(order.frames());
        next = block + order.frames();
        Some(Frame::new(block))
    });
    let mut nodes = 1..FRAMES as u32;
    for page in 0..pages {
        let frame = Frame::new(frame_of(page) as u32);
        let leaf = Leaf {
            accessed: true,
            dirty: true,
            ..Leaf::new(frame, PageSize::Size4K, true)
        };
        let address = VirtAddr::new(start + page * PAGE_BYTES);
        table
            .map(address, leaf, |_| nodes.next().map(Frame::new))
            .unwrap();
    }
    table
}

impl World {
    /// No two neighbors among pages have neighboring frames.
    pub(crate) fn new(name: &str, more: &str, nested: bool) -> Self {
        let scattered = |page: u64| FRAMES + (5 * page + 3) % PAGES;
        Self::with(name, more, nested, scattered)
    }

    pub(crate) fn with(
        name: &str,
        more: &str,
        nested: bool,
        frame_of: impl Fn(u64) -> u64,
    ) -> Self {
        let walk_caches = NestedConfig::default();
        let scheme = scheme(name, more);
        let mmu = mmu_of(
            &*scheme,
            &tlb(),
            &walk_caches.walk_cache,
            nested.then_some(&walk_caches),
        );
        Self {
            table: table(scheme.hashing(), START, PAGES, frame_of),
            host: nested
                .then(|| table(None, 0, FRAMES + PAGES + TABLES, |frame| 2 * FRAMES + frame)),
            holes: HoleBitmaps::default(),
            rest_segs: None,
            mmu,
            references: 0,
            position: 0,
            branches: Branches::default(),
        }
    }

    pub(crate) fn read(&mut self, page: u64) {
        self.read_by(page, 0);
    }

    /// An instruction reads a page; cycles since the first level missed.
    fn read_by(&mut self, page: u64, instruction: u64) -> u64 {
        let mut port = Recorder::default();
        let latency = self.read_through(page, instruction, &mut port);
        self.references += port.0.len() as u64;
        latency
    }

    pub(crate) fn read_through(
        &mut self,
        page: u64,
        instruction: u64,
        port: &mut dyn MemoryPort,
    ) -> u64 {
        self.access_by(page, instruction, Access::Read, port)
    }

    pub(crate) fn access_by(
        &mut self,
        page: u64,
        instruction: u64,
        access: Access,
        port: &mut dyn MemoryPort,
    ) -> u64 {
        let address = VirtAddr::new(START + page * PAGE_BYTES);
        let request = Request::new(address, SPACE, access).by(instruction);
        let request = request.at(self.position).behind(self.branches);
        let lookup = match access {
            Access::Write => self.mmu.write(address, SPACE),
            _ => self.mmu.read(address, SPACE),
        };
        if lookup != Lookup::Miss {
            return 0;
        }
        let mut tables = Tables {
            table: &mut self.table,
            holes: &self.holes,
            segment: Segment::NONE,
            rest_segs: self.rest_segs.as_mut(),
            host: self.host.as_mut().map(|table| HostTables {
                table,
                holes: &self.holes,
                segment: Segment::NONE,
            }),
        };
        let expected = tables.resolve(request.address);
        let answer = self.mmu.miss(&request, &mut tables, port);
        let Answer::Translated {
            physical, latency, ..
        } = answer
        else {
            panic!("page {page} is mapped");
        };
        assert_eq!(Some(physical.frame()), expected.map(|leaf| leaf.frame));
        latency.get()
    }

    /// Reads random pages.
    pub(crate) fn read_at_random(&mut self, count: u64) {
        let mut state = 1_u64;
        for _ in 0..count {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            self.read((state >> 33) % PAGES);
        }
    }
}

/// Walks and references of random reads of 64 MB, after a pass that warms up.
fn random_walks(name: &str, more: &str, nested: bool) -> (u64, u64) {
    let mut world = World::new(name, more, nested);
    for page in 0..PAGES {
        world.read(page);
    }
    world.mmu.reset_counters();
    world.references = 0;
    world.read_at_random(20_000);
    (world.mmu.translator_counters().walks(), world.references)
}

#[test]
fn a_tlb_in_memory_ends_walks_and_most_of_a_virtual_machines_references() {
    // Ryoo and others, ISCA 2017: 16 MB hold 512 K translations of 4 KB pages, and one read replaces a
    // walk.
    let never = "huge = { enabled = \"never\" }";
    for nested in [false, true] {
        let (walks, _) = random_walks("base", "", nested);
        let (pom_walks, reads) = random_walks("pom-tlb", never, nested);
        assert!(walks > 10_000, "{walks} walks");
        assert_eq!((pom_walks, reads), (0, walks), "nested: {nested}");
    }
    let (walks, references) = random_walks("base", "", true);
    assert!(
        references > 2 * walks,
        "{references} references of {walks} nested walks"
    );
}

#[test]
fn a_tlb_in_memory_that_is_too_small_misses() {
    // 4,096 entries for each size hold a quarter of the pages.
    let (walks, _) = random_walks("base", "", false);
    let small = "size = \"128KiB\"\nhuge = { enabled = \"never\" }";
    let (small, _) = random_walks("pom-tlb", small, false);
    assert!(
        small > walks / 2 && small < walks,
        "{small} of {walks} walks"
    );
}

#[test]
fn a_page_is_looked_for_in_the_array_of_its_size_first() {
    let mut world = World::new("pom-tlb", "", false);
    world.read_at_random(40_000);
    let [hits, reads, wrong] = ["hits", "reads", "mispredicted_sizes"]
        .map(|name| counter(&world.mmu, &format!("pom_tlb_{name}")));
    // All pages are of one size: misses read both arrays, hits one.
    let walks = world.mmu.translator_counters().walks();
    assert_eq!((reads, wrong), (hits + 2 * walks, 0));
}

/// Mean cycles of misses by one of two instructions, each in memory of its own, and how many predictions were
/// right and wrong.
fn predicted(nested: bool, least: u64, frame_of: impl Fn(u64) -> u64) -> (f64, u64, u64) {
    let more = format!("huge = {{ enabled = \"never\" }}\nleast_pages = {least}");
    let mut world = World::with("spot", &more, nested, frame_of);
    let mut cycles = 0;
    let mut misses = 0;
    for step in 0..4 * PAGES {
        // 4,099 pages on: no page is in the L2 TLB any more.
        let page = step * 4099 % (PAGES / 2);
        let which = step & 1;
        let took = world.read_by(page + which * PAGES / 2, 1 + which);
        cycles += took;
        misses += u64::from(took > 0);
    }
    let [right, wrong] = ["right", "wrong"].map(|of| counter(&world.mmu, &format!("spot_{of}")));
    (cycles as f64 / misses as f64, right, wrong)
}

#[test]
fn walks_are_hidden_where_instructions_stay_in_long_runs() {
    for nested in [false, true] {
        // Two runs with offsets of their own.
        let runs = |page: u64| FRAMES + (page + PAGES / 2) % PAGES;
        let (cycles, right, wrong) = predicted(nested, 32, runs);
        assert!(right > 60_000 && wrong == 0, "{right} right, {wrong} wrong");
        // The L2 TLB's look-up is what is left.
        assert!(cycles < 8.0, "{cycles} cycles");
    }
}

#[test]
fn runs_that_are_too_short_predict_nothing() {
    // Runs of 16 pages, in the opposite order.
    let runs = |page: u64| FRAMES + (PAGES - 16 - page / 16 * 16) + page % 16;
    let (_, right, wrong) = predicted(true, 32, runs);
    assert_eq!((right, wrong), (0, 0));
    // With entries for short runs most predictions are wrong.
    let (_, right, wrong) = predicted(true, 8, runs);
    assert!(wrong > 4 * right, "{right} right, {wrong} wrong");
}

#[test]
fn a_wrong_prediction_costs_a_walk_and_a_flush() {
    // The run ends in its middle.
    let runs = |page: u64| FRAMES + (page + PAGES / 2) % PAGES;
    let mut world = World::with("spot", "huge = { enabled = \"never\" }", false, runs);
    let mut plain = World::with("base", "", false, runs);
    for page in 0..4 {
        world.read_by(page, 1);
        plain.read(page);
    }
    // An offset that was seen twice predicts.
    assert_eq!(counter(&world.mmu, "spot_right"), 2);
    let walk = plain.read_by(PAGES - 1, 1);
    assert_eq!(world.read_by(PAGES - 1, 1), walk + 20);
    assert_eq!(counter(&world.mmu, "spot_wrong"), 1);
}

/// Pages of a mapping of 16 MB, written in no order, by the offset between their frames and addresses.
fn offsets_of(more: &str) -> Vec<usize> {
    const MAPPED: u64 = 4096;
    let policy = scheme("spot", more).policy();
    let mut memory = memory(32_768);
    let mut space = AddressSpace::new(SPACE, &mut memory).unwrap();
    let mut effects = Effects::default();
    let range = VirtRange::with_length(VirtAddr::new(START + PAGE_BYTES), MAPPED * PAGE_BYTES);
    space
        .map(range, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    let mut found = BTreeMap::new();
    for step in 0..MAPPED {
        let at = range.start + step * 2047 % MAPPED * PAGE_BYTES;
        space
            .fault(at, true, &*policy, &mut memory, &mut effects)
            .unwrap();
        let frame = space.table_mut().leaf(at).unwrap().physical(at).get() / PAGE_BYTES;
        *found
            .entry(frame.wrapping_sub(at.page().get()))
            .or_insert(0) += 1;
    }
    found.into_values().collect()
}

#[test]
fn a_mapping_keeps_its_offset_whatever_the_order_of_its_faults() {
    for huge in ["never", "always"] {
        let huge = format!("huge = {{ enabled = \"{huge}\" }}");
        assert_eq!(offsets_of(&huge), [4096], "{huge}");
    }
    let without = offsets_of("huge = { enabled = \"never\" }\nca_paging = false");
    assert!(without.len() > 100, "{} offsets", without.len());
}

/// Lines that were read once are near.
#[derive(Default)]
struct Caches(BTreeSet<u64>);

impl MemoryPort for Caches {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        Cycles::new(if self.0.insert(address.line()) {
            100
        } else {
            4
        })
    }
}

#[test]
fn entries_of_the_last_levels_are_read_at_once() {
    // Two misses of caches of page-directory entries, in turns, whose lines are not in the data caches.
    let walk = |name: &str, nested: bool| {
        let more = if name == "base" {
            ""
        } else {
            "huge = { enabled = \"never\" }"
        };
        let mut world = World::new(name, more, nested);
        let walk_caches = NestedConfig::default();
        let mut small = walk_caches.walk_cache.clone();
        small.pde = None;
        let small = NestedConfig {
            walk_cache: small,
            tlb: walk_caches.tlb,
        };
        let scheme = scheme(name, more);
        world.mmu = mmu_of(
            &*scheme,
            &tlb(),
            &small.walk_cache,
            nested.then_some(&small),
        );
        world.read_through(0, 0, &mut Caches::default());
        world.read_through(PAGES / 2, 0, &mut Caches::default())
    };
    // The L2 TLB, two entries one after another.
    assert_eq!(walk("base", false), 7 + 100 + 100);
    assert_eq!(walk("asap", false), 7 + 100);
    let (base, asap) = (walk("base", true), walk("asap", true));
    assert!(asap + 250 < base, "{asap} of {base} cycles");
    // Without walk caches the first entry is read with the last two; the walker reads the second.
    let cold = World::new("asap", "huge = { enabled = \"never\" }", false).read_by(PAGES / 2, 0);
    assert_eq!(cold, 7 + 100 + 100);
}

#[test]
fn a_walk_of_hashed_tables_is_one_read_at_once() {
    let never = "huge = { enabled = \"never\" }";
    // Nothing was read before: a tree has four levels.
    let read = |name: &str, more: &str| World::new(name, more, false).read_by(PAGES / 2, 0);
    assert_eq!(read("base", ""), 7 + 4 * 100);
    // Walk-table caches and hashes, and the table of chunks.
    assert_eq!(read("ecpt", never), 7 + 4 + 2 + 100);
    let chunks = format!("{never}\nchunk = \"1MiB\"");
    assert_eq!(read("ecpt", &chunks), 7 + 4 + 2 + 4 + 100);
    // In virtual machines, the three places are translated each on its own, with the page after them.
    let nested = |name: &str, more: &str| World::new(name, more, true).read_by(PAGES / 2, 0);
    let (tree, hashed) = (nested("base", ""), nested("ecpt", never));
    assert!(hashed < tree * 2 / 3, "{hashed} of {tree} cycles");
}

/// A world with a page of 2 MB behind its small ones.
fn with_a_huge_page(scheme: &str) -> World {
    let mut world = World::new(scheme, "", false);
    let huge = VirtAddr::new(START + PAGES * PAGE_BYTES);
    let leaf = Leaf {
        accessed: true,
        dirty: true,
        ..Leaf::new(Frame::new(1 << 18), PageSize::Size2M, true)
    };
    world.table.map(huge, leaf, |_| None).unwrap();
    world
}

#[test]
fn walk_tables_tell_which_ways_to_read() {
    let mut world = with_a_huge_page("ecpt");
    let reads = |world: &mut World, page: u64| {
        let before = counter(&world.mmu, "ecpt_reads");
        world.read(page);
        counter(&world.mmu, "ecpt_reads") - before
    };
    // Nothing is known: three ways for 4 KB, three for 2 MB. Then the section's pages are known to be small.
    assert_eq!((reads(&mut world, 0), reads(&mut world, 8)), (6, 3));
    // The way of a huge page is known.
    assert_eq!(reads(&mut world, PAGES), 1);
    world.mmu.flush();
    assert_eq!(reads(&mut world, 0), 6);
}

#[test]
fn a_walk_of_an_open_table_is_nearly_one_read() {
    let (walks, reads) = random_walks("hdc", "huge = { enabled = \"never\" }", false);
    assert!(walks > 10_000 && reads >= walks, "{reads} of {walks}");
    // 2,048 lines are in a table of 256 K.
    assert!(reads < walks * 102 / 100, "{reads} reads of {walks} walks");
    // Half full, it reads half as many again.
    let (walks, reads) = random_walks(
        "hdc",
        "huge = { enabled = \"never\" }\nsize = \"256KiB\"",
        false,
    );
    assert!(
        reads > walks * 13 / 10 && reads < walks * 17 / 10,
        "{reads} of {walks}"
    );
    let cold = World::new("hdc", "huge = { enabled = \"never\" }", false).read_by(PAGES / 2, 0);
    assert_eq!(cold, 7 + 2 + 100);
}

#[test]
fn an_open_table_is_read_for_larger_pages_where_there_is_no_small_one() {
    let mut world = with_a_huge_page("hdc");
    assert_eq!(world.read_by(PAGES / 2, 0), 7 + 2 + 100);
    assert_eq!(world.read_by(PAGES, 0), 7 + 2 + 100 + 100);
}

/// Walks of an instruction's reads of so many pages with TLB prefetching, walks of prefetches, and hits of free entries.
fn with_prefetches(more: &str, page_of: impl Fn(u64) -> u64) -> [u64; 3] {
    let more = format!("huge = {{ enabled = \"never\" }}\n{more}");
    let mut world = World::new("atp-sbfp", &more, false);
    for step in 0..PAGES {
        world.read_by(page_of(step) % PAGES, 1);
    }
    let walks = world.mmu.translator_counters().walks();
    let [prefetches, free] =
        ["prefetch_walks", "free_hits"].map(|of| counter(&world.mmu, &format!("atp_{of}")));
    [walks, prefetches, free]
}

/// A number without order for each other one.
fn mixed(step: u64) -> u64 {
    let mut mixed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40
}

#[test]
fn pages_of_regular_reads_are_prefetched_and_of_random_ones_not() {
    let [sequential, ..] = with_prefetches("", |step| step);
    let [strided, ..] = with_prefetches("", |step| step * 41);
    // Two distances in turns, which one stride does not tell.
    let [turns, ..] = with_prefetches("", |step| step / 2 * 100 + step % 2 * 37);
    let [_, prefetched, _] = with_prefetches("", mixed);
    assert!(sequential < PAGES / 8, "{sequential} walks");
    assert!(strided < PAGES / 8, "{strided} walks");
    assert!(turns < PAGES / 8, "{turns} walks");
    assert!(prefetched < PAGES / 8, "{prefetched} walks of prefetches");
}

#[test]
fn free_entries_of_a_line_are_taken_at_distances_that_were_right() {
    // Lines in no order, of each the first page and another one: strides and distances tell one of seven.
    let pages = |step: u64| mixed(step / 2) * 8 + step % 2 * (1 + mixed(step) % 7);
    let [walks, _, free] = with_prefetches("", pages);
    assert!(free > PAGES * 3 / 8, "{free} free hits");
    assert!(walks < PAGES * 5 / 8, "{walks} walks");
    let [without, _, free] = with_prefetches("threshold = 1023", pages);
    assert!(
        without > PAGES * 7 / 8 && free == 0,
        "{without} walks, {free} free hits"
    );
}

#[test]
fn prefetched_translations_are_forgotten_and_let_no_first_store_through() {
    for forget in [
        |mmu: &mut Mmu| mmu.flush(),
        |mmu: &mut Mmu| {
            let all = VirtRange::with_length(VirtAddr::new(START), PAGES * PAGE_BYTES);
            mmu.invalidate(SPACE, all);
        },
    ] {
        let mut world = World::new("atp-sbfp", "huge = { enabled = \"never\" }", false);
        for page in 0..64 {
            world.read_by(page, 1);
        }
        assert!(counter(&world.mmu, "atp_hits") > 40);
        // Each page has another frame, and was not written.
        world.table = table(None, START, PAGES, |page| FRAMES + (7 * page + 1) % PAGES);
        for page in 64..128 {
            let address = VirtAddr::new(START + page * PAGE_BYTES);
            world.table.update(address, |leaf| leaf.dirty = false);
        }
        forget(&mut world.mmu);
        let hits = counter(&world.mmu, "atp_hits");
        for page in 64..128 {
            world.access_by(page, 1, Access::Write, &mut Recorder::default());
        }
        assert_eq!(counter(&world.mmu, "atp_hits"), hits, "stores walk");
        let address = VirtAddr::new(START + 127 * PAGE_BYTES);
        assert!(world.table.leaf(address).unwrap().dirty);
    }
}

/// Share of random reads of 64 MB that walk, where aligned groups of two to the power of `order` pages are contiguous and
/// no two groups are.
fn walking_share(name: &str, more: &str, order: u32) -> f64 {
    const READS: u64 = 20_000;
    let groups = |page: u64| {
        let group = (5 * (page >> order) + 3) % (PAGES >> order);
        FRAMES + (group << order) + page % (1 << order)
    };
    let mut world = World::with(name, more, false, groups);
    (0..PAGES).for_each(|page| {
        world.read(page);
    });
    world.mmu.reset_counters();
    world.read_at_random(READS);
    world.mmu.translator_counters().walks() as f64 / READS as f64
}

#[test]
fn reach_doubles_with_the_order_of_contiguity() {
    for order in 0..=9 {
        let reach = (1536_u64 << order) as f64 / PAGES as f64;
        let expected = (1.0 - reach).max(0.0);
        let share = walking_share("svnapot", "", order);
        assert!(
            (share - expected).abs() < 0.05,
            "{share} of reads walk, not {expected}, with runs of 2^{order} pages"
        );
        // Shorter runs than the hardware's only size are none.
        let ratified = "largest_log2 = 4\nall_sizes = false";
        let share = walking_share("svnapot", ratified, order);
        let expected = if order < 4 { 0.9 } else { 0.0 };
        assert!((share - expected).abs() < 0.05, "{share} of reads walk");
        let small = walking_share("svnapot", "largest_log2 = 2", order);
        let expected = 1.0 - (1536_u64 << order.min(2)) as f64 / PAGES as f64;
        assert!((small - expected).abs() < 0.05, "{small} of reads walk");
    }
}
