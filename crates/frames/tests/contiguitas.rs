//! Does Contiguitas' operating-system half keep its promises? Contiguitas and the article; numbers
//! are those of the properties in the project's design notes ("E-A").

use contigua_frames::{
    BLOCK_FRAMES, Boxed, Config, Error, Evict, FrameClass, Frames, Group, Layout, Owner, Placement,
    Request, policies,
};
use contigua_units::{Bytes, Frame, Nanoseconds, Order, VirtPage};

type Memory = Frames<Boxed>;

const MIB: u64 = 1 << 20;

fn config() -> policies::contiguitas::Config {
    policies::contiguitas::Config {
        unmovable_min: Bytes::new(16 * MIB),
        ..policies::contiguitas::Config::default()
    }
}

fn memory(mebibytes: usize, placement: Placement) -> Memory {
    let layout = Layout::new(mebibytes << 8, 4, 1);
    Frames::new(Boxed::new(layout), Config::default(), placement).unwrap()
}

fn confined(mebibytes: usize) -> Memory {
    memory(mebibytes, Placement::Contiguitas(config()))
}

fn one(class: FrameClass) -> Request {
    Request::new(Order::BASE, class)
}

fn grouped(class: FrameClass, group: u16) -> Request {
    Request {
        group: Some(Group(group)),
        ..one(class)
    }
}

fn border(memory: &Memory) -> u32 {
    memory.border().unwrap().get()
}

/// A block on the other side of the border is no reason not to compact.
#[test]
fn a_free_block_among_unmovable_memory_is_none_for_programs() {
    let mut memory = confined(64);
    assert!(memory.has_free_block(Order::HUGE_2M));
    while memory.allocate(&one(FrameClass::Anonymous)).is_some() {}
    assert!(!memory.has_free_block(Order::HUGE_2M));
    let huge = Request::new(Order::HUGE_2M, FrameClass::Slab);
    assert!(memory.allocate(&huge).is_some());
}

/// Strict as it is, nobody is killed while memory lies idle on the other side; what came there leaves
/// when its own side has room.
#[test]
fn a_last_request_takes_idle_unmovable_memory_before_somebody_is_killed() {
    let filled = |shelters_last| {
        let placement = Placement::Contiguitas(policies::contiguitas::Config {
            shelters_last,
            ..config()
        });
        let mut memory = memory(64, placement);
        let request = grouped(FrameClass::Anonymous, 0);
        while memory.allocate_or_reclaim(&request, &mut ()).is_some() {}
        memory
    };
    let last = Request {
        last_resort: true,
        ..grouped(FrameClass::Anonymous, 0)
    };
    assert_eq!(filled(false).allocate_or_reclaim(&last, &mut ()), None);
    let mut memory = filled(true);
    let mut sheltered = 0;
    while let Some(frame) = memory.allocate_or_reclaim(&last, &mut ()) {
        assert!(frame.get() < border(&memory));
        sheltered += 1;
    }
    // All but the reserve of the unmovable region's own requests.
    assert!(sheltered > 3500, "{sheltered} of 4096");
    assert!(memory.allocate(&one(FrameClass::PageTable)).is_some());
    let pair = Request {
        order: Order::new(1),
        ..last
    };
    assert_eq!(memory.allocate_or_reclaim(&pair, &mut ()), None);
    assert_eq!(memory.validate(), Ok(()));
    memory.background(Nanoseconds::new(1_000_000_000), &mut ());
    for _ in 0..8000 {
        memory.free_oldest(Group(0));
    }
    memory.drain_per_cpu();
    // Nobody wakes the thread for that: it looks each second.
    assert!(!memory.has_background_work());
    memory.background(Nanoseconds::new(3_000_000_000), &mut ());
    let below = |(class, frame, _): (FrameClass, Frame, u32)| {
        class == FrameClass::Anonymous && frame.get() < border(&memory)
    };
    assert_eq!(memory.blocks().filter(|&block| below(block)).count(), 0);
    assert_eq!(memory.validate(), Ok(()));
}

/// As Linux shrinks them for any request.
#[test]
fn a_last_request_takes_the_kernels_caches_before_somebody_is_killed() {
    let mut memory = confined(64);
    memory.set_evict(Group(1), Evict::Shrink);
    let slab = Request {
        reclaimable: true,
        ..grouped(FrameClass::Slab, 1)
    };
    while memory.allocate(&slab).is_some() {}
    let mut request = grouped(FrameClass::Anonymous, 0);
    while memory.allocate_or_reclaim(&request, &mut ()).is_some() {}
    request.last_resort = true;
    let sheltered = std::iter::from_fn(|| memory.allocate_or_reclaim(&request, &mut ())).count();
    assert!(sheltered > 3500, "{sheltered} of 4096");
    assert_eq!(memory.validate(), Ok(()));
}

/// A.1: neither side takes the other's requests, however full it is.
#[test]
fn each_request_is_served_on_its_side_even_if_it_fails() {
    let mut memory = confined(64);
    let unmovable: Vec<Frame> =
        std::iter::from_fn(|| memory.allocate(&one(FrameClass::Slab))).collect();
    assert!(unmovable.iter().all(|frame| frame.get() < border(&memory)));
    assert!(
        memory.free_frames() > 40 * 256,
        "the movable side is untouched"
    );
    let movable: Vec<Frame> =
        std::iter::from_fn(|| memory.allocate(&one(FrameClass::Anonymous))).collect();
    assert!(movable.iter().all(|frame| frame.get() >= border(&memory)));
    assert_eq!(memory.validate(), Ok(()));
}

/// The variant proposed to Linux: single movable frames may shelter, larger blocks may not, and a
/// background pass moves them out when there is room again.
#[test]
fn sheltered_frames_leave_when_there_is_room() {
    let relaxed = policies::contiguitas::Config {
        strict: false,
        ..config()
    };
    let mut memory = memory(64, Placement::Contiguitas(relaxed));
    let request = grouped(FrameClass::Anonymous, 0);
    let mut sheltered = 0;
    while let Some(frame) = memory.allocate(&request) {
        sheltered += u64::from(frame.get() < border(&memory));
    }
    // The watermark of the movable side holds for movable requests.
    assert_eq!(sheltered, 0);
    let relaxed = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let placement = memory.placement().clone();
    let layout = Layout::new(64 << 8, 4, 1);
    let mut memory: Memory = Frames::new(Boxed::new(layout), relaxed, placement).unwrap();
    let free_in_m = 48 * 256;
    for _ in 0..free_in_m {
        memory.allocate(&request).unwrap();
    }
    let pair = Request {
        order: Order::new(1),
        ..request
    };
    assert_eq!(
        memory.allocate(&pair),
        None,
        "only single frames may shelter"
    );
    for _ in 0..100 {
        let frame = memory.allocate(&request).unwrap();
        assert!(frame.get() < border(&memory));
    }
    for _ in 0..5000 {
        memory.free_oldest(Group(0));
    }
    memory.drain_per_cpu();
    // Reclaim wakes the pass.
    let large = Request::new(Order::BUDDY_MAX, FrameClass::Slab);
    while memory.allocate_or_reclaim(&large, &mut ()).is_some() {}
    memory.background(Nanoseconds::new(1), &mut ());
    assert_eq!(memory.counters().frames_evacuated, 100);
    assert_eq!(memory.validate(), Ok(()));
}

/// A.3: the contents of a pinned page are in the unmovable region before the pin succeeds.
#[test]
fn a_pin_moves_the_page_first_and_tells_its_owner() {
    let mut memory = confined(64);
    let frame = memory.allocate(&one(FrameClass::Anonymous)).unwrap();
    let owner = Owner {
        space: 1,
        page: VirtPage::new(77),
    };
    memory.set_owner(frame, Some(owner)).unwrap();
    let mut moves = Vec::new();
    let pinned = memory.pin(frame, &mut moves).unwrap();
    assert!(frame.get() >= border(&memory) && pinned.get() < border(&memory));
    assert_eq!(
        (moves[0].from, moves[0].to, moves[0].owner),
        (frame, pinned, owner)
    );
    assert_eq!(memory.owner(pinned), Some(owner));
    moves.clear();
    let back = memory.unpin(pinned, &mut moves).unwrap();
    assert!(back.get() >= border(&memory));
    assert_eq!(moves.len(), 1);
}

#[test]
fn a_pin_without_room_fails_and_changes_nothing() {
    let mut memory = confined(64);
    let frame = memory.allocate(&grouped(FrameClass::Anonymous, 0)).unwrap();
    while memory.allocate(&one(FrameClass::Slab)).is_some() {}
    let mut left = 0;
    let pinned = loop {
        // What is below the watermark is still there for pins.
        let other = memory.allocate(&grouped(FrameClass::Anonymous, 0)).unwrap();
        match memory.pin(other, &mut ()) {
            Ok(_) => left += 1,
            Err(error) => break (other, error),
        }
    };
    assert!(left > 0);
    assert_eq!(pinned.1, Error::CannotPin(pinned.0));
    assert!(!memory.is_pinned(pinned.0) && !memory.is_pinned(frame));
    assert_eq!(memory.validate(), Ok(()));
}

/// A.4: an unmovable request that fails asks for more room, and gets it from a thread.
#[test]
fn resizing_waits_for_the_kernels_thread() {
    let mut memory = confined(256);
    let before = border(&memory);
    let mut failed = 0;
    for _ in 0..40 * 256 {
        while memory
            .allocate_or_reclaim(&one(FrameClass::Slab), &mut ())
            .is_none()
        {
            failed += 1;
            assert!(memory.has_background_work());
            let at = border(&memory);
            assert_eq!(memory.allocate(&one(FrameClass::Slab)), None);
            assert_eq!(border(&memory), at, "an allocation moved the border");
            memory.background(Nanoseconds::new(1), &mut ());
            assert!(border(&memory) > at);
        }
    }
    assert!(failed > 0 && border(&memory) > before);
    assert_eq!(memory.counters().resizes_in_allocations, 0);
    assert_eq!(memory.validate(), Ok(()));
}

/// Unmovable memory is everywhere in the region: no range of 16 MB of it can be emptied.
#[test]
fn a_range_for_unmovable_memory_moves_the_border_to_make_room() {
    let mut memory = confined(256);
    while memory.allocate(&one(FrameClass::Slab)).is_some() {}
    let order = Order::new(12);
    let mut found = None;
    // Four steps of 2 % of memory.
    for time in 1..=5 {
        let at = border(&memory);
        found = memory.allocate_contiguous(order, FrameClass::PageTable, &mut ());
        assert_eq!(border(&memory), at, "an allocation moved the border");
        if found.is_some() {
            break;
        }
        assert!(memory.has_background_work());
        memory.background(Nanoseconds::new(time), &mut ());
    }
    let range = found.expect("there is room for a range").get();
    assert!(range.is_multiple_of(order.frames()) && range + order.frames() <= border(&memory));
    assert_eq!(memory.validate(), Ok(()));
}

/// The part of a range that lies on this side of the border counts.
#[test]
fn a_range_across_the_border_asks_for_the_rest_of_it() {
    let mut memory = confined(2048);
    while memory.allocate(&one(FrameClass::Slab)).is_some() {}
    let order = Order::new(12);
    let blocks = order.frames() / BLOCK_FRAMES;
    while !border(&memory).is_multiple_of(order.frames()) {
        memory.expand(1, &mut ());
    }
    memory.expand(blocks as usize / 2, &mut ());
    let at = border(&memory);
    let missed = memory.allocate_contiguous(order, FrameClass::PageTable, &mut ());
    assert_eq!(missed, None);
    memory.background(Nanoseconds::new(1), &mut ());
    let found = memory.allocate_contiguous(order, FrameClass::PageTable, &mut ());
    assert_eq!(found, Some(Frame::new(at - order.frames() / 2)));
    assert_eq!(border(&memory), at + order.frames() / 2);
}

/// A.5: an expansion that meets what cannot move ends there, as a prefix next to the border.
#[test]
fn an_expansion_ends_at_the_first_block_that_cannot_be_emptied() {
    let mut memory = confined(64);
    let at = border(&memory);
    // Without an owner or a group nobody could follow: the block stays.
    let stuck = Frame::new(at + 3 * BLOCK_FRAMES + 5);
    memory.allocate_at(stuck, FrameClass::Anonymous).unwrap();
    assert_eq!(memory.expand(10, &mut ()), 3);
    assert_eq!(border(&memory), at + 3 * BLOCK_FRAMES);
    assert_eq!(memory.validate(), Ok(()));
}

/// A.12: hardware moves what is in use by devices; nothing moves what the kernel points to.
#[test]
fn device_buffers_that_block_a_shrink_move_only_with_hardware() {
    for (class, hardware, shrinks) in [
        (FrameClass::NetworkBuffer, true, true),
        (FrameClass::NetworkBuffer, false, false),
        (FrameClass::Slab, true, false),
        (FrameClass::PageTable, true, false),
        (FrameClass::Slab, false, false),
    ] {
        let with = policies::contiguitas::Config {
            hardware_migration: hardware,
            ..config()
        };
        let mut memory = memory(64, Placement::Contiguitas(with));
        assert_eq!(memory.expand(1, &mut ()), 1);
        let at = border(&memory);
        memory
            .allocate_block_at(Frame::new(at - 7), &grouped(class, 0))
            .unwrap();
        assert_eq!(memory.shrink(1, &mut ()), 0, "nothing moves at once");
        let moved = relocate_all(&mut memory);
        assert_eq!(moved == 1, shrinks, "{class:?}, hardware {hardware}");
        let counters = memory.counters();
        assert_eq!(counters.frames_moved_by_hardware, u64::from(shrinks));
        assert_eq!(counters.shrinks_blocked, u64::from(!shrinks));
        let of_devices = class == FrameClass::NetworkBuffer;
        let causes = [
            counters.shrinks_blocked_by_kernel,
            counters.shrinks_blocked_by_devices,
        ];
        let expected = [!of_devices, of_devices && !hardware];
        assert_eq!(causes, expected.map(u64::from), "{class:?}");
        assert_eq!(border(&memory), at - if shrinks { BLOCK_FRAMES } else { 0 });
        assert_eq!(memory.validate(), Ok(()));
    }
}

/// Moves what hardware has to move, one block after the other; how many.
fn relocate_all(memory: &mut Memory) -> usize {
    let mut moved = 0;
    while let Some(relocation) = memory.next_relocation(&mut ()) {
        memory.end_relocation(&relocation, &mut ());
        moved += 1;
    }
    moved
}

/// Memory with hardware whose unmovable region has grown by a pageblock, and so many network
/// buffers in it.
fn with_buffers(count: u32) -> (Memory, u32) {
    let with = policies::contiguitas::Config {
        hardware_migration: true,
        ..config()
    };
    let mut memory = memory(64, Placement::Contiguitas(with));
    assert_eq!(memory.expand(1, &mut ()), 1);
    let at = border(&memory);
    for number in 0..count {
        let frame = Frame::new(at - 1 - 2 * number);
        memory
            .allocate_block_at(frame, &grouped(FrameClass::NetworkBuffer, 0))
            .unwrap();
    }
    (memory, at)
}

#[test]
fn a_block_waits_until_hardware_has_moved_all_of_it() {
    let (mut memory, at) = with_buffers(40);
    assert_eq!(memory.shrink(1, &mut ()), 0);
    let mut under_way: Vec<_> = (0..16)
        .map(|_| memory.next_relocation(&mut ()).unwrap())
        .collect();
    assert_eq!(memory.validate(), Ok(()));
    for moved in 0..40 {
        assert_eq!(border(&memory), at, "after {moved}");
        let first = under_way.remove(0);
        assert!(first.to < first.from);
        memory.end_relocation(&first, &mut ());
        assert_eq!(memory.validate(), Ok(()));
        under_way.extend(memory.next_relocation(&mut ()));
    }
    assert!(under_way.is_empty());
    assert_eq!(border(&memory), at - BLOCK_FRAMES);
    assert_eq!(memory.counters().frames_moved_by_hardware, 40);
    assert_eq!(memory.counters().frames_moved_by_resizes, 40);
    assert_eq!(memory.blocks_in(Group(0)).count(), 40);
}

#[test]
fn a_buffer_that_is_freed_on_its_way_takes_no_second_frame() {
    let (mut memory, at) = with_buffers(2);
    let free = memory.free_frames();
    memory.shrink(1, &mut ());
    let first = memory.next_relocation(&mut ()).unwrap();
    let second = memory.next_relocation(&mut ()).unwrap();
    memory.free(first.from).unwrap();
    memory.end_relocation(&first, &mut ());
    memory.end_relocation(&second, &mut ());
    assert_eq!(memory.free_frames(), free + 1);
    assert_eq!(border(&memory), at - BLOCK_FRAMES);
    assert_eq!(memory.counters().frames_moved_by_hardware, 1);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn an_expansion_ends_what_is_being_emptied() {
    let (mut memory, at) = with_buffers(2);
    memory.shrink(1, &mut ());
    let first = memory.next_relocation(&mut ()).unwrap();
    assert_eq!(memory.expand(1, &mut ()), 1);
    assert_eq!(memory.validate(), Ok(()));
    assert_eq!(memory.next_relocation(&mut ()), None);
    memory.end_relocation(&first, &mut ());
    assert!(!memory.is_clearing());
    assert_eq!(border(&memory), at + BLOCK_FRAMES);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn hardware_movable_frames_count_as_movable() {
    let (mut memory, _) = with_buffers(2);
    let total = memory.contiguity().blocks_2m.total;
    assert_eq!(memory.contiguity().blocks_2m.potential, total);
    memory
        .allocate(&grouped(FrameClass::Slab, 0))
        .expect("memory is empty");
    assert_eq!(memory.contiguity().blocks_2m.potential, total - 1);
    let mut software = confined(64);
    software
        .allocate(&grouped(FrameClass::NetworkBuffer, 0))
        .expect("memory is empty");
    assert_eq!(software.contiguity().blocks_2m.potential, total - 1);
}

#[test]
fn idle_unmovable_memory_goes_back_within_two_minutes() {
    let mut memory = confined(256);
    assert_eq!(memory.expand(20, &mut ()), 20);
    let grown = border(&memory);
    for second in 1..=59 {
        memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
    }
    assert_eq!(border(&memory), grown);
    // At most 2 % of memory, which is two pageblocks, in one step.
    for second in 60..=120 * 10 {
        memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
    }
    assert_eq!(border(&memory), 16 << 8);
    assert_eq!(memory.counters().resizes_in_allocations, 0);
}

#[test]
fn a_movable_request_gets_idle_unmovable_memory_before_it_fails_for_good() {
    let mut memory = confined(64);
    assert_eq!(memory.expand(8, &mut ()), 8);
    let mut taken = 0;
    let mut now = 0;
    loop {
        let request = grouped(FrameClass::Anonymous, 1);
        if memory.allocate_or_reclaim(&request, &mut ()).is_some() {
            taken += 1;
            continue;
        }
        now += 1;
        memory.background(Nanoseconds::new(now), &mut ());
        if memory.allocate_or_reclaim(&request, &mut ()).is_none() {
            break;
        }
        taken += 1;
    }
    assert!(taken > (64 - 32) << 8, "{taken}");
    assert!(border(&memory) < (16 + 16) << 8);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn the_unmovable_region_never_shrinks_below_its_least_size() {
    let mut memory = confined(64);
    assert_eq!(memory.expand(2, &mut ()), 2);
    assert_eq!(memory.shrink(100, &mut ()), 2);
    assert_eq!(border(&memory), 16 << 8);
}

/// A.10: while there is room elsewhere, nothing is placed next to the border.
#[test]
fn the_tenth_next_to_the_border_is_used_last() {
    let mut memory = confined(256);
    let edge = border(&memory);
    let window = |region: u32| region / 10;
    let free_elsewhere = edge - window(edge) - 512;
    for _ in 0..free_elsewhere / 2 {
        let frame = memory.allocate(&one(FrameClass::Slab)).unwrap();
        assert!(frame.get() < edge - window(edge), "{frame}");
    }
    let movable = 256 * 256 - edge;
    for _ in 0..(movable - window(movable)) / 2 {
        let frame = memory.allocate(&one(FrameClass::Anonymous)).unwrap();
        assert!(frame.get() >= edge + window(movable), "{frame}");
    }
}

/// A.11: what stays for good is at the end that the border never reaches.
#[test]
fn long_lived_memory_takes_the_lowest_addresses() {
    let mut memory = confined(256);
    let request = Request {
        long_lived: true,
        ..one(FrameClass::KernelOther)
    };
    for expected in 0..600 {
        assert_eq!(memory.allocate(&request), Some(Frame::new(expected)));
    }
    // Later ones fill the lowest gap, whatever the size of the free block around it.
    memory.free(Frame::new(17)).unwrap();
    memory.drain_per_cpu();
    assert_eq!(memory.allocate(&request), Some(Frame::new(17)));
}

fn with_hardware(mebibytes: usize) -> Memory {
    let with = policies::contiguitas::Config {
        hardware_migration: true,
        ..config()
    };
    memory(mebibytes, Placement::Contiguitas(with))
}

/// A page that not even hardware can move holds the border; so it is placed where that never comes.
#[test]
fn with_hardware_what_stays_is_far_from_the_border_and_what_moves_is_near_it() {
    let mut memory = with_hardware(256);
    let edge = border(&memory);
    for number in 0..200 {
        let near = memory.allocate(&grouped(FrameClass::NetworkBuffer, 0));
        assert!(near.unwrap().get() >= edge / 2, "{near:?}");
        let far = memory.allocate(&grouped(FrameClass::Slab, 1));
        assert_eq!(far, Some(Frame::new(number)));
    }
    // What a buffer leaves is for buffers, and what a slab leaves for slabs, on every CPU.
    memory.free_oldest(Group(0)).unwrap();
    memory.free_oldest(Group(1)).unwrap();
    let far = memory.allocate(&one(FrameClass::PageTable));
    assert_eq!(far, Some(Frame::new(0)));
    // Nothing of what is kept for slabs goes to buffers: the border has to move for them.
    let kept = 512;
    let mut lowest = edge;
    for _ in 0..edge - kept {
        let frame = memory.allocate(&grouped(FrameClass::NetworkBuffer, 0));
        lowest = lowest.min(frame.unwrap().get());
        if memory.has_background_work() {
            memory.background(Nanoseconds::new(1), &mut ());
        }
    }
    assert!(lowest >= kept, "{lowest}");
    assert!(border(&memory) > edge);
    assert_eq!(memory.validate(), Ok(()));
}

/// Buffers that are where slabs will be needed go away before that.
#[test]
fn hardware_clears_what_is_kept_for_memory_that_stays() {
    let mut memory = with_hardware(64);
    for frame in 0..300 {
        memory
            .allocate_at(Frame::new(frame), FrameClass::Slab)
            .unwrap();
    }
    for frame in 600..700 {
        let request = grouped(FrameClass::NetworkBuffer, 0);
        memory
            .allocate_block_at(Frame::new(frame), &request)
            .unwrap();
    }
    for frame in 300..500 {
        memory
            .allocate_at(Frame::new(frame), FrameClass::Slab)
            .unwrap();
    }
    // 500 frames stay, and a quarter is kept: two pageblocks.
    memory.background(Nanoseconds::new(1_000_000_000), &mut ());
    assert!(memory.is_clearing());
    assert_eq!(relocate_all(&mut memory), 100);
    assert!(memory.blocks_in(Group(0)).all(|frame| frame.get() >= 1024));
    assert_eq!(memory.validate(), Ok(()));
}

/// Files that a program goes on using are evicted, and read again: the program waits, and the idle
/// part of the unmovable region goes to the movable one although no request ever fails.
#[test]
fn refaults_move_the_border() {
    let with = policies::contiguitas::Config {
        idle: Nanoseconds::new(0),
        ..config()
    };
    let mut memory = memory(64, Placement::Contiguitas(with));
    memory.set_evict(Group(1), Evict::File);
    assert_eq!(memory.expand(12, &mut ()), 12);
    let grown = border(&memory);
    let read = |memory: &mut Memory| {
        for _ in 0..12_000 {
            memory.refault(Group(1), 1);
            let request = grouped(FrameClass::PageCache, 1);
            let frame = memory.allocate_or_reclaim(&request, &mut ());
            memory.touch(frame.unwrap()).unwrap();
        }
    };
    for second in 1..=10 {
        read(&mut memory);
        memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
    }
    let counters = memory.counters();
    assert!(counters.frames_refaulted > 10_000, "{counters:?}");
    assert_eq!(counters.failures_movable, 0);
    assert!(memory.pressure().movable().avg10 > 1.0);
    assert_eq!(memory.pressure().unmovable().total.get(), 0);
    assert!(border(&memory) < grown, "{counters:?}");
    // Files that are gone are not read again.
    memory.forget_evicted(Group(1));
    assert!(!memory.refault(Group(1), 1));
    assert_eq!(memory.validate(), Ok(()));
}

/// A request that waits for the border stalls for as long as emptying takes.
#[test]
fn waiting_for_the_border_is_pressure_on_unmovable_memory() {
    let mut memory = confined(64);
    while memory
        .allocate(&grouped(FrameClass::Anonymous, 1))
        .is_some()
    {}
    for _ in 0..4096 {
        memory.free_oldest(Group(1)).unwrap();
    }
    memory.drain_per_cpu();
    let waits = |memory: &Memory| memory.pressure().unmovable().total.get();
    let request = grouped(FrameClass::Slab, 0);
    while memory.allocate_or_reclaim(&request, &mut ()).is_some() {}
    let failed = waits(&memory);
    assert!(failed > 0);
    memory.background(Nanoseconds::new(1), &mut ());
    let moved = memory.counters().frames_moved_by_resizes;
    assert!(moved > 0);
    // 4 us a page.
    assert!(waits(&memory) - failed >= 4_000 * moved, "{moved} pages");
}

/// Each part of controller and placement is switched off alone.
#[test]
fn each_part_of_contiguitas_can_be_switched_off() {
    let with = policies::contiguitas::Config {
        bias: false,
        ..config()
    };
    let mut memory = memory(64, Placement::Contiguitas(with));
    let frames: Vec<Frame> = (0..600)
        .map(|_| memory.allocate(&one(FrameClass::Slab)).unwrap())
        .collect();
    memory.free(frames[3]).unwrap();
    memory.free(frames[500]).unwrap();
    memory.drain_per_cpu();
    let next = memory.allocate(&one(FrameClass::Slab));
    assert_eq!(next, Some(frames[500]), "the last that was freed");
    assert_eq!(memory.validate(), Ok(()));
    let resize = contigua_frames::controller::Config {
        watermarks: false,
        ..contigua_frames::controller::Config::default()
    };
    let with = policies::contiguitas::Config { resize, ..config() };
    let mut memory = self::memory(64, Placement::Contiguitas(with));
    let edge = border(&memory);
    while memory.allocate(&one(FrameClass::Slab)).is_some() {}
    assert!(memory.has_background_work());
    memory.background(Nanoseconds::new(1), &mut ());
    assert_eq!(border(&memory), edge, "nothing has failed");
}

/// A.7 and A.8: what confinement is for.
#[test]
fn all_of_the_movable_region_could_be_one_free_piece() {
    let mut memory = confined(4096);
    for i in 0..20_000_u32 {
        let class = if i % 5 == 0 {
            FrameClass::Slab
        } else {
            FrameClass::PageCache
        };
        while memory
            .allocate_or_reclaim(&grouped(class, 1), &mut ())
            .is_none()
        {
            memory.background(Nanoseconds::new(1), &mut ());
        }
    }
    let found = memory.contiguity();
    // Every aligned block above the border; below it there may be more by chance.
    let above = |order: u8| (4096 << 8 >> order) - border(&memory).div_ceil(1 << order);
    assert!(found.blocks_2m.potential >= above(9));
    assert!(found.blocks_32m.potential >= above(13));
    assert_eq!((found.blocks_1g.potential, above(18)), (3, 3));
    let bytes = |blocks: u32, order: u32| u64::from(blocks) << order;
    assert!(bytes(found.blocks_2m.potential, 9) >= bytes(found.blocks_32m.potential, 13));
    assert!(bytes(found.blocks_32m.potential, 13) >= bytes(found.blocks_1g.potential, 18));
    // And perfect compaction is what it takes.
    let order = Order::HUGE_1G;
    let huge = memory.allocate_contiguous(order, FrameClass::Anonymous, &mut ());
    assert!(huge.is_some_and(|frame| frame.is_aligned(order)));
    assert_eq!(memory.validate(), Ok(()));
    memory.free(huge.unwrap()).unwrap();
    assert_eq!(memory.validate(), Ok(()));
}

/// A.13: one unmovable page in each gigabyte is enough.
#[test]
fn a_page_in_each_gigabyte_pollutes_them_all() {
    let mut memory = memory(4096, Placement::default());
    for gigabyte in 0..4 {
        let frame = Frame::new((gigabyte << 18) + 12_345);
        memory.allocate_at(frame, FrameClass::Slab).unwrap();
    }
    let found = memory.contiguity();
    assert_eq!(found.blocks_1g.potential, 0);
    assert!(found.unmovable_block_share() < 0.002);
    let order = Order::HUGE_1G;
    assert_eq!(
        memory.allocate_contiguous(order, FrameClass::Anonymous, &mut ()),
        None
    );
}

/// A.9, first half: demand that does not change moves the border into place and no further.
#[test]
fn under_steady_demand_the_border_settles() {
    let mut memory = confined(256);
    memory.set_evict(Group(0), Evict::File);
    let mut state = 1_u32;
    let mut moved_late = 0;
    for second in 0..300_u64 {
        let resized = memory.counters().blocks_resized;
        for _ in 0..500 {
            // Unmovable memory for four seconds; files as fast as reclaim allows.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if memory.frames_in(Group(1)) > 12_000 {
                memory.free_oldest(Group(1));
            }
            for request in [
                grouped(FrameClass::Slab, 1),
                grouped(FrameClass::PageCache, 0),
            ] {
                for _ in 0..3 {
                    if memory.allocate_or_reclaim(&request, &mut ()).is_some() {
                        break;
                    }
                    memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
                }
            }
            if memory.has_background_work() {
                memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
            }
        }
        memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
        if second >= 120 {
            moved_late += memory.counters().blocks_resized - resized;
        }
    }
    assert!(memory.frames_in(Group(1)) > 11_000);
    // At most one step of a pageblock in a minute.
    assert!(moved_late <= 3, "{moved_late} pageblocks after two minutes");
    assert_eq!(memory.validate(), Ok(()));
}

/// A.9, second half: a sudden step is met as long as movable memory can be reclaimed.
#[test]
fn a_step_in_unmovable_demand_is_met_from_reclaimable_memory() {
    let mut memory = confined(256);
    memory.set_evict(Group(0), Evict::File);
    while memory
        .allocate(&grouped(FrameClass::PageCache, 0))
        .is_some()
    {}
    let mut unmet = 0;
    for i in 0..100 * 256_u64 {
        let request = grouped(FrameClass::NetworkBuffer, 1);
        let mut found = memory.allocate_or_reclaim(&request, &mut ());
        for _ in 0..3 {
            if found.is_some() {
                break;
            }
            memory.background(Nanoseconds::new(i * 10_000), &mut ());
            found = memory.allocate_or_reclaim(&request, &mut ());
        }
        unmet += u64::from(found.is_none());
        if memory.has_background_work() {
            memory.background(Nanoseconds::new(i * 10_000), &mut ());
        }
    }
    assert_eq!(unmet, 0);
    assert!(border(&memory) >= 100 << 8);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn a_region_that_leaves_nothing_is_refused() {
    let layout = Layout::new(16 << 8, 1, 1);
    let placement = Placement::Contiguitas(config());
    let error = Frames::new(Boxed::new(layout), Config::default(), placement).err();
    let region = 16 << 8;
    assert_eq!(
        error,
        Some(Error::Region {
            region,
            memory: region
        })
    );
}
