//! Does each resource of the window limit what it should, as configured and no more?

mod branches;
mod memory;
mod operations;

use crate::common::{load, operation, presets, skylake, store};
use contigua_core::{Blocks, CoreConfig, Error, Ports, Window};
use contigua_program::decode::{Instruction, OperationClass as Class};
use contigua_units::{Cycles, PhysAddr, VirtAddr};

const LINE: u64 = 64;
const FRAME: u64 = 4096;

/// Latencies of an access beyond first-level hits.
#[derive(Clone, Copy, Default)]
struct Answer {
    address: u64,
    translation: u64,
    walked: bool,
    data: u64,
}

/// A hit.
fn hit(address: u64) -> Answer {
    Answer {
        address,
        ..Answer::default()
    }
}

/// A miss of the L1 data cache.
fn miss(address: u64, data: u64) -> Answer {
    Answer {
        data,
        ..hit(address)
    }
}

/// A page walk.
fn walk(address: u64, translation: u64) -> Answer {
    Answer {
        translation,
        walked: true,
        ..hit(address)
    }
}

struct Core {
    window: Window,
    blocks: Blocks,
    learned: usize,
}

impl Core {
    fn new(config: &CoreConfig) -> Self {
        Self {
            window: Window::new(config).unwrap(),
            blocks: Blocks::new(config),
            learned: 0,
        }
    }

    /// Learns a block at an address of its own.
    fn block(&mut self, code: &[Instruction]) -> usize {
        self.block_at(0x40_0000 + 0x1000 * self.learned as u64, code)
    }

    fn block_at(&mut self, address: u64, code: &[Instruction]) -> usize {
        let lengths = vec![4; code.len()];
        let address = VirtAddr::new(address);
        self.blocks.learn(self.learned, address, &lengths, code);
        self.learned += 1;
        self.learned - 1
    }

    fn enter(&mut self, block: usize) {
        self.window.enter(&self.blocks, block);
    }

    fn access(&mut self, index: usize, store: bool, answer: Answer) -> u64 {
        let start = self.window.access(&self.blocks, index, store);
        self.window.answer(
            PhysAddr::new(answer.address),
            Cycles::new(answer.translation),
            answer.walked,
            Cycles::new(answer.data),
        );
        start.get()
    }

    fn load(&mut self, index: usize, answer: Answer) -> u64 {
        self.access(index, false, answer)
    }

    fn store(&mut self, index: usize, answer: Answer) -> u64 {
        self.access(index, true, answer)
    }

    /// The time when everything is done.
    fn done(&mut self) -> u64 {
        self.window.drain(&self.blocks);
        assert_eq!(self.window.breakdown().total(), self.window.cycles());
        self.window.cycles().get()
    }
}

/// Cycles of a block of `count` times `code`.
fn time(config: &CoreConfig, code: Instruction, count: usize) -> u64 {
    let mut core = Core::new(config);
    let block = core.block(&vec![code; count]);
    core.enter(block);
    core.done()
}

/// A core after one block of as many loads, with what they met.
fn loads(config: &CoreConfig, code: Instruction, answers: &[Answer]) -> Core {
    let mut core = Core::new(config);
    let block = core.block(&vec![code; answers.len()]);
    core.enter(block);
    for (index, answer) in answers.iter().enumerate() {
        core.load(index, *answer);
    }
    core
}

fn lines(count: u64, data: u64) -> Vec<Answer> {
    (0..count).map(|n| miss(n * LINE, data)).collect()
}

#[test]
fn does_an_atomic_wait_for_all_before_and_hold_all_after() {
    let config = skylake();
    let latency = u64::from(config.latency_cycles.load);
    let mut core = Core::new(&config);
    let atomic = Instruction {
        class: Class::Atomic,
        stores: 1,
        ..load(&[0], 1)
    };
    let block = core.block(&[store(&[0], &[1]), atomic, load(&[0], 2)]);
    core.enter(block);
    core.store(0, miss(0, 200));
    // The store retires at 1, then its line takes 200 cycles.
    assert_eq!(core.load(1, hit(LINE)), 1 + 200);
    let retired = 201 + latency + u64::from(config.latency_cycles.atomic);
    assert_eq!(core.store(1, hit(LINE)), retired);
    assert_eq!(core.load(2, hit(2 * LINE)), retired + 1);
    core.done();
    assert!(core.window.breakdown().data >= Cycles::new(199));
}

#[test]
fn does_the_front_end_hide_fetches_when_it_is_ahead() {
    let config = skylake();
    let queue = config.fetch_queue as usize;
    let width = u64::from(config.issue_width);
    let nop = operation(Class::Nop, &[], &[]);
    let run = |before: usize, latency: u64| {
        let mut core = Core::new(&config);
        let start = core.block(&vec![nop; before]);
        let after = core.block(&[load(&[0], 1)]);
        core.enter(start);
        core.enter(after);
        let fetch = Cycles::new(latency);
        core.window.fetch(Cycles::ZERO, false, fetch);
        let start = core.load(0, hit(0));
        core.done();
        (start, core.window.breakdown().fetch.get())
    };
    // Nothing is ahead of the first instruction, which is the target of a taken branch.
    let first = 30 + u64::from(config.taken_branch_cycles);
    assert_eq!(run(0, 30), (first, 30));
    // The front end is a queue ahead, which is worth `queue / width` cycles, of which the branch
    // takes some.
    let hidden = queue as u64 / width - u64::from(config.taken_branch_cycles);
    let dispatch = 10 * queue as u64 / width;
    assert_eq!(run(10 * queue, hidden), (dispatch, 0));
    assert_eq!(run(10 * queue, hidden + 5).0, dispatch + 5);
    let stalled = run(10 * queue, hidden + 5).1;
    assert!((4..=5).contains(&stalled), "{stalled}");
}

#[test]
fn are_fetches_charged_to_translation_and_then_to_the_line() {
    let config = skylake();
    let mut core = Core::new(&config);
    let block = core.block(&[operation(Class::Nop, &[], &[])]);
    core.enter(block);
    core.window.fetch(Cycles::new(40), true, Cycles::new(10));
    core.window.fetch(Cycles::ZERO, false, Cycles::new(7));
    assert_eq!(core.done(), 58);
    let parts = core.window.breakdown();
    assert_eq!(
        (parts.walk, parts.fetch),
        (Cycles::new(40), Cycles::new(17))
    );
    core.enter(block);
    core.window.fetch(Cycles::new(9), false, Cycles::ZERO);
    core.done();
    assert_eq!(core.window.breakdown().tlb, Cycles::new(9));
}

#[test]
fn does_a_fault_restart_the_access_after_the_kernel() {
    let config = skylake();
    let mut core = Core::new(&config);
    let block = core.block(&[operation(Class::Nop, &[], &[]), load(&[0], 1)]);
    core.enter(block);
    assert_eq!(core.window.access(&core.blocks, 1, false), Cycles::ZERO);
    core.window.kernel(Cycles::new(1000));
    let (translation, data) = (Cycles::new(30), Cycles::new(10));
    core.window
        .answer(PhysAddr::new(LINE), translation, true, data);
    let latency = u64::from(config.latency_cycles.load);
    assert_eq!(core.done(), 1 + 1000 + 40 + latency);
    let parts = core.window.breakdown();
    assert_eq!(parts.kernel, Cycles::new(1000));
    assert_eq!((parts.walk, parts.data), (translation, data));
}

#[test]
fn does_waiting_count_as_idle_and_never_go_back() {
    let mut core = Core::new(&skylake());
    core.window.wait_until(Cycles::new(500));
    core.window.wait_until(Cycles::new(300));
    assert_eq!(core.window.now(), Cycles::new(500));
    assert_eq!(core.window.breakdown().idle, Cycles::new(500));
    core.window.reset();
    assert_eq!(core.window.cycles(), Cycles::ZERO);
    assert_eq!(core.window.now(), Cycles::new(500));
    core.window.wait_until(Cycles::new(501));
    assert_eq!(core.done(), 1);
}

#[test]
fn is_code_that_is_not_known_as_wide_as_issue() {
    for config in presets() {
        let mut core = Core::new(&config);
        core.blocks.learn(3, VirtAddr::new(0x1000), &[4; 1200], &[]);
        assert!(core.blocks.knows(3) && !core.blocks.knows(2) && !core.blocks.knows(4));
        core.enter(3);
        assert_eq!(core.done(), 1200 / u64::from(config.issue_width));
    }
}

#[test]
fn is_the_stack_pointer_free_of_dependences() {
    const RSP: u32 = 4;
    let config = skylake();
    let mut pop = load(&[RSP], 0);
    pop.writes = crate::common::registers(&[0, RSP]);
    let hits: Vec<_> = (0..1000).map(|n| hit(n * 8)).collect();
    let cycles =
        1000 / u64::from(config.ports.load.count()) - 1 + u64::from(config.latency_cycles.load);
    assert_eq!(loads(&config, pop, &hits).done(), cycles);
}

#[test]
fn do_accesses_outside_of_blocks_count_as_instructions() {
    let config = skylake();
    let mut core = Core::new(&config);
    let block = core.block(&[load(&[0], 1), load(&[0], 1)]);
    core.enter(block);
    core.load(0, hit(0));
    core.window.drain(&core.blocks);
    // The thread comes back and finishes the block, which has executed.
    core.load(1, hit(0));
    core.done();
    assert_eq!(core.window.counters().operations, 3);
    assert_eq!(core.window.counters().loads, 2);
}

#[test]
fn does_a_string_instruction_copy_at_the_speed_of_the_store_buffer() {
    let config = skylake();
    let mut core = Core::new(&config);
    let copy = Instruction {
        class: Class::Other,
        loads: 1,
        stores: 1,
        ..operation(Class::Other, &[1, 6, 7], &[1, 6, 7])
    };
    let block = core.block(&[copy]);
    core.enter(block);
    for n in 0..10_000 {
        core.load(0, hit(n * 8));
        core.store(0, hit((1 << 30) + n * 8));
    }
    let cycles = core.done();
    assert!((10_000..10_100).contains(&cycles), "{cycles}");
    assert_eq!(core.window.counters().operations, 10_000);
}

#[test]
fn does_a_fast_string_begin_alone_and_then_store_once_a_cycle() {
    let config = skylake();
    let start = u64::from(config.latency_cycles.fast_string);
    let fill = Instruction {
        class: Class::FastString,
        stores: 1,
        ..operation(Class::FastString, &[0, 1, 7], &[1, 7])
    };
    for count in [1, 128, 32_768] {
        let mut core = Core::new(&config);
        let block = core.block(&[fill]);
        core.enter(block);
        for n in 0..count {
            core.store(0, hit(n * 32));
        }
        let cycles = core.done();
        let least = if count == 1 { 1 } else { start + count - 1 };
        assert!((least..least + 30).contains(&cycles), "{count}: {cycles}");
    }
    // One after another, none gets in front of the beginning of another.
    let mut core = Core::new(&config);
    let block = core.block(&[fill]);
    for n in 0..100 {
        core.enter(block);
        core.store(0, hit(n * 32));
    }
    let cycles = core.done();
    assert!(cycles >= 99 * start, "{cycles}");
}

#[test]
fn are_impossible_cores_refused() {
    let refused = |change: fn(&mut CoreConfig)| {
        let mut config = skylake();
        change(&mut config);
        Window::new(&config).unwrap_err()
    };
    let text = |change| refused(change).to_string();
    assert_eq!(
        text(|core| core.issue_width = 0),
        "core.issue_width is 0; it is 1 to 64"
    );
    assert_eq!(
        text(|core| core.page_walkers = 0),
        "core.page_walkers is 0; it is 1 to 65536"
    );
    assert_eq!(
        refused(|core| core.branch_predictor.target_entries = 3),
        Error::PowerOfTwo {
            key: "branch_predictor.target_entries",
            value: 3
        }
    );
    assert_eq!(
        text(|core| core.ports.float = Ports::Numbers(vec![3, 16])),
        "core.ports.float[1] is 16; it is 0 to 15"
    );
    for (numbers, value) in [(vec![], "[]"), (vec![1, 1], "[1, 1]")] {
        let mut config = skylake();
        config.ports.float = Ports::Numbers(numbers);
        assert_eq!(
            Window::new(&config).unwrap_err(),
            Error::Ports {
                key: "ports.float",
                value: value.to_owned()
            }
        );
    }
    let many =
        refused(|core| (core.ports.integer, core.ports.float) = (Ports::Own(9), Ports::Own(8)));
    assert_eq!(many, Error::ManyPorts);
}
