//! The event loop: what the program did, turned into what the hardware and the kernel do.
//!
//! A simulated core runs its guest threads in the order in which the stream has them, and is
//! charged for a context switch where Linux would make one ([`Engine::switch_threads`]). TLB
//! entries carry the process where the machine says so; else another process's turn flushes them.
//! One core takes the stream as it comes; several are put into the order of their simulated times
//! by the `schedule` module.
//!
//! The inner loop looks at raw words: one test tells an access from a block, and an access that
//! hits the first-level structures touches three cache lines of the host. It is made once for each
//! [`TimingMode`]; where the region of interest or a unit of a sampled run begins or ends, another takes
//! over.

mod access;
mod build;
mod devices;
mod embedded;
mod fold;
mod forward;
mod iommu;
mod migration;
mod network;
mod outcomes;
pub(crate) mod regions;
mod requests;
mod sampling;
mod schedule;
mod stretches;
mod threads;
pub(crate) mod timeline;
mod timing;

use contigua_core::{CoreModel, Exit};
use contigua_paging::{Place, SpaceId};
use contigua_program::code::CodeLog;
use contigua_program::decode::{Folding, OperationClass, decode_block, folding};
use contigua_program::pieces::Pieces;
use contigua_program::sources::{Batch, Program};
use contigua_program::wire::{self, ACCESS, AccessWord, BlockId, Event, ThreadId};
use contigua_translation::{Access, Branches};
use contigua_units::{Cycles, VirtAddr, VirtRange};

use crate::Error;
use crate::attribution::Attribution;
use crate::config::{Detail, RunConfig};
use crate::digest::Digest;
use crate::kernel::Kernel;
use crate::port::Memory;
use crate::processors::Mmus;
use crate::report::{ClassifiedMisses, Executed};
use access::{Additive, Deferred, Forward, OutOfOrder, TimingMode, Warm};
use devices::Devices;
use fold::Fold;
use forward::Passed;
use migration::Migrations;
use outcomes::Outcomes;
use regions::Regions;
use requests::Requests;
use sampling::Sampler;
use schedule::Schedule;
use timeline::Timeline;
use timing::Timing;

/// The part of a block that the inner loop needs.
#[derive(Clone, Copy, Default, contigua_state::Plain)]
struct Block {
    start: u64,
    /// Difference of Linux's address of the block from `start`, in units of 4 GB.
    moved: u16,
    bytes: u16,
    /// 0 until the block is met for the first time.
    instructions: u16,
    folding: Folding,
    /// How it ends, where cores execute out of order or the design follows branches.
    exit: Exit,
}

/// Linux puts a program 40 TB from its libraries (`ELF_ET_DYN_BASE`), and so does the plugin; QEMU by itself, and so older
/// recordings, beside them. Only branches, which some processors predict by how far away their targets are, take notice.
const PROGRAM_MOVED: u16 = 1 << 14;

impl Block {
    /// Where it would begin under Linux.
    #[inline]
    fn place(&self) -> u64 {
        self.start ^ u64::from(self.moved) << 32
    }
}

/// Where a run is with respect to its region of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
enum Phase {
    /// Only the operating system's state is kept: [`forward`].
    Skip,
    /// Caches, TLBs and predictors are kept, too, and time passes as units took it.
    Warm,
    /// Everything is simulated, counters will be reset.
    Warmup,
    /// Everything is simulated and counted.
    Measure,
    /// The region is over.
    Done,
}

/// Context of a core: thread, block and clock.
#[derive(contigua_state::Plain)]
struct CoreContext {
    /// The thread that it runs.
    thread: Option<ThreadId>,
    space: SpaceId,
    /// Where the last address that was asked for lies, with its neighbors.
    place: Place,
    /// The line that the last fetch ended in: fetching from it again needs no look-up.
    fetch_line: u64,
    /// The block that it executes.
    block: BlockId,
    /// The branches that it executed last, where the design follows them.
    branches: Branches,
    /// Instructions in the region of interest.
    instructions: u64,
    /// When it last switched from a thread to another one.
    switched: Cycles,
    /// The thread has ended.
    is_vacant: bool,
}

impl CoreContext {
    const IDLE: Self = Self {
        thread: None,
        space: SpaceId(0),
        place: EMPTY_PLACE,
        fetch_line: u64::MAX,
        block: NO_BLOCK,
        branches: Branches::NONE,
        instructions: 0,
        switched: Cycles::ZERO,
        is_vacant: false,
    };

    fn leave_block(&mut self) {
        (self.fetch_line, self.block) = (u64::MAX, NO_BLOCK);
    }
}

/// Instructions after which the kernel's threads that were woken run: some ten microseconds, as a
/// wakeup takes. In between, the state may be ahead of time.
const BACKGROUND_INTERVAL: u64 = 1 << 16;

/// A thread that has not executed anything.
const NO_BLOCK: BlockId = BlockId(u32::MAX);

/// A batch that a core executes.
struct Input<'a> {
    thread: ThreadId,
    words: &'a [u64],
    /// Words that have been executed.
    at: usize,
    /// Blocks that are met for the first time, where they are not known yet.
    code: Option<&'a dyn CodeLog>,
    /// Time at which another core has its turn.
    until: u64,
}

/// Why the inner loop ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// There is nothing left to execute here.
    Stream,
    /// Another phase follows.
    Phase,
}

/// A simulated server that runs one stream of events.
#[derive(contigua_state::State)]
pub struct Engine {
    #[state(skip)]
    pub(crate) config: RunConfig,
    #[state(skip)]
    pub(crate) program: Program,
    pub(crate) kernel: Kernel,
    pub(crate) mmus: Mmus,
    /// Caches and memory, unless only translation is simulated.
    #[state(fixed)]
    pub(crate) memory: Option<Memory>,
    pub(crate) timing: Timing,
    /// Outcomes that are not timed yet. Where a second thread times, the cores of `timing` and the queues of
    /// `memory` are there until [`Engine::catch_up`].
    outcomes: Outcomes,
    #[state(fixed)]
    contexts: Vec<CoreContext>,
    /// The core that is running.
    current: usize,
    schedule: Schedule,
    pub(crate) migrations: Migrations,
    pub(crate) devices: Devices,
    requests: Requests,
    #[state(skip)]
    pub(crate) timeline: Option<Timeline>,
    #[state(skip)]
    pub(crate) attribution: Option<Box<Attribution>>,
    pub(crate) executed: Executed,
    pub(crate) classified: ClassifiedMisses,
    /// The kernel is told of accesses before they are made: it has placed memory elsewhere than the
    /// program has it, or follows stores.
    #[state(skip)]
    relocates: bool,
    /// The design makes predictions of branches.
    #[state(skip)]
    follows_branches: bool,
    /// That, or the run is profiled.
    #[state(skip)]
    observes_blocks: bool,
    pub(crate) digest: Digest,
    blocks: Vec<Block>,
    /// The repetition that the accesses of the executing block belong to.
    fold: Fold,
    /// By thread: what the vectors of its next system call name.
    pieces: Vec<Pieces>,
    /// By thread: the block that it was executing when it left its core.
    left_in: Vec<BlockId>,
    phase: Phase,
    /// Pages that were passed over.
    passed: Passed,
    #[state(fixed)]
    sampler: Option<Sampler>,
    /// The server that warms some of a sampled run's units longer, where their warming is checked.
    #[state(fixed)]
    pub(crate) checks: Vec<Engine>,
    /// Regions that the user names, which count exactly.
    #[state(fixed)]
    pub(crate) regions: Option<Regions>,
    /// Instructions left in the phase.
    left: u64,
    /// All instructions since the start of the stream.
    pub(crate) position: u64,
    /// Where the kernel's threads run next.
    next_background: u64,
}

impl Engine {
    /// Instructions of each core in the region of interest.
    pub(crate) fn instructions_by_core(&self) -> impl Iterator<Item = u64> + '_ {
        self.contexts.iter().map(|context| context.instructions)
    }

    /// True after the region of interest; further events change nothing.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// True if the region of interest ended before the stream.
    pub(crate) fn was_limited(&self) -> bool {
        self.is_done()
    }

    /// Instructions since the start of the stream.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Runs a batch, or keeps it until it is its turn.
    ///
    /// # Errors
    /// [`Error::Program`] when the events are malformed, [`Error::OutOfMemory`] when the server
    /// cannot run the program.
    pub fn consume(&mut self, batch: Batch<'_>) -> Result<(), Error> {
        for checks in &mut self.checks {
            checks.consume(batch)?;
        }
        if self.is_done() {
            return Ok(());
        }
        within_limit("thread", batch.thread.0)?;
        if self.contexts.len() > 1 {
            return self.schedule(batch);
        }
        self.resume(0, batch.thread, batch.words)?;
        let used = self.consume_words(batch.thread, batch.words, Some(batch.code), u64::MAX)?;
        self.time_all_here();
        self.digest.take(batch.thread, &batch.words[..used]);
        Ok(())
    }

    /// Runs words of the current core's thread until its time has come to `until`, and says how
    /// many it has run. Blocks are known, or `code` has them.
    fn consume_words(
        &mut self,
        thread: ThreadId,
        words: &[u64],
        code: Option<&dyn CodeLog>,
        until: u64,
    ) -> Result<usize, Error> {
        let mut input = Input {
            thread,
            words,
            at: 0,
            code,
            until,
        };
        let adds_up = self.config.detail != Detail::Full;
        let may_defer = self.outcomes.may_defer;
        loop {
            let end = match (self.phase, self.relocates) {
                (Phase::Done, _) => End::Stream,
                (Phase::Skip, _) => self.consume_input::<false, Forward>(&mut input)?,
                (_, false) if adds_up => self.consume_input::<false, Additive>(&mut input)?,
                (_, true) if adds_up => self.consume_input::<true, Additive>(&mut input)?,
                (Phase::Warm, false) => self.consume_input::<false, Warm>(&mut input)?,
                (Phase::Warm, true) => self.consume_input::<true, Warm>(&mut input)?,
                (_, false) if may_defer => self.consume_input::<false, Deferred>(&mut input)?,
                (_, true) if may_defer => self.consume_input::<true, Deferred>(&mut input)?,
                (_, false) => self.consume_input::<false, OutOfOrder>(&mut input)?,
                (_, true) => self.consume_input::<true, OutOfOrder>(&mut input)?,
            };
            if end == End::Stream {
                return Ok(input.at);
            }
        }
    }

    /// The inner loop.
    fn consume_input<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        input: &mut Input<'_>,
    ) -> Result<End, Error> {
        while let Some(&word) = input.words.get(input.at) {
            if word & ACCESS != 0 {
                if M::FORWARD {
                    self.pass_access(AccessWord(word))?;
                } else {
                    self.access::<RELOCATES, M>(AccessWord(word))?;
                }
                input.at += 1;
            } else if wire::is_block(word) {
                if M::OUT_OF_ORDER && self.now().get() >= input.until {
                    return Ok(End::Stream);
                }
                if !self.enter_block::<RELOCATES, M>(wire::block_of(word), input.code)? {
                    return Ok(End::Phase);
                }
                input.at += 1;
            } else {
                let (event, used) = Event::decode(&input.words[input.at..])
                    .map_err(contigua_program::Error::from)?;
                input.at += used;
                if M::DEFERRED {
                    self.catch_up();
                }
                match event {
                    Event::Forward { instructions } => {
                        if let Some(attribution) = &mut self.attribution {
                            attribution.forget_stack(input.thread);
                        }
                        self.forward(instructions);
                        return Ok(End::Phase);
                    }
                    Event::Fetch { page } => {
                        let phase = self.phase;
                        self.goes_forward();
                        self.pass_over(page, Access::Execute)?;
                        if self.phase != phase {
                            return Ok(End::Phase);
                        }
                    }
                    Event::Piece { range } => self.pieces_of(input.thread).push(range),
                    Event::Cue(cue) => {
                        if self.cue(cue) {
                            return Ok(End::Phase);
                        }
                    }
                    _ => self.event(input.thread, &event)?,
                }
            }
        }
        Ok(End::Stream)
    }

    /// Time of the current core.
    #[inline]
    pub(crate) fn now(&self) -> Cycles {
        self.timing.now(self.current)
    }

    /// Tells that the simulated time of the region of interest is over.
    pub(crate) fn is_over(&self) -> bool {
        let counts = self.phase == Phase::Measure || self.samples();
        let clock = f64::from(self.config.machine.clock.get()) * 1e6;
        let limit = self.config.simulated_seconds.map(|limit| limit * clock);
        counts && limit.is_some_and(|limit| self.timing.clock().get() as f64 >= limit)
    }

    /// Begins a block; `false` where the phase ends before it.
    #[inline]
    fn enter_block<const RELOCATES: bool, M: TimingMode>(
        &mut self,
        id: BlockId,
        code: Option<&dyn CodeLog>,
    ) -> Result<bool, Error> {
        let block = match self.blocks.get(id.0 as usize) {
            Some(block) if block.instructions != 0 => *block,
            _ => {
                self.catch_up();
                self.learn(id, code)?
            }
        };
        let instructions = u64::from(block.instructions);
        if self.left < instructions {
            // Whole blocks only: the region ends before a block that does not fit in.
            self.catch_up();
            if self.sampler.is_some() {
                self.next_segment(instructions);
            } else if self.regions.is_some() {
                self.next_part(instructions);
            } else {
                self.left = 0;
                self.next_phase_when_over();
            }
            return Ok(false);
        }
        self.position += instructions;
        self.left -= instructions;
        if M::FORWARD {
            self.pass_block(block)?;
            return Ok(true);
        }
        if self.observes_blocks {
            self.observe_block::<M>(id);
        }
        self.executed.blocks += 1;
        self.executed.instructions += instructions;
        let iterates = block.folding == Folding::FastString && self.iterates(id, block);
        if !iterates {
            if block.folding != Folding::Nothing || self.fold.kind != Folding::Nothing {
                self.fold = Fold::of(block.folding);
            }
            self.contexts[self.current].block = id;
        }
        if M::DEFERRED {
            self.contexts[self.current].instructions += instructions;
            if !iterates {
                self.outcomes.enter(id, block.instructions.into());
            }
            self.time_portion();
        } else if M::OUT_OF_ORDER || M::WARM {
            if self.now() >= self.migrations.due() {
                self.migrate_pages();
            }
            if M::WARM {
                self.pass_time(instructions);
            } else {
                self.contexts[self.current].instructions += instructions;
            }
            if !iterates && M::WARM {
                let start = block.place();
                let end = start + u64::from(block.bytes);
                let core = self.timing.core(self.current);
                core.window.pass(start, end, block.exit);
            } else if !iterates {
                let core = self.timing.core(self.current);
                core.window.enter(core.blocks, id.0 as usize, instructions);
            }
        } else if !iterates {
            self.timing.sum.instructions(block.instructions.into());
        }
        if iterates {
            return Ok(true);
        }
        self.fetch::<RELOCATES, M>(block)?;
        Ok(true)
    }

    /// Tells a profile, and a design that follows branches, of a block that begins.
    fn observe_block<M: TimingMode>(&mut self, id: BlockId) {
        if let Some(attribution) = &mut self.attribution
            && let Some(thread) = self.contexts[self.current].thread
        {
            attribution.enter(thread, id, M::ATTRIBUTES);
        }
        if self.follows_branches {
            self.follow_branch();
        }
    }

    /// The current core leaves its block, perhaps by a branch.
    fn follow_branch(&mut self) {
        let context = &mut self.contexts[self.current];
        let Some(left) = self.blocks.get(context.block.0 as usize) else {
            return;
        };
        let branches = &mut context.branches;
        let history = match left.exit {
            Exit::Conditional => &mut branches.conditional,
            Exit::Indirect | Exit::IndirectCall => &mut branches.indirect,
            Exit::Known | Exit::Call | Exit::Return => return,
        };
        *history = Branches::after(*history, left.start + u64::from(left.bytes));
    }

    #[cold]
    fn learn(&mut self, id: BlockId, code: Option<&dyn CodeLog>) -> Result<Block, Error> {
        let unknown = contigua_program::Error::UnknownBlock(id);
        let described = code
            .and_then(|code| code.block(id))
            .filter(|c| c.instructions() > 0)
            .ok_or(unknown)?;
        let instructions = code.and_then(|code| code.instructions(id));
        let mut decoded = Vec::new();
        let wants_all = self.attribution.is_some()
            || self.follows_branches
            || !self.timing.windows().is_empty();
        if instructions.is_none() && wants_all {
            decode_block(self.program.architecture, described, &mut decoded);
        }
        let operations = instructions.unwrap_or(&decoded);
        if let Some(attribution) = &mut self.attribution {
            let last = operations.last().map(|last| last.class);
            let thread = self.contexts[self.current].thread;
            attribution.learn(id, &described, last.unwrap_or(OperationClass::Nop), thread);
        }
        let mut block = Block {
            start: self.check_wide(described.address.get())?,
            moved: 0,
            bytes: u16::try_from(described.size().max(1)).unwrap_or(u16::MAX),
            instructions: u16::try_from(described.instructions()).unwrap_or(u16::MAX),
            folding: match instructions {
                Some([only]) if only.class == OperationClass::FastString => Folding::FastString,
                Some(_) => Folding::Nothing,
                None => folding(self.program.architecture, described),
            },
            exit: match operations.last() {
                Some(last) if self.follows_branches => Exit::of(last.class),
                _ => Exit::Known,
            },
        };
        let index = id.0 as usize;
        if index >= self.blocks.len() {
            self.blocks.resize(index + index / 2 + 64, Block::default());
        }
        if !self.timing.windows().is_empty() {
            if self.kernel.is_program_code(described.address) {
                block.moved = PROGRAM_MOVED;
            }
            let blocks = &mut self.timing.here().blocks;
            blocks.learn(
                index,
                VirtAddr::new(block.place()),
                described.lengths,
                operations,
            );
            block.exit = blocks.exit(index);
        }
        self.blocks[index] = block;
        Ok(block)
    }

    #[cold]
    fn next_phase_when_over(&mut self) {
        while self.left == 0 && self.phase != Phase::Done {
            (self.phase, self.left) = match self.phase {
                Phase::Skip => {
                    self.meet_clocks();
                    (Phase::Warmup, self.config.warmup)
                }
                Phase::Warmup => {
                    self.reset_counters();
                    (Phase::Measure, self.config.instructions.unwrap_or(u64::MAX))
                }
                Phase::Warm | Phase::Measure | Phase::Done => (Phase::Done, 0),
            };
        }
    }

    fn reset_counters(&mut self) {
        self.executed = Executed::default();
        self.classified = ClassifiedMisses::default();
        if let Some(attribution) = &mut self.attribution {
            attribution.reset();
        }
        self.mmus.reset_counters();
        self.timing.reset();
        for context in &mut self.contexts {
            context.instructions = 0;
        }
        self.kernel.reset_counters();
        self.kernel.restart_clock();
        self.migrations.reset_counters();
        self.devices.reset_counters();
        if let Some(memory) = &mut self.memory {
            memory.reset_counters();
        }
    }

    /// Lets the kernel do what it does in the background, at this point of simulated time.
    /// Several cores have it done between their turns.
    pub fn background(&mut self) {
        self.checks.iter_mut().for_each(Self::background);
        if self.contexts.len() > 1 {
            return;
        }
        if self.phase != Phase::Skip || self.samples() {
            self.kernel.note_residency(self.region_instructions());
        }
        if self.position >= self.next_background {
            self.next_background = self.position + BACKGROUND_INTERVAL;
            self.catch_up();
            self.run_background();
        }
    }

    fn run_background(&mut self) {
        let now = self.timing.clock();
        if self.kernel.may_move(now) {
            self.complete_pending_migrations();
        }
        if self.contexts.len() > 1 && (self.phase != Phase::Skip || self.samples()) {
            self.kernel.note_residency(self.region_instructions());
        }
        let work: Cycles = self.kernel.background(now, &mut self.mmus);
        self.charge(work);
        self.forget_places();
        if self.phase == Phase::Skip {
            self.mmus.take_shootdown_targets();
        } else {
            self.interrupt_shootdown_targets();
        }
    }

    /// The kernel may have changed what it has to be told of.
    fn forget_places(&mut self) {
        if self.relocates {
            for context in &mut self.contexts {
                context.place = EMPTY_PLACE;
            }
        }
    }
}

/// Empty placement: matches no address.
const EMPTY_PLACE: Place = Place {
    range: VirtRange::new(VirtAddr::new(0), VirtAddr::new(0)),
    delta: 0,
};

/// Threads and processes are kept in arrays: a damaged or hostile stream must not make them huge.
fn within_limit(what: &'static str, number: u32) -> Result<(), Error> {
    const LIMIT: u32 = 1 << 22;
    if number < LIMIT {
        return Ok(());
    }
    Err(Error::Identity {
        what,
        number,
        limit: LIMIT,
    })
}
