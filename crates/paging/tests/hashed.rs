//! Do hashed tables hold what is mapped, wherever their lines move, and what do they ask of memory?

use std::collections::BTreeMap;

use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement, Request};
use contigua_paging::{Growth, Hashing, Leaf, Levels, Memory, PageTable, TableError};
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, VirtAddr};
use proptest::prelude::*;

/// Lines of each way: a page.
const LINES: u64 = 64;
/// Pages that lie in a line of their own each.
const APART: u64 = 8 * PAGE_BYTES;

fn hashing(chunk: Option<Order>) -> Hashing {
    Hashing {
        ways: 3,
        lines: LINES,
        chunk,
        full: 60,
    }
}

/// A table and the memory that it takes, of which blocks have an order at most.
struct World {
    table: PageTable,
    next: u32,
    taken: BTreeMap<u32, Order>,
    most: Order,
}

impl World {
    fn new(hashing: Hashing) -> Self {
        let mut world = Self {
            table: PageTable::with_hashing(hashing, Levels::Four),
            next: 0,
            taken: BTreeMap::new(),
            most: Order::new(20),
        };
        world.grow();
        world
    }

    fn grow(&mut self) -> Growth {
        let Self {
            next, taken, most, ..
        } = self;
        self.table.grow(|order| {
            let frame = next.next_multiple_of(order.frames());
            (order <= *most).then(|| {
                *next = frame + order.frames();
                taken.insert(frame, order);
                Frame::new(frame)
            })
        })
    }

    fn map(&mut self, page: u64, size: PageSize) -> Result<(), TableError> {
        let leaf = Leaf::new(Frame::new(page as u32), size, true);
        let address = VirtAddr::new(page * PAGE_BYTES);
        self.table.map(address, leaf, |_| panic!("no nodes"))
    }

    /// Maps pages apart, and lets the table grow after each; how many until one has no room, and the failures.
    fn fill(&mut self, pages: u64) -> (u64, u64) {
        let mut failures = 0;
        for page in 0..pages {
            if self.map(page * 8, PageSize::Size4K).is_err() {
                failures += self.grow().failures;
                if self.map(page * 8, PageSize::Size4K).is_err() {
                    return (page, failures);
                }
            }
            failures += self.grow().failures;
        }
        (pages, failures)
    }

    fn largest(&self) -> Option<&Order> {
        self.taken.values().max()
    }
}

#[test]
fn each_page_is_in_one_of_three_places() {
    for chunk in [None, Some(Order::BASE)] {
        let mut world = World::new(hashing(chunk));
        assert_eq!(world.fill(3000), (3000, 0));
        assert_eq!(world.table.validate(), Ok(()));
        let hashed = world.table.hashed().unwrap();
        let mut seen = BTreeMap::new();
        for page in 0..3000 {
            let address = VirtAddr::new(page * APART);
            let candidates: Vec<_> = hashed.candidates(address, PageSize::Size4K).collect();
            let place = hashed.place(address, PageSize::Size4K).unwrap();
            assert!(candidates.len() == 3 && candidates.contains(&place));
            assert_eq!(seen.insert(place, page), None, "two lines at {place}");
            let frame = place.frame().get();
            let (start, order) = world.taken.range(..=frame).next_back().unwrap();
            assert!(frame < start + order.frames(), "{place} is not the table's");
        }
    }
}

#[test]
fn contiguous_ways_need_blocks_of_their_size_and_chunks_do_not() {
    // 100,000 lines at 60 % are in three ways of 64 K lines, 4 MB.
    let mut whole = World::new(hashing(None));
    assert_eq!(whole.fill(100_000), (100_000, 0));
    assert_eq!(whole.largest(), Some(&Order::BUDDY_MAX));
    let mut chunks = World::new(hashing(Some(Order::new(0))));
    assert_eq!(chunks.fill(100_000), (100_000, 0));
    // The largest block is that of the walk tables.
    assert_eq!(chunks.largest(), Some(&Order::new(7)));
}

#[test]
fn without_contiguous_memory_a_table_fills_up_and_tries_again() {
    let mut world = World::new(hashing(None));
    world.most = Order::new(3);
    let (lines, failures) = world.fill(100_000);
    // Ways of eight pages have 1,536 places. Cuckoo tables of three ways have room up to nine tenths (Fotakis and
    // others, STACS 2003), which few moves do not find.
    assert!((1200..1450).contains(&lines), "{lines} lines");
    assert!((5..64).contains(&failures), "{failures} failures");
    assert_eq!(world.table.validate(), Ok(()));
    // With memory, what had no room gets in.
    world.most = Order::new(20);
    assert_eq!(world.grow().failures, 0);
    assert_eq!(world.map(lines * 8, PageSize::Size4K), Ok(()));
    // What was there stays.
    assert_eq!(world.table.validate(), Ok(()));
}

#[test]
fn contiguous_ways_grow_together_elsewhere_and_chunks_one_way_in_place() {
    for (chunk, blocks) in [(None, 3), (Some(Order::BASE), 1)] {
        let mut world = World::new(hashing(chunk));
        let full = 3 * LINES * 60 / 100 + 1;
        for page in 0..full {
            assert_eq!(world.map(page * 8, PageSize::Size4K), Ok(()));
        }
        let before = world.taken.len();
        let growth = world.grow();
        assert_eq!((growth.tables, world.taken.len() - before), (1, blocks));
        // Lines go over while others come, and both are found meanwhile.
        for page in full..full + LINES {
            assert_eq!(world.map(page * 8, PageSize::Size4K), Ok(()));
            assert_eq!(world.table.validate(), Ok(()));
        }
    }
}

#[test]
fn an_open_table_reads_few_lines_until_it_is_half_full_and_ends_full() {
    let open = Hashing {
        ways: 1,
        lines: 1 << 13,
        ..hashing(None)
    };
    let mut world = World::new(open);
    assert_eq!(world.fill(1 << 12), (1 << 12, 0));
    let hashed = world.table.hashed().unwrap();
    let reads = |page: u64| {
        let address = VirtAddr::new(page * APART);
        let read: Vec<_> = hashed.chain(address, PageSize::Size4K).collect();
        assert_eq!(
            read.last().copied(),
            hashed.place(address, PageSize::Size4K)
        );
        read.len() as f64
    };
    // Knuth, The Art of Computer Programming 3, section 6.4: half full, 1.5 for what is there.
    let mean = (0..1 << 12).map(reads).sum::<f64>() / f64::from(1 << 12);
    assert!((1.3..1.7).contains(&mean), "{mean} reads");
    let mut world = World::new(open);
    assert_eq!(world.fill(1 << 14), (1 << 13, 0));
    assert_eq!(world.taken.values().max(), Some(&Order::new(7)));
}

#[test]
fn a_server_without_a_large_free_range_gives_chunks_only() {
    let config = Config::default();
    let layout = Layout::new(1 << 16, 0, 1);
    let frames = Frames::new(Boxed::new(layout), config, Placement::default());
    let mut memory = Memory::from(frames.unwrap());
    // One frame in 1,024 stays: no 4 MB are free, and none can be emptied.
    let request = Request::new(Order::BASE, FrameClass::Slab);
    let all: Vec<_> = std::iter::from_fn(|| memory.allocate(&request)).collect();
    for frame in all.into_iter().filter(|frame| frame.get() % 1024 != 7) {
        memory.free(frame).unwrap();
    }
    memory.drain_per_cpu();
    let mut take = |order| memory.take_block(Order::new(order), FrameClass::PageTable, &mut ());
    assert_eq!((take(14), take(10)), (None, None));
    let chunk = take(8);
    assert!(chunk.is_some());
    memory.free(chunk.unwrap()).unwrap();
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn a_block_beyond_the_page_allocators_is_taken_and_given_back() {
    let config = Config::default();
    let layout = Layout::new(1 << 16, 0, 1);
    let frames = Frames::new(Boxed::new(layout), config, Placement::default());
    let mut memory = Memory::from(frames.unwrap());
    let free = memory.free_frames();
    let order = Order::new(14);
    let block = memory
        .take_block(order, FrameClass::PageTable, &mut ())
        .unwrap();
    assert_eq!(memory.order(block), Some(order));
    assert_eq!(memory.validate(), Ok(()));
    memory.free(block).unwrap();
    assert_eq!((memory.free_frames(), memory.validate()), (free, Ok(())));
}

#[derive(Clone, Debug)]
enum Step {
    Map(u64, bool),
    Unmap(u64),
    Split(u64),
    Collapse(u64),
    Grow,
    /// Blocks have so many frames at most, as an order.
    Fragment(u8),
}

/// Pages of eight huge ones.
const PAGES: u64 = 8 * 512;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..PAGES, prop::bool::weighted(0.1)).prop_map(|(page, huge)| Step::Map(page, huge)),
        5 => (0..PAGES).prop_map(Step::Unmap),
        2 => (0..PAGES).prop_map(Step::Split),
        1 => (0..PAGES).prop_map(Step::Collapse),
        10 => Just(Step::Grow),
        1 => (0..8_u8).prop_map(Step::Fragment),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(100)))]
    #[test]
    fn lines_are_found_wherever_they_move(
        steps in prop::collection::vec(step(), 1..400),
        chunk in prop::option::of(Just(Order::BASE)),
        full in 5..90_u32,
        // One: an open table.
        ways in 1..5_u32,
    ) {
        let chunk = chunk.filter(|_| ways > 1);
        let mut world = World::new(Hashing { full, ways, ..hashing(chunk) });
        let huge = PageSize::Size2M;
        for step in steps {
            match step {
                Step::Map(page, false) => drop(world.map(page, PageSize::Size4K)),
                Step::Map(page, true) => drop(world.map(page / 512 * 512, huge)),
                Step::Unmap(page) => {
                    let at = VirtAddr::new(page * PAGE_BYTES);
                    world.table.unmap(at, |_| panic!("no nodes"));
                }
                Step::Split(page) => {
                    let at = VirtAddr::new(page * PAGE_BYTES);
                    world.table.split(at, huge, Frame::default());
                }
                Step::Collapse(page) => {
                    let at = VirtAddr::new(page / 512 * 512 * PAGE_BYTES);
                    let leaf = Leaf::new(Frame::new(0), huge, true);
                    let node = world.table.collapse_2m(at, leaf);
                    prop_assert!(!matches!(node, Ok(Some(_))), "no nodes");
                }
                Step::Grow => drop(world.grow()),
                Step::Fragment(most) => world.most = Order::new(most),
            }
            prop_assert_eq!(world.table.validate(), Ok(()));
        }
    }
}
