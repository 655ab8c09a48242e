//! The simulated kernel: processes, system calls, faults, and physical memory below them.

mod advice;
mod advised;
mod areas;
mod background;
mod calls;
pub(crate) mod demand;
pub(crate) mod history;
mod host;
mod pins;
mod ranger;
mod relocate;
mod residency;
mod restrict;
mod sharing;
mod smaps;
mod upkeep;

use std::sync::atomic::AtomicBool;

use contigua_contiguity::Contiguity;
use contigua_frames::{Counters, FrameClass, Move};
use contigua_paging::{
    AddressSpace, Buckets, Effects, FaultKind, Fragmentation, Hashed, Leaf, MappingPolicy, Memory,
    Place, Resident, Segment, SpaceId, TableShape, Written,
};
use contigua_program::wire::{ProcessId, ThreadId};
use contigua_translation::{Access, BackgroundPass, PrimaryRegion, Tables};
use contigua_units::{
    Bytes, Cycles, Frame, Megahertz, Nanoseconds, Order, PAGE_BYTES, PageSize, PhysAddr, VirtAddr,
    VirtRange,
};

use crate::Error;
use crate::config::{KernelCosts, RunConfig};
use crate::limits::check_memory;
use crate::mover::Mover;
use crate::processors::Mmus;
use crate::report::{AdviceReport, KernelReport, MemoryReport, RangerReport, SyscallReport};
use advised::Advised;
use demand::Demand;
use host::Host;
pub(crate) use relocate::Relocation;
use residency::ResidencyHistory;
use sharing::Segments;
use smaps::Smaps;
use upkeep::{Due, Plan};

/// Work for page-table entries and for the pages behind them.
fn entry_work(costs: &KernelCosts, effects: &Effects) -> Cycles {
    let populate = costs
        .page_fault_cycles
        .get()
        .saturating_sub(costs.syscall_cycles.get());
    costs.unmap_page_cycles * effects.unmapped
        + costs.free_page_cycles * (effects.freed + effects.freed_nodes)
        + costs.protect_page_cycles * (effects.rewritten + effects.lines_moved)
        + costs.fork_page_cycles * (effects.inherited + effects.around)
        + Cycles::new(populate) * effects.populated
}

/// Times that an operation that ran out of memory is tried again after the kernel's threads have
/// made some (Linux: `MAX_RECLAIM_RETRIES`, `mm/internal.h`).
const MAX_OOM_RETRIES: usize = 16;

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

const NOWHERE: VirtRange = VirtRange::new(VirtAddr::new(0), VirtAddr::new(0));

/// The operating system of a simulated server.
#[derive(contigua_state::State)]
pub(crate) struct Kernel {
    memory: Memory,
    #[state(skip)]
    costs: KernelCosts,
    #[state(skip)]
    policy: Box<dyn MappingPolicy>,
    #[state(skip)]
    shape: TableShape,
    #[state(skip)]
    primary: Option<PrimaryRegion>,
    #[state(skip)]
    scenario: Option<Fragmentation>,
    #[state(fixed)]
    host: Option<Host>,
    #[state(skip)]
    pass: Option<(BackgroundPass, Cycles)>,
    next_pass: Cycles,
    #[state(skip)]
    upkeep: Plan,
    due: Due,
    #[state(skip)]
    reports_mappings: bool,
    /// By space number; a number is used again after its process has ended.
    spaces: Vec<Option<AddressSpace>>,
    /// The code of each space's program, as far as that is known.
    program_code: Vec<VirtRange>,
    /// Space of each process.
    processes: Vec<Option<SpaceId>>,
    /// Process of each thread.
    threads: Vec<ProcessId>,
    current: SpaceId,
    effects: Effects,
    /// Pages that faults wrote since the engine last asked. In virtual machines, those that the host wrote.
    pub(crate) written: Vec<Written>,
    moves: Vec<Move>,
    /// Pages of the program that a device holds for the call that is under way.
    #[state(skip)]
    pinned: Vec<Frame>,
    pipe: pins::Pipe,
    mover: Mover,
    demand: Demand,
    segments: Segments,
    advised: Advised,
    #[state(skip)]
    smaps: Option<Smaps>,
    #[state(skip)]
    clock: Megahertz,
    /// Age of the server, for the kernel's threads.
    now: Nanoseconds,
    /// Its age when the core's clock was at 0.
    epoch: Nanoseconds,
    /// Memory of all spaces, added up.
    resident: Resident,
    /// Memory of all spaces after the last change, each frame once.
    resident_once: Bytes,
    events_before: Counters,
    /// Frames of page tables that others have.
    page_tables_before: u64,
    pub(crate) contiguity_before: Contiguity,
    pub(crate) counters: KernelReport,
    ranger: RangerReport,
    /// Memory of restrictive segments, as much as the design asks for.
    rest_segs: Option<u64>,
    pub(crate) syscalls: SyscallReport,
    pub(crate) advice: AdviceReport,
    pub(crate) peak: MemoryReport,
    residency: ResidencyHistory,
}

impl Kernel {
    pub(crate) fn new(
        config: &RunConfig,
        reports_mappings: bool,
        cancel: &AtomicBool,
    ) -> Result<Self, Error> {
        let machine = &config.machine;
        check_memory(machine.memory)?;
        let (mut memory, now) = history::memory(config, cancel)?;
        let scheme = &config.design.translation;
        let mut moves = Vec::new();
        if let Some(reserved) = scheme.reserved() {
            let bytes = machine.memory.get() as f64 * reserved.share.clamp(0.0, 1.0);
            let pages = bytes as u64 / reserved.size.bytes();
            // Pages of nobody under study move: nothing has to follow them.
            memory.reserve_huge(reserved.size, pages, &mut moves);
            moves.clear();
        }
        let host = config
            .design
            .host
            .as_ref()
            .map(|host| Host::new(host, config))
            .transpose()?;
        let pass = scheme
            .background()
            .map(|pass| (pass, pass.interval.at(machine.clock)));
        let upkeep = Plan::new(scheme.upkeep(), config.design.ranger.clone(), machine.clock);
        let buckets = scheme.places_by_hash();
        let buckets = buckets.then(|| Buckets::of(memory.total()));
        let mut kernel = Self {
            contiguity_before: memory.contiguity(),
            memory,
            costs: machine.kernel.clone(),
            policy: scheme.policy(),
            shape: TableShape {
                levels: machine.page_table_levels.0,
                has_shadows: scheme.has_shadows(),
                hashing: scheme.hashing(),
                areas: scheme.areas(host.is_some()),
                buckets,
            },
            primary: scheme.primary(),
            scenario: config.holes.map(|holes| holes.scenario(config.seed)),
            host,
            next_pass: pass.map_or(Cycles::ZERO, |(_, interval)| interval),
            pass,
            due: Due::at_start(&upkeep),
            upkeep,
            reports_mappings,
            spaces: Vec::new(),
            program_code: Vec::new(),
            processes: Vec::new(),
            threads: Vec::new(),
            current: SpaceId(0),
            effects: Effects::default(),
            moves,
            pinned: Vec::new(),
            pipe: pins::Pipe::default(),
            mover: Mover::default(),
            written: Vec::new(),
            demand: Demand::default(),
            segments: Segments::default(),
            advised: Advised::new(&config.advised),
            smaps: config.smaps.as_ref().map(|_| Smaps::default()),
            clock: machine.clock,
            now,
            epoch: now,
            resident: Resident::default(),
            resident_once: Bytes::new(0),
            events_before: Counters::default(),
            page_tables_before: 0,
            counters: KernelReport::default(),
            ranger: RangerReport::default(),
            rest_segs: None,
            syscalls: SyscallReport::default(),
            advice: AdviceReport::default(),
            peak: MemoryReport::default(),
            residency: ResidencyHistory::new(config.classify_misses),
        };
        kernel.take_rest_segs(&scheme.rest_segs(machine.memory));
        kernel.events_before = kernel.memory.counters();
        kernel.page_tables_before = kernel.memory.frames_of(FrameClass::PageTable);
        // What is set aside from the start counts where the program never has a page.
        kernel.note_peak();
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

    /// Says if the code at an address is in the running program's own file, not in a library.
    pub(crate) fn is_program_code(&self, address: VirtAddr) -> bool {
        let code = self.program_code.get(usize::from(self.current.0));
        code.is_some_and(|code| code.start <= address && address < code.end)
    }

    /// The tables that the core walks.
    #[inline]
    pub(crate) fn tables(&mut self) -> Tables<'_> {
        let space = self.spaces[usize::from(self.current.0)]
            .as_mut()
            .expect("the running thread's process has an address space");
        Tables {
            segment: space.segment(),
            table: space.table_mut(),
            holes: &self.memory.holes,
            rest_segs: Some(&mut self.memory.rest_segs),
            host: self.host.as_mut().map(Host::tables),
        }
    }

    /// Content of the core's segment registers: the running process's segment, composed with that
    /// of the host. Without one there, the guest's alone is walked through.
    pub(crate) fn registers(&self) -> Segment {
        if self.primary.is_none() {
            return Segment::NONE;
        }
        let slot = self.spaces.get(usize::from(self.current.0));
        let segment = slot
            .and_then(Option::as_ref)
            .map_or(Segment::NONE, AddressSpace::segment);
        match &self.host {
            None => segment,
            Some(host) => segment.then(&host.segment()),
        }
    }

    /// Where the kernel has placed an address of the program.
    pub(crate) fn place_of(&self, address: VirtAddr) -> Place {
        self.running().place_of(address)
    }

    /// Returns true if the engine has to tell of accesses before they are made ([`Kernel::enter`]): memory lies elsewhere
    /// than the program has it, or zeros in it are taken back.
    pub(crate) fn wants_accesses(&self) -> bool {
        self.primary.is_some() || self.upkeep.follows_stores()
    }

    /// Where the kernel has placed an address that the program accesses next.
    pub(crate) fn enter(&mut self, address: VirtAddr, write: bool) -> Place {
        if !self.upkeep.follows_stores() {
            return self.place_of(address);
        }
        let space = self.spaces[usize::from(self.current.0)].as_mut();
        space
            .expect("the running thread's process has an address space")
            .enter(address, write)
    }

    /// Says if a primary region holds an address, or would.
    pub(crate) fn is_eligible(&self, address: VirtAddr) -> bool {
        self.running().is_eligible(address)
    }

    /// Lets the host map memory of the guest; the work that it took.
    ///
    /// # Errors
    /// When the host has no memory.
    pub(crate) fn host_fault(
        &mut self,
        physical: PhysAddr,
        mmu: &mut Mmus,
    ) -> Result<Cycles, OutOfMemory> {
        let out_of_memory = self.out_of_memory();
        let Some(host) = &mut self.host else {
            return Ok(Cycles::ZERO);
        };
        let work = host
            .fault(physical, &self.costs, mmu, &mut self.written)
            .map_err(|_| out_of_memory)?;
        self.counters.faults_host += u64::from(!host.is_populated());
        self.counters.host_fault_cycles += work;
        Ok(work)
    }

    /// The space that the core runs in. Batches begin with their thread's start, so there is one.
    #[inline]
    fn running(&self) -> &AddressSpace {
        self.spaces[usize::from(self.current.0)]
            .as_ref()
            .expect("the running thread's process has an address space")
    }

    /// Says if this is the process whose thread runs.
    pub(crate) fn is_running(&self, process: ProcessId) -> bool {
        self.processes.get(process.0 as usize) == Some(&Some(self.current))
    }

    pub(crate) fn contiguity(&self) -> Contiguity {
        self.memory.contiguity()
    }

    /// Events of physical memory in the region of interest.
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
        self.ranger = RangerReport::default();
        self.syscalls = SyscallReport::default();
        self.advice = AdviceReport::default();
        self.residency.restart();
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

    /// The core turns to a process, before any of its threads runs.
    ///
    /// # Errors
    /// When there is no frame for its page table.
    pub(crate) fn run_process(&mut self, process: ProcessId) -> Result<(), OutOfMemory> {
        self.current = self.space_of(process)?;
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
        let mut space =
            AddressSpace::with(id, self.shape, &mut self.memory).map_err(|_| out_of_memory)?;
        space.set_fragmentation(self.scenario);
        if !self.reports_mappings {
            space.assume_everything_mapped();
        } else if let Some(primary) = self.primary {
            let bytes = self.memory.total() * PAGE_BYTES;
            let step = primary.step.get().div_ceil(PageSize::Size2M.bytes());
            let step = u32::try_from(step).unwrap_or(u32::MAX);
            space.reserve_primary(bytes, primary.eligible, step);
        }
        self.spaces[usize::from(id.0)] = Some(space);
        self.processes[index] = Some(id);
        if self.primary.is_some_and(|primary| primary.at_start) {
            let moves = self.take_chunk(id);
            debug_assert!(self.moves.is_empty());
            self.moves = moves;
        }
        Ok(id)
    }

    /// Takes contiguous memory for the segment of a process; what moved for it.
    fn take_chunk(&mut self, id: SpaceId) -> Vec<Move> {
        let mut moves = core::mem::take(&mut self.moves);
        let share = self.primary.and_then(|primary| primary.chunk);
        if let (Some(share), Some(space)) = (share, &mut self.spaces[usize::from(id.0)])
            && space.wants_chunk()
        {
            let all = (self.memory.total() * PAGE_BYTES) as f64;
            let bytes = (all * share.clamp(0.0, 1.0)) as u64;
            space.take_chunk(bytes, &mut self.memory, &mut moves);
        }
        moves
    }

    fn unused_space(&mut self) -> SpaceId {
        let free = self.spaces.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.spaces.push(None);
            self.program_code.push(NOWHERE);
            self.spaces.len() - 1
        });
        SpaceId(u16::try_from(index).expect("the ring allows 4096 processes at a time"))
    }

    /// Frees the memory of a process that ends or executes another program; the work that it took.
    fn end_process(&mut self, process: ProcessId, mmu: &mut Mmus) -> Cycles {
        let slot = self.processes.get_mut(process.0 as usize);
        let Some(id) = slot.and_then(Option::take) else {
            return Cycles::ZERO;
        };
        mmu.end(id);
        self.program_code[usize::from(id.0)] = NOWHERE;
        let Some(space) = self.spaces[usize::from(id.0)].take() else {
            return Cycles::ZERO;
        };
        self.pipe.forget(id);
        let resident = space.resident();
        self.effects.clear();
        space.destroy(&mut self.memory, &mut self.effects);
        self.return_areas(mmu);
        self.account(resident, Resident::default());
        self.counters.invalidations += 1;
        self.costs.invalidation_cycles + entry_work(&self.costs, &self.effects)
    }

    /// Resolves a page fault; the work that it took.
    pub(crate) fn fault(
        &mut self,
        address: VirtAddr,
        access: Access,
        mmu: &mut Mmus,
    ) -> Result<Cycles, OutOfMemory> {
        let split = self.counters.huge_page_splits;
        let work = self.resolve(address, access, mmu)?;
        let counters = &mut self.counters;
        counters.splits_fault += counters.huge_page_splits - split;
        counters.longest_stall_cycles = counters.longest_stall_cycles.max(work);
        Ok(work)
    }

    fn resolve(
        &mut self,
        address: VirtAddr,
        access: Access,
        mmu: &mut Mmus,
    ) -> Result<Cycles, OutOfMemory> {
        let write = access == Access::Write;
        let mut resolved = None;
        let mut prepared = Cycles::ZERO;
        let is_primary = |range: VirtRange| range.contains(address);
        if self.running().primary_range().is_some_and(is_primary) {
            let moves = self.take_chunk(self.current);
            prepared = self.follow(&moves, mmu);
            self.moves = moves;
            self.moves.clear();
            if access == Access::Execute && self.running().segment().translate(address).is_some() {
                let expelled = self.change(mmu, |space, memory, effects, _| {
                    space.expel(address, memory, effects).map(|_| ())
                })?;
                return Ok(prepared + expelled + self.costs.page_fault_cycles);
            }
        }
        let maps_zeros = !write && self.policy.uses_huge_zero_page();
        if !maps_zeros && !self.memory.has_free_block(Order::HUGE_2M) {
            prepared += self.make_huge(address, mmu);
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
                (FaultKind::Zero, _) => &mut counters.faults_zero_page,
                (FaultKind::File, _) => &mut counters.faults_file,
                (FaultKind::CopyOnWrite, _) => &mut counters.faults_copy_on_write,
                (FaultKind::Spurious, _) => &mut counters.faults_spurious,
                (FaultKind::Segment, _) => &mut counters.faults_segment,
            } += 1;
        }
        Ok(prepared + work + self.costs.page_fault_cycles)
    }

    /// Changes the running space, then does and charges what follows from the change. When memory
    /// runs out, the kernel's threads get a chance to make some, and the change goes on.
    fn change(
        &mut self,
        mmu: &mut Mmus,
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
            work += self.grow_table(mmu);
            let (done, cycles) = self.change_once(mmu, &mut change);
            work += cycles;
            if done.is_ok() {
                return Ok(work + self.make_areas(mmu));
            }
            attempts += 1;
            // A border that moves makes room, too, and a table that grows may need no more.
            let room = |memory: &Memory| (memory.free_frames(), memory.border());
            let before = room(&self.memory);
            work += self.run_threads(mmu);
            let table = self.running().table().hashed();
            let helped = room(&self.memory) != before || table.is_some_and(Hashed::wants_to_grow);
            if attempts > MAX_OOM_RETRIES || !helped && attempts > 1 {
                self.memory.set_last_try(true);
                let (done, cycles) = self.change_once(mmu, &mut change);
                self.memory.set_last_try(false);
                return done
                    .map(|()| work + cycles)
                    .map_err(|_| self.out_of_memory());
            }
        }
    }

    /// Gives contiguous memory to the running program's hashed tables, if they want to grow; the work that it took.
    fn grow_table(&mut self, mmu: &mut Mmus) -> Cycles {
        let index = usize::from(self.current.0);
        let wants = |space: &mut AddressSpace| {
            let hashed = space.table().hashed();
            hashed.is_some_and(Hashed::wants_to_grow)
        };
        let Some(mut space) = self.spaces[index].take_if(wants) else {
            return Cycles::ZERO;
        };
        let (work, moves) = self.grow_table_of(&mut space);
        self.spaces[index] = Some(space);
        work + self.follow_and_clear(moves, mmu)
    }

    /// Gives contiguous memory to a space's hashed tables; the work that it took, and what moved for it.
    fn grow_table_of(&mut self, space: &mut AddressSpace) -> (Cycles, Vec<Move>) {
        let mut moves = core::mem::take(&mut self.moves);
        let before = self.memory.pressure().all().total.get();
        let mut effects = Effects::default();
        let take = |order, memory: &mut Memory| {
            memory.take_block(order, FrameClass::PageTable, &mut moves)
        };
        let growth = space.grow_table(take, &mut self.memory, &mut effects);
        let counters = &mut self.counters;
        counters.table_growths += growth.tables;
        counters.table_growths_failed += growth.failures;
        counters.table_largest_block = counters.table_largest_block.max(growth.largest_block);
        let stalled = self.memory.pressure().all().total.get() - before;
        let work = self.costs.zero_4k_cycles * effects.zeroed_4k
            + entry_work(&self.costs, &effects)
            + Nanoseconds::new(stalled).at(self.clock);
        (work, moves)
    }

    fn change_once(
        &mut self,
        mmu: &mut Mmus,
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
            mmu.invalidate(id, range, effects.freed_nodes > 0);
        }
        for &range in &effects.upgrades {
            mmu.invalidate_here(id, range);
        }
        let invalidations = (effects.invalidations.len() + effects.upgrades.len()) as u64;
        self.counters.invalidations += invalidations;
        self.counters.huge_page_fallbacks += effects.fallbacks;
        let counters = &mut self.counters;
        for (sums, new) in [
            (&mut counters.folios, &effects.folios),
            (&mut counters.folio_fallbacks, &effects.folios_failed),
        ] {
            let pairs = sums.iter_mut().zip(new.get());
            pairs.for_each(|(sum, &new)| *sum += new);
        }
        self.counters.huge_page_collapses += effects.collapses;
        self.counters.huge_page_splits += effects.splits;
        self.counters.unexplained_accesses += effects.unexplained;
        if effects.conflicts > 0 && self.counters.placement_conflicts == 0 {
            let used = self.memory.total() - self.memory.free_frames();
            self.counters.used_at_first_conflict = used;
        }
        self.counters.placement_conflicts += effects.conflicts;
        self.counters.misplaced_pages += effects.misplaced;
        self.counters.restricted_pages += effects.restricted;
        self.counters.full_sets += effects.sets_full;
        self.counters.pages_moved_in += effects.moved_in;
        self.counters.pages_moved_out += effects.moved_out;
        self.counters.pages_moved += effects.moved_in + effects.moved_out;
        self.counters.perforations += effects.perforations;
        self.counters.punches += effects.punches;
        self.counters.patches += effects.patches;
        self.counters.folds += effects.folds;
        self.counters.table_lines_moved += effects.lines_moved;
        self.counters.segment_updates += effects.segment_updates;
        self.counters.giant_pages += effects.giants;
        self.counters.giant_page_fallbacks += effects.giants_failed;
        self.counters.giant_page_promotions += effects.giants_made;
        self.counters.prezeroed_pages += effects.prezeroed;
        self.counters.zeros_recovered += effects.zeros_recovered;
        if self.host.is_none() {
            self.written.extend_from_slice(&effects.written);
        }
        let costs = &self.costs;
        let work = costs.zero_4k_cycles * (effects.zeroed_4k + effects.zeros_recovered)
            + costs.zero_2m_cycles * effects.zeroed_2m
            + costs.copy_4k_cycles * effects.copied_4k
            + costs.page_table_node_cycles * effects.nodes
            + costs.invalidation_cycles * (invalidations + effects.segment_updates)
            + entry_work(costs, effects)
            + Nanoseconds::new(stalled).at(self.clock);
        self.return_areas(mmu);
        let done = done.and(self.share_punches());
        (done, work)
    }

    /// Lets the spaces that share 2 MB of memory with the one that was changed learn of its holes.
    fn share_punches(&mut self) -> Result<(), contigua_paging::Error> {
        let punches = core::mem::take(&mut self.effects.shared_punches);
        for &(chunk, hole) in &punches {
            for space in self.spaces.iter_mut().flatten() {
                space.point_back(chunk, hole, &mut self.memory, &mut self.effects)?;
            }
        }
        self.effects.shared_punches = punches;
        Ok(())
    }

    /// Entry of the running program's page table for an address of the program.
    pub(crate) fn leaf(&self, address: VirtAddr) -> Option<Leaf> {
        let space = self.running();
        space.table().leaf(space.place_of(address).of(address))
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
            resident.replace(&Resident::default(), &space.resident());
        }
        if let Some(host) = &self.host {
            host.validate()?;
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
