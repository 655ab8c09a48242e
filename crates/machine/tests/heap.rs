//! Does a page heap on a simulated server have the memory that it believes to have?

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use contigua_machine::config::{Age, RunConfig};
use contigua_machine::heap::{HeapReport, HeapRun, ServerOs, SimulatedServer, run};
use contigua_pageheap::replay::{Removal, Settings, square_wave};
use contigua_pageheap::{Config, HUGE_BYTES, Metadata, Os, PAGE_BYTES, PageHeap, Span};
use contigua_units::PageSize;
use proptest::prelude::*;

const LINUX: &str = include_str!("../../../python/contigua/data/designs/linux-thp-madvise.toml");
const CONTIGUITAS: &str =
    include_str!("../../../python/contigua/data/designs/contiguitas-thp.toml");
const SMALL: &str = include_str!("../../../python/contigua/data/designs/linux-4k.toml");
const SECOND: u64 = 1_000_000_000;
const MB: u64 = 1 << 20;
/// Bytes of the server's pages.
const BASE: usize = 4096;

fn config(design: &str, memory: u64, age: Age) -> RunConfig {
    let design = crate::common::design(design);
    RunConfig {
        age,
        ..crate::common::config(design, crate::common::machine(memory))
    }
}

/// Memory that the heap was promised: addresses that it may use, and those that it gave back.
#[derive(Default)]
struct Promises {
    /// By page of the server: the heap has backed it.
    backed: BTreeSet<usize>,
}

/// The server's system, which checks each promise when it is made.
struct Witness {
    os: ServerOs,
    server: SimulatedServer,
    promises: Rc<RefCell<Promises>>,
}

impl Os for Witness {
    fn metadata(&mut self, bytes: usize) -> Option<Metadata> {
        self.os.metadata(bytes)
    }

    fn reserve(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let address = self.os.reserve(bytes, align)?;
        assert!(address.is_multiple_of(align));
        assert_eq!(self.server.mapping(address), None);
        Some(address)
    }

    fn back(&mut self, address: usize, bytes: usize) -> bool {
        let done = self.os.back(address, bytes);
        if done {
            let mut promises = self.promises.borrow_mut();
            for page in (address..address + bytes).step_by(BASE) {
                promises.backed.insert(page);
            }
        }
        done
    }

    fn release(&mut self, address: usize, bytes: usize) -> bool {
        let resident = self.server.resident()[0];
        let mapped = (address..address + bytes)
            .step_by(BASE)
            .filter(|&page| self.server.mapping(page).is_some())
            .count();
        let done = self.os.release(address, bytes);
        if done {
            for page in (address..address + bytes).step_by(BASE) {
                assert_eq!(self.server.mapping(page), None, "{page:#x} was given back");
            }
            // What lies around it is still there.
            let left = resident - (mapped * BASE) as u64;
            assert_eq!(self.server.resident()[0], left);
        }
        done
    }

    fn collapse(&mut self, address: usize) -> bool {
        let before = self.server.mapping(address).map(|mapping| mapping.size);
        let done = self.os.collapse(address);
        let after = self.server.mapping(address).map(|mapping| mapping.size);
        if done {
            assert_eq!(after, Some(PageSize::Size2M));
        } else {
            assert_eq!(after, before);
        }
        done
    }

    fn now(&self) -> u64 {
        self.os.now()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u32),
    Free(usize),
    Pass(u64),
    Release(usize),
    Policy(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop_oneof![4 => 1..8_u32, 2 => 1..200_u32, 1 => 200..700_u32].prop_map(Step::Allocate),
        10 => any::<usize>().prop_map(Step::Free),
        6 => (0..20 * SECOND).prop_map(Step::Pass),
        2 => (0..8 * MB as usize).prop_map(Step::Release),
        1 => (0..20 * MB, 0..60 * SECOND).prop_map(|(rate, interval)| Step::Policy(rate, interval)),
    ]
}

/// A heap on a server, and what it has allocated.
struct World {
    server: SimulatedServer,
    heap: PageHeap<Witness>,
    promises: Rc<RefCell<Promises>>,
    live: Vec<Span>,
    now: u64,
}

impl World {
    fn new(config: RunConfig) -> Self {
        let server = SimulatedServer::new(config, &AtomicBool::new(false)).unwrap();
        let promises = Rc::default();
        let witness = Witness {
            os: server.os(),
            server: server.clone(),
            promises: Rc::clone(&promises),
        };
        let config = Config {
            release_rate: 4 * MB,
            interval: 10 * SECOND,
            cache_interval: 0,
            ..Config::DEFAULT
        };
        Self {
            server,
            heap: PageHeap::new(witness, config),
            promises,
            live: Vec::new(),
            now: 0,
        }
    }

    /// False when the server has no memory left, which ends the program.
    fn apply(&mut self, step: &Step) -> bool {
        match *step {
            Step::Allocate(pages) => {
                if let Some(allocated) = self.heap.allocate(pages, 1) {
                    let span = allocated.span;
                    self.live.push(span);
                    return pages_of(span).all(|page| self.server.touch(page, true).is_ok());
                }
            }
            Step::Free(index) if !self.live.is_empty() => {
                let span = self.live.swap_remove(index % self.live.len());
                assert!(self.heap.free(span));
            }
            Step::Free(_) => {}
            Step::Pass(time) => {
                self.now += time;
                self.server.pass_until(self.now);
                self.heap.periodic();
            }
            Step::Release(bytes) => {
                self.heap.release(bytes);
            }
            Step::Policy(rate, interval) => self.heap.set_policy(rate, interval, interval),
        }
        true
    }

    /// Checks that the program's contents are there, each page once, and that memory which is not
    /// backed has none.
    fn check(&self) {
        let mut frames = BTreeMap::new();
        for page in self.live.iter().flat_map(|&span| pages_of(span)) {
            let mapping = self.server.mapping(page);
            let mapping = mapping.unwrap_or_else(|| panic!("{page:#x} was written and is gone"));
            assert!(mapping.writable, "{page:#x}");
            let other = frames.insert(mapping.frame, page);
            assert_eq!(other, None, "{page:#x} has the frame of another page");
        }
        let promises = self.promises.borrow();
        let (Some(&first), Some(&last)) = (promises.backed.first(), promises.backed.last()) else {
            return;
        };
        let start = first / HUGE_BYTES * HUGE_BYTES;
        for page in (start..last + 4 * HUGE_BYTES).step_by(BASE) {
            if !promises.backed.contains(&page) {
                assert_eq!(
                    self.server.mapping(page),
                    None,
                    "{page:#x} was never backed"
                );
            }
        }
        self.heap.validate().unwrap();
        self.server.validate().unwrap();
    }
}

fn pages_of(span: Span) -> impl Iterator<Item = usize> {
    (span.address..span.address + span.pages as usize * PAGE_BYTES).step_by(BASE)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(48)))]
    #[test]
    fn heap_and_simulated_server_agree_on_mapped_memory(
        steps in prop::collection::vec(step(), 1..80),
        design in prop::sample::select(vec![LINUX, CONTIGUITAS, SMALL]),
        scattered in prop::sample::select(vec![0.0, 0.002, 0.02]),
    ) {
        let mut world = World::new(config(design, 96 * MB, Age::Scattered(scattered)));
        for step in &steps {
            if !world.apply(step) {
                return Ok(());
            }
            world.check();
        }
        for span in core::mem::take(&mut world.live) {
            prop_assert!(world.heap.free(span));
        }
        world.heap.release(usize::MAX / 2);
        world.check();
        prop_assert_eq!(world.server.resident(), [0, 0]);
    }
}

fn life(design: &str, age: Age, rate: u64, interval: u64) -> HeapReport {
    let demand = square_wave(20 * MB, 60 * MB, 20 * SECOND, 200 * SECOND);
    let life = HeapRun {
        server: config(design, 256 * MB, age),
        program: Settings {
            config: Config {
                release_rate: rate,
                interval,
                cache_interval: interval,
                ..Config::DEFAULT
            },
            sizes: vec![1, 3, 2, 8],
            removal: Removal::Random(7),
            ..Settings::default()
        },
        demand,
        end: 200 * SECOND,
        warmup: 20 * SECOND,
        reads: 500,
        seed: 3,
    };
    run(&life, &AtomicBool::new(false), &|_| ()).unwrap()
}

/// Huge pages spare walks, releases break them, and Δ withholds releases.
#[test]
fn does_giving_back_cost_walks_and_does_delta_spare_them() {
    let never = life(LINUX, Age::Fresh, 0, 0).summary;
    let statically = life(LINUX, Age::Fresh, 1 << 30, 0).summary;
    let adaptive = life(LINUX, Age::Fresh, 1 << 30, 60 * SECOND).summary;
    assert!(
        never.broken == 0 && never.given_back == 0 && never.coverage > 0.95,
        "{never:?}"
    );
    assert!(statically.broken > 20, "{statically:?}");
    assert!(statically.resident < 0.9 * never.resident);
    assert!(statically.walks_per_read > never.walks_per_read + 0.1);
    assert!(adaptive.broken < statically.broken / 4, "{adaptive:?}");
    assert!(adaptive.walks_per_read < statically.walks_per_read / 2.0);
    assert!((statically.used - never.used).abs() < 1.0);
}

/// On a server without free 2 MB blocks the heap's belief and the server's memory part ways.
#[test]
fn huge_page_allocation_failures_are_reported() {
    let report = life(LINUX, Age::Scattered(0.03), 0, 0);
    assert_eq!(report.free_2m_blocks_before, 0);
    let found = report.summary;
    assert!(
        found.believed_coverage > 0.95 && found.coverage < 0.05,
        "{found:?}"
    );
    assert!(found.fallbacks > 0 && found.walks_per_read > 0.3);
    let confined = life(CONTIGUITAS, Age::Scattered(0.03), 0, 0).summary;
    assert!(confined.coverage > 0.95, "{confined:?}");
}

#[test]
fn is_a_server_without_enough_memory_an_error_that_says_so() {
    let life = HeapRun {
        server: config(LINUX, 64 * MB, Age::Fresh),
        program: Settings::default(),
        demand: square_wave(100 * MB, 100 * MB, SECOND, SECOND),
        end: SECOND,
        warmup: 0,
        reads: 0,
        seed: 0,
    };
    let error = run(&life, &AtomicBool::new(false), &|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("64MiB") && error.contains("give it more"),
        "{error}"
    );
}

#[test]
fn two_heap_runs_with_one_seed_are_equal() {
    let [first, second] = [(); 2].map(|()| life(LINUX, Age::Scattered(0.002), 8 * MB, 5 * SECOND));
    assert_eq!(first, second);
}
