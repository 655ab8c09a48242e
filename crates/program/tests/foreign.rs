//! Are the traces of other tools read as their tools wrote them?

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use std::process::Command;

use contigua_program::decode::{self, OperationClass, RegisterSet};
use contigua_program::sources::champsim::{ASSUMED_LENGTH, ChampSimSource};
use contigua_program::sources::lackey::LackeySource;
use contigua_program::sources::{Source, trace::TraceSource};
use contigua_program::trace::TraceWriter;
use contigua_program::wire::{BlockId, Event, ProcessId, Record, Records, ThreadId};
use contigua_program::{Error, TraceProblem};
use proptest::prelude::*;

/// An instruction with its length and its accesses: address, log2 of the size, store.
type Executed = (u64, u8, Vec<(u64, u8, bool)>);

/// Instructions and accesses of a source, in plain form. Checks the start and that batches stay
/// small.
fn executed(source: &mut dyn Source) -> Result<Vec<Executed>, Error> {
    let process = ProcessId(0);
    let mut events = vec![Event::ThreadStart { process }];
    let mut all: Vec<Executed> = Vec::new();
    while let Some(batch) = source.next_batch()? {
        assert_eq!(batch.thread, ThreadId(0));
        assert!((1..10_000).contains(&batch.words.len()));
        for record in Records::new(batch.words) {
            match record.unwrap() {
                Record::Block(id) => {
                    let block = batch.code.block(id).unwrap();
                    assert_eq!((block.instructions(), block.bytes.len()), (1, 0));
                    all.push((block.address.get(), block.lengths[0], Vec::new()));
                }
                Record::Access(access) => {
                    assert_eq!(access.instruction, 0);
                    let accesses = &mut all.last_mut().unwrap().2;
                    accesses.push((access.address.get(), access.size_log2, access.store));
                }
                Record::Event(event) => assert_eq!(Some(event), events.pop()),
            }
        }
        assert_eq!(batch.code.block(BlockId(u32::MAX)), None);
    }
    assert!(matches!(source.next_batch(), Ok(None)));
    assert!(events.is_empty());
    Ok(all)
}

fn champsim(bytes: &[u8]) -> Result<Vec<Executed>, Error> {
    let mut source = ChampSimSource::new(Cursor::new(bytes.to_vec()), Path::new("test"))?;
    assert!(!source.program().reports_mappings);
    executed(&mut source)
}

fn lackey(text: &str) -> Result<Vec<Executed>, Error> {
    let mut source = LackeySource::new(Cursor::new(text.to_owned()), Path::new("test"))?;
    assert!(!source.program().reports_mappings);
    let result = executed(&mut source);
    assert!(
        matches!(source.next_batch(), Ok(None)),
        "a source stays at its end"
    );
    result
}

/// A `ChampSim` instruction.
#[derive(Clone, Debug)]
struct Instruction {
    address: u64,
    taken: bool,
    stores: [u64; 2],
    loads: [u64; 4],
}

impl Instruction {
    fn at(address: u64) -> Self {
        Self {
            address,
            taken: false,
            stores: [0; 2],
            loads: [0; 4],
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.address.to_le_bytes().to_vec();
        bytes.extend([u8::from(self.taken); 2]);
        bytes.extend([9; 6]);
        for address in self.stores.iter().chain(&self.loads) {
            bytes.extend(address.to_le_bytes());
        }
        assert_eq!(bytes.len(), 64);
        bytes
    }
}

fn encode(instructions: &[Instruction]) -> Vec<u8> {
    instructions.iter().flat_map(Instruction::encode).collect()
}

/// Addresses of page tables with five levels.
fn canonical() -> impl Strategy<Value = u64> {
    any::<i64>().prop_map(|address| (address >> 7).cast_unsigned())
}

fn any_instructions() -> impl Strategy<Value = Vec<Instruction>> {
    let address = prop_oneof![0x40_0000..0x40_0030_u64, canonical()];
    let operand = prop_oneof![3 => Just(0), 1 => canonical()];
    let instruction = (
        address,
        any::<bool>(),
        proptest::array::uniform2(operand.clone()),
        proptest::array::uniform4(operand),
    )
        .prop_map(|(address, taken, stores, loads)| Instruction {
            address,
            taken,
            stores,
            loads,
        });
    proptest::collection::vec(instruction, 1..300)
}

/// The bits of an address that page tables of five levels hold.
const HELD: u64 = (1 << 57) - 1;

/// Naive model: the rules of the documentation in the plainest way.
fn expected(instructions: &[Instruction]) -> Vec<Executed> {
    let what = |i: &Instruction| {
        let count = |addresses: &[u64]| addresses.iter().filter(|&&address| address != 0).count();
        (i.address, i.taken, count(&i.loads), count(&i.stores))
    };
    let length_of = |instruction: &Instruction| {
        let address = instruction.address;
        let same = |i| what(i) == what(instruction);
        let first = instructions.iter().position(same).unwrap();
        match instructions.get(first + 1) {
            Some(next) if !instructions[first].taken => match next.address.wrapping_sub(address) {
                length @ 1..=15 => length as u8,
                _ => ASSUMED_LENGTH,
            },
            _ => ASSUMED_LENGTH,
        }
    };
    let access = |store| {
        move |address: &u64| {
            let address = address & HELD;
            let size = if HELD - address < 7 {
                (HELD - address + 1).ilog2() as u8
            } else {
                3
            };
            (address, size, store)
        }
    };
    instructions
        .iter()
        .map(|instruction| {
            let loads = instruction.loads.iter().filter(|&&address| address != 0);
            let stores = instruction.stores.iter().filter(|&&address| address != 0);
            let accesses = loads
                .map(access(false))
                .chain(stores.map(access(true)))
                .collect();
            (instruction.address & HELD, length_of(instruction), accesses)
        })
        .collect()
}

proptest! {
    #[test]
    fn does_champsim_follow_the_rules(instructions in any_instructions()) {
        prop_assert_eq!(champsim(&encode(&instructions)).unwrap(), expected(&instructions));
    }

    #[test]
    fn champsim_reader_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        let _ = champsim(&bytes);
        let _ = lackey(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn lackey_reader_never_panics(text in "([ILSM= -]{0,3}[0-9a-f]{0,17},[0-9]{0,3}\n?){0,9}") {
        let _ = lackey(&text);
    }
}

/// Class, reads, addresses and writes of each instruction of a trace.
fn decoded(records: &[[u8; 64]]) -> Vec<decode::Instruction> {
    let bytes = records.concat();
    let mut source = ChampSimSource::new(Cursor::new(bytes), Path::new("test")).unwrap();
    assert!(source.has_registers());
    let batch = source.next_batch().unwrap().unwrap();
    let blocks = Records::new(batch.words).filter_map(|record| match record.unwrap() {
        Record::Block(id) => Some(batch.code.instructions(id).unwrap()[0]),
        _ => None,
    });
    blocks.collect()
}

fn record(address: u64, is_branch: bool, registers: [u8; 6], load: u64, store: u64) -> [u8; 64] {
    let mut record = [0; 64];
    record[..8].copy_from_slice(&address.to_le_bytes());
    record[8..10].fill(is_branch.into());
    record[10..16].copy_from_slice(&registers);
    record[16..24].copy_from_slice(&store.to_le_bytes());
    record[32..40].copy_from_slice(&load.to_le_bytes());
    record
}

#[test]
fn do_champsim_instructions_wait_for_the_registers_of_their_records() {
    const FLAGS: u8 = 25;
    const POINTER: u8 = 26;
    let [chase, independent, add, store, branch, call, back] = decoded(&[
        record(0x1000, false, [3, 0, 3, 0, 0, 0], 0x8000, 0),
        record(0x1000, false, [3, 0, 7, 0, 0, 0], 0x8000, 0),
        record(0x1004, false, [10, FLAGS, 10, 7, 0, 0], 0x8000, 0),
        record(0x1008, false, [0, 0, 10, 7, 0, 0], 0, 0x8000),
        record(0x100c, true, [POINTER, 0, POINTER, FLAGS, 0, 0], 0, 0),
        record(0x1010, true, [6, POINTER, 6, POINTER, 0, 0], 0, 0x9000),
        record(0x2000, true, [6, POINTER, 6, 0, 0, 0], 0x9000, 0),
    ])[..] else {
        panic!("seven instructions");
    };
    assert_eq!(chase.class, OperationClass::Load);
    assert_eq!(chase.addresses, chase.writes);
    assert_eq!(independent.writes, chase.writes);
    assert!(!independent.addresses.intersects(independent.writes));
    assert_eq!(add.class, OperationClass::IntegerSimple);
    assert_eq!(add.addresses, independent.addresses);
    assert!(add.reads.intersects(add.writes) && add.writes.intersects(RegisterSet::FLAGS));
    assert_eq!((store.class, store.stores), (OperationClass::Store, 1));
    assert_eq!(branch.class, OperationClass::BranchConditional);
    assert_eq!(branch.reads, RegisterSet::FLAGS);
    assert_eq!(call.class, OperationClass::Call);
    assert_eq!(back.class, OperationClass::Return);
    assert_eq!(back.addresses, RegisterSet::general(4));
}

#[test]
fn are_addresses_that_page_tables_do_not_hold_refused() {
    let read = |load: u64, bits: u32| {
        let records = [
            record(0x1000, false, [0; 6], 0x8000, 0),
            record(0x1004, false, [0; 6], load, 0),
        ];
        let bytes = records.concat();
        let mut source = ChampSimSource::new(Cursor::new(bytes), Path::new("test")).unwrap();
        source.set_address_bits(bits);
        let seen = executed(&mut source).map_err(|error| error.to_string())?;
        Ok::<_, String>(seen[1].2[0].0)
    };
    let above = 0x00ff_0000_0000_1000;
    assert_eq!(read(above, 57), Ok(above));
    assert_eq!(
        read(above, 57 - 9).unwrap_err().matches("record 2").count(),
        1
    );
    assert!(read(above, 48).unwrap_err().contains("0xff000000001000"));
    let kernel = 0xffff_8880_0000_0000;
    assert_eq!(read(kernel, 48), Ok(0x8880_0000_0000));
    assert_eq!(read(kernel, 57), Ok(0x01ff_8880_0000_0000));
    let none = read(0x8000_0000_0000_1000, 57).unwrap_err();
    assert!(none.contains("record 2") && none.contains("0x8000000000001000"));
    let text = "I  1000,3\n L ff000000001000,8\n";
    let mut source = LackeySource::new(Cursor::new(text), Path::new("test")).unwrap();
    assert!(!source.has_registers());
    source.set_address_bits(48);
    let error = executed(&mut source).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn are_long_champsim_traces_cut_into_batches() {
    let instructions: Vec<_> = (0..20_000_u64)
        .map(|n| Instruction {
            loads: [n * 64 + 8, 0, 0, 0],
            ..Instruction::at(0x40_0000 + n % 700 * 5)
        })
        .collect();
    let seen = champsim(&encode(&instructions)).unwrap();
    assert_eq!(seen.len(), instructions.len());
    assert!(
        seen.iter()
            .zip(&instructions)
            .all(|(seen, made)| seen.0 == made.address && seen.2 == [(made.loads[0], 3, false)])
    );
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 6);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap(); // as the command does
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn are_compressed_traces_read_like_plain_ones() {
    let instructions: Vec<_> = (0..3000).map(|n| Instruction::at(0x1000 + n * 3)).collect();
    let plain = encode(&instructions);
    let (first, second) = plain.split_at(64 * 1000);
    for compress in [xz, gzip, zstd] {
        assert_eq!(
            champsim(&compress(&plain)).unwrap(),
            expected(&instructions)
        );
        let parts = [compress(first), compress(second)].concat();
        assert_eq!(
            champsim(&parts).unwrap(),
            expected(&instructions),
            "parts make a whole"
        );
    }
    let text = "I  1000,3\n L 2000,8\n";
    assert_eq!(lackey(text).unwrap().len(), 1);
    let mut source = LackeySource::new(Cursor::new(gzip(text.as_bytes())), Path::new("x")).unwrap();
    assert_eq!(executed(&mut source).unwrap(), lackey(text).unwrap());
}

#[test]
fn are_incomplete_champsim_traces_refused() {
    let plain = encode(&[Instruction::at(1), Instruction::at(2), Instruction::at(3)]);
    for length in (1..plain.len()).filter(|length| length % 64 != 0) {
        let truncated = champsim(&plain[..length]).unwrap_err();
        assert!(
            matches!(
                truncated,
                Error::Trace { problem: TraceProblem::Truncated { offset }, .. }
                    if offset == length as u64
            ),
            "{truncated}"
        );
    }
    let long = encode(
        &(0..3000)
            .map(|n| Instruction::at(n * n * 977))
            .collect::<Vec<_>>(),
    );
    for compress in [xz, gzip, zstd] {
        let mut compressed = compress(&long);
        let half = compressed.len() / 2;
        assert!(champsim(&compressed[..half]).is_err());
        compressed[half] ^= 0x55;
        assert!(champsim(&compressed).is_err());
    }
    assert!(champsim(&[]).unwrap_err().to_string().contains("empty"));
}

#[test]
fn is_other_data_not_taken_for_champsim() {
    let text = b"#!/bin/sh\n# A long enough text that is certainly no trace of any tool at all.\n";
    let error = champsim(text).unwrap_err().to_string();
    assert!(
        error.contains("record 1") && error.contains("is_branch"),
        "{error}"
    );
}

#[test]
fn does_lackey_follow_the_format() {
    let text = "==12== Lackey, an example Valgrind tool\n\
                \n\
                I  04001f90,3\n\
                I  04001f93,5\n \
                L 1ffeffe7e0,8\n \
                S 1ffeffe7d8,8\n\
                --12-- a message\n\
                I  04001f90,3\n \
                M 0421c7cc,4\n\
                I  04001f90,2\n \
                L 1000,10\n \
                S 2000,300\n\
                ==12==\n";
    let expected = vec![
        (0x0400_1f90, 3, vec![]),
        (
            0x0400_1f93,
            5,
            vec![(0x1f_feff_e7e0, 3, false), (0x1f_feff_e7d8, 3, true)],
        ),
        (
            0x0400_1f90,
            3,
            vec![(0x0421_c7cc, 2, false), (0x0421_c7cc, 2, true)],
        ),
        (
            0x0400_1f90,
            2,
            vec![
                (0x1000, 4, false),
                (0x2000, 7, true),
                (0x2080, 7, true),
                (0x2100, 6, true),
            ],
        ),
    ];
    assert_eq!(lackey(text).unwrap(), expected);
    assert_eq!(
        lackey(text.trim_end()).unwrap(),
        expected,
        "the last line may lack its end"
    );
}

#[test]
fn is_the_line_named_that_is_not_of_the_format() {
    let good = "I  1000,3\n";
    for bad in [
        "hello",
        "I 1000,3",
        "I  1000",
        "I  1000,",
        "I  1000,x",
        "I  1000,0",
        "I  1000,256",
        "I  10g0,3",
        "I  +1000,3",
        "I  ,3",
        " L 1000,-8",
        " L 1000,99999",
        " X 1000,8",
        "I",
        " ",
        " L 10000000000000000,8",
    ] {
        let error = lackey(&format!("==1==\n{good}{bad}\n{good}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 3"), "{bad:?}: {error}");
    }
    let error = lackey(" L 1000,8\nI  1000,3\n").unwrap_err().to_string();
    assert!(
        error.contains("line 1") && error.contains("first instruction"),
        "{error}"
    );
    let error = lackey("==1== nothing\n").unwrap_err().to_string();
    assert!(error.contains("--trace-mem=yes"), "{error}");
}

#[test]
fn are_files_that_do_not_exist_named() {
    let path = Path::new("/nowhere/trace.xz");
    let errors = [
        ChampSimSource::open(path).err().unwrap(),
        LackeySource::open(path).err().unwrap(),
    ];
    for error in errors {
        assert!(error.to_string().contains("/nowhere/trace.xz"));
    }
}

/// Runs where Valgrind is installed.
#[test]
fn does_lackey_itself_agree_on_its_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lackey.txt");
    let ran = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=yes"])
        .arg(format!("--log-file={}", path.display()))
        .arg("/bin/true")
        .status();
    if !ran.is_ok_and(|status| status.success()) {
        contigua_testing::skip("valgrind cannot run here");
        return;
    }
    let mut source = LackeySource::open(&path).unwrap();
    let seen = executed(&mut source).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(seen.len(), lines("I  "));
    let counted = text
        .lines()
        .find_map(|line| line.split_once("guest instrs:"))
        .map(|(_, count)| count.trim().replace(',', "").parse::<usize>().unwrap())
        .unwrap();
    // Lackey counts an instruction when its block begins, and traces it when it executes.
    assert!(
        seen.len().abs_diff(counted) < counted / 1000,
        "{} of {counted}",
        seen.len()
    );
    // Accesses of more than 128 bytes, which make several, are the loader's `xsave` only.
    let stores: usize = seen
        .iter()
        .map(|(.., all)| all.iter().filter(|access| access.2).count())
        .sum();
    assert!(stores >= lines(" S ") + lines(" M "));
    assert!(stores < lines(" S ") + lines(" M ") + 10_000);

    let mut again = LackeySource::open(&path).unwrap();
    let stored = directory.path().join("trace");
    let mut writer = TraceWriter::create(&stored, again.program()).unwrap();
    while let Some(batch) = again.next_batch().unwrap() {
        writer.write(&batch).unwrap();
    }
    assert_eq!(writer.finish(None).unwrap().instructions, seen.len() as u64);
    let mut replayed = TraceSource::open(&stored).unwrap();
    assert_eq!(executed(&mut replayed).unwrap(), seen);
}
