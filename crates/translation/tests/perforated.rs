//! Do perforated pages have the properties that the Perforated Page paper claims (mechanisms E-C)?

use crate::common::{
    BASE, L2_LATENCY, Outcome, access, access_or_fault, counter, memory, mmu, mmu_of,
    mmu_without_walk_caches, scheme, small_tlb, space,
};
use contigua_frames::FrameClass;
use contigua_paging::{
    AddressSpace, Effects, Filter, Fragmentation, HoleKind, Memory, Pattern, SpaceId, Vma,
    holes::sub_page,
};
use contigua_translation::{Access, Mmu, NestedConfig, SchemeConfig};
use contigua_units::{Cycles, Frame, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use proptest::prelude::*;

const HUGE: u64 = PageSize::Size2M.bytes();

struct World {
    scheme: SchemeConfig,
    memory: Memory,
    space: AddressSpace,
}

fn scenario(holes: u32, pattern: Pattern, kind: HoleKind) -> Fragmentation {
    Fragmentation {
        share: 1.0,
        holes: f64::from(holes) / 512.0,
        pattern,
        kind,
        seed: 1,
    }
}

/// A process with that many huge pages, all of which are mapped.
fn world(name: &str, holes: Option<Fragmentation>, pages: u64) -> World {
    let scheme = scheme(name, "");
    let mut memory = memory(32_768);
    let mut space = space(&scheme, &mut memory);
    space.set_fragmentation(holes);
    let mut effects = Effects::default();
    let all = VirtRange::with_length(VirtAddr::new(BASE), pages * HUGE);
    space
        .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    for page in 0..pages {
        for part in 0..512 {
            let at = VirtAddr::new(BASE + page * HUGE + part * PAGE_BYTES);
            let unallocated = holes.is_some_and(|holes| holes.kind == HoleKind::Unallocated);
            let is_hole = holes.is_some_and(|holes| holes.of_page(at).has(sub_page(at)));
            if unallocated && is_hole || space.translation(at).is_some() {
                continue;
            }
            space
                .fault(at, true, &*scheme.policy(), &mut memory, &mut effects)
                .unwrap();
        }
    }
    assert_eq!(space.validate(&memory), Ok(()));
    World {
        scheme,
        memory,
        space,
    }
}

impl World {
    fn read(&mut self, mmu: &mut Mmu, address: u64) -> Outcome {
        access(
            mmu,
            &mut self.space,
            &self.memory,
            None,
            VirtAddr::new(address),
            Access::Read,
        )
    }
}

fn at(sub_page: u64) -> u64 {
    BASE + sub_page * PAGE_BYTES + 0x123
}

#[test]
fn without_fragmented_pages_every_access_is_as_with_ordinary_huge_pages() {
    let (mut thp, mut perforated) = (world("thp", None, 20), world("perforated", None, 20));
    let mut mmus = (mmu(&thp.scheme), mmu(&perforated.scheme));
    let mut state = 1_u64;
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let address = BASE + (state >> 33) % (20 * HUGE);
        let (one, other) = (
            thp.read(&mut mmus.0, address),
            perforated.read(&mut mmus.1, address),
        );
        match (one, other) {
            (Outcome::Hit(_), Outcome::Hit(_)) => {}
            (Outcome::Translated(_, time, read), Outcome::Translated(_, other, also)) => {
                assert_eq!((time, read.len()), (other, also.len()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(mmus.0.counters(), mmus.1.counters());
    assert_eq!(counter(&mmus.1, "l2_hits_perforated"), 0);
}

#[test]
fn a_page_that_is_flagged_and_has_no_holes_only_loses_reach_in_the_first_level() {
    let (mut thp, mut flagged) = (world("thp", None, 40), world("perforated", None, 40));
    for page in 0..40 {
        let at = VirtAddr::new(BASE + page * HUGE);
        let flag = |leaf: &mut contigua_paging::Leaf| leaf.perforation = Some(Filter::default());
        assert!(flagged.space.table_mut().update(at, flag));
    }
    let mut mmus = (mmu(&thp.scheme), mmu(&flagged.scheme));
    for i in 0..40_000_u64 {
        let address = BASE + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (40 * HUGE);
        thp.read(&mut mmus.0, address);
        flagged.read(&mut mmus.1, address);
    }
    let walks = |mmu: &Mmu| mmu.translator_counters().walks();
    assert_eq!(walks(&mmus.0), walks(&mmus.1));
    assert_eq!(counter(&mmus.1, "bitmap_references"), 0);
    assert!(mmus.1.counters().data.misses() >= mmus.0.counters().data.misses());
}

#[test]
fn references_from_cold_are_three_four_and_six() {
    // Holes in sub-pages 0 and 1 only: filter bit 0 is set, the others are clear.
    let holes = scenario(2, Pattern::Clustered, HoleKind::Remapped);
    let mut world = world("perforated", Some(holes), 1);
    for (sub_page, references) in [(0, 6), (1, 6), (2, 4), (63, 4), (64, 3), (511, 3)] {
        let mut mmu = mmu_without_walk_caches(&world.scheme, false);
        let outcome = world.read(&mut mmu, at(sub_page));
        assert_eq!(outcome.references(), references, "sub-page {sub_page}");
        // Mechanisms C3: one look-up of the L2 TLB, and another one where the filter says so.
        let lookups = if sub_page < 64 { 2 } else { 1 };
        let time = Cycles::new(lookups * L2_LATENCY + 100 * references as u64);
        assert!(matches!(outcome, Outcome::Translated(_, taken, _) if taken == time));
    }
}

#[test]
fn each_state_of_the_l2_tlb_costs_what_the_table_of_paths_says() {
    let holes = scenario(4, Pattern::Clustered, HoleKind::Remapped);
    let mut world = world("perforated", Some(holes), 1);
    let mut mmu = mmu_without_walk_caches(&world.scheme, false);
    let mut cost = |sub_page: u64| match world.read(&mut mmu, at(sub_page)) {
        Outcome::Translated(_, time, references) => {
            (time.get() / L2_LATENCY % 100, references.len())
        }
        other => panic!("{other:?}"),
    };
    let _ = cost(300);
    // Perforated page at hand, filter bit clear: generated at once.
    assert_eq!(cost(200), (1, 0));
    // Filter bit set: the bitmap is fetched, with one reference; then it is there.
    assert_eq!(cost(10).1, 1);
    assert_eq!(cost(11), (2, 0));
    assert_eq!(cost(31), (2, 0));
    // The next 32 sub-pages have a bitmap entry of their own.
    assert_eq!(cost(32).1, 1);
    // A hole walks its shadow: two references, without the table above.
    assert_eq!(cost(0).1, 2);
    assert_eq!(cost(1).1, 2);
}

#[test]
fn a_hole_that_was_walked_is_an_ordinary_entry_of_the_l2_tlb() {
    let holes = scenario(128, Pattern::Dispersed, HoleKind::Remapped);
    let mut world = world("perforated", Some(holes), 1);
    let mut mmu = mmu(&world.scheme);
    for round in 0..2 {
        for hole in (0..512).step_by(4) {
            world.read(&mut mmu, at(hole));
        }
        assert_eq!(counter(&mmu, "hole_walks"), 128, "round {round}");
    }
}

#[test]
fn a_page_takes_at_most_17_entries_of_the_l2_tlb_beside_its_holes() {
    let holes = scenario(16, Pattern::Dispersed, HoleKind::Remapped);
    let mut world = world("perforated", Some(holes), 1);
    let mut mmu = mmu(&world.scheme);
    let mut references = 0;
    for sub_page in 0..512 {
        references += world.read(&mut mmu, at(sub_page)).references();
    }
    assert_eq!(counter(&mmu, "l2_content_perforated"), 1);
    assert_eq!(counter(&mmu, "l2_content_bitmap"), 16);
    assert_eq!(counter(&mmu, "bitmap_fills"), 16);
    assert_eq!(counter(&mmu, "bitmap_references"), 16);
    assert_eq!(counter(&mmu, "hole_walks"), 16);
    // The walk to the page, the bitmap, and the holes: their node's entry is cached once.
    assert_eq!(references, 3 + 16 + 1 + 16);
    // Nothing but 4 KB pages is in the first level.
    assert_eq!(mmu.counters().data.misses_2m, 0);
}

#[test]
fn bitmaps_that_are_used_once_leave_perforated_pages_in_the_l2_tlb() {
    let found = |more: &str| {
        let holes = scenario(16, Pattern::Dispersed, HoleKind::Remapped);
        let mut world = world("perforated", Some(holes), 16);
        let (scheme, walk_cache) = (
            scheme("perforated", more),
            NestedConfig::default().walk_cache,
        );
        let mut mmu = mmu_of(&*scheme, &small_tlb(), &walk_cache, None);
        for i in 0..20_000_u64 {
            let sub_page = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            world.read(&mut mmu, at(sub_page % (512 * 16)));
        }
        counter(&mmu, "l2_hits_perforated")
    };
    let (least_recent, most_recent) = (found(""), found("bitmap_insertion = 16384"));
    // Of 20,000 reads.
    assert!(least_recent > 19_000, "{least_recent}");
    assert!(most_recent < 15_000, "{most_recent}");
}

#[test]
fn a_block_of_which_too_many_frames_are_in_use_is_not_perforated() {
    let perforations = |in_use: u32| {
        let scheme = scheme("perforated", "");
        let mut memory = memory(32_768);
        let mut space = space(&scheme, &mut memory);
        for frame in (0..32_768).filter(|frame| frame % 512 < in_use) {
            // Those of page tables are in use.
            let _ = memory.allocate_at(Frame::new(frame), FrameClass::KernelOther);
        }
        let mut effects = Effects::default();
        let all = VirtRange::with_length(VirtAddr::new(BASE), HUGE);
        space
            .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
            .unwrap();
        space
            .fault(
                all.start,
                true,
                &*scheme.policy(),
                &mut memory,
                &mut effects,
            )
            .unwrap();
        effects.perforations
    };
    assert_eq!((perforations(76), perforations(77)), (1, 0));
}

#[test]
fn small_pages_become_a_perforated_one_without_the_frames_that_are_in_use() {
    for in_use in [76, 77] {
        let scheme = scheme("perforated", "");
        let mut memory = memory(32_768);
        let mut space = space(&scheme, &mut memory);
        let mut effects = Effects::default();
        let all = VirtRange::with_length(VirtAddr::new(BASE), HUGE);
        space
            .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
            .unwrap();
        let small = self::scheme("base", "");
        for part in 0..512 {
            let at = VirtAddr::new(BASE + part * PAGE_BYTES);
            space
                .fault(at, true, &*small.policy(), &mut memory, &mut effects)
                .unwrap();
        }
        // One pageblock has free frames.
        let block = memory.pageblocks().iter().rposition(|b| b.free() == 512);
        let first = 512 * block.unwrap() as u32;
        memory.drain_per_cpu();
        for frame in (0..32_768).filter(|frame| !(first + in_use..first + 512).contains(frame)) {
            let _ = memory.allocate_at(Frame::new(frame), FrameClass::KernelOther);
        }
        let free = memory.free_frames();
        space.background_pass(512, &*scheme.policy(), &mut memory, &mut effects);
        assert_eq!(space.validate(&memory), Ok(()));
        let made = u64::from(in_use == 76);
        let done = (effects.collapses, effects.copied_4k, effects.fallbacks);
        assert_eq!(done, (made, 436 * made, 1 - made));
        let found = space.resident();
        assert_eq!((found.perforated, found.pages_4k), (made, 512 * (1 - made)));
        assert_eq!(found.perforated_frames, 512 * made);
        // The others stay where they were, in the page's holes.
        let holes = (0..512).filter(|part| {
            let at = VirtAddr::new(BASE + part * PAGE_BYTES);
            space.table().hole(at).is_some()
        });
        assert_eq!(holes.count() as u64, 76 * made);
        assert_eq!(memory.free_frames(), free);
    }
}

#[test]
fn where_the_filter_is_clear_no_bitmap_is_read() {
    let holes = scenario(64, Pattern::Clustered, HoleKind::Remapped);
    let mut world = world("perforated", Some(holes), 4);
    let mut mmu = mmu(&world.scheme);
    for page in 0..4 {
        for sub_page in 64..512 {
            world.read(&mut mmu, at(page * 512 + sub_page));
        }
    }
    assert_eq!(counter(&mmu, "bitmap_references"), 0);
    assert_eq!(counter(&mmu, "generated_4k"), 4 * 448);
}

#[test]
fn unallocated_holes_that_nobody_touches_cost_no_walk() {
    let holes = scenario(128, Pattern::Dispersed, HoleKind::Unallocated);
    let mut world = world("perforated", Some(holes), 2);
    let mut mmu = mmu(&world.scheme);
    for sub_page in (0..1024).filter(|sub_page| sub_page % 4 != 0) {
        assert_ne!(world.read(&mut mmu, at(sub_page)), Outcome::Fault);
    }
    assert_eq!(counter(&mmu, "hole_walks"), 0);
    // The first touch of one is a fault, and then a page.
    assert_eq!(world.read(&mut mmu, at(0)), Outcome::Fault);
    let World {
        scheme,
        memory,
        space,
    } = &mut world;
    let outcome = access_or_fault(
        &mut mmu,
        space,
        memory,
        scheme,
        VirtAddr::new(at(0)),
        Access::Read,
    );
    assert!(outcome.physical().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(24)))]
    #[test]
    fn clustered_holes_need_no_more_bitmap_reads_than_dispersed_ones(
        holes in 1..257u32,
        addresses in prop::collection::vec(0..512 * 8u64, 600),
    ) {
        let mut fills = [Pattern::Clustered, Pattern::Dispersed].map(|pattern| {
            let mut world = world("perforated", Some(scenario(holes, pattern, HoleKind::Remapped)), 8);
            let mut mmu = mmu(&world.scheme);
            for &sub_page in &addresses {
                world.read(&mut mmu, at(sub_page));
            }
            counter(&mmu, "bitmap_fills")
        });
        prop_assert!(fills[0] <= fills[1], "{:?}", fills);
        fills.reverse();
    }
}

#[test]
fn the_conventional_split_walks_as_small_pages_do_and_perforated_pages_do_not() {
    const PAGES: u64 = 16;
    let holes = |count| Some(scenario(count, Pattern::Dispersed, HoleKind::Remapped));
    let walks = |name: &str, holes| {
        let mut world = world(name, holes, PAGES);
        let mut mmu = mmu(&world.scheme);
        for i in 0..60_000_u64 {
            let sub_page = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            world.read(&mut mmu, at(sub_page % (512 * PAGES)));
        }
        mmu.translator_counters().references
    };
    let base = walks("base", None);
    let split = walks("thp", holes(8));
    assert_eq!(split, base, "every page has a hole, so every page is split");
    let perforated: Vec<u64> = [8, 32, 128, 256]
        .map(|count| walks("perforated", holes(count)))
        .into();
    assert!(perforated.is_sorted(), "{perforated:?}");
    assert!(perforated[0] * 10 < base, "{perforated:?} {base}");
}

#[test]
fn the_bitmap_lies_above_memory_and_is_one_part_in_32768() {
    let mut world = world(
        "perforated",
        Some(scenario(8, Pattern::Dispersed, HoleKind::Remapped)),
        1,
    );
    let mut mmu = mmu_without_walk_caches(&world.scheme, false);
    let total = world.memory.total() * PAGE_BYTES;
    assert_eq!(world.memory.holes.bytes().get(), total / 32768);
    let Outcome::Translated(physical, _, references) = world.read(&mut mmu, at(1)) else {
        panic!("it was not translated before");
    };
    let chunk = physical.get() / HUGE;
    assert_eq!(references.last().unwrap().get(), total + 64 * chunk);
}

#[test]
fn a_page_becomes_whole_although_another_sharer_has_left_its_holes_behind() {
    let mut world = world("perforated", None, 1);
    let policy = world.scheme.policy();
    let page = |number: u64| VirtAddr::new(BASE + number * PAGE_BYTES);
    let World { memory, space, .. } = &mut world;
    let mut effects = Effects::default();
    let mut other = space.fork(SpaceId(1), memory, &mut effects).unwrap();
    // Each writes a page of its own: a hole, of which the other one must learn.
    effects.clear();
    other
        .fault(page(9), true, &*policy, memory, &mut effects)
        .unwrap();
    effects.clear();
    space
        .fault(page(5), true, &*policy, memory, &mut effects)
        .unwrap();
    let punches = std::mem::take(&mut effects.shared_punches);
    assert_eq!(punches.len(), 1);
    for (chunk, hole) in punches {
        other.point_back(chunk, hole, memory, &mut effects).unwrap();
    }
    assert!(space.is_hole(page(5)) && !space.is_hole(page(9)));
    assert!(other.is_hole(page(9)) && !other.is_hole(page(5)));
    assert_eq!(other.validate(memory), Ok(()));
    other.destroy(memory, &mut Effects::default());
    assert_eq!(space.validate(memory), Ok(()));
    // Its frame in the chunk is free again: the pass fills the only hole.
    effects.clear();
    space.background_pass(512, &*policy, memory, &mut effects);
    assert_eq!(effects.patches, 1);
    assert_eq!(space.table().leaf(page(0)).unwrap().perforation, None);
    assert_eq!(space.validate(memory), Ok(()));
}
