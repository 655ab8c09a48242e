//! Does a trace replay what was recorded, and never anything else?

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::end::End;
use contigua_program::layout::Layout;
use contigua_program::plan::{Plan, Sampling, Units};
use contigua_program::sources::trace::TraceSource;
use contigua_program::sources::{Batch, Program, Source};
use contigua_program::syscall::Architecture;
use contigua_program::trace::{Summary, TraceReader, TraceWriter};
use contigua_program::wire::{
    ACCESS, Access, BlockId, Event, ImageKind, ProcessId, Syscall, ThreadId, block_word,
};
use contigua_program::{Error, TraceProblem};
use contigua_units::{VirtAddr, VirtRange};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// A code log as plain as can be.
#[derive(Clone, Debug, Default)]
struct Code(BTreeMap<u32, (u64, Vec<u8>, Vec<u8>)>);

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        let (address, lengths, bytes) = self.0.get(&block.0)?;
        Some(BlockCode {
            address: VirtAddr::new(*address),
            lengths,
            bytes,
        })
    }
}

type Batches = Vec<(ThreadId, Vec<u64>)>;

fn program() -> Program {
    Program {
        command: vec!["./a program".into(), "--größe".into(), String::new()],
        architecture: Architecture::Aarch64,
        reports_mappings: true,
        plan: Plan::default(),
        layout: Layout::default(),
    }
}

fn record(path: &Path, code: &Code, batches: &Batches) -> Result<Summary, Error> {
    record_of(path, &program(), code, batches)
}

fn record_of(
    path: &Path,
    program: &Program,
    code: &Code,
    batches: &Batches,
) -> Result<Summary, Error> {
    let mut writer = TraceWriter::create(path, program)?;
    for (thread, words) in batches {
        let thread = *thread;
        writer.write(&Batch {
            thread,
            words,
            code,
        })?;
    }
    writer.finish(None)
}

/// Everything in a trace, or its error. Checks that each block is described before it executes.
fn replay(bytes: &[u8], code: &Code) -> Result<Batches, Error> {
    let mut reader = TraceReader::new(Cursor::new(bytes), Path::new("test"))?;
    let mut batches = Batches::new();
    loop {
        match reader.next_batch() {
            Ok(Some(batch)) => {
                for &word in batch.words {
                    if contigua_program::wire::is_block(word) {
                        let id = contigua_program::wire::block_of(word);
                        assert_eq!(batch.code.block(id), code.block(id));
                    }
                }
                batches.push((batch.thread, batch.words.to_vec()));
            }
            Ok(None) => return Ok(batches),
            Err(error) => {
                assert!(
                    matches!(reader.next_batch(), Ok(None)),
                    "a reader stays at its end after an error"
                );
                return Err(error);
            }
        }
    }
}

fn file_of(code: &Code, batches: &Batches) -> Vec<u8> {
    file_under(Plan::default(), code, batches)
}

fn file_under(plan: Plan, code: &Code, batches: &Batches) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let program = Program { plan, ..program() };
    record_of(&path, &program, code, batches).unwrap();
    fs::read(path).unwrap()
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let sampling = (1000..1_000_000_u64, any::<[u64; 3]>()).prop_map(|(detail, [a, b, most])| {
        let distance = detail + a % (1 << 40);
        Sampling {
            distance,
            warm: b,
            detail,
            seed: b,
            most,
            long_warm: 0,
            units: Units::Told,
        }
    });
    (any::<u64>(), proptest::option::of(sampling)).prop_map(|(skip, sampling)| Plan {
        skip,
        sampling,
        ..Plan::default()
    })
}

fn any_code() -> impl Strategy<Value = Code> {
    let block =
        (1..40_usize, any::<u64>(), any::<bool>()).prop_flat_map(|(count, address, has)| {
            let lengths = proptest::collection::vec(1..=15_u8, count);
            lengths.prop_map(move |lengths| {
                let size = lengths.iter().map(|&length| usize::from(length)).sum();
                let bytes = if has { vec![0x90; size] } else { Vec::new() };
                (address, lengths, bytes)
            })
        });
    proptest::collection::btree_map(0..200_u32, block, 1..12).prop_map(Code)
}

fn any_access() -> impl Strategy<Value = u64> {
    let near = (0..4_u64, 0..256_u64).prop_map(|(page, offset)| 0x7fff_0000 + page * 4096 + offset);
    let address = prop_oneof![near, any::<u64>(), Just(0), Just((1 << 48) - 1)];
    (
        address,
        0..8_u8,
        any::<bool>(),
        prop_oneof![0..3_u16, 0..512_u16],
    )
        .prop_map(|(address, size_log2, store, instruction)| {
            Access {
                address: VirtAddr::new(address),
                size_log2,
                store,
                instruction,
            }
            .encode()
        })
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<u32>().prop_map(|id| Event::ThreadStart {
            process: ProcessId(id)
        }),
        Just(Event::ThreadEnd),
        (0..1_u64 << 48).prop_map(|instructions| Event::Forward { instructions }),
        (0..1_u64 << 36).prop_map(|page| Event::Fetch {
            page: VirtAddr::new(page << 12)
        }),
        (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(start, end, writable)| {
            Event::Image {
                range: VirtRange {
                    start: VirtAddr::new(start),
                    end: VirtAddr::new(end),
                },
                writable,
                kind: ImageKind::Anonymous,
            }
        }),
        (any::<u16>(), any::<[u64; 6]>(), any::<i64>()).prop_map(|(number, arguments, result)| {
            Event::Syscall(Syscall {
                number,
                arguments,
                result,
            })
        }),
    ]
}

fn any_batches(code: &Code) -> impl Strategy<Value = Batches> + use<> {
    let ids: Vec<u32> = code.0.keys().copied().collect();
    let executed = (
        proptest::sample::select(ids),
        proptest::collection::vec(any_access(), 0..6),
    );
    let item = prop_oneof![
        12 => executed.prop_map(|(id, accesses)| {
            let mut words = vec![block_word(BlockId(id))];
            words.extend(accesses);
            words
        }),
        1 => any_event().prop_map(|event| event.encode().words().to_vec()),
        1 => proptest::collection::vec(any_access(), 0..700),
    ];
    let words = proptest::collection::vec(item, 0..30).prop_map(|items| items.concat());
    let thread = prop_oneof![0..3_u32, any::<u32>()].prop_map(ThreadId);
    proptest::collection::vec((thread, words), 0..12)
}

fn any_stream() -> impl Strategy<Value = (Code, Batches)> {
    any_code().prop_flat_map(|code| {
        let batches = any_batches(&code);
        (Just(code), batches)
    })
}

/// A stream longer than a frame, of several threads, with both habits and surprises.
fn long_stream(words: usize) -> (Code, Batches) {
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut code = Code::default();
    for id in 0..3000 {
        let count = 1 + random(8) as usize;
        code.0.insert(
            id,
            (0x40_0000 + u64::from(id) * 64, vec![4; count], Vec::new()),
        );
    }
    let mut batches = Batches::new();
    let mut total = 0;
    while total < words {
        let first = random(2900) as u32;
        let mut batch = Vec::new();
        while batch.len() < 2000 {
            for id in first..first + 1 + random(5) as u32 {
                batch.push(block_word(BlockId(id)));
                for n in 0..u64::from(id % 4) {
                    let address = VirtAddr::new(u64::from(id) * 4096 + n * 8 + random(2) * 64);
                    batch.push(
                        Access {
                            address,
                            size_log2: 3,
                            store: n == 1,
                            instruction: n as u16,
                        }
                        .encode(),
                    );
                }
            }
        }
        total += batch.len();
        batches.push((ThreadId(random(3) as u32), batch));
    }
    (code, batches)
}

/// Counted the plain way.
fn summary_of(code: &Code, batches: &Batches) -> Summary {
    let mut summary = Summary::default();
    let mut threads: Vec<u32> = batches.iter().map(|(thread, _)| thread.0).collect();
    threads.sort_unstable();
    threads.dedup();
    summary.threads = threads.len() as u64;
    for (_, words) in batches {
        summary.batches += 1;
        summary.words += words.len() as u64;
        for record in contigua_program::wire::Records::new(words) {
            match record.unwrap() {
                contigua_program::wire::Record::Block(id) => {
                    summary.instructions += u64::from(code.block(id).unwrap().instructions());
                }
                contigua_program::wire::Record::Access(_) => summary.accesses += 1,
                contigua_program::wire::Record::Event(Event::Forward { instructions }) => {
                    summary.instructions += instructions;
                }
                contigua_program::wire::Record::Event(_) => {}
            }
        }
    }
    summary
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(40)))]

    #[test]
    fn a_replay_yields_what_was_recorded((code, batches) in any_stream(), plan in any_plan()) {
        let bytes = file_under(plan.clone(), &code, &batches);
        prop_assert_eq!(replay(&bytes, &code).unwrap(), batches.clone());
        let reader = TraceReader::new(Cursor::new(&bytes), Path::new("test")).unwrap();
        prop_assert_eq!(reader.summary(), summary_of(&code, &batches));
        prop_assert_eq!(reader.program(), &Program { plan, ..program() });
    }

    #[test]
    fn random_damage_is_an_error(
        (code, batches) in any_stream(),
        places in proptest::collection::vec((any::<proptest::sample::Index>(), 1..=255_u8), 1..4),
    ) {
        let intact = file_of(&code, &batches);
        let mut damaged = intact.clone();
        for (place, flip) in places {
            damaged[place.index(intact.len())] ^= flip;
        }
        prop_assert!(damaged == intact || replay(&damaged, &code).is_err());
    }

    #[test]
    fn a_piece_replaced_by_another_of_the_file_is_an_error(
        (code, batches) in any_stream(),
        from: proptest::sample::Index, to: proptest::sample::Index, length in 1..64_usize,
    ) {
        let intact = file_of(&code, &batches);
        let (from, to) = (from.index(intact.len()), to.index(intact.len()));
        let length = length.min(intact.len() - from.max(to));
        let mut damaged = intact.clone();
        damaged.copy_within(from..from + length, to);
        prop_assert!(damaged == intact || replay(&damaged, &code).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(replay(&bytes, &Code::default()).is_err());
    }
}

fn small_file() -> (Code, Batches, Vec<u8>) {
    let (code, mut batches) = long_stream(1);
    batches[0].1.truncate(300);
    batches.push((ThreadId(9), Vec::new()));
    batches.push((ThreadId(1), Event::ThreadEnd.encode().words().to_vec()));
    let bytes = file_of(&code, &batches);
    (code, batches, bytes)
}

#[test]
fn every_corrupted_byte_is_an_error() {
    let (code, batches, mut bytes) = small_file();
    assert_eq!(replay(&bytes, &code).unwrap(), batches);
    for place in 0..bytes.len() {
        for flip in [1, 0x10, 0x80, 0xff] {
            bytes[place] ^= flip;
            let error = replay(&bytes, &code).expect_err("corruption must be noticed");
            assert!(
                matches!(error, Error::Trace { .. }),
                "byte {place}: {error}"
            );
            bytes[place] ^= flip;
        }
    }
}

/// A file as a version before wrote it: its header ended before `left` bytes.
fn of_version(version: u32, bytes: &[u8], left: usize) -> Vec<u8> {
    let body = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let mut header = bytes[..16 + body - left].to_vec();
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[12..16].copy_from_slice(&((body - left) as u32).to_le_bytes());
    header.extend(xxh3_64(&header).to_le_bytes());
    let mut file = header;
    let before = 16 + body + 8;
    file.extend(&bytes[before..]);
    // The trailer begins with where the index is.
    let at = file.len() - 72;
    let index = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) - left as u64;
    file[at..at + 8].copy_from_slice(&index.to_le_bytes());
    let checksum = xxh3_64(&file[at..at + 56]);
    file[at + 56..at + 64].copy_from_slice(&checksum.to_le_bytes());
    file
}

#[test]
fn traces_of_the_versions_before_are_read() {
    let (code, batches, bytes) = small_file();
    assert_eq!(bytes[8..12], 4_u32.to_le_bytes());
    // Without the length of a plan that is not there.
    let first = of_version(1, &bytes, 1);
    assert_eq!(replay(&first, &code).unwrap(), batches);
    let plan = Plan {
        skip: 7,
        ..Plan::default()
    };
    let under = file_under(plan, &code, &batches);
    assert_eq!(under.len(), bytes.len() + "7".len());
    assert_eq!(replay(&under, &code).unwrap(), batches);
    let third = of_version(3, &under, 0);
    assert_eq!(replay(&third, &code).unwrap(), batches);
}

#[test]
fn a_trace_has_the_layout_of_its_addresses() {
    let (folder, (code, batches, bytes)) = (tempfile::tempdir().unwrap(), small_file());
    let path = folder.path().join("trace");
    let program = Program {
        layout: "6.1+7/all".parse().unwrap(),
        ..program()
    };
    record_of(&path, &program, &code, &batches).unwrap();
    let under = fs::read(&path).unwrap();
    assert_eq!(under.len(), bytes.len() + 1 + "6.1+7/all".len());
    assert_eq!(under[8..12], 5_u32.to_le_bytes());
    let reader = TraceReader::open(&path).unwrap();
    assert_eq!(reader.program(), &program);
    assert_eq!(replay(&under, &code).unwrap(), batches);
}

#[test]
fn a_trace_says_how_its_program_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    for end in [None, Some(End::Killed(11)), Some(End::Failed("é".into()))] {
        TraceWriter::create(&path, &program())
            .unwrap()
            .finish(end.as_ref())
            .unwrap();
        let reader = TraceReader::open(&path).unwrap();
        assert_eq!(reader.end(), end.as_ref());
    }
    let bytes = std::fs::read(&path).unwrap();
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        assert!(TraceReader::new(Cursor::new(damaged), &path).is_err());
    }
}

#[test]
fn every_truncation_is_an_error_that_says_so() {
    let (code, _, bytes) = small_file();
    for length in 0..bytes.len() {
        match replay(&bytes[..length], &code) {
            Err(Error::Trace {
                problem: TraceProblem::Truncated { offset },
                ..
            }) => assert_eq!(offset, length as u64),
            other => panic!("{length} bytes of {}: {other:?}", bytes.len()),
        }
    }
}

#[test]
fn bytes_behind_the_end_are_an_error() {
    let (code, _, mut bytes) = small_file();
    bytes.push(0);
    assert!(replay(&bytes, &code).is_err());
}

#[test]
fn another_version_is_named() {
    let (code, _, mut bytes) = small_file();
    bytes[8] = 6;
    let error = replay(&bytes, &code).unwrap_err();
    assert!(error.to_string().contains("version 6"), "{error}");
}

#[test]
fn a_file_of_another_format_is_no_trace() {
    let error = replay(
        b"#!/bin/sh\necho this is a shell script\n",
        &Code::default(),
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("not a Contigua trace"),
        "{error}"
    );
}

#[test]
fn a_trace_of_many_frames_replays() {
    let (code, batches) = long_stream(2_100_000);
    let bytes = file_of(&code, &batches);
    assert_eq!(replay(&bytes, &code).unwrap(), batches);
}

#[test]
fn a_source_yields_the_trace_of_a_file() {
    let (code, batches, _) = small_file();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let summary = record(&path, &code, &batches).unwrap();
    let mut source = TraceSource::open(&path).unwrap();
    assert_eq!(source.summary(), summary);
    assert_eq!(source.program(), &program());
    let mut seen = Batches::new();
    while let Some(batch) = source.next_batch().unwrap() {
        seen.push((batch.thread, batch.words.to_vec()));
    }
    assert_eq!(seen, batches);
}

#[test]
fn the_same_stream_makes_the_same_file() {
    let (code, batches, bytes) = small_file();
    assert_eq!(file_of(&code, &batches), bytes);
}

#[test]
fn an_unfinished_trace_leaves_nothing_and_keeps_the_old_one() {
    let (code, batches, _) = small_file();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    fs::write(&path, "old").unwrap();
    let mut writer = TraceWriter::create(&path, &program()).unwrap();
    let (thread, words) = (batches[0].0, &batches[0].1);
    writer
        .write(&Batch {
            thread,
            words,
            code: &code,
        })
        .unwrap();
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    record(&path, &code, &batches).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(replay(&fs::read(&path).unwrap(), &code).unwrap(), batches);
}

#[test]
fn a_place_that_cannot_hold_a_trace_is_named() {
    for path in ["/nowhere/at/all", "/tmp"] {
        let error = TraceWriter::create(Path::new(path), &program())
            .err()
            .unwrap();
        assert!(matches!(error, Error::File { .. }) && error.to_string().contains(path));
    }
    assert!(matches!(
        TraceReader::open(Path::new("/nowhere/at/all")),
        Err(Error::File { .. })
    ));
}

#[test]
fn words_that_no_source_may_yield_are_refused() {
    let mut code = Code::default();
    code.0.insert(0, (0x1000, vec![1], vec![0x90]));
    code.0.insert(1, (0x1000, Vec::new(), Vec::new()));
    code.0.insert(1 << 25, (0x1000, vec![1], vec![0x90]));
    let block = block_word(BlockId(0));
    let syscall = Event::Syscall(Syscall {
        number: 1,
        arguments: [0; 6],
        result: 0,
    })
    .encode();
    let good = [block];
    let bad: [&[u64]; 8] = [
        &[0],
        &[block | 1 << 40],
        &[block, ACCESS | 1 << 57],
        &[block, ACCESS | 1 << 58],
        &[block_word(BlockId(7))],
        &[block_word(BlockId(1))],
        &[block_word(BlockId(1 << 25))],
        &syscall.words()[..7],
    ];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    for words in bad {
        let mut writer = TraceWriter::create(&path, &program()).unwrap();
        let batch = |words| Batch {
            thread: ThreadId(0),
            words,
            code: &code as &dyn CodeLog,
        };
        writer.write(&batch(&good)).unwrap();
        assert!(writer.write(&batch(words)).is_err(), "{words:x?}");
        assert!(
            writer.finish(None).is_err(),
            "a part of a batch is not a recording"
        );
        assert!(!path.exists());
    }
}

/// Places in a trace, as batches before them, in any order.
fn assert_seeks(bytes: &[u8], batches: &Batches, places: &[usize]) {
    let mut reader = TraceReader::new(Cursor::new(bytes), Path::new("trace")).unwrap();
    for &place in places {
        reader.seek(place as u64).unwrap();
        // More than a frame of small batches would take long: a few show where it is.
        let expected = batches[place..].iter().take(40);
        for (thread, words) in expected {
            let batch = reader.next_batch().unwrap().unwrap();
            assert_eq!(
                (batch.thread, batch.words),
                (*thread, &words[..]),
                "{place}"
            );
            for record in contigua_program::wire::Records::new(batch.words) {
                if let contigua_program::wire::Record::Block(id) = record.unwrap() {
                    assert!(batch.code.block(id).is_some(), "{id:?} at {place}");
                }
            }
        }
        if place == batches.len() {
            assert!(reader.next_batch().unwrap().is_none());
        }
    }
}

#[test]
fn a_trace_of_many_frames_is_entered_anywhere() {
    let (code, batches) = long_stream(2_100_000);
    let bytes = file_of(&code, &batches);
    let end = batches.len();
    let mut places = vec![end / 2, 0, end, end - 1, 1, end / 3, end];
    places.extend((1..30).map(|n| n * 7919 % end));
    assert_seeks(&bytes, &batches, &places);
    let mut reader = TraceReader::new(Cursor::new(&bytes), Path::new("trace")).unwrap();
    let error = reader.seek(end as u64 + 1).unwrap_err().to_string();
    assert!(error.contains(&format!("the trace has {end}")), "{error}");
    assert!(reader.next_batch().unwrap().is_none());
}

#[test]
fn frames_before_the_place_are_not_read() {
    let (code, batches) = long_stream(2_100_000);
    let mut bytes = file_of(&code, &batches);
    // Within the first frame of events: the descriptions of a few blocks come before it.
    bytes[200_000] ^= 1;
    let mut reader = TraceReader::new(Cursor::new(&bytes), Path::new("trace")).unwrap();
    assert!(reader.next_batch().is_err());
    assert_seeks(&bytes, &batches, &[batches.len() - 1]);
}

#[test]
fn traces_are_told_apart() {
    let identity = |bytes: &[u8]| {
        let reader = TraceReader::new(Cursor::new(bytes), Path::new("trace")).unwrap();
        reader.identity()
    };
    let (code, mut batches, bytes) = small_file();
    assert_eq!(identity(&bytes), identity(&file_of(&code, &batches)));
    let mut program = program();
    program.command.push("again".into());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    record_of(&path, &program, &code, &batches).unwrap();
    assert_ne!(identity(&bytes), identity(&fs::read(&path).unwrap()));
    batches.pop();
    assert_ne!(identity(&bytes), identity(&file_of(&code, &batches)));
}
