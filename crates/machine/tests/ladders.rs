//! Do latency and bandwidth come out of the whole server (code, translation, caches, memory, core)
//! as its machine file configures them? The ladders that people run on real machines, with the
//! same instructions.

use std::collections::HashSet;

use contigua_cache::coherent::MemoryCounters;
use contigua_machine::config::{Detail, MachineConfig, MigrationConfig, RunConfig};
use contigua_machine::{Engine, Report};
use contigua_program::code::{BlockCode, CodeLog};
use contigua_program::sources::Batch;
use contigua_program::wire::{Access, BlockId, Event, ProcessId, ThreadId, block_word};
use contigua_units::{Bytes, PageSize, VirtAddr};

const HUGE: &str = include_str!("../../../python/contigua/data/designs/linux-thp.toml");
const SMALL: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");
const BASE: u64 = 0x4000_0000;
const MADVISE: u16 = 28;
const POPULATE_WRITE: u64 = 23;

/// The loops; each is a block that ends in the branch back to its start.
const CHASE: u32 = 0;
const INDEPENDENT: u32 = 1;
const MULTIPLY: u32 = 2;
const COPY: u32 = 3;
/// A conditional branch to itself, and what lies behind it.
const BRANCH: u32 = 4;
const BEHIND: u32 = 5;

struct Code;

impl CodeLog for Code {
    fn block(&self, block: BlockId) -> Option<BlockCode<'_>> {
        let (lengths, bytes): (&[u8], &[u8]) = match block.0 {
            // mov rax, [rax]; dec rcx; jne
            CHASE => (
                &[3, 3, 2],
                &[0x48, 0x8b, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf6],
            ),
            // mov rax, [rbx]; dec rcx; jne
            INDEPENDENT => (
                &[3, 3, 2],
                &[0x48, 0x8b, 0x03, 0x48, 0xff, 0xc9, 0x75, 0xf6],
            ),
            // imul rax, rax, four times; dec rcx; jne
            MULTIPLY => (
                &[4, 4, 4, 4, 3, 2],
                &[
                    0x48, 0x0f, 0xaf, 0xc0, 0x48, 0x0f, 0xaf, 0xc0, 0x48, 0x0f, 0xaf, 0xc0, 0x48,
                    0x0f, 0xaf, 0xc0, 0x48, 0xff, 0xc9, 0x75, 0xe9,
                ],
            ),
            // mov rax, [rbx]; mov [rdx], rax; dec rcx; jne
            COPY => (
                &[3, 3, 3, 2],
                &[
                    0x48, 0x8b, 0x03, 0x48, 0x89, 0x02, 0x48, 0xff, 0xc9, 0x75, 0xf3,
                ],
            ),
            // dec rcx; jne back
            BRANCH => (&[3, 2], &[0x48, 0xff, 0xc9, 0x75, 0xfb]),
            // jmp to the branch
            BEHIND => (&[2], &[0xeb, 0xf9]),
            _ => return None,
        };
        let address = match block.0 {
            BEHIND => 0x40_0000 + 4096 * u64::from(BRANCH) + 5,
            other => 0x40_0000 + 4096 * u64::from(other),
        };
        Some(BlockCode {
            address: VirtAddr::new(address),
            lengths,
            bytes,
        })
    }
}

fn machine(prefetch: bool) -> MachineConfig {
    let mut machine = crate::common::machine(1 << 30);
    machine.cache.prefetch.next_line = prefetch;
    machine.cache.prefetch.stride = prefetch;
    if !prefetch {
        machine.cache.prefetch.stream_lines = 0;
    }
    machine
}

/// Runs loops on 2 MB pages, the first part of them to warm up.
fn run(
    machine: MachineConfig,
    warm: u64,
    loops: impl Iterator<Item = (u32, Vec<Access>)>,
) -> Report {
    run_on(HUGE, machine, warm, loops)
}

/// Runs a ladder on the given pages.
fn run_on(
    scheme: &str,
    machine: MachineConfig,
    warm: u64,
    loops: impl Iterator<Item = (u32, Vec<Access>)>,
) -> Report {
    let mut design = crate::common::design(scheme);
    design.migration = MigrationConfig::default();
    let mut engine = crate::common::engine(RunConfig {
        detail: Detail::Full,
        warmup: warm,
        ..crate::common::config(design, machine)
    });
    let start = Event::ThreadStart {
        process: ProcessId(0),
    };
    let map = crate::common::syscall(9, [0, 512 << 20, 3, 0x22, 0, 0], BASE);
    let mut words = start.encode().words().to_vec();
    words.extend_from_slice(map.encode().words());
    let mut populated = HashSet::new();
    for (block, accesses) in loops {
        for access in &accesses {
            // Reads of untouched memory would find the zero page.
            let at = access.address.align_down(PageSize::Size2M.bytes());
            if populated.insert(at) {
                let range = [at.get(), PageSize::Size2M.bytes(), POPULATE_WRITE, 0, 0, 0];
                words.extend(crate::common::syscall(MADVISE, range, 0).encode().words());
            }
        }
        words.push(block_word(BlockId(block)));
        words.extend(accesses.iter().map(|access| access.encode()));
        if words.len() > 4096 {
            feed(&mut engine, &words);
            words.clear();
        }
    }
    feed(&mut engine, &words);
    engine.finish().unwrap();
    engine.report()
}

fn feed(engine: &mut Engine, words: &[u64]) {
    let thread = ThreadId(0);
    let batch = Batch {
        thread,
        words,
        code: &Code,
    };
    engine.consume(batch).unwrap();
}

fn access(line: u64, store: bool, instruction: u16) -> Access {
    Access {
        address: VirtAddr::new(BASE + line * 64),
        size_log2: 3,
        store,
        instruction,
    }
}

/// Every line of a buffer once, in an order that no prefetcher follows: a full-period linear
/// congruential sequence over a power of two of lines.
fn shuffled(lines: u64) -> impl Iterator<Item = u64> {
    let mut at = 0_u64;
    (0..lines).map(move |_| {
        at = (at.wrapping_mul(5_461).wrapping_mul(4).wrapping_add(at) + 7_919) % lines;
        at
    })
}

fn counters(report: &Report) -> MemoryCounters {
    report.cache.unwrap()
}

fn cycles(report: &Report) -> f64 {
    report.time.as_ref().unwrap().cycles.get() as f64
}

/// Chases pointers over a buffer of some lines; cycles of a load, and what the levels that served
/// the loads are configured to take.
fn chase(lines: u64, rounds: u64) -> (f64, f64) {
    let machine = machine(false);
    let warm = 3 * lines;
    let loops = (0..=rounds).flat_map(move |_| shuffled(lines));
    let loops = loops.map(|line| (CHASE, vec![access(line, false, 0)]));
    let report = run(machine.clone(), warm, loops);
    let counted = counters(&report);
    let cache = &machine.cache;
    let clock = machine.clock;
    let first = f64::from(machine.core.latency_cycles.load);
    let beyond = |latency: u64| first + latency as f64 - cache.l1d.latency_cycles.get() as f64;
    let (data, dram) = (counted.data, counted.dram);
    let memory = cache.memory_latency.at(clock).get();
    let [precharge, activate] =
        [cache.dram.precharge, cache.dram.activate].map(|part| part.at(clock).get() as f64);
    let saved =
        (dram.row_hits + dram.row_misses) as f64 * precharge + dram.row_hits as f64 * activate;
    let expected = data.l1 as f64 * first
        + data.l2 as f64 * beyond(cache.l2.latency_cycles.get())
        + data.llc as f64 * beyond(cache.llc.latency_cycles.get())
        + data.memory as f64 * beyond(memory)
        - saved;
    let loads = report.executed.loads as f64;
    (cycles(&report) / loads, expected / loads)
}

#[test]
fn does_a_pointer_chase_take_the_latency_of_the_level_that_has_its_lines() {
    let machine = machine(false);
    let levels = [
        // 16 KB, 256 KB and 8 MB: in L1, L2, and the last level.
        (256, 20, Some(machine.core.latency_cycles.load.into())),
        (4096, 6, Some(machine.cache.l2.latency_cycles.get())),
        (131_072, 2, None),
        // 64 MB: memory, for what the last level does not keep.
        (1 << 20, 1, None),
    ];
    let mut before = 0.0;
    for (lines, rounds, latency) in levels {
        let (measured, expected) = chase(lines, rounds);
        assert!(
            (measured / expected - 1.0).abs() < 0.02,
            "{lines} lines: {measured} cycles, {expected} configured"
        );
        if let Some(latency) = latency {
            let share = measured / latency as f64;
            assert!(
                (share - 1.0).abs() < 0.05,
                "{lines} lines: {measured} for {latency}"
            );
        }
        assert!(
            measured > before * 1.3,
            "{lines} lines: {measured} after {before}"
        );
        before = measured;
    }
    assert!(before > 100.0, "memory answers in {before} cycles");
}

#[test]
fn do_independent_loads_overlap_as_far_as_miss_registers_go() {
    let machine = machine(false);
    let lines = 1 << 20;
    let loops = (0..2).flat_map(move |_| shuffled(lines));
    let loops = loops.map(|line| (INDEPENDENT, vec![access(line, false, 0)]));
    let report = run(machine.clone(), 3 * lines, loops);
    let each = cycles(&report) / report.executed.loads as f64;
    let (dependent, _) = chase(lines, 1);
    let overlap = dependent / each;
    let registers = f64::from(machine.core.miss_registers);
    assert!(
        (overlap / registers - 1.0).abs() < 0.1,
        "{overlap} loads at a time"
    );
}

/// A machine whose last level is small beside what a stream reads. (Zeroing left it in the caches.)
fn streaming(prefetch: bool) -> MachineConfig {
    let mut machine = machine(prefetch);
    machine.cache.llc.size = Bytes::new(machine.cache.llc.size.get() / 8);
    machine
}

#[test]
fn does_a_stream_with_prefetchers_run_ahead_of_one_without() {
    let stream = |prefetch| {
        let lines = 1 << 18;
        let loops = (0..2 * lines * 8).map(|word| {
            let word = word % (lines * 8);
            let mut one = access(word / 8, false, 0);
            one.address = VirtAddr::new(one.address.get() + word % 8 * 8);
            (INDEPENDENT, vec![one])
        });
        run(streaming(prefetch), 3 * 8 * lines, loops)
    };
    let (with, without) = (stream(true), stream(false));
    assert!(cycles(&with) * 1.1 < cycles(&without));
    let coherence = counters(&with).coherence;
    let used = coherence.prefetches_used as f64 / coherence.prefetches as f64;
    assert!(used > 0.9, "{used} of the prefetches were used");
    // Neither beats the memory's bandwidth.
    let machine = streaming(true);
    let dram = &machine.cache.dram;
    let bytes_a_cycle = f64::from(dram.channels) * f64::from(dram.channel_megabytes_per_second)
        / f64::from(machine.clock.get());
    let read = counters(&with).dram.reads as f64 * 64.0;
    assert!(read / cycles(&with) <= bytes_a_cycle);
}

#[test]
fn does_a_stream_go_on_in_the_next_page_before_the_program_does() {
    let stream = |next_page| {
        let mut machine = streaming(true);
        machine.cache.prefetch.next_page = next_page;
        let lines = 1 << 18;
        let loops = (0..2 * lines).map(|line| (INDEPENDENT, vec![access(line % lines, false, 0)]));
        let report = run_on(SMALL, machine, 3 * lines, loops);
        (
            cycles(&report),
            report.tlb.load_misses,
            counters(&report).coherence.pages_ahead,
        )
    };
    let (with, translated, ahead) = stream(true);
    let (without, walked, none) = stream(false);
    // Half of the pages of 64 MB are warm-up's.
    let pages = 1 << 12;
    assert_eq!(
        (walked.stlb_hit, walked.walk_completed_4k, none),
        (0, pages, 0)
    );
    // Nothing comes before the first page.
    assert_eq!(
        (translated.stlb_hit, translated.walk_completed_4k),
        (pages - 1, 1)
    );
    assert!(ahead.abs_diff(pages) < 4, "{ahead}");
    assert!(with * 1.15 < without, "{with} {without}");
}

#[test]
fn does_memory_give_a_saturating_stream_its_bandwidth_and_no_more() {
    // One slow channel: the core could ask for far more.
    let mut machine = streaming(true);
    machine.cache.dram.channels = 1;
    machine.cache.dram.channel_megabytes_per_second = 2_000;
    let bytes_a_cycle = 2_000.0 / f64::from(machine.clock.get());
    let lines = 1 << 18;
    // The second round writes the last zeroed lines back.
    let loops = (0..3).flat_map(|_| 0..lines);
    let loops = loops.map(|line| (INDEPENDENT, vec![access(line, false, 0)]));
    let report = run(machine, 2 * 3 * lines, loops);
    let read = counters(&report).dram.reads as f64 * 64.0;
    let share = read / cycles(&report) / bytes_a_cycle;
    println!(
        "{:?} {:?} {:?}",
        report.time,
        report.cores[0].window,
        counters(&report)
    );
    assert!((0.9..=1.01).contains(&share), "{share} of the bandwidth");
}

#[test]
fn do_dependent_multiplications_take_their_latency() {
    let machine = machine(false);
    let multiply = f64::from(machine.core.latency_cycles.multiply);
    let report = run(machine, 6000, (0..5000).map(|_| (MULTIPLY, Vec::new())));
    let each = cycles(&report) / (report.executed.instructions as f64 / 6.0) / 4.0;
    assert!(
        (each / multiply - 1.0).abs() < 0.01,
        "{each} for {multiply}"
    );
}

#[test]
fn does_a_copy_in_the_first_level_store_once_a_cycle() {
    let report = run(
        machine(false),
        4000,
        (0..20_000).map(|step| {
            let line = step % 64;
            (
                COPY,
                vec![access(line, false, 0), access(64 + line, true, 1)],
            )
        }),
    );
    let each = cycles(&report) / report.executed.stores as f64;
    assert!((each - 1.0).abs() < 0.02, "{each} cycles a store");
}

#[test]
fn is_a_branch_that_goes_at_random_mispredicted_half_of_the_time() {
    let pattern = |random: bool| {
        let mut state = 0x1234_5678_9abc_def1_u64;
        let loops = (0..40_000_u64).flat_map(move |step| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let falls_through = if random {
                state >> 40 & 1 == 1
            } else {
                step % 3 == 0
            };
            let behind = falls_through.then_some((BEHIND, Vec::new()));
            [(BRANCH, Vec::new())].into_iter().chain(behind)
        });
        run(machine(false), 30_000, loops)
    };
    let rate = |report: &Report| {
        let window = &report.cores[0].window;
        window.mispredictions as f64 / window.branches as f64
    };
    let (regular, random) = (rate(&pattern(false)), rate(&pattern(true)));
    assert!(regular < 0.01, "{regular}");
    assert!((0.45..0.55).contains(&random), "{random}");
}
