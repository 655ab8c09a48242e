//! Are repeated string instructions and wide accesses what a processor makes of them?

use crate::common::{consume, mapped};
use contigua_machine::config::Detail;
use contigua_machine::{Engine, Report};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::syscall::Architecture;
use contigua_program::wire::{Access, BlockId, block_word};
use contigua_units::VirtAddr;

const BUFFER: u64 = 0x4000_0000;
const MMAP: u16 = 9;

/// `mov edi, ecx; rep stosb`, and `rep stosb` alone.
const FILL: u32 = 0;
const FILL_AGAIN: u32 = 1;
/// `mov edi, ecx; rep movsq`, and `rep movsq` alone.
const COPY: u32 = 2;
const COPY_AGAIN: u32 = 3;
/// `vmovdqu [rdi], ymm0`; `add rdi, 32`.
const WIDE: u32 = 4;
/// `mov [rdi], rax`; `add rdi, 8`.
const NARROW: u32 = 5;

struct Code;

impl CodeLog for Code {
    fn block(&self, id: BlockId) -> Option<BlockCode<'_>> {
        let (address, lengths, bytes): (u64, &[u8], &[u8]) = match id.0 {
            FILL => (0x1000, &[2, 2], &[0x89, 0xcf, 0xf3, 0xaa]),
            FILL_AGAIN => (0x1002, &[2], &[0xf3, 0xaa]),
            COPY => (0x1100, &[2, 3], &[0x89, 0xcf, 0xf3, 0x48, 0xa5]),
            COPY_AGAIN => (0x1102, &[3], &[0xf3, 0x48, 0xa5]),
            WIDE => (
                0x1200,
                &[4, 4],
                &[0xc5, 0xfe, 0x7f, 0x07, 0x48, 0x83, 0xc7, 0x20],
            ),
            NARROW => (0x1300, &[3, 4], &[0x48, 0x89, 0x07, 0x48, 0x83, 0xc7, 0x08]),
            _ => return None,
        };
        Some(BlockCode {
            address: VirtAddr::new(address),
            lengths,
            bytes,
        })
    }
}

struct Server(Engine);

/// Time and accesses of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Taken {
    cycles: u64,
    instructions: u64,
    iterations: u64,
    loads: u64,
    stores: u64,
    lookups: u64,
}

impl Server {
    fn new(detail: Detail) -> Self {
        Self(mapped(detail, Architecture::X86_64, MMAP, BUFFER))
    }

    fn words(&mut self, words: &[u64]) {
        consume(&mut self.0, words, &Code);
    }

    fn report(&self) -> Report {
        self.0.report()
    }

    fn taken(&mut self, words: &[u64]) -> Taken {
        let figures = |report: &Report| {
            let executed = &report.executed;
            let tlb = &report.tlb.data;
            [
                report.time.as_ref().unwrap().cycles.get(),
                executed.instructions,
                executed.string_iterations,
                executed.loads,
                executed.stores,
                tlb.lookups,
            ]
        };
        let before = figures(&self.report());
        self.words(words);
        let after = figures(&self.report());
        let mut taken = after
            .into_iter()
            .zip(before)
            .map(|(after, before)| after - before);
        let mut next = || taken.next().unwrap();
        Taken {
            cycles: next(),
            instructions: next(),
            iterations: next(),
            loads: next(),
            stores: next(),
            lookups: next(),
        }
    }
}

fn access(address: u64, size_log2: u8, store: bool, instruction: u16) -> u64 {
    Access {
        address: VirtAddr::new(address),
        size_log2,
        store,
        instruction,
    }
    .encode()
}

/// How a QEMU tells a repeated instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// The first iteration belongs to the block before.
    Qemu7,
    /// All iterations are blocks of their own.
    Qemu10,
}

fn fill(told: Told, address: u64, bytes: u64) -> Vec<u64> {
    let mut words = vec![block_word(BlockId(FILL))];
    for i in 0..bytes {
        let is_in_block = told == Told::Qemu7 && i == 0;
        if !is_in_block {
            words.push(block_word(BlockId(FILL_AGAIN)));
        }
        words.push(access(address + i, 0, true, u16::from(is_in_block)));
    }
    if told == Told::Qemu7 {
        words.push(block_word(BlockId(FILL_AGAIN)));
    }
    words
}

fn copy(from: u64, to: u64, bytes: u64) -> Vec<u64> {
    let mut words = vec![block_word(BlockId(COPY))];
    for i in 0..bytes / 8 {
        if i > 0 {
            words.push(block_word(BlockId(COPY_AGAIN)));
        }
        let instruction = u16::from(i == 0);
        words.push(access(from + i * 8, 3, false, instruction));
        words.push(access(to + i * 8, 3, true, instruction));
    }
    words.push(block_word(BlockId(COPY_AGAIN)));
    words
}

/// Returns time and accesses when the caches have the data, and the store buffer no misses.
fn warm(server: &mut Server, words: &[u64]) -> Taken {
    for _ in 0..6 {
        server.words(words);
    }
    server.taken(words)
}

#[test]
fn filling_in_the_cache_takes_a_start_and_a_cycle_for_32_bytes() {
    for told in [Told::Qemu7, Told::Qemu10] {
        let mut server = Server::new(Detail::Full);
        let start = u64::from(
            crate::common::machine(64 << 20)
                .core
                .latency_cycles
                .fast_string,
        );
        for bytes in [4096, 16384] {
            let taken = warm(&mut server, &fill(told, BUFFER, bytes));
            let least = start + bytes / 64;
            let most = start + bytes / 32 + 60;
            assert!(
                (least..most).contains(&taken.cycles),
                "{told:?} {bytes}: {taken:?}"
            );
            assert_eq!(
                taken.instructions - taken.iterations,
                2,
                "{told:?} {bytes}: {taken:?}"
            );
            assert_eq!(taken.stores, bytes);
            assert!(
                (bytes / 32..=bytes / 32 + 1).contains(&taken.lookups),
                "{taken:?}"
            );
        }
        // A megabyte does not fit in the first level: some lines wait.
        let bytes = 1 << 20;
        let taken = warm(&mut server, &fill(told, BUFFER, bytes));
        assert!(
            (bytes / 64..bytes / 8).contains(&taken.cycles),
            "{told:?}: {taken:?}"
        );
    }
}

#[test]
fn a_short_fill_takes_the_start() {
    let mut server = Server::new(Detail::Full);
    let one = fill(Told::Qemu7, BUFFER, 16);
    let many: Vec<u64> = (0..100).flat_map(|_| one.clone()).collect();
    let cycles = warm(&mut server, &many).cycles;
    let start = u64::from(
        crate::common::machine(64 << 20)
            .core
            .latency_cycles
            .fast_string,
    );
    assert!(
        (99 * start..101 * (start + 15)).contains(&cycles),
        "{cycles}"
    );
}

#[test]
fn copying_takes_a_load_and_a_store_for_32_bytes() {
    let mut server = Server::new(Detail::Full);
    let (bytes, to) = (4096, BUFFER + (1 << 20));
    for offset in [0, 4] {
        // Loads that begin in the middle of a word cross lines.
        let crossings = if offset == 0 { 0 } else { bytes / 64 };
        let pieces = 2 * (bytes / 32) + crossings;
        let taken = warm(&mut server, &copy(BUFFER + offset, to, bytes));
        assert!(
            (pieces..pieces + 4).contains(&taken.lookups),
            "{offset}: {taken:?}"
        );
        assert!(
            (bytes / 32..bytes / 32 + 60).contains(&taken.cycles),
            "{offset}: {taken:?}"
        );
        assert_eq!((taken.loads, taken.stores), (bytes / 8, bytes / 8));
    }
}

#[test]
fn stalls_that_add_up_do_so_for_32_bytes_at_a_time() {
    let mut server = Server::new(Detail::Additive);
    let taken = warm(&mut server, &fill(Told::Qemu7, BUFFER, 4096));
    assert!(taken.cycles < 4096 / 32, "{taken:?}");
}

#[test]
fn a_page_that_is_filled_is_mapped_where_it_is_met() {
    let mut server = Server::new(Detail::Full);
    server.words(&fill(Told::Qemu7, BUFFER, 3 * 4096));
    // And the page of the code, not mapped yet.
    assert_eq!(server.report().kernel.faults_anonymous_4k, 3 + 1);
}

#[test]
fn another_block_in_between_begins_anew() {
    let mut server = Server::new(Detail::Full);
    let again = [
        block_word(BlockId(NARROW)),
        access(BUFFER, 3, true, 0),
        block_word(BlockId(FILL_AGAIN)),
        access(BUFFER, 0, true, 0),
    ];
    let taken = warm(&mut server, &again);
    assert_eq!((taken.iterations, taken.lookups), (0, 2));
}

/// `count` iterations of a loop that stores, each in words of 8 bytes.
fn stores(block: u32, count: u64, words: u64, first: u64) -> Vec<u64> {
    let mut stream = Vec::new();
    for i in 0..count {
        stream.push(block_word(BlockId(block)));
        for word in 0..words {
            let address = first + (i * words + word) * 8;
            stream.push(access(address, 3, true, 0));
        }
    }
    stream
}

#[test]
fn a_wide_store_is_one() {
    let mut server = Server::new(Detail::Full);
    let wide = warm(&mut server, &stores(WIDE, 128, 4, BUFFER));
    assert_eq!((wide.stores, wide.lookups), (512, 128), "{wide:?}");
    // One a cycle.
    assert!((128..200).contains(&wide.cycles), "{wide:?}");
    // Across lines it is two.
    let across = warm(&mut server, &stores(WIDE, 128, 4, BUFFER + 48));
    assert_eq!((across.stores, across.lookups), (512, 192), "{across:?}");
    // A word that reaches into the next line is looked up there, and what follows it is there.
    let odd = warm(&mut server, &stores(WIDE, 128, 4, BUFFER + 44));
    assert_eq!(odd.lookups, 192, "{odd:?}");
}

#[test]
fn narrow_stores_are_as_many_as_they_are() {
    let mut server = Server::new(Detail::Full);
    let narrow = warm(&mut server, &stores(NARROW, 512, 1, BUFFER));
    assert_eq!((narrow.stores, narrow.lookups), (512, 512), "{narrow:?}");
}
