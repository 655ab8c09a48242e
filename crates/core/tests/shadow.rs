//! Does the shadow know what translation costs?

use crate::common::{load, operation, skylake};
use contigua_core::{Blocks, ShadowedWindow, Window};
use contigua_program::decode::OperationClass as Class;
use contigua_units::{Cycles, PhysAddr, VirtAddr};
use proptest::prelude::*;

const CODE: u64 = 0x40_0000;

/// A load, whose address the one before it gave if it is `chained`, and three additions.
fn blocks(chained: bool) -> Blocks {
    let mut blocks = Blocks::new(&skylake());
    let add = operation(Class::IntegerSimple, &[5], &[5]);
    let source = if chained { 1 } else { 2 };
    let code = [load(&[source], 1), add, add, add];
    blocks.learn(0, VirtAddr::new(CODE), &[4; 4], &code);
    blocks
}

struct Run {
    saved: f64,
    cycles: u64,
    perfect: u64,
}

/// So many loads, with what each takes to translate and to fetch.
fn run(chained: bool, loads: u64, latency: impl Fn(u64) -> (u64, u64)) -> Run {
    let blocks = blocks(chained);
    let config = skylake();
    let mut window = ShadowedWindow::new(&config).unwrap();
    let mut perfect = Window::new(&config).unwrap();
    for number in 0..loads {
        let (translation, data) = latency(number);
        window.enter(&blocks, 0, 4);
        perfect.enter(&blocks, 0);
        window.access(&blocks, 0, false);
        perfect.access(&blocks, 0, false);
        let address = PhysAddr::new(number << 12);
        let walked = translation > 10;
        window.answer(
            address,
            Cycles::new(translation),
            walked,
            Cycles::new(data),
            None,
        );
        perfect.answer(address, Cycles::ZERO, false, Cycles::new(data));
    }
    window.drain(&blocks);
    perfect.drain(&blocks);
    Run {
        saved: window.saved().unwrap(),
        cycles: window.cycles().get(),
        perfect: perfect.cycles().get(),
    }
}

impl Run {
    /// Error of the shadow, as a share of all cycles.
    fn error(&self) -> f64 {
        let saved = (self.cycles - self.perfect) as f64;
        (self.saved - saved).abs() / self.cycles as f64
    }
}

#[test]
fn walks_on_the_critical_path_cost_all_they_take() {
    let run = run(true, 20_000, |_| (60, 200));
    assert!(run.error() < 0.01, "{} of {}", run.saved, run.cycles);
    assert!((run.saved / run.cycles as f64 - 60.0 / 265.0).abs() < 0.01);
}

#[test]
fn walks_that_wait_for_a_walker_cost_although_misses_overlap() {
    // The instructions wait for data in the end, but the data wait for the walkers.
    let run = run(false, 20_000, |_| (60, 200));
    assert!(run.error() < 0.01, "{} of {}", run.saved, run.cycles);
    assert!(run.saved > 0.2 * run.cycles as f64);
}

#[test]
fn walks_in_the_shade_of_misses_cost_nothing() {
    // One walk in a hundred loads, none of which the others wait for.
    let run = run(false, 20_000, |number| {
        (if number % 100 == 0 { 20 } else { 0 }, 200)
    });
    assert!(run.error() < 0.005, "{} of {}", run.saved, run.cycles);
    assert!(run.saved < 0.01 * run.cycles as f64);
}

#[test]
fn phases_count_by_their_time() {
    // Nine tenths of the time without walks.
    let run = run(true, 400_000, |number| {
        (if number >= 360_000 { 60 } else { 0 }, 200)
    });
    assert!(run.error() < 0.02, "{} of {}", run.saved, run.cycles);
}

#[test]
fn a_short_program_is_seen_whole() {
    let run = run(true, 1000, |_| (60, 200));
    assert!(run.error() < 0.01, "{} of {}", run.saved, run.cycles);
}

#[test]
fn kernel_work_and_idleness_are_not_saved() {
    let blocks = blocks(true);
    let mut window = ShadowedWindow::new(&skylake()).unwrap();
    for number in 0..10_000_u64 {
        window.enter(&blocks, 0, 4);
        window.access(&blocks, 0, false);
        window.answer(
            PhysAddr::new(number << 12),
            Cycles::new(60),
            true,
            Cycles::new(200),
            None,
        );
        window.drain(&blocks);
        window.kernel(Cycles::new(500));
        window.wait_until(window.now() + Cycles::new(500));
    }
    let saved = window.saved().unwrap();
    assert!((saved / (60.0 * 10_000.0) - 1.0).abs() < 0.01, "{saved}");
}

proptest! {
    #[test]
    fn nothing_is_saved_where_translations_take_no_time(
        latencies in proptest::collection::vec(0..300_u64, 400..1500), chained: bool
    ) {
        let run = run(chained, latencies.len() as u64, |number| (0, latencies[number as usize]));
        prop_assert!(run.saved.abs() < f64::EPSILON, "{}", run.saved);
        prop_assert_eq!(run.cycles, run.perfect);
    }
}
