//! Memory-level parallelism: the time of misses that depend on each other, and of independent ones:
//! `cargo run -p contigua-core --example misses`.

use contigua_core::{Blocks, CoreConfig, Window};
use contigua_program::decode::{Instruction, OperationClass, RegisterSet};
use contigua_units::{Cycles, PhysAddr, VirtAddr};
use serde::Deserialize;

#[derive(Deserialize)]
struct Machine {
    core: CoreConfig,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = include_str!("../../../python/contigua/data/machines/skylake.toml");
    let config = toml::from_str::<Machine>(machine)?.core;
    for (name, from) in [("dependent", 1), ("independent", 2)] {
        // Each load writes register 1; its address is in register 1, or in one that nothing writes.
        let load = Instruction {
            class: OperationClass::Load,
            reads: RegisterSet::general(from),
            addresses: RegisterSet::general(from),
            writes: RegisterSet::general(1),
            loads: 1,
            ..Instruction::UNKNOWN
        };
        let mut blocks = Blocks::new(&config);
        blocks.learn(0, VirtAddr::new(0x40_0000), &[4; 8], &[load; 8]);
        let mut window = Window::new(&config)?;
        for round in 0..1000 {
            window.enter(&blocks, 0);
            for index in 0..8 {
                window.access(&blocks, index, false);
                let address = PhysAddr::new((round * 8 + index as u64) * 64);
                window.answer(address, Cycles::ZERO, false, Cycles::new(200));
            }
        }
        let cycles = window.cycles().get() as f64 / 8000.0;
        println!("{name} misses of 200 cycles take {cycles:.1} cycles each");
    }
    Ok(())
}
