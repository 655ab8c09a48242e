//! Are the traces of drmemtrace read as `DynamoRIO` writes them?

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use contigua_program::decode::{self, OperationClass, RegisterSet};
use contigua_program::sources::Source;
use contigua_program::sources::drmemtrace::{self, DrmemtraceSource};
use contigua_program::syscall::Architecture;
use contigua_program::wire::{Event, ProcessId, Record, Records};
use contigua_units::{PageSize, VirtAddr};
use proptest::prelude::*;

const REGDEPS: u64 = 0x2_0000;
const ENCODINGS: u64 = 0x200;
const X86_64: u64 = 0x40;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/drmemtrace")
        .join(name)
}

fn record(kind: u16, size: u16, value: u64) -> [u8; 12] {
    let mut record = [0; 12];
    record[..2].copy_from_slice(&kind.to_le_bytes());
    record[2..4].copy_from_slice(&size.to_le_bytes());
    record[4..].copy_from_slice(&value.to_le_bytes());
    record
}

/// Records of a file: what begins it, and more.
#[derive(Clone)]
struct File(Vec<u8>);

impl File {
    fn new(file_type: u64, thread: u64, timestamp: u64) -> Self {
        Self::with_chunks(file_type, thread, timestamp, 0)
    }

    fn with_chunks(file_type: u64, thread: u64, timestamp: u64, chunk: u64) -> Self {
        let mut file = Self(Vec::new());
        file.add(25, 0, 7).marker(12, 7).marker(9, file_type);
        file.add(22, 4, thread)
            .add(24, 4, 1)
            .marker(18, 4096)
            .marker(20, chunk);
        file.marker(2, timestamp).marker(3, 0);
        file
    }

    fn add(&mut self, kind: u16, size: u16, value: u64) -> &mut Self {
        self.0.extend(record(kind, size, value));
        self
    }

    fn marker(&mut self, kind: u16, value: u64) -> &mut Self {
        self.add(28, kind, value)
    }

    fn encoding(&mut self, bytes: &[u8]) -> &mut Self {
        for part in bytes.chunks(8) {
            let mut value = [0; 8];
            value[..part.len()].copy_from_slice(part);
            self.add(47, part.len() as u16, u64::from_le_bytes(value));
        }
        self
    }

    fn end(&mut self, thread: u64) -> Vec<u8> {
        self.add(23, 4, thread).add(26, 0, 0);
        self.0.clone()
    }

    fn source(&mut self) -> DrmemtraceSource {
        DrmemtraceSource::new(Cursor::new(self.end(1)), Path::new("test")).unwrap()
    }
}

/// An instruction: its thread, address, length, encoding and accesses; or an event.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Executed(u32, u64, u8, Vec<u8>),
    Accessed(u64, u8, bool),
    Happened(u32, Event),
}

fn seen(source: &mut dyn Source) -> Result<Vec<Seen>, contigua_program::Error> {
    let mut all = Vec::new();
    while let Some(batch) = source.next_batch()? {
        let thread = batch.thread.0;
        assert!((1..10_000).contains(&batch.words.len()));
        for record in Records::new(batch.words) {
            all.push(match record.unwrap() {
                Record::Block(id) => {
                    let block = batch.code.block(id).unwrap();
                    let address = block.address.get();
                    Seen::Executed(thread, address, block.lengths[0], block.bytes.to_vec())
                }
                Record::Access(access) => {
                    Seen::Accessed(access.address.get(), access.size_log2, access.store)
                }
                Record::Event(event) => Seen::Happened(thread, event),
            });
        }
    }
    Ok(all)
}

/// Counts of a file, as the columns of `counts.csv`.
fn columns(counts: &drmemtrace::Counts) -> [u64; 6] {
    assert_eq!(counts.threads.len(), 1);
    [
        counts.instructions,
        counts.not_fetched,
        counts.loads,
        counts.stores,
        counts.data_pages,
        counts.threads[0],
    ]
}

#[test]
fn counts_are_those_of_another_reader() {
    let table = fs::read_to_string(data("counts.csv")).unwrap();
    let mut files = 0;
    for line in table.lines().skip(1) {
        let (name, numbers) = line.split_once(',').unwrap();
        let expected: Vec<u64> = numbers.split(',').map(|n| n.parse().unwrap()).collect();
        let counts = drmemtrace::count(&data(name)).unwrap();
        assert_eq!(columns(&counts[0])[..], expected[..], "{name}");
        let mut source = DrmemtraceSource::open(&data(name)).unwrap();
        let all = seen(&mut source).unwrap();
        let executed = all.iter().filter(|seen| matches!(seen, Seen::Executed(..)));
        assert_eq!(executed.count() as u64, expected[0] + expected[1], "{name}");
        for (store, count) in [(false, expected[2]), (true, expected[3])] {
            let is_one = |seen: &&Seen| matches!(seen, Seen::Accessed(.., s) if *s == store);
            assert_eq!(all.iter().filter(is_one).count() as u64, count, "{name}");
        }
        files += 1;
    }
    assert_eq!(files, 5);
}

#[test]
fn instructions_have_their_encodings_and_calls_return_before_the_next() {
    let mut file = File::new(X86_64 | ENCODINGS, 1, 10);
    file.encoding(&[0x48, 0x8b, 0x00])
        .add(10, 3, 0x1000)
        .add(0, 8, 0x9000);
    file.encoding(&[0x0f, 0x05])
        .add(10, 2, 0x1003)
        .marker(25, 9);
    file.marker(2, 20).marker(3, 0);
    file.encoding(&[0xf3, 0xa4])
        .add(10, 2, 0x1005)
        .add(0, 1, 0x9100)
        .add(1, 1, 0x9200);
    file.add(29, 2, 0x1005).add(0, 1, 0x9101).add(1, 1, 0x9201);
    file.marker(0, 0x1007);
    file.add(10, 3, 0x1000).add(0, 16, 0x9ff8);
    let mut source = file.source();
    assert!(source.has_registers());
    let process = ProcessId(0);
    let executed =
        |address, bytes: &[u8]| Seen::Executed(0, address, bytes.len() as u8, bytes.to_vec());
    let all = seen(&mut source).unwrap();
    let Seen::Happened(0, Event::Syscall(call)) = all[4] else {
        panic!("{:?}", all[4]);
    };
    assert_eq!(call.arguments, [0; 6]);
    let expected = vec![
        Seen::Happened(0, Event::ThreadStart { process }),
        executed(0x1000, &[0x48, 0x8b, 0x00]),
        Seen::Accessed(0x9000, 3, false),
        executed(0x1003, &[0x0f, 0x05]),
        Seen::Happened(0, Event::Syscall(call)),
        executed(0x1005, &[0xf3, 0xa4]),
        Seen::Accessed(0x9100, 0, false),
        Seen::Accessed(0x9200, 0, true),
        executed(0x1005, &[0xf3, 0xa4]),
        Seen::Accessed(0x9101, 0, false),
        Seen::Accessed(0x9201, 0, true),
        Seen::Happened(0, Event::Interrupt),
        executed(0x1000, &[0x48, 0x8b, 0x00]),
        Seen::Accessed(0x9ff8, 4, false),
        Seen::Happened(0, Event::ThreadEnd),
    ];
    assert_eq!(all, expected);
}

#[test]
fn code_that_changes_at_an_address_is_the_new_one() {
    let mut file = File::new(X86_64 | ENCODINGS, 1, 10);
    let codes = [[0x48, 0x89, 0xc3], [0x48, 0x89, 0xd8]];
    for code in [0, 1, 0] {
        file.encoding(&codes[code]);
        for _ in 0..3 {
            file.add(10, 3, 0x1000);
        }
    }
    let all = seen(&mut file.source()).unwrap();
    let bytes: Vec<_> = all
        .iter()
        .filter_map(|seen| match seen {
            Seen::Executed(.., bytes) => Some(bytes.clone()),
            _ => None,
        })
        .collect();
    let expected: Vec<_> = [0, 0, 0, 1, 1, 1, 0, 0, 0]
        .map(|code| codes[code].to_vec())
        .into();
    assert_eq!(bytes, expected);
}

/// A zip archive with stored members.
fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend(crc.sum().to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend((archive.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        archive.extend(b"PK\x03\x04");
        archive.extend(&common);
        archive.extend(name.as_bytes());
        archive.extend(*bytes);
    }
    let at = archive.len() as u32;
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend((members.len() as u16).to_le_bytes());
    archive.extend((members.len() as u16).to_le_bytes());
    archive.extend((directory.len() as u32).to_le_bytes());
    archive.extend(at.to_le_bytes());
    archive.extend([0, 0]);
    archive
}

/// A folder with a file for each of nine threads, whose turns come by their timestamps; the expected order
/// of (thread, instruction), and the schedule.
fn nine_threads(folder: &Path) -> (Vec<(u32, u64)>, Vec<u8>) {
    let mut files: Vec<File> = (0..9).map(|n| File::new(X86_64, 100 + n, n + 1)).collect();
    let mut turns: Vec<(u64, usize, u64)> = Vec::new();
    let mut counts = [0_u64; 9];
    for turn in 0..60_u64 {
        let thread = (turn * 5 + turn / 9 * 2) as usize % 9;
        let timestamp = if counts[thread] == 0 {
            thread as u64 + 1
        } else {
            10 + turn
        };
        if counts[thread] > 0 {
            files[thread].marker(2, timestamp).marker(3, turn % 4);
        }
        turns.push((timestamp, thread, counts[thread]));
        for _ in 0..=turn % 5 {
            files[thread].add(10, 4, 0x1000 * (thread as u64 + 1) + 4 * counts[thread]);
            counts[thread] += 1;
        }
    }
    turns.sort_unstable();
    let (mut order, mut schedule) = (Vec::new(), Vec::new());
    let mut ids: HashMap<usize, u32> = HashMap::new();
    for &(timestamp, thread, start) in &turns {
        let next = turns
            .iter()
            .filter(|&&(_, other, at)| other == thread && at > start)
            .map(|&(.., at)| at)
            .min();
        for word in [100 + thread as u64, timestamp, 0, start] {
            schedule.extend(word.to_le_bytes());
        }
        let id = ids.len() as u32;
        let id = *ids.entry(thread).or_insert(id);
        for n in start..next.unwrap_or(counts[thread]) {
            order.push((id, 0x1000 * (thread as u64 + 1) + 4 * n));
        }
    }
    for (n, file) in files.iter_mut().enumerate() {
        let bytes = file.end(100 + n as u64);
        let (first, second) = bytes.split_at(12 * 7);
        let path = folder.join(format!("drmemtrace.x.{n}.trace.zip"));
        fs::write(path, zip(&[("chunk.0000", first), ("chunk.0001", second)])).unwrap();
    }
    (order, schedule)
}

fn executed(all: &[Seen]) -> Vec<(u32, u64)> {
    all.iter()
        .filter_map(|seen| match *seen {
            Seen::Executed(thread, address, ..) => Some((thread, address)),
            _ => None,
        })
        .collect()
}

#[test]
fn threads_take_turns_as_they_were_traced() {
    // As Google's traces lie.
    let folder = tempfile::tempdir().unwrap();
    let (files, others) = (folder.path().join("trace"), folder.path().join("aux"));
    fs::create_dir(&files).unwrap();
    fs::create_dir(&others).unwrap();
    let (order, schedule) = nine_threads(&files);
    let mut source = DrmemtraceSource::open(folder.path()).unwrap();
    assert!(!source.has_registers());
    let all = seen(&mut source).unwrap();
    assert_eq!(executed(&all), order);
    let starts = |seen: &&Seen| matches!(seen, Seen::Happened(_, Event::ThreadStart { .. }));
    assert_eq!(all.iter().filter(starts).count(), 9);

    for (skipped, place) in [(1, &others), (30, &others), (75, &files)] {
        fs::write(place.join("serial_schedule.bin"), &schedule).unwrap();
        let mut source = DrmemtraceSource::open(folder.path()).unwrap();
        assert_eq!(source.skip(skipped).unwrap(), skipped);
        let all = seen(&mut source).unwrap();
        let forward = Event::Forward {
            instructions: skipped,
        };
        assert!(
            matches!(&all[1], Seen::Happened(_, event) if *event == forward),
            "{:?}",
            &all[..2]
        );
        let addresses = |pairs: &[(u32, u64)]| pairs.iter().map(|pair| pair.1).collect::<Vec<_>>();
        assert_eq!(
            addresses(&executed(&all)),
            addresses(&order[skipped as usize..])
        );
    }
}

#[test]
fn chunks_are_passed_over_unread() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = File::with_chunks(X86_64 | ENCODINGS, 1, 1, 3);
    let code = [0x48, 0x89, 0xc3];
    for n in 0..3 {
        first.encoding(&code).add(10, 3, 0x1000 + 3 * n);
    }
    first.marker(21, 0);
    let mut last = File(Vec::new());
    last.marker(22, 3).marker(2, 1).marker(3, 0);
    last.encoding(&code).add(10, 3, 0x1000).add(0, 8, 0x8000);
    last.encoding(&code)
        .add(10, 3, 0x1003)
        .add(10, 3, 0x1000)
        .add(0, 8, 0x9000);
    let path = folder.path().join("x.trace.zip");
    // What the middle chunk holds is never looked at.
    let members: [(&str, &[u8]); 3] = [
        ("chunk.0000", &first.0),
        ("chunk.0001", b"no records"),
        ("chunk.0002", &last.end(1)),
    ];
    fs::write(&path, zip(&members)).unwrap();
    let mut source = DrmemtraceSource::open(&path).unwrap();
    assert_eq!(source.skip(8).unwrap(), 8);
    let all = seen(&mut source).unwrap();
    assert_eq!(
        all[1..4],
        [
            Seen::Happened(0, Event::Forward { instructions: 8 }),
            Seen::Executed(0, 0x1000, 3, code.to_vec()),
            Seen::Accessed(0x9000, 3, false),
        ]
    );
}

#[test]
fn cores_have_files_whose_threads_take_turns() {
    let mut file = File::new(X86_64 | 0x1_0000, 5, 1);
    file.add(10, 4, 0x1000)
        .add(22, 4, 6)
        .add(24, 4, 2)
        .add(10, 4, 0x2000);
    file.add(22, 4, 5)
        .add(10, 4, 0x1004)
        .marker(33, 0)
        .marker(34, 0);
    let all = seen(&mut file.source()).unwrap();
    assert_eq!(executed(&all), [(0, 0x1000), (1, 0x2000), (0, 0x1004)]);
    let process = ProcessId(1);
    assert!(all.contains(&Seen::Happened(1, Event::ThreadStart { process })));
}

#[test]
fn pages_are_where_the_traced_machine_had_them() {
    let mut file = File::new(X86_64, 1, 1);
    file.marker(15, 0x4567_8000).marker(17, 0x7f00_0000_1234);
    file.add(10, 4, 0x1000).add(0, 8, 0x7f00_0000_1234);
    let traced = |page, frame, size| {
        Seen::Happened(
            0,
            Event::Traced {
                page: VirtAddr::new(page),
                frame,
                size,
            },
        )
    };
    let of_marker = traced(0x7f00_0000_1000, 0x4567_8000, PageSize::Size4K);
    let mut source = file.clone().source();
    assert!(!seen(&mut source).unwrap().contains(&of_marker));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.trace"), file.end(1)).unwrap();
    let text = "address_mapping_group {\n page_size: 0x200000\n address_mapping {\n \
                virtual_address: 0x7f0000200000\n physical_address: 0x80000000\n}\n}\n";
    fs::write(folder.path().join("v2p.textproto"), text).unwrap();
    let mappings = DrmemtraceSource::mappings(folder.path()).unwrap().unwrap();
    let mut source = DrmemtraceSource::open(folder.path()).unwrap();
    source.place_as_traced(mappings);
    let all = seen(&mut source).unwrap();
    assert_eq!(
        all[1],
        traced(0x7f00_0020_0000, 0x8000_0000, PageSize::Size2M)
    );
    assert_eq!(all[2], of_marker);
}

/// A REGDEPS encoding of an x86-64 instruction, as `DynamoRIO` converts one: registers by numbers of ours.
fn regdeps_of(bytes: &[u8], instruction: &decode::Instruction) -> Vec<u8> {
    let numbers = |set: RegisterSet| {
        let without = RegisterSet(set.0 & !RegisterSet::FLAGS.0);
        (0..62_u8)
            .filter(|bit| without.0 >> bit & 1 != 0)
            .collect::<Vec<_>>()
    };
    let (written, read) = (numbers(instruction.writes), numbers(instruction.reads));
    let flags = |set: RegisterSet| u32::from(set.intersects(RegisterSet::FLAGS));
    let class = instruction.class;
    let mut categories = 0;
    for (is, category) in [
        (instruction.loads > 0, 1 << 1),
        (instruction.stores > 0, 1 << 2),
        (
            matches!(class, OperationClass::Load | OperationClass::Store),
            1 << 6,
        ),
        (matches!(class, OperationClass::IntegerSimple), 1 << 8),
        (
            instruction.reads.with(instruction.writes).has_vectors(),
            1 << 4,
        ),
    ] {
        categories |= if is { category } else { 0 };
    }
    let header = written.len() as u32
        | (read.len() as u32) << 4
        | flags(instruction.writes) << 8
        | flags(instruction.reads) << 9
        | categories << 10;
    let mut encoded = header.to_le_bytes().to_vec();
    if !written.is_empty() || !read.is_empty() {
        encoded.push(bytes.len() as u8);
        encoded.extend(written);
        encoded.extend(read);
    }
    encoded.resize(encoded.len().next_multiple_of(4), 0xaa);
    encoded
}

/// Decoded instructions of a source, in the order in which they execute.
fn decoded(source: &mut dyn Source) -> Vec<decode::Instruction> {
    let mut all = Vec::new();
    while let Some(batch) = source.next_batch().unwrap() {
        for record in Records::new(batch.words) {
            if let Record::Block(id) = record.unwrap() {
                if let Some(known) = batch.code.instructions(id) {
                    all.extend(known);
                } else {
                    let mut known = Vec::new();
                    let code = batch.code.block(id).unwrap();
                    decode::decode_block(Architecture::X86_64, code, &mut known);
                    all.extend(known);
                }
            }
        }
    }
    all
}

/// A file with the same records and REGDEPS instructions; instructions with more operands than those can
/// have become moves of nothing.
fn as_regdeps(bytes: &[u8], sizes: &mut HashSet<u64>) -> Vec<u8> {
    let mut made = Vec::new();
    let mut encoding: Vec<u8> = Vec::new();
    for bytes in bytes.chunks_exact(12) {
        let kind = u16::from_le_bytes([bytes[0], bytes[1]]);
        let size = u16::from_le_bytes([bytes[2], bytes[3]]);
        let value = u64::from_le_bytes(bytes[4..].try_into().unwrap());
        match (kind, size) {
            (47, _) => {
                encoding.extend(&bytes[4..4 + usize::from(size)]);
                continue;
            }
            (28, 9) => {
                made.extend(record(28, 9, value & !X86_64 | REGDEPS));
                continue;
            }
            _ => {}
        }
        let is_instruction = matches!(kind, 10..=16 | 29..=31 | 48 | 49);
        if is_instruction && !encoding.is_empty() {
            let code = contigua_program::code::BlockCode {
                address: VirtAddr::new(value),
                lengths: &[size as u8],
                bytes: &encoding,
            };
            let mut known = Vec::new();
            decode::decode_block(Architecture::X86_64, code, &mut known);
            let operands = |set: RegisterSet| (set.0 & !RegisterSet::FLAGS.0).count_ones();
            if operands(known[0].writes) + operands(known[0].reads) > 8 {
                known[0] = decode::Instruction::UNKNOWN;
                sizes.insert(value);
            }
            let mut file = File(Vec::new());
            file.encoding(&regdeps_of(&encoding, &known[0]));
            made.extend(file.0);
            encoding.clear();
        }
        made.extend(bytes);
    }
    made
}

#[test]
fn regdeps_have_the_dependencies_of_the_code_that_they_were_made_of() {
    let mut plain = Vec::new();
    let path = data("drmemtrace.threadsig.872906.1041.trace.zip");
    unpack(&path, &mut plain);
    let mut left_out = HashSet::new();
    let made = as_regdeps(&plain, &mut left_out);
    let original = decoded(&mut DrmemtraceSource::open(&path).unwrap());
    let mut source = DrmemtraceSource::new(Cursor::new(made), Path::new("regdeps")).unwrap();
    assert!(source.has_registers());
    let synthetic = decoded(&mut source);
    assert_eq!(synthetic.len(), original.len());
    // Registers of one are those of the other, under other names.
    let mut names: HashMap<u64, u64> = HashMap::new();
    let mut compared = 0;
    let stack = RegisterSet::general(4);
    for (new, old) in synthetic.iter().zip(&original) {
        let operands = |set: RegisterSet| (set.0 & !RegisterSet::FLAGS.0).count_ones();
        if operands(old.writes) + operands(old.reads) > 8 {
            continue;
        }
        compared += 1;
        assert_eq!((new.loads, new.stores), (old.loads, old.stores));
        assert_eq!(new.reads.0.count_ones(), old.reads.0.count_ones());
        assert_eq!(
            new.reads.intersects(RegisterSet::FLAGS),
            old.reads.intersects(RegisterSet::FLAGS)
        );
        assert_eq!(
            new.writes.intersects(RegisterSet::FLAGS),
            old.writes.intersects(RegisterSet::FLAGS)
        );
        // Nobody waits for what pushes, pops, calls and returns write to the stack pointer.
        let moves_stack = old.addresses.intersects(stack)
            && matches!(
                old.class,
                OperationClass::Load
                    | OperationClass::Store
                    | OperationClass::Call
                    | OperationClass::CallIndirect
                    | OperationClass::Return
            );
        let writes = old.writes.0.count_ones();
        let waited_for = new.writes.0.count_ones();
        assert!(
            waited_for == writes || moves_stack && waited_for + 1 == writes,
            "{old:?} became {new:?}"
        );
        if old.loads + old.stores > 0 {
            // All that is part of an address is taken to be.
            assert!(new.addresses.0.count_ones() >= old.addresses.0.count_ones().min(1));
        }
        if old.reads.0.is_power_of_two() && old.reads != RegisterSet::FLAGS {
            let name = *names.entry(old.reads.0).or_insert(new.reads.0);
            assert_eq!(name, new.reads.0, "a register has one name");
        }
    }
    assert!(
        compared > original.len() * 99 / 100,
        "{compared} of {}",
        original.len()
    );
    assert!(names.len() > 10);
    let different: HashSet<_> = names.values().collect();
    assert_eq!(different.len(), names.len(), "names are of one register");
}

/// The records of a trace's only chunk.
fn unpack(path: &Path, into: &mut Vec<u8>) {
    let output = std::process::Command::new("python3")
        .args(["-c", "import sys,zipfile;z=zipfile.ZipFile(sys.argv[1]);sys.stdout.buffer.write(b''.join(z.read(n) for n in sorted(z.namelist())))"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success());
    into.write_all(&output.stdout).unwrap();
}

#[test]
fn traces_that_cannot_be_replayed_say_why() {
    let open = |bytes: Vec<u8>| {
        let source = DrmemtraceSource::new(Cursor::new(bytes), Path::new("test"));
        match source {
            Ok(mut source) => seen(&mut source).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let mut cut = File::new(X86_64, 1, 1);
    cut.add(10, 4, 0x1000);
    let mut odd = cut.clone();
    odd.add(99, 0, 0);
    let mut long = File::new(X86_64 | ENCODINGS, 1, 1);
    long.encoding(&[0x90; 24]).add(10, 24, 0x1000);
    let mut other = File::new(X86_64 | ENCODINGS, 1, 1);
    other.encoding(&[0x90, 0x90]).add(10, 1, 0x1000);
    let mut far = File::new(X86_64, 1, 1);
    far.add(10, 4, 0x1000).add(0, 8, 0x8000_0000_0000_1000);
    for (bytes, message) in [
        (cut.0.clone(), "without a footer"),
        (cut.0[..100].to_vec(), "truncated at byte 100"),
        (odd.end(1), "record 11: its type is 99"),
        (long.end(1), "an encoding is too long"),
        (other.end(1), "has an encoding of 2"),
        (far.end(1), "record 11: the address 0x8000000000001000"),
        (File::new(0x20, 1, 1).end(1), "32 bits"),
        (File::new(X86_64 | 0x80, 1, 1).end(1), "filtered"),
        (
            b"#!/bin/sh\necho no trace\n".to_vec(),
            "not a drmemtrace trace",
        ),
        (Vec::new(), "it is empty"),
    ] {
        let said = open(bytes);
        assert!(said.contains(message), "{message}: {said}");
    }
    let empty = tempfile::tempdir().unwrap();
    let error = DrmemtraceSource::open(empty.path()).err().unwrap();
    assert!(error.to_string().contains("no files *.trace.zip"));
    assert!(!drmemtrace::is_drmemtrace(empty.path()));
    assert!(drmemtrace::is_drmemtrace(&data("")));
    assert!(drmemtrace::is_drmemtrace(&data(
        "drmemtrace.allasm_x86_64.trace.zip"
    )));
    assert!(!drmemtrace::is_drmemtrace(&data("counts.csv")));
}

/// Reads as much of changed bytes as there is, and looks up every block.
fn read_all(bytes: Vec<u8>) {
    let Ok(mut source) = DrmemtraceSource::new(Cursor::new(bytes), Path::new("mutant")) else {
        return;
    };
    while let Ok(Some(batch)) = source.next_batch() {
        for record in Records::new(batch.words) {
            if let Record::Block(id) = record.expect("a record") {
                assert!(batch.code.block(id).is_some());
            }
        }
    }
}

/// Records of all kinds.
fn seed_file() -> Vec<u8> {
    let mut file = File::new(REGDEPS | ENCODINGS, 1, 10);
    file.marker(20, 3)
        .marker(25, 7)
        .marker(26, 0)
        .marker(15, 0x5000)
        .marker(17, 0x9000);
    file.encoding(&[0x11, 0x0d, 0, 0, 8, 1, 2, 0])
        .add(10, 3, 0x1000)
        .add(0, 8, 0x9000);
    file.add(17, 3, 0x0003_0502)
        .add(13, 2, 0x1010)
        .add(48, 2, 0x1010)
        .add(30, 2, 0x1010);
    file.marker(0, 0x1010)
        .marker(1, 0)
        .marker(8, 1)
        .marker(2, 5)
        .add(22, 4, 2)
        .add(24, 4, 9);
    file.add(14, 5, 0x2000)
        .add(1, 64, 0xffff_8000_0000_0000)
        .add(23, 4, 2);
    file.end(1)
}

/// Number of mutants: a million if the environment requests them.
fn mutants() -> u32 {
    std::env::var("CONTIGUA_MUTANTS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(2_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: mutants(), ..ProptestConfig::default() })]
    #[test]
    fn no_mutant_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = seed_file();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_all(bytes);
    }
}

#[test]
fn no_changed_archive_panics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.trace.zip");
    let seed = seed_file();
    let whole = zip(&[("chunk.0000", &seed[..120]), ("chunk.0001", &seed[120..])]);
    fs::write(&path, &whole).unwrap();
    assert!(seen(&mut DrmemtraceSource::open(&path).unwrap()).is_ok());
    for at in 0..whole.len() {
        for change in [0xff, 0x01] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            fs::write(&path, &bytes).unwrap();
            if let Ok(mut source) = DrmemtraceSource::open(&path) {
                let _ = seen(&mut source);
            }
            let _ = drmemtrace::count(&path);
        }
    }
}
