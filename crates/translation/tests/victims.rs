//! Do schemes get what TLBs evict: the L2 TLB's (the guide's victim TLB), and the first level's?

use std::sync::{Arc, Mutex};

use crate::common::{
    BASE, ID, L2_LATENCY, Outcome, access, access_or_fault, counter, geometry, memory, mmu_of,
};
use crate::victim;
use contigua_paging::{AddressSpace, Effects, MappingPolicy, Memory, SpaceId, Vma};
use contigua_translation::schemes::{base, thp};
use contigua_translation::{
    Access, Error, Evicted, Hardware, MemoryPort, Mmu, Radix, Request, Scheme, Tables, Translation,
    Translator, TranslatorCounters, WalkCacheConfig,
};
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};

const PAGES: u64 = 40;

/// TLBs of one set: 2 entries in the first level, 32 in the second.
fn mmu(scheme: &dyn Scheme) -> Mmu {
    let mut tlb = crate::common::tlb();
    for l1 in [&mut tlb.l1d, &mut tlb.l1i] {
        (l1.pages_4k, l1.pages_2m) = (Some(geometry(2, 2)), None);
    }
    (tlb.l2[0].entries, tlb.l2[0].ways) = (32, 32);
    tlb.l2[0].holds = vec![PageSize::Size4K];
    mmu_of(scheme, &tlb, &WalkCacheConfig::default(), None)
}

/// A process whose pages are all mapped.
fn world() -> (Memory, AddressSpace) {
    let mut memory = memory(4096);
    let mut space = AddressSpace::new(ID, &mut memory).unwrap();
    let mut effects = Effects::default();
    let range = VirtRange::with_length(VirtAddr::new(BASE), PAGES * PAGE_BYTES);
    space
        .map(range, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    let policy = base::Config {}.policy();
    for page in 0..PAGES {
        let at = range.start + page * PAGE_BYTES;
        space
            .fault(at, true, &*policy, &mut memory, &mut effects)
            .unwrap();
    }
    (memory, space)
}

fn at(page: u64) -> VirtAddr {
    VirtAddr::new(BASE + page * PAGE_BYTES)
}

#[test]
fn a_victim_tlb_serves_what_the_l2_tlb_evicts_and_least_recently_used_order_does_not() {
    let (memory, mut space) = world();
    let victim = victim::Config {
        entries: 8,
        ..victim::Config::default()
    };
    let mut walks = |scheme: &dyn Scheme| {
        let mut mmu = mmu(scheme);
        for i in 0..10 * PAGES {
            access(
                &mut mmu,
                &mut space,
                &memory,
                None,
                at(i % PAGES),
                Access::Read,
            );
        }
        mmu.translator_counters().walks()
    };
    // 40 pages in a cycle, 32 entries: every access misses, and 8 more entries hold all.
    assert_eq!(walks(&thp::Config::default()), 10 * PAGES);
    assert_eq!(walks(&victim), PAGES);
}

#[test]
fn a_hit_in_the_victim_tlb_takes_a_cycle_more_and_swaps_the_entries() {
    let (memory, mut space) = world();
    let mut mmu = mmu(&victim::Config::default());
    let mut read = |page| access(&mut mmu, &mut space, &memory, None, at(page), Access::Read);
    for page in 0..33 {
        read(page);
    }
    let latency = |outcome| match outcome {
        Outcome::Translated(_, latency, references) => (latency.get(), references.len()),
        other => panic!("{other:?}"),
    };
    // Page 0 was evicted; its hit evicts page 1, which is hit in turn.
    assert_eq!(latency(read(0)), (L2_LATENCY + 1, 0));
    assert_eq!(latency(read(1)), (L2_LATENCY + 1, 0));
    // Neither is in the first level any more.
    for page in [10, 11] {
        read(page);
    }
    assert_eq!(latency(read(0)), (L2_LATENCY, 0));
    assert_eq!(counter(&mmu, "victim_hits"), 2);
}

/// Entries handed to a translator: first addresses.
type Seen = Arc<Mutex<Vec<(VirtAddr, Access)>>>;

/// Conventional hardware that takes what the first level evicts.
#[derive(serde::Serialize, schemars::JsonSchema)]
struct Watching {
    #[serde(skip)]
    seen: Seen,
}

impl Scheme for Watching {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Watcher {
            radix: Radix::new(hardware)?,
            seen: Arc::clone(&self.seen),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        base::Config {}.policy()
    }
}

#[derive(contigua_state::State)]
struct Watcher {
    radix: Radix,
    #[state(skip)]
    seen: Seen,
}

impl Translator for Watcher {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        self.radix.translate(request, tables, port)
    }

    fn takes_first_level_evictions(&self) -> bool {
        true
    }

    fn first_level_evicted(&mut self, evicted: &Evicted, access: Access) {
        assert_eq!(evicted.space, ID);
        self.seen.lock().unwrap().push((evicted.address, access));
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.radix.flush();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn reset_counters(&mut self) {
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        self.radix.storage_bits()
    }
}

#[test]
fn a_translator_that_asks_gets_what_each_first_level_tlb_evicts() {
    let (memory, mut space) = world();
    let scheme = Watching {
        seen: Seen::default(),
    };
    let mut mmu = mmu(&scheme);
    for (page, kind) in [
        (0, Access::Read),
        (1, Access::Write),
        (7, Access::Execute),
        (2, Access::Read),
        (3, Access::Write),
        (8, Access::Execute),
        (9, Access::Execute),
    ] {
        access(&mut mmu, &mut space, &memory, None, at(page), kind);
    }
    let expected = [
        (at(0), Access::Read),
        (at(1), Access::Write),
        (at(7), Access::Execute),
    ];
    assert_eq!(*scheme.seen.lock().unwrap(), expected);
}

#[test]
fn colt_with_runs_of_one_page_and_huge_pages_is_thp() {
    let colt = crate::common::scheme("colt", "run_log2 = 0\nhuge.enabled = \"always\"");
    let thp = crate::common::scheme("thp", "");
    let run = |scheme: &contigua_translation::SchemeConfig| {
        let mut memory = memory(32_768);
        let mut space = crate::common::space(scheme, &mut memory);
        let mut effects = Effects::default();
        // Huge pages, and behind them small ones; together more than the L2 TLB has room for.
        let huge = VirtRange::with_length(VirtAddr::new(BASE), 40 << 21);
        let small = VirtRange::with_length(VirtAddr::new(BASE + (48 << 21) + 4096), 511 << 12);
        for range in [huge, small] {
            space
                .map(range, Vma::ANONYMOUS, &mut memory, &mut effects)
                .unwrap();
        }
        let mut mmu = few_entries(&**scheme);
        let mut outcomes = Vec::new();
        let mut state = 1_u64;
        for i in 0..30_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let random = state >> 33;
            let (range, page) = if i % 3 == 0 {
                (huge, random % (40 * 512))
            } else {
                (small, (random & random >> 9) % 511)
            };
            let kind = [Access::Read, Access::Write, Access::Execute][(random >> 20) as usize % 3];
            let address = range.start + page * PAGE_BYTES;
            outcomes.push(access_or_fault(
                &mut mmu,
                &mut space,
                &mut memory,
                scheme,
                address,
                kind,
            ));
            if i % 500 == 0 {
                effects = Effects::default();
                let gone = VirtRange::with_length(address, (1 + i / 500 % 3) << 12);
                if range.covers(gone) {
                    space.discard(gone, &mut memory, &mut effects).unwrap();
                }
                for &range in &effects.invalidations {
                    mmu.invalidate(space.id(), range);
                }
            }
        }
        (outcomes, mmu.counters(), mmu.translator_counters())
    };
    let (one, other) = (run(&thp), run(&colt));
    assert_eq!(one.1, other.1);
    assert_eq!(one.2, other.2);
    assert!(one.0 == other.0, "some access had another outcome");
    assert!(one.2.l2_hits_2m > 0 && one.2.l2_hits_4k > 0 && one.2.walks_4k > 1000);
}

/// Few entries, which pages of 4 KB and 2 MB share.
fn few_entries(scheme: &dyn Scheme) -> Mmu {
    let mut tlb = crate::common::tlb();
    (tlb.l2[0].entries, tlb.l2[0].ways) = (48, 6);
    mmu_of(scheme, &tlb, &WalkCacheConfig::default(), None)
}
