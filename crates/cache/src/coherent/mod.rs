//! The memory of a server with several cores: private caches, a last level in slices with a
//! directory, DRAM, devices, and pages that migrate while they are in use.
//!
//! Every transaction is atomic: it happens at once, and its latency says when its data is there.
//! Contents of caches and directories do not depend on time; what does is in [`Queues`].
//! The directory at a line's home slice knows which cores may have it (MESI; a core that dropped a
//! clean line is still listed, as in real snoop filters). What a line's frame is being migrated
//! from or to, the migration table says where the data is and which copies must go first; the
//! rules are those of [`crate::migration`].
//!
//! A line in private caches and the directory is named by the address that a core used for it; in
//! the last level and in memory by where its data is. The two differ only during a migration.

mod config;
mod counters;
mod delays;
mod dram;
mod events;
mod home;
mod insertion;
mod moving;
mod network;
mod observe;
mod payload;
mod prefetch;
mod private;
mod queues;
mod translations;
mod validate;

use std::fmt::Debug;

use contigua_units::{Bytes, Cycles, Frame, LINE_BYTES, Megahertz, PAGE_BYTES, PhysAddr};

use crate::migration::{Alias, EntryId, LOOKUP_FEMTOJOULES, Request, Table};
use crate::{AccessKind, Error, HierarchyConfig, LevelCounters, ServedBy, Sets};
pub use config::SharedConfig;
pub use counters::{CoherenceCounters, MemoryCounters, MigrationTraffic};
use delays::{Asker, Delays};
pub use dram::{DramConfig, DramCounters, Loaded};
pub use events::{Access, Accessor, Event};
use insertion::Duel;
pub use insertion::Insertion;
use network::Network;
pub use network::Topology;
pub use payload::Payload;
pub use prefetch::PrefetchConfig;
use prefetch::same_page;
use private::{Private, SecondLine, State, lines};
pub use queues::Queues;
use queues::{Step, Steps};

/// Lines of a 4 KB page.
const LINES_OF_PAGE: u64 = PAGE_BYTES / LINE_BYTES;
/// The most cores: the directory has a bit for each.
pub const MOST_CORES: usize = 64;

/// Request of a core for a line.
#[derive(Clone, Copy, Debug)]
pub struct CoreRequest {
    /// The core.
    pub core: usize,
    /// The address.
    pub address: PhysAddr,
    /// Access type.
    pub kind: AccessKind,
    /// When the request leaves the core.
    pub time: Cycles,
    /// Identifies the instruction, for the stride prefetcher.
    pub instruction: u64,
}

impl CoreRequest {
    /// A request of no instruction that a prefetcher could follow.
    #[inline]
    #[must_use]
    pub const fn new(core: usize, address: PhysAddr, kind: AccessKind, time: Cycles) -> Self {
        Self {
            core,
            address,
            kind,
            time,
            instruction: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Sharers {
    /// Cores that may have the line.
    cores: u64,
    /// One of them may have it to itself.
    exclusive: bool,
}

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct LastLine<D> {
    dirty: bool,
    data: D,
}

#[derive(Clone, Debug, contigua_state::State)]
struct Slice<D> {
    lines: Sets<LastLine<D>>,
    directory: Sets<Sharers>,
}

/// Answer to a request from its home slice.
struct Served<D> {
    data: D,
    state: State,
    cycles: u32,
}

#[derive(Clone, Copy, Debug)]
struct Latencies {
    l1i: Cycles,
    l1d: Cycles,
    l2: Cycles,
    llc: Cycles,
}

/// All caches and the memory of a server.
#[derive(Debug, contigua_state::State)]
pub struct MemorySystem<D: Payload = ()> {
    #[state(fixed)]
    cores: Vec<Private<D>>,
    #[state(fixed)]
    slices: Vec<Slice<D>>,
    duel: Duel,
    #[state(skip)]
    network: Network,
    steps: Steps,
    /// `None` while another thread owns them.
    #[state(boxed)]
    queues: Option<Box<Queues>>,
    #[state(skip)]
    memory: D::Memory,
    /// Pages that migrate.
    table: Table,
    delays: Delays,
    #[state(skip)]
    latency: Latencies,
    #[state(skip)]
    inclusive: bool,
    #[state(skip)]
    prefetchers: PrefetchConfig,
    /// The direction in which a sequence of misses left its page with the last miss: 1, -1, or 0 for none.
    page_wanted: i64,
    fetches: ServedBy,
    data: ServedBy,
    walks: ServedBy,
    llc: LevelCounters,
    coherence: CoherenceCounters,
    traffic: MigrationTraffic,
}

impl<D: Payload> MemorySystem<D> {
    /// Empty caches for some cores of a clock; `table` decides what migrations do.
    ///
    /// # Errors
    /// [`Error`], when a geometry is impossible.
    pub fn new(
        config: &HierarchyConfig,
        clock: Megahertz,
        cores: usize,
        table: Table,
    ) -> Result<Self, Error> {
        if !(1..=MOST_CORES).contains(&cores) {
            return Err(Error::Cores(cores));
        }
        let shared = &config.shared;
        let slices = u64::from(shared.slices);
        let all = lines(config.llc.size);
        if slices == 0 || !all.is_multiple_of(slices) {
            return Err(Error::Slices {
                lines: all,
                slices: shared.slices,
            });
        }
        let slice = || -> Result<Slice<D>, Error> {
            let entries = u64::from(shared.directory_entries);
            Ok(Slice {
                lines: Sets::new("cache.llc", all / slices, config.llc.ways)?,
                directory: Sets::new("cache.shared.directory", entries, shared.directory_ways)?,
            })
        };
        Ok(Self {
            cores: (0..cores)
                .map(|_| Private::new(config))
                .collect::<Result<_, _>>()?,
            slices: (0..slices).map(|_| slice()).collect::<Result<_, _>>()?,
            duel: Duel::new(shared.insertion),
            network: Network::new(shared.topology, cores, slices as usize, shared.hop_cycles),
            steps: Steps::default(),
            queues: Some(Box::new(Queues::new(config, clock))),
            memory: D::Memory::default(),
            table,
            delays: Delays::new(cores),
            latency: Latencies {
                l1i: config.l1i.latency_cycles,
                l1d: config.l1d.latency_cycles,
                l2: config.l2.latency_cycles,
                llc: config.llc.latency_cycles,
            },
            inclusive: shared.inclusive,
            prefetchers: config.prefetch.clone(),
            page_wanted: 0,
            fetches: ServedBy::default(),
            data: ServedBy::default(),
            walks: ServedBy::default(),
            llc: LevelCounters::default(),
            coherence: CoherenceCounters::default(),
            traffic: MigrationTraffic::default(),
        })
    }

    /// Brings the line of a request in, lets `visit` read or change it, and says how long that
    /// takes beyond a first-level hit; for the page walker, which has no pipeline to hide it, the
    /// whole latency.
    #[inline]
    pub fn access(&mut self, request: &CoreRequest, mut visit: impl FnMut(&mut D)) -> Cycles {
        match self.hit(request.core, request.address, request.kind, &mut visit) {
            Some(latency) => latency,
            None => self.miss(request, visit),
        }
    }

    /// The first half of an access: what it takes when the first level has the line and may do
    /// with it what is asked.
    ///
    /// # Panics
    /// In debug builds, when the address is at or above [`PhysAddr::END`].
    #[inline]
    pub fn hit(
        &mut self,
        core: usize,
        address: PhysAddr,
        kind: AccessKind,
        mut visit: impl FnMut(&mut D),
    ) -> Option<Cycles> {
        debug_assert!(address.get() < PhysAddr::END);
        let line = address.line();
        let access = Access {
            by: Accessor::Core(core),
            line,
            write: kind == AccessKind::Write,
        };
        let core = &mut self.cores[core];
        match kind {
            AccessKind::Fetch => {
                if let Some(first) = core.l1i.lookup(line, line) {
                    visit(&mut first.data);
                    first.data.accessed(&mut self.memory, access);
                    core.l1i_counters.hits += 1;
                    self.fetches.l1 += 1;
                    return Some(Cycles::ZERO);
                }
                core.l1i_counters.misses += 1;
            }
            AccessKind::Read | AccessKind::Walk => {
                if let Some(first) = core.l1d.lookup(line, line) {
                    visit(&mut first.data);
                    first.data.accessed(&mut self.memory, access);
                    core.l1d_counters.hits += 1;
                    if kind == AccessKind::Walk {
                        self.walks.l1 += 1;
                        return Some(self.latency.l1d);
                    }
                    self.data.l1 += 1;
                    return Some(Cycles::ZERO);
                }
                core.l1d_counters.misses += 1;
            }
            AccessKind::Write => {
                if let Some(first) = core.l1d.lookup(line, line)
                    && first.state != State::Shared
                {
                    first.state = State::Modified;
                    visit(&mut first.data);
                    first.data.accessed(&mut self.memory, access);
                    core.l1d_counters.hits += 1;
                    self.data.l1 += 1;
                    return Some(Cycles::ZERO);
                }
                core.l1d_counters.misses += 1;
            }
        }
        None
    }

    /// The second half, after [`MemorySystem::hit`] has said no: what the miss takes.
    pub fn miss(&mut self, request: &CoreRequest, visit: impl FnOnce(&mut D)) -> Cycles {
        self.miss_beside_shadow(request, None, visit).0
    }

    /// [`miss`](Self::miss), and what it takes for the core's shadow, of which the number and the time of
    /// its request are given: see [`Queues::time_shadow`].
    pub fn miss_beside_shadow(
        &mut self,
        request: &CoreRequest,
        shadow: Option<(u64, Cycles)>,
        visit: impl FnOnce(&mut D),
    ) -> (Cycles, Option<Cycles>) {
        let follow = self.serve(request, visit);
        self.prefetch_after(request, follow);
        let shadow = shadow.map(|(number, time)| self.time_shadow(number, time));
        (self.time(request.time), shadow)
    }

    /// [`miss`](Self::miss), to be timed later: what [`Queues::time`] needs goes behind `steps`. The
    /// request's time does not matter.
    pub fn defer_miss(&mut self, request: &CoreRequest, steps: &mut Vec<u64>) {
        std::mem::swap(&mut self.steps.words, steps);
        let follow = self.serve(request, |_| ());
        self.prefetch_after(request, follow);
        std::mem::swap(&mut self.steps.words, steps);
    }

    /// Capacity of the last level and the cores' second levels together.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        let last: usize = self.slices.iter().map(|slice| slice.lines.capacity()).sum();
        let second: usize = self.cores.iter().map(|core| core.l2.capacity()).sum();
        Bytes::new((last + second) as u64 * LINE_BYTES)
    }

    /// The queues, for somebody else to time requests; until they are back, requests can only be
    /// deferred.
    pub fn lend_queues(&mut self) -> Option<Box<Queues>> {
        self.queues.take()
    }

    /// Timing queues of memory, or `None` while another thread owns them.
    pub fn queues(&mut self) -> Option<&mut Queues> {
        self.queues.as_deref_mut()
    }

    /// They are back.
    pub fn return_queues(&mut self, queues: Box<Queues>) {
        self.queues = Some(queues);
    }

    /// Prices what the last request leaves behind for the core's shadow.
    fn time_shadow(&mut self, number: u64, time: Cycles) -> Cycles {
        let queues = self.queues.as_mut();
        queues
            .expect("the queues are back before a request is timed")
            .time_shadow(number, &self.steps.words, time)
    }

    /// Prices what the last request left behind.
    fn time(&mut self, time: Cycles) -> Cycles {
        let queues = self.queues.as_mut();
        let answer = queues
            .expect("the queues are back before a request is timed")
            .time(&self.steps.words, time);
        self.steps.words.clear();
        answer
    }

    /// Writes a whole line as the kernel of a core does that zeroes or copies a page. What caches
    /// hold changes; counters and queues do not, as neither the accesses nor their time are the
    /// program's.
    pub fn write_for_kernel(&mut self, core: usize, address: PhysAddr, visit: impl FnOnce(&mut D)) {
        let line = address.line();
        if let Some(first) = self.cores[core].l1d.lookup(line, line)
            && first.state != State::Shared
        {
            first.state = State::Modified;
            visit(&mut first.data);
            let access = Access {
                by: Accessor::Core(core),
                line,
                write: true,
            };
            first.data.accessed(&mut self.memory, access);
            return;
        }
        self.serve_aside(core, address, AccessKind::Write, visit);
    }

    /// A page walk ahead of the program reads an entry. It changes what caches hold, but takes no time and
    /// is not counted.
    pub fn walk_ahead(&mut self, core: usize, address: PhysAddr) {
        let line = address.line();
        if self.cores[core].l1d.lookup(line, line).is_none() {
            self.serve_aside(core, address, AccessKind::Walk, |_| ());
        }
    }

    /// A first-level miss that is not the program's: what caches hold changes; counters and queues do not.
    fn serve_aside(
        &mut self,
        core: usize,
        address: PhysAddr,
        kind: AccessKind,
        visit: impl FnOnce(&mut D),
    ) {
        let private = &self.cores[core];
        let levels = (private.l1d_counters, private.l2_counters);
        let shared = (self.data, self.walks, self.llc, self.coherence);
        let request = CoreRequest::new(core, address, kind, Cycles::ZERO);
        self.serve(&request, visit);
        self.steps.words.clear();
        (self.data, self.walks, self.llc, self.coherence) = shared;
        let private = &mut self.cores[core];
        (private.l1d_counters, private.l2_counters) = levels;
    }

    /// Direction in which the sequence of the last data miss leaves its page for an unknown one: 1
    /// upwards, -1 downwards; `None` if it does not. To be called after each miss; clears the
    /// answer.
    #[inline]
    pub fn page_wanted(&mut self) -> Option<i64> {
        if self.page_wanted == 0 {
            return None;
        }
        Some(std::mem::take(&mut self.page_wanted))
    }

    /// The sequence of misses of a core that goes through the page of `address` goes on in that of `next`,
    /// or not at all.
    pub fn join_pages(&mut self, core: usize, address: PhysAddr, next: Option<PhysAddr>) {
        let page = |address: PhysAddr| address.line() / LINES_OF_PAGE;
        self.coherence.pages_ahead += u64::from(next.is_some());
        let streams = &mut self.cores[core].streams;
        streams.join(page(address), next.map(page));
    }

    /// Serves a first-level miss; whether prefetchers follow it.
    #[inline(never)]
    fn serve(&mut self, request: &CoreRequest, visit: impl FnOnce(&mut D)) -> bool {
        let line = request.address.line();
        let write = request.kind == AccessKind::Write;
        let fetch = request.kind == AccessKind::Fetch;
        let core = &mut self.cores[request.core];
        if fetch {
            core.gather(line);
        }
        let mut had_it = false;
        let mut follow = false;
        let mut found = None;
        if let Some(second) = core.l2.lookup(line, line) {
            had_it = true;
            if second.prefetched {
                second.prefetched = false;
                self.coherence.prefetches_used += 1;
                follow = true;
            }
            if !write || second.state != State::Shared {
                self.steps.wait_for(second.prefetch);
                if write {
                    second.state = State::Modified;
                }
                found = Some((second.state, second.data));
            }
        }
        let expected = match request.kind {
            AccessKind::Fetch => self.latency.l1i,
            AccessKind::Walk => Cycles::ZERO,
            AccessKind::Read | AccessKind::Write => self.latency.l1d,
        };
        let hidden = expected.get() as u32;
        if let Some((state, data)) = found {
            core.l2_counters.hits += 1;
            served(
                &mut self.fetches,
                &mut self.data,
                &mut self.walks,
                request.kind,
            )
            .l2 += 1;
            self.fill_first(request, line, state, data, visit);
            let cycles = self.latency.l2.get() as u32;
            self.steps.push(Step::Answer { cycles, hidden });
        } else {
            core.l2_counters.misses += 1;
            if had_it {
                self.coherence.upgrades += 1;
            }
            let own = if write { Request::Own } else { Request::Read };
            let reads_before = self.steps.reads;
            let asker = Asker::Core(request.core, request.time);
            let answer = self.at_home(request.core, line, own, asker, visit);
            let level = served(
                &mut self.fetches,
                &mut self.data,
                &mut self.walks,
                request.kind,
            );
            if self.steps.reads == reads_before {
                level.llc += 1;
            } else {
                level.memory += 1;
            }
            follow = true;
            match answer {
                Answer::Visited(cycles) => self.steps.push(Step::Answer { cycles, hidden }),
                Answer::Keep(served, visit) => {
                    let cycles = served.cycles;
                    self.fill_second(request.core, line, &served, 0, had_it);
                    self.steps.push(Step::Answer { cycles, hidden });
                    self.fill_first(request, line, served.state, served.data, visit);
                }
            }
        }
        follow
    }

    /// Prefetches after a first-level miss.
    #[inline]
    fn prefetch_after(&mut self, request: &CoreRequest, follow: bool) {
        let line = request.address.line();
        if self.prefetchers.next_line {
            let next_lines = &mut self.cores[request.core].next_lines;
            let adapts = self.prefetchers.next_line_adapts;
            if adapts {
                next_lines.missed(line);
            }
            if follow && same_page(line, line + 1) && (!adapts || next_lines.want(line + 1)) {
                self.prefetch(request.core, line + 1);
            }
        }
        if self.prefetchers.stream_lines != 0 && request.kind != AccessKind::Walk {
            let streams = &mut self.cores[request.core].streams;
            if let Some(ahead) = streams.missed(line, self.prefetchers.stream_lines) {
                if ahead.asks && self.prefetchers.next_page && request.kind != AccessKind::Fetch {
                    self.page_wanted = ahead.direction();
                }
                for wanted in ahead.lines() {
                    self.prefetch(request.core, wanted);
                }
            }
        }
        if self.prefetchers.stride && matches!(request.kind, AccessKind::Read | AccessKind::Write) {
            let ahead = self.cores[request.core]
                .strides
                .missed(request.instruction, line);
            for wanted in ahead {
                self.prefetch(request.core, wanted);
            }
        }
    }

    /// Enters a line into a first level, from the second.
    fn fill_first(
        &mut self,
        request: &CoreRequest,
        line: u64,
        state: State,
        mut data: D,
        visit: impl FnOnce(&mut D),
    ) {
        let core = &mut self.cores[request.core];
        visit(&mut data);
        let access = Access {
            by: Accessor::Core(request.core),
            line,
            write: request.kind == AccessKind::Write,
        };
        data.accessed(&mut self.memory, access);
        match request.kind {
            AccessKind::Fetch => core.fill_instruction(line, data),
            AccessKind::Read | AccessKind::Walk => core.fill_data(line, state, data, false),
            AccessKind::Write => core.fill_data(line, state, data, true),
        }
        self.note_line(line);
    }

    /// Enters a line into a second level, by a prefetch of that number if that is not 0. If the level
    /// `had_it` before it was served, it may have it still.
    fn fill_second(
        &mut self,
        core: usize,
        line: u64,
        served: &Served<D>,
        prefetch: u32,
        had_it: bool,
    ) {
        let second = SecondLine {
            state: served.state,
            prefetched: prefetch != 0,
            prefetch,
            translations: 0,
            turns: 0,
            data: served.data,
        };
        let private = &mut self.cores[core];
        if had_it && let Some(present) = private.l2.lookup(line, line) {
            *present = second;
            return;
        }
        if private.blocks > 0 {
            self.fill_beside_blocks(core, line, second);
        } else if let Some((victim, old)) = private.l2.insert(line, line, second) {
            self.evicted_second(core, victim, old);
        }
    }

    /// A line has just left a core's second level for another one.
    #[inline]
    fn evicted_second(&mut self, core: usize, victim: u64, old: SecondLine<D>) {
        let private = &mut self.cores[core];
        let left = private.remove_above(victim, old);
        private.l2_counters.write_backs += u64::from(left.modified);
        self.forget(core, victim);
        self.note(Event::Evicted { core, line: victim });
        self.write_back(victim, left);
        self.note_line(victim);
    }

    /// Brings a line into a core's second level before it is needed.
    fn prefetch(&mut self, core: usize, line: u64) {
        if self.cores[core].l2.peek(line, line).is_some() {
            return;
        }
        let answer = self.at_home(core, line, Request::Read, Asker::Nobody, |_| ());
        if let Answer::Keep(served, _) = answer {
            self.coherence.prefetches += 1;
            let prefetch = self.steps.prefetch(served.cycles);
            self.fill_second(core, line, &served, prefetch, false);
            self.note_line(line);
        }
    }

    #[inline]
    fn slice_of(&self, line: u64) -> usize {
        // Fibonacci hashing: every bit of the line number counts.
        let hash = (line.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 32;
        ((hash * self.slices.len() as u64) >> 32) as usize
    }

    /// The migration that a line takes part in.
    #[inline]
    fn migration(&self, line: u64) -> Option<(EntryId, Alias)> {
        if self.table.is_empty() {
            return None;
        }
        self.table.find(frame_of(line))
    }

    /// [`migration`](Self::migration) for a request, which searches the table.
    #[inline]
    fn look_up(&mut self, line: u64) -> Option<(EntryId, Alias)> {
        if self.table.is_empty() {
            return None;
        }
        self.traffic.lookups += 1;
        self.table.find(frame_of(line))
    }

    /// Traffic of migrations since the last reset.
    #[must_use]
    pub fn migration_traffic(&self) -> MigrationTraffic {
        MigrationTraffic {
            lookup_picojoules: self.traffic.lookups * LOOKUP_FEMTOJOULES / 1000,
            ..self.traffic
        }
    }

    /// The table of migrations.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Latency of a first-level hit, for a line that the core works on outside of its pipeline.
    #[must_use]
    pub fn first_level_latency(&self) -> Cycles {
        self.latency.l1d
    }

    /// Counters since the last reset.
    #[must_use]
    pub fn counters(&self) -> MemoryCounters {
        let mut counters = MemoryCounters {
            llc: self.llc,
            fetches: self.fetches,
            data: self.data,
            walks: self.walks,
            coherence: self.coherence,
            dram: self
                .queues
                .as_ref()
                .map(|queues| queues.counters())
                .unwrap_or_default(),
            ..MemoryCounters::default()
        };
        for core in &self.cores {
            counters.l1i += core.l1i_counters;
            counters.l1d += core.l1d_counters;
            counters.l2 += core.l2_counters;
        }
        counters
    }

    /// Starts counting anew; the caches keep what they hold.
    pub fn reset_counters(&mut self) {
        for core in &mut self.cores {
            core.reset_counters();
        }
        self.llc = LevelCounters::default();
        self.fetches = ServedBy::default();
        self.data = ServedBy::default();
        self.walks = ServedBy::default();
        self.coherence = CoherenceCounters::default();
        self.traffic = MigrationTraffic::default();
        if let Some(queues) = &mut self.queues {
            queues.reset_counters();
        }
    }
}

enum Answer<D, V> {
    /// The line was visited at its home: nobody keeps it.
    Visited(u32),
    /// The requester keeps the line, and visits its copy.
    Keep(Served<D>, V),
}

fn served<'a>(
    fetches: &'a mut ServedBy,
    data: &'a mut ServedBy,
    walks: &'a mut ServedBy,
    kind: AccessKind,
) -> &'a mut ServedBy {
    match kind {
        AccessKind::Fetch => fetches,
        AccessKind::Read | AccessKind::Write => data,
        AccessKind::Walk => walks,
    }
}

/// The cores of a set.
fn cores(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let core = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(core)
    })
}

fn frame_of(line: u64) -> Frame {
    PhysAddr::new(line * LINE_BYTES).frame()
}

fn offset_of(line: u64) -> u8 {
    (line % LINES_OF_PAGE) as u8
}
