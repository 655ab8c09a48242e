//! Does the engine stay consistent whatever a program does?

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::common::programs::{BASE, Code, Step, holes, server, small_designs, step, words};
use crate::common::{engine, syscall};
use contigua_machine::ageing::{AgeConfig, Server, Snapshot, parse_profile};
use contigua_machine::config::{Age, DesignConfig, Detail, RunConfig, parse_design};
use contigua_machine::{Ended, Engine, Error, Progress, Report, simulate};
use contigua_program::code::CodeLog;
use contigua_program::plan::{self, Plan, Sampling, Units};
use contigua_program::sources::trace::TraceSource;
use contigua_program::sources::{Batch, Program, Source};
use contigua_program::trace::TraceWriter;
use contigua_program::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};
use contigua_units::{Bytes, Nanoseconds, VirtAddr};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

const THP: &str = include_str!("../../../python/contigua/data/designs/linux-thp.toml");
const MIXED: &str = include_str!("../../../python/contigua/data/profiles/mixed.toml");

fn config(memory: u64, detail: Detail) -> RunConfig {
    RunConfig {
        age: Age::Scattered(0.001),
        detail,
        seed: 3,
        ..crate::common::config(crate::common::design(THP), crate::common::machine(memory))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(25)))]
    #[test]
    fn every_structure_stays_valid_and_every_access_is_translated(
        (name, design) in prop::sample::select(small_designs()),
        holes in prop::option::of(holes()),
        kind in server(),
        steps in prop::collection::vec((0..3u32, step()), 1..250)
    ) {
        let mut config = config(512 << 20, kind.detail);
        config.cores = kind.cores;
        config.migrations_per_second = kind.migrations;
        config.design_name = name;
        config.design = design;
        config.design.migration = kind.migration;
        config.holes = holes;
        config.classify_misses = true;
        let mut engine = engine(config);
        let mut accesses = 0;
        for (thread, step) in &steps {
            let words = words(step);
            let batch = Batch { thread: ThreadId(*thread), words: &words, code: &Code };
            engine.consume(batch).unwrap();
            accesses += u64::from(matches!(step, Step::Access(..)));
            prop_assert_eq!(engine.validate(), Ok(()));
        }
        engine.finish().unwrap();
        prop_assert_eq!(engine.validate(), Ok(()));
        let report = engine.report();
        prop_assert_eq!(report.executed.loads + report.executed.stores, accesses);
        // Every access found a translation in the end: look-ups are hits, or misses that were
        // answered.
        prop_assert!(report.tlb.data.misses() <= report.tlb.data.lookups);
        let time = report.time.unwrap();
        let all = time.breakdown.total();
        prop_assert_eq!(all, time.busy_cycles + time.breakdown.idle);
        prop_assert!(time.cycles <= all);
        prop_assert!(kind.cores > 1 || time.cycles == all);
    }

    #[test]
    fn no_words_make_the_engine_panic(words in prop::collection::vec(any::<u64>(), 0..60)) {
        let mut engine = engine(config(64 << 20, Detail::Translation));
        // Blocks beyond the few that exist, and records that are none, are errors.
        let _ = engine.consume(Batch { thread: ThreadId(0), words: &words, code: &Code });
    }
}

/// Events that the plugin sends of a step while it goes forward: counts, and first touches of pages.
#[derive(Default)]
struct Teller {
    written: HashSet<(u64, u64)>,
    read: HashSet<(u64, u64)>,
    executed: HashSet<(u64, u64)>,
    instructions: u64,
}

impl Teller {
    fn words(&mut self, thread: u32, step: &Step) -> Vec<u64> {
        let thread = u64::from(thread);
        let mut told = Vec::new();
        match *step {
            Step::Block(block) => {
                let code = Code.block(BlockId(block)).unwrap();
                let last = code.address.get() + u64::from(code.size()) - 1;
                for page in [code.address.get() / 4096, last / 4096] {
                    if self.executed.insert((thread, page)) {
                        told.push(Event::Fetch {
                            page: VirtAddr::new(page * 4096),
                        });
                    }
                }
                self.instructions += 4;
                return told
                    .iter()
                    .flat_map(|event| event.encode().words().to_vec())
                    .collect();
            }
            Step::Access(offset, store, size) => {
                let pages = [offset / 4096, (offset + (1 << size) - 1) / 4096];
                let mut first = false;
                for page in pages {
                    first |= if store {
                        self.written.insert((thread, page))
                    } else {
                        !self.written.contains(&(thread, page)) && self.read.insert((thread, page))
                    };
                }
                if !first {
                    return Vec::new();
                }
            }
            // The plugin forgets ranges; forgetting all is as right.
            _ => {
                self.written.clear();
                self.read.clear();
            }
        }
        if self.instructions > 0 {
            told.push(Event::Forward {
                instructions: std::mem::take(&mut self.instructions),
            });
        }
        let told = told
            .iter()
            .flat_map(|event| event.encode().words().to_vec());
        told.chain(words(step)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(40)))]

    /// The operating system comes to one state for a program that is simulated, passed over, or only
    /// sends its first touches.
    #[test]
    fn the_operating_system_is_the_same_in_every_mode(
        (name, design) in prop::sample::select(small_designs()),
        holes in prop::option::of(holes()),
        steps in prop::collection::vec((0..3u32, step()), 1..250)
    ) {
        let mut reports = Vec::new();
        for (skip, tells_all) in [(0, true), (u64::MAX, true), (u64::MAX, false)] {
            let mut config = config(512 << 20, Detail::Translation);
            config.design_name.clone_from(&name);
            config.design = design.clone();
            config.holes = holes;
            config.skip = skip;
            let mut engine = engine(config);
            let mut teller = Teller::default();
            for (thread, step) in &steps {
                let words = if tells_all { words(step) } else { teller.words(*thread, step) };
                let batch = Batch { thread: ThreadId(*thread), words: &words, code: &Code };
                engine.consume(batch).unwrap();
                prop_assert_eq!(engine.validate(), Ok(()));
            }
            engine.finish().unwrap();
            reports.push(engine.report());
        }
        for other in &reports[1..] {
            prop_assert_eq!(&reports[0].kernel, &other.kernel);
            prop_assert_eq!(&reports[0].memory, &other.memory);
            prop_assert_eq!(&reports[0].frames, &other.frames);
            prop_assert_eq!(&reports[0].contiguity_after, &other.contiguity_after);
        }
    }
}

/// Batches that a plan leaves of steps, as the plugin tells them.
fn told(plan: &Plan, steps: &[(u32, Step)]) -> Vec<(ThreadId, Vec<u64>)> {
    let mut teller = Teller::default();
    let (mut count, mut forward) = (0, false);
    let mut batches = Vec::new();
    for (thread, step) in steps {
        if let Step::Block(_) = step {
            count += 4;
            forward = plan.segment(count - 1).mode == plan::Mode::Forward;
        }
        let mut told = Vec::new();
        if forward {
            told = teller.words(*thread, step);
        } else {
            if teller.instructions > 0 {
                let instructions = std::mem::take(&mut teller.instructions);
                told.extend(Event::Forward { instructions }.encode().words());
            }
            told.extend(words(step));
        }
        batches.push((ThreadId(*thread), told));
    }
    let instructions = teller.instructions;
    let end = Event::Forward { instructions }.encode();
    batches.extend((instructions > 0).then(|| (ThreadId(0), end.words().to_vec())));
    batches
}

/// Returns the report of a run over batches, which are those of a recording.
fn replayed(config: &RunConfig, recorded: &Plan, batches: &[(ThreadId, Vec<u64>)]) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let program = Program {
        plan: recorded.clone(),
        ..crate::common::program()
    };
    let mut writer = TraceWriter::create(&path, &program).unwrap();
    for (thread, words) in batches {
        let batch = Batch {
            thread: *thread,
            words,
            code: &Code,
        };
        writer.write(&batch).unwrap();
    }
    writer.finish(None).unwrap();
    let mut source = TraceSource::open(&path).unwrap();
    let mut config = config.clone();
    config.follow(&source.program().plan).unwrap();
    let engine = Engine::new(config, source.program().clone()).unwrap();
    simulate(engine, &mut source, &Progress::default())
        .unwrap()
        .report
}

fn live(config: &RunConfig, batches: &[(ThreadId, Vec<u64>)]) -> Report {
    let mut engine = engine(config.clone());
    for (thread, words) in batches {
        let batch = Batch {
            thread: *thread,
            words,
            code: &Code,
        };
        engine.consume(batch).unwrap();
        engine.background();
    }
    engine.finish().unwrap();
    engine.report()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(40)))]

    /// A recording of units says what the run beside it said, and, of fewer or shorter units, what a
    /// recording of everything says.
    #[test]
    fn a_sampled_recording_replays_as_the_program_ran(
        (name, design) in prop::sample::select(small_designs()),
        steps in prop::collection::vec((0..3_u32, step()), 1..150),
        (distance, warm, seed) in (1000..10_000_u64, 0..4000_u64, any::<u64>()),
        (most, skip) in (0..4_u64, prop_oneof![Just(0), 1..2000_u64]),
        (times, less) in (0..2_u32, 0..4000_u64),
        full: bool,
    ) {
        // Blocks run in loops: units have a thousand instructions.
        let times_each = |step: &Step| if matches!(step, Step::Block(_)) { 80 } else { 1 };
        let steps: Vec<_> = [(0, Step::Block(0))]
            .into_iter()
            .chain(steps)
            .flat_map(|step| std::iter::repeat_n(step.clone(), times_each(&step.1)))
            .collect();
        let sampling = Sampling { distance, warm, detail: 1000, seed, most, long_warm: 0, units: Units::Told };
        let plan = Plan { skip, sampling: Some(sampling), ..Plan::default() };
        let batches = told(&plan, &steps);

        let detail = if full { Detail::Full } else { Detail::Additive };
        let mut asked = config(512 << 20, detail);
        asked.design_name = name;
        asked.design = design;
        let mut same = asked.clone();
        (same.skip, same.sampling) = (skip, Some(sampling));
        let expected = live(&same, &batches);
        for config in [&asked, &same] {
            prop_assert_eq!(&replayed(config, &plan, &batches), &expected);
        }

        if skip > 0 {
            // Counts begin with the region, and a block of it may begin before.
            return Ok(());
        }
        let warm = warm.saturating_sub(less);
        // Units that are crowded are not those of half the distance.
        let times = if distance < 8000 { 0 } else { times };
        let fewer = Sampling { distance: distance << times, warm, ..sampling };
        (asked.detail, asked.sampling) = (Detail::Translation, Some(fewer));
        let part = replayed(&asked, &plan, &batches);
        let all = Plan::default();
        let whole = replayed(&asked, &all, &told(&all, &steps));
        prop_assert_eq!(&part.kernel, &whole.kernel);
        prop_assert_eq!(&part.memory, &whole.memory);
        prop_assert_eq!(&part.frames, &whole.frames);
        prop_assert_eq!(part.tlb.data, whole.tlb.data);
        let [part, whole] = [part.sample, whole.sample].map(|sample| sample.unwrap().by_unit);
        prop_assert_eq!(part, whole);
    }
}

#[test]
fn what_a_recording_does_not_hold_is_refused() {
    let sampling = Sampling {
        distance: 8000,
        warm: 2000,
        detail: 1000,
        seed: 300,
        most: 4,
        long_warm: 0,
        units: Units::Told,
    };
    let recorded = Plan {
        skip: 100,
        sampling: Some(sampling),
        ..Plan::default()
    };
    let ask = |skip, sampling| {
        let mut config = config(64 << 20, Detail::Full);
        (config.skip, config.sampling) = (skip, sampling);
        config.follow(&recorded).map(|()| config.plan())
    };
    // Nothing asked for, all of it, or other places: those of the recording.
    let elsewhere = Sampling {
        seed: 7,
        ..sampling
    };
    for (skip, asked) in [(0, None), (100, None), (0, Some(elsewhere))] {
        assert_eq!(ask(skip, asked).unwrap(), recorded);
    }
    let more = Sampling {
        warm: 2001,
        ..sampling
    };
    for (skip, asked) in [(0, Some(more)), (101, Some(sampling)), (99, None)] {
        let error = ask(skip, asked).unwrap_err().to_string();
        let held = "--skip 100 --sample --sample-distance 8000 --sample-warm 2000 --sample-detail 1000 \
                    --sample-units 4`";
        assert!(error.contains(held), "{error}");
    }
    let mut all = config(64 << 20, Detail::Full);
    all.follow(&Plan::default()).unwrap();
    assert_eq!(all.plan(), Plan::default());
}

/// Returns the hardware's counts, without times.
fn counted(report: &Report) -> [serde_json::Value; 4] {
    let whole = serde_json::to_value(report).unwrap();
    ["tlb", "translation", "translation_scheme", "cache"].map(|part| {
        let mut part = whole[part].clone();
        forget_times(&mut part);
        part
    })
}

fn forget_times(value: &mut serde_json::Value) {
    if let Some(parts) = value.as_object_mut() {
        parts.retain(|name, _| !name.ends_with("_cycles"));
        parts.values_mut().for_each(forget_times);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(16)))]

    /// One state, several clocks: what TLBs, walk caches and caches hold does not depend on how time
    /// is simulated, nor on whether it is.
    #[test]
    fn the_hardware_counts_the_same_in_every_detail(
        (name, design) in prop::sample::select(small_designs()),
        steps in prop::collection::vec((0..3u32, step()), 1..250)
    ) {
        let warm = Sampling { distance: 1 << 40, warm: 1 << 40, detail: 1000, seed: 0, most: 0, long_warm: 0, units: Units::Told };
        let runs = [
            (Detail::Translation, None), (Detail::Additive, None), (Detail::Full, None),
            (Detail::Full, Some(warm)),
        ];
        let [translation, additive, full, warmed] = runs.map(|(detail, sampling)| {
            let mut config = config(512 << 20, detail);
            config.design_name.clone_from(&name);
            config.design = design.clone();
            config.sampling = sampling;
            // It asks for translations ahead, and only where caches are simulated.
            config.machine.cache.prefetch.next_page = false;
            let mut engine = engine(config);
            // A block first: sampling begins with one.
            let steps = [(0, Step::Block(0))].into_iter().chain(steps.clone());
            for (thread, step) in steps {
                let words = words(&step);
                let batch = Batch { thread: ThreadId(thread), words: &words, code: &Code };
                engine.consume(batch).unwrap();
            }
            engine.finish().unwrap();
            assert_eq!(engine.validate(), Ok(()));
            counted(&engine.report())
        });
        // Victima keeps translations in the L2 cache, which is simulated only with times.
        if !name.ends_with("victima") {
            prop_assert_eq!(&translation[..3], &additive[..3]);
        }
        prop_assert_eq!(&additive, &full);
        prop_assert_eq!(&full, &warmed);
    }
}

/// A report but for what says how it was made.
fn without_timeline(engine: &Engine) -> serde_json::Value {
    let mut report = serde_json::to_value(engine.report()).unwrap();
    report["config"]["timeline"] = serde_json::Value::Null;
    report
}

/// Values that two reports do not share.
fn differences(one: &serde_json::Value, other: &serde_json::Value) -> Vec<String> {
    if let (Some(one), Some(other)) = (one.as_array(), other.as_array()) {
        let pairs = one.iter().zip(other);
        return pairs
            .flat_map(|(one, other)| differences(one, other))
            .collect();
    }
    match (one.as_object(), other.as_object()) {
        (Some(one), Some(other)) => one
            .iter()
            .flat_map(|(key, value)| {
                let found = differences(value, &other[key]);
                found.into_iter().map(move |rest| format!("{key} {rest}"))
            })
            .collect(),
        _ if one == other => Vec::new(),
        _ => vec![format!("{one} {other}")],
    }
}

/// Full detail with the state ahead of time, on two threads or one, and without: a timeline notes
/// when each thing happens.
fn ahead_and_not(config: &RunConfig, run: impl Fn(&mut Engine)) -> [serde_json::Value; 3] {
    [(true, false), (false, false), (false, true)].map(|(second_thread, timeline)| {
        let mut config = config.clone();
        config.timeline = timeline.then(|| "never written".into());
        let mut engine = engine(config);
        if second_thread {
            engine.use_second_thread();
        }
        run(&mut engine);
        engine.finish().unwrap();
        without_timeline(&engine)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(16)))]

    /// Outcomes that are timed behind the state take as long as those that are timed at once.
    #[test]
    fn state_ahead_of_time_changes_nothing(
        (name, design) in prop::sample::select(small_designs()),
        steps in prop::collection::vec((0..3u32, step()), 1..250),
        often in 1..30_usize
    ) {
        let mut config = config(512 << 20, Detail::Full);
        config.design_name.clone_from(&name);
        config.design = design.clone();
        let [two, one, none] = ahead_and_not(&config, |engine| {
            for (thread, step) in &steps {
                // Some fill more than a portion.
                let words: Vec<u64> = (0..often).flat_map(|_| words(step)).collect();
                let words = if matches!(step, Step::Block(_) | Step::Access(..)) {
                    words.repeat(often)
                } else {
                    words
                };
                let batch = Batch { thread: ThreadId(*thread), words: &words, code: &Code };
                if engine.consume(batch).is_err() {
                    break;
                }
                engine.background();
            }
        });
        prop_assert_eq!(differences(&two, &one), Vec::<String>::new());
        prop_assert_eq!(differences(&two, &none), Vec::<String>::new());
    }
}

#[test]
fn a_long_program_takes_as_long_with_its_state_ahead() {
    let config = config(512 << 20, Detail::Full);
    let [two, one, none] = ahead_and_not(&config, |engine| walk_through(engine, 50_000));
    assert!(two["time"]["cycles"].as_u64().unwrap() > 100_000);
    assert_eq!(differences(&two, &one), Vec::<String>::new());
    assert_eq!(differences(&two, &none), Vec::<String>::new());
}

/// A program that walks through memory, 5 instructions an access, in batches.
fn walk_through(engine: &mut Engine, steps: u64) {
    access_all(engine, steps, |step| step * 4160 % (64 << 20));
}

/// A program that accesses the place of each step, 5 instructions an access, in batches.
fn access_all(engine: &mut Engine, steps: u64, place: impl Fn(u64) -> u64) {
    let map = syscall(9, [0, 64 << 20, 3, 0x22, 0, 0], BASE);
    let mut words = map.encode().words().to_vec();
    for step in 0..steps {
        words.push(block_word(BlockId(0)));
        words.push(
            Access {
                address: VirtAddr::new(BASE + place(step)),
                size_log2: 3,
                store: step % 2 == 0,
                instruction: 1,
            }
            .encode(),
        );
        if step % 1000 == 999 || step + 1 == steps {
            let batch = Batch {
                thread: ThreadId(0),
                words: &words,
                code: &Code,
            };
            engine.consume(batch).unwrap();
            engine.background();
            words.clear();
        }
    }
    engine.finish().unwrap();
}

fn sampled(detail: Detail, sampling: Option<Sampling>, instructions: Option<u64>) -> Report {
    let mut config = config(512 << 20, detail);
    (config.sampling, config.instructions) = (sampling, instructions);
    config.skip = 70_000;
    let mut engine = engine(config);
    walk_through(&mut engine, 200_000);
    engine.report()
}

#[test]
fn a_sampled_run_says_what_a_whole_one_says_within_its_interval() {
    let sampling = Sampling {
        distance: 10_000,
        warm: 4000,
        detail: 1000,
        seed: 3000,
        most: 0,
        long_warm: 0,
        units: Units::Told,
    };
    for detail in [Detail::Additive, Detail::Full] {
        let whole = sampled(detail, None, None);
        let part = sampled(detail, Some(sampling), None);
        assert_eq!(part.executed.instructions, whole.executed.instructions);
        assert_eq!(part.kernel, whole.kernel);
        let sample = part.sample.clone().unwrap();
        // 730,000 instructions behind the skipped ones; the first unit ends at 3,000.
        assert_eq!((sample.units, sample.instructions), (73, 73_000));
        let cycles = sample.estimates["cycles"];
        let truth = whole.time.unwrap().cycles.get() as f64;
        let half = cycles.half_width.unwrap();
        assert!(
            (cycles.value - truth).abs() < half.max(0.02 * truth),
            "{cycles:?} of {truth}"
        );
        let time = part.time.clone().unwrap();
        assert!(
            (time.cycles.get() as f64 - cycles.value).abs() < 8.0,
            "{time:?}"
        );
        assert_eq!(
            part,
            sampled(detail, Some(sampling), None),
            "the same again"
        );
    }
}

/// A program that reads each of 2000 lines for 100,000 instructions, then other lines.
fn reusing(sampling: Option<Sampling>) -> Report {
    let mut config = config(512 << 20, Detail::Full);
    config.sampling = sampling;
    let mut engine = engine(config);
    access_all(&mut engine, 1_000_000, |step| {
        (step / 20_000 * 2000 + step * 7919 % 2000) * 64
    });
    engine.report()
}

#[test]
fn what_short_warming_changes_is_measured_and_corrected() {
    let short = Sampling {
        distance: 20_000,
        warm: 2000,
        detail: 1000,
        seed: 1,
        most: 0,
        long_warm: 0,
        units: Units::Told,
    };
    let truth = reusing(None).time.unwrap().cycles.get() as f64;
    let off = |sampling| {
        let report = reusing(Some(sampling));
        let cycles = report.time.unwrap().cycles.get() as f64;
        let sample = report.sample.unwrap();
        let estimate = sample.estimates["cycles"];
        assert!((estimate.value - cycles).abs() < 8.0);
        let half = estimate.half_width.unwrap() / truth;
        (cycles / truth - 1.0, half, sample.warming)
    };
    let (error, half, warming) = off(short);
    assert!(error > 2.0 * half && error > 0.2 && warming.is_none());
    let checked = Sampling {
        long_warm: 32_000,
        ..short
    };
    let (error, half, warming) = off(checked);
    let warming = warming.unwrap();
    assert!(error.abs() < half, "{error} {half} {warming:?}");
    assert!(warming.differs && warming.cycles.value < -0.1);
    // One of 16 of 200 units.
    assert!((12..=13).contains(&warming.units.len()));
    assert_eq!(warming.by_unit["data"].len(), warming.units.len());
    // Nothing is passed over: more warming is none.
    let all = Sampling {
        warm: 80_000,
        long_warm: 320_000,
        ..short
    };
    let (error, half, warming) = off(all);
    assert!(error.abs() < half.max(0.02) && warming.is_none(), "{error}");
}

#[test]
fn an_aged_servers_memory_is_that_of_the_server_that_checks_its_units() {
    let mut config = config(128 << 20, Detail::Full);
    config.age = Age::Full;
    config.sampling = Some(Sampling {
        distance: 10_000,
        warm: 2000,
        detail: 1000,
        seed: 1,
        most: 0,
        long_warm: 8000,
        units: Units::Told,
    });
    let mut engine = engine(config);
    walk_through(&mut engine, 200_000);
    assert_eq!(engine.validate(), Ok(()));
    let sample = engine.report().sample.unwrap();
    let warming = sample.warming.unwrap();
    // Pages of 4 KB in both: the full server has no free block.
    let walks = |by_unit: &std::collections::BTreeMap<&str, Vec<u64>>, name: &str| {
        by_unit[name].iter().sum::<u64>()
    };
    assert!(walks(&warming.by_unit, "walks_4k") > 0);
    assert_eq!(walks(&warming.by_unit, "walks_2m"), 0);
    assert_eq!(walks(&sample.by_unit, "walks_2m"), 0);
}

#[test]
fn a_sampled_region_ends_where_it_is_told_to_and_short_ones_are_one_unit() {
    let sampling = Sampling {
        distance: 100_000,
        warm: 4000,
        detail: 2000,
        seed: 1,
        most: 2,
        long_warm: 0,
        units: Units::Told,
    };
    let report = sampled(Detail::Full, Some(sampling), Some(500_000));
    assert_eq!(
        (report.executed.instructions, report.ended),
        (500_000, Ended::Instructions)
    );
    // One among the first 400,000 is left, and one ends among the next, perhaps in what is executed.
    let second = sampling.end_of_unit(400_000) <= 500_000;
    assert_eq!(report.sample.unwrap().units, 1 + u64::from(second));
    let warm = 100_000;
    let report = sampled(
        Detail::Full,
        Some(Sampling { warm, ..sampling }),
        Some(3000),
    );
    let sample = report.sample.unwrap();
    assert_eq!((sample.units, sample.quantile), (1, None));
    assert!(
        sample.estimates["cycles"].value > 700.0,
        "{:?}",
        sample.estimates
    );
}

#[test]
fn memory_that_was_touched_while_skipping_is_mapped_when_the_region_begins() {
    let mut config = config(512 << 20, Detail::Full);
    config.skip = 600_000;
    let mut engine = engine(config);
    walk_through(&mut engine, 200_000);
    let report = engine.report();
    assert_eq!(report.executed.instructions, 200_000);
    assert_eq!(
        report.kernel.faults_anonymous_2m + report.kernel.faults_anonymous_4k,
        0
    );
    assert!(report.memory.resident_2m.get() + report.memory.resident_4k.get() > 60 << 20);
}

const OLD_MEMORY: Bytes = Bytes::new(96 << 20);

fn old_design(placement: &str) -> DesignConfig {
    let settings = match placement {
        "contiguitas" => "unmovable_min = \"8MiB\"",
        _ => "",
    };
    // Faults for huge pages wake compaction.
    let memory = "[memory]\ndefrag = \"defer\"";
    let text = format!("{THP}\n[placement.{placement}]\n{settings}\n{memory}\n");
    parse_design(&text, "design").unwrap()
}

/// A server whose memory is full of files: whatever a program gets has to be reclaimed first.
fn old_server(placement: &str, folder: &Path) -> PathBuf {
    let mut server = Server::new(AgeConfig {
        design_name: placement.to_owned(),
        design: old_design(placement),
        profile_name: "mixed".to_owned(),
        profile: parse_profile(MIXED, "mixed").unwrap(),
        memory: OLD_MEMORY,
        seed: 1,
        load: 1.0,
        kernel: 1.0,
        files: 1.0,
        daily: false,
        nodes: 1,
    })
    .unwrap();
    server.run_until(Nanoseconds::new(600_000_000_000));
    server.dismiss_tenants();
    server.fill_with_files();
    let path = folder.join(placement);
    let snapshot = Snapshot::of(server.memory(), server.now(), serde_json::Value::Null);
    snapshot.save(&path).unwrap();
    path
}

/// Reclaim, compaction and resizing move pages under the program, and it never notices.
#[test]
fn a_program_on_an_old_server_stays_valid_while_its_pages_are_moved() {
    let folder = tempfile::tempdir().unwrap();
    let (mut moved, mut reclaimed) = (0, 0);
    for placement in ["linux", "illuminator", "contiguitas"] {
        let snapshot = old_server(placement, folder.path());
        let mut runner = TestRunner::deterministic();
        let steps = prop::collection::vec((0..3u32, step()), 400);
        for _ in 0..contigua_testing::cases(3) {
            let mut config = config(OLD_MEMORY.get(), Detail::Full);
            config.age = Age::Snapshot(snapshot.clone());
            config.design = old_design(placement);
            let mut engine = engine(config);
            for (thread, step) in steps.new_tree(&mut runner).unwrap().current() {
                let words = words(&step);
                let batch = Batch {
                    thread: ThreadId(thread),
                    words: &words,
                    code: &Code,
                };
                let done = engine.consume(batch);
                assert_eq!(engine.validate(), Ok(()));
                if done.is_err() {
                    assert!(matches!(done, Err(Error::OutOfMemory { .. })), "{done:?}");
                    break;
                }
                engine.background();
                assert_eq!(engine.validate(), Ok(()));
            }
            let report = engine.report();
            reclaimed += report.frames.frames_reclaimed_background;
            moved += report.kernel.pages_moved;
        }
    }
    assert!(
        reclaimed > 0 && moved > 0,
        "{reclaimed} reclaimed, {moved} moved"
    );
}

#[test]
fn an_unknown_block_is_an_error() {
    let mut engine = engine(config(64 << 20, Detail::Full));
    let words = [block_word(BlockId(8))];
    let error = engine.consume(Batch {
        thread: ThreadId(0),
        words: &words,
        code: &Code,
    });
    assert!(matches!(error, Err(Error::Program(_))));
}

#[test]
fn a_stream_that_names_an_absurd_process_is_an_error() {
    let mut engine = engine(config(64 << 20, Detail::Full));
    let event = Event::ThreadStart {
        process: ProcessId(u32::MAX),
    }
    .encode();
    let batch = Batch {
        thread: ThreadId(0),
        words: event.words(),
        code: &Code,
    };
    assert!(matches!(
        engine.consume(batch),
        Err(Error::Identity {
            what: "process",
            ..
        })
    ));
    let batch = Batch {
        thread: ThreadId(u32::MAX),
        words: &[],
        code: &Code,
    };
    assert!(matches!(
        engine.consume(batch),
        Err(Error::Identity { what: "thread", .. })
    ));
}

#[test]
fn a_process_that_forks_itself_is_an_error() {
    for event in [
        Event::Fork {
            child: ProcessId(0),
        },
        Event::ForkFailed {
            child: ProcessId(0),
        },
    ] {
        let mut engine = engine(config(64 << 20, Detail::Full));
        let event = event.encode();
        let words = [event.words(), &[block_word(BlockId(0))]].concat();
        let ended = engine.consume(Batch {
            thread: ThreadId(0),
            words: &words,
            code: &Code,
        });
        assert!(matches!(ended, Err(Error::OwnChild(0))), "{ended:?}");
    }
}

#[test]
fn a_line_that_was_prefetched_before_the_region_does_not_wait_for_the_time_before_it() {
    for detail in [Detail::Additive, Detail::Full] {
        let mut config = config(512 << 20, detail);
        config.warmup = 4 * 20_001;
        let mut engine = engine(config);
        let mut read = |offset| {
            let words = [
                words(&Step::Block(0)),
                words(&Step::Access(offset, false, 3)),
            ]
            .concat();
            let thread = ThreadId(0);
            let code = &Code;
            engine
                .consume(Batch {
                    thread,
                    words: &words,
                    code,
                })
                .unwrap();
        };
        // The kernel zeroes more pages than caches hold.
        (0..20_000).for_each(|page| read(4096 * page));
        read(4096 + 640);
        // Behind the warm-up; the prefetcher has asked for the line.
        read(4096 + 704);
        engine.finish().unwrap();
        let data = engine.report().time.unwrap().breakdown.data;
        assert!((1..2000).contains(&data.get()), "{detail:?}: {data}");
    }
}

/// An open table of 16 MB in an unmovable region of 8 MB: the border moves by 2 % of memory at a time.
#[test]
fn a_table_that_finds_no_room_waits_for_the_border() {
    let design = "description = \"\"\n[translation.hdc]\nhuge = { enabled = \"never\" }\n\
                  [placement.contiguitas]\nunmovable_min = \"8MiB\"\n";
    let mut engine = crate::common::engine(crate::common::config(
        crate::common::design(design),
        crate::common::machine(1 << 30),
    ));
    let process = ProcessId(0);
    let run = |engine: &mut Engine, event: &Event| {
        let words = event.encode();
        let batch = Batch {
            thread: ThreadId(0),
            words: words.words(),
            code: &Code,
        };
        engine.consume(batch)
    };
    run(&mut engine, &Event::ThreadStart { process }).unwrap();
    let mapped = crate::common::syscall(9, [0, 1 << 20, 3, 0x22, 0, 0], 0x4000_0000);
    run(&mut engine, &mapped).unwrap();
    let populated = crate::common::syscall(28, [0x4000_0000, 1 << 20, 23, 0, 0, 0], 0);
    run(&mut engine, &populated).unwrap();
    assert_eq!(engine.validate(), Ok(()));
    let report = engine.report();
    assert_eq!(report.frames.contiguous_allocations, 1);
    assert!(report.unmovable_region.unwrap().get() >= 32 << 20);
}

/// The unmovable region stays at its least size, half of memory.
#[test]
fn a_program_uses_idle_unmovable_memory_before_it_ends() {
    for shelters in [true, false] {
        let design = format!(
            "description = \"\"\n[translation.base]\n\
             [placement.contiguitas]\nunmovable_min = \"32MiB\"\nshelters_last = {shelters}\n"
        );
        let mut engine = crate::common::engine(crate::common::config(
            crate::common::design(&design),
            crate::common::machine(64 << 20),
        ));
        let process = ProcessId(0);
        let length = 40 << 20;
        let mapped = crate::common::syscall(9, [0, length, 3, 0x22, 0, 0], 0x4000_0000);
        let populated = crate::common::syscall(28, [0x4000_0000, length, 23, 0, 0, 0], 0);
        let mut run = |event: &Event| {
            let words = event.encode();
            engine.consume(Batch {
                thread: ThreadId(0),
                words: words.words(),
                code: &Code,
            })
        };
        run(&Event::ThreadStart { process }).unwrap();
        run(&mapped).unwrap();
        let done = run(&populated);
        if shelters {
            assert!(done.is_ok(), "{done:?}");
        } else {
            assert!(matches!(done, Err(Error::OutOfMemory { .. })), "{done:?}");
        }
        assert_eq!(engine.validate(), Ok(()));
    }
}
