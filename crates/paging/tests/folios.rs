//! Does a fault map the largest folio that Linux would, whatever is mapped around it and however memory is
//! fragmented?

use std::collections::BTreeSet;

use contigua_frames::{Boxed, Config, FrameClass, Frames, Layout, Placement, Request};
use contigua_paging::{
    AddressSpace, CollapseContext, Effects, FaultContext, MappingPolicy, Memory, Orders, SpaceId,
    Vma,
};
use contigua_units::{Bytes, Frame, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use proptest::prelude::*;

const BASE: u64 = 0x4000_0000;
const FRAMES: u32 = 8192;
/// Addresses of 4 MB.
const PAGES: u64 = 1024;

/// Small pages, and folios of some orders.
struct Folios(Orders);

impl MappingPolicy for Folios {
    fn on_fault(&self, _: &FaultContext) -> PageSize {
        PageSize::Size4K
    }

    fn collapse(&self, _: &CollapseContext) -> bool {
        false
    }

    fn folio_orders(&self, _: Vma) -> Orders {
        self.0
    }

    fn marks_groups(&self) -> bool {
        true
    }
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange::with_length(VirtAddr::new(BASE + start * PAGE_BYTES), pages * PAGE_BYTES)
}

/// Memory in which no block above an order is free.
fn fragmented(most: Order) -> Memory {
    let config = Config {
        min_free: Some(Bytes::new(0)),
        ..Config::default()
    };
    let layout = Layout::new(FRAMES as usize, 0, 1);
    let frames = Frames::new(Boxed::new(layout), config, Placement::default()).unwrap();
    let mut memory: Memory = frames.into();
    if most == Order::BUDDY_MAX {
        return memory;
    }
    let request = Request::new(Order::BUDDY_MAX, FrameClass::KernelOther);
    while let Some(block) = memory.allocate(&request) {
        memory.split_to(block, most).unwrap();
        for at in (0..Order::BUDDY_MAX.frames()).step_by(2 * most.frames() as usize) {
            memory.free(block.offset(at)).unwrap();
        }
    }
    memory
}

/// The folio around a page that a fault maps there, and how many larger ones it tried to allocate.
fn expected(
    page: u64,
    mapping: &std::ops::Range<u64>,
    mapped: &BTreeSet<u64>,
    orders: &[u8],
    most: Order,
) -> (Option<(u64, u8)>, u64) {
    let mut failed = 0;
    for &order in orders.iter().rev() {
        let pages = 1 << order;
        let first = page / pages * pages;
        let lies_within = mapping.start <= first && first + pages <= mapping.end;
        if !lies_within || mapped.range(first..first + pages).next().is_some() {
            continue;
        }
        if order <= most.get() {
            return (Some((first, order)), failed);
        }
        failed += 1;
    }
    (None, failed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(250)))]
    #[test]
    fn the_largest_folio_that_fits_and_is_free_is_mapped(
        orders in proptest::sample::subsequence((2..9u8).collect::<Vec<_>>(), 0..8),
        start in 0..PAGES - 1,
        length in 1..PAGES,
        small in proptest::collection::btree_set(0..PAGES, 0..12),
        touched in proptest::collection::vec(0..PAGES, 1..20),
        most in 2..11u8,
    ) {
        let most = Order::new(most);
        let mut memory = fragmented(most);
        let mut effects = Effects::default();
        let mut space = AddressSpace::new(SpaceId(0), &mut memory).unwrap();
        let mapping = start..(start + length).min(PAGES);
        let within = range(mapping.start, mapping.end - mapping.start);
        space.map(within, Vma::ANONYMOUS, &mut memory, &mut effects).unwrap();
        let address = |page: u64| VirtAddr::new(BASE + page * PAGE_BYTES);
        let mut mapped = BTreeSet::new();
        for page in small.into_iter().filter(|page| mapping.contains(page)) {
            let none = Folios(Orders::default());
            space.fault(address(page), true, &none, &mut memory, &mut effects).unwrap();
            mapped.insert(page);
        }
        let policy = Folios(orders.iter().map(|&order| Order::new(order)).collect());
        for page in touched.into_iter().filter(|page| mapping.contains(page)) {
            if mapped.contains(&page) {
                continue;
            }
            effects.clear();
            let (folio, failed) = expected(page, &mapping, &mapped, &orders, most);
            space.fault(address(page), true, &policy, &mut memory, &mut effects).unwrap();
            let (first, order) = folio.unwrap_or((page, 0));
            let head = space.table().leaf(address(first)).expect("it begins there").frame;
            prop_assert_eq!(head.get() % (1 << order), 0, "frames as aligned as the folio");
            for at in first..first + (1 << order) {
                let leaf = space.table().leaf(address(at)).expect("all of it is mapped");
                prop_assert_eq!(leaf.frame, Frame::new(head.get() + (at - first) as u32));
                prop_assert!(leaf.writable && leaf.dirty);
                prop_assert_eq!(leaf.contiguous, order >= 4);
                mapped.insert(at);
            }
            prop_assert_eq!(space.table().pages(within).count(), mapped.len(), "and no more");
            prop_assert_eq!(effects.folios.get().iter().sum::<u64>(), u64::from(folio.is_some()));
            prop_assert_eq!(effects.folios_failed.get().iter().sum::<u64>(), failed);
            if let Some((_, order)) = folio {
                prop_assert_eq!(effects.folios.get()[usize::from(order) - 2], 1);
            }
            space.validate(&memory).map_err(TestCaseError::fail)?;
        }
        space.destroy(&mut memory, &mut effects);
        memory.validate().map_err(|error| TestCaseError::fail(error.to_string()))?;
    }
}

#[test]
fn a_page_that_changes_takes_the_mark_from_its_group_of_16_only() {
    let mut memory = fragmented(Order::BUDDY_MAX);
    let mut effects = Effects::default();
    let mut space = AddressSpace::new(SpaceId(0), &mut memory).unwrap();
    let all = range(0, 512);
    let policy = Folios([Order::new(8)].into_iter().collect());
    space
        .map(all, Vma::ANONYMOUS, &mut memory, &mut effects)
        .unwrap();
    space
        .fault(all.start, true, &policy, &mut memory, &mut effects)
        .unwrap();
    space
        .discard(range(40, 1), &mut memory, &mut effects)
        .unwrap();
    let marked: Vec<u64> = space
        .table()
        .pages(all)
        .filter(|(_, leaf)| leaf.contiguous)
        .map(|(at, _)| (at - all.start) / PAGE_BYTES)
        .collect();
    let others = (0..256).filter(|page| !(32..48).contains(page));
    assert_eq!(marked, others.collect::<Vec<_>>());
}
