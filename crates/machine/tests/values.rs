//! Golden values: fixed runs have the results that `values.json` holds.
//!
//! Runs of every design and machine, of several cores with pages that migrate, of sampling units, behind a warm-up, of
//! servers that age and of a heap on a server. `values.json` has some numbers of each run by name, and the count and
//! a digest of all of them. A commit that is to change no result leaves that file alone; one that changes results
//! writes it anew (`CONTIGUA_WRITE_VALUES=1`) and says why: experiments run again when the values of their designs and
//! machines change (`scripts/checks/experiments.py`). A design or machine without stored values passes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::common::Recording;
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
use contigua_program::plan::{Sampling, Units};
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
    let mut stored = vec![0];
    for round in 0..12 {
        let step = match round % 4 {
            0 => Step::Advise(512 * (round % 3), 1024, 14),
            1 => Step::Unmap(100 * round, 64),
            2 => Step::Map(100 * (round - 1), 64, true),
            _ => Step::Move(2048, 4096 + 600 * round, 300),
        };
        batches.push((ThreadId(0), words(&step)));
        for thread in 0..threads {
            let used = (0..400)
                .flat_map(|turn| used(&mut state, turn, &mut stored))
                .collect();
            batches.push((ThreadId(thread), used));
        }
    }
    batches
}

/// A block, its load of a place that was stored to before, and its store.
fn used(state: &mut u64, turn: u64, stored: &mut Vec<u64>) -> [u64; 3] {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let offset = if (*state >> 40).is_multiple_of(4) {
        *state % (2000 * 4096 - 8)
    } else {
        turn * 24
    };
    let loaded = stored[(*state >> 11) as usize % stored.len()];
    stored.push(offset);
    let access = |instruction, offset| Access {
        address: VirtAddr::new(BASE + offset),
        size_log2: 3,
        store: instruction == 1,
        instruction,
    };
    [
        block_word(BlockId(*state as u32 >> 7 & 7)),
        access(0, loaded).encode(),
        access(1, offset).encode(),
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

/// A number's name in `values.json`, and the members of a result that it is the sum of.
type Named = (&'static str, &'static [&'static str]);

const OF_RUNS: [Named; 15] = [
    ("instructions", &["/executed/instructions"]),
    ("cycles", &["/time/cycles"]),
    ("walk_active_cycles", &["/time/walk_active"]),
    (
        "l1_dtlb_misses",
        &[
            "/tlb/data/misses_4k",
            "/tlb/data/misses_2m",
            "/tlb/data/misses_1g",
        ],
    ),
    (
        "l1_itlb_misses",
        &[
            "/tlb/instruction/misses_4k",
            "/tlb/instruction/misses_2m",
            "/tlb/instruction/misses_1g",
        ],
    ),
    (
        "l2_tlb_hits",
        &[
            "/translation/l2_hits_4k",
            "/translation/l2_hits_2m",
            "/translation/l2_hits_1g",
        ],
    ),
    (
        "walks",
        &[
            "/translation/walks_4k",
            "/translation/walks_2m",
            "/translation/walks_1g",
        ],
    ),
    ("walk_references", &["/translation/references"]),
    ("walk_cycles", &["/translation/walk_cycles"]),
    (
        "faults",
        &[
            "/kernel/faults_anonymous_4k",
            "/kernel/faults_anonymous_2m",
            "/kernel/faults_zero_page",
            "/kernel/faults_file",
            "/kernel/faults_copy_on_write",
            "/kernel/faults_segment",
            "/kernel/faults_host",
        ],
    ),
    (
        "huge_pages",
        &[
            "/kernel/faults_anonymous_2m",
            "/kernel/huge_page_collapses",
            "/kernel/perforations",
        ],
    ),
    ("pages_moved", &["/kernel/pages_moved"]),
    ("shootdowns", &["/kernel/shootdowns"]),
    ("migrations", &["/migration/completed"]),
    (
        "free_2m_blocks_after",
        &["/contiguity_after/blocks_2m/free"],
    ),
];
const OF_SERVERS: [Named; 10] = [
    ("free_frames", &["/contiguity/free_frames"]),
    ("movable_frames", &["/contiguity/movable_frames"]),
    ("unmovable_frames", &["/contiguity/unmovable_frames"]),
    ("free_2m_blocks", &["/contiguity/blocks_2m/free"]),
    ("polluted_2m_blocks", &["/contiguity/blocks_2m/unmovable"]),
    ("unmovable_region_bytes", &["/unmovable_region_bytes"]),
    ("allocations", &["/events/allocations"]),
    (
        "failures",
        &["/events/failures_movable", "/events/failures_unmovable"],
    ),
    ("huge_pages", &["/events/server/huge_pages"]),
    (
        "huge_page_fallbacks",
        &["/events/server/huge_page_fallbacks"],
    ),
];
const OF_HEAPS: [Named; 8] = [
    ("faults_4k", &["/summary/faults_4k"]),
    ("faults_2m", &["/summary/faults_2m"]),
    ("fallbacks", &["/summary/fallbacks"]),
    ("huge_pages_broken", &["/summary/broken"]),
    (
        "huge_pages_collapsed",
        &["/summary/collapsed", "/summary/collapsed_in_background"],
    ),
    ("given_back_bytes", &["/summary/given_back"]),
    ("pages_moved", &["/summary/pages_moved"]),
    ("free_2m_blocks_before", &["/free_2m_blocks_before"]),
];

/// A run's entry in `values.json`.
fn told(result: &impl Serialize, named: &[Named]) -> BTreeMap<String, Value> {
    let result = serde_json::to_value(result).unwrap();
    let mut told = BTreeMap::new();
    for (name, members) in named {
        // A part that the run does not have, such as the time of translation alone.
        let part = members[0].split('/').nth(1).unwrap();
        if result.get(part).is_none_or(Value::is_null) {
            continue;
        }
        let member = |path: &&str| result.pointer(path).and_then(Value::as_u64);
        let sum: Option<u64> = members.iter().map(member).sum();
        let sum = sum.unwrap_or_else(|| panic!("{name}: a member of {members:?} is no count"));
        told.insert((*name).to_owned(), sum.into());
    }
    let mut found = Vec::new();
    numbers(&result, &mut found);
    // What is renamed moves.
    found.sort_unstable();
    let digest = format!("{} {:016x}", found.len(), digest(&found.join(" ")));
    told.insert("all_numbers".to_owned(), digest.into());
    told
}

/// The entry of a run of a program with so many threads.
fn ran(config: RunConfig, threads: u32) -> BTreeMap<String, Value> {
    let batches = program(threads);
    let mut source = Recording::new(&batches, &Code);
    let name = config.design_name.clone();
    match simulate(
        crate::common::engine(config),
        &mut source,
        &Progress::default(),
    ) {
        Ok(run) => told(&run.report, &OF_RUNS),
        Err(Error::OutOfMemory { .. }) => {
            BTreeMap::from_iter([("ended".to_owned(), "out of memory".into())])
        }
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
fn aged(design: &DesignConfig, profile: &str) -> BTreeMap<String, Value> {
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
        nodes: 1,
    })
    .unwrap();
    server.run_until(Nanoseconds::new(1_200 * SECOND));
    told(&server.sample(), &OF_SERVERS)
}

/// A heap that grows, shrinks and gives back on a server.
fn heap(design: &DesignConfig) -> BTreeMap<String, Value> {
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
    told(
        &run(&life, &AtomicBool::new(false), &|_| ()).unwrap(),
        &OF_HEAPS,
    )
}

type Runs = BTreeMap<String, BTreeMap<String, Value>>;

fn all_runs() -> Runs {
    let designs: BTreeMap<_, _> = designs().into_iter().collect();
    let mut now = BTreeMap::new();
    for (name, design) in &designs {
        for detail in [Detail::Translation, Detail::Additive, Detail::Full] {
            let config = config(design, crate::common::machine(MEMORY), detail);
            let detail = format!("{detail:?}").to_lowercase();
            now.insert(format!("design {name} {detail}"), ran(config, 1));
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
        long_warm: 0,
        units: Units::Told,
    });
    now.insert("sampled".to_owned(), ran(sampled, 2));
    let mut warmed = config(thp, crate::common::machine(MEMORY), Detail::Additive);
    warmed.warmup = 10_000;
    now.insert("warmed".to_owned(), ran(warmed, 2));
    for name in [
        "linux-thp",
        "illuminator-thp",
        "contiguitas-thp",
        "contiguitas-rfc-thp",
        "contiguitas-hw",
    ] {
        for profile in ["mixed", "ci"] {
            now.insert(
                format!("ageing {name} {profile}"),
                aged(&designs[name], profile),
            );
        }
    }
    for name in ["linux-thp-madvise", "contiguitas-thp"] {
        now.insert(format!("heap {name}"), heap(&designs[name]));
    }
    now
}

/// Returns the differences: run, number, before, after.
fn changes(before: &Runs, now: &Runs) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    for (run, known) in before {
        let Some(found) = now.get(run) else {
            rows.push([
                run.clone(),
                "all".to_owned(),
                "stored".to_owned(),
                "no such run".to_owned(),
            ]);
            continue;
        };
        let keys: BTreeSet<_> = known.keys().chain(found.keys()).collect();
        for key in keys
            .into_iter()
            .filter(|&key| known.get(key) != found.get(key))
        {
            let shown = |one: &BTreeMap<String, Value>| {
                one.get(key).map_or("-".to_owned(), Value::to_string)
            };
            rows.push([run.clone(), key.clone(), shown(known), shown(found)]);
        }
    }
    // Designs and machines that come along need no entry.
    let optional = |run: &str| run.starts_with("design ") || run.starts_with("machine ");
    for run in now
        .keys()
        .filter(|&run| !before.contains_key(run) && !optional(run))
    {
        rows.push([
            run.clone(),
            "all".to_owned(),
            "none stored".to_owned(),
            "-".to_owned(),
        ]);
    }
    rows
}

/// Rows below each other.
fn table(rows: &[[String; 4]]) -> String {
    let heads = ["run", "number", "before", "after"].map(str::to_owned);
    let mut text = String::new();
    for row in std::iter::once(&heads).chain(rows) {
        let [run, number, before, after] = row;
        writeln!(text, "{run:40} {number:24} {before:>24} {after:>24}").unwrap();
    }
    text
}

#[test]
fn golden_values_unchanged() {
    let now = all_runs();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/values.json");
    if std::env::var_os("CONTIGUA_WRITE_VALUES").is_some() {
        let text = serde_json::to_string_pretty(&now).unwrap() + "\n";
        fs::write(&file, text).unwrap();
    }
    let before: Runs = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let rows = changes(&before, &now);
    assert!(
        rows.is_empty(),
        "results differ from values.json:\n{}",
        table(&rows)
    );
}

#[test]
fn changed_golden_values_are_named() {
    let runs = |text: &str| serde_json::from_str::<Runs>(text).unwrap();
    let before = runs(r#"{"design a full": {"walks": 1, "cycles": 5}, "cores llc": {"walks": 1}}"#);
    let now =
        runs(r#"{"design a full": {"walks": 2, "cycles": 5}, "design b full": {}, "heap a": {}}"#);
    let named: Vec<_> = changes(&before, &now)
        .into_iter()
        .map(|row| row.join(", "))
        .collect();
    assert_eq!(
        named,
        [
            "cores llc, all, stored, no such run",
            "design a full, walks, 1, 2",
            "heap a, all, none stored, -",
        ]
    );
}
