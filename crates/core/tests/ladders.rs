//! Does each resource of the window limit what it should, as configured and no more?

use crate::common::{load, operation, presets, skylake, store};
use contigua_core::{Blocks, CoreConfig, Error, Ports, Window};
use contigua_program::decode::{Instruction, OperationClass as Class, RegisterSet};
use contigua_units::{Cycles, PhysAddr, VirtAddr};

const LINE: u64 = 64;
const FRAME: u64 = 4096;

/// What an access meets beyond first-level hits.
#[derive(Clone, Copy, Default)]
struct Answer {
    address: u64,
    translation: u64,
    walked: bool,
    data: u64,
}

/// A hit.
fn hit(address: u64) -> Answer {
    Answer {
        address,
        ..Answer::default()
    }
}

/// A miss of the L1 data cache.
fn miss(address: u64, data: u64) -> Answer {
    Answer {
        data,
        ..hit(address)
    }
}

/// A page walk.
fn walk(address: u64, translation: u64) -> Answer {
    Answer {
        translation,
        walked: true,
        ..hit(address)
    }
}

struct Core {
    window: Window,
    blocks: Blocks,
    learned: usize,
}

impl Core {
    fn new(config: &CoreConfig) -> Self {
        Self {
            window: Window::new(config).unwrap(),
            blocks: Blocks::new(config),
            learned: 0,
        }
    }

    /// Learns a block at an address of its own.
    fn block(&mut self, code: &[Instruction]) -> usize {
        self.block_at(0x40_0000 + 0x1000 * self.learned as u64, code)
    }

    fn block_at(&mut self, address: u64, code: &[Instruction]) -> usize {
        let lengths = vec![4; code.len()];
        let address = VirtAddr::new(address);
        self.blocks.learn(self.learned, address, &lengths, code);
        self.learned += 1;
        self.learned - 1
    }

    fn enter(&mut self, block: usize) {
        self.window.enter(&self.blocks, block);
    }

    fn access(&mut self, index: usize, store: bool, answer: Answer) -> u64 {
        let start = self.window.access(&self.blocks, index, store);
        self.window.answer(
            PhysAddr::new(answer.address),
            Cycles::new(answer.translation),
            answer.walked,
            Cycles::new(answer.data),
        );
        start.get()
    }

    fn load(&mut self, index: usize, answer: Answer) -> u64 {
        self.access(index, false, answer)
    }

    fn store(&mut self, index: usize, answer: Answer) -> u64 {
        self.access(index, true, answer)
    }

    /// The time when everything is done.
    fn done(&mut self) -> u64 {
        self.window.drain(&self.blocks);
        assert_eq!(self.window.breakdown().total(), self.window.cycles());
        self.window.cycles().get()
    }
}

/// How long a block of `count` times `code` takes.
fn time(config: &CoreConfig, code: Instruction, count: usize) -> u64 {
    let mut core = Core::new(config);
    let block = core.block(&vec![code; count]);
    core.enter(block);
    core.done()
}

/// A core after one block of as many loads, with what they met.
fn loads(config: &CoreConfig, code: Instruction, answers: &[Answer]) -> Core {
    let mut core = Core::new(config);
    let block = core.block(&vec![code; answers.len()]);
    core.enter(block);
    for (index, answer) in answers.iter().enumerate() {
        core.load(index, *answer);
    }
    core
}

fn lines(count: u64, data: u64) -> Vec<Answer> {
    (0..count).map(|n| miss(n * LINE, data)).collect()
}

#[test]
fn do_dependent_operations_take_their_latencies() {
    for config in presets() {
        let latency = &config.latency_cycles;
        let chains = [
            (Class::IntegerSimple, latency.integer),
            (Class::IntegerMultiply, latency.multiply),
            (Class::IntegerDivide, latency.divide),
            (Class::IntegerDivide64, latency.divide_64.unwrap()),
            (Class::FloatAdd, latency.float_add),
            (Class::FloatMultiply, latency.float_multiply),
            (Class::FloatDivide, latency.float_divide),
            (Class::FloatOther, latency.float_other),
            (Class::FloatConvert, latency.convert.unwrap()),
            (Class::VectorTransfer, latency.transfer.unwrap()),
            (Class::IntegerShift, latency.integer),
            (Class::IntegerSelect, latency.integer),
            (Class::VectorSimple, latency.vector),
            (Class::VectorMultiply, latency.vector_multiply),
            (Class::Other, latency.other),
        ];
        for (class, latency) in chains {
            let chain = operation(class, &[0, 1], &[0]);
            assert_eq!(time(&config, chain, 1000), 1000 * u64::from(latency));
        }
        assert_eq!(latency.integer, 1, "an addition takes a cycle");
    }
}

#[test]
fn do_independent_operations_run_as_wide_as_ports_and_issue_allow() {
    for config in presets() {
        let ports = &config.ports;
        let latency = &config.latency_cycles;
        let own = |ports: &Option<Ports>| ports.as_ref().unwrap().count();
        let streams = [
            (Class::IntegerSimple, ports.integer.count(), latency.integer),
            (
                Class::IntegerMultiply,
                ports.multiply.count(),
                latency.multiply,
            ),
            (
                Class::FloatAdd,
                ports.float_add.as_ref().unwrap_or(&ports.float).count(),
                latency.float_add,
            ),
            (
                Class::FloatMultiply,
                ports.float.count(),
                latency.float_multiply,
            ),
            (Class::IntegerShift, own(&ports.shift), latency.integer),
            (Class::IntegerSelect, own(&ports.select), latency.integer),
            (
                Class::VectorTransfer,
                own(&ports.transfer),
                latency.transfer.unwrap(),
            ),
            (Class::VectorSimple, ports.vector.count(), latency.vector),
            (Class::Nop, config.issue_width, 1),
        ];
        for (class, width, latency) in streams {
            let width = u64::from(width.min(config.issue_width).min(config.retire_width));
            let stream = operation(class, &[0], &[1]);
            let cycles = 9999_u64.div_ceil(width) - 1 + u64::from(latency);
            assert_eq!(time(&config, stream, 9999), cycles, "{class:?}");
        }
    }
}

#[test]
fn do_instructions_of_several_slots_limit_dispatch() {
    let mut config = skylake();
    (config.issue_width, config.retire_width) = (4, 4);
    // More ports than four a cycle need.
    config.ports.shift = Some(Ports::Numbers((0..4).collect()));
    config.ports.transfer = config.ports.shift.clone();
    config.latency_cycles.convert = Some(1);
    for (slots, cycles) in [(1, 300), (2, 600), (3, 1200), (4, 1200)] {
        config.slots.variable_shift = slots;
        config.slots.convert = slots;
        for class in [Class::IntegerShiftVariable, Class::FloatConvert] {
            let code = operation(class, &[0], &[1]);
            assert_eq!(time(&config, code, 1200), cycles, "{class:?}, {slots}");
        }
    }
    // Narrower than an instruction: it takes all of a cycle.
    config.issue_width = 1;
    let code = operation(Class::IntegerShiftVariable, &[0], &[1]);
    assert_eq!(time(&config, code, 1200), 1200);
}

#[test]
fn do_kinds_that_share_ports_share_their_cycles() {
    let mut config = skylake();
    (config.issue_width, config.retire_width) = (16, 16);
    let classes = |first, second| {
        let pair = [operation(first, &[0], &[1]), operation(second, &[0], &[2])];
        let mut core = Core::new(&config);
        let block = core.block(&pair.repeat(1200));
        core.enter(block);
        core.done()
    };
    // Four ports for 2,400 integer and vector operations, of which three serve the 1,200 of vectors.
    assert_eq!(classes(Class::IntegerSimple, Class::VectorSimple), 600);
    // One multiplier, which integers leave alone: 1,200 on three ports, and 1,200 on the fourth.
    let multiply = u64::from(config.latency_cycles.multiply);
    let cycles = classes(Class::IntegerSimple, Class::IntegerMultiply);
    assert_eq!(cycles, 1199 + multiply);
    // Loads have ports of their own.
    let ports = &config.ports;
    assert_eq!((ports.load.count(), ports.integer.count()), (2, 4));
}

#[test]
fn is_a_comparison_executed_with_the_branch_behind_it() {
    let config = skylake();
    let branch = operation(Class::BranchConditional, &[1], &[]);
    let run = |fuses: bool, class| {
        let compare = Instruction {
            fuses,
            ..operation(class, &[0], &[1])
        };
        let mut core = Core::new(&config);
        // Branches that are not taken; they are learned in the first round.
        let blocks: Vec<_> = (0..50)
            .map(|n| core.block_at(0x1000 + 8 * n, &[compare, branch]))
            .collect();
        for round in 0..40 {
            if round == 39 {
                core.window.drain(&core.blocks);
                core.window.reset();
            }
            for &block in &blocks {
                core.enter(block);
            }
        }
        (core.done(), core.window.counters())
    };
    // Two ports execute branches, so two pairs a cycle; apart, they are four operations.
    let (fused, counters) = run(true, Class::IntegerSimple);
    assert_eq!(
        (fused, counters.operations, counters.branches),
        (25, 50, 49)
    );
    let (apart, counters) = run(false, Class::IntegerSimple);
    assert_eq!(
        (apart, counters.operations, counters.branches),
        (26, 100, 49)
    );
}

#[test]
fn do_taken_branches_limit_the_front_end() {
    let mut config = skylake();
    for cycles in [0, 1, 2, 5] {
        config.taken_branch_cycles = cycles;
        let mut core = Core::new(&config);
        let jump = core.block(&[operation(Class::Jump, &[], &[])]);
        let other = core.block(&[operation(Class::Jump, &[], &[])]);
        for _ in 0..500 {
            core.enter(jump);
            core.enter(other);
        }
        // Two branches a cycle execute.
        let between = u64::from(cycles);
        let expected = if cycles == 0 { 500 } else { 999 * between + 1 };
        assert_eq!(core.done(), expected, "{cycles}");
    }
    // Calls have a time of their own.
    config.taken_branch_cycles = 1;
    config.call_cycles = Some(3);
    for (class, cycles) in [(Class::Jump, 1), (Class::JumpIndirect, 1), (Class::Call, 3)] {
        let mut core = Core::new(&config);
        let one = core.block(&[operation(class, &[], &[])]);
        let other = core.block(&[operation(class, &[], &[])]);
        let round = |core: &mut Core, count| {
            for _ in 0..count {
                core.enter(one);
                core.enter(other);
            }
            core.done()
        };
        // Predictions are learned first.
        let before = round(&mut core, 500);
        core.enter(one);
        assert_eq!(round(&mut core, 1000) - before, 2000 * cycles, "{class:?}");
    }
    // Far targets take longer where branches say where they go only when they execute.
    config.far_branch_cycles = Some(4);
    for (class, there, cycles) in [
        (Class::JumpIndirect, 1 << 37, 5),
        (Class::JumpIndirect, 1 << 36, 1),
        (Class::CallIndirect, 1 << 46, 7),
        (Class::Jump, 1 << 46, 1),
    ] {
        let rounds = |count| {
            let mut core = Core::new(&config);
            let one = core.block_at(0x1000, &[operation(class, &[], &[])]);
            let other = core.block_at(0x2040 + there, &[operation(class, &[], &[])]);
            for _ in 0..count {
                core.enter(one);
                core.enter(other);
            }
            core.done()
        };
        let passed = rounds(2000) - rounds(1000);
        assert_eq!(passed, 2000 * cycles, "{class:?} {there:#x}");
    }
    // A branch waits until the code before it is fetched.
    config.fetch_bytes = Some(64);
    for (offset, cycles) in [(0, 1), (56, 1), (60, 2), (64, 1)] {
        let rounds = |count| {
            let mut core = Core::new(&config);
            let [nop, jump] = [Class::Nop, Class::Jump].map(|class| operation(class, &[], &[]));
            let one = core.block_at(0x1000 + offset, &[nop]);
            let more = core.block_at(0x1004 + offset, &[jump]);
            let other = core.block_at(0x2000, &[jump]);
            for _ in 0..count {
                core.enter(one);
                core.enter(more);
                core.enter(other);
            }
            core.done()
        };
        let passed = rounds(2000) - rounds(1000);
        assert_eq!(passed, 1000 * (cycles + 1), "{offset}");
    }
    // Blocks that follow each other in memory are not branches.
    config.taken_branch_cycles = 5;
    let mut core = Core::new(&config);
    let nop = [operation(Class::Nop, &[], &[])];
    let blocks: Vec<_> = (0..400)
        .map(|n| core.block_at(0x1000 + 4 * n, &nop))
        .collect();
    for block in blocks {
        core.enter(block);
    }
    assert_eq!(core.done(), 100);
}

#[test]
fn do_dividers_start_once_an_interval() {
    for config in presets() {
        let (interval, latency) = (&config.divide_interval_cycles, &config.latency_cycles);
        for (class, interval, latency) in [
            (Class::IntegerDivide, interval.integer, latency.divide),
            (Class::FloatDivide, interval.float, latency.float_divide),
            (
                Class::IntegerDivide64,
                interval.integer_64.unwrap(),
                latency.divide_64.unwrap(),
            ),
        ] {
            let cycles = 999 * u64::from(interval) + u64::from(latency);
            assert_eq!(time(&config, operation(class, &[0], &[1]), 1000), cycles);
        }
    }
}

#[test]
fn does_a_unit_serve_what_is_ready_before_what_waits() {
    let config = skylake();
    let mut core = Core::new(&config);
    let multiply = |from, to| operation(Class::IntegerMultiply, &[from], &[to]);
    // The first multiplication waits for memory; there is one multiplier.
    let chain = [load(&[1], 0), multiply(0, 2), multiply(3, 3)];
    let block = core.block(&[&chain[..], &[load(&[3], 4)]].concat());
    core.enter(block);
    core.load(0, miss(0, 200));
    assert_eq!(core.load(3, hit(0x1000)), 3);
}

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
    for config in presets() {
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
fn does_what_waits_hold_nothing_up() {
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

/// A block that is one conditional branch to itself, and one that follows it.
fn branches(config: &CoreConfig, taken: impl Iterator<Item = bool>) -> Core {
    let mut core = Core::new(config);
    let branch = operation(Class::BranchConditional, &[], &[]);
    let start = core.block_at(0x1000, &[branch]);
    let next = core.block_at(0x1004, &[operation(Class::Jump, &[], &[])]);
    core.enter(start);
    for taken in taken {
        if !taken {
            core.enter(next);
        }
        core.enter(start);
    }
    core
}

#[test]
fn are_regular_branches_predicted() {
    let config = skylake();
    let patterns: [fn(u32) -> bool; 5] = [
        |_| true,
        |_| false,
        |n| n % 2 == 0,
        |n| n % 7 != 0,
        |n| [true, true, false, true, false, false][n as usize % 6],
    ];
    for pattern in patterns {
        let mut core = branches(&config, (0..10_000).map(pattern));
        core.done();
        let counters = core.window.counters();
        assert_eq!(counters.branches, 10_000);
        assert!(counters.mispredictions < 100, "{counters:?}");
    }
}

#[test]
fn are_random_branches_mispredicted_half_of_the_time() {
    for config in presets() {
        let mut state = 1_u64;
        let random = (0..10_000).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 63 != 0
        });
        let mut core = branches(&config, random);
        core.done();
        let counters = core.window.counters();
        assert!((4500..5500).contains(&counters.mispredictions));
        let penalty = config.mispredict_penalty_cycles;
        assert_eq!(
            core.window.breakdown().branch,
            penalty * counters.mispredictions
        );
    }
}

#[test]
fn does_a_misprediction_cost_its_penalty_after_the_branch_completes() {
    for config in presets() {
        let mut core = Core::new(&config);
        // Nothing was called, so that the target of the return is not known.
        let wait = operation(Class::IntegerDivide, &[1], &[0]);
        let start = core.block(&[wait, operation(Class::Return, &[0], &[])]);
        let after = core.block(&[load(&[2], 3)]);
        core.enter(start);
        core.enter(after);
        let resolved = u64::from(config.latency_cycles.divide) + 1;
        let penalty = config.mispredict_penalty_cycles.get();
        let latency = u64::from(config.latency_cycles.load);
        core.load(0, hit(0));
        assert_eq!(core.done(), resolved + penalty + latency);
        assert_eq!(core.window.counters().mispredictions, 1);
    }
}

#[test]
fn do_loads_behind_a_misprediction_begin_before_it_is_resolved() {
    for config in presets() {
        let latency = u64::from(config.latency_cycles.load);
        let penalty = config.mispredict_penalty_cycles.get();
        // The branch waits for a miss; behind it come loads from `address`.
        let done = |address| {
            let mut core = Core::new(&config);
            let start = core.block(&[load(&[1], 0), operation(Class::Return, &[0], &[])]);
            let after = core.block(&[load(&[address], 3), load(&[3], 4)]);
            core.enter(start);
            core.load(0, miss(0, 300));
            core.enter(after);
            let starts = [
                core.load(0, miss(0x1_0000, 300)),
                core.load(1, hit(0x2_0000)),
            ];
            (starts, core.done())
        };
        let resolved = 300 + latency + u64::from(config.latency_cycles.integer);
        // Its miss is over when it comes on the right path.
        let ([first, second], end) = done(2);
        assert!(first <= 2 && second > resolved);
        assert_eq!(end, resolved + penalty + 2 * latency);
        // What the branch waits for as well is known a cycle before it is resolved.
        let ([first, second], end) = done(0);
        assert_eq!((first, second), (300 + latency, first + 300 + latency));
        assert_eq!(end, second + latency);
    }
}

#[test]
fn are_returns_predicted_as_deep_as_the_stack() {
    let config = skylake();
    let depth = u64::from(config.branch_predictor.return_stack);
    let run = |calls: u64| {
        let mut core = Core::new(&config);
        // Block 2n is a call, which block 2n + 1 follows, which returns.
        for n in 0..calls {
            let address = 0x1000 * (n + 1);
            core.block_at(address, &[operation(Class::Call, &[], &[])]);
            core.block_at(address + 4, &[operation(Class::Return, &[], &[])]);
        }
        let leaf = core.block(&[operation(Class::Return, &[], &[])]);
        for n in 0..calls {
            core.enter(2 * n as usize);
        }
        core.enter(leaf);
        for n in (0..calls).rev() {
            core.enter(2 * n as usize + 1);
        }
        core.done();
        assert_eq!(core.window.counters().branches, calls);
        core.window.counters().mispredictions
    };
    assert_eq!(run(depth), 0);
    // The outermost returns were lost.
    assert_eq!(run(depth + 3), 3);
}

#[test]
fn are_indirect_branches_predicted_when_they_follow_a_pattern() {
    let config = skylake();
    let mut core = Core::new(&config);
    let jump = core.block(&[operation(Class::JumpIndirect, &[0], &[])]);
    let cases: Vec<_> = (0..4)
        .map(|_| core.block(&[operation(Class::Jump, &[], &[])]))
        .collect();
    for round in 0..4000 {
        core.enter(jump);
        core.enter(cases[[0, 1, 2, 1, 3][round % 5]]);
    }
    core.done();
    let counters = core.window.counters();
    assert_eq!(counters.branches, 4000);
    assert!(counters.mispredictions < 40, "{counters:?}");
}

#[test]
fn does_an_atomic_wait_for_all_before_and_hold_all_after() {
    let config = skylake();
    let latency = u64::from(config.latency_cycles.load);
    let mut core = Core::new(&config);
    let atomic = Instruction {
        class: Class::Atomic,
        stores: 1,
        ..load(&[0], 1)
    };
    let block = core.block(&[store(&[0], &[1]), atomic, load(&[0], 2)]);
    core.enter(block);
    core.store(0, miss(0, 200));
    // The store retires at 1, then its line takes 200 cycles.
    assert_eq!(core.load(1, hit(LINE)), 1 + 200);
    let retired = 201 + latency + u64::from(config.latency_cycles.atomic);
    assert_eq!(core.store(1, hit(LINE)), retired);
    assert_eq!(core.load(2, hit(2 * LINE)), retired + 1);
    core.done();
    assert!(core.window.breakdown().data >= Cycles::new(199));
}

#[test]
fn does_the_front_end_hide_fetches_when_it_is_ahead() {
    let config = skylake();
    let queue = config.fetch_queue as usize;
    let width = u64::from(config.issue_width);
    let nop = operation(Class::Nop, &[], &[]);
    let run = |before: usize, latency: u64| {
        let mut core = Core::new(&config);
        let start = core.block(&vec![nop; before]);
        let after = core.block(&[load(&[0], 1)]);
        core.enter(start);
        core.enter(after);
        let fetch = Cycles::new(latency);
        core.window.fetch(Cycles::ZERO, false, fetch);
        let start = core.load(0, hit(0));
        core.done();
        (start, core.window.breakdown().fetch.get())
    };
    // Nothing is ahead of the first instruction, which is the target of a taken branch.
    let first = 30 + u64::from(config.taken_branch_cycles);
    assert_eq!(run(0, 30), (first, 30));
    // The front end is a queue ahead, which is worth `queue / width` cycles, of which the branch
    // takes some.
    let hidden = queue as u64 / width - u64::from(config.taken_branch_cycles);
    let dispatch = 10 * queue as u64 / width;
    assert_eq!(run(10 * queue, hidden), (dispatch, 0));
    assert_eq!(run(10 * queue, hidden + 5).0, dispatch + 5);
    let stalled = run(10 * queue, hidden + 5).1;
    assert!((4..=5).contains(&stalled), "{stalled}");
}

#[test]
fn are_fetches_charged_to_translation_and_then_to_the_line() {
    let config = skylake();
    let mut core = Core::new(&config);
    let block = core.block(&[operation(Class::Nop, &[], &[])]);
    core.enter(block);
    core.window.fetch(Cycles::new(40), true, Cycles::new(10));
    core.window.fetch(Cycles::ZERO, false, Cycles::new(7));
    assert_eq!(core.done(), 58);
    let parts = core.window.breakdown();
    assert_eq!(
        (parts.walk, parts.fetch),
        (Cycles::new(40), Cycles::new(17))
    );
    core.enter(block);
    core.window.fetch(Cycles::new(9), false, Cycles::ZERO);
    core.done();
    assert_eq!(core.window.breakdown().tlb, Cycles::new(9));
}

#[test]
fn does_a_fault_restart_the_access_after_the_kernel() {
    let config = skylake();
    let mut core = Core::new(&config);
    let block = core.block(&[operation(Class::Nop, &[], &[]), load(&[0], 1)]);
    core.enter(block);
    assert_eq!(core.window.access(&core.blocks, 1, false), Cycles::ZERO);
    core.window.kernel(Cycles::new(1000));
    let (translation, data) = (Cycles::new(30), Cycles::new(10));
    core.window
        .answer(PhysAddr::new(LINE), translation, true, data);
    let latency = u64::from(config.latency_cycles.load);
    assert_eq!(core.done(), 1 + 1000 + 40 + latency);
    let parts = core.window.breakdown();
    assert_eq!(parts.kernel, Cycles::new(1000));
    assert_eq!((parts.walk, parts.data), (translation, data));
}

#[test]
fn does_waiting_count_as_idle_and_never_go_back() {
    let mut core = Core::new(&skylake());
    core.window.wait_until(Cycles::new(500));
    core.window.wait_until(Cycles::new(300));
    assert_eq!(core.window.now(), Cycles::new(500));
    assert_eq!(core.window.breakdown().idle, Cycles::new(500));
    core.window.reset();
    assert_eq!(core.window.cycles(), Cycles::ZERO);
    assert_eq!(core.window.now(), Cycles::new(500));
    core.window.wait_until(Cycles::new(501));
    assert_eq!(core.done(), 1);
}

#[test]
fn is_code_that_is_not_known_as_wide_as_issue() {
    for config in presets() {
        let mut core = Core::new(&config);
        core.blocks.learn(3, VirtAddr::new(0x1000), &[4; 1200], &[]);
        assert!(core.blocks.knows(3) && !core.blocks.knows(2) && !core.blocks.knows(4));
        core.enter(3);
        assert_eq!(core.done(), 1200 / u64::from(config.issue_width));
    }
}

#[test]
fn is_the_stack_pointer_free_of_dependences() {
    const RSP: u32 = 4;
    let config = skylake();
    let mut pop = load(&[RSP], 0);
    pop.writes = crate::common::registers(&[0, RSP]);
    let hits: Vec<_> = (0..1000).map(|n| hit(n * 8)).collect();
    let cycles =
        1000 / u64::from(config.ports.load.count()) - 1 + u64::from(config.latency_cycles.load);
    assert_eq!(loads(&config, pop, &hits).done(), cycles);
}

#[test]
fn do_accesses_outside_of_blocks_count_as_instructions() {
    let config = skylake();
    let mut core = Core::new(&config);
    let block = core.block(&[load(&[0], 1), load(&[0], 1)]);
    core.enter(block);
    core.load(0, hit(0));
    core.window.drain(&core.blocks);
    // The thread comes back and finishes the block, which has executed.
    core.load(1, hit(0));
    core.done();
    assert_eq!(core.window.counters().operations, 3);
    assert_eq!(core.window.counters().loads, 2);
}

#[test]
fn does_a_string_instruction_copy_at_the_speed_of_the_store_buffer() {
    let config = skylake();
    let mut core = Core::new(&config);
    let copy = Instruction {
        class: Class::Other,
        loads: 1,
        stores: 1,
        ..operation(Class::Other, &[1, 6, 7], &[1, 6, 7])
    };
    let block = core.block(&[copy]);
    core.enter(block);
    for n in 0..10_000 {
        core.load(0, hit(n * 8));
        core.store(0, hit((1 << 30) + n * 8));
    }
    let cycles = core.done();
    assert!((10_000..10_100).contains(&cycles), "{cycles}");
    assert_eq!(core.window.counters().operations, 10_000);
}

#[test]
fn does_a_fast_string_begin_alone_and_then_store_once_a_cycle() {
    let config = skylake();
    let start = u64::from(config.latency_cycles.fast_string);
    let fill = Instruction {
        class: Class::FastString,
        stores: 1,
        ..operation(Class::FastString, &[0, 1, 7], &[1, 7])
    };
    for count in [1, 128, 32_768] {
        let mut core = Core::new(&config);
        let block = core.block(&[fill]);
        core.enter(block);
        for n in 0..count {
            core.store(0, hit(n * 32));
        }
        let cycles = core.done();
        let least = if count == 1 { 1 } else { start + count - 1 };
        assert!((least..least + 30).contains(&cycles), "{count}: {cycles}");
    }
    // One after another, none gets in front of the beginning of another.
    let mut core = Core::new(&config);
    let block = core.block(&[fill]);
    for n in 0..100 {
        core.enter(block);
        core.store(0, hit(n * 32));
    }
    let cycles = core.done();
    assert!(cycles >= 99 * start, "{cycles}");
}

#[test]
fn are_impossible_cores_refused() {
    let refused = |change: fn(&mut CoreConfig)| {
        let mut config = skylake();
        change(&mut config);
        Window::new(&config).unwrap_err()
    };
    assert_eq!(refused(|core| core.issue_width = 0), Error::IssueWidth(0));
    assert_eq!(
        refused(|core| core.page_walkers = 0),
        Error::Range {
            key: "page_walkers",
            value: 0,
            most: 1 << 16
        }
    );
    assert_eq!(
        refused(|core| core.branch_predictor.target_entries = 3),
        Error::PowerOfTwo {
            key: "branch_predictor.target_entries",
            value: 3
        }
    );
    for (numbers, value) in [
        (vec![], "[]"),
        (vec![3, 16], "[3, 16]"),
        (vec![1, 1], "[1, 1]"),
    ] {
        let mut config = skylake();
        config.ports.float = Ports::Numbers(numbers);
        assert_eq!(
            Window::new(&config).unwrap_err(),
            Error::Ports {
                key: "ports.float",
                value: value.to_owned()
            }
        );
    }
    let many =
        refused(|core| (core.ports.integer, core.ports.float) = (Ports::Own(9), Ports::Own(8)));
    assert_eq!(many, Error::ManyPorts);
}
