//! Is shared memory one set of frames, whoever touches it first, and on the pages that Linux gives it?

use crate::common::NoCode;
use contigua_machine::config::{Detail, RunConfig};
use contigua_machine::{Engine, Report};
use contigua_program::sources::Batch;
use contigua_program::syscall::{MemoryFile, MemoryFileKind};
use contigua_program::wire::{Access, Event, ProcessId, ThreadId};
use contigua_units::{Bytes, VirtAddr};

const LINUX_4K: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");
const LINUX_THP: &str = include_str!("../../../python/contigua/data/designs/linux-thp.toml");
const EVERYWHERE: &str =
    "description = \"\"\n[translation.thp]\nenabled = \"never\"\nshmem_enabled = \"always\"\n";

const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;
const MB: u64 = 1 << 20;
const BYTES: u64 = 8 * MB;

const MMAP: u16 = 9;
const MUNMAP: u16 = 11;
const SHMGET: u16 = 29;
const SHMAT: u16 = 30;
const SHMDT: u16 = 67;
const SHARED: u64 = 1;
const PRIVATE: u64 = 2;
const ANONYMOUS: u64 = 0x20;
const HUGETLB: u64 = 0x4_0000;
const SHM_HUGETLB: u64 = 0o4000;

/// Processes with a thread each, of the same number.
struct Processes(Engine);

impl Processes {
    fn new(design: &str) -> Self {
        let config = RunConfig {
            detail: Detail::Additive,
            ..crate::common::config(
                crate::common::design(design),
                crate::common::machine(64 << 20),
            )
        };
        Self(crate::common::engine(config))
    }

    fn run(&mut self, process: u32, words: &[u64]) {
        let batch = Batch {
            thread: ThreadId(process),
            words,
            code: &NoCode,
        };
        self.0.consume(batch).unwrap();
        self.0.validate().unwrap();
    }

    fn call(&mut self, process: u32, number: u16, arguments: [u64; 6], result: u64) {
        let event = crate::common::syscall(number, arguments, result);
        self.run(process, event.encode().words());
    }

    fn map(&mut self, process: u32, flags: u64, file: u64, at: u64) {
        self.call(process, MMAP, [0, BYTES, 3, flags, file, 0], at);
    }

    fn fork(&mut self, child: u32) {
        let process = ProcessId(child);
        self.run(0, Event::Fork { child: process }.encode().words());
        self.run(child, Event::ThreadStart { process }.encode().words());
    }

    fn end(&mut self, process: u32) {
        let end = Event::ProcessEnd {
            process: ProcessId(process),
        };
        self.run(process, end.encode().words());
    }

    fn touch(&mut self, process: u32, at: u64, store: bool) {
        let words: Vec<u64> = (0..BYTES / PAGE)
            .map(|page| {
                let access = Access {
                    address: VirtAddr::new(at + page * PAGE),
                    size_log2: 3,
                    store,
                    instruction: 0,
                };
                access.encode()
            })
            .collect();
        self.run(process, &words);
    }

    fn report(&self) -> Report {
        self.0.report()
    }

    /// Resident memory, in pages of 4 KB and of 2 MB, and that of shared objects.
    fn memory(&self) -> [u64; 3] {
        let memory = self.report().memory;
        [memory.resident_4k, memory.resident_2m, memory.shmem].map(Bytes::get)
    }
}

fn memfd() -> u64 {
    let kind = MemoryFileKind::Memfd;
    MemoryFile { name: 77, kind }.encode()
}

#[test]
fn processes_have_the_frame_of_whoever_touched_a_shared_page_first() {
    for design in [LINUX_4K, LINUX_THP] {
        let mut processes = Processes::new(design);
        processes.map(0, SHARED | ANONYMOUS, u64::MAX, BASE);
        (1..4).for_each(|child| processes.fork(child));
        processes.touch(2, BASE, true);
        let faults = processes.report().kernel.faults_anonymous_4k;
        assert_eq!(faults, BYTES / PAGE);
        for process in [0, 1, 3] {
            processes.touch(process, BASE, false);
        }
        assert_eq!(processes.memory(), [BYTES, 0, BYTES]);
        let kernel = processes.report().kernel;
        assert_eq!(kernel.faults_anonymous_4k, faults);
        // A read of what is there maps 16 pages.
        assert_eq!(kernel.faults_file, 3 * BYTES / PAGE / 16);
        (1..4).for_each(|child| processes.end(child));
        // The parent has it still.
        processes.touch(0, BASE, true);
        assert_eq!(processes.report().kernel.faults_anonymous_4k, faults);
    }
}

#[test]
fn mappings_of_a_file_in_memory_and_of_a_segment_have_the_same_frames() {
    for segment in [false, true] {
        let mut processes = Processes::new(LINUX_4K);
        processes.call(0, SHMGET, [0, BYTES, 0o1600, 0, 0, 0], 5);
        (1..3).for_each(|child| processes.fork(child));
        let place = |process| BASE + u64::from(process) * (BYTES + PAGE);
        for process in 0..3 {
            if segment {
                processes.call(process, SHMAT, [5, 0, 0, 0, 0, 0], place(process));
            } else {
                processes.map(process, SHARED, memfd(), place(process));
            }
            processes.touch(process, place(process), true);
        }
        assert_eq!(processes.memory(), [BYTES, 0, BYTES]);
        for process in 0..3 {
            if segment {
                processes.call(process, SHMDT, [place(process), 0, 0, 0, 0, 0], 0);
            } else {
                processes.call(process, MUNMAP, [place(process), BYTES, 0, 0, 0, 0], 0);
            }
        }
        // Its memory was freed, so that other memory does not come to it.
        processes.map(1, PRIVATE | ANONYMOUS, u64::MAX, BASE);
        processes.touch(1, BASE, true);
        assert_eq!(processes.memory()[0], BYTES);
    }
}

#[test]
fn shared_memory_has_huge_pages_where_a_mapping_is_aligned_with_it() {
    for (at, huge) in [(BASE, BYTES), (BASE + PAGE, 0)] {
        let mut processes = Processes::new(EVERYWHERE);
        let file = memfd();
        processes.map(0, SHARED, file, at);
        processes.fork(1);
        processes.touch(1, at, true);
        processes.touch(0, at, false);
        assert_eq!(processes.memory(), [BYTES - huge, huge, BYTES]);
        assert_eq!(processes.report().memory.shmem_huge.get(), huge);
        // The other process has its huge pages still.
        processes.call(0, MUNMAP, [at + PAGE, MB, 0, 0, 0, 0], 0);
        processes.touch(1, at, true);
        assert_eq!(processes.memory(), [BYTES - huge, huge, BYTES]);
        let splits = processes.report().kernel.splits_munmap;
        assert_eq!(splits, u64::from(huge > 0));
    }
    let mut processes = Processes::new(LINUX_THP);
    processes.map(0, SHARED | ANONYMOUS, u64::MAX, BASE);
    processes.touch(0, BASE, true);
    assert_eq!(processes.memory(), [BYTES, 0, BYTES]);
}

#[test]
fn hugetlb_has_huge_pages_under_every_design() {
    for design in [LINUX_4K, LINUX_THP] {
        for kind in 0..3 {
            let mut processes = Processes::new(design);
            match kind {
                0 => processes.map(0, SHARED | ANONYMOUS | HUGETLB, u64::MAX, BASE),
                1 => {
                    let kind = MemoryFileKind::HugeTlb;
                    let file = MemoryFile { name: 1, kind };
                    processes.map(0, SHARED, file.encode(), BASE);
                }
                _ => {
                    processes.call(0, SHMGET, [0, BYTES, SHM_HUGETLB | 0o1600, 0, 0, 0], 5);
                    processes.call(0, SHMAT, [5, 0, 0, 0, 0, 0], BASE);
                }
            }
            processes.fork(1);
            processes.touch(1, BASE, false);
            processes.touch(0, BASE, true);
            assert_eq!(processes.memory(), [0, BYTES, 0]);
            let report = processes.report();
            assert_eq!(report.memory.hugetlb_shared.get(), BYTES);
            assert_eq!(report.kernel.faults_anonymous_2m, BYTES / MB / 2);
            assert_eq!(report.kernel.faults_file, BYTES / MB / 2);
        }
        // There is no zero page for it.
        let mut processes = Processes::new(design);
        processes.map(0, PRIVATE | ANONYMOUS | HUGETLB, u64::MAX, BASE);
        processes.touch(0, BASE, false);
        assert_eq!(processes.memory(), [0, BYTES, 0]);
    }
}
