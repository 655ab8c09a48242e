//! Do fixed runs have the values that they had?
//!
//! Runs of every design and machine, of several cores with pages that migrate, of units, behind a
//! warm-up, of servers that age and of a heap on a server. Each run's numbers, without their names, are in `values.json`
//! as a count and a digest. A commit that is to change no result leaves that file alone; one that
//! changes results writes it anew (`CONTIGUA_WRITE_VALUES=1`) and says why: experiments run again
//! when it changes (`checks/catalogue.toml`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::common::programs::{BASE, Step, designs, words};
use contigua_machine::ageing::{AgeConfig, Server, parse_profile};
use contigua_machine::config::{
    Age, DesignConfig, Detail, LlcMigration, MachineConfig, MigrationConfig, RunConfig,
    SoftwareMigration, parse_machine,
};
use contigua_machine::heap::{HeapRun, run};
use contigua_machine::{Error, Progress, simulate};
use contigua_pageheap::Config;
use contigua_pageheap::replay::{Removal, Settings, square_wave};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::plan::Sampling;
use contigua_program::sources::{Batch, Program, Source};
use contigua_program::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};
use contigua_units::{Bytes, Nanoseconds, VirtAddr};
use serde::Serialize;
use serde_json::Value;

const MEMORY: u64 = 256 << 20;
const SECOND: u64 = 1_000_000_000;

/// Eight blocks, each at the end of a page of its own, that load, calculate, store and jump.
struct Code;

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        (block.0 < 8).then_some(BlockCode {
            address: VirtAddr::new(0x40_0ff0 + 4096 * u64::from(block.0)),
            lengths: &[3, 3, 4, 3, 4, 2],
            // mov rax, [rbx]; mov [rsi], rax; imul rcx, rax; add rdx, rcx; mulsd xmm0, xmm1;
            // jne to the block itself
            bytes: &[
                0x48, 0x8b, 0x03, 0x48, 0x89, 0x06, 0x48, 0x0f, 0xaf, 0xc8, 0x48, 0x01, 0xca, 0xf2,
                0x0f, 0x59, 0xc1, 0x75, 0xeb,
            ],
        })
    }
}

struct Fixed {
    batches: Vec<(ThreadId, Vec<u64>)>,
    next: usize,
    program: Program,
}

impl Source for Fixed {
    fn program(&self) -> &Program {
        &self.program
    }

    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, contigua_program::Error> {
        let batch = self.batches.get(self.next);
        self.next += 1;
        Ok(batch.map(|(thread, words)| Batch {
            thread: *thread,
            words,
            code: &Code,
        }))
    }
}

/// Maps, advises, unmaps and moves, and threads that use memory in between.
fn program(threads: u32) -> Vec<(ThreadId, Vec<u64>)> {
    let start = Event::ThreadStart {
        process: ProcessId(0),
    };
    let start = start.encode().words().to_vec();
    let starts = (0..threads).map(|thread| (ThreadId(thread), start.clone()));
    let mut batches: Vec<_> = starts.collect();
    batches.push((ThreadId(0), words(&Step::Map(0, 3000, true))));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..12 {
        let step = match round % 4 {
            0 => Step::Advise(512 * (round % 3), 1024, 14),
            1 => Step::Unmap(100 * round, 64),
            2 => Step::Map(100 * (round - 1), 64, true),
            _ => Step::Move(2048, 4096 + 600 * round, 300),
        };
        batches.push((ThreadId(0), words(&step)));
        for thread in 0..threads {
            let used = (0..400).flat_map(|turn| used(&mut state, turn)).collect();
            batches.push((ThreadId(thread), used));
        }
    }
    batches
}

/// A block, and its load and store of the same place.
fn used(state: &mut u64, turn: u64) -> [u64; 3] {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let offset = if (*state >> 40).is_multiple_of(4) {
        *state % (2000 * 4096 - 8)
    } else {
        turn * 24
    };
    let access = |instruction| Access {
        address: VirtAddr::new(BASE + offset),
        size_log2: 3,
        store: instruction == 1,
        instruction,
    };
    [
        block_word(BlockId(*state as u32 >> 7 & 7)),
        access(0).encode(),
        access(1).encode(),
    ]
}

/// All numbers of a report but those of its configuration, whatever their names. Nine digits: the
/// C library's logarithm is not the same everywhere.
fn numbers(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Number(number) => found.push(match number.as_u64() {
            Some(whole) => whole.to_string(),
            None => format!("{:.8e}", number.as_f64().unwrap()),
        }),
        Value::Array(values) => values.iter().for_each(|value| numbers(value, found)),
        Value::Object(members) => {
            let results = members.iter().filter(|(key, _)| *key != "config");
            results.for_each(|(_, value)| numbers(value, found));
        }
        _ => {}
    }
}

/// FNV-1a.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What a result came to.
fn told(result: &impl Serialize) -> String {
    let mut found = Vec::new();
    numbers(&serde_json::to_value(result).unwrap(), &mut found);
    // What is renamed moves.
    found.sort_unstable();
    format!("{} {:016x}", found.len(), digest(&found.join(" ")))
}

/// What a run of a program with so many threads came to.
fn ran(config: RunConfig, threads: u32) -> String {
    let mut source = Fixed {
        batches: program(threads),
        next: 0,
        program: crate::common::program(),
    };
    let name = config.design_name.clone();
    match simulate(
        crate::common::engine(config),
        &mut source,
        &Progress::default(),
    ) {
        Ok(run) => told(&run.report),
        Err(Error::OutOfMemory { .. }) => "out of memory".to_owned(),
        Err(error) => panic!("{name}: {error}"),
    }
}

fn config(design: &DesignConfig, machine: MachineConfig, detail: Detail) -> RunConfig {
    RunConfig {
        detail,
        age: Age::Partial,
        ..crate::common::config(design.clone(), machine)
    }
}

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../python/contigua/data")
        .join(folder)
}

/// Each machine that comes with the package, with little memory.
fn machines() -> Vec<(String, MachineConfig)> {
    let files = fs::read_dir(data("machines")).unwrap();
    let mut machines: Vec<_> = files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let mut machine = parse_machine(&fs::read_to_string(&path).unwrap(), &name).unwrap();
            machine.memory = Bytes::new(MEMORY);
            (name, machine)
        })
        .collect();
    machines.sort_by(|one, other| one.0.cmp(&other.0));
    machines
}

/// Twenty minutes of a busy server.
fn aged(design: &DesignConfig, profile: &str) -> String {
    let text = fs::read_to_string(data("profiles").join(format!("{profile}.toml"))).unwrap();
    let mut server = Server::new(AgeConfig {
        design_name: "design".to_owned(),
        design: design.clone(),
        profile_name: profile.to_owned(),
        profile: parse_profile(&text, profile).unwrap(),
        memory: Bytes::new(2 << 30),
        seed: 1,
        load: 1.2,
        kernel: 4.0,
        files: 2.0,
        daily: false,
    })
    .unwrap();
    server.run_until(Nanoseconds::new(1_200 * SECOND));
    told(&server.sample())
}

/// A heap that grows, shrinks and gives back on a server.
fn heap(design: &DesignConfig) -> String {
    let server = config(design, crate::common::machine(1 << 29), Detail::Additive);
    let life = HeapRun {
        server,
        program: Settings {
            config: Config {
                release_rate: 8 << 20,
                interval: 5 * SECOND,
                ..Config::DEFAULT
            },
            removal: Removal::Random(7),
            ..Settings::default()
        },
        demand: square_wave(20 << 20, 80 << 20, 10 * SECOND, 10 * SECOND),
        end: 30 * SECOND,
        warmup: 10 * SECOND,
        reads: 100,
        seed: 3,
    };
    told(&run(&life, &AtomicBool::new(false), &|_| ()).unwrap())
}

fn all_runs() -> BTreeMap<String, String> {
    let designs: BTreeMap<_, _> = designs().into_iter().collect();
    let mut now = BTreeMap::new();
    for (name, design) in &designs {
        for detail in [Detail::Translation, Detail::Additive, Detail::Full] {
            let config = config(design, crate::common::machine(MEMORY), detail);
            now.insert(format!("{name} {detail:?}"), ran(config, 1));
        }
    }
    let thp = &designs["linux-thp"];
    for (name, machine) in machines() {
        now.insert(
            format!("machine {name}"),
            ran(config(thp, machine, Detail::Full), 1),
        );
    }
    let migrations = [
        MigrationConfig::Software(SoftwareMigration::default()),
        MigrationConfig::Llc(LlcMigration::default()),
    ];
    for (kind, migration) in ["software", "llc"].into_iter().zip(migrations) {
        let mut config = config(thp, crate::common::machine(MEMORY), Detail::Full);
        config.design.migration = migration;
        config.migrations_per_second = 100_000.0;
        config.cores = 2;
        now.insert(format!("cores {kind}"), ran(config, 3));
    }
    let mut sampled = config(thp, crate::common::machine(MEMORY), Detail::Full);
    sampled.skip = 5_000;
    sampled.sampling = Some(Sampling {
        distance: 5_000,
        warm: 2_000,
        detail: 1_000,
        seed: 1,
        most: 0,
    });
    now.insert("sampled".to_owned(), ran(sampled, 2));
    let mut warmed = config(thp, crate::common::machine(MEMORY), Detail::Additive);
    warmed.warmup = 10_000;
    now.insert("warmed additive".to_owned(), ran(warmed, 2));
    for name in [
        "linux-thp",
        "illuminator-thp",
        "contiguitas-thp",
        "contiguitas-rfc-thp",
    ] {
        for profile in ["mixed", "ci"] {
            now.insert(
                format!("aged {name} {profile}"),
                aged(&designs[name], profile),
            );
        }
    }
    for name in ["linux-thp-madvise", "contiguitas-thp"] {
        now.insert(format!("heap {name}"), heap(&designs[name]));
    }
    now
}

#[test]
fn do_fixed_runs_have_the_values_that_they_had() {
    let now = all_runs();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/values.json");
    if std::env::var_os("CONTIGUA_WRITE_VALUES").is_some() {
        let text = serde_json::to_string_pretty(&now).unwrap() + "\n";
        fs::write(&file, text).unwrap();
    }
    let before: BTreeMap<String, String> =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let changed: Vec<_> = now
        .iter()
        .filter(|(run, told)| before.get(*run).is_some_and(|known| known != *told))
        .collect();
    assert!(
        changed.is_empty(),
        "results differ from before: {changed:#?}"
    );
    assert_eq!(
        now.keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>(),
        "runs came or went"
    );
}
