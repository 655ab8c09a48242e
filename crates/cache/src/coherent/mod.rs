//! The memory of a server with several cores: private caches, a last level in slices with a
//! directory, DRAM, devices, and pages that migrate while they are in use.
//!
//! Every transaction is atomic: it happens at once, and its latency says when its data is there.
//! What caches and directories hold does not depend on time; what does is in [`Queues`].
//! The directory at a line's home slice knows which cores may have it (MESI; a core that dropped a
//! clean line is still listed, as in real snoop filters). What a line's frame is being migrated
//! from or to, the migration table says where the data is and which copies must go first; the
//! rules are those of [`crate::migration`].
//!
//! A line in private caches and the directory is named by the address that a core used for it; in
//! the last level and in memory by where its data is. The two differ only during a migration.

mod config;
mod counters;
mod dram;
mod moving;
mod network;
mod payload;
mod prefetch;
mod private;
mod queues;

use std::fmt::Debug;

use contigua_units::{Cycles, Frame, LINE_BYTES, Megahertz, PAGE_BYTES, PhysAddr};

use crate::migration::{Alias, EntryId, Request, Service, Table};
use crate::{AccessKind, Error, HierarchyConfig, LevelCounters, ServedBy, Sets};
pub use config::SharedConfig;
pub use counters::{CoherenceCounters, MemoryCounters};
pub use dram::{DramConfig, DramCounters};
use network::Network;
pub use network::Topology;
pub use payload::Payload;
pub use prefetch::PrefetchConfig;
use prefetch::same_page;
use private::{Left, Private, SecondLine, State, lines};
pub use queues::Queues;
use queues::{Step, Steps};

/// Lines of a 4 KB page.
const LINES_OF_PAGE: u64 = PAGE_BYTES / LINE_BYTES;
/// The most cores: the directory has a bit for each.
pub const MOST_CORES: usize = 64;

/// Who wants what of which line, and when.
#[derive(Clone, Copy, Debug)]
pub struct CoreRequest {
    /// The core.
    pub core: usize,
    /// The address.
    pub address: PhysAddr,
    /// What for.
    pub kind: AccessKind,
    /// When the request leaves the core.
    pub time: Cycles,
    /// What tells the instruction from others, for the stride prefetcher.
    pub instruction: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sharers {
    /// Cores that may have the line.
    cores: u64,
    /// One of them may have it to itself.
    exclusive: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct LastLine<D> {
    dirty: bool,
    data: D,
}

#[derive(Clone, Debug)]
struct Slice<D> {
    lines: Sets<LastLine<D>>,
    directory: Sets<Sharers>,
}

/// What came of a request at its home slice.
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
#[derive(Debug)]
pub struct MemorySystem<D: Payload = ()> {
    cores: Vec<Private<D>>,
    slices: Vec<Slice<D>>,
    network: Network,
    steps: Steps,
    /// Not here while another thread prices requests.
    queues: Option<Box<Queues>>,
    memory: D::Memory,
    /// Pages that migrate.
    table: Table,
    latency: Latencies,
    inclusive: bool,
    next_line: bool,
    stride: bool,
    fetches: ServedBy,
    data: ServedBy,
    walks: ServedBy,
    llc: LevelCounters,
    coherence: CoherenceCounters,
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
            network: Network::new(shared.topology, cores, slices as usize, shared.hop_cycles),
            steps: Steps::default(),
            queues: Some(Box::new(Queues::new(config, clock))),
            memory: D::Memory::default(),
            table,
            latency: Latencies {
                l1i: config.l1i.latency_cycles,
                l1d: config.l1d.latency_cycles,
                l2: config.l2.latency_cycles,
                llc: config.llc.latency_cycles,
            },
            inclusive: shared.inclusive,
            next_line: config.prefetch.next_line,
            stride: config.prefetch.stride,
            fetches: ServedBy::default(),
            data: ServedBy::default(),
            walks: ServedBy::default(),
            llc: LevelCounters::default(),
            coherence: CoherenceCounters::default(),
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
    #[inline]
    pub fn hit(
        &mut self,
        core: usize,
        address: PhysAddr,
        kind: AccessKind,
        mut visit: impl FnMut(&mut D),
    ) -> Option<Cycles> {
        let line = address.line();
        let core = &mut self.cores[core];
        match kind {
            AccessKind::Fetch => {
                if let Some(first) = core.l1i.lookup(line, line) {
                    visit(&mut first.data);
                    core.l1i_counters.hits += 1;
                    self.fetches.l1 += 1;
                    return Some(Cycles::ZERO);
                }
                core.l1i_counters.misses += 1;
            }
            AccessKind::Read | AccessKind::Walk => {
                if let Some(first) = core.l1d.lookup(line, line) {
                    visit(&mut first.data);
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
        self.serve(request, visit);
        self.price(request.time)
    }

    /// [`miss`](Self::miss), to be priced later: what [`Queues::price`] needs goes behind `steps`. The
    /// request's time does not matter.
    pub fn defer_miss(&mut self, request: &CoreRequest, steps: &mut Vec<u64>) {
        std::mem::swap(&mut self.steps.words, steps);
        self.serve(request, |_| ());
        std::mem::swap(&mut self.steps.words, steps);
    }

    /// The queues, for somebody else to price requests; until they are back, requests can only be
    /// deferred.
    pub fn lend_queues(&mut self) -> Option<Box<Queues>> {
        self.queues.take()
    }

    /// What prices requests, if it is not lent.
    pub fn queues(&mut self) -> Option<&mut Queues> {
        self.queues.as_deref_mut()
    }

    /// They are back.
    pub fn return_queues(&mut self, queues: Box<Queues>) {
        self.queues = Some(queues);
    }

    /// Prices what the last request left behind.
    fn price(&mut self, time: Cycles) -> Cycles {
        let queues = self.queues.as_mut();
        let answer = queues
            .expect("the queues are back before a request is priced")
            .price(&self.steps.words, time);
        self.steps.words.clear();
        answer
    }

    #[inline(never)]
    fn serve(&mut self, request: &CoreRequest, visit: impl FnOnce(&mut D)) {
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
            let answer = self.at_home(request.core, line, own, visit);
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
                    self.fill_second(request.core, line, &served, 0);
                    self.steps.push(Step::Answer { cycles, hidden });
                    self.fill_first(request, line, served.state, served.data, visit);
                }
            }
        }
        if follow && self.next_line && same_page(line, line + 1) {
            self.prefetch(request.core, line + 1);
        }
        if self.stride && !fetch && request.kind != AccessKind::Walk {
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
        match request.kind {
            AccessKind::Fetch => core.fill_instruction(line, data),
            AccessKind::Read | AccessKind::Walk => core.fill_data(line, state, data, false),
            AccessKind::Write => core.fill_data(line, state, data, true),
        }
    }

    /// Enters a line into a second level, by a prefetch of that number if that is not 0.
    fn fill_second(&mut self, core: usize, line: u64, served: &Served<D>, prefetch: u32) {
        let second = SecondLine {
            state: served.state,
            prefetched: prefetch != 0,
            prefetch,
            data: served.data,
        };
        let private = &mut self.cores[core];
        if let Some(present) = private.l2.lookup(line, line) {
            *present = second;
            return;
        }
        let Some((victim, old)) = private.l2.insert(line, line, second) else {
            return;
        };
        let left = private.remove_above(victim, old);
        private.l2_counters.write_backs += u64::from(left.modified);
        self.forget(core, victim);
        self.write_back(victim, left);
    }

    /// Brings a line into a core's second level before it is needed.
    fn prefetch(&mut self, core: usize, line: u64) {
        if self.cores[core].l2.peek(line, line).is_some() {
            return;
        }
        if let Answer::Keep(served, _) = self.at_home(core, line, Request::Read, |_| ()) {
            self.coherence.prefetches += 1;
            let prefetch = self.steps.prefetch(served.cycles);
            self.fill_second(core, line, &served, prefetch);
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

    /// Serves a private miss at the line's home. `visit` comes back unused when the requester may
    /// keep the line, since its copy is what is to be visited then.
    fn at_home<V: FnOnce(&mut D)>(
        &mut self,
        core: usize,
        line: u64,
        request: Request,
        visit: V,
    ) -> Answer<D, V> {
        let slice = self.slice_of(line);
        let distance = self.network.round_trip(core, slice).get();
        // The configured latency is the mean over all slices.
        let base = self.latency.llc.get() + distance;
        let mut latency = base.saturating_sub(self.network.mean.get());
        let mut backing = line;
        let mut retain = true;
        if let Some((entry, alias)) = self.migration(line) {
            let (service, extra) = self.consult(entry, alias, line, request);
            latency += extra;
            retain = service.retain;
            backing = self.line_at(entry, service.location, line);
        }
        if !retain {
            self.coherence.uncached += 1;
            let last = self.bring(backing);
            let write = request == Request::Own;
            last.dirty |= write;
            visit(&mut last.data);
            return Answer::Visited(latency as u32);
        }
        let mine = 1 << core;
        let sharers = self.slices[slice].directory.lookup(line, line).copied();
        let sharers = sharers.unwrap_or_default();
        let others = sharers.cores & !mine;
        let mut state = State::Modified;
        let mut from_core = None;
        if others != 0 && (request == Request::Own || sharers.exclusive) {
            for other in cores(others) {
                let hop = self.network.round_trip(other, slice).get();
                let left = if request == Request::Own {
                    let left = self.cores[other].remove(line);
                    self.coherence.invalidations += u64::from(left.is_some());
                    left
                } else {
                    self.cores[other].share(line)
                };
                if let Some(left) = left {
                    if left.modified {
                        latency += hop;
                        self.coherence.cache_to_cache += 1;
                        if request != Request::Own {
                            self.put(backing, left.data, true);
                        }
                    }
                    from_core = Some(left.data);
                }
            }
        }
        if request != Request::Own {
            state = if others == 0 {
                State::Exclusive
            } else {
                State::Shared
            };
        }
        // A core that upgrades has the data.
        let own_copy = if request == Request::Own && sharers.cores & mine != 0 {
            self.cores[core]
                .l2
                .peek(line, line)
                .map(|second| second.data)
        } else {
            None
        };
        let data = match own_copy.or(from_core) {
            Some(data) => data,
            None if self.inclusive => self.bring(backing).data,
            None => self.read_past(backing),
        };
        let now = Sharers {
            cores: if request == Request::Own {
                mine
            } else {
                sharers.cores | mine
            },
            exclusive: state != State::Shared,
        };
        self.enter_sharers(slice, line, now);
        let served = Served {
            data,
            state,
            cycles: latency as u32,
        };
        Answer::Keep(served, visit)
    }

    /// What the migration table says of a request, and what that takes beyond the usual.
    fn consult(
        &mut self,
        entry: EntryId,
        alias: Alias,
        line: u64,
        request: Request,
    ) -> (Service, u64) {
        let service = self.table.serve(entry, alias, offset_of(line), request);
        let mut extra = 0;
        if service.location == Alias::Destination {
            self.coherence.redirected += 1;
        }
        if service.location != alias {
            // The home of the other line answers: one hop of the network more.
            extra += self.network.mean.get() / 2;
        }
        if service.invalidate_opposite {
            let opposite = self.line_at(entry, alias.opposite(), line);
            if self.recall(opposite) {
                self.coherence.alias_recalls += 1;
                extra += self.network.mean.get();
            }
        }
        (service, extra)
    }

    /// The line of a migration's page under one of its two addresses.
    fn line_at(&self, entry: EntryId, alias: Alias, line: u64) -> u64 {
        u64::from(self.table.frame(entry, alias).get()) * LINES_OF_PAGE + line % LINES_OF_PAGE
    }

    fn enter_sharers(&mut self, slice: usize, line: u64, sharers: Sharers) {
        let directory = &mut self.slices[slice].directory;
        if let Some(entry) = directory.lookup(line, line) {
            *entry = sharers;
            return;
        }
        if let Some((victim, lost)) = directory.insert(line, line, sharers) {
            self.back_invalidate(victim, lost.cores);
        }
    }

    /// A core does not have a line any more.
    fn forget(&mut self, core: usize, line: u64) {
        let slice = self.slice_of(line);
        let directory = &mut self.slices[slice].directory;
        if let Some(sharers) = directory.peek_mut(line, line) {
            sharers.cores &= !(1 << core);
            if sharers.cores == 0 {
                directory.remove(line, line);
            }
        }
    }

    /// Takes a line away from cores because something below has no room for it.
    fn back_invalidate(&mut self, line: u64, mask: u64) {
        for core in cores(mask) {
            if let Some(left) = self.cores[core].remove(line) {
                self.coherence.back_invalidations += 1;
                self.write_back(line, left);
            }
        }
    }

    /// Takes a line away from all cores, as it is named by them; whether any had it. What was
    /// modified goes to where the line's data is.
    fn recall(&mut self, line: u64) -> bool {
        let slice = self.slice_of(line);
        let Some(sharers) = self.slices[slice].directory.remove(line, line) else {
            return false;
        };
        let mut found = false;
        for core in cores(sharers.cores) {
            if let Some(left) = self.cores[core].remove(line) {
                found = true;
                if left.modified {
                    self.write_back(line, left);
                }
            }
        }
        found
    }

    /// Takes in a line that a private cache evicted.
    fn write_back(&mut self, line: u64, left: Left<D>) {
        let mut backing = line;
        if let Some((entry, alias)) = self.migration(line) {
            let offset = offset_of(line);
            let service = self.table.serve(entry, alias, offset, Request::WriteBack);
            backing = self.line_at(entry, service.location, line);
        }
        if left.modified {
            self.put(backing, left.data, true);
        } else if !self.inclusive && backing == line {
            // The last level is where private caches put what they have no room for.
            self.put(backing, left.data, false);
        }
    }

    /// Puts a line into the last level.
    fn put(&mut self, backing: u64, data: D, dirty: bool) {
        let slice = self.slice_of(backing);
        let lines = &mut self.slices[slice].lines;
        if let Some(last) = lines.lookup(backing, backing) {
            if dirty {
                *last = LastLine { dirty, data };
            }
            return;
        }
        let evicted = lines.insert(backing, backing, LastLine { dirty, data });
        self.evicted(evicted);
    }

    fn evicted(&mut self, evicted: Option<(u64, LastLine<D>)>) {
        let Some((line, last)) = evicted else {
            return;
        };
        let mut last = last;
        if self.inclusive {
            for named in self.names_of(line) {
                let slice = self.slice_of(named);
                let Some(sharers) = self.slices[slice].directory.remove(named, named) else {
                    continue;
                };
                for core in cores(sharers.cores) {
                    if let Some(left) = self.cores[core].remove(named) {
                        self.coherence.back_invalidations += 1;
                        if left.modified {
                            last = LastLine {
                                dirty: true,
                                data: left.data,
                            };
                        }
                    }
                }
            }
        }
        if last.dirty {
            self.llc.write_backs += 1;
            self.steps.push(Step::Write { line });
            last.data.store(&mut self.memory, line);
        }
    }

    /// How cores may name a line of the last level whose data they have: by its own address, or
    /// by the other one of a migration that keeps the data here.
    fn names_of(&self, backing: u64) -> impl Iterator<Item = u64> + use<D> {
        let mut names = [Some(backing), None];
        if let Some((entry, alias)) = self.migration(backing) {
            let offset = offset_of(backing);
            if self
                .table
                .serve(entry, alias, offset, Request::Read)
                .location
                == alias
            {
                names[1] = Some(self.line_at(entry, alias.opposite(), backing));
            } else {
                // Nobody's data is here: private copies belong to the other line.
                names[0] = None;
            }
        }
        names.into_iter().flatten()
    }

    /// The line of the last level, read from memory if it is not there.
    fn bring(&mut self, backing: u64) -> &mut LastLine<D> {
        let slice = self.slice_of(backing);
        if self.slices[slice].lines.lookup(backing, backing).is_some() {
            self.llc.hits += 1;
        } else {
            self.llc.misses += 1;
            self.steps.push(Step::Read { line: backing });
            let data = D::load(&self.memory, backing);
            let last = LastLine { dirty: false, data };
            let evicted = self.slices[slice].lines.insert(backing, backing, last);
            self.evicted(evicted);
        }
        let lines = &mut self.slices[slice].lines;
        let last = lines.peek_mut(backing, backing);
        last.expect("the line was just entered")
    }

    /// A line's data for a private cache, from the last level or past it.
    fn read_past(&mut self, backing: u64) -> D {
        let slice = self.slice_of(backing);
        if let Some(last) = self.slices[slice].lines.lookup(backing, backing) {
            self.llc.hits += 1;
            return last.data;
        }
        self.llc.misses += 1;
        self.steps.push(Step::Read { line: backing });
        D::load(&self.memory, backing)
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

    /// What was done since the counters were reset.
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
        if let Some(queues) = &mut self.queues {
            queues.reset_counters();
        }
    }

    /// Checks every array, that a line which a core may write is nobody else's, that the directory
    /// knows of every private line, and that no line of a migrating page is in private caches
    /// under both of its addresses.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self) -> Result<(), String> {
        for (core, private) in self.cores.iter().enumerate() {
            private
                .validate()
                .map_err(|problem| format!("core {core}: {problem}"))?;
            for (line, second) in private.l2.iter() {
                let directory = &self.slices[self.slice_of(line)].directory;
                let sharers = directory.peek(line, line).copied().unwrap_or_default();
                if sharers.cores >> core & 1 == 0 {
                    return Err(format!(
                        "core {core} has line {line:#x} unknown to the directory"
                    ));
                }
                let others = self.cores.iter().enumerate();
                let others = others
                    .filter(|&(other, private)| {
                        other != core && private.l2.peek(line, line).is_some()
                    })
                    .count();
                if second.state != State::Shared && others > 0 {
                    return Err(format!(
                        "line {line:#x} is {:?} in core {core} and in {others} others",
                        second.state
                    ));
                }
                if second.state != State::Shared && !sharers.exclusive {
                    return Err(format!("line {line:#x} is core {core}'s own unknowingly"));
                }
                if let Some((entry, alias)) = self.migration(line) {
                    let opposite = self.line_at(entry, alias.opposite(), line);
                    let mut all = self.cores.iter();
                    if all.any(|private| private.l2.peek(opposite, opposite).is_some()) {
                        return Err(format!(
                            "lines {line:#x} and {opposite:#x} are one and both in private caches"
                        ));
                    }
                }
            }
        }
        for (number, slice) in self.slices.iter().enumerate() {
            slice
                .lines
                .validate()
                .and_then(|()| slice.directory.validate())
                .map_err(|problem| format!("slice {number}: {problem}"))?;
        }
        self.table.validate()
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
