//! Random sequences of operations against a naive model, with the contents of every page.

use crate::common::{MB, MB_PAGES, SECOND, TestOs, World};
use contigua_pageheap::{
    Arrival, Config, HUGE_BYTES, HUGE_PAGES, Leaving, Os, PAGE_BYTES, PageHeap, Primary, Span,
    Supply,
};
use proptest::prelude::*;
use std::rc::Rc;

#[derive(Clone, Debug)]
enum Operation {
    Allocate { pages: u32, align: u32 },
    Free(usize),
    Grow(usize, u32),
    Shrink(usize, u32),
    Release(usize),
    Periodic,
    Pass(u64),
    Limits(u64, u64),
    Policy(u64, u64, u64),
}

fn pages() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 1..5_u32,
        3 => 1..130_u32,
        3 => 120..260_u32,
        2 => 250..1100_u32,
        1 => Just(HUGE_PAGES),
        1 => Just(2 * HUGE_PAGES),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (pages(), prop_oneof![8 => Just(0), 2 => 0..10_u32])
            .prop_map(|(pages, align)| Operation::Allocate { pages, align: 1 << align }),
        9 => any::<usize>().prop_map(Operation::Free),
        2 => (any::<usize>(), pages()).prop_map(|(index, pages)| Operation::Grow(index, pages)),
        2 => (any::<usize>(), pages()).prop_map(|(index, pages)| Operation::Shrink(index, pages)),
        1 => (0..8 * MB).prop_map(Operation::Release),
        3 => Just(Operation::Periodic),
        3 => prop_oneof![0..3 * SECOND, 0..100 * SECOND, Just(400 * SECOND)]
            .prop_map(Operation::Pass),
        1 => (prop_oneof![Just(u64::MAX), 0..60 * MB as u64], prop_oneof![Just(u64::MAX), 0..60 * MB as u64])
            .prop_map(|(soft, hard)| Operation::Limits(soft, hard)),
        1 => (0..20 * MB as u64, 0..100 * SECOND, 0..100 * SECOND)
            .prop_map(|(rate, interval, cache)| Operation::Policy(rate, interval, cache)),
    ]
}

/// Model of the heap, and the sequence that led to it.
struct Model {
    heap: PageHeap<TestOs>,
    world: Rc<World>,
    live: Vec<(Span, u64)>,
    stamp: u64,
    /// Used and mapped bytes since each time.
    history: Vec<(u64, u64, u64)>,
    start: u64,
}

impl Model {
    fn new(world: &Rc<World>, config: Config) -> Self {
        let mut model = Self {
            heap: PageHeap::new(TestOs::new(world), config),
            world: world.clone(),
            live: Vec::new(),
            stamp: 0,
            history: Vec::new(),
            start: world.now.get(),
        };
        // The series begins with the first allocation.
        let first = model.heap.allocate(1, 1).unwrap();
        model.adopt(first.span);
        let after = model.heap.statistics();
        model.history.push((model.start, 0, 0));
        model.history.push((model.start, after.used, after.mapped));
        model
    }

    fn adopt(&mut self, span: Span) {
        self.stamp += 1;
        self.world.write(span, self.stamp);
        self.live.push((span, self.stamp));
    }

    fn pick(&self, index: usize) -> Option<usize> {
        (!self.live.is_empty()).then(|| index % self.live.len())
    }

    /// The largest use within the last `window` nanoseconds, from the whole history.
    fn peak(&self, window: u64) -> u64 {
        let since = self.world.now.get().saturating_sub(window);
        let mut peak = 0;
        for (index, &(_, used, _)) in self.history.iter().enumerate() {
            let until = self.history.get(index + 1).map_or(u64::MAX, |next| next.0);
            if until >= since {
                peak = peak.max(used);
            }
        }
        peak
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        let before = self.heap.statistics();
        match *operation {
            Operation::Allocate { pages, align } => {
                if let Some(allocated) = self.heap.allocate(pages, align) {
                    let span = allocated.span;
                    prop_assert_eq!(span.pages, pages);
                    prop_assert_eq!(span.address % (PAGE_BYTES * align as usize), 0);
                    prop_assert!(self.world.is_zero(&allocated));
                    for (other, _) in &self.live {
                        prop_assert!(span.end() <= other.address || other.end() <= span.address);
                    }
                    self.adopt(span);
                } else {
                    prop_assert!(self.heap.config().hard_limit < u64::MAX);
                }
            }
            Operation::Free(index) => {
                if let Some(index) = self.pick(index) {
                    let (span, stamp) = self.live.swap_remove(index);
                    prop_assert!(self.world.holds(span, stamp));
                    prop_assert!(self.heap.free(span));
                    prop_assert!(!self.heap.free(span));
                }
            }
            Operation::Grow(index, more) => {
                if let Some(index) = self.pick(index) {
                    let (span, stamp) = self.live[index];
                    if let Some(grown) = self.heap.grow_in_place(span, span.pages + more) {
                        prop_assert_eq!(
                            (grown.address, grown.pages),
                            (span.address, span.pages + more)
                        );
                        for (other, _) in self.live.iter().filter(|other| other.0 != span) {
                            prop_assert!(
                                grown.end() <= other.address || other.end() <= grown.address
                            );
                        }
                        prop_assert!(self.world.holds(span, stamp));
                        self.live.swap_remove(index);
                        self.adopt(grown);
                    } else {
                        prop_assert_eq!(self.heap.statistics().used, before.used);
                    }
                }
            }
            Operation::Shrink(index, pages) => {
                if let Some(index) = self.pick(index) {
                    let (span, stamp) = self.live[index];
                    let kept = self.heap.shrink_in_place(span, pages);
                    prop_assert_eq!(kept.pages, pages.min(span.pages));
                    self.live[index] = (kept, stamp);
                }
            }
            Operation::Release(bytes) => {
                let released = self.heap.release(bytes) as u64;
                let after = self.heap.statistics();
                prop_assert_eq!(after.mapped, before.mapped - released);
                prop_assert!(released >= (bytes as u64).min(before.free_mapped));
            }
            Operation::Periodic => self.periodic()?,
            Operation::Pass(time) => self.world.pass(time),
            Operation::Limits(soft, hard) => self.heap.set_limits(soft, hard),
            Operation::Policy(rate, interval, cache) => self.heap.set_policy(rate, interval, cache),
        }
        self.check(operation, &before)
    }

    fn periodic(&mut self) -> Result<(), TestCaseError> {
        let before = self.heap.statistics();
        let config = *self.heap.config();
        let released = self.heap.periodic();
        let after = self.heap.statistics();
        if config.soft_limit == u64::MAX && config.hard_limit == u64::MAX {
            prop_assert_eq!(before.mapped - after.mapped, released.bytes());
            let pages = released.requested / PAGE_BYTES as u64 * PAGE_BYTES as u64;
            prop_assert!(released.bytes() < pages + HUGE_BYTES as u64);
            if config.interval == 0 {
                prop_assert_eq!(released.withheld, 0);
                let pinned = config.primary.is_some_and(|primary| !primary.releasable);
                prop_assert!(pinned || released.bytes() >= pages.min(before.free_mapped));
            } else {
                let interval = if config.half_life > 0 {
                    config.interval.min(config.first_interval)
                } else {
                    config.interval
                };
                let peak = self.peak(interval);
                prop_assert!(
                    after.mapped >= peak.min(before.mapped) || config.cache_interval < interval
                );
                let broke = released.subreleased > 0;
                prop_assert!(!broke || after.mapped >= peak.min(before.mapped));
            }
        }
        Ok(())
    }

    fn check(
        &mut self,
        operation: &Operation,
        before: &contigua_pageheap::Statistics,
    ) -> Result<(), TestCaseError> {
        if let Err(error) = self.heap.validate() {
            return Err(TestCaseError::fail(format!("{operation:?}: {error}")));
        }
        let after = self.heap.statistics();
        let pages: u64 = self
            .live
            .iter()
            .map(|(span, _)| u64::from(span.pages))
            .sum();
        prop_assert_eq!(after.used, pages * PAGE_BYTES as u64);
        let config = *self.heap.config();
        if after.mapped > before.mapped {
            prop_assert!(after.mapped <= config.hard_limit);
        }
        if after.broken_total > before.broken_total && config.primary.is_none() {
            prop_assert_eq!(after.cached, 0, "whole huge pages stay while others break");
        }
        let now = self.world.now.get();
        self.history.push((now, after.used, after.mapped));
        self.fragmentation(&after)
    }

    /// Both measures from the whole history, over the same epochs.
    fn fragmentation(&self, after: &contigua_pageheap::Statistics) -> Result<(), TestCaseError> {
        let now = self.world.now.get();
        let epochs = self.heap.config().schedule.div_ceil(SECOND);
        let since = ((now / SECOND).saturating_sub(epochs) * SECOND).max(self.start);
        let (mut least, mut integral, mut time) = (u64::MAX, 0.0, 0.0);
        for (index, &(from, used, mapped)) in self.history.iter().enumerate() {
            let until = self.history.get(index + 1).map_or(now, |next| next.0);
            let last = index + 1 == self.history.len();
            if last || until >= since {
                // A level that ended exactly when the window began has no time in it.
                let inside = until.saturating_sub(from.max(since)) as f64;
                if last || until > since || from >= since {
                    least = least.min(mapped - used);
                }
                integral += (mapped - used) as f64 * inside;
                time += inside;
            }
        }
        prop_assert!(after.realized_fragmentation <= after.average_fragmentation);
        if time > 0.0 {
            prop_assert_eq!(after.realized_fragmentation, least);
            let average = integral / time;
            prop_assert!(
                (after.average_fragmentation as f64 - average).abs() <= 1.0 + average * 1e-9
            );
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), TestCaseError> {
        for (span, stamp) in std::mem::take(&mut self.live) {
            prop_assert!(self.world.holds(span, stamp));
            prop_assert!(self.heap.free(span));
        }
        prop_assert_eq!(self.heap.validate(), Ok(()));
        prop_assert_eq!(self.heap.statistics().used, 0);
        // Skipped is correct and incorrect when every window has closed.
        self.heap.set_policy(0, self.heap.config().interval, 0);
        self.world.pass(400 * SECOND);
        self.heap.release(1);
        let end = self.heap.statistics();
        prop_assert_eq!(end.skipped, end.skipped_correct + end.skipped_incorrect);
        prop_assert_eq!(end.skipped_open, 0);
        Ok(())
    }
}

fn run(world: &Rc<World>, config: Config, operations: &[Operation]) -> Result<(), TestCaseError> {
    let mut model = Model::new(world, config);
    for operation in operations {
        model.apply(operation)?;
    }
    model.finish()
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    proptest::collection::vec(operation(), 1..if cfg!(miri) { 20 } else { 150 })
}

fn cases(count: u32) -> ProptestConfig {
    let mut config = ProptestConfig::with_cases(contigua_testing::cases(count));
    if cfg!(miri) {
        config.failure_persistence = None;
    }
    config
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn any_sequence_keeps_contents_bounds_and_counts(
        operations in operations(),
        rate in prop_oneof![Just(0), 0..30 * MB as u64],
        interval in prop_oneof![Just(0), Just(60 * SECOND), 0..100 * SECOND],
        cache in prop_oneof![Just(0), Just(60 * SECOND), 0..100 * SECOND],
        half_life in prop_oneof![Just(0), 0..100 * SECOND],
        first in prop_oneof![Just(u64::MAX), 0..100 * SECOND],
        slack in prop_oneof![Just(0), Just(16 * MB as u64)],
        zeroes: bool,
    ) {
        let world = World::new();
        world.zeroes.set(zeroes);
        let config = Config {
            release_rate: rate,
            interval,
            cache_interval: cache,
            half_life,
            first_interval: first,
            region_slack: slack,
            ..Config::DEFAULT
        };
        run(&world, config, &operations)?;
    }

    #[test]
    fn small_and_scattered_reservations_serve_as_well(
        operations in operations(),
        largest in 8..200_usize,
    ) {
        let world = World::new();
        world.largest_reservation.set(largest * HUGE_BYTES);
        let config = Config { region_slack: 0, release_rate: 10 << 20, ..Config::DEFAULT };
        run(&world, config, &operations)?;
    }

    #[test]
    fn memory_on_its_way_back_is_nobodys(operations in operations(), refuses: bool) {
        let world = World::new();
        let mut model = Model::new(&world, Config { region_slack: 4 << 20, ..Config::DEFAULT });
        let mut leaving: Option<Leaving> = None;
        let mut collapsing = None;
        for operation in operations.iter().chain([&Operation::Periodic]) {
            match *operation {
                Operation::Release(bytes) if leaving.is_none() => {
                    collapsing = collapsing.or_else(|| model.heap.begin_collapse());
                    let pages = (bytes / PAGE_BYTES) as u64;
                    let whole = (bytes % 2 == 0).then(|| model.heap.begin_whole(u64::MAX));
                    leaving = whole.flatten().or_else(|| model.heap.begin_part(pages, None));
                    prop_assert_eq!(model.heap.validate(), Ok(()));
                }
                Operation::Periodic => {
                    if let Some(address) = collapsing.take() {
                        model.heap.end_collapse(address);
                        prop_assert_eq!(model.heap.validate(), Ok(()));
                    }
                    if let Some(mut leaving) = leaving.take() {
                        let mut os = TestOs::new(&world);
                        leaving.give(|address, bytes| !refuses && os.release(address, bytes));
                        let before = model.heap.statistics();
                        let pages = model.heap.end_release(leaving);
                        let after = model.heap.statistics();
                        prop_assert_eq!(before.mapped - after.mapped, pages * PAGE_BYTES as u64);
                        prop_assert_eq!(pages == 0, refuses);
                        prop_assert_eq!(model.heap.validate(), Ok(()));
                        model.history.push((world.now.get(), after.used, after.mapped));
                    }
                }
                Operation::Release(_) | Operation::Limits(..) | Operation::Policy(..) => {}
                _ => model.apply(operation)?,
            }
        }
    }

    #[test]
    fn arriving_memory_is_unowned_and_all_of_it_is_used_or_free(
        operations in operations(),
        refuses in prop_oneof![4 => Just(0), 1 => 1..8_u32],
        limit in prop_oneof![Just(usize::MAX), 20 * MB..80 * MB],
    ) {
        let world = World::new();
        let config = Config { region_slack: 4 << 20, hard_limit: limit as u64, ..Config::DEFAULT };
        let mut model = Model::new(&world, config);
        let mut arrival: Option<(Arrival, u32, u32)> = None;
        let mut leaving: Option<Leaving> = None;
        let mut steps = 0;
        for (index, operation) in operations.iter().chain([&Operation::Periodic; 64]).enumerate() {
            if index >= operations.len() && arrival.is_none() && leaving.is_none() {
                break;
            }
            match *operation {
                Operation::Allocate { pages, align } => {
                    match model.heap.try_allocate(pages, align, Supply::Deferred) {
                        Ok(attempt) => if let Some(found) = attempt.allocated {
                            prop_assert!(world.is_zero(&found));
                            model.adopt(found.span);
                        },
                        // Who comes second waits.
                        Err(needed) => if arrival.is_none() {
                            let begun = model.heap.begin_arrival(needed, Supply::Deferred);
                            arrival = Some((begun, pages, align));
                        },
                    }
                }
                Operation::Periodic => {
                    if let Some((mut begun, pages, align)) = arrival.take() {
                        let mut os = (TestOs::new(&world), TestOs::new(&world));
                        if model.heap.advance(&mut begun) {
                            steps += 1;
                            let refused = refuses > 0 && steps % refuses == 0;
                            begun.work(
                                |address, bytes| !refused && os.0.back(address, bytes),
                                |address, bytes| !refused && os.1.release(address, bytes),
                            );
                            arrival = Some((begun, pages, align));
                        } else {
                            let supply = model.heap.end_arrival(begun);
                            match model.heap.try_allocate(pages, align, supply) {
                                Ok(attempt) => {
                                    prop_assert!(
                                        attempt.allocated.is_some() || attempt.limited || refuses > 0
                                    );
                                    if let Some(found) = attempt.allocated {
                                        prop_assert!(world.is_zero(&found));
                                        model.adopt(found.span);
                                    }
                                }
                                Err(needed) => {
                                    prop_assert!(supply != Supply::Nowhere);
                                    let begun = model.heap.begin_arrival(needed, supply);
                                    arrival = Some((begun, pages, align));
                                }
                            }
                        }
                    }
                    if let Some(mut leaving) = leaving.take() {
                        let mut os = TestOs::new(&world);
                        leaving.give(|address, bytes| os.release(address, bytes));
                        model.heap.end_release(leaving);
                    }
                }
                Operation::Release(bytes) if leaving.is_none() => {
                    let whole = (bytes % 2 == 0).then(|| model.heap.begin_whole(u64::MAX));
                    leaving = whole
                        .flatten()
                        .or_else(|| model.heap.begin_part((bytes / PAGE_BYTES) as u64, None));
                }
                Operation::Free(_) | Operation::Shrink(..) | Operation::Pass(_) => {
                    model.apply(operation)?;
                }
                _ => {}
            }
            let after = model.heap.statistics();
            model.history.push((world.now.get(), after.used, after.mapped));
            prop_assert_eq!(model.heap.validate(), Ok(()));
            prop_assert!(after.mapped <= limit as u64);
        }
        prop_assert!(arrival.is_none(), "after 64 steps");
        for (span, stamp) in core::mem::take(&mut model.live) {
            prop_assert!(world.holds(span, stamp));
            prop_assert!(model.heap.free(span));
        }
        prop_assert_eq!(model.heap.validate(), Ok(()));
        let after = model.heap.statistics();
        prop_assert_eq!((after.used, after.free_mapped), (0, after.cached));
    }

    #[test]
    fn a_primary_region_changes_nothing_that_a_program_sees(
        operations in operations(),
        huge in 0..40_usize,
        odd in 0..HUGE_BYTES,
        releasable: bool,
    ) {
        let world = World::new();
        let primary = Primary { address: (1 << 35) + odd / PAGE_BYTES * PAGE_BYTES, bytes: huge * HUGE_BYTES, releasable };
        let config = Config { primary: Some(primary), release_rate: 10 << 20, region_slack: 4 << 20, ..Config::DEFAULT };
        let mut model = Model::new(&world, config);
        for operation in &operations {
            if !releasable && matches!(operation, Operation::Release(_)) {
                continue;
            }
            model.apply(operation)?;
        }
        for &(address, bytes) in world.releases.borrow().iter() {
            let inside = address >= primary.address && address + bytes <= primary.address + primary.bytes;
            prop_assert!(releasable || !inside);
        }
    }
}

#[test]
fn half_a_megabyte_fits_four_times_into_a_huge_page() {
    let world = World::new();
    let mut heap = PageHeap::new(TestOs::new(&world), Config::DEFAULT);
    for _ in 0..4 {
        assert!(heap.allocate(MB_PAGES / 2, 1).is_some());
    }
    assert_eq!(heap.statistics().mapped, HUGE_BYTES as u64);
    assert_eq!(heap.validate(), Ok(()));
}
