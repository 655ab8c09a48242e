//! Execution behind a mispredicted branch before it is resolved.
//!
//! While such a branch waits for its operands, the core executes what it takes for the way on. Both
//! ways mostly meet again soon, so much of it comes on the right path, too, and the lines and
//! translations that its loads asked for are then there or under way. Without that, programs whose
//! branches depend on misses overlap far less than they do (Eyerman, Van den Steen, Heirman and
//! Hur, "Simulating Wrong-Path Instructions in Decoupled Functional-First Simulation", ISPASS
//! 2023, whose technique of converging paths this is).
//!
//! Instructions that follow on the right path stand for the wrong path: it is dispatched behind the
//! branch as if that had been predicted, and loads whose addresses are known before the branch is
//! resolved begin then. What they bring counts; what they compute does not. Ports are not counted,
//! and wrong paths bring nothing else.

use super::blocks::Operation;

/// Waits of a branch, in cycles, that matter: beyond a hit in a second-level cache.
const SHORTEST: u64 = 24;

/// The wrong path that is executed, if there is one.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct WrongPath {
    #[state(skip)]
    width: u64,
    active: bool,
    /// When the branch is resolved.
    until: u64,
    /// The latest dispatch, in places: `width` in a cycle.
    place: u64,
    /// The latest misprediction on the right path since then: its branch's dispatch, and when that
    /// is resolved.
    next: u64,
    next_until: u64,
    /// When each register is there.
    ready: [u64; 64],
    open: Open,
}

/// The instruction that accesses memory.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Open {
    dispatch: u64,
    sources: u64,
    addresses: u64,
    /// When the load begins that waits for its answer.
    begins: u64,
    loaded: u64,
}

impl WrongPath {
    /// None yet.
    pub(super) fn new(issue_width: u32) -> Self {
        Self {
            width: issue_width.into(),
            active: false,
            until: 0,
            place: 0,
            next: 0,
            next_until: 0,
            ready: [0; 64],
            open: Open::default(),
        }
    }

    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// A branch that was dispatched then is mispredicted, and resolved later.
    pub(super) fn begin(&mut self, dispatch: u64, resolved: u64, ready: &[u64; 64]) {
        if self.active {
            (self.next, self.next_until) = (dispatch, resolved);
        } else if resolved > dispatch + SHORTEST {
            self.active = true;
            self.until = resolved;
            self.place = dispatch * self.width;
            self.next_until = 0;
            self.ready = *ready;
        }
    }

    /// Nothing more is executed behind the branch.
    #[inline]
    pub(super) fn end(&mut self) {
        self.active = false;
    }

    /// An operation that does not access memory, and is done at `done` on the right path.
    /// `dispatch` and `window` are those of [`dispatch`](Self::dispatch).
    #[inline(never)]
    pub(super) fn execute(&mut self, operation: &Operation, dispatch: u64, window: u64, done: u64) {
        let dispatch = self.dispatch(dispatch, window);
        let operands = operation.sources(&self.ready).max(dispatch);
        self.write(operation, operands, done);
    }

    /// An instruction begins that accesses memory.
    #[inline(never)]
    pub(super) fn open(&mut self, operation: &Operation, dispatch: u64, window: u64) {
        self.open.sources = operation.sources(&self.ready);
        self.open.addresses = operation.addresses(&self.ready);
        self.open_again(dispatch, window);
    }

    /// It takes a further place in the window.
    pub(super) fn open_again(&mut self, dispatch: u64, window: u64) {
        self.open.dispatch = self.dispatch(dispatch, window);
        self.open.loaded = 0;
    }

    /// A load starts, at `start` on the right path. Returns when it begins.
    #[inline(never)]
    pub(super) fn load(&mut self, start: u64) -> u64 {
        let address = self.open.addresses.max(self.open.dispatch);
        self.open.begins = if self.active && address < self.until {
            address.min(start)
        } else {
            start
        };
        self.open.begins
    }

    /// When the latest load begins.
    #[inline]
    pub(super) fn begins(&self) -> u64 {
        self.open.begins
    }

    /// The latest load is done.
    #[inline]
    pub(super) fn loaded(&mut self, done: u64) {
        self.open.loaded = self.open.loaded.max(done);
    }

    /// The instruction makes no further access, and is done at `done` on the right path.
    #[inline(never)]
    pub(super) fn close(&mut self, operation: &Operation, done: u64) {
        let open = &self.open;
        let operands = open.sources.max(open.loaded).max(open.dispatch);
        self.write(operation, operands, done);
    }

    /// An operation has its operands then; on the right path it is done at `done`.
    fn write(&mut self, operation: &Operation, operands: u64, done: u64) {
        if operation.drains() {
            self.end();
        }
        let early = operands + operation.latency().max(1);
        operation.write(&mut self.ready, early.min(done));
    }

    /// When an instruction, which on the right path dispatches at `dispatch`, does so on the wrong
    /// one, not before `window`, when its place in the window is free.
    fn dispatch(&mut self, dispatch: u64, window: u64) -> u64 {
        self.place = (self.place + 1).max(window * self.width);
        if self.place / self.width >= self.until {
            // The core went on behind the branch, up to the next one that is mispredicted.
            self.place = self.place.max(self.next * self.width);
            self.until = std::mem::take(&mut self.next_until);
        }
        let time = self.place / self.width;
        self.active = time < self.until && time < dispatch;
        if self.active { time } else { dispatch }
    }
}
