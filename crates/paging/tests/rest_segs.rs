//! Restrictive segments: where may a page lie there, what do the tags say, and who leaves a full set?

mod common;

use std::collections::BTreeSet;

use common::Small;
use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement, Request};
use contigua_paging::{AddressSpace, Effects, Memory, RestSegPlan, Room, SpaceId, TableShape, Vma};
use contigua_units::{Bytes, Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

const FIRST: u64 = 0x7_f000_0000;
const MB: u64 = 1 << 20;

fn memory(bytes: u64) -> Memory {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let layout = Layout::new((bytes / PAGE_BYTES) as usize, 1, 1);
    let frames = Frames::new(Boxed::new(layout), config, Placement::default()).unwrap();
    frames.into()
}

/// A segment of 4 KB pages, at boot.
fn plan(bytes: u64, ways: u32) -> RestSegPlan {
    RestSegPlan {
        size: PageSize::Size4K,
        bytes,
        ways,
        from_boot: true,
    }
}

/// A server with such a segment.
fn server(memory_bytes: u64, bytes: u64, ways: u32) -> Memory {
    let mut memory = memory(memory_bytes);
    memory.take_rest_segs(&[plan(bytes, ways)], true, &mut ());
    memory
}

fn space(id: u16, pages: u64, memory: &mut Memory) -> AddressSpace {
    let mut space = AddressSpace::with(SpaceId(id), TableShape::default(), memory).unwrap();
    let all = VirtRange::with_length(VirtAddr::new(FIRST), pages * PAGE_BYTES);
    let mut effects = Effects::default();
    space
        .map(all, Vma::ANONYMOUS, memory, &mut effects)
        .unwrap();
    space
}

fn at(page: u64) -> VirtAddr {
    VirtAddr::new(FIRST + page * PAGE_BYTES)
}

fn touch(space: &mut AddressSpace, pages: u64, memory: &mut Memory) -> Effects {
    let mut effects = Effects::default();
    for page in 0..pages {
        space
            .fault(at(page), true, &Small, memory, &mut effects)
            .unwrap();
    }
    effects
}

fn frame_of(space: &AddressSpace, page: u64) -> Frame {
    space.table().leaf(at(page)).unwrap().frame
}

/// The TAR's frame of a page.
fn tag(space: &AddressSpace, page: u64, memory: &mut Memory) -> Option<Frame> {
    memory.rest_segs.segments[0].find(space.id(), at(page))
}

#[test]
fn a_segment_is_contiguous_and_holds_its_own_tables() {
    for (bytes, ways) in [(2 * MB, 16), (8 * MB, 16), (8 * MB, 1), (32 * MB, 5)] {
        let mut memory = server(64 * MB, bytes, ways);
        assert_eq!(memory.total() - memory.free_frames(), bytes / PAGE_BYTES);
        // It lies at the end of memory, away from borders of regions.
        let first = (memory.total() - bytes / PAGE_BYTES) as u32;
        assert!((0..first).all(|frame| memory.is_free(Frame::new(frame))));
        let segment = &mut memory.rest_segs.segments[0];
        // 4 bytes and part of a byte for each page: 0.1 %, and less than a set and a page are lost.
        let most = bytes / PAGE_BYTES;
        let left = most - segment.capacity();
        assert!(left <= most / 500 + 2 + u64::from(ways), "{left} of {most}");
        let id = SpaceId(0);
        let lines: BTreeSet<_> = (0..most)
            .map(|page| segment.tags_address(id, at(page)))
            .collect();
        assert_eq!(lines.len() as u64, segment.capacity() / u64::from(ways));
        // Tables begin behind the last page and end with the segment.
        let end = lines.last().unwrap().get() + u64::from(ways) * 4;
        let filters = (0..most).map(|page| segment.filter_address(id, at(page)).get());
        assert!(filters.clone().min().unwrap() >= end);
        assert!(filters.max().unwrap() < lines.first().unwrap().get() + bytes);
        assert_eq!(memory.validate(), Ok(()));
    }
}

#[test]
fn pages_lie_in_their_sets_until_these_are_full() {
    let mut memory = server(64 * MB, 8 * MB, 16);
    let capacity = memory.rest_segs.segments[0].capacity();
    let mut space = space(1, 2 * capacity, &mut memory);
    // Consecutive pages fill all sets evenly: none meets a full one before all are.
    let effects = touch(&mut space, capacity, &mut memory);
    assert_eq!((effects.restricted, effects.sets_full), (capacity, 0));
    let base = memory.rest_segs.segments[0].pages().map(|page| page.2);
    let base = base.min().unwrap();
    for page in 0..capacity {
        let frame = frame_of(&space, page);
        assert_eq!(tag(&space, page, &mut memory), Some(frame));
        // Ways of a set are neighbors, sets follow one another.
        let set = |frame: Frame| u64::from(frame.get() - base.get()) / 16;
        let sets = capacity / 16;
        let next = frame_of(&space, (page + 1) % capacity);
        assert_eq!(set(next), (set(frame) + 1) % sets, "page {page}");
    }
    // The rest lies elsewhere, and nothing is evicted for it.
    let mut effects = Effects::default();
    for page in capacity..capacity + 100 {
        space
            .fault(at(page), true, &Small, &mut memory, &mut effects)
            .unwrap();
        assert_eq!(tag(&space, page, &mut memory), None);
    }
    assert_eq!((effects.restricted, effects.sets_full), (0, 100));
    assert_eq!(space.validate(&memory), Ok(()));
    assert_eq!(memory.rest_segs.segments[0].validate(), Ok(()));
}

#[test]
fn pages_of_a_set_use_all_of_its_ways_first() {
    // Else all pages lie in the same sets of the caches.
    let mut memory = server(64 * MB, 8 * MB, 16);
    let sets = memory.rest_segs.segments[0].capacity() / 16;
    let mut space = space(1, sets, &mut memory);
    touch(&mut space, sets, &mut memory);
    let ways = (0..sets).map(|page| frame_of(&space, page).get() % 16);
    let mut used = [0; 16];
    ways.for_each(|way| used[way as usize] += 1);
    assert!(used.iter().all(|&count| count > 0), "{used:?}");
}

#[test]
fn pages_that_end_give_their_ways_and_tags_back() {
    let mut memory = server(64 * MB, 8 * MB, 16);
    let free = memory.free_frames();
    let capacity = memory.rest_segs.segments[0].capacity();
    for round in 0..3 {
        let mut space = space(round, capacity, &mut memory);
        let effects = touch(&mut space, capacity, &mut memory);
        assert_eq!(effects.restricted, capacity, "round {round}");
        let mut effects = Effects::default();
        let half = VirtRange::with_length(at(0), capacity / 2 * PAGE_BYTES);
        space.discard(half, &mut memory, &mut effects).unwrap();
        assert_eq!(tag(&space, 0, &mut memory), None);
        let segment = &memory.rest_segs.segments[0];
        assert_eq!(segment.pages().count() as u64, capacity - capacity / 2);
        space.destroy(&mut memory, &mut effects);
        let segment = &memory.rest_segs.segments[0];
        assert_eq!(segment.pages().count(), 0);
        assert_eq!(segment.pages_in_set(SpaceId(round), at(0)), 0);
    }
    assert_eq!(memory.free_frames(), free);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn a_costly_page_moves_into_its_set_and_the_page_used_last_leaves() {
    let mut memory = server(64 * MB, 2 * MB, 4);
    let segment = &memory.rest_segs.segments[0];
    let (capacity, sets) = (segment.capacity(), segment.capacity() / 4);
    let mut space = space(1, 2 * capacity, &mut memory);
    touch(&mut space, capacity + 1, &mut memory);
    let costly = capacity;
    let set: Vec<u64> = (0..4).map(|way| way * sets).collect();
    // All pages of its set but one were used since.
    for &page in &set[..3] {
        assert!(tag(&space, page, &mut memory).is_some());
    }
    let room = memory.room_for(space.id(), at(costly));
    assert_eq!(room, Room::Behind(space.id(), at(set[3])));
    let mut effects = Effects::default();
    // Nothing moves into a full set.
    assert!(!space.restrict(at(costly), &mut memory, &mut effects));
    assert!(space.release_restricted(at(set[3]), &mut memory, &mut effects));
    assert_eq!(tag(&space, set[3], &mut memory), None);
    assert_eq!(memory.room_for(space.id(), at(costly)), Room::Free);
    assert!(space.restrict(at(costly), &mut memory, &mut effects));
    let frame = frame_of(&space, costly);
    assert_eq!(tag(&space, costly, &mut memory), Some(frame));
    // Both copies are made and told of.
    assert_eq!(effects.copied_4k, 2);
    let page = |page| VirtRange::with_length(at(page), PAGE_BYTES);
    assert_eq!(effects.invalidations, [page(set[3]), page(costly)]);
    // It is there: it does not move again.
    assert!(!space.restrict(at(costly), &mut memory, &mut effects));
    assert_eq!(space.validate(&memory), Ok(()));
    assert_eq!(memory.rest_segs.segments[0].validate(), Ok(()));
}

#[test]
fn pages_that_others_see_or_devices_use_stay() {
    let mut memory = server(64 * MB, 2 * MB, 1);
    let capacity = memory.rest_segs.segments[0].capacity();
    let mut parent = space(1, 2 * capacity, &mut memory);
    touch(&mut parent, capacity + 2, &mut memory);
    let mut effects = Effects::default();
    memory.pin(frame_of(&parent, 1), &mut ()).unwrap();
    assert!(!parent.release_restricted(at(1), &mut memory, &mut effects));
    let child = parent.fork(SpaceId(2), &mut memory, &mut effects).unwrap();
    assert!(!parent.release_restricted(at(0), &mut memory, &mut effects));
    assert!(!parent.restrict(at(capacity), &mut memory, &mut effects));
    // The tag is the parent's; the child has page tables for the frame.
    assert_eq!(frame_of(&child, 0), frame_of(&parent, 0));
    assert!(tag(&parent, 0, &mut memory).is_some());
    assert_eq!(tag(&child, 0, &mut memory), None);
    let gone = VirtRange::with_length(at(0), PAGE_BYTES);
    parent.discard(gone, &mut memory, &mut effects).unwrap();
    assert_eq!(tag(&parent, 0, &mut memory), None);
    child.destroy(&mut memory, &mut effects);
    assert_eq!(memory.rest_segs.segments[0].validate(), Ok(()));
    // The way can be used again.
    assert_eq!(memory.room_for(SpaceId(1), at(0)), Room::Free);
}

#[test]
fn contiguous_memory_is_not_for_nothing() {
    // A frame in use in every 8 MB: what does not move leaves runs of less.
    let mut memory = memory(64 * MB);
    for frame in (1024..64 * MB / PAGE_BYTES).step_by(2048) {
        memory
            .allocate_at(Frame::new(frame as u32), FrameClass::KernelOther)
            .unwrap();
    }
    let free = memory.free_frames();
    memory.take_rest_segs(&[plan(32 * MB, 16)], true, &mut ());
    let segment = &memory.rest_segs.segments[0];
    assert_eq!(segment.bytes(), 6 * MB);
    assert_eq!(free - memory.free_frames(), 6 * MB / PAGE_BYTES);
    // Where every 2 MB has one, there is no segment, and nothing is lost.
    let mut memory = self::memory(64 * MB);
    for frame in (7..64 * MB / PAGE_BYTES).step_by(512) {
        memory
            .allocate_at(Frame::new(frame as u32), FrameClass::KernelOther)
            .unwrap();
    }
    let free = memory.free_frames();
    memory.take_rest_segs(&[plan(32 * MB, 16)], true, &mut ());
    assert!(memory.rest_segs.segments.is_empty());
    assert_eq!(memory.free_frames(), free);
    // A segment of no memory takes none.
    let mut memory = self::memory(64 * MB);
    memory.take_rest_segs(&[plan(MB, 16)], true, &mut ());
    assert_eq!(memory.free_frames(), memory.total());
    // What is to be taken later is not taken at boot.
    let mut memory = self::memory(64 * MB);
    memory.take_rest_segs(&[plan(32 * MB, 16)], false, &mut ());
    assert!(memory.rest_segs.segments.is_empty());
}

#[test]
fn pages_of_a_segment_do_not_move_when_memory_is_compacted() {
    let mut memory = server(16 * MB, 4 * MB, 16);
    let capacity = memory.rest_segs.segments[0].capacity();
    let mut space = space(1, capacity, &mut memory);
    touch(&mut space, capacity, &mut memory);
    let before: Vec<_> = (0..capacity).map(|page| frame_of(&space, page)).collect();
    // Scattered frames in the rest, of which compaction makes a block.
    let request = Request::new(Order::BASE, FrameClass::Anonymous);
    let taken: Vec<_> = std::iter::from_fn(|| memory.allocate(&request)).collect();
    for &frame in taken.iter().step_by(2) {
        memory.free(frame).unwrap();
    }
    let mut moves = Vec::new();
    memory.compact_for(Order::HUGE_2M, &mut moves);
    assert!(moves.iter().all(|moved| !before.contains(&moved.from)));
    assert!((0..capacity).all(|page| memory.owner(before[page as usize]).is_none()));
}
