//! Loads and stores of the window: from their addresses to retirement and commitment.

use contigua_units::{Cycles, PhysAddr};

use super::blocks::{Blocks, Operation, unit};
use super::walks::Purpose;
use super::{Current, Marks, Window};

/// Loads of one instruction that take one place of the window. A gather has 16; a string
/// instruction without stores has any number.
const LOADS_OF_AN_OPERATION: u32 = 16;

/// Lines of a frame, as a power of two.
const LINES_SHIFT: u32 = 6;
const WORD_SHIFT: u32 = 3;

/// An access that has started and was not answered.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
enum Pending {
    None,
    Load(u64),
    Store(u64),
}

/// The instruction that accesses memory.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
pub(super) struct Open {
    index: usize,
    operation: Operation,
    marks: Marks,
    dispatch: u64,
    /// When the front end delivers what comes behind its first place in the window.
    delivers: u64,
    /// When its operands in registers are ready.
    sources: u64,
    addresses: u64,
    /// Number of loads since it took a place in the window, and the time when all are done.
    loads: u32,
    loaded: u64,
    done: u64,
    retired: bool,
    pending: Pending,
}

impl Open {
    /// No access was made.
    pub(super) fn none() -> Self {
        Self {
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
        }
    }
}

impl Window {
    /// Instruction `index` of the current block accesses memory; everything before it in the block
    /// executes. Returns the time at which the access starts: for a load, when its address is known
    /// and a load port is free; for a store, when it retires, provided that its translation does
    /// not hold it up.
    ///
    /// An index may come several times. Up to 16 loads and then one store share a place in
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
            let begins = if self.wrong_path.is_active() {
                self.wrong_path.load(start)
            } else {
                start
            };
            Cycles::new(begins)
        }
    }

    /// When a miss of the first level that is known at `time` goes out: as soon as a miss register
    /// is free for it. Memory answers from then on.
    #[must_use]
    pub fn miss_leaves(&self, time: Cycles) -> Cycles {
        Cycles::new(self.miss_registers.when(time.get()))
    }

    /// Answers the access just started: its physical address, translation beyond an L1 TLB hit,
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

    /// Takes a place in the window, which is free from `window` on, and in the buffers that it needs. Returns when it dispatches, and
    /// when its place in the store buffer is free.
    #[inline]
    fn dispatch_access(
        &mut self,
        window: u64,
        (loads, stores): (bool, bool),
        slots: u32,
    ) -> (u64, u64) {
        // All ones where a buffer is needed.
        let mask = |needed: bool| u64::from(needed).wrapping_neg();
        let load_slot = self.load_buffer.free() & mask(loads);
        let store_slot = self.store_buffer.free() & mask(stores);
        let others = window
            .max(self.front_end.ready)
            .max(self.front_end.barrier)
            .max(self.front);
        self.counters.load_buffer_full += u64::from(load_slot > others.max(store_slot));
        self.counters.store_buffer_full += u64::from(store_slot > others.max(load_slot));
        let dispatch = self.dispatch(window, load_slot.max(store_slot), slots);
        (dispatch, store_slot)
    }

    /// An instruction begins that accesses memory.
    #[inline]
    fn open(&mut self, index: usize, operation: &Operation, store: bool) {
        let window = self.window_free(operation);
        let loads = operation.loads() || !store;
        let stores = operation.stores() || store;
        let (dispatch, store_slot) =
            self.dispatch_access(window, (loads, stores), operation.slots());
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
        };
        if self.wrong_path.is_active() {
            let window = window.max(self.load_buffer.free());
            self.wrong_path.open(operation, dispatch, window);
        }
    }

    /// Opens a further place in the window for the instruction.
    fn open_again(&mut self, store: bool) {
        if !self.open.retired {
            self.complete();
        }
        self.front_end.ready = self.front_end.ready.max(self.open.delivers);
        let window = self.window_free(&self.open.operation);
        let (dispatch, stores) = self.dispatch_access(window, (!store, store), 1);
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
            let window = window.max(self.load_buffer.free());
            self.wrong_path.open_again(dispatch, window);
        }
    }

    /// An access that was not answered hits everywhere.
    fn settle(&mut self) {
        match std::mem::replace(&mut self.open.pending, Pending::None) {
            Pending::None => {}
            Pending::Load(start) => {
                let begins = self.begins(start);
                self.loaded(start + self.load_latency, (start, start, false, start));
                self.wrong_path.loaded(begins + self.load_latency);
            }
            Pending::Store(start) => self.store(start, start, false, None),
        }
    }

    /// The instruction that accesses memory makes no further access.
    pub(super) fn close(&mut self) {
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
            self.wrong_path.close(&self.open.operation, done);
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

    /// Executes and retires an instruction whose loads are done and which does not store.
    #[inline]
    fn complete(&mut self) {
        let done = self.perform_open();
        self.retire_open(done);
        if self.open.operation.is_rare() {
            let operation = self.open.operation;
            self.follow_rare(&operation);
        }
    }

    #[inline]
    fn retire_open(&mut self, done: u64) {
        if done > self.retired + 1 {
            self.breakdown
                .attribute(self.retired, done - 1, &self.front_end, &self.open.marks);
        }
        self.leave(done, self.open.operation.registers());
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
            let end = self.walk(purpose, start, latency);
            self.walks.insert(frame, end - latency, end);
            (end, true)
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
        let mut arrives = begin + latency;
        // A wrong path's accesses come earlier than what was dispatched last.
        if !self.wrong_path.is_active() {
            arrives = self.fills.start(arrives, self.front);
        }
        self.lines.insert(line, begin, arrives);
        arrives
    }

    #[inline]
    fn load(&mut self, start: u64, address: PhysAddr, translation: u64, walked: bool, data: u64) {
        let line = address.line();
        let frame = line >> LINES_SHIFT;
        let begins = self.begins(start);
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
        self.wrong_path.loaded(early);
        self.loaded(done, (start, translated, walked, fetched));
    }

    /// When the load begins that starts at `start` on the right path.
    #[inline]
    fn begins(&self, start: u64) -> u64 {
        if self.wrong_path.is_active() {
            self.wrong_path.begins()
        } else {
            start
        }
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

    /// An access that waits for its answer, and its instruction, go on at `now`, with nothing else
    /// in the window.
    pub(super) fn resume_access(&mut self, now: u64) {
        let open = &mut self.open;
        if !self.is_open || open.retired {
            return;
        }
        open.dispatch = open.dispatch.max(now);
        open.sources = open.sources.max(now);
        open.addresses = open.addresses.max(now);
        if let Pending::Load(start) | Pending::Store(start) = &mut open.pending {
            *start = (*start).max(now);
        }
    }
}
