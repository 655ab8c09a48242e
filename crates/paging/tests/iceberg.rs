//! Placement by hashes: when does the first page find no frame, and what stands for a frame?

mod common;

use std::collections::BTreeSet;

use common::Small;
use contigua_frames::{
    Boxed, Config, Evict, FrameClass, Frames, Group, Layout, Placement, Request,
};
use contigua_paging::{AddressSpace, Buckets, Effects, Memory, SpaceId, TableShape, Vma};
use contigua_units::{Bytes, Frame, Order, PAGE_BYTES, VirtAddr, VirtRange};

/// 1 GB.
const FRAMES: u64 = 1 << 18;
const PAGES: u64 = FRAMES;
const FIRST: u64 = 0x7_f000_0000;

fn memory(frames: u64) -> Memory {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let layout = Layout::new(frames as usize, 1, 1);
    let frames = Frames::new(Boxed::new(layout), config, Placement::default()).unwrap();
    frames.into()
}

/// Share of memory in use, in percent, when the first page finds all of its frames in use.
fn first_conflict(space: SpaceId, first: u64, stride: u64) -> f64 {
    let mut memory = memory(FRAMES);
    let buckets = Buckets::of(FRAMES);
    let placed = (0..PAGES)
        .take_while(|page| {
            let page = first + page * stride;
            buckets.take(space, page, &mut memory).is_some()
        })
        .count();
    assert_eq!(memory.total() - memory.free_frames(), placed as u64);
    100.0 * placed as f64 / FRAMES as f64
}

#[test]
fn the_first_conflict_comes_when_98_percent_of_memory_are_in_use() {
    // The paper's abstract: never before 98 %.
    for (space, first, stride) in [(1, FIRST, 1), (2, 0, 1), (3, FIRST, 16), (77, 1 << 30, 512)] {
        let used = first_conflict(SpaceId(space), first, stride);
        assert!((97.5..99.5).contains(&used), "{used} %, stride {stride}");
    }
}

#[test]
fn a_page_has_104_frames_and_a_number_for_each() {
    let buckets = Buckets::of(FRAMES);
    let space = SpaceId(3);
    assert_eq!(Buckets::CANDIDATES, 104);
    for page in (0..20_000).map(|page| FIRST + 7 * page) {
        let mut frames = BTreeSet::new();
        for number in 0..Buckets::CANDIDATES {
            let frame = buckets.frame(space, page, number).unwrap();
            assert!(u64::from(frame.get()) < FRAMES);
            assert_eq!(buckets.number(space, page, frame), Some(number));
            frames.insert(frame);
        }
        assert_eq!(frames.len(), 104, "page {page}");
        for number in Buckets::CANDIDATES..=u8::MAX {
            assert_eq!(buckets.frame(space, page, number), None);
        }
    }
    // Of all frames, a page has those.
    let all = (0..FRAMES as u32).map(Frame::new);
    let named = all.filter(|&frame| buckets.number(space, FIRST, frame).is_some());
    assert_eq!(named.count(), 104);
}

#[test]
fn pages_of_any_memory_are_placed_where_their_numbers_say() {
    // Down to a bucket, which has no six parts.
    for frames in [0, 1, 64, 100, 64 * 5, 64 * 7 + 3, 4096] {
        let mut memory = memory(4096);
        let buckets = Buckets::of(frames);
        for page in 0..4096 {
            let Some(frame) = buckets.take(SpaceId(0), page, &mut memory) else {
                continue;
            };
            assert!(u64::from(frame.get()) < frames);
            let number = buckets.number(SpaceId(0), page, frame).unwrap();
            assert_eq!(buckets.frame(SpaceId(0), page, number), Some(frame));
        }
    }
}

#[test]
fn faults_place_pages_by_hashes_and_anywhere_after_a_conflict() {
    const MAPPED: u64 = 16_000;
    let mut memory = memory(16_384);
    // Every third frame of the first half is another's.
    let request = Request::new(Order::BASE, FrameClass::KernelOther);
    let others: Vec<_> = (0..8192)
        .filter_map(|_| memory.allocate(&request))
        .collect();
    for (at, &frame) in others.iter().enumerate() {
        if at % 3 > 0 {
            memory.free(frame).unwrap();
        }
    }
    let buckets = Buckets::of(memory.total());
    let shape = TableShape {
        buckets: Some(buckets),
        ..TableShape::default()
    };
    let mut space = AddressSpace::with(SpaceId(4), shape, &mut memory).unwrap();
    assert_eq!(space.shape().buckets, Some(buckets));
    let start = VirtAddr::new(FIRST * PAGE_BYTES);
    let range = VirtRange::with_length(start, MAPPED * PAGE_BYTES);
    let mut effects = Effects::default();
    space
        .map(range, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    let (mut elsewhere, mut before) = (0, None);
    for page in 0..13_000 {
        let at = start + page * PAGE_BYTES;
        space
            .fault(at, true, &Small, &mut memory, &mut effects)
            .unwrap();
        let frame = space.table().leaf(at).unwrap().frame;
        let number = buckets.number(space.id(), at.page().get(), frame);
        elsewhere += u64::from(number.is_none());
        if effects.conflicts > 0 && before.is_none() {
            before = Some(page);
        }
    }
    // A page that is placed anywhere may lie in one of its frames by chance only if these were kept at hand.
    assert_eq!(elsewhere, effects.conflicts);
    assert_eq!(elsewhere, effects.misplaced);
    let before = before.expect("memory was nearly full");
    assert!(before > 9000, "the first conflict was at page {before}");
    space.validate(&memory).unwrap();
}

/// A space whose pages are placed in buckets, with one mapping of so many pages.
fn placed(id: u16, pages: u64, memory: &mut Memory) -> AddressSpace {
    let shape = TableShape {
        buckets: Some(Buckets::of(memory.total())),
        ..TableShape::default()
    };
    let mut space = AddressSpace::with(SpaceId(id), shape, memory).unwrap();
    let range = VirtRange::with_length(VirtAddr::new(FIRST * PAGE_BYTES), pages * PAGE_BYTES);
    space
        .map(range, Vma::ANONYMOUS, memory, &mut Effects::default())
        .unwrap();
    space
}

/// Number of the frame that a fault maps at a page.
fn fault(space: &mut AddressSpace, page: u64, write: bool, memory: &mut Memory) -> Option<u8> {
    let at = VirtAddr::new((FIRST + page) * PAGE_BYTES);
    let mut effects = Effects::default();
    space
        .fault(at, write, &Small, memory, &mut effects)
        .unwrap();
    let frame = space.table().leaf(at).unwrap().frame;
    Buckets::of(memory.total()).number(space.id(), FIRST + page, frame)
}

#[test]
fn copies_and_first_writes_after_reads_are_placed_by_hashes() {
    const MAPPED: u64 = 256;
    let mut memory = memory(16_384);
    let mut space = placed(4, MAPPED, &mut memory);
    for page in 0..MAPPED {
        // The zero page is nobody's.
        fault(&mut space, page, false, &mut memory);
        assert!(fault(&mut space, page, true, &mut memory).is_some());
    }
    let mut effects = Effects::default();
    let mut child = space.fork(SpaceId(5), &mut memory, &mut effects).unwrap();
    assert_eq!(child.shape(), space.shape());
    for page in 0..MAPPED {
        let number = fault(&mut child, page, true, &mut memory);
        assert!(number.is_some(), "page {page} of the child");
    }
    child.validate(&memory).unwrap();
    space.validate(&memory).unwrap();
}

#[test]
fn a_frame_that_a_cpu_keeps_at_hand_is_found_before_a_conflict() {
    let mut memory = memory(4096);
    let mut space = placed(4, 2, &mut memory);
    // Page tables are there from then on.
    assert!(fault(&mut space, 0, true, &mut memory).is_some());
    let request = Request::new(Order::BASE, FrameClass::KernelOther);
    while memory.allocate(&request).is_some() {}
    for number in [3, 90] {
        let buckets = Buckets::of(memory.total());
        let frame = buckets.frame(SpaceId(4), FIRST + 1, number).unwrap();
        let others = (0..4096).map(Frame::new);
        let mut others = others.filter(|&other| {
            let class = memory.class(other);
            let is_named = buckets.number(SpaceId(4), FIRST + 1, other).is_some();
            class == Some(FrameClass::KernelOther) && !is_named
        });
        let other = others.next().unwrap();
        memory.free(frame).unwrap();
        // This one is taken first by who asks for any.
        memory.free(other).unwrap();
        assert!(!memory.is_free(frame), "it is kept at hand");
        assert_eq!(fault(&mut space, 1, true, &mut memory), Some(number));
        let one = VirtAddr::new((FIRST + 1) * PAGE_BYTES);
        let one = VirtRange::with_length(one, PAGE_BYTES);
        let mut effects = Effects::default();
        space.discard(one, &mut memory, &mut effects).unwrap();
        while memory.allocate(&request).is_some() {}
    }
}

#[test]
fn a_page_of_a_file_is_evicted_from_one_of_the_frames_and_nothing_else_is() {
    for (evict, is_used, expected) in [
        (Evict::File, false, true),
        (Evict::File, true, false),
        (Evict::Never, false, false),
        (Evict::Swap, false, false),
    ] {
        let mut memory = memory(4096);
        let mut space = placed(4, 2, &mut memory);
        fault(&mut space, 0, true, &mut memory);
        memory.set_evict(Group(0), evict);
        let request = Request {
            group: Some(Group(0)),
            ..Request::new(Order::BASE, FrameClass::PageCache)
        };
        while let Some(frame) = memory.allocate(&request) {
            if is_used {
                memory.touch(frame).unwrap();
            }
        }
        let before = memory.frames_in(Group(0));
        let at = VirtAddr::new((FIRST + 1) * PAGE_BYTES);
        let mut effects = Effects::default();
        let done = space.fault(at, true, &Small, &mut memory, &mut effects);
        assert_eq!(effects.conflicts, 1, "{evict:?}");
        assert_eq!(effects.misplaced, u64::from(!expected), "{evict:?}");
        if expected {
            done.unwrap();
            assert_eq!(memory.frames_in(Group(0)), before - 1);
            let frame = space.table().leaf(at).unwrap().frame;
            let buckets = Buckets::of(memory.total());
            let number = buckets.number(space.id(), FIRST + 1, frame);
            assert!(number.is_some());
            memory.validate().unwrap();
        }
    }
}

#[test]
fn pages_of_an_empty_server_use_all_sets_of_its_caches() {
    const PLACED: u64 = 5600;
    let mut memory = memory(FRAMES);
    let buckets = Buckets::of(FRAMES);
    let mut slots = [0_u64; 64];
    for page in 0..PLACED {
        let frame = buckets.take(SpaceId(1), FIRST + page, &mut memory).unwrap();
        slots[frame.get() as usize % 64] += 1;
    }
    let mean = PLACED / 56;
    for (slot, &count) in slots.iter().enumerate() {
        let expected = if slot < 56 {
            mean / 2..=mean * 2
        } else {
            0..=0
        };
        assert!(expected.contains(&count), "{count} pages in frames {slot}");
    }
}
