//! Do mappings become one run each, do pages keep their contents, and does what cannot move break the run?

use std::collections::BTreeMap;

use contigua_frames::{
    Boxed, Brought, Config, FrameClass, Frames, Group, Layout, Move, Obstacle, Placement, Request,
};
use contigua_paging::{
    AddressSpace, CollapseContext, Effects, FaultContext, MappingPolicy, Memory, RangerStep,
    Ranging, SpaceId, Vma,
};
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use proptest::prelude::*;

const BASE: u64 = 1 << 40;
const HUGE: u64 = PageSize::Size2M.bytes();
const PARTS: u64 = HUGE / PAGE_BYTES;
const RANGING: Ranging = Ranging {
    least: HUGE,
    align: PageSize::Size2M,
};

/// Small pages, or huge ones where they fit; the background makes huge ones where `collapses`.
#[derive(Clone, Copy)]
struct Sizes {
    huge: bool,
    collapses: bool,
}

impl MappingPolicy for Sizes {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        if self.huge {
            context.fits.min(PageSize::Size2M)
        } else {
            PageSize::Size4K
        }
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        self.collapses
    }
}

const SMALL: Sizes = Sizes {
    huge: false,
    collapses: false,
};

/// Memory with two spaces, in which every page and every block of the page cache holds something of its own.
struct World {
    memory: Memory,
    spaces: Vec<AddressSpace>,
    contents: BTreeMap<u32, u64>,
    /// Of each page, by space and number.
    written: BTreeMap<(u16, u64), u64>,
    next: u64,
    effects: Effects,
    /// Huge pages are split where sizes differ.
    splits: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pass {
    moved: u64,
    exchanged: u64,
    made: u64,
    left: u64,
}

impl World {
    fn new(mebibytes: usize, spaces: u16) -> Self {
        let layout = Layout::new(mebibytes << 8, 2, 1);
        let frames = Frames::new(Boxed::new(layout), Config::default(), Placement::default());
        let mut memory: Memory = frames.unwrap().into();
        let spaces = (0..spaces)
            .map(|space| AddressSpace::new(SpaceId(space), &mut memory).unwrap())
            .collect();
        Self {
            memory,
            spaces,
            contents: BTreeMap::new(),
            written: BTreeMap::new(),
            next: 1,
            effects: Effects::default(),
            splits: false,
        }
    }

    fn map(&mut self, space: usize, page: u64, pages: u64) {
        let range = VirtRange::with_length(address(page), pages * PAGE_BYTES);
        let Self {
            spaces,
            memory,
            effects,
            ..
        } = self;
        spaces[space]
            .map(range, Vma::ANONYMOUS, memory, effects)
            .unwrap();
    }

    fn touch(&mut self, space: usize, page: u64, sizes: Sizes) {
        let Self {
            spaces,
            memory,
            effects,
            ..
        } = self;
        let fault = spaces[space].fault(address(page), true, &sizes, memory, effects);
        if fault.is_err() {
            return;
        }
        let leaf = spaces[space].table().leaf(address(page)).unwrap();
        let first = page - page % u64::from(leaf.size.frames());
        for i in 0..leaf.size.frames() {
            let key = (space as u16, first + u64::from(i));
            self.written.insert(key, self.next);
            self.contents.insert(leaf.frame.get() + i, self.next);
            self.next += 1;
        }
    }

    /// A block that others have: page cache, which moves, or what stays.
    fn occupy(&mut self, frame: u32, class: FrameClass) -> bool {
        let request = Request {
            group: Some(Group(0)),
            ..Request::new(Order::BASE, class)
        };
        let taken = self.memory.allocate_block_at(Frame::new(frame), &request);
        if taken.is_ok() {
            self.contents.insert(frame, self.next);
            self.next += 1;
        }
        taken.is_ok()
    }

    /// Contents of the blocks in the group.
    fn cached(&self) -> Vec<u64> {
        let blocks = self.memory.blocks_in(Group(0));
        let mut found: Vec<_> = blocks.map(|frame| self.contents[&frame.get()]).collect();
        found.sort_unstable();
        found
    }

    fn pass(&mut self, space: usize, mut left: u64, sizes: Sizes) -> Pass {
        let mut pass = Pass::default();
        while let Some(step) = self.spaces[space].next_ranger_step(RANGING, &mut left, &self.memory)
        {
            match step {
                RangerStep::Bring {
                    address,
                    from,
                    to,
                    pages,
                } => {
                    let mut moves = Vec::new();
                    let mut done = self.memory.bring(from, to, &mut moves);
                    if self.splits && done == Err(Obstacle::Unlike) {
                        if self.split(space, address, to, pages) {
                            continue;
                        }
                        done = self.memory.bring(from, to, &mut moves);
                    }
                    self.follow(done, [from, to], pages, &moves, &mut pass);
                }
                RangerStep::Stuck { pages } => pass.left += pages,
                RangerStep::Passed(at) => {
                    let Self {
                        spaces,
                        memory,
                        effects,
                        ..
                    } = self;
                    pass.made +=
                        u64::from(spaces[space].promote_in_place(at, &sizes, memory, effects));
                }
            }
        }
        pass
    }

    /// Splits what is too large; returns true if that was the page itself.
    fn split(&mut self, space: usize, address: VirtAddr, to: Frame, pages: u64) -> bool {
        let Self {
            spaces,
            memory,
            effects,
            ..
        } = self;
        if pages > 1 {
            let done = spaces[space].split_for_ranger(address, memory, effects);
            return done.is_ok();
        }
        match memory.large_block_around(to) {
            None => {}
            Some((block, None)) => memory.split(block).unwrap(),
            Some((block, Some(owner))) => {
                let (space, page) = (usize::from(owner.space), owner.page.address());
                let _ = spaces[space].split_block(block, page, memory, effects);
            }
        }
        false
    }

    fn follow(
        &mut self,
        done: Result<Brought, Obstacle>,
        [from, to]: [Frame; 2],
        pages: u64,
        moves: &[Move],
        pass: &mut Pass,
    ) {
        match done {
            Ok(Brought::Moved) => pass.moved += pages,
            Ok(Brought::Exchanged) => pass.exchanged += pages,
            Err(obstacle) => {
                pass.left += pages;
                assert!(moves.is_empty());
                self.explain(obstacle, to, pages);
                return;
            }
        }
        for i in 0..pages as u32 {
            let there = self.contents.remove(&(to.get() + i));
            let here = self.contents.remove(&(from.get() + i)).unwrap();
            self.contents.insert(to.get() + i, here);
            if let Some(there) = there.filter(|_| done == Ok(Brought::Exchanged)) {
                self.contents.insert(from.get() + i, there);
            }
        }
        for moved in moves {
            let space = usize::from(moved.owner.space);
            assert!(self.spaces[space].follow(moved), "{moved:?}");
        }
    }

    /// Looks in the frame table for what is in the way.
    fn explain(&self, obstacle: Obstacle, to: Frame, pages: u64) {
        let memory = &self.memory;
        let in_use = memory.order(to);
        let block = &memory.pageblocks()[to.index() / PARTS as usize];
        match obstacle {
            Obstacle::Unmovable if pages > 1 => assert!(block.unmovable() > 0),
            Obstacle::Outside => assert!(u64::from(to.get()) + pages > memory.total()),
            Obstacle::Unmovable => {
                let moves = matches!(
                    memory.class(to),
                    Some(FrameClass::Anonymous | FrameClass::PageCache)
                );
                assert!(in_use.is_some() && !moves, "{to} could move");
            }
            Obstacle::Unlike => {
                let order = in_use.map(|order| u64::from(order.frames()));
                assert_ne!(order, Some(pages), "{to} is in use by as many");
            }
            Obstacle::Source => panic!("every page can move"),
        }
    }

    /// Every page has what was written to it, and all books agree.
    fn check(&self) {
        self.memory.validate().unwrap();
        for space in &self.spaces {
            space.validate(&self.memory).unwrap();
        }
        for (&(space, page), content) in &self.written {
            let table = self.spaces[usize::from(space)].table();
            let Some(leaf) = table.leaf(address(page)) else {
                continue;
            };
            let frame = leaf.physical(address(page)).get() / PAGE_BYTES;
            assert_eq!(self.contents.get(&(frame as u32)), Some(content));
        }
    }
}

fn address(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * PAGE_BYTES)
}

/// A mapping of three parts of 2 MB, each page beside one of the page cache.
fn scattered() -> World {
    let mut world = World::new(32, 1);
    let total = world.memory.total() as u32;
    world.map(0, 0, 3 * PARTS);
    for frame in (0..total).step_by(2) {
        world.occupy(frame, FrameClass::PageCache);
    }
    for page in 0..3 * PARTS {
        world.touch(0, page, SMALL);
    }
    world
}

#[test]
fn a_scattered_mapping_becomes_one_run_but_for_what_stays() {
    let mut world = scattered();
    let before = world.spaces[0].runs(&world.memory);
    assert!(before.runs > 1000, "{before:?}");
    let cached = world.cached();
    let pass = world.pass(0, u64::MAX, SMALL);
    world.check();
    assert_eq!(world.cached(), cached);
    assert!(pass.exchanged > 500 && pass.moved > 100, "{pass:?}");
    let after = world.spaces[0].runs(&world.memory);
    // The kernel's own pages, tables among them, and the pages that belong there.
    assert!(
        after.runs <= 1 + 2 * pass.left && pass.left < 16,
        "{after:?} {pass:?}"
    );
    assert_eq!(after.pages, 3 * PARTS);
    let again = world.pass(0, u64::MAX, SMALL);
    assert_eq!((again.moved, again.exchanged), (0, 0), "all is in place");
}

#[test]
fn a_page_that_stays_breaks_the_run_and_nothing_else() {
    let runs = |stays: bool| {
        let mut world = World::new(32, 1);
        world.map(0, 0, 2 * PARTS);
        // Tables lie where the first pages belong, the block that stays in the middle of the second part.
        let free = PARTS as u32 + 100;
        if stays {
            assert!(world.occupy(free, FrameClass::KernelOther));
        }
        for page in (0..2 * PARTS).rev() {
            world.touch(0, page, SMALL);
        }
        let pass = world.pass(0, u64::MAX, SMALL);
        world.check();
        (world.spaces[0].runs(&world.memory).runs, pass.left)
    };
    let ((without, left), (with, more)) = (runs(false), runs(true));
    assert_eq!((with, more), (without + 2, left + 1));
}

#[test]
fn pages_in_place_become_huge_without_a_copy() {
    let mut world = scattered();
    let sizes = Sizes {
        collapses: true,
        ..SMALL
    };
    let pass = world.pass(0, u64::MAX, sizes);
    assert!((1..=3).contains(&pass.made), "{pass:?}");
    assert_eq!(world.spaces[0].resident().pages_2m, pass.made);
    assert_eq!(world.effects.copied_4k, 0);
    world.check();
    // Tables of promoted parts are free now, and places with them.
    world.pass(0, u64::MAX, sizes);
    // A huge page is cut again, and given back.
    let part = VirtRange::with_length(address(PARTS + 7), PAGE_BYTES);
    let World {
        spaces,
        memory,
        effects,
        ..
    } = &mut world;
    spaces[0].unmap(part, memory, effects).unwrap();
    world.check();
    let again = world.pass(0, u64::MAX, sizes);
    assert_eq!((again.moved, again.exchanged, again.made), (0, 0, 0));
}

#[test]
fn a_pass_looks_at_as_much_as_it_may_and_the_next_goes_on() {
    let (mut whole, mut parts) = (scattered(), scattered());
    let all = whole.pass(0, u64::MAX, SMALL);
    let mut sum = Pass::default();
    for _ in 0..3 {
        let one = parts.pass(0, PARTS, SMALL);
        assert!(one.moved + one.exchanged <= PARTS);
        sum.moved += one.moved;
        sum.exchanged += one.exchanged;
    }
    assert_eq!((sum.moved, sum.exchanged), (all.moved, all.exchanged));
}

#[test]
fn mappings_lie_one_behind_the_other_and_small_ones_nowhere() {
    let mut world = World::new(32, 1);
    let starts = [0, 10 * PARTS, 20 * PARTS];
    for (start, pages) in starts.into_iter().zip([2 * PARTS, 2 * PARTS, PARTS - 1]) {
        world.map(0, start, pages);
        world.touch(0, start + 300, SMALL);
    }
    let frame = |world: &World, start: u64| {
        let leaf = world.spaces[0].table().leaf(address(start + 300));
        leaf.unwrap().frame.get()
    };
    let small = frame(&world, starts[2]);
    let pass = world.pass(0, u64::MAX, SMALL);
    assert_eq!(pass.left, 0);
    assert_eq!(frame(&world, starts[0]), 300, "the first frames of memory");
    assert_eq!(frame(&world, starts[1]), 2 * PARTS as u32 + 300);
    assert_eq!(frame(&world, starts[2]), small);
    world.check();
    // Room before the first anchor is not sought.
    let World {
        spaces,
        memory,
        effects,
        ..
    } = &mut world;
    let first = VirtRange::with_length(address(starts[0]), 2 * HUGE);
    spaces[0].unmap(first, memory, effects).unwrap();
    world.map(0, 30 * PARTS, 2 * PARTS);
    world.touch(0, 30 * PARTS + 300, SMALL);
    world.pass(0, u64::MAX, SMALL);
    assert_eq!(
        frame(&world, 30 * PARTS),
        4 * PARTS as u32 + 300,
        "behind the last one"
    );
    world.check();
}

#[test]
fn huge_pages_are_split_where_sizes_differ() {
    let left = |splits: bool| {
        let mut world = World {
            splits,
            ..World::new(32, 1)
        };
        world.map(0, 0, 2 * PARTS);
        // File pages are in the huge page's place.
        for frame in PARTS as u32..2 * PARTS as u32 {
            world.occupy(frame, FrameClass::PageCache);
        }
        let sizes = Sizes {
            huge: true,
            ..SMALL
        };
        world.touch(0, PARTS, sizes);
        assert_eq!(world.spaces[0].resident().pages_2m, 1);
        let pass = world.pass(0, u64::MAX, SMALL);
        world.check();
        (pass.left, pass.exchanged > 400)
    };
    assert_eq!(left(false), (PARTS, false));
    let (stay, exchanged) = left(true);
    assert!(stay < 8 && exchanged, "{stay} stay");
}

#[test]
fn a_huge_page_whose_block_another_process_has_split_stays() {
    let mut world = World::new(32, 1);
    world.map(0, 0, 2 * PARTS);
    let sizes = Sizes {
        huge: true,
        ..SMALL
    };
    world.touch(0, PARTS, sizes);
    let leaf = world.spaces[0].table().leaf(address(PARTS)).unwrap();
    world.memory.split(leaf.frame).unwrap();
    let pass = world.pass(0, u64::MAX, SMALL);
    assert_eq!((pass.left, pass.moved, pass.exchanged), (PARTS, 0, 0));
    world.check();
}

#[derive(Clone, Debug)]
enum Step {
    Map(usize, u64, u64),
    Touch(usize, u64, bool),
    Unmap(usize, u64, u64),
    Occupy(u32, bool),
    Pass(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = 0..6 * PARTS;
    let step = prop_oneof![
        1 => (0..2_usize, page.clone(), 1..3 * PARTS).prop_map(|(s, p, n)| Step::Map(s, p, n)),
        20 => (0..2_usize, page.clone(), any::<bool>()).prop_map(|(s, p, h)| Step::Touch(s, p, h)),
        1 => (0..2_usize, page, 1..64_u64).prop_map(|(s, p, n)| Step::Unmap(s, p, n)),
        4 => (0..6144_u32, prop::bool::weighted(0.2)).prop_map(|(f, u)| Step::Occupy(f, u)),
        2 => (0..2_usize, prop_oneof![Just(u64::MAX), 1..PARTS]).prop_map(|(s, n)| Step::Pass(s, n)),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn pages_keep_their_contents_whoever_is_moved(steps in steps(), collapses: bool, splits: bool) {
        let mut world = World { splits, ..World::new(24, 2) };
        for space in 0..2 {
            world.map(space, 0, 5 * PARTS / 2);
        }
        for step in steps {
            match step {
                Step::Map(space, page, pages) => {
                    if world.spaces[space].vma(address(page)).is_none()
                        && world.spaces[space].vma(address(page + pages)).is_none()
                    {
                        world.written.retain(|&(s, p), _| {
                            usize::from(s) != space || !(page..page + pages).contains(&p)
                        });
                        world.map(space, page, pages);
                    }
                }
                Step::Touch(space, page, huge) => {
                    if world.spaces[space].vma(address(page)).is_some()
                        && world.spaces[space].table().leaf(address(page)).is_none()
                    {
                        world.touch(space, page, Sizes { huge, collapses });
                    }
                }
                Step::Unmap(space, page, pages) => {
                    let range = VirtRange::with_length(address(page), pages * PAGE_BYTES);
                    let World { spaces, memory, effects, .. } = &mut world;
                    let _ = spaces[space].unmap(range, memory, effects);
                    world.written.retain(|&(s, p), _| {
                        usize::from(s) != space || !(page..page + pages).contains(&p)
                    });
                }
                Step::Occupy(frame, stays) => {
                    let class = if stays { FrameClass::Slab } else { FrameClass::PageCache };
                    world.occupy(frame, class);
                }
                Step::Pass(space, left) => {
                    let cached = world.cached();
                    world.pass(space, left, Sizes { huge: false, collapses });
                    prop_assert_eq!(world.cached(), cached);
                }
            }
            world.check();
        }
    }
}
