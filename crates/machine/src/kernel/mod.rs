//! The simulated kernel: processes, system calls, faults, and physical memory below them.

pub(crate) mod demand;
pub(crate) mod history;

use std::sync::atomic::AtomicBool;

use contigua_contiguity::Contiguity;
use contigua_frames::{Counters, FrameClass, Move};
use contigua_paging::{
    AddressSpace, Effects, FaultKind, HugeAdvice, MappingPolicy, Memory, PageTable, Resident,
    SpaceId, Vma, VmaKind,
};
use contigua_program::sources::Program;
use contigua_program::syscall::{Advice, Call};
use contigua_program::wire::{Event, ImageKind, ProcessId, ThreadId};
use contigua_translation::{Access, BackgroundPass, Mmu};
use contigua_units::{
    Bytes, Cycles, Megahertz, Nanoseconds, Order, PAGE_BYTES, PageSize, VirtAddr, VirtRange,
};

use crate::Error;
use crate::config::{KernelCosts, RunConfig};
use crate::report::{KernelReport, MemoryReport, SyscallReport};
use demand::Demand;

/// The least memory of a simulated server.
const LEAST_MEMORY: Bytes = Bytes::new(16 << 20);
/// The most: 16 bytes of metadata a frame are 16 GB of host memory then.
const MOST_MEMORY: Bytes = Bytes::new(4 << 40);

/// Checks that a simulated server can have that much memory.
pub(crate) fn check_memory(memory: Bytes) -> Result<(), Error> {
    if (LEAST_MEMORY..=MOST_MEMORY).contains(&memory) {
        return Ok(());
    }
    Err(Error::Memory {
        memory,
        least: LEAST_MEMORY,
        most: MOST_MEMORY,
    })
}

/// Times that an operation that ran out of memory is tried again after the kernel's threads have
/// made some.
const PATIENCE: usize = 3;

/// All addresses of a process.
const EVERYTHING: VirtRange = VirtRange {
    start: VirtAddr::new(0),
    end: VirtAddr::new(1 << 48),
};

/// The only way in which the kernel gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutOfMemory {
    memory: Bytes,
}

impl OutOfMemory {
    /// The error, at a point of the program.
    pub(crate) fn at(self, instruction: u64) -> Error {
        Error::OutOfMemory {
            memory: self.memory,
            instruction,
        }
    }
}

/// The operating system of a simulated server.
pub(crate) struct Kernel {
    memory: Memory,
    costs: KernelCosts,
    policy: Box<dyn MappingPolicy>,
    pass: Option<(BackgroundPass, Cycles)>,
    next_pass: Cycles,
    reports_mappings: bool,
    /// By space number; a number is used again after its process has ended.
    spaces: Vec<Option<AddressSpace>>,
    /// Space of each process.
    processes: Vec<Option<SpaceId>>,
    /// Process of each thread.
    threads: Vec<ProcessId>,
    current: SpaceId,
    effects: Effects,
    moves: Vec<Move>,
    demand: Demand,
    clock: Megahertz,
    /// Age of the server, for the kernel's threads.
    now: Nanoseconds,
    /// Its age when the core's clock was at 0.
    epoch: Nanoseconds,
    resident: Resident,
    events_before: Counters,
    /// Frames of page tables that others have.
    page_tables_before: u64,
    pub(crate) contiguity_before: Contiguity,
    pub(crate) counters: KernelReport,
    pub(crate) syscalls: SyscallReport,
    pub(crate) peak: MemoryReport,
}

impl Kernel {
    pub(crate) fn new(
        config: &RunConfig,
        reports_mappings: bool,
        cancel: &AtomicBool,
    ) -> Result<Self, Error> {
        let machine = &config.machine;
        check_memory(machine.memory)?;
        let (memory, now) = history::memory(config, cancel)?;
        let scheme = &config.design.translation;
        let pass = scheme
            .background()
            .map(|pass| (pass, pass.interval.at(machine.clock)));
        let mut kernel = Self {
            contiguity_before: memory.contiguity(),
            memory,
            costs: machine.kernel.clone(),
            policy: scheme.policy(),
            next_pass: pass.map_or(Cycles::ZERO, |(_, interval)| interval),
            pass,
            reports_mappings,
            spaces: Vec::new(),
            processes: Vec::new(),
            threads: Vec::new(),
            current: SpaceId(0),
            effects: Effects::default(),
            moves: Vec::new(),
            demand: Demand::default(),
            clock: machine.clock,
            now,
            epoch: now,
            resident: Resident::default(),
            events_before: Counters::default(),
            page_tables_before: 0,
            counters: KernelReport::default(),
            syscalls: SyscallReport::default(),
            peak: MemoryReport::default(),
        };
        kernel.events_before = kernel.memory.counters();
        kernel.page_tables_before = kernel.memory.frames_of(FrameClass::PageTable);
        Ok(kernel)
    }

    fn out_of_memory(&self) -> OutOfMemory {
        OutOfMemory {
            memory: Bytes::new(self.memory.total() * PAGE_BYTES),
        }
    }

    /// The address space that the core runs in.
    #[inline]
    pub(crate) fn space(&self) -> SpaceId {
        self.current
    }

    /// The page table that the core walks.
    #[inline]
    pub(crate) fn table(&self) -> &PageTable {
        self.running().table()
    }

    /// The space that the core runs in. Batches begin with their thread's start, so there is one.
    #[inline]
    fn running(&self) -> &AddressSpace {
        self.spaces[usize::from(self.current.0)]
            .as_ref()
            .expect("the running thread's process has an address space")
    }

    pub(crate) fn contiguity(&self) -> Contiguity {
        self.memory.contiguity()
    }

    /// What happened to physical memory in the region of interest.
    pub(crate) fn memory_events(&self) -> Counters {
        self.memory.counters().since(&self.events_before)
    }

    /// Size of the unmovable region, where there is one.
    pub(crate) fn unmovable_region(&self) -> Option<Bytes> {
        let border = self.memory.border()?;
        Some(Bytes::new(u64::from(border.get()) * PAGE_BYTES))
    }

    pub(crate) fn thread_count(&self) -> u64 {
        self.threads.len() as u64
    }

    pub(crate) fn process_count(&self) -> u64 {
        self.processes.len() as u64
    }

    pub(crate) fn reset_counters(&mut self) {
        self.counters = KernelReport::default();
        self.syscalls = SyscallReport::default();
        self.events_before = self.memory.counters();
        self.note_peak();
    }

    /// The core turns to a thread.
    ///
    /// # Errors
    /// When the thread's process is new and there is no frame for its page table.
    pub(crate) fn run_thread(&mut self, thread: ThreadId) -> Result<(), OutOfMemory> {
        let index = thread.0 as usize;
        if index >= self.threads.len() {
            // Until it says otherwise, a thread belongs to the first process.
            self.threads.resize(index + 1, ProcessId(0));
        }
        self.current = self.space_of(self.threads[index])?;
        Ok(())
    }

    /// The space of a process, which is made when there is none.
    fn space_of(&mut self, process: ProcessId) -> Result<SpaceId, OutOfMemory> {
        let index = process.0 as usize;
        if index >= self.processes.len() {
            self.processes.resize(index + 1, None);
        }
        if let Some(space) = self.processes[index] {
            return Ok(space);
        }
        let id = self.unused_space();
        let out_of_memory = self.out_of_memory();
        let mut space = AddressSpace::new(id, &mut self.memory).map_err(|_| out_of_memory)?;
        if !self.reports_mappings {
            space.assume_everything_mapped();
        }
        self.spaces[usize::from(id.0)] = Some(space);
        self.processes[index] = Some(id);
        Ok(id)
    }

    fn unused_space(&mut self) -> SpaceId {
        let free = self.spaces.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.spaces.push(None);
            self.spaces.len() - 1
        });
        SpaceId(u16::try_from(index).expect("the ring allows 4096 processes at a time"))
    }

    fn end_process(&mut self, process: ProcessId, mmu: &mut Mmu) {
        let slot = self.processes.get_mut(process.0 as usize);
        let Some(id) = slot.and_then(Option::take) else {
            return;
        };
        mmu.invalidate(id, EVERYTHING);
        if let Some(space) = self.spaces[usize::from(id.0)].take() {
            self.account(space.resident(), Resident::default());
            space.destroy(&mut self.memory);
        }
    }

    /// Handles an event of a thread; the work that it took.
    pub(crate) fn event(
        &mut self,
        thread: ThreadId,
        event: &Event,
        program: &Program,
        mmu: &mut Mmu,
    ) -> Result<Cycles, OutOfMemory> {
        match *event {
            Event::ThreadStart { process } => {
                self.threads[thread.0 as usize] = process;
                self.run_thread(thread)?;
            }
            Event::ThreadEnd => Demand::thread_ended(&mut self.memory),
            Event::ProcessStart { process } => {
                self.end_process(process, mmu);
                self.run_thread(thread)?;
            }
            Event::ProcessEnd { process } => {
                let living = self.processes.iter().flatten().count();
                // The last one's memory stays for the report to look at.
                if living > 1 {
                    self.end_process(process, mmu);
                    self.current = self.space_of(ProcessId(0))?;
                }
            }
            Event::Fork { child } => {
                self.demand.forked(self.threads[thread.0 as usize], child);
                return self.fork(child, mmu);
            }
            Event::ForkFailed { child } => self.end_process(child, mmu),
            Event::Image {
                range,
                writable,
                kind,
            } => {
                let kind = match kind {
                    ImageKind::File => VmaKind::File,
                    ImageKind::Anonymous => VmaKind::Anonymous,
                };
                let vma = Vma {
                    kind,
                    writable,
                    ..Vma::ANONYMOUS
                };
                return self.change(mmu, |space, memory, effects, _| {
                    space.map(range, vma, memory, effects)
                });
            }
            Event::Syscall(syscall) => {
                let call = Call::of(program.architecture, &syscall);
                self.count(&call);
                let process = self.threads[thread.0 as usize];
                self.demand.call(&call, process, &mut self.memory);
                return Ok(self.call(call, mmu)? + self.settle(mmu) + self.costs.syscall_cycles);
            }
        }
        Ok(Cycles::ZERO)
    }

    fn count(&mut self, call: &Call) {
        let counters = &mut self.syscalls;
        counters.all += 1;
        match *call {
            Call::Map { .. }
            | Call::Unmap { .. }
            | Call::Remap { .. }
            | Call::Break { .. }
            | Call::Protect { .. }
            | Call::Advise { .. } => counters.memory += 1,
            Call::Receive { bytes, .. } => {
                counters.receives += 1;
                counters.bytes_received += bytes;
            }
            Call::Send { bytes, .. } => {
                counters.sends += 1;
                counters.bytes_sent += bytes;
            }
            Call::Open { .. } => counters.opens += 1,
            Call::Wait => counters.waits += 1,
            Call::Close { .. } | Call::Spawn | Call::Exit | Call::Other => {}
        }
    }

    fn call(&mut self, call: Call, mmu: &mut Mmu) -> Result<Cycles, OutOfMemory> {
        match call {
            Call::Map {
                range,
                writable,
                anonymous,
                shared,
                huge,
                populate,
                ..
            } => {
                let vma = Vma {
                    kind: if anonymous {
                        VmaKind::Anonymous
                    } else {
                        VmaKind::File
                    },
                    writable,
                    shared,
                    huge: if huge {
                        HugeAdvice::Huge
                    } else {
                        HugeAdvice::None
                    },
                };
                self.change(mmu, |space, memory, effects, policy| {
                    space.map(range, vma, memory, effects)?;
                    if populate {
                        space.populate(range, policy, memory, effects)?;
                    }
                    Ok(())
                })
            }
            Call::Unmap { range } => self.change(mmu, |space, memory, effects, _| {
                space.unmap(range, memory, effects)
            }),
            Call::Remap { from, to, keep } => {
                // Half done, it must not begin again: this is the one change that is not repeated.
                let mut work = self.settle(mmu);
                let (done, cycles) =
                    self.change_once(mmu, &mut |space: &mut AddressSpace, memory, effects, _| {
                        space.remap(from, to, keep, memory, effects)
                    });
                work += cycles;
                done.map(|()| work).map_err(|_| self.out_of_memory())
            }
            Call::Break { end } => self.change(mmu, |space, memory, effects, _| {
                space.set_break(end, memory, effects)
            }),
            Call::Protect { range, writable } => self.change(mmu, |space, memory, effects, _| {
                space.protect(range, writable, memory, effects)
            }),
            Call::Advise { range, advice } => {
                self.change(mmu, |space, memory, effects, policy| match advice {
                    Advice::DontNeed => space.discard(range, memory, effects),
                    Advice::Free => space.free_lazily(range, memory, effects),
                    Advice::HugePage => space.advise_huge(range, HugeAdvice::Huge, memory, effects),
                    Advice::NoHugePage => {
                        space.advise_huge(range, HugeAdvice::NoHuge, memory, effects)
                    }
                    Advice::Populate => space.populate(range, policy, memory, effects),
                    Advice::Collapse => {
                        space.collapse_range(range, memory, effects);
                        Ok(())
                    }
                    Advice::Other => Ok(()),
                })
            }
            _ => Ok(Cycles::ZERO),
        }
    }

    fn fork(&mut self, child: ProcessId, mmu: &mut Mmu) -> Result<Cycles, OutOfMemory> {
        self.end_process(child, mmu);
        let id = self.unused_space();
        let mut copy = None;
        let work = self.change(mmu, |space, memory, effects, _| {
            copy = Some(space.fork(id, memory, effects)?);
            Ok(())
        })?;
        if let Some(copy) = copy {
            self.account(Resident::default(), copy.resident());
            self.spaces[usize::from(id.0)] = Some(copy);
        }
        let index = child.0 as usize;
        if index >= self.processes.len() {
            self.processes.resize(index + 1, None);
        }
        self.processes[index] = Some(id);
        Ok(work)
    }

    /// Resolves a page fault; the work that it took.
    pub(crate) fn fault(
        &mut self,
        address: VirtAddr,
        access: Access,
        mmu: &mut Mmu,
    ) -> Result<Cycles, OutOfMemory> {
        let write = access == Access::Write;
        let mut resolved = None;
        let mut prepared = Cycles::ZERO;
        if !self.memory.has_free_block(Order::HUGE_2M) {
            prepared = self.make_huge(address, mmu);
        }
        let work = self.change(mmu, |space, memory, effects, policy| {
            resolved = Some(space.fault(address, write, policy, memory, effects)?);
            Ok(())
        })?;
        if let Some(fault) = resolved {
            let counters = &mut self.counters;
            *match (fault.kind, fault.size) {
                (FaultKind::Anonymous, PageSize::Size4K) => &mut counters.faults_anonymous_4k,
                (FaultKind::Anonymous, _) => &mut counters.faults_anonymous_2m,
                (FaultKind::File, _) => &mut counters.faults_file,
                (FaultKind::CopyOnWrite, _) => &mut counters.faults_copy_on_write,
                (FaultKind::Spurious, _) => &mut counters.faults_spurious,
            } += 1;
        }
        Ok(prepared + work + self.costs.page_fault_cycles)
    }

    /// Lets the background pass catch up with the time.
    pub(crate) fn background(&mut self, now: Cycles, mmu: &mut Mmu) -> Cycles {
        let elapsed = now.get() * 1000 / u64::from(self.clock.get());
        self.now = Nanoseconds::new(self.epoch.get() + elapsed);
        let mut work = self.run_threads(mmu);
        while let Some((pass, interval)) = self.pass
            && now >= self.next_pass
        {
            self.next_pass += Cycles::new(interval.get().max(1));
            let before = self.current;
            let living: Vec<SpaceId> = self.processes.iter().flatten().copied().collect();
            for space in living {
                self.current = space;
                let done = self.change(mmu, |space, memory, effects, policy| {
                    space.background_pass(pass.pages, policy, memory, effects);
                    Ok(())
                });
                work += done.unwrap_or(Cycles::ZERO);
            }
            self.current = before;
        }
        work
    }

    /// Starts the background pass's clock anew, when the core's is.
    pub(crate) fn restart_clock(&mut self) {
        self.next_pass = self.pass.map_or(Cycles::ZERO, |(_, interval)| interval);
        self.epoch = self.now;
    }

    /// Changes the running space, then does and charges what follows from the change. When memory
    /// runs out, the kernel's threads get a chance to make some, and the change goes on.
    fn change(
        &mut self,
        mmu: &mut Mmu,
        mut change: impl FnMut(
            &mut AddressSpace,
            &mut Memory,
            &mut Effects,
            &dyn MappingPolicy,
        ) -> Result<(), contigua_paging::Error>,
    ) -> Result<Cycles, OutOfMemory> {
        let mut work = self.settle(mmu);
        let mut attempts = 0;
        loop {
            let (done, cycles) = self.change_once(mmu, &mut change);
            work += cycles;
            if done.is_ok() {
                return Ok(work);
            }
            attempts += 1;
            let before = self.memory.free_frames();
            work += self.run_threads(mmu);
            if attempts > PATIENCE || self.memory.free_frames() == before && attempts > 1 {
                return Err(self.out_of_memory());
            }
        }
    }

    fn change_once(
        &mut self,
        mmu: &mut Mmu,
        change: &mut impl FnMut(
            &mut AddressSpace,
            &mut Memory,
            &mut Effects,
            &dyn MappingPolicy,
        ) -> Result<(), contigua_paging::Error>,
    ) -> (Result<(), contigua_paging::Error>, Cycles) {
        let id = self.current;
        let space = self.spaces[usize::from(id.0)]
            .as_mut()
            .expect("the running thread's process has an address space");
        let before = space.resident();
        let stalled = self.memory.pressure().all().total;
        self.effects.clear();
        let done = change(space, &mut self.memory, &mut self.effects, &*self.policy);
        let after = space.resident();
        self.account(before, after);
        let stalled = self.memory.pressure().all().total.get() - stalled.get();
        let effects = &self.effects;
        for &range in &effects.invalidations {
            mmu.invalidate(id, range);
        }
        let invalidations = effects.invalidations.len() as u64;
        self.counters.invalidations += invalidations;
        self.counters.huge_page_fallbacks += effects.fallbacks;
        self.counters.huge_page_collapses += effects.collapses;
        self.counters.huge_page_splits += effects.splits;
        self.counters.unexplained_accesses += effects.unexplained;
        let costs = &self.costs;
        let work = costs.zero_4k_cycles * effects.zeroed_4k
            + costs.zero_2m_cycles * effects.zeroed_2m
            + costs.copy_4k_cycles * effects.copied_4k
            + costs.page_table_node_cycles * effects.nodes
            + costs.invalidation_cycles * invalidations
            + Nanoseconds::new(stalled).at(self.clock);
        (done, work)
    }

    /// Lets the kernel's threads run if somebody woke them.
    fn settle(&mut self, mmu: &mut Mmu) -> Cycles {
        if self.memory.has_background_work() {
            self.run_threads(mmu)
        } else {
            Cycles::ZERO
        }
    }

    /// Reclaim, compaction and resizing in the background, and what follows for page tables. The
    /// one core that is simulated pays for moved pages.
    fn run_threads(&mut self, mmu: &mut Mmu) -> Cycles {
        let mut moves = core::mem::take(&mut self.moves);
        self.memory.background(self.now, &mut moves);
        let work = self.follow(&moves, mmu);
        moves.clear();
        self.moves = moves;
        work
    }

    /// Lets page tables and TLBs follow pages that moved.
    fn follow(&mut self, moves: &[Move], mmu: &mut Mmu) -> Cycles {
        let mut work = Cycles::ZERO;
        for moved in moves {
            let space = SpaceId(moved.owner.space);
            let table = self.spaces.get_mut(usize::from(space.0));
            if let Some(table) = table.and_then(Option::as_mut) {
                self.counters.pages_moved += u64::from(table.follow(moved));
            }
            let start = moved.owner.page.address();
            mmu.invalidate(space, VirtRange::with_length(start, moved.order.bytes()));
            self.counters.invalidations += 1;
            work += self.costs.copy_4k_cycles * u64::from(moved.order.frames())
                + self.costs.invalidation_cycles;
        }
        work
    }

    /// Makes a 2 MB block for a page that the program has asked to be huge, as Linux does by
    /// default (`transparent_hugepage/defrag` is `madvise`).
    fn make_huge(&mut self, address: VirtAddr, mmu: &mut Mmu) -> Cycles {
        let space = self.running();
        let asked = space
            .vma(address)
            .is_some_and(|(_, vma)| vma.huge == HugeAdvice::Huge);
        if !asked || space.wanted_size(address, &*self.policy) < PageSize::Size2M {
            return Cycles::ZERO;
        }
        let mut moves = core::mem::take(&mut self.moves);
        let before = self.memory.pressure().all().total.get();
        self.memory.compact_for(Order::HUGE_2M, &mut moves);
        let stalled = self.memory.pressure().all().total.get() - before;
        let work = self.follow(&moves, mmu);
        moves.clear();
        self.moves = moves;
        work + Nanoseconds::new(stalled).at(self.clock)
    }

    fn account(&mut self, before: Resident, after: Resident) {
        let all = &mut self.resident;
        all.pages_4k = all.pages_4k + after.pages_4k - before.pages_4k;
        all.pages_2m = all.pages_2m + after.pages_2m - before.pages_2m;
        all.pages_1g = all.pages_1g + after.pages_1g - before.pages_1g;
        if after.bytes() > before.bytes() {
            self.note_peak();
        }
    }

    fn note_peak(&mut self) {
        let resident = self.resident;
        let peak = &mut self.peak;
        let before = peak.resident_4k.get() + peak.resident_2m.get() + peak.resident_1g.get();
        let all = resident.bytes().get();
        if all < before {
            return;
        }
        let small = resident.pages_4k * PageSize::Size4K.bytes();
        *peak = MemoryReport {
            resident_4k: Bytes::new(small),
            resident_2m: Bytes::new(resident.pages_2m * PageSize::Size2M.bytes()),
            resident_1g: Bytes::new(resident.pages_1g * PageSize::Size1G.bytes()),
            huge_page_coverage: (all - small) as f64 / all.max(1) as f64,
            page_tables: Bytes::new(
                (self.memory.frames_of(FrameClass::PageTable) - self.page_tables_before)
                    * PAGE_BYTES,
            ),
        };
    }

    /// Checks the frame table and every address space.
    ///
    /// # Errors
    /// A sentence that says where.
    pub(crate) fn validate(&self) -> Result<(), String> {
        self.memory
            .validate()
            .map_err(|problem| problem.to_string())?;
        let spaces = self.spaces.iter().flatten();
        let mut resident = Resident::default();
        for space in spaces {
            space.validate(&self.memory)?;
            resident.pages_4k += space.resident().pages_4k;
            resident.pages_2m += space.resident().pages_2m;
            resident.pages_1g += space.resident().pages_1g;
        }
        if resident != self.resident {
            return Err(format!(
                "{:?} is counted and {resident:?} resident",
                self.resident
            ));
        }
        Ok(())
    }
}
