//! Do direct segments have the properties that the Direct Segments paper claims (mechanisms E-D)?

use crate::common::{
    BASE, ID, L2_LATENCY, Outcome, access, access_or_fault, memory, mmu, mmu_without_walk_caches,
    scheme, segment, space,
};
use contigua_paging::{AddressSpace, Effects, Eligible, Memory, Segment, SpaceId, Vma};
use contigua_translation::{Access, Lookup, SchemeConfig};
use contigua_units::{Cycles, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};
use proptest::prelude::*;

const HUGE: u64 = PageSize::Size2M.bytes();

/// A process with a primary region of 64 MB and a chunk of so many blocks for its segment.
fn process(memory: &mut Memory, id: u16, blocks: u64) -> (SchemeConfig, AddressSpace) {
    let scheme = scheme("direct-segment", "");
    let mut space = AddressSpace::new(SpaceId(id), memory).unwrap();
    space.reserve_primary(64 << 20, Eligible::ByDefault, 1);
    assert_eq!(
        space.take_chunk(blocks * HUGE, memory, &mut ()),
        blocks * HUGE
    );
    (scheme, space)
}

fn map(space: &mut AddressSpace, memory: &mut Memory, bytes: u64) -> VirtAddr {
    let range = VirtRange::with_length(VirtAddr::new(BASE), bytes);
    space
        .map(range, Vma::ANONYMOUS, memory, &mut Effects::default())
        .unwrap();
    space.place_of(range.start).of(range.start)
}

#[test]
fn the_segment_begins_at_base_and_ends_before_limit() {
    let segment = segment(0x20_0000, 0x60_0000, 0x1000_0000);
    let translate = |address| segment.translate(VirtAddr::new(address)).map(PhysAddr::get);
    assert_eq!(translate(0x20_0000), Some(0x1020_0000));
    assert_eq!(translate(0x5f_ffff), Some(0x105f_ffff));
    assert_eq!(translate(0x1f_ffff), None);
    assert_eq!(translate(0x60_0000), None);
    assert_eq!(Segment::NONE.translate(VirtAddr::new(0)), None);
    // Frames may lie below the addresses.
    let down = crate::common::segment(
        0x4000_0000,
        0x4000_1000,
        0x5000_u64.wrapping_sub(0x4000_0000),
    );
    assert_eq!(
        down.translate(VirtAddr::new(0x4000_0042)),
        Some(PhysAddr::new(0x5042))
    );
}

proptest! {
    #[test]
    fn a_composed_segment_does_one_after_the_other(
        base in 0..64u64, pages in 0..32u64, offset in 0..64u64,
        outer in 0..64u64, outer_pages in 0..64u64, outer_offset in 0..64u64,
        address in 0..200 * PAGE_BYTES,
    ) {
        let page = PAGE_BYTES;
        let one = segment(base * page, (base + pages) * page, offset * page);
        let two = segment(outer * page, (outer + outer_pages) * page, outer_offset * page);
        let at = VirtAddr::new(address);
        let expected = one.translate(at).and_then(|p| two.translate(VirtAddr::new(p.get())));
        prop_assert_eq!(one.then(&two).translate(at), expected);
    }
}

#[test]
fn an_access_in_the_segment_touches_nothing_and_takes_no_time() {
    let mut memory = memory(32_768);
    let (scheme, mut space) = process(&mut memory, 0, 16);
    let start = map(&mut space, &mut memory, 16 * HUGE);
    let mut mmu = mmu(&scheme);
    for page in 0..16 {
        let at = start + page * HUGE;
        access_or_fault(
            &mut mmu,
            &mut space,
            &mut memory,
            &scheme,
            at,
            Access::Write,
        );
    }
    mmu.dispatch(space.segment(), true);
    mmu.reset_counters();
    let mut first = None;
    for i in 0..50_000_u64 {
        let offset = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (16 * HUGE);
        let outcome = access(
            &mut mmu,
            &mut space,
            &memory,
            None,
            start + offset,
            Access::Write,
        );
        let Outcome::Hit(physical) = outcome else {
            panic!("{outcome:?}");
        };
        // Contiguous in both: distances are the same.
        let origin = physical.get() - offset;
        assert_eq!(*first.get_or_insert(origin), origin);
    }
    assert_eq!(mmu.counters().data.lookups, 0);
    assert_eq!(mmu.counters().segment_accesses, 50_000);
    assert_eq!(mmu.translator_counters().references, 0);
    assert_eq!(space.validate(&memory), Ok(()));
}

#[test]
fn registers_that_map_nothing_change_nothing() {
    let (base, segmented) = (scheme("base", ""), scheme("direct-segment", ""));
    let run = |scheme: &SchemeConfig| {
        let mut memory = memory(32_768);
        let mut space = space(scheme, &mut memory);
        map(&mut space, &mut memory, 8 * HUGE);
        let mut mmu = mmu(scheme);
        let outcomes: Vec<Outcome> = (0..20_000_u64)
            .map(|i| {
                let at = BASE + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (8 * HUGE);
                let at = VirtAddr::new(at);
                access_or_fault(&mut mmu, &mut space, &mut memory, scheme, at, Access::Read)
            })
            .collect();
        (outcomes, mmu.counters(), mmu.translator_counters())
    };
    assert_eq!(run(&base), run(&segmented));
}

#[test]
fn processes_on_one_core_never_see_each_others_segment() {
    let mut memory = memory(32_768);
    let (scheme, mut one) = process(&mut memory, 1, 4);
    let (_, mut two) = process(&mut memory, 2, 4);
    let starts = (
        map(&mut one, &mut memory, HUGE),
        map(&mut two, &mut memory, HUGE),
    );
    assert_eq!(starts.0, starts.1, "the same address in both");
    let mut mmu = mmu(&scheme);
    let mut seen = Vec::new();
    for space in [&mut one, &mut two] {
        access_or_fault(
            &mut mmu,
            space,
            &mut memory,
            &scheme,
            starts.0,
            Access::Write,
        );
        seen.push(space.segment().translate(starts.0));
    }
    assert_ne!(seen[0], seen[1]);
    for (space, expected) in [(&mut one, seen[0]), (&mut two, seen[1])] {
        mmu.dispatch(space.segment(), false);
        let outcome = access(&mut mmu, space, &memory, None, starts.0, Access::Read);
        assert_eq!(outcome.physical(), expected);
    }
}

#[test]
fn instructions_are_not_fetched_through_the_segment() {
    let mut memory = memory(32_768);
    let (scheme, mut space) = process(&mut memory, 0, 4);
    let start = map(&mut space, &mut memory, HUGE);
    let mut mmu = mmu(&scheme);
    access_or_fault(
        &mut mmu,
        &mut space,
        &mut memory,
        &scheme,
        start,
        Access::Write,
    );
    mmu.dispatch(space.segment(), true);
    assert!(matches!(mmu.read(start, ID), Lookup::Hit(_)));
    let outcome = access(&mut mmu, &mut space, &memory, None, start, Access::Execute);
    assert_eq!(outcome, Outcome::Fault);
    // The kernel moves the memory to where it can be fetched from.
    let mut effects = Effects::default();
    assert_eq!(space.expel(start, &mut memory, &mut effects), Ok(true));
    let home = VirtAddr::new(BASE);
    assert_eq!(space.place_of(home).of(home), home);
    let outcome = access_or_fault(
        &mut mmu,
        &mut space,
        &mut memory,
        &scheme,
        home,
        Access::Execute,
    );
    assert!(outcome.physical().is_some());
    assert_eq!(space.validate(&memory), Ok(()));
}

#[test]
fn each_change_of_the_segment_is_one_update_and_leaves_nothing_mapped_twice() {
    let mut memory = memory(32_768);
    let (scheme, mut space) = process(&mut memory, 0, 8);
    let start = map(&mut space, &mut memory, 8 * HUGE);
    let mut effects = Effects::default();
    let policy = scheme.policy();
    space
        .fault(start + 3 * HUGE, true, &*policy, &mut memory, &mut effects)
        .unwrap();
    assert_eq!(effects.segment_updates, 1);
    assert_eq!(space.segment().bytes(), 4 * HUGE);
    let frames: Vec<_> = (0..4)
        .map(|i| space.segment().translate(start + i * HUGE))
        .collect();
    effects.clear();
    space
        .shrink_segment(start + 2 * HUGE, &mut memory, &mut effects)
        .unwrap();
    assert_eq!(effects.segment_updates, 1);
    assert!(
        effects.invalidations.is_empty(),
        "both say the same while it shrinks"
    );
    for (page, frame) in frames.iter().enumerate().skip(2) {
        let at = start + page as u64 * HUGE;
        assert_eq!(space.segment().translate(at), None);
        assert_eq!(space.translation(at).map(|leaf| leaf.physical(at)), *frame);
    }
    for page in 0..2 {
        let at = start + page * HUGE;
        assert!(space.segment().translate(at).is_some() && space.translation(at).is_none());
    }
    assert_eq!(space.validate(&memory), Ok(()));
}

#[test]
fn when_too_little_is_contiguous_the_front_is_a_segment_and_the_rest_is_paged() {
    let mut memory = memory(32_768);
    // Every fourth block holds something that cannot move.
    for block in (0..64).step_by(4) {
        let frame = contigua_units::Frame::new(block * 512 + 511);
        memory
            .allocate_at(frame, contigua_frames::FrameClass::KernelOther)
            .unwrap();
    }
    let scheme = scheme("direct-segment", "");
    let mut space = AddressSpace::new(ID, &mut memory).unwrap();
    space.reserve_primary(64 << 20, Eligible::ByDefault, 1);
    let taken = space.take_chunk(16 * HUGE, &mut memory, &mut ());
    assert_eq!(taken, 3 * HUGE);
    let start = map(&mut space, &mut memory, 8 * HUGE);
    let mut mmu = mmu(&scheme);
    for page in 0..8 {
        let at = start + page * HUGE + 5 * PAGE_BYTES;
        access_or_fault(
            &mut mmu,
            &mut space,
            &mut memory,
            &scheme,
            at,
            Access::Write,
        );
        assert_eq!(space.segment().translate(at).is_some(), page < 3);
        assert_eq!(space.translation(at).is_some(), page >= 3);
    }
    assert_eq!(space.validate(&memory), Ok(()));
}

#[test]
fn a_sparse_heap_costs_a_hundred_times_the_memory_of_paging() {
    let mut memory = memory(32_768);
    let touch = |space: &mut AddressSpace, memory: &mut Memory, start, scheme: &SchemeConfig| {
        let mut effects = Effects::default();
        for page in (0..32 * 512).step_by(100) {
            let at = start + page * PAGE_BYTES;
            if space.segment().translate(at).is_none() {
                space
                    .fault(at, true, &*scheme.policy(), memory, &mut effects)
                    .unwrap();
            }
        }
        space.resident().bytes().get()
    };
    let (segmented, mut one) = process(&mut memory, 0, 32);
    let start = map(&mut one, &mut memory, 32 * HUGE);
    let in_segment = touch(&mut one, &mut memory, start, &segmented);
    one.destroy(&mut memory, &mut Effects::default());
    let paged = scheme("base", "");
    let mut two = space(&paged, &mut memory);
    let start = map(&mut two, &mut memory, 32 * HUGE);
    let in_pages = touch(&mut two, &mut memory, start, &paged);
    let ratio = in_segment as f64 / in_pages as f64;
    assert!((99.0..=101.0).contains(&ratio), "{ratio}");
}

/// References of one access, with nothing cached, in a virtual machine.
fn nested_references(guest: &SchemeConfig, host: &SchemeConfig) -> (usize, Cycles) {
    let mut inner = memory(32_768);
    let (mut process, start) = if guest.primary().is_some() {
        let (_, mut space) = process(&mut inner, 0, 4);
        let start = map(&mut space, &mut inner, HUGE);
        (space, start)
    } else {
        let mut space = space(guest, &mut inner);
        let start = map(&mut space, &mut inner, HUGE);
        (space, start)
    };
    let mut outer = memory(65_536);
    let mut machine = space(host, &mut outer);
    let all = VirtRange::with_length(VirtAddr::new(0), 128 << 20);
    if host.primary().is_some() {
        machine.reserve_machine(all, 1);
        machine.take_chunk(128 << 20, &mut outer, &mut ());
    } else {
        let effects = &mut Effects::default();
        machine
            .map(all, Vma::ANONYMOUS, &mut outer, effects)
            .unwrap();
    }
    // Everything is mapped beforehand.
    let effects = &mut Effects::default();
    if process.segment().translate(start).is_none() {
        process
            .fault(start, true, &*guest.policy(), &mut inner, effects)
            .unwrap();
    }
    let mut at = VirtAddr::new(0);
    while at < all.end {
        if machine.segment().translate(at).is_none() && machine.table().leaf(at).is_none() {
            machine
                .fault(at, true, &*host.policy(), &mut outer, effects)
                .unwrap();
        }
        at = at + PAGE_BYTES;
    }
    let mut mmu = mmu_without_walk_caches(guest, true);
    mmu.dispatch(process.segment().then(&machine.segment()), true);
    let host = Some((&mut machine, &outer));
    match access(&mut mmu, &mut process, &inner, host, start, Access::Read) {
        Outcome::Hit(_) => (0, Cycles::ZERO),
        Outcome::Translated(_, time, references) => (references.len(), time),
        Outcome::Fault => panic!("everything is mapped"),
    }
}

#[test]
fn a_virtual_machine_walks_in_as_many_dimensions_as_have_no_segment() {
    let base = scheme("base", "");
    let thp = scheme("thp", "");
    let segmented = scheme("direct-segment", "");
    let time = |references: u64| Cycles::new(L2_LATENCY + 100 * references);
    // Direct Segments, section 2: 24 references; (g + 1)(h + 1) - 1 for pages of 2 MB.
    assert_eq!(nested_references(&base, &base), (24, time(24)));
    assert_eq!(nested_references(&thp, &thp), (15, time(15)));
    assert_eq!(nested_references(&base, &thp), (19, time(19)));
    // Section 6: a segment in either dimension leaves one to walk, in both none.
    assert_eq!(nested_references(&base, &segmented), (4, time(4)));
    assert_eq!(nested_references(&segmented, &base), (4, time(4)));
    assert_eq!(nested_references(&segmented, &segmented), (0, Cycles::ZERO));
}
