//! Cost of writing and reading back a word of a trace.
//!
//! Two programs stand for the extremes: `loops` does mostly what it did before, `random` goes
//! through 1 GB without any order. Sizes of the traces are printed along. Then reading of drmemtrace.

use std::hint::black_box;
use std::io::Cursor;
use std::path::Path;

use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::layout::Layout;
use contigua_program::plan::Plan;
use contigua_program::sources::drmemtrace::{self, DrmemtraceSource};
use contigua_program::sources::{Batch, Program, Source};
use contigua_program::syscall::Architecture;
use contigua_program::trace::{TraceReader, TraceWriter};
use contigua_program::wire::{Access, BlockId, ThreadId, block_word};
use contigua_units::VirtAddr;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const WORDS: usize = 4 << 20;
const BATCH_WORDS: usize = 2048;
const BLOCKS: u32 = 4000;

/// Five instructions of four bytes in every block.
struct Code;

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        (block.0 < BLOCKS).then_some(BlockCode {
            address: VirtAddr::new(0x40_0000 + u64::from(block.0) * 20),
            lengths: &[4; 5],
            bytes: &[],
        })
    }
}

fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

fn access(instruction: u64, address: u64, store: bool) -> u64 {
    Access {
        address: VirtAddr::new(address),
        size_log2: 3,
        store,
        instruction: instruction as u16,
    }
    .encode()
}

/// Loops of up to eight blocks, some with a branch inside, that walk arrays and use the stack.
fn loops() -> Vec<u64> {
    let mut state = 1;
    let mut words = Vec::with_capacity(WORDS + 100);
    while words.len() < WORDS {
        let first = random(&mut state, u64::from(BLOCKS - 8));
        let length = 1 + random(&mut state, 7);
        let array = 0x7f00_0000_0000 + random(&mut state, 1 << 24) * 8;
        for round in 0..random(&mut state, 60) {
            for block in first..first + length {
                if block % 4 == 3 && random(&mut state, 4) == 0 {
                    continue;
                }
                words.push(block_word(BlockId(block as u32)));
                if block % 3 != 0 {
                    words.push(access(1, array + round * 8, false));
                }
                if block % 2 == 0 {
                    words.push(access(3, 0x7fff_ffff_0000 + block * 8, block % 4 == 0));
                }
            }
        }
    }
    words
}

/// One block that updates random places.
fn updates() -> Vec<u64> {
    let mut state = 1;
    let mut words = Vec::with_capacity(WORDS + 3);
    while words.len() < WORDS {
        let address = 0x7f00_0000_0000 + random(&mut state, 1 << 27) * 8;
        words.push(block_word(BlockId(1)));
        words.push(access(2, address, false));
        words.push(access(2, address, true));
    }
    words
}

fn record(path: &Path, words: &[u64]) -> u64 {
    let program = Program {
        command: vec!["benchmark".into()],
        architecture: Architecture::X86_64,
        reports_mappings: true,
        plan: Plan::default(),
        layout: Layout::default(),
    };
    let mut writer = TraceWriter::create(path, &program).expect("a writable place");
    for words in words.chunks(BATCH_WORDS) {
        let batch = Batch {
            thread: ThreadId(0),
            words,
            code: &Code,
        };
        writer.write(&batch).expect("a valid batch");
    }
    writer.finish(None).expect("a full trace").instructions
}

fn traces(c: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("trace");
    let mut group = c.benchmark_group("trace");
    group.sample_size(10);
    for (name, words) in [("loops", loops()), ("random", updates())] {
        let instructions = record(&path, &words);
        let bytes = std::fs::read(&path).expect("the trace");
        println!(
            "{name}: {:.3} bytes a word, {:.3} bytes an instruction",
            bytes.len() as f64 / words.len() as f64,
            bytes.len() as f64 / instructions as f64
        );
        group.throughput(Throughput::Elements(words.len() as u64));
        group.bench_function(format!("write/{name}"), |b| {
            b.iter(|| record(&path, black_box(&words)));
        });
        group.bench_function(format!("read/{name}"), |b| {
            b.iter(|| {
                let mut reader =
                    TraceReader::new(Cursor::new(&bytes), &path).expect("an intact trace");
                while let Some(batch) = reader.next_batch().expect("an intact trace") {
                    black_box(batch.words);
                }
            });
        });
    }
    group.finish();
}

/// Reads traces of `DynamoRIO`'s tests, of x86-64 with encodings; elements are instructions.
fn drmemtraces(c: &mut Criterion) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/drmemtrace");
    let mut group = c.benchmark_group("drmemtrace");
    group.sample_size(10);
    for name in [
        "drmemtrace.threadsig.872906.1041.trace.zip",
        "drmemtrace.tool.fib_plus.125254.3691.trace.gz",
    ] {
        let path = folder.join(name);
        let counts = drmemtrace::count(&path).expect("an intact trace");
        let instructions = counts.iter().map(|file| file.instructions).sum();
        group.throughput(Throughput::Elements(instructions));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut source = DrmemtraceSource::open(&path).expect("an intact trace");
                while let Some(batch) = source.next_batch().expect("an intact trace") {
                    black_box(batch.words);
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, traces, drmemtraces);
criterion_main!(benches);
