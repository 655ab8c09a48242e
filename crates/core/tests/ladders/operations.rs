//! Latencies, ports, slots, dividers.

use super::{Core, hit, miss, time};
use crate::common::{load, operation, presets, skylake};
use contigua_core::Ports;
use contigua_program::decode::{Instruction, OperationClass as Class};

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
