//! A core that executes instructions out of order within a window.
//!
//! Instructions come in program order. For each one the model works out *when* it dispatches,
//! starts, completes and retires, from the same times of earlier instructions; nothing is stepped
//! cycle by cycle, and the work for an instruction does not depend on the times that come out. The
//! idea is zsim's (Sanchez and Kozyrakis, ISCA 2013, section 3.1). `docs/design/core.md` says what
//! is modeled and what is not.
//!
//! The rules, in the order in which an instruction meets them:
//!
//! - **Dispatch**, in order, `issue_width` a cycle, when the front end delivers it and there is a
//!   place in the window, for a load in the load buffer, for a store in the store buffer.
//! - **Start**, when its operands are ready and a unit of its kind is free. Unit by unit, earlier
//!   instructions of the program have precedence.
//! - **Access**: a load starts on a load port when its address is known; then translation, then
//!   data. A miss holds a miss register for as long as the latency beyond the first level, a page
//!   walk holds a walker. Lines reach the first level one in `fill_cycles`. A load of a line that is on its way waits for it; a load from a frame
//!   whose translation is being walked waits for that. A load of a word that is in the store buffer
//!   gets it from there.
//! - A repeated `movs` or `stos` keeps everything behind its first place in the window from
//!   dispatching for `fast_string` cycles: its microcode begins.
//! - **Retirement**, in order, `retire_width` a cycle, from the cycle in which it completes. That
//!   frees its place in the window for an instruction that dispatches in the same cycle.
//! - **Commitment** of a store: a store that misses asks for its line when it retires (Intel's
//!   cores ask for ownership early, too), so that misses of stores overlap; data go to the cache in
//!   order, one store a cycle.
//!
//! Time does not go back: a [`Window`]'s clock is the cycle of the latest retirement. A cycle in
//! which an instruction retires counts as [`issue`](CycleBreakdown::issue); all others are charged
//! to what the oldest instruction, which retires at the end of the wait, was waiting for then.

mod accesses;
mod blocks;
mod branch;
mod memory;
mod timeline;
mod units;
mod walks;
mod wrong_path;

use contigua_state::Plain;
use contigua_state::State;
use contigua_units::Cycles;
use schemars::JsonSchema;
use serde::Serialize;

use crate::config::masks;
use crate::{CycleBreakdown, Error, WindowConfig};

pub use blocks::{Blocks, Exit};
pub use walks::{WalkActivity, WalkCycles};

use accesses::Open;
use blocks::{Operation, unit};
use branch::Predictor;
use memory::{InFlight, Stored};
use units::{Holders, Ring, SharedPorts, Units};
use walks::{Meters, Purpose};
use wrong_path::WrongPath;

/// Event counters of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct CoreCounters {
    /// Entries of the window that were used: one for each instruction, more for string
    /// instructions, none for branches that are fused with a comparison.
    pub operations: u64,
    /// Loads that were answered.
    pub loads: u64,
    /// Stores that were answered.
    pub stores: u64,
    /// Branches that needed a prediction: all but direct jumps and calls.
    pub branches: u64,
    /// Predictions that were wrong.
    pub mispredictions: u64,
    /// Dispatches that waited for a place in the window, or for a register.
    pub window_full: u64,
    /// Dispatches that waited for a place in the load buffer.
    pub load_buffer_full: u64,
    /// Dispatches that waited for a place in the store buffer.
    pub store_buffer_full: u64,
    /// Misses that waited for a miss register.
    pub miss_registers_full: u64,
    /// Page walks that waited for a walker.
    pub page_walkers_full: u64,
    /// Accesses to a line that was on its way.
    pub merged_misses: u64,
    /// Accesses to a frame whose translation was on its way.
    pub merged_walks: u64,
    /// Loads that got their data from the store buffer.
    pub forwarded_loads: u64,
}

/// Targets of branches are far if this bit of their address or a higher one differs: on Zen 4 those take longer
/// (`benches/instructions.py`).
const FAR_BIT: u32 = 37;

/// The block that executes.
#[derive(Clone, Copy, Debug, Plain)]
struct Current {
    /// Its first operation.
    first: u32,
    count: u32,
    /// The next one to execute.
    next: u32,
    /// Fetches beyond the first that it takes, with the blocks before it since the last taken branch.
    more_fetches: u32,
    /// Address of what follows in memory.
    end: u64,
    exit: Exit,
}

const NO_BLOCK: Current = Current {
    first: 0,
    count: 0,
    next: 0,
    more_fetches: 0,
    end: 0,
    exit: Exit::Known,
};

/// When an instruction got past what could hold it up.
#[derive(Clone, Copy, Debug, Default, Plain)]
struct Marks {
    /// Place in the store buffer; stores before a barrier.
    stores: u64,
    dispatch: u64,
    /// The access that completed last: its start, ...
    start: u64,
    /// ... translation, ...
    translated: u64,
    walked: bool,
    /// ... arrival of its line.
    fetched: u64,
}

/// Causes that hold up dispatch.
#[derive(Clone, Copy, Debug, Default, Plain)]
struct FrontEnd {
    /// When the next instruction is delivered, and what it was waiting for: the end of a
    /// misprediction's penalty, then the end of a fetch's translation, then the line.
    ready: u64,
    redirected: u64,
    translated: u64,
    walked: bool,
    /// When the target of the latest taken branch is fetched.
    taken: u64,
    /// Nothing dispatches before an instruction that drains the window is done.
    barrier: u64,
}

/// One core with an instruction window.
///
/// The times that it takes and gives are those of one clock that never goes back:
/// [`now`](Self::now). What it reports, [`cycles`](Self::cycles) among it, counts from the last
/// [`reset`](Self::reset).
#[derive(Clone, Debug, State)]
pub struct Window {
    #[state(skip)]
    issue_width: u32,
    #[state(skip)]
    retire_width: u32,
    #[state(skip)]
    mispredict_penalty: u64,
    /// From the fetch of a taken jump or conditional branch to that of its target.
    #[state(skip)]
    taken_branch: u64,
    /// Of a call or return.
    #[state(skip)]
    taken_call: u64,
    #[state(skip)]
    far_branch: u64,
    /// Bits of an address within what a cycle fetches.
    #[state(skip)]
    fetch_bits: u32,
    #[state(skip)]
    load_latency: u64,
    #[state(skip)]
    forward_latency: u64,
    fast_string: u64,

    current: Current,
    is_open: bool,
    open: Open,
    /// When the latest instruction completed: for a branch, when it is resolved.
    last_done: u64,

    /// The latest dispatch, and how many there were in its cycle.
    front: u64,
    front_used: u32,
    front_end: FrontEnd,
    /// Number of instructions that had dispatched at the latest fetch.
    fetched_count: u64,
    /// End of the latest fetch.
    fetched: u64,
    predictor: Predictor,

    /// Retirements of all instructions.
    reorder_buffer: Ring,
    /// Dispatches.
    fetch_queue: Ring,
    /// Retirements of instructions that write general registers, and of those that write vector registers.
    general_registers: Ring,
    vector_registers: Ring,
    /// Retirements of loads.
    load_buffer: Ring,
    /// Commitments of stores.
    store_buffer: Ring,

    ready: [u64; 64],
    wrong_path: WrongPath,
    ports: SharedPorts,
    memory_ports: SharedPorts,
    /// Of integers, of floating-point numbers, and of 128 bits. That the first and the last are one
    /// is not modeled.
    #[state(fixed)]
    dividers: [Units; 3],
    /// Places in the window that integer divisions take.
    #[state(skip)]
    divide_slots: u32,
    /// Those of 128 bits.
    #[state(skip)]
    divide_64_slots: u32,
    /// Places in the window that instructions have taken but for their first.
    more_places: u64,
    miss_registers: Holders,
    /// Lines that reach the L1 data cache.
    fills: Units,
    page_walkers: Holders,
    /// Cycles before a walk in which the second-level TLB is looked up, and no walker is held.
    #[state(skip)]
    second_level_tlb: u64,
    lines: InFlight,
    walks: InFlight,
    meters: Meters,
    stored: Stored,

    /// The latest retirement, and how many there were in its cycle.
    retired: u64,
    retired_used: u32,
    /// The latest commitment.
    committed: u64,

    /// The time and the number of operations when the figures started anew.
    origin: u64,
    operations_before: u64,
    breakdown: CycleBreakdown,
    counters: CoreCounters,
}

impl Window {
    /// A core at time 0.
    ///
    /// # Errors
    /// [`Error::IssueWidth`], [`Error::Range`] and [`Error::PowerOfTwo`].
    pub fn new(config: &WindowConfig) -> Result<Self, Error> {
        config.validate()?;
        let shared = |masks: Option<Vec<u16>>| masks.map(|masks| SharedPorts::new(&masks));
        let intervals = &config.divide_interval_cycles;
        Ok(Self {
            issue_width: config.issue_width,
            retire_width: config.retire_width,
            mispredict_penalty: config.mispredict_penalty_cycles.get(),
            taken_branch: config.taken_branch_cycles.into(),
            taken_call: config
                .call_cycles
                .unwrap_or(config.taken_branch_cycles)
                .into(),
            far_branch: config.far_branch_cycles.unwrap_or_default().into(),
            fetch_bits: config.fetch_bytes.map_or(63, u32::ilog2),
            load_latency: config.latency_cycles.load.into(),
            forward_latency: config.latency_cycles.store_forward.into(),
            fast_string: config.latency_cycles.fast_string.into(),
            current: NO_BLOCK,
            is_open: false,
            open: Open::none(),
            last_done: 0,
            front: 0,
            front_used: 0,
            front_end: FrontEnd::default(),
            fetched_count: 0,
            fetched: 0,
            predictor: Predictor::new(&config.branch_predictor),
            reorder_buffer: Ring::new(config.window),
            fetch_queue: Ring::new(config.fetch_queue),
            general_registers: Ring::new(config.general_registers.unwrap_or(config.window)),
            vector_registers: Ring::new(config.vector_registers.unwrap_or(config.window)),
            load_buffer: Ring::new(config.load_buffer),
            store_buffer: Ring::new(config.store_buffer),
            ready: [0; 64],
            wrong_path: WrongPath::new(config.issue_width),
            ports: shared(config.ports.execution_masks()).ok_or(Error::ManyPorts)?,
            memory_ports: shared(masks(&config.ports.memory())).ok_or(Error::ManyPorts)?,
            dividers: [
                Units::new(1, intervals.integer),
                Units::new(1, intervals.float),
                Units::new(1, intervals.integer_64.unwrap_or(intervals.integer)),
            ],
            divide_slots: config.slots.divide,
            divide_64_slots: config.slots.divide_64.unwrap_or(config.slots.divide),
            more_places: 0,
            miss_registers: Holders::new(config.miss_registers, 0),
            fills: Units::new(1, config.fill_cycles),
            page_walkers: Holders::new(config.page_walkers, config.page_walk_replay_cycles),
            second_level_tlb: 0,
            lines: InFlight::new(),
            walks: InFlight::new(),
            meters: Meters::default(),
            stored: Stored::new(),
            retired: 0,
            retired_used: 0,
            committed: 0,
            origin: 0,
            operations_before: 0,
            breakdown: CycleBreakdown::default(),
            counters: CoreCounters::default(),
        })
    }

    /// The core, where translations that are walked for begin with a look-up of the second-level TLB of so
    /// many cycles: they hold a walker after it. 0 without this call.
    #[must_use]
    pub fn with_second_level_tlb(mut self, cycles: Cycles) -> Self {
        self.second_level_tlb = cycles.get();
        self
    }

    /// Holds a walker for a translation that begins at `start`; when it is there.
    #[inline]
    fn walk(&mut self, purpose: Purpose, start: u64, latency: u64) -> u64 {
        let looked_up = self.second_level_tlb.min(latency);
        let (ready, length) = (start + looked_up, latency - looked_up);
        let begin = self.page_walkers.hold(ready, length);
        self.counters.page_walkers_full += u64::from(begin > ready);
        self.meters.walk(purpose, begin, length);
        begin + length
    }

    /// The program enters a block: what is left of the block before executes, then the branch
    /// between them is predicted. Taken branches are fetched one in `taken_branch_cycles`
    /// (`call_cycles`, and `far_branch_cycles` more), code before them in units of `fetch_bytes` a cycle, up to `fetch_queue` instructions ahead of dispatch. A misprediction holds up the
    /// front end until `mispredict_penalty_cycles` after the branch completes.
    ///
    /// # Panics
    /// When the block was not learned.
    pub fn enter(&mut self, blocks: &Blocks, block: usize) {
        self.finish(blocks);
        let next = blocks.get(block);
        let is_taken = self.current.end != NO_BLOCK.end && next.start != self.current.end;
        let exit = self.current.exit;
        self.predict(next.start);
        if is_taken {
            let start = self.front_end.taken.max(self.fetch_queue.free());
            let mut taken = if exit.is_call_or_return() {
                self.taken_call
            } else {
                self.taken_branch
            };
            taken += u64::from(self.current.more_fetches);
            if exit.is_indirect() && (self.current.end ^ next.start) >> FAR_BIT != 0 {
                taken += self.far_branch;
            }
            self.front_end.taken = (start + taken).max(self.front_end.redirected);
            self.front_end.ready = self.front_end.ready.max(self.front_end.taken);
        }
        let follows = next.start == self.current.end;
        let (before, from) = if follows {
            (self.current.more_fetches, next.start.wrapping_sub(1))
        } else {
            (0, next.start)
        };
        let [from, last] =
            [from, next.end.wrapping_sub(1)].map(|address| address >> self.fetch_bits);
        self.current = Current {
            more_fetches: before.saturating_add(last.saturating_sub(from) as u32),
            first: next.first,
            count: next.count,
            next: 0,
            end: next.end,
            exit: next.exit,
        };
    }

    /// The program executes a block from `start` to `end`, and only the branch predictor learns from
    /// it. The window is drained before the first of such blocks; [`wait_until`](Self::wait_until)
    /// lets time pass.
    #[inline]
    pub fn pass(&mut self, start: u64, end: u64, exit: Exit) {
        self.train(start);
        self.current = Current {
            end,
            exit,
            ..NO_BLOCK
        };
    }

    /// An instruction fetch for the block that was just entered took this long beyond a
    /// first-level hit: its translation, by a page walk if `walked`, and then its data. Fetches of
    /// a block follow each other.
    ///
    /// The front end runs ahead of dispatch by up to `fetch_queue` instructions: a fetch starts
    /// when that many instructions before it have yet to dispatch, but not before the fetch that
    /// precedes it is done, nor before a misprediction is over. What is left of it when the
    /// instruction could dispatch is a stall.
    pub fn fetch(&mut self, translation: Cycles, walked: bool, data: Cycles) {
        let start = self.front_end.ready.max(self.fetch_queue.free());
        // Of fetches that make one stall, translations are charged first, then data.
        let count = self.fetch_queue.count();
        let before = if self.fetched_count == count && self.fetched == start {
            self.front_end.translated
        } else {
            start
        };
        let translation = translation.get();
        let mut waited = 0;
        if translation > 0 {
            self.front_end.walked = walked;
            if walked {
                let end = self.walk(Purpose::Fetch, start, translation);
                waited = end - translation - start;
            }
        }
        self.front_end.translated = before + waited + translation;
        self.front_end.ready = start + waited + translation + data.get();
        (self.fetched_count, self.fetched) = (count, self.front_end.ready);
    }

    /// The thread leaves the core or enters the kernel, perhaps in the middle of a block: what is
    /// left of the block executes and the window drains; the next [`enter`](Self::enter) needs no
    /// branch prediction. Stores that have retired may still be on their way to the cache.
    pub fn drain(&mut self, blocks: &Blocks) {
        self.finish(blocks);
        self.current = NO_BLOCK;
        self.resume();
    }

    /// The kernel worked this long. An access that waits for its answer, because it faulted, starts
    /// anew afterwards.
    pub fn kernel(&mut self, work: Cycles) {
        self.retired += work.get();
        self.breakdown.kernel += work;
        self.resume();
    }

    /// The core has nothing to do until `time`, on the clock of [`now`](Self::now). Has no effect
    /// when that is past.
    #[inline]
    pub fn wait_until(&mut self, time: Cycles) {
        let idle = time.get().saturating_sub(self.retired);
        self.retired += idle;
        self.breakdown.idle += Cycles::new(idle);
        self.resume();
    }

    /// The core's clock: the time of the latest retirement. Never goes back.
    #[must_use]
    pub fn now(&self) -> Cycles {
        Cycles::new(self.retired)
    }

    /// Cycles since the last [`reset`](Self::reset).
    #[must_use]
    pub fn cycles(&self) -> Cycles {
        Cycles::new(self.retired - self.origin)
    }

    /// Breakdown of the cycles since the last [`reset`](Self::reset). The parts add up to
    /// [`cycles`](Self::cycles).
    #[must_use]
    pub fn breakdown(&self) -> CycleBreakdown {
        self.breakdown
    }

    /// Counters since the last [`reset`](Self::reset).
    #[must_use]
    pub fn counters(&self) -> CoreCounters {
        CoreCounters {
            operations: self.operations() - self.operations_before,
            ..self.counters
        }
    }

    /// Page walks since the last [`reset`](Self::reset).
    #[must_use]
    pub fn walks(&self) -> WalkActivity {
        self.meters.activity()
    }

    /// Resets the reported values. What is in flight, what is predicted and the clock of
    /// [`now`](Self::now) stay as they are.
    pub fn reset(&mut self) {
        self.origin = self.retired;
        self.operations_before = self.operations();
        self.breakdown = CycleBreakdown::default();
        self.counters = CoreCounters::default();
        self.meters.reset();
    }

    /// Executes what is left of the block.
    fn finish(&mut self, blocks: &Blocks) {
        self.close();
        self.run(blocks, self.current.count);
    }

    /// Executes the block up to instruction `end`, none of which accesses memory.
    #[inline]
    fn run(&mut self, blocks: &Blocks, end: u32) {
        let Current { first, next, .. } = self.current;
        for operation in &blocks.operations[(first + next) as usize..(first + end) as usize] {
            self.execute(operation);
        }
        self.current.next = end;
    }

    #[inline]
    fn execute(&mut self, operation: &Operation) {
        let mut marks = Marks::default();
        let window = self.window_free(operation);
        let dispatch = self.dispatch(window, 0, operation.slots());
        marks.dispatch = dispatch;
        let mut operands = operation.sources(&self.ready).max(dispatch);
        if operation.drains() {
            marks.stores = self.committed;
            operands = operands.max(self.retired).max(self.committed);
        }
        let done = self.perform(operation, operands, dispatch);
        operation.write(&mut self.ready, done);
        self.last_done = done;
        if self.wrong_path.is_active() {
            self.wrong_path.execute(operation, dispatch, window, done);
        }
        self.retire(operation, done, &marks);
        if operation.is_rare() {
            self.follow_rare(operation);
        }
    }

    /// Such an operation has retired: what drains the window lets others dispatch now, and a division's
    /// microcode takes more places.
    fn follow_rare(&mut self, operation: &Operation) {
        if operation.drains() {
            self.front_end.barrier = self.retired;
            return;
        }
        let more = if operation.unit() == usize::from(unit::DIVIDE_64) {
            self.divide_64_slots - 1
        } else {
            self.divide_slots - 1
        };
        for _ in 0..more {
            self.reorder_buffer.push(self.retired);
        }
        self.more_places += u64::from(more);
        let places = self.front_used + more;
        let cycles = (places - 1) / self.issue_width;
        self.front += u64::from(cycles);
        self.front_used = places - cycles * self.issue_width;
    }

    /// Number of operations so far.
    fn operations(&self) -> u64 {
        self.reorder_buffer.count() - self.more_places
    }

    /// When there is a place in the window for an operation, and registers for its results.
    #[inline]
    fn window_free(&self, operation: &Operation) -> u64 {
        let mask = |needed: u64| needed.wrapping_neg();
        let (general, vector) = operation.registers();
        let general = self.general_registers.free() & mask(general);
        let vector = self.vector_registers.free() & mask(vector);
        self.reorder_buffer.free().max(general.max(vector))
    }

    /// Takes a place in the window, which is free from `window` on, not before `slot`, and so many of the
    /// cycle's places.
    #[inline]
    fn dispatch(&mut self, window: u64, slot: u64, slots: u32) -> u64 {
        let others = self.front_end.ready.max(self.front_end.barrier).max(slot);
        let earliest = window.max(others);
        // What follows is arithmetic: branches on what a program does, the host predicts badly.
        let waits = earliest > self.front;
        let full = self.front_used + slots > self.issue_width;
        self.counters.window_full += u64::from(waits && window > others);
        self.front = earliest.max(self.front + u64::from(full));
        self.front_used = if waits | full {
            slots
        } else {
            self.front_used + slots
        };
        self.fetch_queue.push(self.front);
        self.front
    }

    /// Executes `operation` from `operands` on, and says when it is done.
    #[inline]
    fn perform(&mut self, operation: &Operation, operands: u64, dispatch: u64) -> u64 {
        let start = self.start(operation.unit(), operands, dispatch);
        (start + operation.latency()).max(dispatch + 1)
    }

    /// Retires an instruction that is done then.
    #[inline]
    fn retire(&mut self, operation: &Operation, done: u64, marks: &Marks) {
        if done > self.retired + 1 {
            self.breakdown
                .attribute(self.retired, done - 1, &self.front_end, marks);
        }
        self.leave(done, operation.registers());
    }

    /// An instruction that is done then, and has so many registers, leaves the window.
    #[inline]
    fn leave(&mut self, done: u64, (general, vector): (u64, u64)) {
        let later = done > self.retired;
        let full = self.retired_used == self.retire_width;
        let next_cycle = later | full;
        self.retired = done.max(self.retired + u64::from(full));
        self.retired_used = if next_cycle { 1 } else { self.retired_used + 1 };
        self.breakdown.issue += Cycles::new(u64::from(next_cycle));
        self.reorder_buffer.push(self.retired);
        self.general_registers.push_some(general, self.retired);
        self.vector_registers.push_some(vector, self.retired);
    }

    /// When what executes an operation takes it.
    #[inline]
    fn start(&mut self, unit: usize, operands: u64, dispatch: u64) -> u64 {
        const DIVIDE: usize = unit::DIVIDE as usize;
        if unit < DIVIDE {
            self.ports.start(unit, operands, dispatch)
        } else if let Some(divider) = self.dividers.get_mut(unit - DIVIDE) {
            divider.start(operands, dispatch)
        } else {
            operands
        }
    }

    /// Predicts the branch at the end of the current block, which went to `target`.
    fn predict(&mut self, target: u64) {
        let Some(right) = self.train(target) else {
            return;
        };
        self.counters.branches += 1;
        if !right {
            self.counters.mispredictions += 1;
            self.front_end.redirected = self.last_done + self.mispredict_penalty;
            self.front_end.ready = self.front_end.ready.max(self.front_end.redirected);
            self.wrong_path
                .begin(self.front, self.last_done, &self.ready);
        }
    }

    /// The current block goes on to `target`: the predictor learns, and says whether it was right
    /// where it had to predict.
    #[inline]
    fn train(&mut self, target: u64) -> Option<bool> {
        let after = self.current.end;
        // Most often, and in the host's code a branch of its own.
        if self.current.exit == Exit::Conditional {
            return Some(self.predictor.direction(after, target != after));
        }
        match self.current.exit {
            Exit::Known | Exit::Conditional => None,
            Exit::Call => {
                self.predictor.call(after);
                None
            }
            Exit::Indirect => Some(self.predictor.target(after, target)),
            Exit::IndirectCall => {
                self.predictor.call(after);
                Some(self.predictor.target(after, target))
            }
            Exit::Return => Some(self.predictor.ret(target)),
        }
    }

    /// Goes on at the latest retirement, with nothing in the window but an access that waits for
    /// its answer.
    fn resume(&mut self) {
        let now = self.retired;
        self.front_end.ready = self.front_end.ready.max(now);
        self.wrong_path.end();
        self.resume_access(now);
    }
}

impl CycleBreakdown {
    /// Charges the cycles from `from`, the latest retirement, to `end` to what the instruction that
    /// retires next was waiting for.
    #[inline(never)]
    fn attribute(&mut self, mut from: u64, end: u64, front_end: &FrontEnd, marks: &Marks) {
        let mut charge = |part: &mut Cycles, until: u64| {
            let until = until.min(end).max(from);
            *part += Cycles::new(until - from);
            from = until;
        };
        charge(&mut self.branch, front_end.redirected);
        let fetch = if front_end.walked {
            &mut self.walk
        } else {
            &mut self.tlb
        };
        charge(fetch, front_end.translated);
        charge(&mut self.fetch, front_end.ready);
        charge(&mut self.data, front_end.barrier.max(marks.stores));
        charge(&mut self.issue, marks.dispatch);
        charge(&mut self.dependence, marks.start);
        let translation = if marks.walked {
            &mut self.walk
        } else {
            &mut self.tlb
        };
        charge(translation, marks.translated);
        charge(&mut self.data, marks.fetched);
        charge(&mut self.dependence, end);
    }
}
