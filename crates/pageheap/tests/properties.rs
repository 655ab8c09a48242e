//! The properties that the published design has, one test each, and the numbers of its figures.

use crate::common::{MB, MB_PAGES, SECOND, TestOs, World};
use contigua_pageheap::replay::{Removal, Settings, Summary, replay, spikes, square_wave};
use contigua_pageheap::{
    Config, HUGE_BYTES, HUGE_PAGES, PAGE_BYTES, PageHeap, Primary, Span, Supply,
};
use std::rc::Rc;

const HUGE: u64 = HUGE_BYTES as u64;
const MB64: u64 = MB as u64;

/// A heap with `count` huge pages of which each has only its first page used, and those pages.
fn sparse(world: &Rc<World>, config: Config, count: u32) -> (PageHeap<TestOs>, Vec<Span>) {
    let mut heap = PageHeap::new(TestOs::new(world), config);
    let allocate = |heap: &mut PageHeap<TestOs>, pages| heap.allocate(pages, 1).unwrap().span;
    let mut kept = Vec::new();
    let mut rest = Vec::new();
    for _ in 0..count {
        kept.push(allocate(&mut heap, 1));
        rest.push(allocate(&mut heap, HUGE_PAGES - 1));
    }
    for span in rest {
        assert!(heap.free(span));
    }
    assert_eq!(heap.statistics().mapped, u64::from(count) * HUGE);
    (heap, kept)
}

fn seconds(world: &World, heap: &mut PageHeap<TestOs>, count: u64) -> u64 {
    let mut released = 0;
    for _ in 0..count {
        world.pass(SECOND);
        released += heap.periodic().bytes();
        if !cfg!(miri) {
            assert_eq!(heap.validate(), Ok(()));
        }
    }
    released
}

#[test]
fn g7_1_periodic_release_never_goes_below_the_recent_peak() {
    let world = World::new();
    let config = Config {
        release_rate: 10 << 20,
        ..Config::DEFAULT
    };
    let (mut heap, _kept) = sparse(&world, config, 50);
    // Just under Δ after the peak nothing goes, then it goes at the rate.
    assert_eq!(seconds(&world, &mut heap, 60), 0);
    assert_eq!(heap.statistics().mapped, 100 * MB64);
    let released = seconds(&world, &mut heap, 1);
    assert_eq!(released, 10 * MB64);
    assert_eq!(heap.statistics().mapped, 90 * MB64);
    // A new peak of 85 MB holds what is mapped at 85 MB, to the page.
    let used = heap.statistics().used;
    let peak = heap
        .allocate(85 * MB_PAGES - (used / PAGE_BYTES as u64) as u32, 1)
        .unwrap();
    heap.free(peak.span);
    seconds(&world, &mut heap, 59);
    assert!(heap.statistics().mapped >= 85 * MB64);
}

#[test]
fn g7_1_the_bound_is_kept_to_the_page() {
    let world = World::new();
    let config = Config {
        release_rate: 1 << 30,
        ..Config::DEFAULT
    };
    let (mut heap, _kept) = sparse(&world, config, 10);
    seconds(&world, &mut heap, 30);
    // 3 huge pages and 7 pages used at the peak within Δ, most of it still mapped then.
    let more = heap.allocate(3 * HUGE_PAGES + 7 - 10, 1).unwrap();
    assert!(heap.free(more.span));
    let peak = u64::from(3 * HUGE_PAGES + 7) * PAGE_BYTES as u64;
    seconds(&world, &mut heap, 32);
    assert_eq!(heap.statistics().recent_peak_used, peak);
    assert_eq!(heap.statistics().mapped, peak);
}

#[test]
fn g7_2_an_interval_of_zero_is_the_static_rate() {
    let world = World::new();
    let config = Config {
        release_rate: 3 << 20,
        interval: 0,
        ..Config::DEFAULT
    };
    let (mut heap, kept) = sparse(&world, config, 20);
    // 40 MB mapped, 20 pages used: 3 MB go each second until only those are left.
    let free = 20 * (HUGE - PAGE_BYTES as u64);
    for second in 1..=20 {
        seconds(&world, &mut heap, 1);
        let expected = (second * 3 * MB64).min(free);
        assert_eq!(heap.statistics().released_broken, expected);
    }
    assert_eq!(
        heap.statistics().mapped,
        kept.len() as u64 * PAGE_BYTES as u64
    );
    assert_eq!(heap.statistics().skipped, 0);
}

#[test]
fn g7_2_whole_huge_pages_keep_the_static_rate_over_time() {
    let world = World::new();
    let config = Config {
        release_rate: MB64,
        interval: 0,
        ..Config::DEFAULT
    };
    let mut heap = PageHeap::new(TestOs::new(&world), config);
    let large = heap.allocate(20 * HUGE_PAGES, 1).unwrap();
    heap.free(large.span);
    // 1 MB a second: a huge page every other second.
    assert_eq!(seconds(&world, &mut heap, 1), HUGE);
    assert_eq!(seconds(&world, &mut heap, 1), 0);
    assert_eq!(seconds(&world, &mut heap, 8), 4 * HUGE);
    assert_eq!(heap.statistics().mapped, 15 * HUGE);
}

/// Nothing goes back at a rate, and what was not needed for a second by half in each one.
fn decaying() -> Config {
    Config {
        release_rate: 0,
        cache_interval: SECOND,
        half_life: SECOND,
        ..Config::DEFAULT
    }
}

#[test]
fn does_half_of_what_nobody_needs_go_back_within_each_half_life() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), decaying());
    let span = heap.allocate(64 * HUGE_PAGES, 1).unwrap().span;
    world.pass(10 * SECOND);
    assert!(heap.free(span));
    // The peak is a second old, then it is forgotten.
    assert_eq!(seconds(&world, &mut heap, 1), 0);
    for left in [32, 16, 8, 4, 2, 1, 0, 0] {
        seconds(&world, &mut heap, 1);
        assert_eq!(heap.statistics().mapped, left * HUGE, "{left} of 64");
    }
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn does_memory_stay_that_is_needed_every_second() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), decaying());
    for _ in 0..20 {
        let span = heap.allocate(64 * HUGE_PAGES, 1).unwrap().span;
        assert!(heap.free(span));
        assert_eq!(seconds(&world, &mut heap, 1), 0);
    }
    assert_eq!(heap.statistics().backed_total, 64 * HUGE);
}

#[test]
fn do_huge_pages_in_use_decay_only_after_the_interval() {
    let world = World::new();
    let (mut heap, kept) = sparse(&world, decaying(), 32);
    assert_eq!(seconds(&world, &mut heap, 60), 0);
    let free = heap.statistics().free_mapped;
    let pages = free / PAGE_BYTES as u64;
    assert_eq!(heap.spare(), (pages, 0));
    let first = seconds(&world, &mut heap, 1);
    assert_eq!(heap.spare().1, pages - first / PAGE_BYTES as u64);
    assert!(first.abs_diff(free / 2) < HUGE / 2, "{first} of {free}");
    seconds(&world, &mut heap, 30);
    assert_eq!(heap.statistics().free_mapped, 0);
    assert!(kept.iter().all(|&span| heap.is_allocated(span)));
}

/// Configuration that also releases early where that was no mistake yet.
fn hasty() -> Config {
    Config {
        first_interval: SECOND,
        ..decaying()
    }
}

#[test]
fn do_huge_pages_decay_early_until_demand_comes_back_for_them() {
    let world = World::new();
    let (mut heap, kept) = sparse(&world, hasty(), 32);
    assert_eq!(seconds(&world, &mut heap, 1), 0);
    seconds(&world, &mut heap, 20);
    assert_eq!(heap.statistics().free_mapped, 0);
    // A second wave within Δ: from now on Δ is what it is.
    let wave: Vec<_> = kept
        .iter()
        .map(|_| heap.allocate(HUGE_PAGES - 1, 1).unwrap().span)
        .collect();
    for span in wave {
        assert!(heap.free(span));
    }
    assert_eq!(seconds(&world, &mut heap, 60), 0);
    assert_eq!(
        heap.statistics().free_mapped,
        32 * (HUGE - PAGE_BYTES as u64)
    );
    assert!(seconds(&world, &mut heap, 1) > 0);
    assert!(kept.iter().all(|&span| heap.is_allocated(span)));
}

#[test]
fn does_a_heap_that_grows_break_no_huge_page_early() {
    let mapped = [hasty(), decaying()].map(|config| {
        let world = World::new();
        let mut heap = PageHeap::new(TestOs::new(&world), config);
        let mut statistics = Vec::new();
        for _ in 0..100 {
            // More is used each second, and a quarter of it is free space between.
            let all: Vec<_> = (0..64)
                .map(|_| heap.allocate(16, 1).unwrap().span)
                .collect();
            for span in all.iter().step_by(4) {
                assert!(heap.free(*span));
            }
            seconds(&world, &mut heap, 1);
            let now = heap.statistics();
            statistics.push((now.mapped, now.broken_total));
        }
        statistics
    });
    assert_eq!(mapped[0], mapped[1]);
}

#[test]
fn are_free_parts_of_huge_pages_no_reason_to_keep_whole_ones() {
    let world = World::new();
    let huge = u64::from(HUGE_PAGES);
    let mut heap = PageHeap::new(TestOs::new(&world), hasty());
    let large = heap.allocate(90 * HUGE_PAGES, 1).unwrap().span;
    let small: Vec<_> = (0..10 * HUGE_PAGES)
        .map(|_| heap.allocate(1, 1).unwrap().span)
        .collect();
    // One page of each huge page stays.
    for span in small.chunks(HUGE_PAGES as usize).flat_map(|of| &of[1..]) {
        assert!(heap.free(*span));
    }
    assert!(heap.free(large));
    assert_eq!(heap.statistics().mapped, 100 * HUGE_BYTES as u64);
    assert_eq!(heap.surplus(0), 90 * huge - 10);
}

#[test]
fn surplus_is_known_at_once_until_demand_returns() {
    let world = World::new();
    let huge = u64::from(HUGE_PAGES);
    let mut heap = PageHeap::new(TestOs::new(&world), hasty());
    let wave = |heap: &mut PageHeap<TestOs>| {
        let small = heap.allocate(10 * HUGE_PAGES, 1).unwrap().span;
        let large = heap.allocate(90 * HUGE_PAGES, 1).unwrap().span;
        assert_eq!(heap.surplus(0), 0);
        assert!(heap.free(large));
        small
    };
    let small = wave(&mut heap);
    assert_eq!(
        (heap.surplus(0), heap.surplus(50 * huge)),
        (80 * huge, 40 * huge)
    );
    assert_eq!(heap.release_whole_pages(80 * huge, u64::MAX), 80 * huge);
    heap.note_early();
    assert_eq!((heap.surplus(0), heap.validate()), (0, Ok(())));
    assert!(heap.free(small));
    wave(&mut heap);
    assert_eq!(heap.surplus(0), 0);
    world.pass(601 * SECOND);
    assert_eq!(heap.surplus(0), 80 * huge);
    heap.set_half_life(0);
    assert_eq!(heap.surplus(0), 0);
}

/// Frees a span and allocates as much, `count` times, with a periodic release before each.
fn cycle(world: &World, heap: &mut PageHeap<TestOs>, period: u64, count: u32) -> u64 {
    let before = heap.statistics().backed_total;
    for _ in 0..count {
        let span = heap.allocate(64 * HUGE_PAGES, 1).unwrap().span;
        assert!(heap.free(span));
        seconds(world, heap, period);
    }
    heap.statistics().backed_total - before
}

#[test]
fn memory_that_returned_is_kept_from_the_next_cycle_on() {
    for period in [3, 7, 25] {
        let world = World::new();
        let mut heap = PageHeap::new(TestOs::new(&world), hasty());
        // Once for the first use, once because nobody could know.
        let cost = cycle(&world, &mut heap, period, 20);
        assert!(cost <= 2 * 64 * HUGE, "{} times", cost / (64 * HUGE));
        // A program that is idle then has no more than it uses.
        seconds(&world, &mut heap, 4 * period + 80);
        assert_eq!(heap.statistics().mapped, 0);
        assert_eq!(heap.validate(), Ok(()));
        // And once nothing returned within the interval, memory goes back as early as at first.
        let span = heap.allocate(64 * HUGE_PAGES, 1).unwrap().span;
        assert!(heap.free(span));
        seconds(&world, &mut heap, 12);
        assert_eq!(heap.statistics().mapped, 0);
    }
}

#[test]
fn memory_that_is_free_but_not_in_a_row_is_demand() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), hasty());
    let all: Vec<_> = (0..64)
        .map(|_| heap.allocate(HUGE_PAGES, 1).unwrap().span)
        .collect();
    for span in all.iter().step_by(2) {
        assert!(heap.free(*span));
    }
    // 32 huge pages are free, and no two in a row.
    for _ in 0..10 {
        assert!(heap.allocate(2 * HUGE_PAGES, 1).is_some());
        assert_eq!(seconds(&world, &mut heap, 1), 0);
    }
    // No such request came for a second: it is free.
    assert_eq!(seconds(&world, &mut heap, 1), 16 * HUGE);
}

#[test]
fn parts_go_back_beside_a_whole_huge_page_that_is_used_now_and_then() {
    let world = World::new();
    let (mut heap, _kept) = sparse(&world, hasty(), 32);
    for _ in 0..30 {
        let span = heap.allocate(HUGE_PAGES, 1).unwrap().span;
        assert!(heap.free(span));
        seconds(&world, &mut heap, 1);
    }
    assert!(heap.statistics().free_mapped <= 4 * HUGE);
}

#[test]
fn a_row_says_which_of_its_bytes_may_not_be_zero() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let row = heap.allocate(4 * HUGE_PAGES, 1).unwrap();
    assert!(row.is_zeroed());
    let huge = HUGE_BYTES;
    let part = Span {
        address: row.span.address + huge,
        pages: 2 * HUGE_PAGES,
    };
    assert!(heap.free(row.span));
    assert_eq!(heap.release(4 * huge), 4 * huge);
    let used = heap.allocate(4 * HUGE_PAGES, 1).unwrap().span;
    assert!(heap.free(part));
    assert_eq!(heap.release(2 * huge), 2 * huge);
    assert!(heap.free(Span {
        address: used.address,
        pages: HUGE_PAGES
    }));
    let mixed = heap.allocate(3 * HUGE_PAGES, 1).unwrap();
    assert_eq!((mixed.span.address, mixed.dirty()), (used.address, 0..huge));
}

#[test]
fn decay_over_a_long_pause_counts_each_half_life() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), decaying());
    let span = heap.allocate(64 * HUGE_PAGES, 1).unwrap().span;
    assert!(heap.free(span));
    assert!(heap.is_decaying(64 * u64::from(HUGE_PAGES)));
    world.pass(30 * SECOND);
    assert_eq!(heap.periodic().bytes(), 64 * HUGE);
    assert!(!heap.is_decaying(1));
    heap.set_half_life(0);
    let span = heap.allocate(64 * HUGE_PAGES, 1).unwrap().span;
    assert!(heap.free(span));
    assert_eq!(seconds(&world, &mut heap, 30), 0);
}

#[test]
fn g7_3_an_explicit_release_ignores_the_interval() {
    let world = World::new();
    let (mut heap, kept) = sparse(&world, Config::DEFAULT, 10);
    assert_eq!(seconds(&world, &mut heap, 5), 0);
    assert_eq!(heap.release(5 * MB), 5 * MB);
    assert_eq!(heap.release(usize::MAX), 15 * MB - kept.len() * PAGE_BYTES);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn does_an_attempt_say_what_must_go_back_and_give_nothing_back() {
    let world = World::new();
    let (mut heap, _kept) = sparse(&world, Config::DEFAULT, 10);
    let releases = world.releases.borrow().len();
    // 20 MB are mapped, and no run of 14 MB is free among them.
    heap.change_limits(u64::MAX, 24 * MB64);
    let tried = heap
        .try_allocate(14 * MB_PAGES, 1, Supply::Direct)
        .expect("memory comes at once");
    assert_eq!(tried.allocated, None);
    assert_eq!(tried.excess, u64::from(10 * MB_PAGES));
    heap.change_limits(20 * MB64, u64::MAX);
    let tried = heap
        .try_allocate(14 * MB_PAGES, 1, Supply::Direct)
        .expect("memory comes at once");
    assert!(tried.allocated.is_some());
    assert_eq!(tried.excess, u64::from(14 * MB_PAGES));
    assert_eq!(heap.excess(), tried.excess);
    // What a limit forbids even without free memory is not made room for.
    heap.change_limits(u64::MAX, 24 * MB64);
    assert_eq!(
        heap.try_allocate(24 * MB_PAGES, 1, Supply::Direct)
            .expect("memory comes at once")
            .excess,
        0
    );
    assert_eq!(world.releases.borrow().len(), releases);
    assert_eq!(heap.statistics().limit_failures, 0);
    heap.count_for_limit(3);
    assert_eq!(heap.statistics().released_for_limit, 3 * PAGE_BYTES as u64);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn g7_3_a_limit_ignores_the_interval() {
    let world = World::new();
    let (mut heap, kept) = sparse(&world, Config::DEFAULT, 10);
    heap.set_limits(15 * MB64, u64::MAX);
    assert_eq!(heap.statistics().mapped, 15 * MB64);
    assert_eq!(heap.statistics().released_for_limit, 5 * MB64);
    // What fits under the hard limit is served, what does not is refused, and nothing is lost.
    heap.set_limits(u64::MAX, 15 * MB64);
    assert!(heap.allocate(14 * MB_PAGES, 1).is_some());
    assert!(heap.statistics().mapped <= 15 * MB64);
    assert!(heap.allocate(MB_PAGES, 1).is_none());
    assert_eq!(heap.statistics().limit_failures, 1);
    assert!(kept.iter().all(|&span| heap.is_allocated(span)));
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn g7_4_whole_huge_pages_go_before_any_is_broken() {
    let world = World::new();
    let config = Config {
        release_rate: 1 << 20,
        interval: 0,
        ..Config::DEFAULT
    };
    let (mut heap, _kept) = sparse(&world, config, 5);
    let large = heap.allocate(3 * HUGE_PAGES, 1).unwrap();
    heap.free(large.span);
    assert_eq!(heap.statistics().cached, 3 * HUGE);
    seconds(&world, &mut heap, 5);
    assert_eq!(heap.statistics().broken_total, 0);
    assert_eq!(heap.statistics().cached, 0);
    // The last was given back a second early.
    seconds(&world, &mut heap, 1);
    assert_eq!(heap.statistics().broken_total, 0);
    seconds(&world, &mut heap, 1);
    assert_eq!(heap.statistics().broken_total, 1);
    heap.release(4 * MB);
    assert_eq!(heap.statistics().broken_total, 3);
}

#[test]
fn g7_4_the_emptiest_huge_pages_are_broken_first() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let full: Vec<Span> = (0..4)
        .map(|_| heap.allocate(HUGE_PAGES - 1, 1).unwrap().span)
        .collect();
    // 200, 100, 50 and 150 pages stay.
    for (span, kept) in full.iter().zip([200, 100, 50, 150]) {
        heap.shrink_in_place(*span, kept);
    }
    for (bytes, broken) in [(100, 1), (106, 1), (100, 2), (56, 2), (106, 3), (1, 4)] {
        heap.release(bytes * PAGE_BYTES);
        assert_eq!(heap.statistics().broken_total, broken);
        assert_eq!(heap.validate(), Ok(()));
    }
}

fn wave(period: u64, schedule: u64, end: u64) -> Vec<contigua_pageheap::replay::Sample> {
    let config = Config {
        release_rate: 0,
        schedule,
        ..Config::DEFAULT
    };
    let settings = Settings {
        config,
        sizes: vec![MB_PAGES],
        ..Settings::default()
    };
    replay(
        &square_wave(500 * MB64, 1000 * MB64, period, end),
        end,
        &settings,
    )
}

#[test]
fn g7_5_a_fast_square_wave_has_average_250_and_realized_0() {
    let samples = wave(20 * SECOND, 300 * SECOND, 1200 * SECOND);
    for sample in &samples {
        let figures = &sample.statistics;
        assert_eq!(figures.mapped, 1000 * MB64, "at {}", sample.time);
        assert_eq!(figures.realized_fragmentation, 0);
        assert!(figures.realized_fragmentation <= figures.average_fragmentation);
        // The window is full and holds whole periods.
        if sample.time >= 300 * SECOND && sample.time.is_multiple_of(20 * SECOND) {
            assert_eq!(
                figures.average_fragmentation,
                250 * MB64,
                "at {}",
                sample.time
            );
        }
    }
    let full: Vec<_> = samples
        .into_iter()
        .filter(|s| s.time >= 300 * SECOND)
        .collect();
    let summary = Summary::of(&full[..800]);
    assert!((summary.average_fragmentation - 250.0 * MB as f64).abs() < 1.0);
}

#[test]
fn g7_5_a_slow_square_wave_makes_both_converge() {
    let minute = 60 * SECOND;
    let mut last = 0.0;
    // Figure 5 has a window of a minute.
    for (period, share) in [
        (minute, 0.0),
        (4 * minute, 0.45),
        (20 * minute, 0.88),
        (200 * minute, 0.985),
    ] {
        let end = 3 * period;
        let samples = wave(period, minute, end);
        let last_two: Vec<_> = samples.into_iter().filter(|s| s.time >= period).collect();
        let summary = Summary::of(&last_two);
        let reached = summary.realized_fragmentation / summary.average_fragmentation;
        assert!(reached >= share && reached <= 1.0, "{reached} at {period}");
        assert!(reached >= last);
        last = reached;
    }
}

#[test]
fn g7_6_correct_and_incorrect_make_up_what_was_skipped() {
    let world = World::new();
    let config = Config {
        release_rate: 10 << 20,
        ..Config::DEFAULT
    };
    let (mut heap, _kept) = sparse(&world, config, 50);
    seconds(&world, &mut heap, 3);
    let figures = heap.statistics();
    assert_eq!(
        (figures.skipped, figures.skipped_open),
        (30 * MB64, 30 * MB64)
    );
    // The slices are 90 to 100, 80 to 90 and 70 to 80 MB; demand of 85 MB comes.
    let used = (heap.statistics().used / PAGE_BYTES as u64) as u32;
    let peak = heap.allocate(85 * MB_PAGES - used, 1).unwrap();
    heap.free(peak.span);
    let figures = heap.statistics();
    let mapped_more = figures.mapped - 100 * MB64;
    assert_eq!(figures.skipped_correct, 15 * MB64, "{mapped_more}");
    assert_eq!(figures.skipped_open, 15 * MB64);
    heap.set_policy(0, config.interval, config.cache_interval);
    // At the end of the epoch in which Δ ends, and not before.
    seconds(&world, &mut heap, 58);
    assert_eq!(heap.statistics().skipped_incorrect, 0);
    seconds(&world, &mut heap, 10);
    let figures = heap.statistics();
    assert_eq!(figures.skipped_incorrect, 15 * MB64);
    assert_eq!(
        figures.skipped,
        figures.skipped_correct + figures.skipped_incorrect
    );
}

#[test]
fn g7_7_the_clock_is_read_once_a_change() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let first = heap.allocate(1, 1).unwrap();
    let reads = world.clock_reads.get();
    for _ in 0..1000 {
        let one = heap.allocate(1, 1).unwrap();
        heap.free(one.span);
    }
    assert_eq!(world.clock_reads.get() - reads, 2000);
    heap.free(first.span);
}

#[test]
fn do_epochs_hold_every_peak_and_trough() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    heap.allocate(MB_PAGES, 1).unwrap();
    world.pass(SECOND / 2);
    let peak = heap.allocate(MB_PAGES, 1).unwrap();
    heap.free(peak.span);
    world.pass(5 * SECOND);
    heap.release(1);
    let epochs: Vec<_> = heap.epochs().collect();
    // The first second, with its peak, and the four in which nothing happened.
    let [first, idle] = epochs[..] else {
        panic!("{epochs:?}");
    };
    assert_eq!((first.duration, idle.duration), (SECOND, 4 * SECOND));
    assert_eq!((first.end, idle.end), (1001 * SECOND, 1005 * SECOND));
    assert_eq!(first.used, [0, 2 * MB64]);
    assert_eq!(first.free_mapped, [0, MB64]);
    assert_eq!((idle.used, idle.free_mapped), ([MB64; 2], [MB64; 2]));
    world.pass(400 * SECOND);
    heap.release(1);
    assert_eq!(heap.epochs().count(), 1);
}

#[test]
fn g7_8_contents_survive_every_kind_of_release() {
    let world = World::new();
    let config = Config {
        release_rate: 1 << 40,
        interval: 0,
        ..Config::DEFAULT
    };
    let mut heap = PageHeap::new(TestOs::new(&world), config);
    let spans: Vec<Span> = (0..2000)
        .map(|i| heap.allocate(1 + i % 7, 1).unwrap().span)
        .collect();
    for (stamp, &span) in spans.iter().enumerate() {
        world.write(span, stamp as u64);
    }
    for span in spans.iter().step_by(2) {
        heap.free(*span);
    }
    seconds(&world, &mut heap, 1);
    heap.release(usize::MAX);
    heap.set_limits(1, u64::MAX);
    assert_eq!(heap.statistics().mapped, heap.statistics().used);
    for (stamp, &span) in spans.iter().enumerate().skip(1).step_by(2) {
        assert!(world.holds(span, stamp as u64));
    }
}

#[test]
fn does_a_broken_huge_page_become_whole_when_its_memory_is_back() {
    let world = World::new();
    let (mut heap, _kept) = sparse(&world, Config::DEFAULT, 1);
    heap.release(MB);
    let figures = heap.statistics();
    assert_eq!((figures.huge_broken, figures.huge_intact), (1, 0));
    assert!(figures.coverage() < 0.01);
    seconds(&world, &mut heap, 2);
    assert_eq!(world.collapses.get(), 0, "not while memory is missing");
    heap.allocate(HUGE_PAGES - 1, 1).unwrap();
    assert_eq!(heap.statistics().refaulted, MB64);
    world.collapse_works.set(false);
    seconds(&world, &mut heap, 1);
    assert_eq!(heap.statistics().huge_broken, 1);
    world.collapse_works.set(true);
    seconds(&world, &mut heap, 1);
    let figures = heap.statistics();
    assert_eq!((figures.huge_broken, figures.huge_intact), (0, 1));
    assert!((figures.coverage() - 1.0).abs() < 1e-9);
    assert_eq!(figures.collapsed_total, 1);
}

#[test]
fn is_a_huge_page_free_that_was_freed_while_the_system_made_it_whole() {
    let world = World::new();
    let (mut heap, kept) = sparse(&world, Config::DEFAULT, 1);
    heap.release(MB);
    let rest = heap.allocate(HUGE_PAGES - 1, 1).unwrap();
    let address = heap.begin_collapse().unwrap();
    for span in kept.into_iter().chain([rest.span]) {
        assert!(heap.free(span));
    }
    assert!(heap.end_collapse(address));
    assert_eq!(heap.validate(), Ok(()));
    assert!(heap.release(usize::MAX) > 0);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn does_a_broken_huge_page_that_is_free_come_back_whole() {
    let world = World::new();
    let (mut heap, kept) = sparse(&world, Config::DEFAULT, 1);
    heap.release(MB);
    heap.free(kept[0]);
    assert_eq!(heap.statistics().mapped, MB64);
    let again = heap.allocate(1, 1).unwrap();
    assert!(again.is_zeroed());
    let figures = heap.statistics();
    assert_eq!((figures.huge_broken, figures.mapped), (0, HUGE));
}

#[test]
fn are_tails_of_large_allocations_used_last_and_given_up_with_them() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let large = heap.allocate(HUGE_PAGES + 10, 1).unwrap();
    assert_eq!(heap.statistics().mapped, 2 * HUGE);
    let tail = heap.allocate(1, 1).unwrap();
    assert!(tail.span.address > large.span.address + HUGE_BYTES);
    heap.free(tail.span);
    heap.free(large.span);
    assert_eq!(heap.statistics().cached, 2 * HUGE);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn do_awkward_sizes_share_huge_pages_in_a_region() {
    let awkward = HUGE_PAGES / 2 + 22;
    let mapped = |region_slack| {
        let world = World::new();
        let config = Config {
            region_slack,
            ..Config::DEFAULT
        };
        let mut heap = PageHeap::new(TestOs::new(&world), config);
        let spans: Vec<_> = (0..300)
            .map(|_| heap.allocate(awkward, 1).unwrap().span)
            .collect();
        assert_eq!(heap.validate(), Ok(()));
        let figures = heap.statistics();
        for span in spans {
            assert!(heap.free(span));
        }
        assert_eq!(heap.statistics().free_mapped, heap.statistics().cached);
        assert_eq!(heap.validate(), Ok(()));
        figures.mapped as f64 / figures.used as f64
    };
    assert!(mapped(u64::MAX) > 1.7);
    assert!(mapped(16 << 20) < 1.10);
    assert!(mapped(0) < 1.02);
}

#[test]
fn is_the_primary_region_served_first_and_kept() {
    let world = World::new();
    let primary = Primary {
        address: 1 << 35,
        bytes: 4 * HUGE_BYTES,
        releasable: false,
    };
    let config = Config {
        primary: Some(primary),
        ..Config::DEFAULT
    };
    let mut heap = PageHeap::new(TestOs::new(&world), config);
    let inside = |span: Span| {
        span.address >= primary.address && span.end() <= primary.address + primary.bytes
    };
    let first = heap.allocate(3 * HUGE_PAGES, 1).unwrap().span;
    let second = heap.allocate(HUGE_PAGES, 1).unwrap().span;
    let third = heap.allocate(HUGE_PAGES, 1).unwrap().span;
    assert_eq!([first, second, third].map(inside), [true, true, false]);
    heap.free(first);
    heap.free(third);
    assert_eq!(heap.release(usize::MAX), HUGE_BYTES);
    let again = heap.allocate(1, 1).unwrap();
    assert!(inside(again.span) && !again.is_zeroed());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn configuration_of_a_running_heap_can_change() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let first = heap.allocate(HUGE_PAGES, 1).unwrap().span;
    let primary = Primary {
        address: 1 << 35,
        bytes: HUGE_BYTES,
        releasable: true,
    };
    let config = Config {
        primary: Some(primary),
        hard_limit: 2 * HUGE,
        ..Config::DEFAULT
    };
    assert!(heap.configure(config));
    let second = heap.allocate(HUGE_PAGES, 1).unwrap().span;
    assert_eq!(second.address, primary.address);
    assert!(heap.allocate(1, 1).is_none());
    assert!(!heap.configure(Config::DEFAULT));
    assert_eq!(heap.config().primary, Some(primary));
    assert!(heap.allocate(1, 1).is_some());
    assert!(heap.free(first) && heap.free(second));
    assert_eq!(heap.validate(), Ok(()));
    // A region whose addresses the heap has already is none.
    let mut other = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let span = other.allocate(1, 1).unwrap().span;
    let address = span.address;
    let config = Config {
        primary: Some(Primary { address, ..primary }),
        ..Config::DEFAULT
    };
    assert!(!other.configure(config));
    assert_eq!(other.config().primary, None);
    assert_eq!(other.validate(), Ok(()));
}

#[test]
fn is_every_failure_of_the_system_survived() {
    // No metadata at all, or at any later time.
    for metadata in [0, 1 << 20, 3 << 20, 4 << 20] {
        let world = World::new();
        world.metadata.set(metadata);
        let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
        while heap.allocate(1 << 20, 1).is_some() {}
        assert_eq!(heap.validate(), Ok(()));
        assert_eq!(heap.statistics().system_failures, 1);
        world.metadata.set(usize::MAX);
        assert!(heap.allocate(1, 1).is_some());
    }
    // No memory: what is cached goes first.
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let cached = heap.allocate(2 * HUGE_PAGES, 1).unwrap();
    let between = heap.allocate(HUGE_PAGES, 1).unwrap();
    heap.free(cached.span);
    world.memory.set(0);
    assert!(heap.allocate(5 * HUGE_PAGES, 1).is_none());
    assert_eq!(heap.validate(), Ok(()));
    world.memory.set(3 * HUGE_BYTES);
    assert!(heap.allocate(3 * HUGE_PAGES, 1).is_some());
    world.memory.set(0);
    assert!(heap.allocate(HUGE_PAGES, 1).is_none());
    assert!(heap.free(between.span));
    assert_eq!(heap.validate(), Ok(()));
    // A system that takes nothing back.
    world.release_works.set(false);
    assert_eq!(heap.release(usize::MAX), 0);
    world.pass(SECOND);
    heap.periodic();
    assert_eq!(heap.validate(), Ok(()));
}

/// A limit that counts what is usable, with memory or without: strict overcommit, `RLIMIT_DATA`.
#[test]
fn freed_memory_serves_other_sizes_under_a_limit() {
    // An object that has huge pages of its own, and one that would lie in a region.
    for pages in [4 * HUGE_PAGES, 2 * HUGE_PAGES + HUGE_PAGES / 2] {
        let world = World::new();
        world.charges_usable.set(true);
        world.next_address.set(1 << 40);
        world.memory.set(512 * HUGE_BYTES);
        let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
        let first = heap.allocate(HUGE_PAGES, 1).unwrap().span;
        // The addresses that come next are lower, as Linux gives them.
        world.next_address.set(1 << 39);
        let mut kept = vec![first];
        while let Some(more) = heap.allocate(HUGE_PAGES, 1) {
            kept.push(more.span);
        }
        assert_eq!(kept.len(), 512);
        for span in kept {
            assert!(heap.free(span));
        }
        heap.release(usize::MAX);
        assert!(heap.allocate(pages, 1).is_some());
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn are_nonsensical_requests_refused() {
    let world = World::new();
    world.largest_reservation.set(1 << 40);
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    assert!(!heap.free(Span {
        address: 1 << 40,
        pages: 1
    }));
    assert_eq!(heap.release(usize::MAX), 0);
    assert_eq!(heap.periodic().bytes(), 0);
    assert!(heap.allocate(0, 1).is_none());
    assert!(heap.allocate(1, 0).is_none());
    assert!(heap.allocate(1, 3).is_none());
    assert!(heap.allocate(u32::MAX, 1).is_none());
    assert_eq!(heap.statistics().system_failures, 1);
    let one = heap.allocate(2, 1).unwrap().span;
    for (address, pages) in [
        (one.address + 1, 1),
        (one.address, 3),
        (one.address, 0),
        (one.address + 2 * PAGE_BYTES, 1),
        (usize::MAX & !(PAGE_BYTES - 1), 2),
        (1 << 60, 1),
    ] {
        assert!(!heap.free(Span { address, pages }), "{address:#x} {pages}");
    }
    assert!(
        heap.allocate(1, 1 << 31)
            .is_some_and(|a| a.span.address.is_multiple_of(1 << 44))
    );
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn can_spans_grow_over_every_border() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let span = heap.allocate(200, 1).unwrap().span;
    let span = heap.grow_in_place(span, 256).unwrap();
    let span = heap.grow_in_place(span, 257).unwrap();
    let span = heap.grow_in_place(span, 2000).unwrap();
    assert_eq!(heap.statistics().used, 2000 * PAGE_BYTES as u64);
    assert_eq!(heap.validate(), Ok(()));
    let other = heap.allocate(1, 1).unwrap().span;
    assert!(
        heap.grow_in_place(span, 2048).is_none(),
        "the tail has another user"
    );
    heap.free(other);
    let span = heap.grow_in_place(span, 2048).unwrap();
    let span = heap.shrink_in_place(span, 300);
    assert_eq!(heap.validate(), Ok(()));
    assert!(heap.free(span));
    // A small one does not take a huge page for itself.
    let small = heap.allocate(100, 1).unwrap().span;
    assert!(heap.grow_in_place(small, 128).is_some());
    let end = heap.allocate(128, 1).unwrap().span;
    assert_eq!(end.end() % HUGE_BYTES, 0);
    assert!(heap.grow_in_place(end, 128).is_none());
    assert!(heap.grow_in_place(small, 129).is_none());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn does_only_a_span_that_is_allocated_grow() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    let span = heap.allocate(10, 1).unwrap().span;
    let mid = Span {
        address: span.address + 8 * PAGE_BYTES,
        pages: 4,
    };
    assert!(heap.grow_in_place(mid, 8).is_none(), "half of it is free");
    assert!(heap.free(span));
    assert!(heap.grow_in_place(span, 20).is_none(), "it was freed");
    let nowhere = Span {
        address: 1 << 60,
        pages: 1,
    };
    assert!(heap.grow_in_place(nowhere, 2).is_none());
    assert_eq!(heap.statistics().used, 0);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn does_the_sweep_of_figure_11_have_its_shape() {
    // Section 5.5, in words: a rate of 0 has full coverage and most fragmentation; without Δ,
    // higher rates mean less coverage; a higher rate means less fragmentation; a longer Δ skips
    // more.
    let end = 1800 * SECOND;
    let trace = spikes(200 * MB64, 150 * MB64, 15 * SECOND, 60 * SECOND, end, 11);
    let run = |rate: u64, interval: u64| {
        let config = Config {
            release_rate: rate * MB64,
            interval: interval * SECOND,
            cache_interval: 0,
            collapses: 0,
            ..Config::DEFAULT
        };
        let settings = Settings {
            config,
            sizes: vec![1, 2, 1, 4, 1, 8, 3],
            removal: Removal::Random(7),
            ..Settings::default()
        };
        Summary::of(&replay(&trace, end, &settings))
    };
    let none = run(0, 60);
    assert!((none.coverage - 1.0).abs() < 1e-12);
    assert_eq!(none.skipped, 0);
    let static_rates = [1, 5, 20].map(|rate| run(rate, 0));
    for pair in static_rates.windows(2) {
        assert!(pair[0].coverage > pair[1].coverage);
        assert!(pair[0].average_fragmentation > pair[1].average_fragmentation);
    }
    assert!(none.average_fragmentation > static_rates[0].average_fragmentation);
    assert!(static_rates.iter().all(|summary| summary.skipped == 0));
    let intervals = [30, 60, 300].map(|interval| run(20, interval));
    for pair in intervals.windows(2) {
        assert!(pair[0].coverage <= pair[1].coverage);
        assert!(pair[0].skipped_correct <= pair[1].skipped_correct + 0.02);
    }
    assert!(static_rates[2].coverage < intervals[0].coverage);
    assert!(intervals[0].skipped > 0);
}

#[test]
fn does_memory_that_arrives_count_against_the_limit_from_the_start() {
    let world = World::new();
    let (mut heap, _kept) = sparse(&world, Config::DEFAULT, 1);
    heap.release(usize::MAX);
    assert_eq!(heap.statistics().mapped, PAGE_BYTES as u64);
    heap.change_limits(u64::MAX, HUGE + 100 * PAGE_BYTES as u64);
    let needed = heap.try_allocate(256, 1, Supply::Deferred).unwrap_err();
    let mut arrival = heap.begin_arrival(needed, Supply::Deferred);
    let other = heap
        .try_allocate(200, 1, Supply::Deferred)
        .expect("it is known");
    assert!(other.allocated.is_none() && other.limited);
    assert!(heap.advance(&mut arrival));
    arrival.work(|_, _| true, |_, _| unreachable!("nothing is broken"));
    assert!(!heap.advance(&mut arrival));
    let supply = heap.end_arrival(arrival);
    let served = heap.try_allocate(256, 1, supply).expect("it has arrived");
    assert!(served.allocated.is_some());
    assert_eq!(heap.validate(), Ok(()));
}
