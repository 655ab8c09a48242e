//! Do superpageblocks keep unmovable memory together, and movable memory out of its way?

use std::collections::BTreeSet;

use contigua_frames::{
    Boxed, Config, Evict, FrameClass, Frames, Group, Layout, Placement, Request, policies,
};
use contigua_units::{Bytes, Frame, Nanoseconds, Order};

type Memory = Frames<Boxed>;

const FILES: Group = Group(0);
const KEPT: Group = Group(1);
const SLABS: Group = Group(2);

/// 256 MiB in superpageblocks of this size, in MiB, which keep an eighth.
fn memory(size: u64) -> Memory {
    let layout = Layout::new(256 << 8, 4, 1);
    let placement = Placement::Superpageblocks(policies::superpageblocks::Config {
        size: Bytes::new(size << 20),
        reserve_percent: 12.5,
    });
    let config = Config {
        compaction_proactiveness: 0,
        ..Config::default()
    };
    let mut memory = Frames::new(Boxed::new(layout), config, placement).unwrap();
    memory.set_evict(FILES, Evict::File);
    memory
}

fn one(class: FrameClass, group: Group) -> Request {
    Request {
        group: Some(group),
        ..Request::new(Order::BASE, class)
    }
}

fn obtain(memory: &mut Memory, class: FrameClass, group: Group) -> Frame {
    let frame = memory.allocate_or_reclaim(&one(class, group), &mut ());
    frame.unwrap()
}

/// Superpageblocks of 16 MiB that some frames lie in.
fn groups(frames: &[Frame]) -> BTreeSet<usize> {
    frames.iter().map(|frame| frame.index() >> 12).collect()
}

#[test]
fn unmovable_memory_fills_a_tainted_superpageblock_before_it_taints_another() {
    let mut memory = memory(16);
    let mut pages = Vec::new();
    let mut slabs = Vec::new();
    // The programs' memory and the kernel's grow side by side.
    for _ in 0..12_000 {
        pages.push(obtain(&mut memory, FrameClass::Anonymous, KEPT));
        if pages.len() % 2 == 0 {
            slabs.push(obtain(&mut memory, FrameClass::Slab, SLABS));
        }
    }
    // 6,000 frames of two times 4,096.
    assert_eq!(groups(&slabs).len(), 2);
    assert_eq!(memory.superpageblocks(), Some((2, 16)));
    // 12,000 of three times 4,096, all of them clean.
    assert_eq!(groups(&pages).len(), 3);
    assert!(groups(&pages).is_disjoint(&groups(&slabs)));
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn a_superpageblock_is_clean_again_when_its_unmovable_memory_is_gone() {
    let mut memory = memory(16);
    let slab = obtain(&mut memory, FrameClass::Slab, SLABS);
    assert_eq!(memory.superpageblocks(), Some((1, 16)));
    memory.free(slab).unwrap();
    memory.drain_per_cpu();
    assert_eq!(memory.superpageblocks(), Some((0, 16)));
}

#[test]
fn memory_is_reclaimed_before_a_superpageblock_is_tainted() {
    let mut memory = memory(16);
    let slab = one(FrameClass::Slab, SLABS);
    assert_eq!(memory.allocate(&slab), None);
    assert!(memory.allocate_or_reclaim(&slab, &mut ()).is_some());
    assert!(memory.counters().direct_reclaims > 0);
    // What cannot wait taints at once.
    let mut memory = self::memory(16);
    let packet = Request {
        atomic: true,
        ..one(FrameClass::NetworkBuffer, SLABS)
    };
    assert!(memory.allocate(&packet).is_some());
}

/// Full memory: unmovable memory in one superpageblock, of which movable memory has the rest.
fn full(memory: &mut Memory) -> Vec<Frame> {
    obtain(memory, FrameClass::Slab, SLABS);
    let request = one(FrameClass::PageCache, FILES);
    let files = std::iter::from_fn(|| memory.allocate(&request));
    files.collect()
}

#[test]
fn movable_memory_leaves_a_tainted_superpageblock_its_reserve() {
    let mut memory = memory(16);
    let slab = obtain(&mut memory, FrameClass::Slab, SLABS);
    let request = one(FrameClass::PageCache, FILES);
    let files: Vec<_> = std::iter::from_fn(|| memory.allocate(&request)).collect();
    assert!(groups(&files).len() > 1);
    memory.drain_per_cpu();
    let first = slab.index() >> 12 << 3;
    let whole = memory.pageblocks()[first..first + 8].iter();
    let whole = whole.filter(|block| block.free() == 512).count();
    assert_eq!(whole, 1);
}

#[test]
fn the_worker_empties_a_tainted_superpageblock_up_to_its_reserve() {
    let mut memory = memory(16);
    full(&mut memory);
    // The kernel's memory grows into what is kept for it, and the worker keeps more.
    let mut slabs = Vec::new();
    for time in 0..3_000 {
        slabs.push(obtain(&mut memory, FrameClass::Slab, SLABS));
        memory.background(Nanoseconds::new(time), &mut ());
    }
    assert!(memory.counters().frames_moved_from_isolated > 0);
    assert_eq!(memory.superpageblocks(), Some((1, 16)));
    assert_eq!(groups(&slabs).len(), 1);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn in_few_superpageblocks_movable_pageblocks_are_not_taken_over() {
    // With the worker idle, the first more than its reserve is of a movable pageblock that is in use.
    for (size, taken_over) in [(16, true), (64, false)] {
        let mut memory = memory(size);
        full(&mut memory);
        for frame in memory.blocks_in(FILES).step_by(2).collect::<Vec<_>>() {
            memory.free(frame).unwrap();
        }
        memory.drain_per_cpu();
        let slab = one(FrameClass::Slab, SLABS);
        let slabs = std::iter::from_fn(|| memory.allocate(&slab)).count();
        let reserve = if size == 16 { 512 } else { 4 * 512 };
        assert_eq!(slabs > reserve + 600, taken_over, "{slabs}");
        assert_eq!(memory.validate(), Ok(()));
    }
}

#[test]
fn huge_pages_are_taken_from_the_fullest_clean_superpageblock() {
    let mut memory = memory(16);
    let huge = Request::new(Order::HUGE_2M, FrameClass::Anonymous);
    let first = memory.allocate(&huge).unwrap();
    let small = obtain(&mut memory, FrameClass::Anonymous, KEPT);
    let more: Vec<_> = (0..7).map_while(|_| memory.allocate(&huge)).collect();
    assert_eq!(groups(&[first]), groups(&[small]));
    assert_eq!(groups(&more[..6]), groups(&[first]));
    assert_ne!(groups(&more[6..]), groups(&[first]));
}
