//! Is code of aarch64 what a processor makes of it: accesses of several registers, chains of loads?

use crate::common::{consume, mapped};
use contigua_machine::Engine;
use contigua_machine::config::Detail;
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::syscall::Architecture;
use contigua_program::wire::{Access, BlockId, block_word};
use contigua_units::VirtAddr;

const BUFFER: u64 = 0x4000_0000;
/// `mmap` of aarch64.
const MMAP: u16 = 222;

/// Each is a block: `stp w0, w1, [x2], #8`; `ldp x0, x1, [x2], #16`; `ld4 {v0.4s-v3.4s}, [x2], #64`.
const NARROW_PAIR: u32 = 0;
const PAIR: u32 = 1;
const STRUCTURES: u32 = 2;
/// `ldr x4, [x4]` and `ldr x1, [x1]`: each load waits for the one before.
const CHAINS: [u32; 2] = [3, 4];
/// `ldr x0, [x1], #8`: none does.
const SCAN: u32 = 5;
const CODE: [u32; 6] = [
    0x2881_0440,
    0xa8c1_0440,
    0x4cdf_0840,
    0xf940_0084,
    0xf940_0021,
    0xf840_8420,
];

struct Code([[u8; 4]; CODE.len()]);

impl CodeLog for Code {
    fn block(&self, id: BlockId) -> Option<BlockCode<'_>> {
        Some(BlockCode {
            address: VirtAddr::new(0x1000 + 0x100 * u64::from(id.0)),
            lengths: &[4],
            bytes: self.0.get(id.0 as usize)?,
        })
    }
}

struct Server(Engine);

impl Server {
    fn new() -> Self {
        let architecture = Architecture::Aarch64;
        Self(mapped(Detail::Full, architecture, MMAP, BUFFER))
    }

    fn words(&mut self, words: &[u64]) {
        consume(&mut self.0, words, &Code(CODE.map(u32::to_le_bytes)));
    }

    /// Cycles, loads and stores, and look-ups in the TLB, once everything is warm.
    fn taken(&mut self, words: &[u64]) -> [u64; 3] {
        for _ in 0..6 {
            self.words(words);
        }
        let figures = |server: &Self| {
            let report = server.0.report();
            [
                report.time.as_ref().unwrap().cycles.get(),
                report.executed.loads + report.executed.stores,
                report.tlb.data.lookups,
            ]
        };
        let before = figures(self);
        self.words(words);
        let after = figures(self);
        std::array::from_fn(|i| after[i] - before[i])
    }
}

/// `count` executions of a block, each of which makes `parts` accesses of a size in a row.
fn executions(block: u32, count: u64, parts: u64, size_log2: u8, first: u64) -> Vec<u64> {
    let mut words = Vec::new();
    for i in 0..count {
        words.push(block_word(BlockId(block)));
        for part in 0..parts {
            let access = Access {
                address: VirtAddr::new(first + ((i * parts + part) << size_log2)),
                size_log2,
                store: block == NARROW_PAIR,
                instruction: 0,
            };
            words.push(access.encode());
        }
    }
    words
}

#[test]
fn registers_that_are_loaded_together_are_one_access() {
    let cases = [(NARROW_PAIR, 2, 2), (PAIR, 2, 3), (STRUCTURES, 16, 2)];
    for (block, parts, size_log2) in cases {
        let mut server = Server::new();
        let within = executions(block, 64, parts, size_log2, BUFFER);
        let [_, accesses, lookups] = server.taken(&within);
        assert_eq!((accesses, lookups), (64 * parts, 64), "block {block}");
        // Those that reach into the next line are two.
        let bytes = parts << size_log2;
        let across = executions(block, 64, parts, size_log2, BUFFER + (1 << size_log2));
        let [_, accesses, lookups] = server.taken(&across);
        let crossings = 64 * bytes / 64;
        assert_eq!(
            (accesses, lookups),
            (64 * parts, 64 + crossings),
            "block {block}"
        );
    }
}

#[test]
fn loads_wait_for_their_addresses_and_not_for_an_address_that_moves_on() {
    let latency = u64::from(crate::common::machine(64 << 20).core.latency_cycles.load);
    assert!(latency > 2);
    let mut server = Server::new();
    for block in CHAINS {
        let [cycles, ..] = server.taken(&executions(block, 256, 1, 3, BUFFER));
        assert!(cycles >= 256 * latency, "block {block}: {cycles}");
    }
    let [cycles, ..] = server.taken(&executions(SCAN, 256, 1, 3, BUFFER));
    assert!(cycles < 256 * 2, "{cycles}");
}

#[test]
fn system_calls_have_the_numbers_of_the_architecture() {
    let server = Server::new();
    let report = server.0.report();
    assert_eq!(report.kernel.unexplained_accesses, 0);
    let mut server = server;
    server.words(&executions(PAIR, 512, 2, 3, BUFFER));
    let report = server.0.report();
    // Two pages of memory, and that of the code.
    assert_eq!(report.kernel.faults_zero_page, 2);
    assert_eq!(report.kernel.faults_anonymous_4k, 1);
}
