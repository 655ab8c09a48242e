//! Utopia: what does a `RestSeg` walk read, whom does it serve, and which pages are costly?

use contigua_frames::FrameClass;
use contigua_paging::{Effects, Leaf, Memory, RestSegPlan, SpaceId};
use contigua_translation::{Access, MemoryPort};
use contigua_units::{Bytes, Cycles, Frame, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::common::{Recorder, counter, memory, mmu, scheme, space};
use crate::rivals::{FRAMES, PAGES, START, World};

/// Remembers what is read, at once too.
#[derive(Default)]
struct All(Vec<PhysAddr>);

impl MemoryPort for All {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.0.push(address);
        Cycles::new(100)
    }

    fn references_at_once(&mut self, addresses: &[PhysAddr]) -> Cycles {
        self.0.extend(addresses);
        Cycles::new(100)
    }
}

const SPACE: SpaceId = crate::rivals::SPACE;

/// A process with a segment of 4 KB pages of so many ways, in which the first `inside` of its pages lie.
fn world(more: &str, ways: u32, inside: u64) -> (World, Memory) {
    let mut memory = memory(1 << 16);
    for frame in 0..(FRAMES + PAGES) as u32 {
        let frame = Frame::new(frame);
        memory.allocate_at(frame, FrameClass::PageTable).unwrap();
    }
    let plan = RestSegPlan {
        size: PageSize::Size4K,
        bytes: 2 * PAGES * PAGE_BYTES,
        ways,
        from_boot: true,
    };
    memory.take_rest_segs(&[plan], true, &mut ());
    let mut space = contigua_paging::AddressSpace::with(
        SPACE,
        contigua_paging::TableShape::default(),
        &mut memory,
    )
    .unwrap();
    let all = VirtRange::with_length(VirtAddr::new(START), PAGES * PAGE_BYTES);
    let mut effects = Effects::default();
    space
        .map(
            all,
            contigua_paging::Vma::ANONYMOUS,
            &mut memory,
            &mut effects,
        )
        .unwrap();
    let policy = scheme("base", "").policy();
    for page in 0..inside {
        let at = VirtAddr::new(START + page * PAGE_BYTES);
        space
            .fault(at, true, &*policy, &mut memory, &mut effects)
            .unwrap();
    }
    assert_eq!(effects.restricted, inside);
    let frames: Vec<_> = (0..PAGES)
        .map(|page| {
            let leaf = space.table().leaf(VirtAddr::new(START + page * PAGE_BYTES));
            leaf.map_or(FRAMES + page, |leaf| u64::from(leaf.frame.get()))
        })
        .collect();
    let mut world = World::with("utopia", more, false, |page| frames[page as usize]);
    world.rest_segs = Some(memory.rest_segs.clone());
    (world, memory)
}

#[test]
fn a_restseg_walk_reads_at_once_and_walks_no_tree() {
    let (mut world, _) = world("", 16, PAGES);
    (0..PAGES).for_each(|page| world.read(page));
    world.mmu.reset_counters();
    for page in (0..PAGES).map(|page| page * 7919 % PAGES) {
        let mut port = All::default();
        let latency = world.read_through(page, 0, &mut port);
        // Two lines take as long as one; beyond that, there are the L2 TLB and the caches' cycle.
        assert!(port.0.len() <= 2, "{:?}", port.0);
        let read = if port.0.is_empty() { 0 } else { 100 };
        assert!((read..=read + 20).contains(&latency), "{latency} cycles");
    }
    assert_eq!(world.mmu.translator_counters().walks(), 0);
    let hits = counter(&world.mmu, "restseg_hits");
    assert!(hits > PAGES / 2, "{hits} hits");
    assert_eq!(counter(&world.mmu, "restseg_walks"), hits);
    // A filter's line counts a hundred sets, a line of tags is for one set.
    let filters = counter(&world.mmu, "restseg_filter_reads");
    let tags = counter(&world.mmu, "restseg_tag_reads");
    assert!(filters < tags, "{filters} lines of filters, {tags} of tags");
    assert!(tags > hits / 2, "{tags} lines of tags in {hits} hits");
    // Both lines take as long as one, beyond the caches' cycle.
}

#[test]
fn empty_sets_need_no_tags_and_the_tree_finds_the_rest() {
    // Half of the pages lie in the segment; there are twice as many ways as pages, so sets of the others are empty.
    let (mut world, _) = world("", 1, PAGES / 2);
    for page in 0..PAGES {
        let mut port = All::default();
        let before = world.mmu.translator_counters().walks();
        world.access_by(page, 0, Access::Read, &mut port);
        let walks = world.mmu.translator_counters().walks() - before;
        assert_eq!(walks, u64::from(page >= PAGES / 2), "page {page}");
    }
    assert_eq!(counter(&world.mmu, "restseg_walks"), PAGES);
    assert_eq!(counter(&world.mmu, "restseg_hits"), PAGES / 2);
    assert_eq!(counter(&world.mmu, "restseg_tag_lookups"), PAGES / 2);
}

#[test]
fn the_first_store_comes_back_and_read_only_pages_fault() {
    let (mut world, _) = world("", 16, 64);
    let at = |page: u64| VirtAddr::new(START + page * PAGE_BYTES);
    for page in 0..64 {
        world.table.update(at(page), |leaf| {
            leaf.dirty = false;
            leaf.accessed = false;
        });
        world.read(page);
        assert!(world.table.leaf(at(page)).unwrap().accessed);
        world.access_by(page, 0, Access::Write, &mut Recorder::default());
        assert!(world.table.leaf(at(page)).unwrap().dirty, "page {page}");
    }
    let hits = counter(&world.mmu, "restseg_hits");
    assert_eq!(hits, 128);
    world.table.update(at(3), |leaf| leaf.writable = false);
    world
        .mmu
        .invalidate(SPACE, VirtRange::with_length(at(3), PAGE_BYTES));
    world.read(3);
    let fault = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.access_by(3, 0, Access::Write, &mut Recorder::default());
    }));
    assert!(fault.is_err(), "a store to a read-only page faults");
}

#[test]
fn pages_that_are_walked_for_often_and_from_memory_are_costly() {
    let found = |more: &str, times: u64| {
        let (mut world, _) = world(more, 16, 0);
        let mut costly = Vec::new();
        for _ in 0..times {
            world.mmu.flush();
            world.read(5);
            costly.extend(std::iter::from_fn(|| world.mmu.take_costly_page()));
        }
        assert_eq!(
            counter(&world.mmu, "restseg_costly_pages"),
            costly.len() as u64
        );
        costly
    };
    let page = (SPACE, VirtAddr::new(START + 5 * PAGE_BYTES));
    assert_eq!(found("", 4), []);
    assert_eq!(found("", 5), [page]);
    // Counting begins anew.
    assert_eq!(found("", 9), [page]);
    assert_eq!(found("", 10), [page, page]);
    assert_eq!(found("least_walks = 2", 2), [page]);
    assert_eq!(found("least_walks = 1\nleast_reads = 15", 3), []);
    assert_eq!(found("moves = false", 10), []);
}

#[test]
fn virtual_machines_have_no_segments() {
    let (native, _) = world("", 16, PAGES);
    let mut nested = World::new("utopia", "", true);
    nested.rest_segs = native.rest_segs;
    (0..100).for_each(|page| nested.read(page));
    assert_eq!(counter(&nested.mmu, "restseg_walks"), 0);
}

#[test]
fn a_stale_tag_is_believed() {
    // So tests of tables notice tags that are left behind.
    let scheme = scheme("utopia", "base_share = 0.4");
    let mut memory = memory(4096);
    crate::common::take_rest_segs(&*scheme, &mut memory);
    let mut space = space(&scheme, &mut memory);
    let at = VirtAddr::new(crate::common::BASE - PAGE_BYTES);
    let mut effects = Effects::default();
    let page = VirtRange::with_length(at, PAGE_BYTES);
    space
        .map(
            page,
            contigua_paging::Vma::ANONYMOUS,
            &mut memory,
            &mut effects,
        )
        .unwrap();
    let policy = scheme.policy();
    space
        .fault(at, true, &*policy, &mut memory, &mut effects)
        .unwrap();
    let frame = space.table().leaf(at).unwrap().frame;
    let other = Frame::new(frame.get() + 1);
    space
        .table_mut()
        .update(at, |leaf: &mut Leaf| leaf.frame = other);
    let mut mmu = mmu(&scheme);
    let request = contigua_translation::Request::new(at, space.id(), Access::Read);
    let mut tables = contigua_translation::Tables {
        segment: space.segment(),
        table: space.table_mut(),
        holes: &memory.holes,
        rest_segs: Some(&mut memory.rest_segs),
        host: None,
    };
    let answer = mmu.miss(&request, &mut tables, &mut Recorder::default());
    let contigua_translation::Answer::Translated { physical, .. } = answer else {
        panic!("the page is mapped");
    };
    assert_eq!(physical.frame(), frame);
}

#[test]
fn shares_of_memory_are_those_asked_for() {
    let scheme = scheme("utopia", "");
    let plans = scheme.rest_segs(Bytes::new(16 << 30));
    let plans: Vec<_> = plans
        .iter()
        .map(|plan| (plan.size, plan.bytes, plan.ways, plan.from_boot))
        .collect();
    let expected = [
        (PageSize::Size4K, 1 << 30, 16, true),
        (PageSize::Size2M, 1 << 30, 8, true),
    ];
    assert_eq!(plans, expected);
}
