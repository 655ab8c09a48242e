//! A run and its program, for tests that feed an engine by hand.

pub mod programs;

use contigua_machine::Engine;
use contigua_machine::config::{
    Age, DesignConfig, Detail, MachineConfig, RunConfig, parse_design, parse_machine,
};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::plan::Plan;
use contigua_program::sources::Program;
use contigua_program::syscall::Architecture;
use contigua_program::wire::{BlockId, Event, Syscall};
use contigua_units::Bytes;

/// A program without code: events and accesses only.
pub struct NoCode;

impl CodeLog for NoCode {
    fn block(&self, _: BlockId) -> Option<BlockCode<'_>> {
        None
    }
}

/// The skylake machine with so much memory.
pub fn machine(memory: u64) -> MachineConfig {
    let text = include_str!("../../../../python/contigua/data/machines/skylake.toml");
    let mut machine = parse_machine(text, "machine").unwrap();
    machine.memory = Bytes::new(memory);
    machine
}

/// A design from its text.
pub fn design(text: &str) -> DesignConfig {
    parse_design(text, "design").unwrap()
}

/// A run on one core and fresh memory, of translation only. Tests change what they are about.
pub fn config(design: DesignConfig, machine: MachineConfig) -> RunConfig {
    RunConfig {
        design_name: "design".to_owned(),
        design,
        machine_name: "skylake".to_owned(),
        machine,
        age: Age::Fresh,
        holes: None,
        classify_misses: false,
        detail: Detail::Translation,
        cores: 1,
        migrations_per_second: 0.0,
        allocator: None,
        timeline: None,
        profile: None,
        seed: 1,
        skip: 0,
        warmup: 0,
        instructions: None,
        mapped: false,
        sampling: None,
        regions: None,
        confidence: 0.95,
        goal: None,
    }
}

/// An engine for a program that says what it maps.
pub fn engine(config: RunConfig) -> Engine {
    Engine::new(config, program()).unwrap()
}

/// A program that says what it maps.
pub fn program() -> Program {
    Program {
        command: vec!["test".to_owned()],
        architecture: Architecture::X86_64,
        reports_mappings: true,
        plan: Plan::default(),
    }
}

/// A system call and what it gave.
pub fn syscall(number: u16, arguments: [u64; 6], result: u64) -> Event {
    Event::Syscall(Syscall {
        number,
        arguments,
        result: result.cast_signed(),
    })
}
