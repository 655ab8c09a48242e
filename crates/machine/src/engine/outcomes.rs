//! Outcomes of accesses in the server's state, and their times: the two halves of full detail on one
//! core.
//!
//! The contents of TLBs, caches and page tables follow the order of the program; times only decide
//! what the core, DRAM's queues and prefetches under way make of it. So the engine's inner loop
//! changes the state and writes *outcomes*, and [`time_outcomes`] goes through them with the core's
//! window. Both can be on one thread, or on two: then the inner loop is ahead until it needs to know
//! the time (a system call, a page fault, the kernel's threads), for which [`Engine::catch_up`]
//! waits. The report is the same.
//!
//! An outcome is a word, and more where a TLB or cache missed:
//!
//! ```text
//! access   kind, flags, instruction of the block, physical address
//! block    kind, instructions, number
//! fetch    kind, flags
//! begin    kind, instruction of the block: an access begins whose fault comes next
//!   translation, if flagged: latency beyond its references that missed, whether walked, how many
//!                            references missed;
//!                            for each: cycles since the one before, whether it begins with that, steps; the
//!                            steps
//!   data, if flagged:        steps; the steps, as `Queues::time` takes them
//! ```

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use contigua_cache::AccessKind;
use contigua_cache::coherent::{CoreRequest, Queues};
use contigua_core::ShadowMiss;
use contigua_program::wire::BlockId;
use contigua_translation::{Access, MemoryPort, TranslationLines};
use contigua_units::{Cycles, PhysAddr};

use super::Engine;
use super::timing::{Asked, Core, Data, Translated, Windows};
use crate::config::{Detail, RunConfig};
use crate::port::{CoreCaches, Memory, pass};

/// Words of outcomes that are timed at a time: less than a first-level cache holds.
const PORTION: usize = 2048;
/// Portions that the inner loop may be ahead, each of which takes some tens of microseconds.
const MAX_BATCHES_AHEAD: usize = 8;

const KIND_SHIFT: u32 = 62;
const ACCESS: u64 = 0;
const BLOCK: u64 = 1;
const FETCH: u64 = 2;
const BEGIN: u64 = 3;

const STORE: u64 = 1 << 61;
/// The translation took time.
const TRANSLATED: u64 = 1 << 60;
/// The first level of the caches missed.
const MISSED: u64 = 1 << 59;
/// The access has begun: its fault came in between.
const BEGUN: u64 = 1 << 58;
const INSTRUCTION_SHIFT: u32 = 49;
const INSTRUCTION_MASK: u64 = 511;
const ADDRESS_MASK: u64 = (1 << INSTRUCTION_SHIFT) - 1;
const COUNT_SHIFT: u32 = 32;

const WALKED: u64 = 1 << 63;
const REFERENCES_SHIFT: u32 = 40;
const REFERENCES_MASK: u64 = (1 << 20) - 1;
/// The reference begins at the time of the one before it.
const AT_ONCE: u64 = 1 << 31;
const LATENCY_MASK: u64 = (1 << REFERENCES_SHIFT) - 1;

/// Outcomes that wait to be timed, and the thread that times them.
#[derive(Default, contigua_state::State)]
pub(super) struct Outcomes {
    words: Vec<u64>,
    /// References of the walk under way that missed the first level.
    references: Vec<u64>,
    count: u64,
    /// An access has begun and is not written.
    begun: bool,
    pending: Pending,
    /// The state may run ahead of time: nothing between two outcomes asks for it.
    #[state(skip)]
    pub(super) may_defer: bool,
    #[state(skip)]
    worker: Option<TimingWorker>,
}

/// State that passes from one outcome to the next, beside the core's.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Pending {
    /// When the access that has begun started.
    access_started: Cycles,
    /// Cycles of walks that the translation unit could not know.
    walks: WalkCycles,
}

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct WalkCycles {
    data: Cycles,
    fetches: Cycles,
}

/// A walker's way to memory whose misses are timed later.
pub(super) struct DeferredPort<'a> {
    caches: CoreCaches<'a>,
    references: &'a mut Vec<u64>,
    count: &'a mut u64,
    /// Cycles since the last reference that missed.
    since: u64,
}

impl DeferredPort<'_> {
    /// The latency of a hit of the first level; `None` of a miss, which is written.
    fn hit_or_defer(&mut self, address: PhysAddr, begins: u64) -> Option<Cycles> {
        let kind = AccessKind::Walk;
        let CoreCaches { memory, core } = &mut self.caches;
        let hit = memory.hit(*core, address, kind, pass);
        if hit.is_none() {
            let request = CoreRequest::new(*core, address, kind, Cycles::ZERO);
            let at = self.references.len();
            self.references.push(0);
            memory.defer_miss(&request, self.references);
            let steps = (self.references.len() - at - 1) as u64;
            self.references[at] = begins | steps;
            *self.count += 1;
        }
        hit
    }
}

impl MemoryPort for DeferredPort<'_> {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        let Some(latency) = self.hit_or_defer(address, self.since << COUNT_SHIFT) else {
            self.since = 0;
            return Cycles::ZERO;
        };
        self.since += latency.get();
        latency
    }

    fn references_at_once(&mut self, addresses: &[PhysAddr]) -> Cycles {
        let mut begins = self.since << COUNT_SHIFT;
        let mut hits = Cycles::ZERO;
        for &address in addresses {
            match self.hit_or_defer(address, begins) {
                Some(latency) => hits = hits.max(latency),
                None => begins = AT_ONCE,
            }
        }
        if begins == AT_ONCE {
            // Hits are there before the first of the misses is.
            self.since = 0;
            return Cycles::ZERO;
        }
        self.since += hits.get();
        hits
    }

    fn reference_aside(&mut self, address: PhysAddr) {
        self.caches.memory.walk_ahead(self.caches.core, address);
    }

    fn translation_lines(&mut self) -> Option<&mut dyn TranslationLines> {
        Some(&mut self.caches)
    }
}

/// Bits of the word of a request that say what is asked.
#[inline]
fn flags_of(asked: Asked) -> u64 {
    match asked {
        Asked::Line => 0,
        Asked::Data { instruction, store } => {
            let store = if store { STORE } else { 0 };
            store | (instruction as u64) << INSTRUCTION_SHIFT
        }
    }
}

/// The access of a word.
#[inline]
fn data_of(word: u64) -> Asked {
    Asked::Data {
        instruction: (word >> INSTRUCTION_SHIFT & INSTRUCTION_MASK) as usize,
        store: word & STORE != 0,
    }
}

impl Outcomes {
    pub(super) fn new(config: &RunConfig) -> Self {
        let migrates = config.migrations_per_second > 0.0;
        let is_timed = config.detail == Detail::Full && config.timeline.is_none();
        // A profile has the cycles of each miss, which are known behind the state only.
        let attributes = config.profile.is_some();
        Self {
            may_defer: config.cores == 1 && is_timed && !migrates && !attributes,
            ..Self::default()
        }
    }

    /// The walker's way to memory, for a walk that begins.
    pub(super) fn port<'a>(&'a mut self, memory: &'a mut Memory, core: usize) -> DeferredPort<'a> {
        self.references.clear();
        self.count = 0;
        DeferredPort {
            caches: CoreCaches { memory, core },
            references: &mut self.references,
            count: &mut self.count,
            since: 0,
        }
    }

    #[inline]
    pub(super) fn enter(&mut self, block: BlockId, instructions: u32) {
        let instructions = u64::from(instructions) << COUNT_SHIFT;
        self.words
            .push(BLOCK << KIND_SHIFT | instructions | u64::from(block.0));
    }

    /// A request begins that has met a fault; a fetch leaves no word.
    fn begin(&mut self, asked: Asked) {
        if let Asked::Data { .. } = asked
            && !self.begun
        {
            self.begun = true;
            self.words.push(BEGIN << KIND_SHIFT | flags_of(asked));
        }
    }

    /// A fetch or an access, and its translation. Returns the place of its word.
    #[inline]
    fn write(&mut self, mut word: u64, found: &Translated) -> usize {
        if std::mem::take(&mut self.begun) {
            word |= BEGUN;
        }
        let at = self.words.len();
        if found.latency > Cycles::ZERO || self.count > 0 {
            self.words.push(word | TRANSLATED);
            self.write_translation(found);
        } else {
            self.words.push(word);
        }
        at
    }

    #[inline(never)]
    fn write_translation(&mut self, found: &Translated) {
        let walked = if found.walked { WALKED } else { 0 };
        let latency = found.latency.get() & LATENCY_MASK;
        self.words
            .push(walked | self.count << REFERENCES_SHIFT | latency);
        self.words.append(&mut self.references);
        self.count = 0;
    }

    #[inline(never)]
    fn write_miss(&mut self, at: usize, memory: &mut Memory, request: &CoreRequest) {
        self.words[at] |= MISSED;
        let place = self.words.len();
        self.words.push(0);
        memory.defer_miss(request, &mut self.words);
        self.words[place] = (self.words.len() - place - 1) as u64;
    }
}

impl Engine {
    /// Prices outcomes on a thread of its own from now on, if the run is of one core. Worth it
    /// where the host has a core to spare.
    pub fn use_second_thread(&mut self) {
        if self.outcomes.may_defer && self.outcomes.worker.is_none() {
            self.outcomes.worker = TimingWorker::start();
        }
    }

    /// Writes the outcome of a request that is translated. Returns whether the first level missed.
    #[inline]
    pub(super) fn defer(&mut self, found: &Translated, asked: Asked) -> bool {
        let Some(memory) = &mut self.memory else {
            return false;
        };
        let hit = memory.hit(self.current, found.physical, asked.kind(), pass);
        let outcomes = &mut self.outcomes;
        let word = match asked {
            Asked::Line => {
                // Most fetches leave no word.
                if hit.is_some() && found.latency == Cycles::ZERO && outcomes.count == 0 {
                    outcomes.begun = false;
                    return false;
                }
                FETCH << KIND_SHIFT
            }
            Asked::Data { .. } => {
                ACCESS << KIND_SHIFT | flags_of(asked) | found.physical.get() & ADDRESS_MASK
            }
        };
        let at = outcomes.write(word, found);
        if hit.is_some() {
            return false;
        }
        let request = self.request(found.physical, asked, Cycles::ZERO);
        if let Some(memory) = &mut self.memory {
            self.outcomes.write_miss(at, memory, &request);
        }
        true
    }

    /// A walk has met a fault: what comes next needs to know the time. Returns what the walk took
    /// beyond what the translation unit knows.
    pub(super) fn catch_up_for_fault(&mut self, asked: Asked) -> Cycles {
        self.outcomes.begin(asked);
        let references = std::mem::take(&mut self.outcomes.references);
        let count = std::mem::take(&mut self.outcomes.count);
        self.catch_up();
        if !self.outcomes.begun {
            self.outcomes.begun = true;
            self.outcomes.pending.access_started = self.timing.core(0).begin(asked);
        }
        let start = self.outcomes.pending.access_started;
        let mut waited = Cycles::ZERO;
        if let Some(queues) = self.memory.as_mut().and_then(Memory::queues) {
            let mut rest = &references[..];
            waited = time_references(&mut rest, count, start, queues);
        }
        self.count_walk(asked.access(), waited);
        self.outcomes.references = references;
        self.outcomes.references.clear();
        waited
    }

    fn count_walk(&mut self, access: Access, waited: Cycles) {
        if waited > Cycles::ZERO {
            self.mmus.current().add_walk_cycles(access, waited);
        }
    }

    /// Prices what is left, so that the core's clock is that of the state.
    pub(crate) fn catch_up(&mut self) {
        let outcomes = &mut self.outcomes;
        if let Some(worker) = &mut outcomes.worker
            && self.timing.are_away()
        {
            if !outcomes.words.is_empty() {
                worker.send(&mut outcomes.words);
            }
            let lent = worker.take_back();
            self.timing.give_back(lent.windows);
            outcomes.pending = lent.pending;
            if let Some(memory) = &mut self.memory {
                memory.return_queues(lent.queues);
            }
        } else if !outcomes.words.is_empty() {
            self.time_here();
        }
        let walks = std::mem::take(&mut self.outcomes.pending.walks);
        self.count_walk(Access::Read, walks.data);
        self.count_walk(Access::Execute, walks.fetches);
    }

    /// Prices what is left, where nobody else does.
    pub(super) fn time_all_here(&mut self) {
        if self.outcomes.worker.is_none() {
            self.catch_up();
        }
    }

    fn time_here(&mut self) {
        let outcomes = &mut self.outcomes;
        let queues = self.memory.as_mut().and_then(Memory::queues);
        let queues = queues.expect("the queues are here");
        time_outcomes(
            &outcomes.words,
            self.timing.core(0),
            queues,
            &mut outcomes.pending,
        );
        outcomes.words.clear();
    }

    /// Prices a portion if there is one.
    #[inline]
    pub(super) fn time_portion(&mut self) {
        if self.outcomes.words.len() >= PORTION {
            self.hand_over();
        }
    }

    #[cold]
    fn hand_over(&mut self) {
        let outcomes = &mut self.outcomes;
        let Some(worker) = &mut outcomes.worker else {
            self.time_here();
            return;
        };
        if let Some(windows) = self.timing.lend() {
            let memory = self.memory.as_mut();
            let queues = memory.and_then(Memory::lend_queues);
            worker.job(Job::Begin(Lent {
                windows,
                queues: queues.expect("the queues are here"),
                pending: outcomes.pending,
            }));
        }
        worker.send(&mut outcomes.words);
    }
}

/// Goes through outcomes with the core that they are of.
fn time_outcomes(words: &[u64], mut core: Core<'_>, queues: &mut Queues, pending: &mut Pending) {
    let mut rest = words;
    while let Some((&word, behind)) = rest.split_first() {
        rest = behind;
        match word >> KIND_SHIFT {
            ACCESS => time_one(word, data_of(word), &mut rest, &mut core, queues, pending),
            BLOCK => {
                let instructions = word << 2 >> (COUNT_SHIFT + 2);
                let block = word as u32 as usize;
                core.window.enter(core.blocks, block, instructions);
            }
            FETCH => time_one(word, Asked::Line, &mut rest, &mut core, queues, pending),
            _ => pending.access_started = core.begin(data_of(word)),
        }
    }
}

#[inline]
fn time_one(
    word: u64,
    asked: Asked,
    rest: &mut &[u64],
    core: &mut Core<'_>,
    queues: &mut Queues,
    pending: &mut Pending,
) {
    let start = if word & BEGUN == 0 {
        core.begin(asked)
    } else {
        pending.access_started
    };
    let mut found = Translated::at_once(PhysAddr::new(word & ADDRESS_MASK));
    if word & TRANSLATED != 0 {
        let waited;
        (found, waited) = time_translation(rest, found.physical, start, queues);
        if found.walked {
            *match asked {
                Asked::Line => &mut pending.walks.fetches,
                Asked::Data { .. } => &mut pending.walks.data,
            } += waited;
        }
    }
    let mut data = Data::default();
    if word & MISSED != 0 {
        let (time, shadow) = core.leave(asked, start + found.latency);
        data = time_data(rest, time, shadow, queues);
    }
    core.end(asked, &found, data);
}

/// The translation, and what of its latency the translation unit could not know.
fn time_translation(
    rest: &mut &[u64],
    physical: PhysAddr,
    start: Cycles,
    queues: &mut Queues,
) -> (Translated, Cycles) {
    let word = rest[0];
    *rest = &rest[1..];
    let count = word >> REFERENCES_SHIFT & REFERENCES_MASK;
    let waited = time_references(rest, count, start, queues);
    let found = Translated {
        physical,
        latency: Cycles::new(word & LATENCY_MASK) + waited,
        walked: word & WALKED != 0,
    };
    (found, waited)
}

/// References of a walk that missed; each begins when those before it are there, or with the one before it.
fn time_references(rest: &mut &[u64], count: u64, start: Cycles, queues: &mut Queues) -> Cycles {
    let (mut time, mut begins) = (start, start);
    let mut waited = Cycles::ZERO;
    for _ in 0..count {
        if rest[0] & AT_ONCE == 0 {
            time += Cycles::new(rest[0] >> COUNT_SHIFT);
            begins = time;
        }
        let steps = (rest[0] & (AT_ONCE - 1)) as usize;
        let end = begins + queues.time(&rest[1..=steps], begins);
        *rest = &rest[1 + steps..];
        waited += end.max(time) - time;
        time = end.max(time);
    }
    waited
}

/// Returns the time of a data access, and its time for the core's shadow.
fn time_data(
    rest: &mut &[u64],
    time: Cycles,
    shadow: Option<ShadowMiss>,
    queues: &mut Queues,
) -> Data {
    let count = rest[0] as usize;
    let steps = &rest[1..=count];
    let shadow = shadow.map(|miss| queues.time_shadow(miss.number, steps, miss.time));
    let latency = queues.time(steps, time);
    *rest = &rest[1 + count..];
    Data { latency, shadow }
}

/// Parts of the engine that are with the thread that times outcomes.
struct Lent {
    windows: Windows,
    queues: Box<Queues>,
    pending: Pending,
}

enum Job {
    Begin(Lent),
    Price(Vec<u64>),
    End,
}

/// The thread that times outcomes.
struct TimingWorker {
    jobs: Option<SyncSender<Job>>,
    lent: Receiver<Lent>,
    /// Buffers that were timed.
    spare: Receiver<Vec<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl TimingWorker {
    /// `None` where no thread is free.
    fn start() -> Option<Self> {
        let (jobs, to_do) = sync_channel(MAX_BATCHES_AHEAD);
        let (done, lent) = channel();
        let (timed, spare) = channel();
        let thread = std::thread::Builder::new()
            .name("timing".into())
            .spawn(move || work(&to_do, &done, &timed))
            .ok()?;
        Some(Self {
            jobs: Some(jobs),
            lent,
            spare,
            thread: Some(thread),
        })
    }

    fn job(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("the engine is not dropped");
        assert!(jobs.send(job).is_ok(), "the timing thread has ended");
    }

    fn send(&self, words: &mut Vec<u64>) {
        let empty = self.spare.try_recv().unwrap_or_default();
        self.job(Job::Price(std::mem::replace(words, empty)));
    }

    fn take_back(&self) -> Lent {
        self.job(Job::End);
        self.lent.recv().expect("the timing thread has ended")
    }
}

impl Drop for TimingWorker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Its panic has been told.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Receiver<Job>, given_back: &Sender<Lent>, timed: &Sender<Vec<u64>>) {
    let mut lent: Option<Lent> = None;
    for job in jobs {
        match job {
            Job::Begin(given) => lent = Some(given),
            Job::Price(mut words) => {
                if let Some(lent) = &mut lent {
                    let core = lent.windows.core(0);
                    time_outcomes(&words, core, &mut lent.queues, &mut lent.pending);
                }
                words.clear();
                let _ = timed.send(words);
            }
            Job::End => {
                if let Some(lent) = lent.take() {
                    let _ = given_back.send(lent);
                }
            }
        }
    }
}
