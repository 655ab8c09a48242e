//! Do reads and writes copy: through the program's pages, the TLBs and the caches?

use crate::common::NoCode;
use contigua_machine::config::{Detail, RunConfig};
use contigua_machine::{Engine, Report};
use contigua_program::sources::Batch;
use contigua_program::wire::{Event, ProcessId, ThreadId};
use contigua_units::{VirtAddr, VirtRange};

const LINUX_4K: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");
const CONTIGUITAS: &str =
    include_str!("../../../python/contigua/data/designs/contiguitas-thp.toml");
const CONTIGUITAS_4K: &str =
    "description = \"\"\n[translation.thp]\nenabled = \"never\"\n[placement.contiguitas]\n";
const LINUX_THP: &str = include_str!("../../../python/contigua/data/designs/linux-thp.toml");
const LINUX_MADVISE: &str =
    include_str!("../../../python/contigua/data/designs/linux-thp-madvise.toml");
const DIRECT: &str = include_str!("../../../python/contigua/data/designs/direct-segment.toml");

const BUFFER: u64 = 0x4000_0000;
const BYTES: u64 = 64 << 10;
const READ: u16 = 0;
const WRITE: u16 = 1;
const READV: u16 = 19;
const PREADV: u16 = 295;
const RECVMMSG: u16 = 299;
const VMSPLICE: u16 = 278;
const MUNMAP: u16 = 11;
const OPEN: u16 = 2;
/// `O_RDWR | O_DIRECT`.
const DIRECT_IO: u64 = 0o40002;

/// A server whose process has a megabyte, none of which it has touched.
fn server(design: &str, detail: Detail, skip: u64) -> Engine {
    started(RunConfig {
        detail,
        skip,
        ..crate::common::config(
            crate::common::design(design),
            crate::common::machine(256 << 20),
        )
    })
}

fn started(config: RunConfig) -> Engine {
    let mut engine = crate::common::engine(config);
    let process = ProcessId(0);
    consume(&mut engine, &Event::ThreadStart { process });
    call(&mut engine, 9, [0, 1 << 20, 3, 0x22, 0, 0], BUFFER);
    engine
}

fn consume(engine: &mut Engine, event: &Event) {
    let words = event.encode();
    let batch = Batch {
        thread: ThreadId(0),
        words: words.words(),
        code: &NoCode,
    };
    engine.consume(batch).unwrap();
}

/// The report after a call.
fn call(engine: &mut Engine, number: u16, arguments: [u64; 6], result: u64) -> Report {
    consume(engine, &crate::common::syscall(number, arguments, result));
    engine.validate().unwrap();
    engine.report()
}

fn read(engine: &mut Engine) -> Report {
    call(engine, READ, [3, BUFFER, BYTES, 0, 0, 0], BYTES)
}

fn kernel(report: &Report) -> u64 {
    report.time.as_ref().unwrap().breakdown.kernel.get()
}

#[test]
fn a_read_maps_its_buffer_whatever_is_simulated() {
    for design in [LINUX_4K, DIRECT] {
        for detail in [Detail::Translation, Detail::Additive, Detail::Full] {
            for skip in [0, 1000] {
                let mut engine = server(design, detail, skip);
                let before = engine.report().kernel.faults_anonymous_4k;
                let report = read(&mut engine);
                let faults = report.kernel.faults_anonymous_4k - before;
                // A segment covers the buffer from the first fault on.
                let expected = if design == DIRECT { 0..=1 } else { 16..=16 };
                assert!(expected.contains(&faults), "{detail:?} {skip}: {faults}");
            }
        }
    }
}

#[test]
fn a_transfer_costs_by_its_size() {
    let mut engine = server(LINUX_4K, Detail::Full, 0);
    read(&mut engine);
    let before = kernel(&engine.report());
    let long = kernel(&read(&mut engine)) - before;
    let page = call(&mut engine, READ, [3, BUFFER, 4096, 0, 0, 0], 4096);
    let page = kernel(&page) - before - long;
    let none = call(&mut engine, READ, [3, BUFFER, 4096, 0, 0, 0], 0);
    let none = kernel(&none) - before - long - page;
    let ratio = (long - none) as f64 / (page - none) as f64;
    assert!((14.0..18.0).contains(&ratio), "{long} {page} {none}");
    let copy = crate::common::machine(64 << 20).kernel.copy_4k_cycles.get();
    assert!(page - none >= copy, "{page} {none}");
}

#[test]
fn a_buffer_goes_through_caches_and_tlbs() {
    let mut engine = server(LINUX_4K, Detail::Full, 0);
    let first = read(&mut engine);
    let second = read(&mut engine);
    let stores = |report: &Report| {
        let data = report.cache.as_ref().unwrap().data;
        data.l1 + data.l2 + data.llc + data.memory
    };
    assert!(stores(&first) >= BYTES / 64);
    assert!(stores(&second) >= stores(&first) + BYTES / 64);
    let written = call(&mut engine, WRITE, [4, BUFFER, BYTES, 0, 0, 0], BYTES);
    assert_eq!(
        written.tlb.load_misses.stlb_hit, 0,
        "the L1 TLB has all of 16 pages"
    );
    assert!(written.tlb.data.lookups > second.tlb.data.lookups);
}

#[test]
fn a_vector_that_is_not_told_costs_its_bytes_only() {
    let mut engine = server(LINUX_4K, Detail::Full, 0);
    let before = kernel(&engine.report());
    let report = call(&mut engine, READV, [3, BUFFER, 2, 0, 0, 0], BYTES);
    assert_eq!(report.kernel.faults_anonymous_4k, 0);
    let copy = crate::common::machine(64 << 20).kernel.copy_4k_cycles.get();
    assert!(kernel(&report) - before >= BYTES / 4096 * copy);
}

/// Tells the elements of the next call's vector: address and length of each.
fn pieces(engine: &mut Engine, pieces: &[(u64, u64)]) {
    for &(start, bytes) in pieces {
        let range = VirtRange::with_length(VirtAddr::new(start), bytes);
        consume(engine, &Event::Piece { range });
    }
}

#[test]
fn a_vector_is_moved_as_its_elements_are() {
    let half = BYTES / 2;
    let whole = {
        let mut engine = server(LINUX_4K, Detail::Full, 0);
        read(&mut engine)
    };
    for (number, result) in [(READV, BYTES), (PREADV, BYTES), (RECVMMSG, 2)] {
        let mut engine = server(LINUX_4K, Detail::Full, 0);
        pieces(&mut engine, &[(BUFFER, half), (BUFFER + half, half)]);
        let report = call(&mut engine, number, [3, BUFFER, 2, 0, 0, 0], result);
        assert_eq!(report.kernel.faults_anonymous_4k, 16, "{number}");
        assert_eq!(report.syscalls.bytes_received, BYTES, "{number}");
        assert_eq!(kernel(&report), kernel(&whole), "{number}");
        // They are this call's alone.
        let faults = call(&mut engine, READV, [3, BUFFER, 2, 0, 0, 0], BYTES);
        assert_eq!(faults.kernel.faults_anonymous_4k, 16, "{number}");
    }
}

#[test]
fn elements_count_up_to_what_was_moved() {
    let mut engine = server(LINUX_4K, Detail::Full, 0);
    pieces(&mut engine, &[(BUFFER, 8192), (BUFFER + (1 << 16), 8192)]);
    let report = call(&mut engine, READV, [3, BUFFER, 2, 0, 0, 0], 12288);
    assert_eq!(report.kernel.faults_anonymous_4k, 3);
}

#[test]
fn direct_io_pins_what_a_vector_names() {
    for (design, moved) in [(LINUX_4K, 0), (CONTIGUITAS, 16)] {
        let mut engine = server(design, Detail::Full, 0);
        call(&mut engine, OPEN, [0, DIRECT_IO, 0, 0, 0, 0], 3);
        pieces(&mut engine, &[(BUFFER, 16384), (BUFFER + 65536, 49152)]);
        let report = call(&mut engine, PREADV, [3, BUFFER, 2, 0, 0, 0], BYTES);
        assert_eq!(report.frames.pins, 16);
        assert_eq!(report.frames.pin_migrations, moved);
        assert_eq!(report.devices.unwrap().bytes_received, BYTES);
    }
}

/// A server whose process has touched its megabyte.
struct Pipes {
    engine: Engine,
    unmovable: u64,
}

impl Pipes {
    fn new(design: &str) -> Self {
        let mut engine = server(design, Detail::Full, 0);
        let report = call(&mut engine, READ, [3, BUFFER, 1 << 20, 0, 0, 0], 1 << 20);
        let unmovable = report.contiguity_after.unmovable_frames;
        Self { engine, unmovable }
    }

    /// Puts pages into a pipe.
    fn lend(&mut self, first: u64, pages: u64) -> Report {
        let bytes = 4096 * pages;
        pieces(&mut self.engine, &[(BUFFER + 4096 * first, bytes)]);
        call(&mut self.engine, VMSPLICE, [4, BUFFER, 1, 0, 0, 0], bytes)
    }

    fn read(&mut self, bytes: u64) -> Report {
        let to = BUFFER + (1 << 19);
        call(&mut self.engine, READ, [5, to, bytes, 0, 0, 0], bytes)
    }

    /// Pages that cannot move since pipes hold them.
    fn held(&self) -> u64 {
        let report = self.engine.report();
        report.contiguity_after.unmovable_frames - self.unmovable
    }
}

#[test]
fn pages_in_a_pipe_are_pinned_until_they_are_read() {
    for (design, moved) in [(LINUX_4K, 0), (CONTIGUITAS_4K, 4)] {
        let mut pipes = Pipes::new(design);
        let lent = pipes.lend(0, 4);
        assert_eq!((lent.frames.pins, lent.frames.pin_migrations), (4, moved));
        assert_eq!((lent.kernel.pages_moved, pipes.held()), (moved, 4));
        // A page leaves when all of it was read, and moves back.
        let part = pipes.read(6000);
        let back = moved.min(1);
        assert_eq!((part.kernel.pages_moved, pipes.held()), (moved + back, 3));
        let all = pipes.read(10384);
        assert_eq!((all.kernel.pages_moved, pipes.held()), (2 * moved, 0));
    }
}

#[test]
fn a_pipe_has_room_for_16_pages() {
    let mut pipes = Pipes::new(LINUX_4K);
    let pins = (0..5).map(|round| pipes.lend(4 * round, 4).frames.pins);
    assert_eq!(pins.last(), Some(20));
    assert_eq!(pipes.held(), 16);
}

#[test]
fn a_page_that_lies_in_a_pipe_twice_is_let_go_once() {
    let mut pipes = Pipes::new(LINUX_4K);
    pipes.lend(0, 1);
    pipes.lend(0, 1);
    for left in [1, 0] {
        pipes.read(4096);
        assert_eq!(pipes.held(), left);
    }
}

#[test]
fn pages_in_a_pipe_end_with_their_mapping_or_their_program() {
    for design in [LINUX_4K, CONTIGUITAS_4K] {
        let mut pipes = Pipes::new(design);
        pipes.lend(0, 4);
        call(&mut pipes.engine, MUNMAP, [BUFFER, 8192, 0, 0, 0, 0], 0);
        assert_eq!(pipes.held(), 2);
        pipes.read(8192);
        assert_eq!(pipes.held(), 2, "those of no page any more came first");
        let process = ProcessId(0);
        consume(&mut pipes.engine, &Event::ProcessStart { process });
        pipes.engine.validate().unwrap();
        let left = pipes.engine.report().contiguity_after.unmovable_frames;
        assert!(
            left <= pipes.unmovable,
            "{design}: {left} of {}",
            pipes.unmovable
        );
    }
}

#[test]
fn a_huge_page_that_is_split_in_a_pipe_is_let_go_whole() {
    let mut pipes = Pipes::new(LINUX_THP);
    let huge = BUFFER + (1 << 21);
    call(&mut pipes.engine, 9, [0, 1 << 21, 3, 0x22, 0, 0], huge);
    pieces(&mut pipes.engine, &[(huge, 8192)]);
    let touched = call(&mut pipes.engine, READV, [3, 0, 1, 0, 0, 0], 8192);
    assert_eq!(touched.kernel.faults_anonymous_2m, 1);
    let lent = pipes.lend((huge - BUFFER) / 4096, 1);
    assert_eq!((lent.frames.pins, pipes.held()), (1, 512));
    call(
        &mut pipes.engine,
        MUNMAP,
        [huge + (1 << 20), 1 << 20, 0, 0, 0, 0],
        0,
    );
    let read = pipes.read(4096);
    assert_eq!(read.kernel.huge_page_splits, 1);
    // The table that maps the small pages.
    assert_eq!(pipes.held(), 1);
}

#[test]
fn a_page_in_a_pipe_is_not_collapsed() {
    const COLLAPSE: u64 = 25;
    let mut pipes = Pipes::new(LINUX_MADVISE);
    let huge = BUFFER + (1 << 21);
    call(&mut pipes.engine, 9, [0, 1 << 21, 3, 0x22, 0, 0], huge);
    pieces(&mut pipes.engine, &[(huge, 8192)]);
    call(&mut pipes.engine, READV, [3, 0, 1, 0, 0, 0], 8192);
    pipes.lend((huge - BUFFER) / 4096, 1);
    for collapsed in [0, 1] {
        let report = call(&mut pipes.engine, 28, [huge, 1 << 21, COLLAPSE, 0, 0, 0], 0);
        assert_eq!(report.advice.collapsed, collapsed);
        pipes.read(4096);
    }
}

/// Pages of direct reads and writes of 64 KB: how many were pinned, and moved for it.
fn transfer_directly(design: &str, detail: Detail) -> Report {
    direct_transfers(server(design, detail, 0))
}

fn direct_transfers(mut engine: Engine) -> Report {
    call(&mut engine, OPEN, [0, DIRECT_IO, 0, 0, 0, 0], 3);
    read(&mut engine);
    call(&mut engine, WRITE, [3, BUFFER, BYTES, 0, 0, 0], BYTES)
}

#[test]
fn direct_io_pins_the_programs_pages_and_lets_them_go() {
    for (design, moved) in [(LINUX_4K, 0), (CONTIGUITAS, 32)] {
        for detail in [Detail::Translation, Detail::Full] {
            let report = transfer_directly(design, detail);
            assert_eq!(report.frames.pins, 32, "{detail:?}");
            assert_eq!(report.frames.pin_migrations, moved, "{detail:?}");
            // Each moves to the unmovable region, and back when the device has let it go.
            assert_eq!(report.kernel.pages_moved, 2 * moved, "{detail:?}");
            // Devices are simulated with caches only.
            if let Some(devices) = report.devices {
                assert_eq!((devices.bytes_received, devices.bytes_sent), (BYTES, BYTES));
            }
            let contiguity = report.contiguity_after;
            let before = report.contiguity_before;
            assert!(contiguity.movable_frames >= before.movable_frames + 16);
        }
    }
    let buffered = {
        let mut engine = server(LINUX_4K, Detail::Full, 0);
        call(&mut engine, OPEN, [0, 2, 0, 0, 0, 0], 3);
        read(&mut engine)
    };
    assert_eq!(buffered.frames.pins, 0);
}

#[test]
fn direct_io_goes_from_the_device_to_the_pages() {
    let report = transfer_directly(LINUX_4K, Detail::Full);
    let coherence = report.cache.unwrap().coherence;
    let devices = report.devices.unwrap();
    assert_eq!(coherence.device_writes, BYTES / 64);
    assert_eq!(coherence.device_reads, BYTES / 64 + devices.iommu_reads);
    // 32 addresses that were never used before: four tables for the first, one for the others.
    assert_eq!((devices.iotlb_misses, devices.iommu_reads), (32, 35));
    assert_eq!(devices.queued_invalidations, 0);
}

#[test]
fn a_strict_iommu_invalidates_after_each_transfer_and_processors_wait() {
    let run = |strict| {
        let mut machine = crate::common::machine(256 << 20);
        machine.iommu.strict = strict;
        let config = crate::common::config(crate::common::design(LINUX_4K), machine);
        direct_transfers(started(RunConfig {
            detail: Detail::Full,
            ..config
        }))
    };
    let (lazy, strict) = (run(false), run(true));
    let wait = crate::common::machine(64 << 20).iommu.invalidation_cycles;
    let devices = strict.devices.unwrap();
    assert_eq!(devices.queued_invalidations, 2);
    assert_eq!(devices.invalidation_wait_cycles.get(), 2 * wait.get());
    assert_eq!(devices.iotlb_invalidations, 32);
    assert!(kernel(&strict) >= kernel(&lazy) + 2 * wait.get());
}
