//! Predictions and what a wrong one costs.

use super::{Core, hit, miss};
use crate::common::{load, operation, presets, skylake};
use contigua_core::CoreConfig;
use contigua_program::decode::OperationClass as Class;

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
