//! Are ranges promoted in the order of the pages that hardware marked while the kernel looked?

use contigua_frames::{Boxed, Config, Frames, Layout, Placement};
use contigua_paging::{
    AddressSpace, CollapseContext, Effects, FaultContext, MappingPolicy, Memory, Promotion,
    SpaceId, Vma,
};
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use proptest::prelude::*;

const BASE: u64 = 0x4000_0000;
const HUGE: u64 = 2 << 20;

struct Small;

impl MappingPolicy for Small {
    fn on_fault(&self, _: &FaultContext) -> PageSize {
        PageSize::Size4K
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        true
    }

    fn promotion(&self) -> Promotion {
        Promotion::ByCoverage
    }
}

struct Server {
    memory: Memory,
    effects: Effects,
}

impl Server {
    fn new() -> Self {
        let layout = Layout::new(1 << 14, 0, 1);
        let frames = Frames::new(Boxed::new(layout), Config::default(), Placement::default());
        Self {
            memory: frames.unwrap().into(),
            effects: Effects::default(),
        }
    }

    /// A space in which the first pages of each range are in use.
    fn space(&mut self, ranges: u64, used: u64) -> AddressSpace {
        let (memory, effects) = (&mut self.memory, &mut self.effects);
        let mut space = AddressSpace::new(SpaceId(0), memory).unwrap();
        let all = VirtRange::with_length(VirtAddr::new(BASE), ranges * HUGE);
        space.map(all, Vma::ANONYMOUS, memory, effects).unwrap();
        for range in 0..ranges {
            for page in 0..used {
                let at = address(range, page);
                space.fault(at, true, &Small, memory, effects).unwrap();
                space.table_mut().walk_and_mark(at, true);
            }
        }
        space
    }
}

fn address(range: u64, page: u64) -> VirtAddr {
    VirtAddr::new(BASE + range * HUGE + page * PAGE_BYTES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(40)))]
    #[test]
    fn the_highest_coverage_comes_first(
        used in proptest::collection::vec(0..=512u64, 1..12),
    ) {
        let mut server = Server::new();
        let mut space = server.space(used.len() as u64, 512);
        let Server { memory, effects } = &mut server;
        effects.clear();
        space.begin_look(effects);
        let cleared: Vec<_> = space.table().pages(VirtRange::with_length(
            VirtAddr::new(BASE),
            used.len() as u64 * HUGE,
        )).collect();
        for (at, leaf) in cleared {
            prop_assert!(!leaf.accessed && leaf.dirty, "only one bit goes");
            let is_flushed = effects.invalidations.iter().any(|range| range.contains(at));
            prop_assert!(is_flushed, "hardware would not mark it again");
        }
        for (range, &pages) in used.iter().enumerate() {
            for page in 0..pages {
                space.table_mut().walk_and_mark(address(range as u64, page), false);
            }
        }
        space.end_look(100, memory);
        let bucket = |pages: u64| (pages / 50).min(9);
        let mut before = u64::MAX;
        let mut promoted = Vec::new();
        while space.hottest_bucket().is_some() {
            space.promote_hottest(&Small, memory, effects);
            let huge = (0..used.len() as u64).find(|&range| {
                let leaf = space.table().leaf(address(range, 0)).unwrap();
                leaf.size == PageSize::Size2M && !promoted.contains(&range)
            });
            let range = huge.expect("one more is huge");
            promoted.push(range);
            let now = bucket(used[range as usize]);
            prop_assert!(now <= before, "{promoted:?} of {used:?}");
            before = now;
        }
        let warm = used.iter().filter(|&&pages| pages > 2).count();
        prop_assert_eq!(promoted.len(), warm);
        space.validate(memory).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_process_with_idle_huge_pages_waits_for_one_without() {
    let mut server = Server::new();
    let mut space = server.space(4, 512);
    let Server { memory, effects } = &mut server;
    assert!(
        (space.promotion_metric(4.0) - 4.0).abs() < 1e-9,
        "it has none of four"
    );
    while !space.background_pass(512, &Small, memory, effects) {}
    space.begin_look(effects);
    space.table_mut().walk_and_mark(address(0, 0), false);
    space.end_look(100, memory);
    // Of four huge pages, one was used: 4 / (4 * (1/4 + 4 * 3/4)).
    assert!((space.promotion_metric(4.0) - 1.0 / 3.25).abs() < 1e-9);
    assert!((space.promotion_metric(1.0) - 1.0).abs() < 1e-9, "no tax");
}
