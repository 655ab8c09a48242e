//! Does every page keep its contents, whatever happens to its address space?
//!
//! The model knows the contents of each page of each process. The machine's contents lie in its
//! frames. Under random operations the two must agree, which fails when two pages share a frame
//! that should not, or lose one that they should have.

use std::collections::{BTreeMap, HashMap, HashSet};

use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement};
use contigua_paging::{
    AddressSpace, Backing, CollapseContext, Effects, Eligible, FaultContext, Fragmentation,
    HoleKind, HoleVerdict, Holes, HugeAdvice, Levels, MappingPolicy, Memory, ObjectId, Orders,
    Pattern, Resident, SharedContext, SpaceId, TableShape, Vma, VmaKind,
};
use contigua_units::{Bytes, Frame, Order, PageSize, VirtAddr, VirtPage, VirtRange};
use proptest::prelude::*;

const BASE: u64 = 0x4000_0000;
/// Three huge pages' worth of addresses.
const PAGES: u64 = 3 * 512;

/// Maps as much as fits, in one of the ways that there are.
#[derive(Clone, Copy, Debug, Default)]
struct Greedy {
    perforates: bool,
    is_lazy: bool,
    folios: bool,
    /// The huge zero page, and huge pages of shared memory.
    more_huge: bool,
    /// Blocks of 2 MB of a direct segment; 0 for none.
    segment: u64,
    holes: Option<Fragmentation>,
}

impl Greedy {
    const PLAIN: Self = Self {
        perforates: false,
        is_lazy: false,
        folios: false,
        more_huge: false,
        segment: 0,
        holes: None,
    };

    fn space(self, id: u16, memory: &mut Memory) -> AddressSpace {
        let shape = TableShape {
            levels: Levels::Four,
            has_shadows: self.perforates,
            hashing: None,
            areas: None,
            buckets: None,
        };
        let mut space = AddressSpace::with(SpaceId(id), shape, memory).unwrap();
        space.set_fragmentation(self.holes);
        if self.segment > 0 {
            space.reserve_primary(64 << 20, Eligible::ByDefault, 1);
            let bytes = self.segment << 21;
            assert_eq!(space.take_chunk(bytes, memory, &mut ()), bytes);
        }
        space
    }
}

impl MappingPolicy for Greedy {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        if context.vma.huge == HugeAdvice::NoHuge || self.folios {
            PageSize::Size4K
        } else {
            context.fits
        }
    }

    fn collapse(&self, context: &CollapseContext) -> bool {
        context.present > 3
    }

    fn most_missing(&self) -> u32 {
        if self.perforates { 511 } else { 0 }
    }

    fn on_holes(&self, _: &Holes) -> HoleVerdict {
        if self.perforates {
            HoleVerdict::Perforate
        } else {
            HoleVerdict::Split
        }
    }

    fn is_lazy(&self) -> bool {
        self.is_lazy
    }

    fn folio_orders(&self, vma: Vma) -> Orders {
        let all = Orders::all().filter(|_| self.folios && vma.huge != HugeAdvice::NoHuge);
        all.collect()
    }

    fn marks_groups(&self) -> bool {
        self.folios
    }

    fn maps_shared_huge(&self, _: &SharedContext) -> bool {
        self.more_huge
    }

    fn uses_huge_zero_page(&self) -> bool {
        self.more_huge
    }
}

fn scenario() -> impl Strategy<Value = Fragmentation> {
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
        })
}

fn policies() -> impl Strategy<Value = Greedy> {
    let policies = prop_oneof![
        2 => Just(Greedy::PLAIN),
        1 => Just(Greedy { folios: true, ..Greedy::PLAIN }),
        1 => Just(Greedy { perforates: true, is_lazy: true, ..Greedy::PLAIN }),
        2 => proptest::option::of(scenario())
            .prop_map(|holes| Greedy { perforates: true, holes, ..Greedy::PLAIN }),
        2 => (1..5u64).prop_map(|segment| Greedy { segment, ..Greedy::PLAIN }),
    ];
    (policies, any::<bool>()).prop_map(|(policy, more_huge)| Greedy {
        more_huge,
        ..policy
    })
}

#[derive(Clone, Debug)]
enum Operation {
    Map(u64, u64, bool, bool),
    Unmap(u64, u64),
    Discard(u64, u64),
    Protect(u64, u64, bool),
    Advise(u64, u64, bool),
    FreeLazily(u64, u64),
    Remap(u64, u64, u64, u64),
    Touch(u64, bool),
    Fork,
    Exit(usize),
    Pass,
    Compact,
}

fn operation() -> impl Strategy<Value = Operation> {
    let start = 0..PAGES;
    let length = prop_oneof![1..8u64, 500..1200u64];
    prop_oneof![
        3 => (start.clone(), length.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(s, l, file, shared)| Operation::Map(s, l, file, shared)),
        1 => (start.clone(), length.clone()).prop_map(|(s, l)| Operation::Unmap(s, l)),
        1 => (start.clone(), length.clone()).prop_map(|(s, l)| Operation::Discard(s, l)),
        1 => (start.clone(), length.clone(), any::<bool>())
            .prop_map(|(s, l, w)| Operation::Protect(s, l, w)),
        1 => (start.clone(), length.clone(), any::<bool>())
            .prop_map(|(s, l, h)| Operation::Advise(s, l, h)),
        1 => (start.clone(), length.clone()).prop_map(|(s, l)| Operation::FreeLazily(s, l)),
        2 => (start.clone(), length.clone(), start.clone(), length)
            .prop_map(|(s, l, t, m)| Operation::Remap(s, l, t, m)),
        30 => (start, any::<bool>()).prop_map(|(p, w)| Operation::Touch(p, w)),
        1 => Just(Operation::Fork),
        1 => any::<usize>().prop_map(Operation::Exit),
        2 => Just(Operation::Pass),
        2 => Just(Operation::Compact),
    ]
}

fn address(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * 4096)
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange::with_length(address(start), pages.min(PAGES - start) * 4096)
}

/// A process: the real address space, and the contents that its pages must have. Pages that were
/// never touched are absent.
struct Process {
    space: AddressSpace,
    contents: BTreeMap<u64, u64>,
}

impl Process {
    fn frame(&self, page: u64) -> Option<Frame> {
        let at = address(page);
        let at = self.space.place_of(at).of(at);
        if let Some(physical) = self.space.segment().translate(at) {
            assert!(self.space.table().leaf(at).is_none(), "mapped twice");
            return Some(physical.frame());
        }
        self.space
            .translation(at)
            .map(|leaf| leaf.physical(at).frame())
    }

    /// Shared object of a page, and which of its pages that is.
    fn object(&self, page: u64) -> Option<(ObjectId, u64)> {
        let backing = self.space.vma(address(page))?.1.backing?;
        Some((
            backing.object,
            address(page).get().wrapping_sub(backing.origin) / 4096,
        ))
    }

    /// Contents that a TLB may have of a page: address, frame, and whether it may be written.
    fn cached(&self, page: u64) -> Option<(VirtAddr, Frame, bool)> {
        let at = address(page);
        let at = self.space.place_of(at).of(at);
        let leaf = self.space.translation(at)?;
        Some((at, leaf.physical(at).frame(), leaf.writable))
    }

    fn pages(&self) -> impl Iterator<Item = u64> {
        let pages: Vec<u64> = self.contents.keys().copied().collect();
        pages.into_iter()
    }

    fn forget(&mut self, range: VirtRange) {
        self.contents
            .retain(|&page, _| !range.contains(address(page)));
    }
}

struct World {
    memory: Memory,
    /// Contents of frames; 0 when zeroed.
    frames: HashMap<Frame, u64>,
    next: u64,
    /// Frame and contents of the pages of shared objects.
    objects: HashMap<(ObjectId, u64), (Frame, u64)>,
    /// Holes that other processes must learn of.
    punches: Vec<(Frame, u32)>,
    has_segment: bool,
}

impl World {
    /// Runs an operation that may move pages, and moves their contents along.
    fn step(
        &mut self,
        process: &mut Process,
        run: impl FnOnce(&mut AddressSpace, &mut Memory, &mut Effects),
    ) {
        let before: Vec<_> = process.pages().map(|p| (p, process.frame(p))).collect();
        let contents: HashMap<u64, u64> = before
            .iter()
            .filter_map(|&(page, frame)| Some((page, *self.frames.get(&frame?)?)))
            .collect();
        let zeros: Vec<u64> = process
            .pages()
            .filter(|&page| self.is_zero(process, page))
            .collect();
        let cached: Vec<_> = process.pages().filter_map(|p| process.cached(p)).collect();
        let walked: Vec<_> = (0..PAGES)
            .step_by(512)
            .map(|page| process.space.place_of(address(page)).of(address(page)))
            .map(|at| (at, process.space.table().walk(at).references().to_vec()))
            .collect();
        let mut effects = Effects::default();
        run(&mut process.space, &mut self.memory, &mut effects);
        for (at, before) in walked {
            let walk = process.space.table().walk(at);
            for depth in 1..before.len() {
                let holds = walk.references().get(depth) == before.get(depth);
                let span = 1 << (48 - 9 * depth);
                let led = VirtRange::with_length(at.align_down(span), span);
                let told = |range: &VirtRange| !range.intersection(led).is_empty();
                let told = effects.invalidations.iter().any(told);
                assert!(holds || told, "a page-walk cache may still lead to {at}");
            }
        }
        for (at, frame, writable) in cached {
            let now = process.space.translation(at);
            let holds = now.is_some_and(|leaf| {
                leaf.physical(at).frame() == frame && (leaf.writable || !writable)
            });
            let told = effects.invalidations.iter().any(|range| range.contains(at));
            assert!(holds || told, "a TLB may still have {at}");
        }
        // Zero pages may become holes of perforated pages, which are zero as well.
        for page in zeros {
            if process.frame(page).is_none() {
                process.contents.remove(&page);
            }
        }
        self.punches.append(&mut effects.shared_punches);
        for (page, old) in before {
            let new = process.frame(page);
            if new != old
                && let (Some(new), Some(&content)) = (new, contents.get(&page))
            {
                self.frames.insert(new, content);
            }
        }
    }

    fn is_zero(&self, process: &Process, page: u64) -> bool {
        let at = process.space.place_of(address(page)).of(address(page));
        let leaf = process.space.table().leaf(at);
        leaf.is_some_and(|leaf| self.memory.is_zero(leaf))
    }

    fn touch(&mut self, process: &mut Process, page: u64, write: bool, policy: Greedy) {
        let at = address(page);
        let place = process.space.place_of(at).of(at);
        let Some((_, vma)) = process.space.vma(place) else {
            return;
        };
        if write && !vma.writable {
            return;
        }
        let at = place;
        let in_segment = process.space.segment().translate(at).is_some();
        let present: Vec<bool> = (0..PAGES)
            .map(|page| process.frame(page).is_some())
            .collect();
        self.step(process, |space, memory, effects| {
            if in_segment {
                return;
            }
            space
                .fault(at, write, &policy, memory, effects)
                .expect("there is enough memory");
            // The access itself, as hardware marks it.
            space.table_mut().walk_and_mark(at, write);
        });
        if process.space.segment().translate(at).is_none() {
            let leaf = process
                .space
                .translation(at)
                .expect("a fault maps the page");
            assert!(leaf.writable || !write);
        }
        // What was not there before is new, and zero.
        for page in (0..PAGES).filter(|&page| !present[page as usize]) {
            if let Some(frame) = process.frame(page) {
                let new = (frame, 0);
                let (known, content) = match process.object(page) {
                    Some(key) => *self.objects.entry(key).or_insert(new),
                    None => new,
                };
                assert_eq!(known, frame, "all mappings of an object have its frame");
                self.frames.insert(frame, content);
                process.contents.insert(page, content);
            }
        }
        if write {
            self.next += 1;
            let frame = process.frame(page).unwrap();
            self.frames.insert(frame, self.next);
            process.contents.insert(page, self.next);
            if let Some(key) = process.object(page) {
                self.objects.insert(key, (frame, self.next));
            }
        }
    }

    fn check(&self, processes: &[Process]) -> Result<(), TestCaseError> {
        let mut sum = Resident::default();
        let mut mapped = HashSet::new();
        let mut huge = HashSet::new();
        for process in processes {
            sum.replace(&Resident::default(), &process.space.resident());
            process
                .space
                .validate(&self.memory)
                .map_err(TestCaseError::fail)?;
            for (&page, content) in &process.contents {
                let frame = process.frame(page);
                prop_assert!(frame.is_some(), "page {} was lost", page);
                let at = process.space.place_of(address(page)).of(address(page));
                let leaf = process.space.table().leaf(at);
                if self.is_zero(process, page) {
                    prop_assert_eq!(*content, 0, "page {} has contents of its own", page);
                    continue;
                }
                mapped.extend(frame);
                if leaf.is_some_and(|leaf| leaf.size == PageSize::Size2M) {
                    huge.extend(frame);
                }
                prop_assert_eq!(
                    self.frames.get(&frame.unwrap()),
                    Some(content),
                    "page {}",
                    page
                );
            }
        }
        // A segment also maps what was never touched.
        if !self.has_segment {
            let once = self.memory.counted_once(&sum);
            mapped.extend(self.objects.values().map(|&(frame, _)| frame));
            prop_assert_eq!(once.bytes(), Bytes::new(mapped.len() as u64 * 4096));
            if sum.perforated == 0 && self.memory.shared_memory().pages_2m == 0 {
                prop_assert_eq!(once.pages_2m * 512, huge.len() as u64);
            }
        }
        self.memory
            .validate()
            .map_err(|e| TestCaseError::fail(e.to_string()))
    }
}

fn memory(frames: usize) -> Memory {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let frames = Frames::new(
        Boxed::new(Layout::new(frames, 0, 1)),
        config,
        Placement::default(),
    );
    frames.unwrap().into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(250)))]
    #[test]
    fn every_page_keeps_its_contents(
        policy in policies(),
        operations in proptest::collection::vec(operation(), 1..120),
    ) {
        let mut world = World { memory: memory(40_000), frames: HashMap::new(), next: 0, objects: HashMap::new(), punches: Vec::new(), has_segment: policy.segment > 0 };
        let space = policy.space(0, &mut world.memory);
        let mut processes = vec![Process { space, contents: BTreeMap::new() }];
        let mut ids = 1;
        for operation in operations {
            let last = match operation {
                Operation::Touch(page, _) => (page / 3) as usize % processes.len(),
                _ => processes.len() - 1,
            };
            let process = &mut processes[last];
            match operation {
                Operation::Map(start, pages, file, shared) => {
                    let range = range(start, pages);
                    let kind = if file { VmaKind::File } else { VmaKind::Anonymous };
                    let backing = (shared && !file).then(|| Backing {
                        object: world.memory.unnamed_object(),
                        origin: range.start.get(),
                        mounted: false,
                    });
                    let vma = Vma { kind, shared, backing, ..Vma::ANONYMOUS };
                    process.forget(range);
                    world.step(process, |s, m, e| s.map(range, vma, m, e).unwrap());
                }
                Operation::Unmap(start, pages) => {
                    let range = range(start, pages);
                    process.forget(range);
                    world.step(process, |s, m, e| s.unmap(range, m, e).unwrap());
                }
                Operation::Discard(start, pages) => {
                    let range = range(start, pages);
                    process.forget(range);
                    world.step(process, |s, m, e| s.discard(range, m, e).unwrap());
                }
                Operation::Protect(start, pages, writable) => {
                    let range = range(start, pages);
                    world.step(process, |s, m, e| s.protect(range, writable, m, e).unwrap());
                }
                Operation::Advise(start, pages, huge) => {
                    let advice = if huge { HugeAdvice::Huge } else { HugeAdvice::NoHuge };
                    let range = range(start, pages);
                    world.step(process, |s, m, e| s.advise_huge(range, advice, m, e).unwrap());
                }
                Operation::FreeLazily(start, pages) => {
                    let range = range(start, pages);
                    world.step(process, |s, m, e| s.free_lazily(range, m, e).unwrap());
                }
                Operation::Remap(start, pages, target, target_pages) => {
                    let (from, to) = (range(start, pages), range(target, target_pages));
                    let in_place = from.start == to.start;
                    let place = process.space.place_of(from.start);
                    // Linux refuses ranges of several mappings.
                    if !place.range.covers(from)
                        || process.space.vma(place.of(from.start)).is_none()
                        || !in_place && from.intersection(to).bytes() > 0 {
                        continue;
                    }
                    let moved: Vec<(u64, u64)> = process.contents.iter()
                        .map(|(&page, &content)| (page, content))
                        .filter(|&(page, _)| {
                            let at = address(page);
                            from.contains(at) && at - from.start < to.bytes()
                        })
                        .collect();
                    let zeros: Vec<u64> = process.pages().filter(|&p| world.is_zero(process, p)).collect();
                    process.forget(from);
                    process.forget(to);
                    world.step(process, |s, m, e| s.remap(from, to, false, m, e).unwrap());
                    for (page, content) in moved {
                        let was_zero = zeros.contains(&page);
                        let page = page - start + target;
                        if was_zero && process.frame(page).is_none() {
                            // It came to a hole of a perforated page.
                            continue;
                        }
                        process.contents.insert(page, content);
                        // Where a segment is involved, contents are copied.
                        if policy.segment > 0 && let Some(frame) = process.frame(page) {
                            world.frames.insert(frame, content);
                        }
                    }
                }
                Operation::Touch(page, write) => world.touch(process, page, write, policy),
                Operation::Fork => {
                    let contents = process.contents.clone();
                    let mut forked = None;
                    world.step(process, |s, m, e| forked = Some(s.fork(SpaceId(ids), m, e).unwrap()));
                    let space = forked.unwrap();
                    ids += 1;
                    processes.push(Process { space, contents });
                }
                Operation::Exit(choice) => {
                    if processes.len() > 1 {
                        let process = processes.remove(choice % processes.len());
                        process.space.destroy(&mut world.memory, &mut Effects::default());
                    }
                }
                Operation::Compact => {
                    let mut moves = Vec::new();
                    world.memory.compact_all(&mut moves);
                    for moved in moves {
                        let owner = SpaceId(moved.owner.space);
                        let mut spaces = processes.iter_mut().map(|process| &mut process.space);
                        let space = spaces.find(|space| space.id() == owner).unwrap();
                        prop_assert!(space.follow(&moved), "{:?}", moved);
                        for i in 0..moved.order.frames() {
                            let content = world.frames.remove(&moved.from.offset(i));
                            world.frames.extend(content.map(|c| (moved.to.offset(i), c)));
                        }
                    }
                }
                Operation::Pass => {
                    let present: Vec<u64> =
                        (0..PAGES).filter(|&page| process.frame(page).is_some()).collect();
                    world.step(process, |s, m, e| { s.background_pass(2048, &policy, m, e); });
                    for page in 0..PAGES {
                        if let Some(frame) = process.frame(page)
                            && present.binary_search(&page).is_err()
                        {
                            world.frames.insert(frame, 0);
                            process.contents.insert(page, 0);
                        }
                    }
                }
            }
            for (chunk, hole) in std::mem::take(&mut world.punches) {
                for process in &mut processes {
                    let effects = &mut Effects::default();
                    process.space.point_back(chunk, hole, &mut world.memory, effects).unwrap();
                }
            }
            let mapped: HashSet<_> = processes
                .iter()
                .flat_map(|process| (0..PAGES).filter_map(|page| process.object(page)))
                .map(|(object, _)| object)
                .collect();
            world.objects.retain(|(object, _), _| mapped.contains(object));
            // Shared pages: a write through one process is seen through the others.
            for process in &mut processes {
                for page in process.pages().collect::<Vec<_>>() {
                    let shared =
                        process.space.vma(address(page)).is_some_and(|(_, vma)| vma.shared);
                    if shared && let Some(frame) = process.frame(page) {
                        let content = world.frames[&frame];
                        process.contents.insert(page, content);
                    } else if process.object(page).is_some() {
                        // The object has it still, for the next fault.
                        process.contents.remove(&page);
                    }
                }
            }
            world.check(&processes)?;
        }
        for process in processes {
            process.space.destroy(&mut world.memory, &mut Effects::default());
        }
        let kept = world.memory.free_frames() + world.memory.zero_frames();
        prop_assert_eq!(kept, world.memory.total());
    }
}

#[test]
fn a_large_aligned_mapping_gets_a_huge_page_at_the_first_touch() {
    let mut memory = memory(4096);
    let mut effects = Effects::default();
    let mut space = AddressSpace::new(SpaceId(1), &mut memory).unwrap();
    let huge = VirtRange::with_length(VirtAddr::new(BASE), 4 << 20);
    space
        .map(huge, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    let at = VirtAddr::new(BASE + 0x20_1234);
    let fault = space
        .fault(at, true, &Greedy::PLAIN, &mut memory, &mut effects)
        .unwrap();
    assert_eq!(fault.size, PageSize::Size2M);
    assert_eq!(effects.zeroed_2m, 1);
    let walk = space.table().walk(at);
    assert_eq!(walk.references().len(), 3);
    let owner = memory.owner(walk.leaf.unwrap().frame).unwrap();
    assert_eq!(owner.page, VirtPage::new((BASE + 0x20_0000) >> 12));
}

#[test]
fn zero_pages_that_move_to_holes_leave_them_holes() {
    let policy = Greedy {
        perforates: true,
        is_lazy: true,
        more_huge: true,
        ..Greedy::PLAIN
    };
    let mut memory = memory(4096);
    let mut effects = Effects::default();
    let mut space = policy.space(1, &mut memory);
    let all = range(0, PAGES);
    space
        .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    for (page, write) in [(1000, true), (1024, false)] {
        space
            .fault(address(page), write, &policy, &mut memory, &mut effects)
            .unwrap();
    }
    let (from, to) = (range(1024, 500), range(13, 500));
    space
        .remap(from, to, false, &mut memory, &mut effects)
        .unwrap();
    space
        .free_lazily(range(0, 513), &mut memory, &mut effects)
        .unwrap();
    assert_eq!(space.validate(&memory), Ok(()));
}

#[test]
fn what_a_segment_maps_is_zeroed_for_the_next_mapping_and_not_when_it_goes() {
    let mut memory = memory(32 * 512);
    let policy = Greedy {
        segment: 8,
        ..Greedy::PLAIN
    };
    let mut space = policy.space(1, &mut memory);
    let all = VirtRange::with_length(VirtAddr::new(BASE), 8 << 20);
    for zeroed in [0, 4] {
        let mut effects = Effects::default();
        space
            .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
            .unwrap();
        assert_eq!((effects.zeroed_2m, effects.zeroed_4k), (zeroed, 0));
        space
            .populate(all, true, &policy, &mut memory, &mut effects)
            .unwrap();
        assert_eq!(space.segment().bytes(), all.bytes());
        // The segment grew over it once.
        assert_eq!(effects.zeroed_2m, 4);
        effects.clear();
        space.unmap(all, &mut memory, &mut effects).unwrap();
        assert_eq!((effects.zeroed_2m, effects.zeroed_4k), (0, 0));
    }
    let mut effects = Effects::default();
    space
        .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    effects.clear();
    space.discard(all, &mut memory, &mut effects).unwrap();
    assert_eq!(effects.zeroed_4k, all.bytes() / 4096);
}

#[test]
fn without_a_free_block_a_fault_falls_back_to_a_small_page_and_says_so() {
    let mut memory = memory(4096);
    for i in (0..4096).step_by(256) {
        memory
            .allocate_at(Frame::new(i), FrameClass::KernelOther)
            .unwrap();
    }
    assert!(!memory.has_free_block(Order::HUGE_2M));
    let mut effects = Effects::default();
    let mut space = AddressSpace::new(SpaceId(1), &mut memory).unwrap();
    space
        .map(range(0, PAGES), Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    let fault = space
        .fault(address(5), true, &Greedy::PLAIN, &mut memory, &mut effects)
        .unwrap();
    assert_eq!((fault.size, effects.fallbacks), (PageSize::Size4K, 1));
    assert_eq!(space.table().walk(address(5)).references().len(), 4);
}

#[test]
fn lazily_freed_pages_come_back_when_memory_is_short() {
    let mut memory = memory(64);
    let mut effects = Effects::default();
    let mut space = AddressSpace::new(SpaceId(1), &mut memory).unwrap();
    let all = range(0, 200);
    space
        .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    space
        .advise_huge(all, HugeAdvice::NoHuge, &mut memory, &mut effects)
        .unwrap();
    let mut touch = |space: &mut AddressSpace, page| {
        space.fault(
            address(page),
            true,
            &Greedy::PLAIN,
            &mut memory,
            &mut effects,
        )
    };
    let fitting = (0..200)
        .take_while(|&page| touch(&mut space, page).is_ok())
        .count() as u64;
    assert!((50..64).contains(&fitting));
    assert!(touch(&mut space, 199).is_err());
    let mut effects = Effects::default();
    space
        .free_lazily(range(0, 10), &mut memory, &mut effects)
        .unwrap();
    // Page 3 is written again and so stays. That takes no fault: hardware marks it.
    let written = space.table_mut().walk_and_mark(address(3), true);
    assert!(written.marked && written.leaf.is_some_and(|leaf| leaf.writable));
    effects.clear();
    space
        .fault(
            address(199),
            true,
            &Greedy::PLAIN,
            &mut memory,
            &mut effects,
        )
        .unwrap();
    assert!(space.table().leaf(address(3)).is_some());
    assert!(space.table().leaf(address(4)).is_none());
    // Nine pages were unmapped for it, and freed.
    assert_eq!((effects.unmapped, effects.freed), (9, 9));
    assert_eq!(space.validate(&memory), Ok(()));
}

#[test]
fn pages_of_the_pool_go_back_to_it_whole_and_others_do_not() {
    const HUGE: PageSize = PageSize::Size2M;
    let mut memory = memory(16 * 512);
    assert_eq!(memory.reserve_huge(HUGE, 4, &mut ()), 4);
    let free = memory.free_frames();
    let mut effects = Effects::default();
    let mut space = AddressSpace::new(SpaceId(1), &mut memory).unwrap();
    let policy = Pooled;
    for _ in 0..6 {
        let all = VirtRange::with_length(VirtAddr::new(BASE), 4 * HUGE.bytes());
        space
            .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
            .unwrap();
        space
            .populate(all, true, &policy, &mut memory, &mut effects)
            .unwrap();
        assert_eq!(memory.reserved_huge(HUGE), 0);
        space.unmap(all, &mut memory, &mut effects).unwrap();
        assert_eq!((memory.reserved_huge(HUGE), effects.fallbacks), (4, 0));
    }
    // A page that was split is not whole any more, and goes back to the rest of memory.
    let page = VirtRange::with_length(VirtAddr::new(BASE), HUGE.bytes());
    space
        .map(page, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    space
        .populate(page, true, &policy, &mut memory, &mut effects)
        .unwrap();
    space.unmap(range(0, 1), &mut memory, &mut effects).unwrap();
    space.unmap(page, &mut memory, &mut effects).unwrap();
    assert_eq!(memory.reserved_huge(HUGE), 3);
    space.destroy(&mut memory, &mut effects);
    assert_eq!(memory.free_frames(), free + 512);
    assert_eq!(memory.validate(), Ok(()));
}

/// Maps pages of the pool only.
struct Pooled;

impl MappingPolicy for Pooled {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        context.fits.min(PageSize::Size2M)
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }

    fn uses_reserved(&self) -> bool {
        true
    }
}
