//! Does every scheme forget what it must, count what it does, and take time for it? And would these
//! tests notice a scheme that does not?

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{
    BASE, ID, L2_LATENCY, Recorder, Tested, buckets, grow, memory, mmu_of, schemes, small_tlb,
    take_rest_segs,
};
use contigua_paging::{
    AddressSpace, Effects, Hashing, MappingPolicy, Memory, SpaceId, TableShape, Vma,
};
use contigua_translation::{
    Access, Answer, BackgroundPass, Error, Hardware, Lookup, MemoryPort, Mmu, NestedConfig,
    Request, Scheme, Tables, Translation, Translator, TranslatorCounters,
};
use contigua_units::{Cycles, PAGE_BYTES, VirtAddr, VirtRange};

/// Pages of 4 KB, which no larger page has room for: more than the L2 TLB holds.
const SMALL: VirtRange = range(BASE - (64 << 12), 64);
/// Pages that may be large ones.
const LARGE: VirtRange = range(BASE, 3 * 512);

const fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange::with_length(VirtAddr::new(start), pages * PAGE_BYTES)
}

fn mmu(scheme: &dyn Scheme) -> Mmu {
    mmu_of(
        scheme,
        &small_tlb(),
        &NestedConfig::default().walk_cache,
        None,
    )
}

/// An answer of the translator.
struct Answered {
    walked: bool,
    latency: Cycles,
    references: usize,
}

/// A process on one core.
struct World<'a> {
    mmu: Mmu,
    scheme: &'a dyn Scheme,
    policy: Box<dyn MappingPolicy>,
    memory: Memory,
    space: AddressSpace,
    answers: Vec<Answered>,
    accesses: u64,
    faults: u64,
}

fn space(scheme: &dyn Scheme, memory: &mut Memory) -> AddressSpace {
    let shape = TableShape {
        has_shadows: scheme.has_shadows(),
        hashing: scheme.hashing(),
        areas: scheme.areas(false),
        buckets: buckets(scheme, memory),
        ..TableShape::default()
    };
    let mut space = AddressSpace::with(ID, shape, memory).unwrap();
    grow(&mut space, memory);
    let mut effects = Effects::default();
    for range in [SMALL, LARGE] {
        space
            .map(range, Vma::ANONYMOUS, memory, &mut effects)
            .unwrap();
    }
    space
}

impl<'a> World<'a> {
    fn new(scheme: &'a dyn Scheme) -> Self {
        let mut memory = memory(16_384);
        take_rest_segs(scheme, &mut memory);
        Self {
            mmu: mmu(scheme),
            scheme,
            policy: scheme.policy(),
            space: space(scheme, &mut memory),
            memory,
            answers: Vec::new(),
            accesses: 0,
            faults: 0,
        }
    }

    /// An access; the answer must be the tables'.
    fn access(&mut self, address: VirtAddr, access: Access) {
        for _ in 0..4 {
            self.accesses += 1;
            let lookup = match access {
                Access::Read => self.mmu.read(address, ID),
                Access::Write => self.mmu.write(address, ID),
                Access::Execute => self.mmu.fetch(address, ID),
            };
            let segment = self.space.segment();
            let mut tables = Tables {
                segment,
                table: self.space.table_mut(),
                holes: &self.memory.holes,
                rest_segs: Some(&mut self.memory.rest_segs),
                host: None,
            };
            let request = Request::new(address, ID, access);
            let found = match lookup {
                Lookup::Hit(physical) => Some(physical),
                Lookup::Miss => {
                    let mut port = Recorder::default();
                    match self.mmu.miss(&request, &mut tables, &mut port) {
                        Answer::Translated {
                            physical,
                            latency,
                            walked,
                        } => {
                            self.answers.push(Answered {
                                walked,
                                latency,
                                references: port.0.len(),
                            });
                            Some(physical)
                        }
                        Answer::Fault { .. } => None,
                    }
                }
            };
            if let Some(physical) = found {
                let expected = tables.resolve(address).map(|leaf| leaf.physical(address));
                assert_eq!(Some(physical), expected, "{access:?} at {address}");
                return;
            }
            self.faults += 1;
            let mut effects = Effects::default();
            let write = access == Access::Write;
            grow(&mut self.space, &mut self.memory);
            self.space
                .fault(
                    address,
                    write,
                    &*self.policy,
                    &mut self.memory,
                    &mut effects,
                )
                .unwrap();
            self.invalidate(&effects);
        }
        panic!("{access:?} at {address} faults for ever");
    }

    fn invalidate(&mut self, effects: &Effects) {
        for &range in &effects.invalidations {
            self.mmu.invalidate(ID, range);
        }
    }

    /// Writes to every page, twice, and to every 8th of the large ones.
    fn touch(&mut self) {
        for _ in 0..2 {
            for page in 0..64 {
                self.access(SMALL.start + page * PAGE_BYTES, Access::Write);
            }
            for page in 0..64 {
                self.access(LARGE.start + 8 * page * PAGE_BYTES, Access::Write);
            }
        }
    }

    /// Takes frames that were just freed, so that the next page of the process has another one.
    fn take_frames(&mut self) {
        let id = SpaceId(7);
        let mut other = AddressSpace::with(id, self.space.shape(), &mut self.memory).unwrap();
        grow(&mut other, &mut self.memory);
        let mut effects = Effects::default();
        let range = range(BASE - (256 << 12), 255);
        other
            .map(range, Vma::ANONYMOUS, &mut self.memory, &mut effects)
            .unwrap();
        for page in 0..255 {
            let at = range.start + page * PAGE_BYTES;
            let memory = &mut self.memory;
            grow(&mut other, memory);
            other
                .fault(at, true, &*self.policy, memory, &mut effects)
                .unwrap();
        }
    }

    /// Gives a range of memory back and uses it again, in other frames.
    fn replace(&mut self, range: VirtRange) {
        self.touch();
        self.read(range);
        let mut effects = Effects::default();
        self.space
            .discard(range, &mut self.memory, &mut effects)
            .unwrap();
        self.invalidate(&effects);
        self.take_frames();
        self.read(range);
    }

    fn read(&mut self, range: VirtRange) {
        for page in 0..range.bytes() / PAGE_BYTES {
            self.access(range.start + page * PAGE_BYTES, Access::Read);
        }
    }
}

/// Single pages get other frames, one after another.
fn check_pages(scheme: &dyn Scheme) {
    let mut world = World::new(scheme);
    // The second page of a group is no longer part of it.
    for page in [63, 40, 41, 12, 0] {
        world.replace(range(SMALL.start.get() + page * PAGE_BYTES, 1));
    }
}

/// Longer ranges get other frames.
fn check_ranges(scheme: &dyn Scheme) {
    let mut world = World::new(scheme);
    world.replace(range(SMALL.start.get() + 5 * PAGE_BYTES, 3));
    world.replace(SMALL);
    world.replace(range(BASE, 1024));
}

/// A process ends; the next one has its identifier and its addresses.
fn check_flush(scheme: &dyn Scheme) {
    let mut world = World::new(scheme);
    world.touch();
    world.read(SMALL);
    let next = space(world.scheme, &mut world.memory);
    let last = std::mem::replace(&mut world.space, next);
    last.destroy(&mut world.memory, &mut Effects::default());
    world.mmu.flush();
    world.take_frames();
    // What was used last is still there, if anything is.
    world.access(SMALL.start + 63 * PAGE_BYTES, Access::Write);
    world.touch();
}

/// Counters add up, and what takes longer says so.
fn check_counters(scheme: &dyn Scheme) {
    let mut world = World::new(scheme);
    world.touch();
    for i in 0..4000_u64 {
        let page = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let at = match i % 3 {
            0 => SMALL.start + page % 48 * PAGE_BYTES,
            1 => SMALL.start + i / 30 % 64 * PAGE_BYTES,
            _ => LARGE.start + page % (3 * 512) * PAGE_BYTES,
        };
        let access = [Access::Read, Access::Write, Access::Execute][i as usize % 5 % 3];
        world.access(at, access);
    }
    let World { mmu, answers, .. } = &world;
    let (counters, translator) = (mmu.counters(), mmu.translator_counters());
    let sides = [counters.data, counters.instruction];
    let lookups: u64 = sides.iter().map(|side| side.lookups).sum();
    assert_eq!(lookups, world.accesses, "every access looks up");
    let misses: u64 = sides
        .iter()
        .map(contigua_translation::SideCounters::misses)
        .sum();
    assert_eq!(misses, answers.len() as u64, "every miss is answered");
    let walked = answers.iter().filter(|answer| answer.walked).count() as u64;
    let walks = translator.walks() - translator.walks_faulting;
    // A scheme may read memory of its own without a walk, such as bitmaps of perforated pages, and
    // counts that.
    let reads_its_own = !mmu.scheme_counters().is_empty() && walks < walked;
    assert!(
        walks == walked || reads_its_own,
        "{walks} walks of {walked}"
    );
    assert!(walks > 0, "there are walks");
    assert!(translator.walks_faulting <= world.faults);
    let l2_hits = translator.l2_hits_4k + translator.l2_hits_2m + translator.l2_hits_1g;
    assert!(
        l2_hits + walked <= misses,
        "{l2_hits} hits and {walked} walks are more than {misses} misses"
    );
    if mmu.scheme_counters().is_empty() {
        assert_eq!(l2_hits + walked, misses, "hits and walks");
    }
    for answer in answers {
        let least = L2_LATENCY + 100 * answer.references as u64;
        assert!(
            answer.latency >= Cycles::new(least),
            "{} after {} references",
            answer.latency,
            answer.references
        );
        assert_eq!(answer.walked, answer.references > 0, "walks read tables");
    }
    let hits = answers.iter().filter(|answer| !answer.walked);
    assert!(hits.count() > 0, "there are hits");
    assert!(
        mmu.storage_bits() > 0 && mmu.first_level_bits() > 0,
        "hardware has bits"
    );
}

/// Ways to get a scheme wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    KeepsPages,
    KeepsRanges,
    KeepsAll,
    WalksInNoTime,
    HidesWalks,
    CountsNothing,
    HasNoBits,
}

type Check = fn(&dyn Scheme);

const CHECKS: [(Check, &[Mutant]); 4] = [
    (check_pages, &[Mutant::KeepsPages]),
    (check_ranges, &[Mutant::KeepsRanges]),
    (check_flush, &[Mutant::KeepsAll]),
    (
        check_counters,
        &[
            Mutant::WalksInNoTime,
            Mutant::HidesWalks,
            Mutant::CountsNothing,
            Mutant::HasNoBits,
        ],
    ),
];

/// A scheme with a fault.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct Faulty<'a> {
    #[serde(skip)]
    scheme: Option<&'a Tested>,
    #[serde(skip)]
    mutant: Option<Mutant>,
}

impl Faulty<'_> {
    fn scheme(&self) -> &Tested {
        self.scheme.unwrap()
    }
}

impl Scheme for Faulty<'_> {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(FaultyTranslator {
            translator: self.scheme().translator(hardware)?,
            mutant: self.mutant,
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.scheme().policy()
    }

    fn hashing(&self) -> Option<Hashing> {
        self.scheme().hashing()
    }

    fn has_shadows(&self) -> bool {
        self.scheme().has_shadows()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.scheme().background()
    }
}

#[derive(contigua_state::State)]
struct FaultyTranslator {
    #[state(inner)]
    translator: Box<dyn Translator>,
    #[state(skip)]
    mutant: Option<Mutant>,
}

impl Translator for FaultyTranslator {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let mut answer = self.translator.translate(request, tables, port);
        if let Translation::Page {
            latency, walked, ..
        } = &mut answer
        {
            match self.mutant {
                Some(Mutant::WalksInNoTime) => *latency = Cycles::new(L2_LATENCY),
                Some(Mutant::HidesWalks) => *walked = false,
                _ => {}
            }
        }
        answer
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        let forgets = if range.bytes() <= PAGE_BYTES {
            Mutant::KeepsPages
        } else {
            Mutant::KeepsRanges
        };
        if self.mutant != Some(forgets) {
            self.translator.invalidate(space, range);
        }
    }

    fn flush(&mut self) {
        if self.mutant != Some(Mutant::KeepsAll) {
            self.translator.flush();
        }
    }

    fn group(&self) -> u32 {
        self.translator.group()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        self.translator.scheme_counters()
    }

    fn counters(&self) -> TranslatorCounters {
        match self.mutant {
            Some(Mutant::CountsNothing) => TranslatorCounters::default(),
            _ => self.translator.counters(),
        }
    }

    fn reset_counters(&mut self) {
        self.translator.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        match self.mutant {
            Some(Mutant::HasNoBits) => 0,
            _ => self.translator.storage_bits(),
        }
    }
}

/// All schemes but the perfect TLB, which keeps nothing, takes no time and is no hardware.
fn hardware() -> impl Iterator<Item = Tested> {
    let all = schemes().into_iter();
    all.filter(|scheme| !scheme.name.starts_with("perfect"))
}

#[test]
fn every_scheme_forgets_counts_and_takes_time_as_it_must() {
    for scheme in hardware() {
        for (check, _) in CHECKS {
            // For the message of a check that fails.
            println!("{scheme:?}");
            check(&*scheme);
        }
    }
}

#[test]
fn a_scheme_with_a_faulty_hook_is_noticed() {
    let mut unnoticed = Vec::new();
    for scheme in hardware() {
        for (check, mutants) in CHECKS {
            for &mutant in mutants {
                let faulty = Faulty {
                    scheme: Some(&scheme),
                    mutant: Some(mutant),
                };
                if catch_unwind(AssertUnwindSafe(|| check(&faulty))).is_ok() {
                    unnoticed.push((scheme.clone(), mutant));
                }
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}
