//! Do the last nodes of tables lie in their areas, whatever happens to mappings, and what do areas ask of memory?

use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement, Request};
use contigua_paging::{
    AddressSpace, AreaShape, CollapseContext, Effects, FaultContext, Growth, MappingPolicy, Memory,
    SpaceId, TableShape, Vma,
};
use contigua_units::{Bytes, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use proptest::prelude::*;

const BASE: u64 = 0x4000_0000;
/// Addresses of a page table.
const TABLE: u64 = 2 << 20;
const FRAMES: usize = 1 << 15;

/// Pages of 2 MB wherever they fit, or none.
struct Huge(bool);

impl MappingPolicy for Huge {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        if self.0 {
            context.fits
        } else {
            PageSize::Size4K
        }
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        self.0
    }
}

const SHAPE: AreaShape = AreaShape {
    registers: 4,
    least: 2 * TABLE,
    merge_percent: 90,
    has_huge: true,
    is_in_host: false,
};

struct World {
    memory: Memory,
    spaces: Vec<AddressSpace>,
    effects: Effects,
    policy: Huge,
    /// Frames that areas may have at most at a time.
    longest: u64,
}

impl World {
    fn new(shape: AreaShape, huge: bool) -> Self {
        let config = Config {
            min_free: Some(Bytes::new(0)),
            ..Config::default()
        };
        let layout = Layout::new(FRAMES, 0, 1);
        let frames = Frames::new(Boxed::new(layout), config, Placement::default());
        let mut memory: Memory = frames.unwrap().into();
        let shape = TableShape {
            areas: Some(shape),
            ..TableShape::default()
        };
        let space = AddressSpace::with(SpaceId(0), shape, &mut memory).unwrap();
        Self {
            memory,
            spaces: vec![space],
            effects: Effects::default(),
            policy: Huge(huge),
            longest: u64::MAX,
        }
    }

    fn settle(&mut self) -> Growth {
        let longest = self.longest;
        let mut last = Growth::default();
        for space in &mut self.spaces {
            let take = |frames, memory: &mut Memory| {
                (frames <= longest)
                    .then(|| memory.take_run(frames, FrameClass::PageTable, &mut ()))?
            };
            let growth = space.make_areas(take, &mut self.memory, &mut self.effects);
            last.tables += growth.tables;
            last.failures += growth.failures;
            last.copied += growth.copied;
            last.largest_block = last.largest_block.max(growth.largest_block);
        }
        last
    }

    fn map(&mut self, first: u64, pages: u64) {
        let (space, effects) = (&mut self.spaces[0], &mut self.effects);
        let range = pages_from(first, pages);
        space
            .map(range, Vma::ANONYMOUS, &mut self.memory, effects)
            .unwrap();
    }

    fn unmap(&mut self, first: u64, pages: u64) {
        let (space, effects) = (&mut self.spaces[0], &mut self.effects);
        let range = pages_from(first, pages);
        space.unmap(range, &mut self.memory, effects).unwrap();
    }

    fn touch(&mut self, page: u64) -> Growth {
        self.touch_in(0, page)
    }

    fn touch_in(&mut self, space: usize, page: u64) -> Growth {
        let (space, effects) = (&mut self.spaces[space], &mut self.effects);
        let address = at(page);
        if space.vma(address).is_some() {
            space
                .fault(address, true, &self.policy, &mut self.memory, effects)
                .unwrap();
        }
        self.settle()
    }

    fn count(&self) -> usize {
        self.spaces[0].table().areas().unwrap().count()
    }

    /// Returns true if registers tell the place of a page's entry.
    fn is_told(&self, page: u64) -> bool {
        let table = self.spaces[0].table();
        let walk = table.walk(at(page));
        let size = walk.leaf.map_or(PageSize::Size4K, |leaf| leaf.size);
        table.areas().unwrap().entry(at(page), size) == walk.references().last().copied()
    }

    /// Registers tell the truth, and memory has what is counted.
    fn check(&self) {
        self.memory.validate().unwrap();
        for space in &self.spaces {
            space.validate(&self.memory).unwrap();
            let areas = space.table().areas().unwrap();
            for (address, leaf) in space.table().pages(EVERYTHING) {
                let last = space.table().walk(address).references().last().copied();
                let told = areas.entry(address, leaf.size);
                assert!(told.is_none() || told == last, "{address}");
            }
        }
    }
}

const EVERYTHING: VirtRange = VirtRange::new(VirtAddr::new(0), VirtAddr::new(1 << 47));

fn at(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * PAGE_BYTES)
}

fn pages_from(first: u64, pages: u64) -> VirtRange {
    VirtRange::with_length(at(first), pages * PAGE_BYTES)
}

/// Pages of a table.
const PAGES: u64 = TABLE / PAGE_BYTES;

#[test]
fn one_run_of_frames_holds_all_tables_of_a_mapping() {
    let mut world = World::new(SHAPE, false);
    world.map(0, 8 * PAGES);
    let growth = world.touch(0);
    // Eight page tables, and a directory.
    assert_eq!((growth.tables, growth.failures), (2, 0));
    assert_eq!(growth.largest_block, 8 * PAGE_BYTES);
    let before = world.memory.free_frames();
    (0..8).for_each(|table| {
        world.touch(table * PAGES);
    });
    // The pages alone: their tables have frames.
    assert_eq!(before - world.memory.free_frames(), 7);
    let entry = |page| {
        let walk = world.spaces[0].table().walk(at(page));
        walk.references().last().unwrap().get()
    };
    let first = entry(0);
    (0..8).for_each(|table| assert_eq!(entry(table * PAGES) - first, table * PAGE_BYTES));
    assert!((0..8).all(|table| world.is_told(table * PAGES)));
    world.check();
}

#[test]
fn registers_tell_of_nothing_outside_of_the_mapping() {
    let mut world = World::new(SHAPE, true);
    world.map(0, 3 * PAGES);
    world.map(4 * PAGES, PAGES / 2);
    world.touch(0);
    world.touch(4 * PAGES);
    let areas = world.spaces[0].table().areas().unwrap();
    let told = |page| areas.entries(at(page)).count();
    assert_eq!((told(0), told(3 * PAGES - 1)), (2, 2));
    assert_eq!((told(3 * PAGES), told(4 * PAGES), told(1 << 30)), (0, 0, 0));
    assert!(!world.is_told(4 * PAGES), "it is too small for an area");
}

#[test]
fn an_area_grows_with_its_mapping_and_its_tables_move() {
    let mut world = World::new(SHAPE, false);
    world.map(0, 2 * PAGES);
    world.touch(0);
    world.touch(PAGES);
    world.map(2 * PAGES, PAGES);
    let growth = world.touch(2 * PAGES);
    assert_eq!((growth.tables, growth.copied), (1, 3));
    // Twice as large: the next table has a place already.
    world.map(3 * PAGES, PAGES);
    let growth = world.touch(3 * PAGES);
    assert_eq!((growth.tables, growth.copied), (0, 0));
    assert!((0..4).all(|table| world.is_told(table * PAGES)));
    world.check();
}

#[test]
fn an_area_goes_with_its_mapping() {
    let mut world = World::new(SHAPE, true);
    let before = world.memory.free_frames();
    world.map(0, 8 * PAGES);
    (0..16).for_each(|part| {
        world.touch(part * PAGES / 2);
    });
    assert_eq!(world.count(), 2);
    world.unmap(0, 8 * PAGES);
    assert_eq!(world.count(), 0);
    assert_eq!(world.memory.free_frames(), before);
    assert!(!world.is_told(0));
    world.check();
}

#[test]
fn an_area_stays_while_another_mapping_uses_one_of_its_tables() {
    let mut world = World::new(SHAPE, false);
    let all = world.memory.free_frames();
    world.map(0, 2 * PAGES + 8);
    (0..3).for_each(|table| {
        world.touch(table * PAGES);
    });
    world.map(2 * PAGES + 500, 4);
    world.touch(2 * PAGES + 500);
    world.unmap(0, 2 * PAGES + 8);
    assert_eq!(world.count(), 2);
    world.check();
    world.unmap(2 * PAGES + 500, 4);
    assert_eq!((world.count(), world.memory.free_frames()), (0, all));
    world.check();
}

#[test]
fn mappings_with_few_addresses_between_them_share_an_area() {
    for (gap, areas) in [(PAGES / 2, 2), (4 * PAGES, 4)] {
        let mut world = World::new(SHAPE, false);
        world.map(0, 8 * PAGES);
        world.map(8 * PAGES + gap, 8 * PAGES);
        world.touch(0);
        world.touch(8 * PAGES + gap);
        // Both share the directory's, whose node they share.
        let shared = usize::from(areas == 4);
        assert_eq!(world.count(), areas - shared, "with {gap} pages between");
        world.check();
    }
}

#[test]
fn without_a_run_for_all_a_part_has_an_area_and_the_rest_none_of_the_registers() {
    let mut world = World::new(SHAPE, false);
    world.longest = 2;
    world.map(0, 16 * PAGES);
    let growth = world.touch(5 * PAGES);
    // 16, 8 and 4 frames in a row are not there.
    assert_eq!((growth.failures, growth.tables), (3, 2));
    assert!(world.is_told(5 * PAGES));
    (0..16).for_each(|table| {
        world.touch(table * PAGES);
    });
    // Three registers for page tables, one for the directory.
    assert_eq!(world.count(), 4);
    let told = (0..16).filter(|&table| world.is_told(table * PAGES));
    assert_eq!(told.count(), 3 * 2);
    world.check();
}

#[test]
fn a_part_that_is_not_worth_a_register_has_none() {
    let mut world = World::new(SHAPE, false);
    world.longest = 1;
    world.map(0, 16 * PAGES);
    assert_eq!(world.touch(0).failures, 4);
    assert_eq!(world.touch(PAGES).failures, 0, "it is not tried again");
    assert!(!world.is_told(0));
    world.check();
}

#[test]
fn what_failed_is_tried_again_after_64_more_tables() {
    let mut world = World::new(SHAPE, false);
    world.longest = 1;
    world.map(0, 80 * PAGES);
    world.touch(0);
    world.longest = u64::MAX;
    let tried = (1..80).find(|&table| world.touch(table * PAGES).tables > 0);
    assert_eq!(tried, Some(64));
    assert!((0..80).all(|table| {
        let told = world.is_told(table * PAGES);
        told == (table <= 64)
    }));
    world.check();
}

#[test]
fn a_run_that_is_no_power_of_two_takes_no_more_frames() {
    let mut world = World::new(SHAPE, false);
    let before = world.memory.free_frames();
    let class = FrameClass::PageTable;
    let run = world.memory.take_run(9, class, &mut ()).unwrap();
    assert_eq!(before - world.memory.free_frames(), 9);
    for at in 0..9 {
        assert_eq!(world.memory.order(run.offset(at)), Some(Order::BASE));
    }
    assert_eq!(world.memory.take_run(1 << 20, class, &mut ()), None);
}

#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64),
    Unmap(u64, u64),
    Move(u64, u64, u64),
    Touch(usize, u64),
    Collapse,
    Fork,
    Exit,
    Longest(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Ends of mappings are often those of tables.
    let page = || prop_oneof![(0..40u64).prop_map(|table| table * PAGES), 0..40 * PAGES];
    let length = || prop_oneof![(1..12u64).prop_map(|table| table * PAGES), 1..6 * PAGES];
    prop_oneof![
        3 => (page(), length()).prop_map(|(first, pages)| Step::Map(first, pages)),
        2 => (page(), length()).prop_map(|(first, pages)| Step::Unmap(first, pages)),
        1 => (page(), length(), page()).prop_map(|(from, pages, to)| Step::Move(from, pages, to)),
        8 => (0..3usize, page()).prop_map(|(space, page)| Step::Touch(space, page)),
        1 => Just(Step::Collapse),
        1 => Just(Step::Fork),
        1 => Just(Step::Exit),
        1 => prop_oneof![1..8u64, Just(u64::MAX)].prop_map(Step::Longest),
    ]
}

fn run(steps: Vec<Step>, huge: bool, shape: AreaShape) {
    let mut world = World::new(shape, huge);
    let root = 1;
    let all = world.memory.free_frames() + root;
    for step in steps {
        match step {
            Step::Map(first, pages) => world.map(first, pages),
            Step::Unmap(first, pages) => world.unmap(first, pages),
            Step::Move(from, pages, to) => {
                if from + pages <= to || to + pages <= from {
                    let (space, effects) = (&mut world.spaces[0], &mut world.effects);
                    let [from, to] = [from, to].map(|first| pages_from(first, pages));
                    space
                        .remap(from, to, false, &mut world.memory, effects)
                        .unwrap();
                }
            }
            Step::Touch(space, page) => {
                let space = space % world.spaces.len();
                world.touch_in(space, page);
            }
            Step::Collapse => {
                let (space, effects) = (&mut world.spaces[0], &mut world.effects);
                space.background_pass(40 * PAGES, &world.policy, &mut world.memory, effects);
            }
            Step::Fork => {
                if world.spaces.len() < 3 {
                    let id = SpaceId(world.spaces.len() as u16);
                    let (space, effects) = (&mut world.spaces[0], &mut world.effects);
                    let child = space.fork(id, &mut world.memory, effects).unwrap();
                    world.spaces.push(child);
                }
            }
            Step::Exit => {
                if world.spaces.len() > 1 {
                    let space = world.spaces.pop().unwrap();
                    space.destroy(&mut world.memory, &mut world.effects);
                }
            }
            Step::Longest(frames) => world.longest = frames,
        }
        world.settle();
        world.effects.clear();
        world.check();
    }
    for space in world.spaces.drain(..) {
        space.destroy(&mut world.memory, &mut world.effects);
    }
    assert_eq!(world.memory.free_frames() + world.memory.zero_frames(), all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(48)))]

    #[test]
    fn tables_lie_in_their_areas_and_all_frames_come_back(
        steps in prop::collection::vec(step(), 1..60),
        huge: bool,
        registers in 1..6u32,
        merge_percent in 50..=100u32,
        least in 1..4u64,
    ) {
        let shape = AreaShape { registers, least: least * TABLE, merge_percent, has_huge: huge, ..SHAPE };
        run(steps, huge, shape);
    }
}

#[test]
fn an_area_is_made_where_other_memory_is_in_use() {
    let mut world = World::new(SHAPE, false);
    // Every second frame is in use, of blocks that cannot move.
    let request = Request::new(Order::BASE, FrameClass::Slab);
    let taken: Vec<_> = (0..FRAMES)
        .map_while(|_| world.memory.allocate(&request))
        .collect();
    for pair in taken.chunks(2) {
        world.memory.free(pair[0]).unwrap();
    }
    world.map(0, 8 * PAGES);
    let growth = world.touch(0);
    assert_eq!(growth.tables, 1, "the directory's alone, of one frame");
    assert_eq!(growth.failures, 3);
}
