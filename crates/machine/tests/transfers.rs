//! Do reads and writes copy: through the program's pages, the TLBs and the caches?

use crate::common::NoCode;
use contigua_machine::config::{Detail, RunConfig};
use contigua_machine::{Engine, Report};
use contigua_program::sources::Batch;
use contigua_program::wire::{Event, ProcessId, ThreadId};

const LINUX_4K: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");
const CONTIGUITAS: &str =
    include_str!("../../../python/contigua/data/designs/contiguitas-thp.toml");
const DIRECT: &str = include_str!("../../../python/contigua/data/designs/direct-segment.toml");

const BUFFER: u64 = 0x4000_0000;
const BYTES: u64 = 64 << 10;
const READ: u16 = 0;
const WRITE: u16 = 1;
const READV: u16 = 19;
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
