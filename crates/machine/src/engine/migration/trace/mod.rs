//! Does the engine do what the model does? Each step of random runs, of all designs, is taken by
//! the model whose states are all visited (`crates/cache/tests/protocol`), or the run is refused.
//!
//! `make check-protocol` takes a million steps. `scripts/mutants machine cache` breaks the engine
//! and sees that its trace is refused.

mod acceptor;
mod protocol;

use contigua_cache::migration::{Mode, SwitchOrder};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::sources::Batch;
use contigua_program::wire::{self, BlockId, ProcessId, ThreadId, block_word};
use contigua_units::{Bytes, VirtAddr};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::Engine;
use crate::config::{Detail, LlcMigration, MigrationConfig, RunConfig};
use crate::recorder::Recorder;
use acceptor::{Accepted, Acceptor};

#[allow(dead_code, reason = "the tests of whole runs use the rest")]
#[path = "../../../../tests/common/mod.rs"]
mod common;

const HEAP: u64 = 0x4000_0000;
const PAGES: u64 = 24;
/// Buffers of the network device, so that it often uses one that migrates.
const BUFFERS: usize = 12;
/// Entries of the table, fewer than the migrations that are asked for.
const ENTRIES: u8 = 4;

/// Blocks of four moves from and to memory.
struct Code;

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        (block.0 < 16).then_some(BlockCode {
            address: VirtAddr::new(0x40_0000 + 64 * u64::from(block.0)),
            lengths: &[3, 3, 3, 3],
            // mov rax, [rbx]; mov rcx, [rdx]; mov [rsi], rax; mov rdi, [rdi]
            bytes: &[
                0x48, 0x8b, 0x03, 0x48, 0x8b, 0x0a, 0x48, 0x89, 0x06, 0x48, 0x8b, 0x3f,
            ],
        })
    }
}

/// A machine whose caches, TLBs and table are small, so that all of them evict.
fn config(llc: LlcMigration, cores: u32, inclusive: bool, prefetches: bool) -> RunConfig {
    let mut design = common::design(include_str!(
        "../../../../../../python/contigua/data/designs/linux-4k.toml"
    ));
    design.migration = MigrationConfig::Llc(llc);
    let mut machine = common::machine(64 << 20);
    let cache = &mut machine.cache;
    for (level, lines, ways) in [
        (&mut cache.l1i, 32, 2),
        (&mut cache.l1d, 32, 2),
        (&mut cache.l2, 256, 4),
        (&mut cache.llc, 2048, 4),
    ] {
        (level.size, level.ways) = (Bytes::new(lines * 64), ways);
    }
    cache.shared.slices = 4;
    cache.shared.inclusive = inclusive;
    cache.shared.directory_entries = 192;
    cache.shared.directory_ways = 4;
    cache.shared.migration_entries = ENTRIES;
    cache.prefetch.next_line = prefetches;
    cache.prefetch.stride = prefetches;
    cache.prefetch.next_page = prefetches;
    cache.prefetch.stream_lines = if prefetches { 20 } else { 0 };
    for first in [&mut machine.tlb.l1d, &mut machine.tlb.l1i] {
        if let Some(pages) = &mut first.pages_4k {
            (pages.entries, pages.ways) = (8, 2);
        }
    }
    RunConfig {
        detail: Detail::Full,
        cores,
        migrations_per_second: 400_000.0 * f64::from(cores - 1),
        seed: 5,
        ..common::config(design, machine)
    }
}

/// A program of as many threads as there are cores, which read, write, receive and send.
struct Program {
    random: Xoshiro256PlusPlus,
    threads: u64,
}

impl Program {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn start(&self, engine: &mut Engine) {
        const MMAP: u16 = 9;
        const SOCKET: u16 = 41;
        let process = ProcessId(0);
        let start = wire::Event::ThreadStart { process };
        consume(engine, 0, start.encode().words());
        let map = common::syscall(MMAP, [0, PAGES * 4096, 3, 0x22, 0, 0], HEAP);
        consume(engine, 0, map.encode().words());
        let socket = common::syscall(SOCKET, [2, 1, 0, 0, 0, 0], 7);
        consume(engine, 0, socket.encode().words());
        for thread in 1..self.threads {
            consume(engine, thread, start.encode().words());
        }
    }

    /// A thread and the words that it executes next.
    fn part(&mut self) -> (u64, Vec<u64>) {
        const READ: u16 = 0;
        const WRITE: u16 = 1;
        const MADVISE: u16 = 28;
        const DONTNEED: u64 = 4;
        const GETPID: u16 = 39;
        let thread = self.below(self.threads);
        let mut words = Vec::new();
        for _ in 0..=self.below(24) {
            words.push(block_word(BlockId(self.below(16) as u32)));
            let stride = self.below(4) == 0;
            let (page, first) = (self.below(PAGES), self.below(64));
            for (number, store) in [(0, false), (1, false), (2, true), (3, false)] {
                let page = if stride { page } else { self.below(PAGES) };
                // Some lines are hot, so that cores share them; some follow one another.
                let line = match self.below(3) {
                    _ if stride => (first + u64::from(number)) % 64,
                    0 => self.below(4),
                    _ => self.below(64),
                };
                let access = wire::Access {
                    address: VirtAddr::new(HEAP + page * 4096 + line * 64),
                    size_log2: 3,
                    store,
                    instruction: number,
                };
                words.push(access.encode());
            }
        }
        let size = PAGES * 4096;
        let bytes = 64 + self.below(size / 2);
        let call = match self.below(8) {
            0 => common::syscall(READ, [7, HEAP, size, 0, 0, 0], bytes),
            1 => common::syscall(WRITE, [7, HEAP, size, 0, 0, 0], bytes),
            2..6 => common::syscall(GETPID, [0; 6], 1),
            6 if self.below(4) == 0 => {
                // Frames change their owners while caches have lines of theirs.
                let first = HEAP + self.below(PAGES - 4) * 4096;
                common::syscall(MADVISE, [first, 4 * 4096, DONTNEED, 0, 0, 0], 0)
            }
            _ => return (thread, words),
        };
        words.extend(call.encode().words());
        (thread, words)
    }
}

fn consume(engine: &mut Engine, thread: u64, words: &[u64]) {
    let batch = Batch {
        thread: ThreadId(thread as u32),
        words,
        code: &Code,
    };
    engine.consume(batch).expect("the program is well formed");
    engine.background();
}

fn recorder(engine: &mut Engine) -> &mut Recorder {
    let memory = engine.memory.as_mut().expect("the run has caches");
    memory.payload_memory()
}

/// Lets the acceptor take what was recorded.
fn follow(engine: &mut Engine, acceptor: &mut Acceptor) -> Result<(), String> {
    let records = recorder(engine).records.replace(Vec::new());
    let records = records.expect("the run is followed");
    for (at, record) in records.iter().enumerate() {
        acceptor.accept(record).map_err(|problem| {
            let before = &records[at.saturating_sub(12)..=at];
            let lines: Vec<_> = before.iter().map(|record| format!("{record:?}")).collect();
            format!("{problem}\n  {}", lines.join("\n  "))
        })?;
    }
    Ok(())
}

/// Follows a random run for as many steps of the model.
fn run(llc: &LlcMigration, cores: u32, flavor: u64, steps: u64) -> Accepted {
    let config = config(llc.clone(), cores, flavor & 1 == 1, flavor & 2 == 2);
    let mut engine = common::engine(config);
    recorder(&mut engine).records = Some(Vec::new());
    let mut acceptor = Acceptor::new(cores as usize, ENTRIES, llc.order, llc.mode);
    let mut program = Program {
        random: Xoshiro256PlusPlus::seed_from_u64(flavor + 1),
        threads: cores.into(),
    };
    program.start(&mut engine);
    while acceptor.accepted.steps < steps {
        let (thread, words) = program.part();
        consume(&mut engine, thread, &words);
        engine.devices.network.shrink(BUFFERS);
        if let Err(problem) = follow(&mut engine, &mut acceptor) {
            panic!(
                "{llc:?}, {cores} cores, run {flavor}, after {:?}: {problem}",
                acceptor.accepted
            );
        }
    }
    engine.validate().expect("the state is consistent");
    acceptor.accepted
}

fn expect_accepted(steps_of_each: u64) {
    for mode in [Mode::Cacheable, Mode::Noncacheable] {
        for order in [SwitchOrder::CopyThenSwitch, SwitchOrder::SwitchThenCopy] {
            let mut device = 0;
            for flavor in 0..4 {
                let cores = 2 + flavor as u32 % 3;
                let accepted = run(&LlcMigration { mode, order }, cores, flavor, steps_of_each);
                println!("{mode:?}, {order:?}, cores {cores}, run {flavor}: {accepted:?}");
                assert!(
                    accepted.most >= 2 && accepted.redirected > 0,
                    "{accepted:?}"
                );
                device += accepted.device;
            }
            assert!(device > 0, "the device never used a buffer that migrates");
        }
    }
}

#[test]
fn the_model_takes_every_step_of_the_engine() {
    expect_accepted(8000);
}

#[test]
#[ignore = "a million steps: make check-protocol"]
fn the_model_takes_a_million_steps_of_the_engine() {
    expect_accepted(65_000);
}
