//! Does translation agree, access by access, with plain lists and maps?

use std::collections::HashMap;

use contigua_cache::Geometry;
use contigua_paging::{HoleBitmaps, Leaf, PageTable, Segment, SpaceId};
use contigua_translation::schemes::base;
use contigua_translation::{
    Access, Answer, Hardware, L1Config, L2Config, Lookup, MemoryPort, Mmu, Request, Tables,
    TlbConfig, WalkCacheConfig,
};
use contigua_units::{Cycles, Frame, PageSize, PhysAddr, VirtAddr, VirtRange};
use proptest::prelude::*;

/// Remembers what the walker read.
#[derive(Default)]
struct Recorder(Vec<PhysAddr>);

impl MemoryPort for Recorder {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        self.0.push(address);
        Cycles::new(100)
    }
}

/// (space, page number, size) of each entry, most recently used last, set by set.
#[derive(Clone)]
struct NaiveArray {
    sets: Vec<Vec<(u16, u64, PageSize)>>,
    ways: usize,
}

impl NaiveArray {
    fn new(geometry: Geometry) -> Self {
        let sets = geometry.entries / geometry.ways;
        Self {
            sets: vec![Vec::new(); sets as usize],
            ways: geometry.ways as usize,
        }
    }

    fn hit(&mut self, space: u16, number: u64, size: PageSize) -> bool {
        let index = number as usize % self.sets.len();
        let set = &mut self.sets[index];
        let Some(at) = set.iter().position(|&e| e == (space, number, size)) else {
            return false;
        };
        let entry = set.remove(at);
        set.push(entry);
        true
    }

    fn enter(&mut self, space: u16, number: u64, size: PageSize) {
        let index = number as usize % self.sets.len();
        let ways = self.ways;
        let set = &mut self.sets[index];
        set.push((space, number, size));
        if set.len() > ways {
            set.remove(0);
        }
    }

    fn forget(&mut self, space: u16, range: VirtRange, span: impl Fn(PageSize) -> u64) {
        for set in &mut self.sets {
            set.retain(|&(s, number, size)| {
                let start = number * span(size);
                let end = start + span(size);
                s != space || end <= range.start.get() || start >= range.end.get()
            });
        }
    }
}

const L1_4K: Geometry = Geometry {
    entries: 8,
    ways: 2,
};
const L1_2M: Geometry = Geometry {
    entries: 3,
    ways: 3,
};
const L2: Geometry = Geometry {
    entries: 24,
    ways: 4,
};
const WALK: [Geometry; 3] = [
    Geometry {
        entries: 1,
        ways: 1,
    },
    Geometry {
        entries: 2,
        ways: 2,
    },
    Geometry {
        entries: 4,
        ways: 2,
    },
];
const L2_LATENCY: u64 = 7;
const WALK_START: u64 = 9;

struct Naive {
    l1_4k: NaiveArray,
    l1_2m: NaiveArray,
    l2: NaiveArray,
    walk: [NaiveArray; 3],
    /// The truth: page number of 4 KB by space.
    pages: HashMap<(u16, u64), (Leaf, u64)>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Hit,
    L2,
    Walk(usize),
    Fault(usize),
}

fn number(address: u64, size: PageSize) -> u64 {
    address >> size.shift()
}

impl Naive {
    fn access(&mut self, space: u16, address: u64) -> Outcome {
        for size in [PageSize::Size4K, PageSize::Size2M] {
            let array = if size == PageSize::Size4K {
                &mut self.l1_4k
            } else {
                &mut self.l1_2m
            };
            if array.hit(space, number(address, size), size) {
                return Outcome::Hit;
            }
        }
        for size in [PageSize::Size4K, PageSize::Size2M] {
            if self.l2.hit(space, number(address, size), size) {
                self.enter_l1(space, address, size);
                return Outcome::L2;
            }
        }
        let (leaf, depth) = match self.pages.get(&(space, address >> 12)) {
            Some((leaf, _)) => (
                Some(*leaf),
                if leaf.size == PageSize::Size4K { 4 } else { 3 },
            ),
            None => (None, self.fault_depth(space, address)),
        };
        let spans = [39, 30, 21];
        let mut skipped = 0;
        for level in (0..3).rev() {
            if self.walk[level].hit(space, address >> spans[level], PageSize::Size4K) {
                skipped = level + 1;
                break;
            }
        }
        for (level, span) in spans.into_iter().enumerate().take(depth - 1).skip(skipped) {
            let number = address >> span;
            if !self.walk[level].hit(space, number, PageSize::Size4K) {
                self.walk[level].enter(space, number, PageSize::Size4K);
            }
        }
        match leaf {
            Some(leaf) => {
                self.l2.enter(space, number(address, leaf.size), leaf.size);
                self.enter_l1(space, address, leaf.size);
                Outcome::Walk(depth - skipped)
            }
            None => Outcome::Fault(depth - skipped),
        }
    }

    /// References of a walk that finds nothing: down to the first missing entry.
    fn fault_depth(&self, space: u16, address: u64) -> usize {
        let below = |shift: u32| {
            self.pages.iter().any(|(&(s, page), (leaf, _))| {
                s == space
                    && page << 12 >> shift == address >> shift
                    && (shift > 21 || leaf.size == PageSize::Size4K)
            })
        };
        [39, 30, 21]
            .into_iter()
            .take_while(|&shift| below(shift))
            .count()
            + 1
    }

    fn enter_l1(&mut self, space: u16, address: u64, size: PageSize) {
        let array = if size == PageSize::Size4K {
            &mut self.l1_4k
        } else {
            &mut self.l1_2m
        };
        array.enter(space, number(address, size), size);
    }

    fn invalidate(&mut self, space: u16, range: VirtRange) {
        for array in [&mut self.l1_4k, &mut self.l1_2m, &mut self.l2] {
            array.forget(space, range, PageSize::bytes);
        }
        for (array, shift) in self.walk.iter_mut().zip([39, 30, 21]) {
            array.forget(space, range, |_| 1 << shift);
        }
    }
}

fn mmu() -> Mmu {
    let tlb = TlbConfig {
        l1d: L1Config {
            pages_4k: Some(L1_4K),
            pages_2m: Some(L1_2M),
            pages_1g: None,
        },
        l1i: L1Config {
            pages_4k: Some(L1_4K),
            pages_2m: None,
            pages_1g: None,
        },
        l2: vec![L2Config {
            entries: L2.entries,
            ways: L2.ways,
            latency_cycles: Cycles::new(L2_LATENCY),
            holds: vec![PageSize::Size4K, PageSize::Size2M],
        }],
        address_space_ids: true,
    };
    let walk_cache = WalkCacheConfig {
        pml5e: None,
        pml4e: Some(WALK[0]),
        pdpte: Some(WALK[1]),
        pde: Some(WALK[2]),
        start_cycles: Cycles::new(WALK_START),
    };
    let hardware = Hardware {
        tlb: &tlb,
        walk_cache: &walk_cache,
        nested: None,
    };
    Mmu::new(&hardware, &base::Config {}).unwrap()
}

/// A miss on a table without anything beside it.
fn miss(mmu: &mut Mmu, request: &Request, table: &mut PageTable, port: &mut Recorder) -> Answer {
    let holes = HoleBitmaps::default();
    let mut tables = Tables {
        table,
        holes: &holes,
        segment: Segment::NONE,
        rest_segs: None,
        host: None,
    };
    mmu.miss(request, &mut tables, port)
}

#[derive(Clone, Debug)]
enum Step {
    Access(usize, u64),
    Map(usize, u64, bool),
    Unmap(usize, u64),
}

/// Addresses that share upper levels in many ways: 16 pages in each of 3 x 2 x 2 areas.
fn address() -> impl Strategy<Value = u64> {
    (0..2u64, 0..2u64, 0..4u64, 0..16u64)
        .prop_map(|(top, gig, meg, page)| top << 39 | gig << 30 | meg << 21 | page << 12 | 0x123)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..2usize, address()).prop_map(|(s, a)| Step::Access(s, a)),
        3 => (0..2usize, address(), any::<bool>()).prop_map(|(s, a, h)| Step::Map(s, a, h)),
        1 => (0..2usize, address()).prop_map(|(s, a)| Step::Unmap(s, a)),
    ]
}

proptest! {
    #[test]
    fn every_access_agrees_with_plain_lists(steps in proptest::collection::vec(step(), 1..600)) {
        let mut mmu = mmu();
        let mut tables = [PageTable::new(Frame::new(1)), PageTable::new(Frame::new(2))];
        let mut frames = 512_u32;
        let mut naive = Naive {
            l1_4k: NaiveArray::new(L1_4K),
            l1_2m: NaiveArray::new(L1_2M),
            l2: NaiveArray::new(L2),
            walk: WALK.map(NaiveArray::new),
            pages: HashMap::new(),
        };
        for step in steps {
            match step {
                Step::Map(space, address, huge) => {
                    let size = if huge { PageSize::Size2M } else { PageSize::Size4K };
                    let at = VirtAddr::new(address);
                    if !tables[space].is_vacant(at, size) {
                        continue;
                    }
                    frames += 1024;
                    let frame = Frame::new(frames & !511);
                    let leaf = Leaf { dirty: true, ..Leaf::new(frame, size, true) };
                    let mut node = frames;
                    let start = at.align_down(size.bytes());
                    tables[space].map(start, leaf, |_| { node += 1; Some(Frame::new(node | 1 << 20)) })
                        .unwrap();
                    for i in 0..u64::from(size.frames()) {
                        let page = (start.get() >> 12) + i;
                        naive.pages.insert((space as u16, page), (leaf, start.get()));
                    }
                }
                Step::Unmap(space, address) => {
                    let at = VirtAddr::new(address);
                    let Some(leaf) = tables[space].unmap(at, |_| {}) else { continue };
                    let range = VirtRange::page_around(at, leaf.size);
                    tables[space].prune(range, |_| {});
                    mmu.invalidate(SpaceId(space as u16), range);
                    naive.invalidate(space as u16, range);
                    naive.pages.retain(|&(s, page), _| {
                        s != space as u16 || !range.contains(VirtAddr::new(page << 12))
                    });
                }
                Step::Access(space, address) => {
                    let at = VirtAddr::new(address);
                    let id = SpaceId(space as u16);
                    let expected = naive.access(space as u16, address);
                    let truth = naive.pages.get(&(space as u16, address >> 12))
                        .map(|(leaf, _)| leaf.physical(at));
                    let (outcome, physical) = match mmu.read(at, id) {
                        Lookup::Hit(physical) => (Outcome::Hit, Some(physical)),
                        Lookup::Miss => {
                            let request = Request::new(at, id, Access::Read);
                            let mut port = Recorder::default();
                            let answer = miss(&mut mmu, &request, &mut tables[space], &mut port);
                            let references = port.0.len();
                            let start = if references == 0 { 0 } else { WALK_START };
                            let time = Cycles::new(L2_LATENCY + start + 100 * references as u64);
                            match answer {
                                Answer::Translated { physical, latency, walked } => {
                                    prop_assert_eq!(latency, time);
                                    let outcome =
                                        if walked { Outcome::Walk(references) } else { Outcome::L2 };
                                    (outcome, Some(physical))
                                }
                                Answer::Fault { latency, .. } => {
                                    prop_assert_eq!(latency, time);
                                    (Outcome::Fault(references), None)
                                }
                            }
                        }
                    };
                    prop_assert_eq!(physical, truth);
                    prop_assert_eq!(outcome, expected);
                }
            }
        }
        let counters = mmu.translator_counters();
        let misses = mmu.counters().data.misses();
        let answered = counters.walks() - counters.walks_faulting
            + counters.l2_hits_4k + counters.l2_hits_2m;
        prop_assert_eq!(misses, answered);
    }
}

#[test]
fn a_store_to_a_read_only_page_faults_until_the_page_allows_it() {
    let mut mmu = mmu();
    let mut table = PageTable::new(Frame::new(1));
    let at = VirtAddr::new(0x5000);
    let leaf = Leaf::new(Frame::new(77), PageSize::Size4K, false);
    let mut node = 1;
    table
        .map(at, leaf, |_| {
            node += 1;
            Some(Frame::new(node))
        })
        .unwrap();
    let request = |access| Request::new(at, SpaceId(0), access);
    let mut port = Recorder::default();
    miss(&mut mmu, &request(Access::Read), &mut table, &mut port);
    assert!(matches!(mmu.read(at, SpaceId(0)), Lookup::Hit(_)));
    assert_eq!(mmu.write(at, SpaceId(0)), Lookup::Miss);
    let answer = miss(&mut mmu, &request(Access::Write), &mut table, &mut port);
    assert!(matches!(answer, Answer::Fault { .. }));
    table.update(at, |leaf| leaf.writable = true);
    let answer = miss(&mut mmu, &request(Access::Write), &mut table, &mut port);
    assert!(matches!(answer, Answer::Translated { .. }));
    assert!(matches!(mmu.write(at, SpaceId(0)), Lookup::Hit(_)));
}

#[test]
fn a_huge_page_enters_a_tlb_that_has_no_place_for_it_in_pieces() {
    let mut mmu = mmu();
    let mut table = PageTable::new(Frame::new(1));
    let leaf = Leaf::new(Frame::new(512), PageSize::Size2M, true);
    let mut node = 1;
    let at = VirtAddr::new(0x20_0000);
    table
        .map(at, leaf, |_| {
            node += 1;
            Some(Frame::new(node))
        })
        .unwrap();
    let mut port = Recorder::default();
    for (offset, expected) in [
        (0x1000, Lookup::Miss),
        (0x1008, hit(0x20_1008)),
        (0x2000, Lookup::Miss),
    ] {
        let address = at + offset;
        assert_eq!(mmu.fetch(address, SpaceId(0)), expected);
        if expected == Lookup::Miss {
            let request = Request::new(address, SpaceId(0), Access::Execute);
            miss(&mut mmu, &request, &mut table, &mut port);
        }
    }
    assert_eq!(port.0.len(), 3, "the second piece comes from the L2 TLB");
}

fn hit(physical: u64) -> Lookup {
    Lookup::Hit(PhysAddr::new(physical))
}

#[test]
fn a_walk_is_counted_at_the_level_where_it_began() {
    let mut mmu = mmu();
    let mut table = PageTable::new(Frame::new(1));
    let mut node = 1;
    let mut port = Recorder::default();
    // The first walk begins at the root; the others share a page table, a page directory and a
    // directory of directories with it.
    let pages = [0x5000, 0x7000, 0x20_5000, 0x4000_5000];
    let mut found = Vec::new();
    for (frame, page) in pages.into_iter().enumerate() {
        let address = VirtAddr::new(page);
        let leaf = Leaf::new(Frame::new(900 + frame as u32), PageSize::Size4K, true);
        table
            .map(address, leaf, |_| {
                node += 1;
                Some(Frame::new(node))
            })
            .unwrap();
        let request = Request::new(address, SpaceId(0), Access::Read);
        let before = port.0.len();
        miss(&mut mmu, &request, &mut table, &mut port);
        let counters = mmu.translator_counters();
        found.push((
            port.0.len() - before,
            counters.walk_cache_hits_pde,
            counters.walk_cache_hits_pdpte,
            counters.walk_cache_hits_pml4e,
        ));
    }
    assert_eq!(
        found,
        [(4, 0, 0, 0), (1, 1, 0, 0), (2, 1, 1, 0), (3, 1, 1, 1)]
    );
}
