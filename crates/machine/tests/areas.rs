//! Do processes get areas for their page tables when they should, and do hosts get back what they lent for them?

use crate::common::NoCode;

use contigua_machine::config::{Detail, RunConfig};
use contigua_machine::{Engine, KernelReport};
use contigua_program::sources::Batch;
use contigua_program::wire::{Access, Event, ProcessId, ThreadId};
use contigua_units::VirtAddr;

const NATIVE: &str = include_str!("../../../python/contigua/data/designs/dmt-4k.toml");
const GUEST: &str = include_str!("../../../python/contigua/data/designs/nested-pvdmt-4k.toml");

const BASE: u64 = 0x4000_0000;
const MB: u64 = 1 << 20;
const POPULATE: u64 = 0x8000;
const UNMAP: u16 = 11;

struct Server(Engine);

impl Server {
    fn new(design: &str) -> Self {
        let design = crate::common::design(design);
        let config = crate::common::config(design, crate::common::machine(64 * MB));
        Self(crate::common::engine(RunConfig {
            detail: Detail::Additive,
            ..config
        }))
    }

    fn consume(&mut self, words: &[u64]) {
        let batch = Batch {
            thread: ThreadId(0),
            words,
            code: &NoCode,
        };
        self.0.consume(batch).unwrap();
    }

    fn call(&mut self, number: u16, arguments: [u64; 6], result: u64) {
        let event = crate::common::syscall(number, arguments, result);
        self.consume(event.encode().words());
    }

    fn map(&mut self, bytes: u64, flags: u64) {
        self.call(9, [0, bytes, 3, 0x22 | flags, 0, 0], BASE);
    }

    fn touch(&mut self, offset: u64) {
        let access = Access {
            address: VirtAddr::new(BASE + offset),
            size_log2: 3,
            store: true,
            instruction: 0,
        };
        self.consume(&[access.encode()]);
    }

    fn kernel(&mut self) -> KernelReport {
        self.0.validate().unwrap();
        self.0.report().kernel
    }
}

#[test]
fn a_mapping_of_64_mb_gets_an_area_with_its_first_page() {
    let mut server = Server::new(NATIVE);
    server.map(64 * MB - 4096, 0);
    server.touch(0);
    assert_eq!(server.kernel().table_growths, 0);
    server.map(64 * MB, 0);
    server.touch(4096);
    server.touch(40 * MB);
    let kernel = server.kernel();
    assert_eq!((kernel.table_growths, kernel.table_growths_failed), (1, 0));
    assert_eq!(kernel.table_largest_block, 32 * 4096);
}

#[test]
fn pages_that_a_call_maps_get_an_area() {
    let mut server = Server::new(NATIVE);
    server.map(64 * MB, 0);
    // 16 of its 64 MB.
    server.call(9, [0, 16 * MB, 3, 0x22 | POPULATE, 0, 0], BASE);
    assert_eq!(server.kernel().table_growths, 1);
}

#[test]
fn a_child_has_an_area_of_its_own() {
    let mut server = Server::new(NATIVE);
    server.map(64 * MB, 0);
    server.touch(0);
    let fork = Event::Fork {
        child: ProcessId(1),
    };
    server.consume(fork.encode().words());
    assert_eq!(server.kernel().table_growths, 2);
    let end = Event::ProcessEnd {
        process: ProcessId(1),
    };
    server.consume(end.encode().words());
    server.kernel();
}

#[test]
fn hosts_get_back_what_they_lent() {
    let mut server = Server::new(GUEST);
    // The host has 2 GB, and areas of all turns take 3.
    for turn in 1..=200 {
        server.map(8 << 30, 0);
        server.touch(5 << 30);
        server.call(UNMAP, [BASE, 8 << 30, 0, 0, 0, 0], 0);
        if turn % 50 == 0 {
            let kernel = server.kernel();
            assert_eq!(kernel.table_growths_failed, 0, "after {turn} turns");
            assert_eq!(kernel.table_growths, turn);
        }
    }
}
