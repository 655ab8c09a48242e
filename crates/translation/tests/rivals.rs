//! Do the rivals have the effects that their papers claim, on streams of their papers' kind?

use crate::common::{Recorder, counter, mmu_of, scheme, tlb};
use contigua_paging::{HoleBitmaps, Leaf, PageTable, Segment, SpaceId};
use contigua_translation::{
    Access, Answer, HostTables, Lookup, Mmu, NestedConfig, Request, Tables,
};
use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr};

const SPACE: SpaceId = SpaceId(1);
const START: u64 = 0x4000_0000;
/// 64 MB: more than the L2 TLB translates.
const PAGES: u64 = 1 << 14;
/// First frame of the process's pages; those before are page tables.
const FRAMES: u64 = 1 << 10;

/// A process on one core, whose pages all are mapped, used and written.
struct World {
    table: PageTable,
    /// The table of the host, in a virtual machine.
    host: Option<PageTable>,
    holes: HoleBitmaps,
    mmu: Mmu,
    /// Reads of memory by misses of the first level.
    references: u64,
}

/// A table that maps pages from `start` on to frames.
fn table(start: u64, pages: u64, frame_of: impl Fn(u64) -> u64) -> PageTable {
    let mut table = PageTable::new(Frame::new(0));
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
    fn new(name: &str, more: &str, nested: bool) -> Self {
        let walk_caches = NestedConfig::default();
        let scattered = |page: u64| FRAMES + (5 * page + 3) % PAGES;
        let mmu = mmu_of(
            &*scheme(name, more),
            &tlb(),
            &walk_caches.walk_cache,
            nested.then_some(&walk_caches),
        );
        Self {
            table: table(START, PAGES, scattered),
            host: nested.then(|| table(0, FRAMES + PAGES, |frame| 2 * FRAMES + frame)),
            holes: HoleBitmaps::default(),
            mmu,
            references: 0,
        }
    }

    fn read(&mut self, page: u64) {
        let address = VirtAddr::new(START + page * PAGE_BYTES);
        let request = Request::new(address, SPACE, Access::Read);
        if self.mmu.read(request.address, SPACE) != Lookup::Miss {
            return;
        }
        let mut tables = Tables {
            table: &mut self.table,
            holes: &self.holes,
            segment: Segment::NONE,
            host: self.host.as_mut().map(|table| HostTables {
                table,
                holes: &self.holes,
                segment: Segment::NONE,
            }),
        };
        let expected = tables.resolve(request.address);
        let mut port = Recorder::default();
        let answer = self.mmu.miss(&request, &mut tables, &mut port);
        let Answer::Translated { physical, .. } = answer else {
            panic!("page {page} is mapped");
        };
        assert_eq!(Some(physical.frame()), expected.map(|leaf| leaf.frame));
        self.references += port.0.len() as u64;
    }

    /// Reads random pages.
    fn read_at_random(&mut self, count: u64) {
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
