//! A run and its program, for tests that feed an engine by hand.

pub mod programs;

use contigua_machine::Engine;
use contigua_machine::config::{
    Age, DesignConfig, Detail, MachineConfig, RunConfig, parse_design, parse_machine,
};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::layout::Layout;
use contigua_program::plan::Plan;
use contigua_program::sources::{Batch, Program, Source};
use contigua_program::syscall::Architecture;
use contigua_program::wire::{BlockId, Event, ProcessId, Syscall, ThreadId};
use contigua_units::Bytes;

/// A program without code: events and accesses only.
pub struct NoCode;

impl CodeLog for NoCode {
    fn block(&self, _: BlockId) -> Option<BlockCode<'_>> {
        None
    }
}

/// Identity of recordings in memory.
pub const RECORDING: u64 = 7;

/// A recording in memory.
pub struct Recording<'a> {
    batches: &'a [(ThreadId, Vec<u64>)],
    next: usize,
    program: Program,
    code: &'static (dyn CodeLog + Sync),
}

impl<'a> Recording<'a> {
    pub fn new(batches: &'a [(ThreadId, Vec<u64>)], code: &'static (dyn CodeLog + Sync)) -> Self {
        Self {
            batches,
            next: 0,
            program: program(),
            code,
        }
    }
}

impl Source for Recording<'_> {
    fn program(&self) -> &Program {
        &self.program
    }

    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, contigua_program::Error> {
        let batch = self.batches.get(self.next);
        self.next += 1;
        Ok(batch.map(|(thread, words)| Batch {
            thread: *thread,
            words,
            code: self.code,
        }))
    }

    fn identity(&self) -> Option<u64> {
        Some(RECORDING)
    }

    fn seek(&mut self, batches: u64) -> Result<(), contigua_program::Error> {
        self.next = batches as usize;
        Ok(())
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
        layout: Layout::default(),
        timeline: None,
        advised: Vec::new(),
        profile: None,
        locality: false,
        smaps: None,
        seed: 1,
        skip: 0,
        warmup: 0,
        instructions: None,
        simulated_seconds: None,
        mapped: false,
        sampling: None,
        regions: None,
        confidence: 0.95,
        goal: None,
    }
}

/// A server of 64 MB whose program, on its one thread, has mapped 16 MB at an address.
pub fn mapped(detail: Detail, architecture: Architecture, mmap: u16, buffer: u64) -> Engine {
    let design = design(include_str!(
        "../../../../python/contigua/data/designs/linux-4k.toml"
    ));
    let config = RunConfig {
        detail,
        ..config(design, machine(64 << 20))
    };
    let program = Program {
        architecture,
        ..program()
    };
    let mut engine = Engine::new(config, program).unwrap();
    let process = ProcessId(0);
    let map = syscall(mmap, [0, 16 << 20, 3, 0x22, 0, 0], buffer);
    for event in [Event::ThreadStart { process }, map] {
        consume(&mut engine, event.encode().words(), &NoCode);
    }
    engine
}

/// Lets the first thread do something.
pub fn consume(engine: &mut Engine, words: &[u64], code: &dyn CodeLog) {
    let thread = ThreadId(0);
    engine
        .consume(Batch {
            thread,
            words,
            code,
        })
        .unwrap();
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
        layout: Layout::default(),
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
