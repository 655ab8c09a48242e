//! Do faults in mappings of files map what Linux maps around them?

use crate::common::NoCode;
use contigua_machine::Engine;
use contigua_machine::config::{Detail, RunConfig};
use contigua_program::sources::Batch;
use contigua_program::wire::{Access, Event, ProcessId, ThreadId};
use contigua_units::VirtAddr;
use proptest::prelude::*;

const LINUX_4K: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");

const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;
const MMAP: u16 = 9;
const PRIVATE: u64 = 2;
const SHARED: u64 = 1;

/// A server whose process maps `pages` of a file, from page `first` after [`BASE`] on.
fn server(settings: &str, first: u64, pages: u64, flags: u64) -> Engine {
    let design = crate::common::design(&format!("{LINUX_4K}\n{settings}"));
    let config = RunConfig {
        detail: Detail::Additive,
        ..crate::common::config(design, crate::common::machine(64 << 20))
    };
    let mut engine = crate::common::engine(config);
    let process = ProcessId(0);
    words(&mut engine, Event::ThreadStart { process }.encode().words());
    let arguments = [0, pages * PAGE, 3, flags, 3, 0];
    let map = crate::common::syscall(MMAP, arguments, (BASE + first * PAGE).cast_signed() as u64);
    words(&mut engine, map.encode().words());
    engine
}

fn words(engine: &mut Engine, words: &[u64]) {
    let batch = Batch {
        thread: ThreadId(0),
        words,
        code: &NoCode,
    };
    engine.consume(batch).unwrap();
}

/// Faults that an access to a page takes, and the kernel's cycles for it.
fn touch(engine: &mut Engine, page: u64, store: bool) -> (u64, u64) {
    let access = Access {
        address: VirtAddr::new(BASE + page * PAGE),
        size_log2: 3,
        store,
        instruction: 0,
    };
    let taken = |engine: &Engine| {
        let report = engine.report();
        let kernel = &report.kernel;
        (
            kernel.faults_file + kernel.faults_copy_on_write + kernel.faults_spurious,
            report.time.unwrap().breakdown.kernel.get(),
        )
    };
    let before = taken(engine);
    words(engine, &[access.encode()]);
    engine.validate().unwrap();
    let after = taken(engine);
    (after.0 - before.0, after.1 - before.1)
}

/// Faults of reading every page once, in order.
fn faults_of_reading(settings: &str, first: u64, pages: u64) -> u64 {
    let mut engine = server(settings, first, pages, PRIVATE);
    let all = first..first + pages;
    all.map(|page| touch(&mut engine, page, false).0).sum()
}

#[test]
fn a_file_that_is_read_takes_a_fault_for_16_pages() {
    assert_eq!(faults_of_reading("", 0, 64), 4);
    // The first window begins with the mapping.
    assert_eq!(faults_of_reading("", 8, 16), 1);
    assert_eq!(faults_of_reading("", 8, 17), 2);
}

#[test]
fn fault_around_bytes_is_a_setting() {
    for (setting, faults) in [
        ("4KiB", 64),
        ("16KiB", 16),
        ("24KiB", 16),
        ("1MiB", 1),
        ("1B", 64),
    ] {
        let settings = format!("[memory]\nfault_around = \"{setting}\"\n");
        assert_eq!(faults_of_reading(&settings, 0, 64), faults, "{setting}");
    }
}

#[test]
fn a_window_ends_with_its_page_table() {
    let mut engine = server("", 505, 32, PRIVATE);
    // The mapping begins at 505: the window of 16 would reach into the next page table.
    assert_eq!(touch(&mut engine, 506, false).0, 1);
    assert_eq!(touch(&mut engine, 505, false).0, 0);
    assert_eq!(touch(&mut engine, 511, false).0, 0);
    assert_eq!(touch(&mut engine, 512, false).0, 1);
}

#[test]
fn a_write_maps_one_page() {
    let mut engine = server("", 0, 16, PRIVATE);
    assert_eq!(touch(&mut engine, 3, true).0, 1);
    assert_eq!(touch(&mut engine, 4, false).0, 1);
    // What was copied stays a copy, and the others are copied when they are written.
    assert_eq!(touch(&mut engine, 3, true).0, 0);
    assert_eq!(touch(&mut engine, 5, true).0, 1);
    let mut engine = server("", 0, 16, SHARED);
    assert_eq!(touch(&mut engine, 3, true).0, 1);
    assert_eq!(touch(&mut engine, 4, true).0, 1);
}

#[test]
fn pages_around_cost_less_than_faults() {
    let [alone, around] = ["4KiB", "64KiB"].map(|around| {
        let settings = format!("[memory]\nfault_around = \"{around}\"\n");
        touch(&mut server(&settings, 0, 64, PRIVATE), 0, false).1
    });
    let costs = crate::common::machine(64 << 20).kernel;
    assert_eq!(around - alone, 15 * costs.fork_page_cycles.get());
}

proptest! {
    /// Against Linux's arithmetic, in page numbers of the page table.
    #[test]
    fn windows_are_those_of_linux(
        first in 0u64..600,
        pages in 1u64..600,
        at in 0u64..600,
        around_log2 in 0u32..10,
    ) {
        let page = first + at % pages;
        let around = 1u64 << around_log2;
        let settings = format!("[memory]\nfault_around = \"{}KiB\"\n", 4 * around);
        let mut engine = server(&settings, first, pages, PRIVATE);
        prop_assert_eq!(touch(&mut engine, page, false).0, 1);
        // `do_fault_around`.
        let pte = page % 512;
        let from = (pte / around * around).max(pte - pte.min(page - first));
        let to = (from + around).min(512).min(pte + pages - (page - first));
        let mapped = engine.report().memory.resident_4k.get() / PAGE;
        prop_assert_eq!(mapped, to - from);
        let edges = [page - pte + from, page - pte + to - 1];
        for edge in edges {
            prop_assert_eq!(touch(&mut engine, edge, false).0, 0);
        }
    }
}
