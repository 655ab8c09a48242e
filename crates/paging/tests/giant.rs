//! Are pages of 1 GB made of free ranges at faults, and of the emptiest ones in the background?

use contigua_frames::{
    BLOCK_FRAMES, Boxed, Config, FrameClass, Frames, Group, Layout, Move, Pick, Placement, Request,
};
use contigua_paging::{
    AddressSpace, CollapseContext, Effects, FaultContext, MappingPolicy, Memory, SpaceId, Vma,
};
use contigua_units::{Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};

const BASE: u64 = 1 << 40;
const GIANT: u64 = 1 << 30;
const FRAMES: u32 = (GIANT / PAGE_BYTES) as u32;

struct Giant {
    at_faults: bool,
    least: u64,
}

impl MappingPolicy for Giant {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        if self.at_faults {
            context.fits
        } else {
            PageSize::Size4K
        }
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }

    fn takes_giant(&self) -> bool {
        self.at_faults
    }

    fn makes_giant(&self, _: Vma, present: u64) -> bool {
        present >= self.least
    }
}

fn memory(giants: u32) -> Memory {
    let layout = Layout::new((giants * FRAMES) as usize, 1, 1);
    let config = Config::default();
    let frames = Frames::new(Boxed::new(layout), config, Placement::default()).unwrap();
    frames.into()
}

fn space(giants: u64, memory: &mut Memory) -> AddressSpace {
    let mut space = AddressSpace::new(SpaceId(0), memory).unwrap();
    let all = VirtRange::with_length(VirtAddr::new(BASE), giants * GIANT);
    space
        .map(all, Vma::ANONYMOUS, memory, &mut Effects::default())
        .unwrap();
    space
}

/// Takes single frames of a range of 1 GB, which stay where they are, or may move.
fn occupy(range: u32, count: u32, class: FrameClass, memory: &mut Memory) {
    let step = FRAMES / count;
    for i in 0..count {
        let frame = Frame::new(range * FRAMES + i * step);
        let request = Request {
            group: Some(Group(0)),
            ..Request::new(Order::BASE, class)
        };
        memory.allocate_block_at(frame, &request).unwrap();
    }
}

#[test]
fn a_fault_maps_1_gb_only_where_a_range_is_free() {
    let mut memory = memory(3);
    let policy = Giant {
        at_faults: true,
        least: u64::MAX,
    };
    let mut space = space(3, &mut memory);
    // The kernel's own pages, tables among them, lie in one; something else in another.
    let of_range = (FRAMES / BLOCK_FRAMES) as usize;
    let ranges = memory.pageblocks().chunks(of_range);
    let kernel = ranges.map(|range| range.iter().any(|block| block.unmovable() > 0));
    let other = kernel.take(3).position(|is_kernel| !is_kernel).unwrap() as u32;
    occupy(other, 1, FrameClass::PageCache, &mut memory);
    let mut effects = Effects::default();
    let mut sizes = Vec::new();
    for giant in 0..3 {
        let at = VirtAddr::new(BASE + giant * GIANT + 12345);
        let fault = space.fault(at, true, &policy, &mut memory, &mut effects);
        sizes.push(fault.unwrap().size);
    }
    let giants = sizes
        .iter()
        .filter(|&&size| size == PageSize::Size1G)
        .count() as u64;
    assert_eq!(giants, 1, "{sizes:?}");
    assert!(sizes.contains(&PageSize::Size2M));
    assert_eq!(
        (effects.giants, effects.giants_failed),
        (giants, 3 - giants)
    );
    space.validate(&memory).unwrap();
    space.destroy(&mut memory, &mut effects);
    memory.validate().unwrap();
}

/// Ranges of which the first has unmovable memory, and the third is the emptiest.
fn uneven() -> Memory {
    let mut memory = memory(5);
    occupy(0, 1, FrameClass::KernelOther, &mut memory);
    occupy(1, 2000, FrameClass::PageCache, &mut memory);
    occupy(2, 300, FrameClass::PageCache, &mut memory);
    occupy(3, 1000, FrameClass::PageCache, &mut memory);
    occupy(4, 5000, FrameClass::PageCache, &mut memory);
    memory
}

/// Takes 1 GB; returns its number, and the frames moved.
fn take(pick: Pick, most: u32, memory: &mut Memory) -> (Option<u32>, u64) {
    let mut moves: Vec<Move> = Vec::new();
    let before = memory.counters().frames_moved_from_isolated;
    let found = memory.take_giant(pick, most, &mut moves);
    memory.validate().unwrap();
    let moved = memory.counters().frames_moved_from_isolated - before;
    (found.map(|frame| frame.get() / FRAMES), moved)
}

#[test]
fn the_emptiest_range_without_unmovable_memory_is_emptied() {
    let mut memory = uneven();
    assert_eq!(take(Pick::Emptiest, 299, &mut memory), (None, 0));
    assert_eq!(take(Pick::Emptiest, 300, &mut memory), (Some(2), 300));
    let (next, moved) = take(Pick::Emptiest, FRAMES, &mut memory);
    // Where the 300 went is not known.
    assert!(
        next == Some(3) && (1000..=1300).contains(&moved),
        "{next:?} {moved}"
    );
}

#[test]
fn ranges_are_emptied_by_address_without_smart_compaction() {
    let mut memory = uneven();
    assert_eq!(take(Pick::First, 1999, &mut memory), (Some(2), 300));
    let mut memory = uneven();
    assert_eq!(take(Pick::First, FRAMES, &mut memory), (Some(1), 2000));
}

#[test]
fn the_next_range_is_emptied_where_something_stays() {
    let mut memory = uneven();
    // Movable, but nobody knows who has it.
    let frame = Frame::new(3 * FRAMES - 1);
    let request = Request::new(Order::BASE, FrameClass::Anonymous);
    memory.allocate_block_at(frame, &request).unwrap();
    let (found, moved) = take(Pick::Emptiest, FRAMES, &mut memory);
    assert_eq!(found, Some(3));
    assert!((1300..=1600).contains(&moved), "{moved}");
    let mut memory = uneven();
    memory.allocate_block_at(frame, &request).unwrap();
    let (found, moved) = take(Pick::Emptiest, 1200, &mut memory);
    assert!(
        found.is_none() && moved >= 300,
        "what moved in vain counts: {moved}"
    );
}

#[test]
fn a_free_range_is_taken_only_above_the_low_watermark() {
    for (spare, expected) in [(0, None), (16_384, Some(1))] {
        let mut memory = memory(2);
        let request = Request::new(Order::BUDDY_MAX, FrameClass::PageCache);
        let frames = Order::BUDDY_MAX.frames();
        for at in (spare..FRAMES).step_by(frames as usize) {
            memory.allocate_block_at(Frame::new(at), &request).unwrap();
        }
        let found = memory.take_giant(Pick::First, 0, &mut ());
        assert_eq!(found.map(|frame| frame.get() / FRAMES), expected);
    }
}

#[test]
fn pages_of_1_gb_are_made_of_what_is_used_enough() {
    let mut memory = memory(4);
    let free = memory.free_frames();
    let policy = Giant {
        at_faults: false,
        least: 1000,
    };
    let mut space = space(3, &mut memory);
    let mut effects = Effects::default();
    for (giant, used) in [(0, 999), (1, 1000), (2, 1)] {
        for page in 0..used {
            let at = VirtAddr::new(BASE + giant * GIANT + page * 7 * PAGE_BYTES);
            space
                .fault(at, true, &policy, &mut memory, &mut effects)
                .unwrap();
        }
    }
    effects.clear();
    let found = space.next_giant(&policy, &memory);
    assert_eq!(found, Some(VirtAddr::new(BASE + GIANT)));
    assert_eq!(
        space.next_giant(&policy, &memory),
        None,
        "then from the start"
    );
    let frame = memory.take_giant(Pick::Emptiest, FRAMES, &mut ()).unwrap();
    space
        .promote_giant(found.unwrap(), frame, &policy, &mut memory, &mut effects)
        .unwrap();
    assert_eq!(effects.copied_4k, 1000);
    assert_eq!(effects.zeroed_4k, u64::from(FRAMES) - 1000);
    let resident = space.resident();
    assert_eq!((resident.pages_1g, resident.pages_4k), (1, 1000));
    let leaf = space.table().leaf(VirtAddr::new(BASE + GIANT + 5)).unwrap();
    assert!(leaf.size == PageSize::Size1G && leaf.frame == frame && leaf.writable && leaf.dirty);
    assert!(
        effects
            .invalidations
            .contains(&VirtRange::with_length(found.unwrap(), GIANT))
    );
    space.validate(&memory).unwrap();
    // What is given back of it splits it.
    let part = VirtRange::with_length(VirtAddr::new(BASE + GIANT), 3 * PAGE_BYTES);
    space.discard(part, &mut memory, &mut effects).unwrap();
    assert_eq!(space.resident().pages_1g, 0);
    space.validate(&memory).unwrap();
    space.destroy(&mut memory, &mut effects);
    memory.validate().unwrap();
    assert_eq!(memory.free_frames(), free, "nothing is lost");
}
