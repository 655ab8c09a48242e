//! Does the Linux baseline do what Linux does, and Illuminator what it promises?

use contigua_frames::{
    BLOCK_FRAMES, BlockRecord, Boxed, Config, Evict, FrameClass, Frames, Group, Layout,
    MigrateType, Placement, Request, policies,
};
use contigua_units::{Bytes, Frame, Nanoseconds, Order};

type Memory = Frames<Boxed>;

fn memory_with(mebibytes: usize, placement: Placement, config: Config) -> Memory {
    let layout = Layout::new(mebibytes << 8, 4, 1);
    Frames::new(Boxed::new(layout), config, placement).unwrap()
}

fn linux(mebibytes: usize) -> Memory {
    memory_with(mebibytes, Placement::default(), Config::default())
}

fn illuminator(mebibytes: usize) -> Memory {
    let placement = Placement::Illuminator(policies::illuminator::Config::default());
    memory_with(mebibytes, placement, Config::default())
}

fn defrag_mode(mebibytes: usize, atomic_falls_back: bool) -> Memory {
    let config = policies::defrag_mode::Config { atomic_falls_back };
    memory_with(mebibytes, Placement::DefragMode(config), uncompacted())
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

/// Nothing is compacted by itself.
fn uncompacted() -> Config {
    Config {
        compaction_proactiveness: 0,
        ..Config::default()
    }
}

/// Fills memory with files down to the watermark, so that what is reclaimed first is scattered:
/// only every eighth page was not used again.
fn filled_with_files(mut memory: Memory) -> Memory {
    memory.set_evict(Group(0), Evict::File);
    let mut count = 0;
    while let Some(frame) = memory.allocate(&grouped(FrameClass::PageCache, 0)) {
        if count % 8 != 0 {
            memory.touch(frame).unwrap();
        }
        count += 1;
    }
    memory
}

fn blocks_with_both(memory: &Memory) -> usize {
    let blocks = memory.pageblocks().iter();
    blocks
        .filter(|block| block.movable() > 0 && block.unmovable() > 0)
        .count()
}

#[test]
fn a_type_that_has_run_out_takes_whole_pageblocks_first() {
    let mut memory = linux(64);
    let frame = memory.allocate(&one(FrameClass::Slab)).unwrap();
    // All memory was movable; the largest free block changed its type, which is two pageblocks.
    let kinds = memory
        .pageblocks()
        .iter()
        .map(contigua_frames::BlockRecord::kind);
    assert_eq!(
        kinds.filter(|&kind| kind == MigrateType::Unmovable).count(),
        2
    );
    assert_eq!(memory.counters().blocks_claimed, 2);
    assert_eq!(memory.counters().blocks_borrowed, 0);
    memory.free(frame).unwrap();
    assert_eq!(memory.validate(), Ok(()));
}

/// Without proactive compaction, and with boosts that wake nobody, as Linux before 5.0.
fn unboosted() -> Config {
    Config {
        boosts_wake: false,
        ..uncompacted()
    }
}

/// Full memory after unmovable requests, without proactive compaction.
fn crowded(config: Config) -> Memory {
    let mut memory = filled_with_files(memory_with(64, Placement::default(), config));
    for _ in 0..1500 {
        memory
            .allocate_or_reclaim(&one(FrameClass::Slab), &mut ())
            .unwrap();
        memory.background(Nanoseconds::new(1), &mut ());
    }
    assert_eq!(memory.validate(), Ok(()));
    memory
}

#[test]
fn in_full_memory_unmovable_requests_end_up_beside_movable_pages() {
    let memory = crowded(unboosted());
    assert!(
        memory.counters().blocks_borrowed > 0,
        "{:?}",
        memory.counters()
    );
    assert!(
        blocks_with_both(&memory) > 6,
        "{} mixed",
        blocks_with_both(&memory)
    );
}

#[test]
fn a_boost_has_memory_compacted_so_that_fewer_pageblocks_mix() {
    let boosted = crowded(uncompacted());
    assert!(boosted.counters().background_compactions > 0);
    let without = crowded(unboosted());
    assert_eq!(without.counters().background_compactions, 0);
    assert!(blocks_with_both(&boosted) < blocks_with_both(&without));
}

#[test]
fn under_illuminator_the_same_requests_mix_nowhere() {
    let mut memory = filled_with_files(illuminator(64));
    let mut failed = 0;
    for _ in 0..1500 {
        let found = memory.allocate_or_reclaim(&one(FrameClass::Slab), &mut ());
        failed += u64::from(found.is_none());
        memory.want_compaction(Order::HUGE_2M);
        memory.background(Nanoseconds::new(1), &mut ());
        assert_eq!(blocks_with_both(&memory), 0);
    }
    assert!(failed < 100, "{failed}");
    assert_eq!(memory.counters().blocks_borrowed, 0);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn under_defrag_mode_the_same_requests_mix_nowhere_and_all_are_served() {
    let mut memory = filled_with_files(defrag_mode(64, true));
    for _ in 0..1500 {
        let found = memory.allocate_or_reclaim(&one(FrameClass::Slab), &mut ());
        memory.background(Nanoseconds::new(1), &mut ());
        assert!(found.is_some());
    }
    // The first request came before the thread had made a pageblock.
    assert!(blocks_with_both(&memory) <= 1);
    let counters = memory.counters();
    assert!(counters.background_compactions > 0, "{counters:?}");
    assert_eq!(memory.validate(), Ok(()));
}

/// Memory full of pages that nobody reclaims, but for every fourth, which is free.
fn sparse(mut memory: Memory) -> Memory {
    let taken: Vec<_> =
        std::iter::from_fn(|| memory.allocate(&grouped(FrameClass::Anonymous, 1))).collect();
    for frame in taken.into_iter().filter(|frame| frame.get() % 4 == 3) {
        memory.free(frame).unwrap();
    }
    memory.drain_per_cpu();
    memory
}

#[test]
fn under_defrag_mode_types_mix_as_a_last_resort() {
    let slab = one(FrameClass::Slab);
    let mut memory = sparse(defrag_mode(64, true));
    assert_eq!(memory.allocate(&slab), None);
    assert!(memory.allocate_or_reclaim(&slab, &mut ()).is_some());
    let counters = memory.counters();
    assert_eq!(counters.blocks_borrowed + counters.blocks_claimed, 1);
    assert!(counters.direct_reclaims > 0);
    // Once the thread has made whole pageblocks, types are apart again.
    let mut memory = sparse(defrag_mode(64, true));
    assert_eq!(memory.allocate(&slab), None);
    memory.want_compaction(Order::HUGE_2M);
    memory.background(Nanoseconds::new(1), &mut ());
    assert!(memory.allocate(&slab).is_some());
    assert_eq!(blocks_with_both(&memory), 0);
    // Linux mixes at once, Illuminator never.
    assert!(sparse(linux(64)).allocate(&slab).is_some());
    let never = sparse(illuminator(64)).allocate_or_reclaim(&slab, &mut ());
    assert_eq!(never, None);
}

#[test]
fn under_defrag_mode_what_cannot_wait_mixes_at_once_or_fails_as_in_linux_6_15() {
    let packet = Request {
        atomic: true,
        ..one(FrameClass::NetworkBuffer)
    };
    for falls_back in [false, true] {
        let mut memory = sparse(defrag_mode(64, falls_back));
        let found = memory.allocate_or_reclaim(&packet, &mut ());
        assert_eq!(found.is_some(), falls_back);
    }
}

#[test]
fn under_defrag_mode_the_threads_keep_the_high_watermark_free_in_whole_pageblocks() {
    // 64 MiB keep 256 frames; the high watermark is twice 4 % of memory above that.
    let whole = |memory: &Memory| {
        let kinds = MigrateType::ALL[..4].iter();
        let frames = |kind: &MigrateType| {
            memory.listed(*kind, Order::HUGE_2M) * 512
                + memory.listed(*kind, Order::BUDDY_MAX) * 1024
        };
        kinds.map(frames).sum::<u32>()
    };
    let config = Config {
        watermark_scale: 400,
        ..uncompacted()
    };
    let mode = policies::defrag_mode::Config::default();
    for (placement, least) in [
        (Placement::default(), 512),
        (Placement::DefragMode(mode), 256 + 2 * 655),
    ] {
        let mut memory = sparse(memory_with(64, placement, config.clone()));
        assert_eq!(whole(&memory), 0);
        memory.want_compaction(Order::HUGE_2M);
        memory.background(Nanoseconds::new(1), &mut ());
        let found = whole(&memory);
        assert!((least..least + 1024).contains(&found), "{found} of {least}");
        assert_eq!(memory.validate(), Ok(()));
    }
}

#[test]
fn background_reclaim_starts_below_the_low_watermark_and_ends_at_the_high_one() {
    let mut memory = memory_with(
        1024,
        Placement::default(),
        Config {
            watermark_boost: 0,
            ..Config::default()
        },
    );
    memory.set_evict(Group(0), Evict::File);
    // 1 GiB keeps the root of 16 * 2^20 KB, 4 MiB; the distance is a quarter of that.
    let (min, step) = (1024, 256);
    while memory.free_frames() > min + step + 63 {
        memory.allocate(&grouped(FrameClass::PageCache, 0)).unwrap();
    }
    assert!(!memory.has_background_work());
    while !memory.has_background_work() {
        memory.allocate(&grouped(FrameClass::PageCache, 0)).unwrap();
    }
    assert!(memory.free_frames() >= min);
    assert_eq!(memory.counters().background_reclaims, 1);
    memory.background(Nanoseconds::new(1), &mut ());
    let free = memory.free_frames();
    // What CPUs keep at hand is free, and no reserve.
    assert!(
        (min + 2 * step..min + 2 * step + 200).contains(&free),
        "{free}"
    );
    assert_eq!(memory.counters().direct_reclaims, 0);
    assert_eq!(memory.pressure().all().total, Nanoseconds::new(0));
}

#[test]
fn below_the_reserve_only_requests_that_cannot_wait_are_served() {
    let mut memory = linux(64);
    while memory.allocate(&one(FrameClass::Anonymous)).is_some() {}
    let atomic = Request {
        atomic: true,
        ..one(FrameClass::NetworkBuffer)
    };
    let served = std::iter::from_fn(|| memory.allocate(&atomic)).count();
    // Half of the 1 MiB that 64 MiB keep, give or take a batch of a CPU's list.
    assert!((64..=200).contains(&served), "{served}");
}

#[test]
fn a_request_that_reclaims_itself_is_stalled_and_the_pressure_says_so() {
    let mut memory = filled_with_files(linux(64));
    // Nobody runs the background threads.
    for _ in 0..2000 {
        memory
            .allocate_or_reclaim(&one(FrameClass::Anonymous), &mut ())
            .unwrap();
    }
    let counters = memory.counters();
    assert!(counters.direct_reclaims > 0 && counters.frames_reclaimed_direct >= 1000);
    assert_eq!(counters.frames_reclaimed_background, 0);
    memory.background(Nanoseconds::new(2_000_000_000), &mut ());
    assert!(memory.pressure().movable().avg10 > 0.0);
    assert!(memory.pressure().unmovable().avg10 == 0.0);
}

#[test]
fn reclaim_passes_over_what_was_used_again_once() {
    let mut memory = linux(64);
    memory.set_evict(Group(0), Evict::File);
    let frames: Vec<Frame> = (0..100)
        .map(|_| memory.allocate(&grouped(FrameClass::PageCache, 0)).unwrap())
        .collect();
    for frame in &frames[..50] {
        memory.touch(*frame).unwrap();
    }
    while memory.allocate(&one(FrameClass::Anonymous)).is_some() {}
    memory
        .allocate_or_reclaim(&one(FrameClass::Anonymous), &mut ())
        .unwrap();
    let left: Vec<Frame> = memory.blocks_in(Group(0)).collect();
    assert!(frames[..50].iter().all(|frame| left.contains(frame)));
    assert_eq!(left.len(), 100 - 32);
}

#[test]
fn kernel_caches_are_shrunk_when_memory_is_short() {
    let mut memory = linux(64);
    memory.set_evict(Group(0), Evict::Shrink);
    let request = Request {
        reclaimable: true,
        ..grouped(FrameClass::Slab, 0)
    };
    while memory.allocate(&request).is_some() {}
    memory.drain_per_cpu();
    let mut more = 0;
    while more < 1000
        && memory
            .allocate_or_reclaim(&one(FrameClass::Slab), &mut ())
            .is_some()
    {
        more += 1;
    }
    assert_eq!(more, 1000);
    assert!(memory.counters().frames_shrunk >= 700);
}

#[test]
fn swap_is_used_only_where_there_is_some() {
    for (swappiness, reclaims) in [(0, false), (100, true)] {
        let config = Config {
            swappiness,
            ..Config::default()
        };
        let mut memory = memory_with(64, Placement::default(), config);
        memory.set_evict(Group(0), Evict::Swap);
        while memory
            .allocate(&grouped(FrameClass::Anonymous, 0))
            .is_some()
        {
            // Nothing is left at hand.
            memory.drain_per_cpu();
        }
        let found = memory.allocate_or_reclaim(&one(FrameClass::Anonymous), &mut ());
        assert_eq!(found.is_some(), reclaims);
        assert_eq!(memory.counters().failures_movable, u64::from(!reclaims));
    }
}

/// Every second page of memory is free: half of it in pieces of 4 KB.
fn chequered(mebibytes: usize) -> Memory {
    let mut memory = memory_with(mebibytes, Placement::default(), uncompacted());
    let mut frames = Vec::new();
    while let Some(frame) = memory.allocate(&grouped(FrameClass::Anonymous, 0)) {
        frames.push(frame);
    }
    for frame in frames {
        if frame.get() % 2 == 0 {
            memory.free(frame).unwrap();
        }
    }
    memory.drain_per_cpu();
    memory
}

#[test]
fn compaction_makes_huge_blocks_of_scattered_pages_and_loses_none() {
    let mut memory = chequered(64);
    assert!(memory.contiguity().blocks_2m.free <= 1);
    let before = memory.blocks_in(Group(0)).count();
    assert!(memory.compact_for(Order::HUGE_2M, &mut ()));
    assert_eq!(memory.counters().direct_compactions, 1);
    assert!(memory.counters().frames_compacted_direct <= 2 * u64::from(BLOCK_FRAMES));
    memory.compact_all(&mut ());
    let found = memory.contiguity().blocks_2m;
    assert!(found.free >= 13, "{found:?}");
    assert_eq!(memory.blocks_in(Group(0)).count(), before);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn a_pageblock_is_emptied_around_what_cannot_move() {
    let mut memory = chequered(16);
    // Three frames of each pageblock stay, so that none can be emptied.
    for block in 0..8 {
        for place in [3, 100, 101] {
            let frame = Frame::new(block * BLOCK_FRAMES + 2 * place + 1);
            memory.pin(frame, &mut ()).unwrap();
        }
    }
    assert!(!memory.compact_for(Order::HUGE_2M, &mut ()));
    let (before, stalled) = (memory.counters(), memory.pressure().all().total);
    let free = memory.free_frames();
    assert!(!memory.compact_around(2, &mut ()));
    assert_eq!(memory.counters().frames_moved_from_isolated, 0);
    let fewest = memory.pageblocks().iter().map(BlockRecord::movable).min();
    assert!(memory.compact_around(3, &mut ()));
    let moved = memory.counters().since(&before).frames_moved_from_isolated;
    assert_eq!(Some(moved), fewest.map(u64::from));
    let emptied = |block: &&BlockRecord| block.free() + 3 == BLOCK_FRAMES && block.movable() == 0;
    assert_eq!(memory.pageblocks().iter().filter(emptied).count(), 1);
    assert_eq!(memory.free_frames(), free);
    assert!(memory.pressure().all().total > stalled);
    assert_eq!(memory.validate(), Ok(()));
    // Nothing more has to move for the next one that asks.
    assert!(memory.compact_around(3, &mut ()));
    assert_eq!(
        memory.counters().since(&before).frames_moved_from_isolated,
        moved
    );
}

#[test]
fn a_pageblock_is_left_alone_where_there_is_no_room_for_what_is_in_it() {
    let mut memory = linux(16);
    let mut frames = Vec::new();
    while let Some(frame) = memory.allocate(&grouped(FrameClass::Anonymous, 0)) {
        frames.push(frame);
    }
    let scattered = frames.iter().filter(|frame| frame.get() % 16 == 0);
    for &frame in scattered {
        memory.free(frame).unwrap();
    }
    assert!(!memory.compact_around(76, &mut ()));
    // Nor below the watermark that wakes reclaim, which requests that cannot wait go below.
    let atomic = Request {
        atomic: true,
        ..one(FrameClass::Slab)
    };
    while memory.allocate(&atomic).is_some() {}
    assert!(!memory.compact_around(76, &mut ()));
    assert_eq!(memory.counters().frames_moved_from_isolated, 0);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn compaction_that_failed_is_put_off_for_longer_and_longer() {
    let mut memory = chequered(16);
    // An unmovable page in each pageblock: nothing can be emptied.
    for block in 0..8 {
        let first = block * BLOCK_FRAMES;
        let free = (first..first + BLOCK_FRAMES)
            .map(Frame::new)
            .find(|&frame| memory.allocate_at(frame, FrameClass::Slab).is_ok());
        assert!(free.is_some());
    }
    let runs: Vec<u64> = (0..200)
        .map(|_| {
            assert!(!memory.compact_for(Order::HUGE_2M, &mut ()));
            memory.counters().direct_compactions
        })
        .collect();
    let deferred = memory.counters().compactions_deferred;
    assert_eq!(runs[199] + deferred, 200);
    // After a failure the next 1, 3, 7 ... 63 attempts do nothing.
    assert!((5..=9).contains(&runs[199]), "{} runs", runs[199]);
}

#[test]
fn proactive_compaction_runs_by_itself_where_it_is_on() {
    for (proactiveness, runs) in [(0, false), (20, true)] {
        let config = Config {
            compaction_proactiveness: proactiveness,
            ..Config::default()
        };
        let mut memory = memory_with(64, Placement::default(), config);
        let mut frames = Vec::new();
        while let Some(frame) = memory.allocate(&grouped(FrameClass::Anonymous, 0)) {
            frames.push(frame);
        }
        for frame in frames.into_iter().filter(|frame| frame.get() % 2 == 0) {
            memory.free(frame).unwrap();
        }
        memory.drain_per_cpu();
        for second in 1..20 {
            memory.background(Nanoseconds::new(second * 1_000_000_000), &mut ());
        }
        let counters = memory.counters();
        assert_eq!(counters.proactive_compactions > 0, runs);
        assert_eq!(counters.frames_compacted_background > 0, runs);
    }
}

#[test]
fn atomic_requests_of_several_frames_keep_a_pageblock_for_themselves() {
    let mut memory = linux(256);
    let request = Request {
        atomic: true,
        ..Request::new(Order::new(3), FrameClass::NetworkBuffer)
    };
    memory.allocate(&request).unwrap();
    assert_eq!(memory.counters().blocks_reserved_high_atomic, 1);
    while memory.allocate(&one(FrameClass::Slab)).is_some() {}
    assert!(memory.allocate(&request).is_some(), "the reserve serves it");
    // A request that waits gets the reserve when nothing else helps.
    while memory
        .allocate_or_reclaim(&one(FrameClass::Slab), &mut ())
        .is_some()
    {}
    assert!(memory.counters().blocks_unreserved_high_atomic > 0);
    assert_eq!(memory.validate(), Ok(()));
}

#[test]
fn a_pin_pollutes_the_pageblock_where_the_page_is() {
    let mut memory = linux(64);
    let frame = memory.allocate(&one(FrameClass::Anonymous)).unwrap();
    assert_eq!(memory.contiguity().blocks_2m.unmovable, 0);
    assert_eq!(memory.pin(frame, &mut ()), Ok(frame));
    assert_eq!(memory.contiguity().blocks_2m.unmovable, 1);
    assert_eq!(memory.unpin(frame, &mut ()), Ok(frame));
    assert_eq!(memory.contiguity().blocks_2m.unmovable, 0);
    assert_eq!(memory.counters().pins, 1);
    assert_eq!(memory.counters().pin_migrations, 0);
}

#[test]
fn a_gigabyte_is_emptied_if_nothing_in_it_stays() {
    let mut memory = linux(3072);
    for gigabyte in [0, 2] {
        memory
            .allocate_at(Frame::new(gigabyte << 18), FrameClass::Slab)
            .unwrap();
    }
    for i in 0..4000 {
        let order = if i % 40 == 0 {
            Order::HUGE_2M
        } else {
            Order::BASE
        };
        let request = Request {
            order,
            ..grouped(FrameClass::Anonymous, 0)
        };
        memory.allocate(&request).unwrap();
    }
    // Something is in the middle gigabyte as well.
    memory
        .allocate_block_at(
            Frame::new((1 << 18) + 7),
            &grouped(FrameClass::Anonymous, 0),
        )
        .unwrap();
    let found = memory.allocate_contiguous(Order::HUGE_1G, FrameClass::Anonymous, &mut ());
    assert_eq!(found, Some(Frame::new(1 << 18)));
    assert_eq!(memory.counters().contiguous_allocations, 1);
    assert_eq!(memory.validate(), Ok(()));
    let again = memory.allocate_contiguous(Order::HUGE_1G, FrameClass::Anonymous, &mut ());
    assert_eq!(again, None);
}

#[test]
fn frames_come_from_a_cpus_own_list_in_batches() {
    let mut memory = linux(64);
    let frames: Vec<Frame> = (0..126)
        .map(|_| memory.allocate(&one(FrameClass::Anonymous)).unwrap())
        .collect();
    assert_eq!(memory.counters().per_cpu_refills, 2);
    // What was freed last is used first.
    let last = frames[7];
    memory.free(last).unwrap();
    assert_eq!(memory.allocate(&one(FrameClass::Anonymous)), Some(last));
}

#[test]
fn a_smaller_reserve_can_be_set() {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let mut memory = memory_with(16, Placement::default(), config);
    while memory.allocate(&one(FrameClass::Anonymous)).is_some() {}
    assert_eq!(memory.free_frames(), 0);
}

#[test]
fn the_state_of_a_64_gigabyte_server_fits_in_300_megabytes() {
    let layout = Layout::new(16 << 20, 4096, 16);
    assert!(layout.bytes() < 300_000_000, "{} bytes", layout.bytes());
}

#[test]
fn per_cpu_lists_are_bounded_across_types() {
    let config = Config {
        per_cpu_batch: 8,
        per_cpu_high: 32,
        ..uncompacted()
    };
    let mut memory = memory_with(64, Placement::default(), config);
    let classes = [FrameClass::Anonymous, FrameClass::Slab];
    let mut taken: Vec<Frame> = Vec::new();
    for _ in 0..40 {
        taken.extend(classes.map(|class| memory.allocate(&one(class)).unwrap()));
    }
    for frame in taken {
        memory.free(frame).unwrap();
        assert!(memory.at_hand() <= 32, "{}", memory.at_hand());
    }
    // Linux compares what is on all lists of a CPU (`free_unref_page_commit`).
    assert!(memory.at_hand() > 32 - 8);
    memory.drain_per_cpu();
    assert_eq!(memory.at_hand(), 0);
    memory.validate().unwrap();
}

#[test]
fn a_free_block_that_is_listed_first_is_taken_next() {
    let mut memory = memory_with(64, Placement::default(), uncompacted());
    let order = Order::BUDDY_MAX;
    let listed = memory.listed(MigrateType::Movable, order);
    assert_eq!(listed, 16);
    let last = Frame::new(15 * order.frames());
    assert!(memory.list_first(last));
    assert!(!memory.list_first(last.offset(1)));
    let request = Request::new(order, FrameClass::Anonymous);
    assert_eq!(memory.allocate(&request), Some(last));
    assert_eq!(memory.listed(MigrateType::Movable, order), listed - 1);
    memory.validate().unwrap();
}

#[test]
fn per_cpu_lists_do_not_block_compaction() {
    let config = Config {
        per_cpu_batch: 8,
        per_cpu_high: 2500,
        ..Config::default()
    };
    let mut memory = memory_with(64, Placement::default(), config);
    let mut taken = Vec::new();
    while let Some(frame) = memory.allocate(&grouped(FrameClass::Anonymous, 0)) {
        taken.push(frame);
    }
    // Every fourth page is free, and every other of them at hand: some in every pageblock.
    for first in [0, 4] {
        for &frame in taken.iter().skip(first).step_by(8) {
            memory.free(frame).unwrap();
        }
    }
    assert!(memory.at_hand() > 2000);
    assert!(!memory.has_free_block(Order::HUGE_2M));
    memory.background(Nanoseconds::new(1_000_000_000), &mut ());
    assert!(memory.has_free_block(Order::HUGE_2M));
    memory.validate().unwrap();
}
