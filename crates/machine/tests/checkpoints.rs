//! Does a run that goes on from a checkpoint end as if it had never stopped?

use std::fs;
use std::path::Path;

use crate::common::programs::{BASE, Code, Kind, Step, holes, server, small_designs, step, words};
use crate::common::{RECORDING, Recording};
use contigua_machine::config::{Age, Detail, RegionConfig, RunConfig};
use contigua_machine::{
    CheckpointProblem, Engine, Error, Progress, Report, Saves, simulate, simulate_from,
};
use contigua_program::plan::{Sampling, Units, Window};
use contigua_program::sources::{Batch, Source as _};
use contigua_program::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};
use contigua_units::VirtAddr;
use proptest::prelude::*;

/// A random program: steps, and loops over memory that are long enough for the kernel's threads to
/// run.
#[derive(Clone, Debug)]
enum Part {
    Step(Step),
    Loop(u64),
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        6 => step().prop_map(Part::Step),
        1 => any::<u64>().prop_map(Part::Loop),
    ]
}

fn batches(parts: &[(u32, Part)]) -> Vec<(ThreadId, Vec<u64>)> {
    let start = Event::ThreadStart {
        process: ProcessId(0),
    };
    let map = Step::Map(0, 3000, true);
    let mut batches = vec![
        (ThreadId(0), start.encode().words().to_vec()),
        (ThreadId(0), words(&map)),
    ];
    batches.extend(parts.iter().map(|(thread, part)| {
        let words = match part {
            Part::Step(step) => words(step),
            Part::Loop(seed) => turns(*seed),
        };
        (ThreadId(*thread), words)
    }));
    batches
}

/// A thousand or more blocks with an access each, somewhere.
fn turns(seed: u64) -> Vec<u64> {
    let mut state = seed | 1;
    let mut words = Vec::new();
    for turn in 0..1000 + seed % 3000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let near = BASE + turn * 24 % (64 << 10);
        let address = if (state >> 40).is_multiple_of(4) {
            BASE + state % (3000 * 4096 - 8)
        } else {
            near
        };
        words.push(block_word(BlockId(state as u32 >> 7 & 7)));
        let access = Access {
            address: VirtAddr::new(address),
            size_log2: 3,
            store: state >> 50 & 1 == 1,
            instruction: 1,
        };
        words.push(access.encode());
    }
    words
}

/// `None` where the server runs out of memory.
fn uninterrupted(config: &RunConfig, batches: &[(ThreadId, Vec<u64>)]) -> Option<Report> {
    let engine = crate::common::engine(config.clone());
    let mut source = Recording::new(batches, &Code);
    match simulate(engine, &mut source, &Progress::default()) {
        Ok(run) => Some(run.report),
        Err(Error::OutOfMemory { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Runs with checkpoints at some shares of the way; the report, and the files that were saved.
fn with_checkpoints(
    config: &RunConfig,
    batches: &[(ThreadId, Vec<u64>)],
    shares: &[f64],
    folder: &Path,
) -> (Report, Vec<std::path::PathBuf>) {
    // Where it ends, for `Executed` counts the region only.
    let mut engine = crate::common::engine(config.clone());
    for (thread, words) in batches {
        let (thread, code) = (*thread, &Code);
        engine
            .consume(Batch {
                thread,
                words,
                code,
            })
            .unwrap();
    }
    let end = engine.position() as f64;
    let files = shares.iter().enumerate().map(|(number, share)| {
        let at = (end * share) as u64;
        (at, folder.join(format!("{number}")))
    });
    let saves = Saves::new(files.clone().collect());
    let mut engine = crate::common::engine(config.clone());
    engine.use_second_thread();
    let mut source = Recording::new(batches, &Code);
    let progress = Progress::default();
    let run = simulate_from(engine, &mut source, &progress, 0, saves).unwrap();
    let saved = files.map(|(_, file)| file).filter(|file| file.exists());
    let saved: Vec<_> = saved.collect();
    assert_eq!(saved.len() + run.checkpoints.len(), shares.len());
    (run.report, saved)
}

fn restored(
    config: &RunConfig,
    batches: &[(ThreadId, Vec<u64>)],
    file: &Path,
) -> Result<Report, Error> {
    let (engine, read) = Engine::restore(config, crate::common::program(), file, RECORDING)?;
    assert_eq!(engine.validate(), Ok(()));
    let mut source = Recording::new(batches, &Code);
    source.seek(read)?;
    let run = simulate_from(
        engine,
        &mut source,
        &Progress::default(),
        read,
        Saves::default(),
    )?;
    Ok(run.report)
}

fn compare(config: &RunConfig, batches: &[(ThreadId, Vec<u64>)], shares: &[f64]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let Some(expected) = uninterrupted(config, batches) else {
        return 0;
    };
    let expected = expected.to_json();
    let (report, files) = with_checkpoints(config, batches, shares, folder.path());
    assert_eq!(report.to_json(), expected, "saving changes the run");
    for file in &files {
        let report = restored(config, batches, file).unwrap();
        assert_eq!(report.to_json(), expected, "{}", file.display());
    }
    files.len()
}

fn config(detail: Detail) -> RunConfig {
    let design = crate::common::design(include_str!(
        "../../../python/contigua/data/designs/linux-thp.toml"
    ));
    RunConfig {
        detail,
        ..crate::common::config(design, crate::common::machine(512 << 20))
    }
}

fn some_batches(parts: u64) -> Vec<(ThreadId, Vec<u64>)> {
    let loops = (0..parts).map(|seed| (0, Part::Loop(seed * 977)));
    batches(&loops.collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(16)))]

    #[test]
    fn going_on_from_a_checkpoint_equals_not_having_stopped(
        (name, design) in prop::sample::select(small_designs()),
        holes in prop::option::of(holes()),
        age in prop::sample::select(vec![Age::Fresh, Age::Scattered(0.001), Age::Scattered(0.2)]),
        kind in prop_oneof![
            3 => server(),
            2 => prop::sample::select(vec![Detail::Translation, Detail::Full]).prop_map(|detail| Kind {
                detail,
                cores: 1,
                migrations: 0.0,
                migration: contigua_machine::config::MigrationConfig::default(),
            }),
        ],
        (skip, warmup) in (0..60_000u64, 0..60_000u64),
        parts in prop::collection::vec((0..3u32, part()), 1..80),
        shares in prop::collection::vec(0.0..1.0, 2),
    ) {
        let mut config = config(kind.detail);
        config.design_name = name;
        config.design = design;
        config.design.migration = kind.migration;
        config.cores = kind.cores;
        config.migrations_per_second = kind.migrations;
        config.holes = holes;
        config.age = age;
        config.skip = skip;
        config.warmup = warmup;
        config.classify_misses = true;
        config.seed = 3;
        compare(&config, &batches(&parts), &shares);
    }

    #[test]
    fn so_do_sampled_runs_and_regions(
        sampled: bool,
        detail in prop::sample::select(vec![Detail::Additive, Detail::Full]),
        distance in 20_000..60_000u64,
        parts in prop::collection::vec((0..3u32, part()), 20..80),
        shares in prop::collection::vec(0.0..1.0, 2),
    ) {
        let mut config = config(detail);
        if sampled {
            config.sampling = Some(Sampling {
                distance,
                warm: distance / 4,
                detail: 5000,
                seed: distance,
                most: 8,
                long_warm: distance / 2 * (distance % 2),
                units: Units::Told,
            });
        } else {
            config.regions = Some(RegionConfig::Windows {
                warm: distance / 4,
                windows: (0..5)
                    .map(|number| Window {
                        begin: number * distance,
                        end: number * distance + 7000,
                    })
                    .collect(),
            });
        }
        compare(&config, &batches(&parts), &shares);
    }

    /// Whatever a file holds, it is refused in words.
    #[test]
    fn no_bytes_make_a_restore_panic(
        start in prop::sample::select(vec![0, 8, 12, 16]),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let config = config(Detail::Translation);
        let mut contents = checkpoint(&config, folder.path());
        contents.truncate(start);
        contents.extend(bytes);
        let file = folder.path().join("file");
        fs::write(&file, &contents).unwrap();
        let problem = problem(&config, &file, RECORDING);
        prop_assert!(!problem.to_string().is_empty());
    }

    /// Nor does state whose checksum is right, wherever it was changed.
    #[test]
    fn no_state_makes_a_load_panic(
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let config = config(Detail::Full);
        let mut contents = checkpoint(&config, folder.path());
        let (head, mut state) = taken_apart(&contents);
        let at = at.index(state.len());
        if cut {
            state.truncate(at);
        } else {
            state[at] ^= byte | 1;
        }
        contents = put_together(&head, &state, state.len() as u64);
        let file = folder.path().join("file");
        fs::write(&file, &contents).unwrap();
        let restored = Engine::restore(&config, crate::common::program(), &file, RECORDING);
        prop_assert!(!cut || restored.is_err());
    }
}

#[test]
fn memory_of_every_history_is_in_the_checkpoint() {
    for age in ["partial", "full", "web:2min"] {
        let config = RunConfig {
            age: age.parse().unwrap(),
            ..config(Detail::Translation)
        };
        assert_eq!(compare(&config, &some_batches(40), &[0.2, 0.9]), 2, "{age}");
    }
}

/// A checkpoint of a short run.
fn checkpoint(config: &RunConfig, folder: &Path) -> Vec<u8> {
    let (_, files) = with_checkpoints(config, &some_batches(5), &[0.5], folder);
    fs::read(&files[0]).unwrap()
}

/// Splits a checkpoint into its header and the state.
fn taken_apart(contents: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let length = u32::from_le_bytes(*contents[12..].first_chunk().unwrap());
    let (head, rest) = contents.split_at(16 + length as usize);
    let state = zstd::decode_all(&rest[..rest.len() - 16]).unwrap();
    (head.to_vec(), state)
}

fn put_together(head: &[u8], state: &[u8], bytes: u64) -> Vec<u8> {
    let mut contents = head.to_vec();
    contents.extend(zstd::encode_all(state, 1).unwrap());
    contents.extend(bytes.to_le_bytes());
    let checksum = xxhash_rust::xxh3::xxh3_64(&contents);
    contents.extend(checksum.to_le_bytes());
    contents
}

fn problem(config: &RunConfig, file: &Path, recording: u64) -> CheckpointProblem {
    match Engine::restore(config, crate::common::program(), file, recording).err() {
        Some(Error::Checkpoint { path, problem }) => {
            assert_eq!(path, file);
            problem
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_run_cannot_go_on_from_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(Detail::Full);
    let contents = checkpoint(&config, folder.path());
    let file = folder.path().join("file");
    let refused = |contents: &[u8], config: &RunConfig, recording: u64| {
        fs::write(&file, contents).unwrap();
        problem(config, &file, recording).to_string()
    };

    let larger = RunConfig {
        machine: crate::common::machine(256 << 20),
        ..config.clone()
    };
    assert_eq!(
        refused(&contents, &larger, RECORDING),
        "saved in a run with machine.memory 512MiB, and this one has 256MiB: give the same \
         options, or save a checkpoint with these"
    );
    assert_eq!(
        refused(&contents, &config, 8),
        "saved in a run of another recording: give that one with --trace"
    );
    let damaged = "damaged or cut short: save the checkpoint again";
    for length in [17, 40, contents.len() / 2, contents.len() - 1] {
        assert_eq!(refused(&contents[..length], &config, RECORDING), damaged);
    }
    for at in [
        20,
        contents.len() / 2,
        contents.len() - 12,
        contents.len() - 1,
    ] {
        let mut other = contents.clone();
        other[at] ^= 4;
        assert_eq!(refused(&other, &config, RECORDING), damaged, "{at}");
    }
    let mut later = contents.clone();
    later[8] = 9;
    assert!(
        refused(&later, &config, RECORDING)
            .starts_with("saved by Contigua of checkpoint format 9,")
    );
    assert_eq!(
        refused(b"# a design", &config, RECORDING),
        "not a checkpoint of `contigua run --checkpoint`"
    );
    assert_eq!(
        refused(b"", &config, RECORDING),
        "not a checkpoint of `contigua run --checkpoint`"
    );
    // A state that claims to be huge.
    let (head, state) = taken_apart(&contents);
    let huge = put_together(&head, &state, u64::MAX);
    assert_eq!(refused(&huge, &config, RECORDING), damaged);
    let short = put_together(&head, &state, state.len() as u64 - 1);
    assert!(refused(&short, &config, RECORDING).contains("does not fit this server"));
    let mut longer = state.clone();
    longer.push(0);
    let longer = put_together(&head, &longer, longer.len() as u64);
    assert!(refused(&longer, &config, RECORDING).contains("goes on behind its end"));
}

#[test]
fn a_checkpoint_that_was_not_reached_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(Detail::Translation);
    let batches = some_batches(5);
    let saves = Saves::new(vec![(u64::MAX, folder.path().join("never"))]);
    let engine = crate::common::engine(config);
    let mut source = Recording::new(&batches, &Code);
    let run = simulate_from(engine, &mut source, &Progress::default(), 0, saves).unwrap();
    let end = run.report.executed.instructions;
    let [missed] = &run.checkpoints[..] else {
        panic!("{:?}", run.checkpoints);
    };
    assert!(
        missed.to_string().ends_with(&format!(
            "never: not saved: the run went from instruction 0 to {end}"
        )),
        "{missed}"
    );
    assert!(!folder.path().join("never").exists());
}
