//! Does the hierarchy agree, access by access, with a naive one made of plain lists?

use contigua_cache::coherent::{DramConfig, PrefetchConfig, SharedConfig, Topology};
use contigua_cache::{AccessKind, Hierarchy, HierarchyConfig, LevelConfig};
use contigua_units::{Bytes, Cycles, Megahertz, Nanoseconds, PhysAddr};
use proptest::prelude::*;

const KINDS: [AccessKind; 4] = [
    AccessKind::Fetch,
    AccessKind::Read,
    AccessKind::Write,
    AccessKind::Walk,
];

/// (line, dirty), most recently used last.
struct Level {
    sets: Vec<Vec<(u64, bool)>>,
    ways: usize,
}

impl Level {
    fn new(lines: usize, ways: usize) -> Self {
        Self {
            sets: vec![Vec::new(); lines / ways],
            ways,
        }
    }

    fn set(&mut self, line: u64) -> &mut Vec<(u64, bool)> {
        let index = line as usize % self.sets.len();
        &mut self.sets[index]
    }

    fn touch(&mut self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        let Some(at) = set.iter().position(|e| e.0 == line) else {
            return false;
        };
        let (_, dirty) = set.remove(at);
        set.push((line, dirty | write));
        true
    }

    fn fill(&mut self, line: u64, dirty: bool) -> Option<u64> {
        let ways = self.ways;
        let set = self.set(line);
        set.push((line, dirty));
        if set.len() <= ways {
            return None;
        }
        let (evicted, dirty) = set.remove(0);
        dirty.then_some(evicted)
    }

    fn take_back(&mut self, line: u64) -> Option<u64> {
        if self.touch(line, true) {
            None
        } else {
            self.fill(line, true)
        }
    }
}

struct Naive {
    l1i: Level,
    l1d: Level,
    l2: Level,
    llc: Level,
    memory_writes: u64,
}

impl Naive {
    /// Which level has the line: 1, 2, 3, or 4 for memory.
    fn access(&mut self, line: u64, kind: AccessKind) -> u64 {
        let write = kind == AccessKind::Write;
        let first = if kind == AccessKind::Fetch {
            &mut self.l1i
        } else {
            &mut self.l1d
        };
        if first.touch(line, write) {
            return 1;
        }
        let mut level = 2;
        if !self.l2.touch(line, false) {
            level = 3;
            if !self.llc.touch(line, false) {
                level = 4;
                self.memory_writes += u64::from(self.llc.fill(line, false).is_some());
            }
            if let Some(dirty) = self.l2.fill(line, false) {
                self.memory_writes += u64::from(self.llc.take_back(dirty).is_some());
            }
        }
        let first = if kind == AccessKind::Fetch {
            &mut self.l1i
        } else {
            &mut self.l1d
        };
        if let Some(dirty) = first.fill(line, write)
            && let Some(dirty) = self.l2.take_back(dirty)
        {
            self.memory_writes += u64::from(self.llc.take_back(dirty).is_some());
        }
        level
    }
}

fn level(lines: u64, ways: u32, latency: u64) -> LevelConfig {
    LevelConfig {
        size: Bytes::new(lines * 64),
        ways,
        latency_cycles: Cycles::new(latency),
    }
}

proptest! {
    #[test]
    fn every_access_is_served_by_the_level_that_plain_lists_say(
        accesses in proptest::collection::vec((0..200u64, 0..4usize), 1..2000)
    ) {
        let config = HierarchyConfig {
            l1i: level(8, 2, 4),
            l1d: level(16, 4, 5),
            l2: level(32, 4, 14),
            llc: level(72, 3, 40),
            memory_latency: Nanoseconds::new(100),
        shared: SharedConfig {
            slices: 1,
            inclusive: false,
            directory_entries: 64,
            directory_ways: 4,
            topology: Topology::Mesh,
            hop_cycles: Cycles::new(2),
            migration_entries: 16,
        },
        prefetch: PrefetchConfig {
            next_line: false,
            stride: false,
        },
        dram: DramConfig {
            channels: 1,
            banks: 16,
            row: Bytes::new(8192),
            activate: Nanoseconds::new(14),
            precharge: Nanoseconds::new(14),
            channel_megabytes_per_second: 20_000,
        },
        };
        let mut hierarchy = Hierarchy::new(&config, Megahertz::new(2000)).unwrap();
        let mut naive = Naive {
            l1i: Level::new(8, 2),
            l1d: Level::new(16, 4),
            l2: Level::new(32, 4),
            llc: Level::new(72, 3),
            memory_writes: 0,
        };
        for (line, kind) in accesses {
            let kind = KINDS[kind];
            let first = if kind == AccessKind::Fetch { 4 } else { 5 };
            let whole = match naive.access(line, kind) {
                1 => first,
                2 => 14,
                3 => 40,
                _ => 200,
            };
            let expected = if kind == AccessKind::Walk { whole } else { whole - first };
            let latency = hierarchy.access(PhysAddr::new(line * 64 + 7), kind);
            prop_assert_eq!(latency, Cycles::new(expected));
            prop_assert_eq!(hierarchy.counters().memory_writes, naive.memory_writes);
        }
        prop_assert_eq!(hierarchy.validate(), Ok(()));
        let counters = hierarchy.counters();
        let served = counters.data.memory + counters.fetches.memory + counters.walks.memory;
        prop_assert_eq!(served, counters.memory_reads);
    }
}
