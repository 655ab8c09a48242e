//! Presets and instructions that several tests use.

use contigua_core::CoreConfig;
use contigua_program::decode::{Instruction, OperationClass as Class, RegisterSet};
use serde::Deserialize;

/// The cores of all presets, as configured.
pub fn presets() -> Vec<CoreConfig> {
    #[derive(Deserialize)]
    struct Machine {
        core: CoreConfig,
    }
    [
        include_str!("../../../../python/contigua/data/machines/sandy-bridge.toml"),
        include_str!("../../../../python/contigua/data/machines/skylake.toml"),
        include_str!("../../../../python/contigua/data/machines/sapphire-rapids.toml"),
    ]
    .map(|machine| toml::from_str::<Machine>(machine).unwrap().core)
    .to_vec()
}

pub fn skylake() -> CoreConfig {
    presets().remove(1)
}

pub fn registers(numbers: &[u32]) -> RegisterSet {
    let registers = numbers.iter().map(|&number| RegisterSet::general(number));
    registers.fold(RegisterSet::EMPTY, RegisterSet::with)
}

/// An operation between registers.
pub fn operation(class: Class, reads: &[u32], writes: &[u32]) -> Instruction {
    Instruction {
        class,
        reads: registers(reads),
        writes: registers(writes),
        ..Instruction::UNKNOWN
    }
}

/// `mov to, [address]`
pub fn load(address: &[u32], to: u32) -> Instruction {
    Instruction {
        class: Class::Load,
        reads: registers(address),
        addresses: registers(address),
        writes: registers(&[to]),
        loads: 1,
        ..Instruction::UNKNOWN
    }
}

/// `mov [address], from`
pub fn store(address: &[u32], from: &[u32]) -> Instruction {
    Instruction {
        class: Class::Store,
        reads: registers(address).with(registers(from)),
        addresses: registers(address),
        stores: 1,
        ..Instruction::UNKNOWN
    }
}
