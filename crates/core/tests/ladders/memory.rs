//! Loads, stores, misses and walks.

use super::{Answer, Core, FRAME, LINE, hit, lines, loads, miss, walk};
use crate::common::{load, operation, presets, skylake, store};
use contigua_core::{CoreConfig, Ports};
use contigua_program::decode::{Instruction, OperationClass as Class, RegisterSet};
use contigua_units::Cycles;

#[test]
fn do_dependent_loads_take_the_latency_of_the_first_level() {
    for config in presets() {
        let latency = u64::from(config.latency_cycles.load);
        let hits = vec![hit(0); 1000];
        assert_eq!(loads(&config, load(&[0], 0), &hits).done(), 1000 * latency);
    }
}

#[test]
fn do_independent_loads_share_the_load_ports() {
    for config in presets() {
        let ports = u64::from(config.ports.load.count());
        let latency = u64::from(config.latency_cycles.load);
        let cycles = 999_u64.div_ceil(ports) - 1 + latency;
        let hits = vec![hit(0); 999];
        assert_eq!(loads(&config, load(&[0], 1), &hits).done(), cycles);
    }
}

#[test]
fn do_dependent_misses_take_the_full_latency_each() {
    for config in presets() {
        let latency = u64::from(config.latency_cycles.load);
        let mut core = loads(&config, load(&[0], 0), &lines(100, 200));
        assert_eq!(core.done(), 100 * (200 + latency));
        assert_eq!(core.window.counters().miss_registers_full, 0);
        assert_eq!(core.window.breakdown().data, Cycles::new(100 * 200));
    }
}

#[test]
fn do_independent_misses_share_the_miss_registers() {
    for config in presets() {
        let registers = u64::from(config.miss_registers);
        let latency = u64::from(config.latency_cycles.load);
        let mut core = loads(&config, load(&[0], 1), &lines(registers * 5, 200));
        // They start together, and reach the cache one a cycle.
        assert_eq!(core.done(), 5 * 200 + (registers - 1) + latency);
        assert_eq!(core.window.counters().miss_registers_full, registers * 4);
    }
}

#[test]
fn do_lines_reach_the_first_level_one_in_an_interval() {
    for cycles in [1, 2, 3] {
        let mut config = skylake();
        config.fill_cycles = cycles;
        let latency = u64::from(config.latency_cycles.load);
        let mut core = loads(&config, load(&[0], 1), &lines(10, 60));
        assert_eq!(core.done(), 60 + 9 * u64::from(cycles) + latency);
        // Hits do not wait for them.
        let mut core = loads(&config, load(&[0], 1), &vec![hit(0); 10]);
        let ports = u64::from(config.ports.load.count());
        assert_eq!(core.done(), 10_u64.div_ceil(ports) - 1 + latency);
    }
}

#[test]
fn are_copies_of_registers_free_where_they_are_eliminated() {
    let mut config = skylake();
    let add = operation(Class::IntegerSimple, &[3], &[3]);
    let copy = Instruction {
        copies: true,
        ..add
    };
    for (eliminates, cycles) in [(true, 20), (false, 80)] {
        config.eliminates_copies = eliminates;
        let mut core = Core::new(&config);
        let block = core.block(&[add, copy, copy, copy].repeat(20));
        core.enter(block);
        // The last copies retire in the cycle of the last addition, or are it.
        assert_eq!(core.done(), cycles);
    }
}

#[test]
fn does_a_load_wait_for_its_line_that_is_on_its_way() {
    let config = skylake();
    let latency = u64::from(config.latency_cycles.load);
    let mut answers = lines(1, 200);
    answers.extend([hit(8), hit(16), hit(LINE)]);
    let mut core = loads(&config, load(&[0], 1), &answers);
    assert_eq!(core.done(), 200 + latency);
    assert_eq!(core.window.counters().merged_misses, 2);
    // Nor does it take a miss register when the cache lost the line on the way.
    let mut core = loads(&config, load(&[0], 1), &[miss(0, 200), miss(8, 200)]);
    assert_eq!(core.done(), 200 + latency);
}

#[test]
fn does_a_load_that_comes_first_in_time_bring_the_line() {
    let config = skylake();
    let latency = u64::from(config.latency_cycles.load);
    let mut core = Core::new(&config);
    // The second load waits for the first; the third loads the same line and waits for nothing.
    let block = core.block(&[load(&[1], 0), load(&[0], 2), load(&[1], 3), load(&[3], 4)]);
    core.enter(block);
    core.load(0, miss(0, 200));
    core.load(1, miss(LINE, 100));
    assert_eq!(core.load(2, hit(LINE)), 0);
    assert_eq!(core.load(3, hit(0x2000)), 100 + latency);
}

#[test]
fn do_loads_overlap_within_the_window_and_not_beyond() {
    for mut config in presets() {
        config.load_buffer = config.window;
        let window = config.window as usize;
        let miss_latency = 200 + u64::from(config.latency_cycles.load);
        let run = |distance: usize| {
            let mut core = Core::new(&config);
            let nop = operation(Class::Nop, &[], &[]);
            let mut code = vec![load(&[0], 1)];
            code.resize(distance, nop);
            code.push(load(&[0], 1));
            let block = core.block(&code);
            core.enter(block);
            core.load(0, miss(0, 200));
            core.load(distance, miss(LINE, 200))
        };
        let dispatched = (window as u64 - 1) / u64::from(config.issue_width);
        assert_eq!(run(window - 1), dispatched);
        assert_eq!(run(window), miss_latency);
    }
}

/// A load that waits, and others like `other` behind it: when they are done.
fn behind_a_miss(config: &CoreConfig, other: Instruction, count: usize) -> (u64, u64) {
    let mut core = Core::new(config);
    let mut code = vec![load(&[0], 1)];
    code.resize(count, other);
    code.push(load(&[0], 2));
    let block = core.block(&code);
    core.enter(block);
    core.load(0, miss(0, 200));
    let start = core.load(count, miss(LINE, 200));
    core.done();
    (start, core.window.counters().window_full)
}

#[test]
fn do_registers_limit_the_window() {
    let mut config = skylake();
    config.load_buffer = config.window;
    let latency = 200 + u64::from(config.latency_cycles.load);
    let general = operation(Class::IntegerSimple, &[], &[3]);
    let vector = Instruction {
        writes: RegisterSet::vector(0),
        ..operation(Class::VectorSimple, &[], &[])
    };
    let copy = Instruction {
        copies: true,
        ..general
    };
    let store_flags = Instruction {
        writes: RegisterSet::FLAGS,
        ..general
    };
    let registers = 50;
    config.general_registers = Some(registers);
    for (other, counts) in [
        (general, true),
        (copy, false),
        (store_flags, false),
        (vector, false),
    ] {
        // Loads need one each.
        let most = registers as usize;
        let (start, full) = behind_a_miss(&config, other, most - 1);
        assert!(start < latency && full == 0, "{other:?}");
        let (start, full) = behind_a_miss(&config, other, most);
        assert_eq!((start == latency, full == 1), (counts, counts), "{other:?}");
    }
    config.general_registers = None;
    config.vector_registers = Some(60);
    // Of the first load and 61 others, the last waits.
    let (start, full) = behind_a_miss(&config, vector, 61);
    assert!(start < latency && full == 0);
    let (start, full) = behind_a_miss(&config, vector, 62);
    assert_eq!((start, full), (latency, 1));
}

#[test]
fn does_the_load_buffer_limit_loads() {
    for config in presets() {
        let size = u64::from(config.load_buffer);
        let latency = u64::from(config.latency_cycles.load);
        // The first load misses, the others hit.
        let mut answers = vec![hit(0x1000); size as usize + 1];
        answers[0] = miss(0, 2000);
        let mut core = loads(&config, load(&[0], 1), &answers);
        assert_eq!(core.window.counters().load_buffer_full, 1);
        let retire_width = u64::from(config.retire_width);
        let others = latency.max(size / retire_width);
        assert_eq!(core.done(), 2000 + latency + others);
        answers.pop();
        let mut core = loads(&config, load(&[0], 1), &answers);
        assert_eq!(core.window.counters().load_buffer_full, 0);
        // The others retire after the first.
        let others = (size - 1) / retire_width;
        assert_eq!(core.done(), 2000 + latency + others);
    }
}

#[test]
fn do_stores_go_to_the_cache_one_a_cycle() {
    for mut config in presets() {
        config.ports.store = Ports::Own(4);
        config.retire_width = config.retire_width.max(config.issue_width);
        let width = u64::from(config.issue_width.min(4));
        let size = u64::from(config.store_buffer);
        let mut core = Core::new(&config);
        let block = core.block(&vec![store(&[0], &[1]); 10_000]);
        core.enter(block);
        for index in 0..10_000 {
            core.store(index, hit(0));
        }
        // The first retires at 1 and is in the cache at 2; one a cycle follows. The last one
        // dispatches when the one that is a store buffer before it is there.
        assert_eq!(core.done(), 2 + (10_000 - 1 - size) + 1);
        assert!(core.window.counters().store_buffer_full > 0);
        assert_eq!(core.window.counters().stores, 10_000);
        // As many as the buffer holds do not wait.
        let mut core = Core::new(&config);
        let block = core.block(&vec![store(&[0], &[1]); size as usize]);
        core.enter(block);
        for index in 0..size as usize {
            core.store(index, hit(0));
        }
        assert_eq!(core.done(), size.div_ceil(width));
        assert_eq!(core.window.counters().store_buffer_full, 0);
    }
}

#[test]
fn do_misses_of_stores_overlap_as_far_as_miss_registers_go() {
    for config in presets() {
        let registers = u64::from(config.miss_registers);
        let count = registers * 40;
        let mut core = Core::new(&config);
        let block = core.block(&vec![store(&[0], &[1]); count as usize]);
        core.enter(block);
        for index in 0..count {
            core.store(index as usize, miss(index * LINE, 200));
        }
        // The store that is a store buffer before the last one has to be in the cache.
        let waves = (count - 1 - u64::from(config.store_buffer)) / registers + 1;
        let cycles = core.done();
        let about = waves * 200;
        assert!((about..about + 40).contains(&cycles), "{cycles}, {about}");
        let waited = core.window.breakdown().data.get();
        assert!(waited * 10 > cycles * 8, "{:?}", core.window.breakdown());
    }
}

#[test]
fn does_a_load_get_its_data_from_a_store_before_it() {
    let config = skylake();
    let forward = u64::from(config.latency_cycles.store_forward);
    let latency = u64::from(config.latency_cycles.load);
    let run = |address: u64| {
        let mut core = Core::new(&config);
        let code = [
            operation(Class::IntegerDivide, &[1], &[1]),
            store(&[0], &[1]),
            load(&[0], 2),
            load(&[2], 3),
        ];
        let block = core.block(&code);
        core.enter(block);
        core.store(1, miss(0, 500));
        core.load(2, hit(address));
        (core.load(3, hit(0x1000)), core.window.counters())
    };
    let divided = u64::from(config.latency_cycles.divide);
    let (start, counters) = run(0);
    assert_eq!(start, divided + forward);
    assert_eq!(counters.forwarded_loads, 1);
    // The next word is not in the store buffer. The load is first in time to ask for the line.
    let (start, counters) = run(8);
    // The division's microcode takes two cycles more to dispatch.
    let more = u64::from((config.slots.divide - 1) / config.issue_width);
    assert_eq!(start, more + 500 + latency);
    assert_eq!(counters.forwarded_loads, 0);
    assert_eq!(run(LINE).0, more + latency);
}

#[test]
fn do_page_walkers_limit_walks() {
    for mut config in presets() {
        config.page_walk_replay_cycles = 0;
        let walkers = u64::from(config.page_walkers);
        let latency = u64::from(config.latency_cycles.load);
        let answers: Vec<_> = (0..walkers * 20).map(|n| walk(n * FRAME, 100)).collect();
        let mut core = loads(&config, load(&[0], 1), &answers);
        let last_start = (walkers - 1) / u64::from(config.ports.load.count());
        assert_eq!(core.done(), 20 * 100 + last_start + latency);
        assert_eq!(core.window.counters().page_walkers_full, walkers * 19);
        // The last cycles of each load are those of its first-level hit.
        let walking = core.window.breakdown().walk.get();
        assert!((20 * (100 - latency - 2)..20 * 100).contains(&walking));
        // Hits in the second-level TLB need no walker.
        let answers: Vec<_> = (0..100)
            .map(|n| Answer {
                walked: false,
                ..walk(n * FRAME, 9)
            })
            .collect();
        let mut core = loads(&config, load(&[0], 1), &answers);
        let last_start = 99 / u64::from(config.ports.load.count());
        assert_eq!(core.done(), last_start + 9 + latency);
        assert_eq!(core.window.breakdown().walk, Cycles::ZERO);
        assert!(core.window.breakdown().tlb > Cycles::ZERO);
    }
}

#[test]
fn does_a_walk_that_waited_begin_after_the_replay() {
    let done = |replay, walkers| {
        let mut config = skylake();
        config.page_walkers = walkers;
        config.page_walk_replay_cycles = replay;
        let answers: Vec<_> = (0..4).map(|n| walk(n * FRAME, 100)).collect();
        loads(&config, load(&[0], 1), &answers).done()
    };
    assert_eq!(done(13, 1), done(0, 1) + 3 * 13);
    assert_eq!(done(13, 2), done(0, 2) + 13);
    assert_eq!(done(13, 4), done(0, 4), "none waited");
}

/// Misses and walks of loads that wait for memory leave what they need to later loads that do not.
#[test]
fn waiting_loads_block_no_others() {
    let latency = |config: &CoreConfig| u64::from(config.latency_cycles.load);
    let mut config = skylake();
    config.page_walkers = 1;
    config.miss_registers = 2;
    for translated in [false, true] {
        let long = |n: u64| {
            if translated {
                walk(n * FRAME, 100)
            } else {
                miss(n * LINE, 100)
            }
        };
        let mut core = Core::new(&config);
        let code = [
            load(&[0], 1),
            load(&[1], 2),
            load(&[1], 3),
            load(&[0], 4),
            load(&[4], 5),
        ];
        let block = core.block(&code);
        core.enter(block);
        core.load(0, miss(0, 500));
        core.load(1, long(1));
        core.load(2, long(2));
        let third = core.load(3, long(3));
        let start = core.load(4, hit(0));
        assert_eq!(start, third + 100 + latency(&config), "{translated}");
    }
}

#[test]
fn do_divisions_take_as_many_places_in_the_window_as_they_have_operations() {
    let config = skylake();
    let places = config.slots.divide_64.unwrap();
    let fit = config.window / places;
    for (divisions, overlap) in [(fit - 1, true), (fit + 1, false)] {
        let mut core = Core::new(&config);
        let mut code = vec![load(&[0], 1)];
        code.resize(
            1 + divisions as usize,
            operation(Class::IntegerDivide64, &[0], &[2]),
        );
        code.push(load(&[0], 3));
        let block = core.block(&code);
        core.enter(block);
        core.load(0, miss(0, 5000));
        let start = core.load(1 + divisions as usize, hit(LINE));
        assert_eq!(start < 5000, overlap, "{divisions} divisions: {start}");
    }
}

#[test]
fn does_a_walk_delay_only_what_depends_on_it() {
    for config in presets() {
        let window = config.window as usize;
        let latency = u64::from(config.latency_cycles.load);
        let mut core = Core::new(&config);
        let nop = operation(Class::Nop, &[], &[]);
        let mut code = vec![load(&[0], 1), load(&[1], 2), load(&[0], 3), load(&[0], 4)];
        code.resize(window - 1, nop);
        code.extend([load(&[0], 5), load(&[0], 6)]);
        let block = core.block(&code);
        core.enter(block);
        core.load(0, walk(0, 300));
        assert_eq!(core.load(1, hit(FRAME)), 300 + latency, "depends on it");
        assert!(core.load(2, hit(2 * FRAME)) <= 1, "independent");
        assert!(core.load(3, hit(8)) <= 3, "same page");
        let dispatched = (window as u64 - 1) / u64::from(config.issue_width);
        assert_eq!(core.load(window - 1, hit(3 * FRAME)), dispatched);
        assert_eq!(core.load(window, hit(4 * FRAME)), 300 + latency);
        assert_eq!(core.window.counters().merged_walks, 1);
        assert_eq!(core.window.counters().window_full, 1);
    }
}
