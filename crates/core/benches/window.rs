//! Cost of one instruction in the window model.

use std::hint::black_box;

use contigua_core::{Blocks, CoreConfig, Window};
use contigua_program::decode::{Instruction, OperationClass as Class, RegisterSet};
use contigua_units::{Cycles, PhysAddr, VirtAddr};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde::Deserialize;

fn skylake() -> CoreConfig {
    #[derive(Deserialize)]
    struct Machine {
        core: CoreConfig,
    }
    let machine = include_str!("../../../python/contigua/data/machines/skylake.toml");
    let machine: Machine = toml::from_str(machine).expect("a preset is well formed");
    machine.core
}

/// 64 blocks of 8 instructions: a third accesses memory, as in compiled code.
fn code(config: &CoreConfig) -> Blocks {
    let general = RegisterSet::general;
    let mut blocks = Blocks::new(config);
    for block in 0..64_u32 {
        let register = |number: u32| general((block * 5 + number) % 16);
        let simple = |number: u32| Instruction {
            class: Class::IntegerSimple,
            reads: register(number).with(register(number + 1)),
            writes: register(number).with(RegisterSet::FLAGS),
            ..Instruction::UNKNOWN
        };
        let load = |number: u32| Instruction {
            class: Class::Load,
            reads: register(number),
            addresses: register(number),
            writes: register(number + 2),
            loads: 1,
            ..Instruction::UNKNOWN
        };
        let store = Instruction {
            class: Class::Store,
            reads: register(1).with(register(4)),
            addresses: register(4),
            stores: 1,
            ..Instruction::UNKNOWN
        };
        let branch = Instruction {
            class: Class::BranchConditional,
            reads: RegisterSet::FLAGS,
            ..Instruction::UNKNOWN
        };
        let code = [
            load(0),
            simple(2),
            simple(3),
            load(4),
            simple(6),
            store,
            simple(7),
            branch,
        ];
        let address = VirtAddr::new(0x40_0000 + u64::from(block) * 32);
        blocks.learn(block as usize, address, &[4; 8], &code);
    }
    blocks
}

fn instructions(c: &mut Criterion) {
    const ROUNDS: u64 = 1000;
    let config = skylake();
    let blocks = code(&config);
    let mut group = c.benchmark_group("window");
    group.throughput(Throughput::Elements(ROUNDS * 8));
    // How many of 16 accesses miss, and whether blocks follow each other at random.
    for (name, misses, random) in [
        ("hits", 0, false),
        ("misses", 2, false),
        ("branches", 0, true),
        ("both", 2, true),
    ] {
        let mut window = Window::new(&config).expect("a preset is well formed");
        let mut state = 1_u64;
        group.bench_function(name, |b| {
            b.iter(|| {
                for round in 0..ROUNDS {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let number = if random { state >> 33 } else { round };
                    window.enter(&blocks, number as usize % 64);
                    for (place, index) in [0, 3, 5].into_iter().enumerate() {
                        let random = state >> (20 + 8 * place);
                        let address = PhysAddr::new(random % (1 << 20));
                        let miss = random >> 20 & 15 < misses;
                        let latency = Cycles::new(if miss { 200 } else { 0 });
                        window.access(&blocks, index, index == 5);
                        window.answer(address, Cycles::ZERO, false, latency);
                    }
                }
                black_box(window.cycles())
            });
        });
    }
    group.finish();
}

/// Without accesses, as where a trace has no code.
fn unknown(c: &mut Criterion) {
    const ROUNDS: u64 = 1000;
    let config = skylake();
    let mut blocks = Blocks::new(&config);
    blocks.learn(0, VirtAddr::new(0x40_0000), &[4; 8], &[]);
    let mut window = Window::new(&config).expect("a preset is well formed");
    let mut group = c.benchmark_group("window");
    group.throughput(Throughput::Elements(ROUNDS * 8));
    group.bench_function("unknown", |b| {
        b.iter(|| {
            for _ in 0..ROUNDS {
                window.enter(&blocks, 0);
            }
            black_box(window.cycles())
        });
    });
    group.finish();
}

criterion_group!(benches, instructions, unknown);
criterion_main!(benches);
