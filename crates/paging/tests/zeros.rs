//! Does the kernel take back the unwritten pages of huge ones, and no others?

use std::collections::BTreeSet;

use contigua_frames::{Boxed, Config, Frames, Layout, Placement};
use contigua_paging::{
    AddressSpace, CollapseContext, Effects, FaultContext, MappingPolicy, Memory, Place, SpaceId,
    Vma,
};
use contigua_units::{Bytes, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use proptest::prelude::*;

const BASE: u64 = 0x4000_0000;
/// Addresses of 6 MB.
const PAGES: u64 = 3 * 512;

/// Huge pages that give zeros back.
struct Huge {
    at_faults: bool,
    zero_page: bool,
    recovers: bool,
}

impl MappingPolicy for Huge {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        if self.at_faults {
            context.fits.min(PageSize::Size2M)
        } else {
            PageSize::Size4K
        }
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        true
    }

    fn recovers_zeros(&self) -> bool {
        self.recovers
    }

    fn uses_huge_zero_page(&self) -> bool {
        self.zero_page
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Some accesses: first page, distance, number, stores.
    Access(u64, u64, u64, bool),
    /// `MADV_DONTNEED` of pages.
    Discard(u64, u64),
    Pass,
    /// Of huge pages with so many zeros, so many frames.
    Recover(u32, u64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..PAGES, 1..300u64, 1..30u64, any::<bool>())
            .prop_map(|(first, by, count, store)| Step::Access(first, by, count, store)),
        2 => (0..PAGES, 1..700u64).prop_map(|(first, count)| Step::Discard(first, count)),
        2 => Just(Step::Pass),
        2 => (1..513u32, 1..2000u64).prop_map(|(least, wanted)| Step::Recover(least, wanted)),
    ]
}

fn memory() -> Memory {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let layout = Layout::new(8192, 0, 1);
    let frames = Frames::new(Boxed::new(layout), config, Placement::default()).unwrap();
    frames.into()
}

fn address(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * PAGE_BYTES)
}

fn all() -> VirtRange {
    VirtRange::with_length(address(0), PAGES * PAGE_BYTES)
}

const NOWHERE: Place = Place {
    range: VirtRange::new(VirtAddr::new(0), VirtAddr::new(0)),
    delta: 0,
};

struct Machine {
    memory: Memory,
    space: AddressSpace,
    policy: Huge,
    effects: Effects,
    /// Addresses that the engine need not tell of.
    place: Place,
    written: BTreeSet<u64>,
    /// Those, and pages that had frames of their own since: nobody knows that they hold zeros.
    held: BTreeSet<u64>,
}

impl Machine {
    fn new(policy: Huge) -> Self {
        let mut memory = memory();
        let mut effects = Effects::default();
        let mut space = AddressSpace::new(SpaceId(0), &mut memory).unwrap();
        let vma = Vma::ANONYMOUS;
        space.map(all(), vma, &mut memory, &mut effects).unwrap();
        Self {
            memory,
            space,
            policy,
            effects,
            place: NOWHERE,
            written: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    /// As the engine accesses memory.
    fn access(&mut self, page: u64, store: bool) {
        let at = address(page);
        if !self.place.range.contains(at) {
            self.place = self.space.enter(at, store);
        }
        loop {
            let leaf = self.space.table_mut().walk_and_mark(at, store).leaf;
            if leaf.is_some_and(|leaf| leaf.writable || !store) {
                break;
            }
            self.space
                .fault(at, store, &self.policy, &mut self.memory, &mut self.effects)
                .unwrap();
            self.place = NOWHERE;
        }
        if store {
            self.written.insert(page);
            self.held.insert(page);
        }
    }

    fn step(&mut self, step: &Step) {
        let (policy, memory, effects) = (&self.policy, &mut self.memory, &mut self.effects);
        match *step {
            Step::Access(first, by, count, store) => {
                for i in 0..count {
                    self.access((first + i * by) % PAGES, store);
                }
                return;
            }
            Step::Discard(first, count) => {
                let end = (first + count).min(PAGES);
                let range = VirtRange::new(address(first), address(end));
                self.space.discard(range, memory, effects).unwrap();
                self.written.retain(|page| !(first..end).contains(page));
                self.held.retain(|page| !(first..end).contains(page));
            }
            Step::Pass => while !self.space.background_pass(512, policy, memory, effects) {},
            Step::Recover(least, wanted) => {
                let before = (self.space.resident().bytes(), effects.zeros_recovered);
                self.space
                    .recover_zeros(least, wanted, memory, effects)
                    .unwrap();
                let recovered = effects.zeros_recovered - before.1;
                let less = before.0.get() - self.space.resident().bytes().get();
                assert_eq!(less, recovered * PAGE_BYTES);
                assert!(recovered < wanted + 512, "it ends");
            }
        }
        self.place = NOWHERE;
        for (at, leaf) in self.space.table().pages(all()) {
            if leaf.size == PageSize::Size4K && !self.memory.is_zero(leaf) {
                self.held.insert((at - address(0)) / PAGE_BYTES);
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut zeros = 0;
        for (at, leaf) in self.space.table().pages(all()) {
            let first = (at - address(0)) / PAGE_BYTES;
            let pages = first..first + u64::from(leaf.size.frames());
            if self.memory.is_zero(leaf) {
                prop_assert!(self.written.range(pages).next().is_none(), "contents lost");
            } else if leaf.size == PageSize::Size2M {
                zeros += 512 - self.held.range(pages).count() as u64;
            }
        }
        for &page in &self.written {
            prop_assert!(self.space.table().leaf(address(page)).is_some());
        }
        prop_assert_eq!(self.space.blank_pages(), zeros);
        self.space
            .validate(&self.memory)
            .map_err(TestCaseError::fail)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(200)))]
    #[test]
    fn what_is_taken_back_was_never_written(
        (at_faults, zero_page) in any::<(bool, bool)>(),
        steps in proptest::collection::vec(steps(), 1..30),
    ) {
        let policy = Huge { at_faults, zero_page, recovers: true };
        let mut machine = Machine::new(policy);
        for step in &steps {
            machine.step(step);
            machine.check()?;
        }
        let Machine { mut memory, space, mut effects, .. } = machine;
        space.destroy(&mut memory, &mut effects);
        memory.validate().map_err(|error| TestCaseError::fail(error.to_string()))?;
    }
}

#[test]
fn a_huge_page_with_few_zeros_stays() {
    let mut machine = Machine::new(Huge {
        at_faults: true,
        zero_page: false,
        recovers: true,
    });
    for page in 0..1024 {
        if !(500..512 + 500).contains(&page) {
            machine.access(page, true);
        }
    }
    machine.step(&Step::Recover(13, u64::MAX / 2));
    let resident = machine.space.resident();
    assert_eq!((resident.pages_2m, resident.pages_4k), (1, 12));
    assert_eq!(machine.space.blank_pages(), 12, "those of the first one");
}

#[test]
fn a_policy_that_takes_nothing_back_follows_nothing() {
    let mut machine = Machine::new(Huge {
        at_faults: true,
        zero_page: true,
        recovers: false,
    });
    machine.access(3, true);
    machine.step(&Step::Pass);
    assert_eq!(machine.space.blank_pages(), 0);
}

#[test]
fn zeros_of_free_memory_serve_faults_once() {
    let mut machine = Machine::new(Huge {
        at_faults: false,
        zero_page: false,
        recovers: false,
    });
    machine.memory.zero_ahead(3);
    for page in 0..5 {
        machine.access(page, true);
    }
    let effects = &machine.effects;
    assert_eq!((effects.prezeroed, effects.zeroed_4k), (3, 2));
    assert_eq!(
        effects.written.len(),
        2,
        "what is zeroed ahead is in no cache"
    );
    // No more than there is.
    machine.memory.zero_ahead(1 << 40);
    let free = machine.memory.free_frames();
    for page in 5..PAGES {
        machine.access(page, true);
    }
    assert!(machine.effects.prezeroed - 3 <= free);
}
