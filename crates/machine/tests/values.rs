//! Do fixed runs have the values that they had?
//!
//! Each run's numbers, without their names, are in `values.json` as a count and a digest. A commit
//! that is to change no result leaves that file alone; one that changes results writes it anew
//! (`CONTIGUA_WRITE_VALUES=1`) and says why.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::programs::{BASE, Code, Step, designs, words};
use contigua_machine::config::{Age, Detail};
use contigua_machine::{Error, Progress, simulate};
use contigua_program::sources::{Batch, Program, Source};
use contigua_program::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};
use contigua_units::VirtAddr;
use serde_json::Value;

struct Fixed {
    batches: Vec<Vec<u64>>,
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
        Ok(batch.map(|words| Batch {
            thread: ThreadId(0),
            words,
            code: &Code,
        }))
    }
}

/// Maps, advises, unmaps and moves, and uses memory in between.
fn program() -> Vec<Vec<u64>> {
    let start = Event::ThreadStart {
        process: ProcessId(0),
    };
    let mut batches = vec![
        start.encode().words().to_vec(),
        words(&Step::Map(0, 3000, true)),
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..12 {
        let step = match round % 4 {
            0 => Step::Advise(512 * (round % 3), 1024, 14),
            1 => Step::Unmap(100 * round, 64),
            2 => Step::Map(100 * (round - 1), 64, true),
            _ => Step::Move(2048, 4096 + 600 * round, 300),
        };
        batches.push(words(&step));
        let mut used = Vec::new();
        for turn in 0..800 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let offset = if (state >> 40).is_multiple_of(4) {
                state % (2000 * 4096 - 8)
            } else {
                turn * 24
            };
            used.push(block_word(BlockId(state as u32 >> 7 & 7)));
            let access = Access {
                address: VirtAddr::new(BASE + offset),
                size_log2: 3,
                store: state >> 50 & 1 == 1,
                instruction: 1,
            };
            used.push(access.encode());
        }
        batches.push(used);
    }
    batches
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

#[test]
fn do_fixed_runs_have_the_values_that_they_had() {
    let mut now = BTreeMap::new();
    for (name, design) in designs() {
        for detail in [Detail::Translation, Detail::Additive, Detail::Full] {
            let mut config = common::config(design.clone(), common::machine(256 << 20));
            config.detail = detail;
            config.age = Age::Partial;
            let mut source = Fixed {
                batches: program(),
                next: 0,
                program: common::program(),
            };
            let engine = common::engine(config);
            let told = match simulate(engine, &mut source, &Progress::default()) {
                Ok(run) => {
                    let report = serde_json::to_value(&run.report).unwrap();
                    let mut found = Vec::new();
                    numbers(&report, &mut found);
                    // What is renamed moves.
                    found.sort_unstable();
                    format!("{} {:016x}", found.len(), digest(&found.join(" ")))
                }
                Err(Error::OutOfMemory { .. }) => "out of memory".to_owned(),
                Err(error) => panic!("{name}: {error}"),
            };
            now.insert(format!("{name} {detail:?}"), told);
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/values.json");
    if std::env::var_os("CONTIGUA_WRITE_VALUES").is_some() {
        let text = serde_json::to_string_pretty(&now).unwrap() + "\n";
        std::fs::write(&file, text).unwrap();
    }
    let before: BTreeMap<String, String> =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
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
        "designs came or went"
    );
}
