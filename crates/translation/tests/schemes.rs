//! Does every scheme translate as a plain table of 4 KB pages would, whatever the kernel does
//! meanwhile, on several cores, natively and in a virtual machine?

use crate::common::{BASE, Tested, buckets, grow, memory, schemes, small_tlb, take_rest_segs};
use contigua_paging::{
    AddressSpace, Effects, FaultKind, Fragmentation, HoleKind, HugeAdvice, Levels, MappingPolicy,
    Memory, Pattern, Room, Segment, SpaceId, TableShape, Vma, VmaKind,
};
use contigua_translation::{
    Access, Answer, Hardware, HostTables, Lookup, MemoryPort, Mmu, NestedConfig, Request, Tables,
};
use contigua_units::{Cycles, PAGE_BYTES, PhysAddr, VirtAddr, VirtRange};
use proptest::prelude::*;

/// Three huge pages' worth of addresses.
const PAGES: u64 = 3 * 512;
const CORES: usize = 3;

struct Free;

impl MemoryPort for Free {
    fn reference(&mut self, _: PhysAddr) -> Cycles {
        Cycles::new(1)
    }
}

/// A process's or a virtual machine's memory, and what the kernel there does.
struct Side {
    scheme: Tested,
    policy: Box<dyn MappingPolicy>,
    memory: Memory,
    shape: TableShape,
    is_host: bool,
}

impl Side {
    fn new(scheme: Tested, frames: usize, levels: Levels) -> Self {
        let mut memory = memory(frames);
        let shape = TableShape {
            levels,
            has_shadows: scheme.has_shadows(),
            hashing: scheme.hashing(),
            areas: scheme.areas(false),
            buckets: buckets(&*scheme, &memory),
        };
        take_rest_segs(&*scheme, &mut memory);
        if let Some(reserved) = scheme.reserved() {
            memory.reserve_huge(reserved.size, 3, &mut ());
        }
        Self {
            policy: scheme.policy(),
            scheme,
            memory,
            shape,
            is_host: false,
        }
    }

    fn space(&mut self, id: u16, scenario: Option<Fragmentation>) -> AddressSpace {
        let mut space = AddressSpace::with(SpaceId(id), self.shape, &mut self.memory).unwrap();
        grow(&mut space, &mut self.memory);
        space.set_fragmentation(scenario);
        if let Some(primary) = self.scheme.primary().filter(|_| !self.is_host) {
            space.reserve_primary(64 << 20, primary.eligible, 1);
            if primary.chunk.is_some() {
                space.take_chunk(4 << 20, &mut self.memory, &mut ());
            }
        }
        space
    }
}

struct Host {
    side: Side,
    space: AddressSpace,
}

struct Server {
    side: Side,
    spaces: Vec<AddressSpace>,
    host: Option<Host>,
    cores: Vec<(Mmu, Option<SpaceId>)>,
}

/// The composed segment that a core's registers hold.
fn registers(space: &AddressSpace, host: Option<&Host>) -> Segment {
    match host {
        None => space.segment(),
        Some(host) => space.segment().then(&host.space.segment()),
    }
}

/// A translation ahead says what the tables say, and is not counted.
fn ahead(mmu: &mut Mmu, address: VirtAddr, space: SpaceId, tables: &mut Tables<'_>) {
    let request = Request::new(address, space, Access::Read);
    let before = (mmu.counters(), mmu.translator_counters());
    let found = mmu.ahead(&request, tables, &mut Free);
    let expected = tables.resolve(address).map(|leaf| leaf.physical(address));
    assert!(
        found.is_none() || found == expected,
        "{address}: {found:?}, not {expected:?}"
    );
    assert_eq!((mmu.counters(), mmu.translator_counters()), before);
}

impl Server {
    fn new(case: &Case) -> Self {
        let levels = if case.five_levels {
            Levels::Five
        } else {
            Levels::Four
        };
        let mut side = Side::new(case.scheme.clone(), 16_384, levels);
        let nested = NestedConfig::default();
        let host = case.host.clone().map(|scheme| {
            let mut side = Side::new(scheme, 32_768, Levels::Four);
            side.is_host = true;
            let mut space = side.space(0, case.host_holes);
            let all = VirtRange::with_length(VirtAddr::new(0), 80 << 20);
            let mut effects = Effects::default();
            if side.scheme.primary().is_some() {
                // The guest's memory is the host's primary region.
                space.reserve_machine(all, 1);
                space.take_chunk(48 << 20, &mut side.memory, &mut ());
            } else {
                space
                    .map(all, Vma::ANONYMOUS, &mut side.memory, &mut effects)
                    .unwrap();
            }
            Host { side, space }
        });
        let mut tlb = small_tlb();
        tlb.address_space_ids = case.address_space_ids;
        let hardware = Hardware {
            tlb: &tlb,
            walk_cache: &NestedConfig::default().walk_cache,
            nested: host.as_ref().map(|_| &nested),
        };
        let cores = (0..CORES).map(|_| (Mmu::new(&hardware, &*case.scheme).unwrap(), None));
        let spaces = vec![side.space(0, case.holes)];
        Self {
            side,
            spaces,
            host,
            cores: cores.collect(),
        }
    }

    fn apply(&mut self, id: SpaceId, effects: &Effects) {
        for &range in &effects.invalidations {
            for (core, _) in &mut self.cores {
                core.invalidate(id, range);
            }
        }
        for &(chunk, hole) in &effects.shared_punches {
            for space in &mut self.spaces {
                space
                    .point_back(chunk, hole, &mut self.side.memory, &mut Effects::default())
                    .unwrap();
            }
        }
    }

    fn change(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut AddressSpace, &mut Memory, &mut Effects, &dyn MappingPolicy),
    ) {
        let mut effects = Effects::default();
        let space = &mut self.spaces[index];
        let id = space.id();
        grow(space, &mut self.side.memory);
        change(
            space,
            &mut self.side.memory,
            &mut effects,
            &*self.side.policy,
        );
        self.apply(id, &effects);
    }

    /// Moves a page into its restrictive segment, and one out where there is no room.
    fn restrict(&mut self, index: usize, page: VirtAddr) {
        let room = self.side.memory.room_for(self.spaces[index].id(), page);
        if let Room::Behind(other, victim) = room {
            self.change(usize::from(other.0), |s, m, e, _| {
                s.release_restricted(victim, m, e);
            });
        }
        if room != Room::None {
            self.change(index, |s, m, e, _| {
                s.restrict(page, m, e);
            });
        }
    }

    /// One access; the physical address must be the table's.
    fn access(&mut self, core: usize, index: usize, address: VirtAddr, access: Access) {
        let id = self.spaces[index].id();
        for _ in 0..24 {
            let space = &mut self.spaces[index];
            let place = space.place_of(address).of(address);
            let Some((_, vma)) = space.vma(place) else {
                return;
            };
            if access == Access::Write && !vma.writable {
                return;
            }
            let (mmu, running) = &mut self.cores[core];
            let same = running.replace(id) == Some(id);
            mmu.dispatch(registers(space, self.host.as_ref()), same);
            let lookup = match access {
                Access::Read => mmu.read(place, id),
                Access::Write => mmu.write(place, id),
                Access::Execute => mmu.fetch(place, id),
            };
            let segment = space.segment();
            let mut tables = Tables {
                segment,
                table: space.table_mut(),
                holes: &self.side.memory.holes,
                rest_segs: Some(&mut self.side.memory.rest_segs),
                host: self.host.as_mut().map(|host| {
                    let segment = host.space.segment();
                    HostTables {
                        table: host.space.table_mut(),
                        holes: &host.side.memory.holes,
                        segment,
                    }
                }),
            };
            ahead(mmu, place + PAGE_BYTES, id, &mut tables);
            let answer = match lookup {
                Lookup::Hit(physical) => Ok(physical),
                Lookup::Miss => {
                    // Few instructions access all pages.
                    let by = 1 + place.page().get() % 3;
                    let request = Request::new(place, id, access).by(by);
                    match mmu.miss(&request, &mut tables, &mut Free) {
                        Answer::Translated { physical, .. } => Ok(physical),
                        Answer::Fault { host, .. } => Err(host),
                    }
                }
            };
            let expected = tables.resolve(place);
            match answer {
                Ok(physical) => {
                    let leaf = expected.expect("what is translated is mapped");
                    assert_eq!(physical, leaf.physical(place), "{access:?} at {place}");
                    assert!(
                        leaf.writable || access != Access::Write,
                        "{place} is read-only"
                    );
                    return;
                }
                Err(Some(outer)) => {
                    let host = self.host.as_mut().expect("only a host faults there");
                    let at = VirtAddr::new(outer.get());
                    let mut effects = Effects::default();
                    host.space
                        .fault(
                            at,
                            true,
                            &*host.side.policy,
                            &mut host.side.memory,
                            &mut effects,
                        )
                        .unwrap();
                    if !effects.invalidations.is_empty() {
                        self.cores.iter_mut().for_each(|(core, _)| core.flush());
                    }
                }
                Err(None) => {
                    let mut effects = Effects::default();
                    let memory = &mut self.side.memory;
                    grow(space, memory);
                    let write = access == Access::Write;
                    if access == Access::Execute && segment.translate(place).is_some() {
                        space.expel(place, memory, &mut effects).unwrap();
                    } else {
                        let fault =
                            space.fault(place, write, &*self.side.policy, memory, &mut effects);
                        let fault = fault.unwrap();
                        // A fault that changes nothing would come back for ever.
                        assert!(expected.is_none() || write || fault.kind != FaultKind::Spurious);
                    }
                    self.apply(id, &effects);
                }
            }
        }
        panic!("{access:?} at {address} faults for ever");
    }

    fn check(&self) {
        for space in &self.spaces {
            assert_eq!(space.validate(&self.side.memory), Ok(()));
        }
        for segment in &self.side.memory.rest_segs.segments {
            assert_eq!(segment.validate(), Ok(()));
            for (space, page, frame) in segment.pages() {
                let leaf = self.spaces[usize::from(space.0)].table().leaf(page);
                let leaf = leaf.map(|leaf| (leaf.frame, leaf.size));
                assert_eq!(leaf, Some((frame, segment.size())), "the tag of {page}");
            }
        }
        if let Some(host) = &self.host {
            assert_eq!(host.space.validate(&host.side.memory), Ok(()));
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    scheme: Tested,
    host: Option<Tested>,
    holes: Option<Fragmentation>,
    host_holes: Option<Fragmentation>,
    five_levels: bool,
    address_space_ids: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Access(usize, usize, u64, Access),
    Map(usize, u64, u64, bool, bool),
    Unmap(usize, u64, u64),
    Discard(usize, u64, u64),
    Protect(usize, u64, u64, bool),
    Advise(usize, u64, u64, bool),
    FreeLazily(usize, u64, u64),
    Remap(usize, u64, u64, u64),
    Fork(usize),
    Pass(usize),
    Shrink(usize, u64),
    Restrict(usize, u64),
}

fn address(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * 4096)
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange::with_length(address(start), pages.min(PAGES - start) * 4096)
}

fn step() -> impl Strategy<Value = Step> {
    let start = 0..PAGES;
    let length = prop_oneof![1..8u64, 500..1200u64];
    let space = 0..3usize;
    let kinds = prop_oneof![
        5 => Just(Access::Read),
        5 => Just(Access::Write),
        1 => Just(Access::Execute)
    ];
    // Accesses cluster, so that structures hit.
    let near = prop_oneof![2 => start.clone(), 3 => 0..24u64, 3 => 1000..1024u64];
    prop_oneof![
        60 => (0..CORES, space.clone(), near, kinds)
            .prop_map(|(c, s, p, k)| Step::Access(c, s, p, k)),
        3 => (space.clone(), start.clone(), length.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(i, s, l, f, h)| Step::Map(i, s, l, f, h)),
        1 => (space.clone(), start.clone(), length.clone()).prop_map(|(i, s, l)| Step::Unmap(i, s, l)),
        2 => (space.clone(), start.clone(), length.clone())
            .prop_map(|(i, s, l)| Step::Discard(i, s, l)),
        2 => (space.clone(), start.clone(), length.clone(), any::<bool>())
            .prop_map(|(i, s, l, w)| Step::Protect(i, s, l, w)),
        1 => (space.clone(), start.clone(), length.clone(), any::<bool>())
            .prop_map(|(i, s, l, h)| Step::Advise(i, s, l, h)),
        1 => (space.clone(), start.clone(), length.clone())
            .prop_map(|(i, s, l)| Step::FreeLazily(i, s, l)),
        1 => (space.clone(), start.clone(), length, start.clone())
            .prop_map(|(i, s, l, t)| Step::Remap(i, s, l, t)),
        1 => space.clone().prop_map(Step::Fork),
        3 => space.clone().prop_map(Step::Pass),
        1 => (space.clone(), start.clone()).prop_map(|(i, s)| Step::Shrink(i, s)),
        4 => (space, prop_oneof![start, 0..24u64]).prop_map(|(i, s)| Step::Restrict(i, s)),
    ]
}

/// Every scheme, natively, and those for virtual machines on every kind of host.
fn case_schemes() -> impl Strategy<Value = (Tested, Option<Tested>)> {
    let hosts = ["base", "thp", "perforated", "direct-segment"];
    let hosts: Vec<Tested> = hosts.iter().map(|name| Tested::listed(name, "")).collect();
    (
        prop::sample::select(schemes()),
        prop::option::weighted(0.4, prop::sample::select(hosts)),
    )
}

fn scenario() -> impl Strategy<Value = Option<Fragmentation>> {
    prop::option::of(
        (
            0.3..1.0f64,
            0.0..0.6f64,
            any::<bool>(),
            any::<bool>(),
            0..9u64,
        )
            .prop_map(|(share, holes, clustered, remapped, seed)| Fragmentation {
                share,
                holes,
                pattern: if clustered {
                    Pattern::Clustered
                } else {
                    Pattern::Dispersed
                },
                kind: if remapped {
                    HoleKind::Remapped
                } else {
                    HoleKind::Unallocated
                },
                seed,
            }),
    )
}

fn case() -> impl Strategy<Value = Case> {
    (
        case_schemes(),
        scenario(),
        scenario(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |((scheme, host), holes, host_holes, five_levels, address_space_ids)| Case {
                scheme,
                host,
                holes,
                host_holes,
                five_levels,
                address_space_ids,
            },
        )
}

fn fork(
    space: &mut AddressSpace,
    id: SpaceId,
    memory: &mut Memory,
    effects: &mut Effects,
) -> AddressSpace {
    if space.shape().hashing.is_none() {
        return space.fork(id, memory, effects).unwrap();
    }
    // Hashed tables take their memory before a page is mapped.
    let mut child = AddressSpace::with(id, space.shape(), memory).unwrap();
    grow(&mut child, memory);
    space.fork_to(child, memory, effects).unwrap()
}

fn run(case: &Case, steps: Vec<Step>) {
    let mut server = Server::new(case);
    let all = range(0, PAGES);
    server.change(0, |s, m, e, _| s.map(all, Vma::ANONYMOUS, m, e).unwrap());
    for step in steps {
        let pick = |index: usize| index % server.spaces.len();
        match step {
            Step::Access(core, index, page, access) => {
                let index = pick(index);
                server.access(core, index, address(page), access);
                continue;
            }
            Step::Map(index, start, pages, file, huge) => {
                let vma = Vma {
                    kind: if file {
                        VmaKind::File
                    } else {
                        VmaKind::Anonymous
                    },
                    huge: if huge {
                        HugeAdvice::Huge
                    } else {
                        HugeAdvice::None
                    },
                    ..Vma::ANONYMOUS
                };
                let range = range(start, pages);
                server.change(pick(index), |s, m, e, _| s.map(range, vma, m, e).unwrap());
            }
            Step::Unmap(index, start, pages) => {
                let range = range(start, pages);
                server.change(pick(index), |s, m, e, _| s.unmap(range, m, e).unwrap());
            }
            Step::Discard(index, start, pages) => {
                let range = range(start, pages);
                server.change(pick(index), |s, m, e, _| s.discard(range, m, e).unwrap());
            }
            Step::Protect(index, start, pages, writable) => {
                let range = range(start, pages);
                server.change(pick(index), |s, m, e, _| {
                    s.protect(range, writable, m, e).unwrap();
                });
            }
            Step::Advise(index, start, pages, huge) => {
                let advice = if huge {
                    HugeAdvice::Huge
                } else {
                    HugeAdvice::NoHuge
                };
                let range = range(start, pages);
                server.change(pick(index), |s, m, e, _| {
                    s.advise_huge(range, advice, m, e).unwrap();
                });
            }
            Step::FreeLazily(index, start, pages) => {
                let range = range(start, pages);
                server.change(pick(index), |s, m, e, _| {
                    s.free_lazily(range, m, e).unwrap();
                });
            }
            Step::Remap(index, start, pages, target) => {
                let (from, to) = (range(start, pages), range(target, pages));
                let index = pick(index);
                let place = server.spaces[index].place_of(from.start);
                let apart = from.intersection(to).bytes() == 0;
                if place.range.covers(from)
                    && apart
                    && server.spaces[index].vma(place.of(from.start)).is_some()
                {
                    server.change(index, |s, m, e, _| s.remap(from, to, false, m, e).unwrap());
                }
            }
            Step::Fork(index) => {
                let id = SpaceId(server.spaces.len() as u16);
                let mut child = None;
                if id.0 < 3 {
                    server.change(pick(index), |s, m, e, _| {
                        child = Some(fork(s, id, m, e));
                    });
                }
                server.spaces.extend(child);
            }
            Step::Pass(index) => {
                server.change(pick(index), |s, m, e, p| {
                    s.background_pass(2048, p, m, e);
                });
            }
            Step::Restrict(index, page) => server.restrict(pick(index), address(page)),
            Step::Shrink(index, page) => {
                let index = pick(index);
                let segment = server.spaces[index].segment();
                let to = segment.base + page * 4096;
                if to < segment.limit {
                    server.change(index, |s, m, e, _| s.shrink_segment(to, m, e).unwrap());
                }
            }
        }
        server.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(300)))]
    #[test]
    fn every_scheme_translates_as_a_plain_table_does(
        case in case(),
        steps in prop::collection::vec(step(), 1..250),
    ) {
        run(&case, steps);
    }
}
