//! A core that executes instructions out of order within a window.
//!
//! Instructions come in program order. For each one the model works out *when* it dispatches,
//! starts, completes and retires, from the same times of earlier instructions; nothing is stepped
//! cycle by cycle, and the work for an instruction does not depend on the times that come out. The
//! idea is zsim's (Sanchez and Kozyrakis, ISCA 2013, section 3.1). `docs/design/core.md` says what
//! is modelled and what is not.
//!
//! The rules, in the order in which an instruction meets them:
//!
//! - **Dispatch**, in order, `issue_width` a cycle, when the front end delivers it and there is a
//!   place in the window, for a load in the load buffer, for a store in the store buffer.
//! - **Start**, when its operands are ready and a unit of its kind is free. Unit by unit, earlier
//!   instructions of the program have precedence.
//! - **Access**: a load starts on a load port when its address is known; then translation, then
//!   data. A miss holds a miss register for as long as the latency beyond the first level, a page
//!   walk holds a walker. A load of a line that is on its way waits for it; a load from a frame
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

mod blocks;
mod branch;
mod memory;
mod units;
mod walks;
mod wrong_path;

use contigua_units::{Cycles, PhysAddr};
use serde::Serialize;

use crate::config::masks;
use crate::{CycleBreakdown, Error, Ports, WindowConfig};

pub use blocks::Blocks;
pub use walks::{WalkActivity, WalkCycles};

use blocks::{Exit, Operation, unit};
use branch::Predictor;
use memory::{InFlight, Stored};
use units::{Holders, Ring, SharedPorts, Units};
use walks::{Meters, Purpose};
use wrong_path::WrongPath;

/// Loads of one instruction that take one place of the window. A gather has 16; a string
/// instruction without stores has any number.
const LOADS_OF_AN_OPERATION: u32 = 16;

/// Lines of a frame, as a power of two.
const LINES_SHIFT: u32 = 6;
const WORD_SHIFT: u32 = 3;

/// How often things happened in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, contigua_state::Plain)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Dispatches that waited for a place in the window.
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

/// The block that executes.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
struct Current {
    /// Its first operation.
    first: u32,
    count: u32,
    /// The next one to execute.
    next: u32,
    /// Address of what follows in memory.
    end: u64,
    exit: Exit,
}

const NO_BLOCK: Current = Current {
    first: 0,
    count: 0,
    next: 0,
    end: 0,
    exit: Exit::Known,
};

/// When an instruction got past what could hold it up.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
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

/// What holds up dispatch.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
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

/// An access that has started and was not answered.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
enum Pending {
    None,
    Load(u64),
    Store(u64),
}

/// The instruction that accesses memory.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
struct Open {
    index: usize,
    operation: Operation,
    marks: Marks,
    dispatch: u64,
    /// When the front end delivers what comes behind its first place in the window.
    delivers: u64,
    /// When its operands in registers are ready.
    sources: u64,
    addresses: u64,
    /// How many loads it made since it took a place in the window, and when all are done.
    loads: u32,
    loaded: u64,
    done: u64,
    retired: bool,
    pending: Pending,
    early: Early,
}

/// The same on a wrong path.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Early {
    dispatch: u64,
    sources: u64,
    addresses: u64,
    /// When the load begins that waits for its answer.
    begins: u64,
    loaded: u64,
}

/// One core with an instruction window.
///
/// The times that it takes and gives are those of one clock that never goes back:
/// [`now`](Self::now). What it reports, [`cycles`](Self::cycles) among it, counts from the last
/// [`reset`](Self::reset).
#[derive(Clone, Debug, contigua_state::State)]
pub struct Window {
    #[state(skip)]
    issue_width: u32,
    #[state(skip)]
    retire_width: u32,
    #[state(skip)]
    mispredict_penalty: u64,
    #[state(skip)]
    taken_branch: u64,
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
    /// How many instructions had dispatched at the latest fetch, and its end.
    fetched: (u64, u64),
    predictor: Predictor,

    /// Retirements of all instructions.
    reorder_buffer: Ring,
    /// Dispatches.
    fetch_queue: Ring,
    /// Retirements of loads.
    load_buffer: Ring,
    /// Commitments of stores.
    store_buffer: Ring,

    ready: [u64; 64],
    wrong_path: WrongPath,
    ports: SharedPorts,
    memory_ports: SharedPorts,
    /// Of integers, of floating-point numbers, and of 128 bits. That the first and the last are one
    /// is not modelled.
    #[state(fixed)]
    dividers: [Units; 3],
    miss_registers: Holders,
    page_walkers: Holders,
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
        let ports = |kinds: &[&Ports]| masks(kinds).map(|masks| SharedPorts::new(&masks));
        let intervals = &config.divide_interval_cycles;
        Ok(Self {
            issue_width: config.issue_width,
            retire_width: config.retire_width,
            mispredict_penalty: config.mispredict_penalty_cycles.get(),
            taken_branch: config.taken_branch_cycles.into(),
            load_latency: config.latency_cycles.load.into(),
            forward_latency: config.latency_cycles.store_forward.into(),
            fast_string: config.latency_cycles.fast_string.into(),
            current: NO_BLOCK,
            is_open: false,
            open: Open {
                index: 0,
                operation: Operation::DETACHED,
                marks: Marks::default(),
                dispatch: 0,
                delivers: 0,
                sources: 0,
                addresses: 0,
                loads: 0,
                loaded: 0,
                done: 0,
                retired: false,
                pending: Pending::None,
                early: Early::default(),
            },
            last_done: 0,
            front: 0,
            front_used: 0,
            front_end: FrontEnd::default(),
            fetched: (0, 0),
            predictor: Predictor::new(&config.branch_predictor),
            reorder_buffer: Ring::new(config.window),
            fetch_queue: Ring::new(config.fetch_queue),
            load_buffer: Ring::new(config.load_buffer),
            store_buffer: Ring::new(config.store_buffer),
            ready: [0; 64],
            wrong_path: WrongPath::new(config.issue_width),
            ports: ports(&config.ports.execution()).ok_or(Error::ManyPorts)?,
            memory_ports: ports(&config.ports.memory()).ok_or(Error::ManyPorts)?,
            dividers: [
                Units::new(1, intervals.integer),
                Units::new(1, intervals.float),
                Units::new(1, intervals.integer_64.unwrap_or(intervals.integer)),
            ],
            miss_registers: Holders::new(config.miss_registers, 0),
            page_walkers: Holders::new(config.page_walkers, config.page_walk_replay_cycles),
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

    /// The program enters a block: what is left of the block before executes, then the branch
    /// between them is predicted. Taken branches are fetched one in `taken_branch_cycles`, up to
    /// `fetch_queue` instructions ahead of dispatch. A misprediction holds up the front end until
    /// `mispredict_penalty_cycles` after the branch completes.
    ///
    /// # Panics
    /// When the block was not learned.
    pub fn enter(&mut self, blocks: &Blocks, block: usize) {
        self.finish(blocks);
        let next = blocks.get(block);
        let is_taken = self.current.end != NO_BLOCK.end && next.start != self.current.end;
        self.predict(next.start);
        if is_taken {
            let start = self.front_end.taken.max(self.fetch_queue.free());
            self.front_end.taken = (start + self.taken_branch).max(self.front_end.redirected);
            self.front_end.ready = self.front_end.ready.max(self.front_end.taken);
        }
        self.current = Current {
            first: next.first,
            count: next.count,
            next: 0,
            end: next.end,
            exit: next.exit,
        };
    }

    /// The program executes a block, and only the branch predictor learns from it. The window is
    /// drained before the first of such blocks; [`wait_until`](Self::wait_until) lets time pass.
    ///
    /// # Panics
    /// When the block was not learned.
    pub fn pass(&mut self, blocks: &Blocks, block: usize) {
        let next = blocks.get(block);
        self.train(next.start);
        self.current = Current {
            first: next.first,
            count: next.count,
            next: next.count,
            end: next.end,
            exit: next.exit,
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
        let before = if self.fetched == (self.fetch_queue.count(), start) {
            self.front_end.translated
        } else {
            start
        };
        let translation = translation.get();
        let mut waited = 0;
        if translation > 0 {
            self.front_end.walked = walked;
            if walked {
                let begin = self.page_walkers.hold(start, translation);
                self.meters.walk(Purpose::Fetch, begin, translation);
                waited = begin - start;
                self.counters.page_walkers_full += u64::from(waited > 0);
            }
        }
        self.front_end.translated = before + waited + translation;
        self.front_end.ready = start + waited + translation + data.get();
        self.fetched = (self.fetch_queue.count(), self.front_end.ready);
    }

    /// Instruction `index` of the current block accesses memory; everything before it in the block
    /// executes. Returns the time at which the access starts: for a load, when its address is known
    /// and a load port is free; for a store, when it retires, provided that its translation does
    /// not hold it up.
    ///
    /// The same index may come several times. Up to 16 loads and then one store share a place in
    /// the window; more take further places, and all have their addresses at the same time. An
    /// access of an instruction that has executed already, or outside of a block, counts as an
    /// instruction of its own.
    pub fn access(&mut self, blocks: &Blocks, index: usize, store: bool) -> Cycles {
        if self.is_open && self.open.index == index {
            self.settle();
            if self.open.retired || self.open.loads == LOADS_OF_AN_OPERATION {
                self.open_again(store);
            }
        } else {
            self.close();
            let Current {
                first, count, next, ..
            } = self.current;
            let operation = if (next as usize..count as usize).contains(&index) {
                self.run(blocks, index as u32);
                self.current.next += 1;
                &blocks.operations[first as usize + index]
            } else {
                &Operation::DETACHED
            };
            self.open(index, operation, store);
        }
        let open = &mut self.open;
        let address = open.addresses.max(open.dispatch);
        if store {
            let start = self.memory_ports.start(unit::STORE, address, open.dispatch);
            open.pending = Pending::Store(start);
            let executed =
                open.sources.max(open.loaded).max(open.dispatch) + open.operation.latency();
            Cycles::new(executed.max(start + 1).max(self.retired))
        } else {
            let start = self.memory_ports.start(unit::LOAD, address, open.dispatch);
            open.pending = Pending::Load(start);
            open.loads += 1;
            let early = open.early.addresses.max(open.early.dispatch);
            open.early.begins = self.wrong_path.load(early, start);
            Cycles::new(open.early.begins)
        }
    }

    /// When a miss of the first level that is known at `time` goes out: as soon as a miss register
    /// is free for it. Memory answers from then on.
    #[must_use]
    pub fn miss_leaves(&self, time: Cycles) -> Cycles {
        Cycles::new(self.miss_registers.when(time.get()))
    }

    /// What the access just started met: its physical address, translation beyond an L1 TLB hit,
    /// whether page tables were walked, data latency beyond an L1D hit (0 for a hit). Loads and
    /// stores are matched by the aligned 8 bytes in which they begin: a load that begins in another
    /// word of a wider store does not see the store. Has no effect when no access waits for an
    /// answer.
    pub fn answer(&mut self, address: PhysAddr, translation: Cycles, walked: bool, data: Cycles) {
        let translation = translation.get();
        match std::mem::replace(&mut self.open.pending, Pending::None) {
            Pending::None => {}
            Pending::Load(start) => self.load(start, address, translation, walked, data.get()),
            Pending::Store(start) => {
                let frame = address.line() >> LINES_SHIFT;
                let (translated, walked) =
                    self.translate(Purpose::Store, start, frame, translation, walked);
                self.store(start, translated, walked, Some((address, data.get())));
            }
        }
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

    /// What the cycles since the last [`reset`](Self::reset) were spent on. The parts add up to
    /// [`cycles`](Self::cycles).
    #[must_use]
    pub fn breakdown(&self) -> CycleBreakdown {
        self.breakdown
    }

    /// What happened since the last [`reset`](Self::reset).
    #[must_use]
    pub fn counters(&self) -> CoreCounters {
        CoreCounters {
            operations: self.reorder_buffer.count() - self.operations_before,
            ..self.counters
        }
    }

    /// Page walks since the last [`reset`](Self::reset).
    #[must_use]
    pub fn walks(&self) -> WalkActivity {
        self.meters.activity()
    }

    /// What is reported starts anew. What is in flight, what is predicted and the clock of
    /// [`now`](Self::now) stay as they are.
    pub fn reset(&mut self) {
        self.origin = self.retired;
        self.operations_before = self.reorder_buffer.count();
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
        let dispatch = self.dispatch(0);
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
            self.execute_early(operation, dispatch, done);
        }
        self.retire(done, &marks);
        if operation.drains() {
            self.front_end.barrier = self.retired;
        }
    }

    /// The same on a wrong path.
    #[inline(never)]
    fn execute_early(&mut self, operation: &Operation, dispatch: u64, done: u64) {
        let dispatch = self
            .wrong_path
            .dispatch(dispatch, self.reorder_buffer.free());
        let operands = operation.sources(self.wrong_path.ready()).max(dispatch);
        self.write_early(operation, operands, done);
    }

    /// An operation has its operands on a wrong path then; on the right one it is done at `done`.
    fn write_early(&mut self, operation: &Operation, operands: u64, done: u64) {
        if operation.drains() {
            self.wrong_path.end();
        }
        let early = operands + operation.latency().max(1);
        operation.write(self.wrong_path.ready(), early.min(done));
    }

    /// The instruction that accesses memory took a place in the window on a wrong path, too.
    #[inline(never)]
    fn open_early(&mut self) {
        let window = self.reorder_buffer.free().max(self.load_buffer.free());
        let open = &mut self.open;
        open.early.dispatch = self.wrong_path.dispatch(open.dispatch, window);
        open.early.loaded = 0;
    }

    /// Takes a place in the window, not before `slot`.
    #[inline]
    fn dispatch(&mut self, slot: u64) -> u64 {
        let window = self.reorder_buffer.free();
        let others = self.front_end.ready.max(self.front_end.barrier).max(slot);
        let earliest = window.max(others);
        // What follows is arithmetic: branches on what a program does, the host predicts badly.
        let waits = earliest > self.front;
        let full = self.front_used == self.issue_width;
        self.counters.window_full += u64::from(waits && window > others);
        self.front = earliest.max(self.front + u64::from(full));
        self.front_used = if waits | full { 1 } else { self.front_used + 1 };
        self.fetch_queue.push(self.front);
        self.front
    }

    /// Takes a place in the window, and in the buffers that it needs. Returns when it dispatches, and
    /// when its place in the store buffer is free.
    #[inline]
    fn dispatch_access(&mut self, loads: bool, stores: bool) -> (u64, u64) {
        // All ones where a buffer is needed.
        let mask = |needed: bool| u64::from(needed).wrapping_neg();
        let load_slot = self.load_buffer.free() & mask(loads);
        let store_slot = self.store_buffer.free() & mask(stores);
        let others = self
            .reorder_buffer
            .free()
            .max(self.front_end.ready)
            .max(self.front_end.barrier)
            .max(self.front);
        self.counters.load_buffer_full += u64::from(load_slot > others.max(store_slot));
        self.counters.store_buffer_full += u64::from(store_slot > others.max(load_slot));
        (self.dispatch(load_slot.max(store_slot)), store_slot)
    }

    /// Executes `operation` from `operands` on, and says when it is done.
    #[inline]
    fn perform(&mut self, operation: &Operation, operands: u64, dispatch: u64) -> u64 {
        let start = self.start(operation.unit(), operands, dispatch);
        (start + operation.latency()).max(dispatch + 1)
    }

    /// Retires an instruction that is done then.
    #[inline]
    fn retire(&mut self, done: u64, marks: &Marks) {
        if done > self.retired + 1 {
            self.breakdown
                .attribute(self.retired, done - 1, &self.front_end, marks);
        }
        self.leave(done);
    }

    /// An instruction that is done then leaves the window.
    #[inline]
    fn leave(&mut self, done: u64) {
        let later = done > self.retired;
        let full = self.retired_used == self.retire_width;
        let next_cycle = later | full;
        self.retired = done.max(self.retired + u64::from(full));
        self.retired_used = if next_cycle { 1 } else { self.retired_used + 1 };
        self.breakdown.issue += Cycles::new(u64::from(next_cycle));
        self.reorder_buffer.push(self.retired);
    }

    /// An instruction begins that accesses memory.
    #[inline]
    fn open(&mut self, index: usize, operation: &Operation, store: bool) {
        let (dispatch, store_slot) =
            self.dispatch_access(operation.loads() || !store, operation.stores() || store);
        let (drained, stores) = if operation.drains() {
            (self.retired.max(self.committed), self.committed)
        } else {
            (0, 0)
        };
        let delivers = if operation.is_fast_string() {
            dispatch + self.fast_string
        } else {
            0
        };
        self.is_open = true;
        self.open = Open {
            index,
            operation: *operation,
            marks: Marks {
                stores: store_slot.max(stores),
                dispatch,
                ..Marks::default()
            },
            dispatch,
            delivers,
            sources: operation.sources(&self.ready).max(drained),
            addresses: operation.addresses(&self.ready).max(drained),
            loads: 0,
            loaded: 0,
            done: 0,
            retired: false,
            pending: Pending::None,
            early: Early::default(),
        };
        if self.wrong_path.is_active() {
            self.open.early.sources = operation.sources(self.wrong_path.ready());
            self.open.early.addresses = operation.addresses(self.wrong_path.ready());
            self.open_early();
        }
    }

    /// The same instruction takes a further place in the window.
    fn open_again(&mut self, store: bool) {
        if !self.open.retired {
            self.complete();
        }
        self.front_end.ready = self.front_end.ready.max(self.open.delivers);
        let (dispatch, stores) = self.dispatch_access(!store, store);
        let open = &mut self.open;
        open.marks = Marks {
            stores,
            dispatch,
            ..Marks::default()
        };
        open.dispatch = dispatch;
        open.loads = 0;
        open.loaded = 0;
        open.retired = false;
        if self.wrong_path.is_active() {
            self.open_early();
        }
    }

    /// An access that was not answered hits everywhere.
    fn settle(&mut self) {
        match std::mem::replace(&mut self.open.pending, Pending::None) {
            Pending::None => {}
            Pending::Load(start) => {
                let early = &mut self.open.early;
                early.loaded = early.loaded.max(early.begins + self.load_latency);
                self.loaded(start + self.load_latency, (start, start, false, start));
            }
            Pending::Store(start) => self.store(start, start, false, None),
        }
    }

    /// The instruction that accesses memory makes no further access.
    fn close(&mut self) {
        if !self.is_open {
            return;
        }
        self.settle();
        if !self.open.retired {
            self.complete();
        }
        self.front_end.ready = self.front_end.ready.max(self.open.delivers);
        let done = self.open.done;
        self.open.operation.write(&mut self.ready, done);
        self.last_done = done;
        if self.wrong_path.is_active() {
            let Open {
                operation, early, ..
            } = self.open;
            let operands = early.sources.max(early.loaded).max(early.dispatch);
            self.write_early(&operation, operands, done);
        }
        self.is_open = false;
    }

    /// When the open instruction has executed, from when its operands and loads are there.
    #[inline]
    fn perform_open(&mut self) -> u64 {
        let open = &self.open;
        let operands = open.sources.max(open.loaded).max(open.dispatch);
        let (dispatch, latency) = (open.dispatch, open.operation.latency());
        let start = self.start(open.operation.unit(), operands, dispatch);
        (start + latency).max(dispatch + 1)
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

    /// Executes and retires an instruction whose loads are done and which does not store.
    #[inline]
    fn complete(&mut self) {
        let done = self.perform_open();
        self.retire_open(done);
        if self.open.operation.drains() {
            self.front_end.barrier = self.retired;
        }
    }

    #[inline]
    fn retire_open(&mut self, done: u64) {
        if done > self.retired + 1 {
            self.breakdown
                .attribute(self.retired, done - 1, &self.front_end, &self.open.marks);
        }
        self.leave(done);
        for _ in 0..self.open.loads {
            self.load_buffer.push(self.retired);
        }
        self.open.done = self.open.done.max(done);
        self.open.retired = true;
    }

    /// When the translation of an access to `frame` is there, and whether it was walked for.
    #[inline]
    fn translate(
        &mut self,
        purpose: Purpose,
        start: u64,
        frame: u64,
        latency: u64,
        walked: bool,
    ) -> (u64, bool) {
        if latency == 0 {
            let arrival = self.walks.arrival(frame, start);
            self.counters.merged_walks += u64::from(arrival.is_some());
            (arrival.unwrap_or(start), arrival.is_some())
        } else if walked {
            let begin = self.page_walkers.hold(start, latency);
            self.counters.page_walkers_full += u64::from(begin > start);
            self.meters.walk(purpose, begin, latency);
            self.walks.insert(frame, begin, begin + latency);
            (begin + latency, true)
        } else {
            (start + latency, false)
        }
    }

    /// When the first-level cache has `line`, which took `latency` if it was not there.
    #[inline]
    fn line(&mut self, time: u64, line: u64, latency: u64) -> u64 {
        if let Some(arrival) = self.lines.arrival(line, time) {
            self.counters.merged_misses += 1;
            return arrival;
        }
        if latency == 0 {
            return time;
        }
        let begin = self.miss_registers.hold(time, latency);
        self.counters.miss_registers_full += u64::from(begin > time);
        self.lines.insert(line, begin, begin + latency);
        begin + latency
    }

    #[inline]
    fn load(&mut self, start: u64, address: PhysAddr, translation: u64, walked: bool, data: u64) {
        let line = address.line();
        let frame = line >> LINES_SHIFT;
        let begins = self.open.early.begins;
        let (early, walked) = self.translate(Purpose::Load, begins, frame, translation, walked);
        let translated = early.max(start);
        self.counters.loads += 1;
        // Most loads begin when no store is on its way.
        let stored = if translated < self.committed {
            self.stored.ready(address.get() >> WORD_SHIFT, translated)
        } else {
            None
        };
        let (fetched, done, early) = if let Some(ready) = stored {
            self.counters.forwarded_loads += 1;
            let done = |translated: u64| translated.max(ready) + self.forward_latency;
            (translated, done(translated), done(early))
        } else {
            let arrives = self.line(early, line, data);
            let fetched = arrives.max(translated);
            let done = |fetched| fetched + self.load_latency;
            (fetched, done(fetched), done(arrives))
        };
        self.open.early.loaded = self.open.early.loaded.max(early);
        self.loaded(done, (start, translated, walked, fetched));
    }

    /// A load of the open instruction is done. The last of them is what it waits for.
    #[inline]
    fn loaded(&mut self, done: u64, (start, translated, walked, fetched): (u64, u64, bool, u64)) {
        let open = &mut self.open;
        if done > open.loaded {
            open.loaded = done;
            open.marks = Marks {
                start,
                translated,
                walked,
                fetched,
                ..open.marks
            };
        }
    }

    /// A store has its translation: the instruction executes and retires, and the store goes to
    /// `target`, which its address and the latency to it are, if that is known.
    fn store(
        &mut self,
        start: u64,
        translated: u64,
        walked: bool,
        target: Option<(PhysAddr, u64)>,
    ) {
        let executed = self.perform_open();
        // The address goes to the store buffer in the cycle after its translation.
        let addressed = translated + 1;
        if addressed >= executed {
            let marks = &mut self.open.marks;
            (marks.start, marks.translated) = (start, translated);
            (marks.walked, marks.fetched) = (walked, translated);
        }
        self.retire_open(executed.max(addressed));
        let mut commit = self.retired.max(self.committed) + 1;
        if let Some((address, latency)) = target {
            self.counters.stores += 1;
            commit = commit.max(self.line(self.retired, address.line(), latency));
            self.stored
                .insert(address.get() >> WORD_SHIFT, executed, commit);
        }
        self.committed = commit;
        self.store_buffer.push(commit);
        if self.open.operation.drains() {
            self.front_end.barrier = commit;
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
    fn train(&mut self, target: u64) -> Option<bool> {
        let after = self.current.end;
        match self.current.exit {
            Exit::Known => None,
            Exit::Call => {
                self.predictor.call(after);
                None
            }
            Exit::Conditional => Some(self.predictor.direction(after, target != after)),
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
        if self.is_open && !self.open.retired {
            let open = &mut self.open;
            open.dispatch = open.dispatch.max(now);
            open.sources = open.sources.max(now);
            open.addresses = open.addresses.max(now);
            if let Pending::Load(start) | Pending::Store(start) = &mut open.pending {
                *start = (*start).max(now);
                open.early.begins = *start;
            }
        }
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
