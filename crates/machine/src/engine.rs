//! The event loop: what the program did, turned into what the hardware and the kernel do.
//!
//! One simulated core runs all guest threads in the order in which the stream has them; a change
//! of thread is a context switch. TLB entries carry the process where the machine says so; else a
//! switch to another process flushes them.
//! Several cores in simulated-time order come with the coherent hierarchy.
//!
//! The inner loop looks at raw words: one test tells an access from a block, and an access that
//! hits the first-level structures touches three cache lines of the host.

use std::sync::atomic::AtomicBool;

use contigua_cache::{AccessKind, Hierarchy};
use contigua_core::{CoreModel, IssueWidth};
use contigua_paging::{Place, SpaceId};
use contigua_program::code::CodeLog;
use contigua_program::sources::{Batch, Program};
use contigua_program::wire::{
    self, ACCESS, ADDRESS_MASK, BlockId, Event, SIZE_SHIFT, STORE, ThreadId,
};
use contigua_translation::{Access, Answer, Hardware, Lookup, Mmu, Request};
use contigua_units::{Cycles, LINE_BYTES, PhysAddr, VirtAddr, VirtRange};
use xxhash_rust::xxh3::Xxh3Default;

use crate::Error;
use crate::config::{Detail, RunConfig};
use crate::kernel::Kernel;
use crate::port::WalkPort;
use crate::report::{ClassifiedMisses, Executed};

/// What the inner loop needs of a block.
#[derive(Clone, Copy, Default)]
struct Block {
    start: u64,
    bytes: u32,
    /// 0 until the block is met for the first time.
    instructions: u32,
}

/// Where a run is with respect to its region of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Only the address space is kept.
    Skip,
    /// Everything is simulated, counters will be reset.
    Warmup,
    /// Everything is simulated and counted.
    Measure,
    /// The region is over.
    Done,
}

/// A simulated server that runs one stream of events.
pub struct Engine {
    pub(crate) config: RunConfig,
    pub(crate) program: Program,
    pub(crate) kernel: Kernel,
    pub(crate) mmu: Mmu,
    pub(crate) hierarchy: Option<Hierarchy>,
    pub(crate) core: IssueWidth,
    pub(crate) executed: Executed,
    pub(crate) classified: ClassifiedMisses,
    /// The design places memory in primary regions: the program's addresses are not those that
    /// the hardware sees.
    relocates: bool,
    /// Where the last address that was asked for lies, with its neighbours.
    place: Place,
    pub(crate) digest: Xxh3Default,
    blocks: Vec<Block>,
    thread: Option<ThreadId>,
    phase: Phase,
    /// Instructions left in the phase.
    left: u64,
    /// All instructions since the start of the stream.
    pub(crate) position: u64,
    /// The line that the last fetch ended in: fetching from it again needs no look-up.
    fetch_line: u64,
}

impl Engine {
    /// A server as configured, before the first event of `program`.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Component`], and those of the memory's history.
    pub fn new(config: RunConfig, program: Program) -> Result<Self, Error> {
        Self::prepare(config, program, &AtomicBool::new(false))
    }

    /// The same, given up soon after `cancel` was set: memory may take a while to grow old.
    ///
    /// # Errors
    /// Those of [`Engine::new`], and [`Error::Interrupted`].
    pub fn prepare(
        config: RunConfig,
        program: Program,
        cancel: &AtomicBool,
    ) -> Result<Self, Error> {
        let component = |problem: String| Error::Component {
            machine: config.machine_name.clone(),
            problem,
        };
        let machine = &config.machine;
        let hardware = Hardware {
            tlb: &machine.tlb,
            walk_cache: &machine.walk_cache,
            nested: config.design.host.as_ref().map(|_| &machine.nested),
        };
        let mmu = Mmu::new(&hardware, &config.design.translation)
            .map_err(|e| component(e.to_string()))?;
        let hierarchy = match config.detail {
            Detail::Translation => None,
            Detail::Full => Some(
                Hierarchy::new(&machine.cache, machine.clock)
                    .map_err(|e| component(e.to_string()))?,
            ),
        };
        let core = IssueWidth::new(&machine.core).map_err(|e| component(e.to_string()))?;
        let kernel = Kernel::new(&config, program.reports_mappings, cancel)?;
        let mut engine = Self {
            kernel,
            mmu,
            hierarchy,
            core,
            executed: Executed::default(),
            classified: ClassifiedMisses::default(),
            relocates: config.design.translation.primary().is_some(),
            place: NOWHERE,
            digest: Xxh3Default::new(),
            blocks: Vec::new(),
            thread: None,
            phase: Phase::Skip,
            left: config.skip,
            position: 0,
            fetch_line: u64::MAX,
            config,
            program,
        };
        engine.next_phase_when_over();
        Ok(engine)
    }

    /// Whether the region of interest is over, so that further events change nothing.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether the region of interest ended before the stream.
    pub(crate) fn was_limited(&self) -> bool {
        self.is_done()
    }

    /// Instructions since the start of the stream.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Runs a batch.
    ///
    /// # Errors
    /// [`Error::Program`] when the events are malformed, [`Error::OutOfMemory`] when the server
    /// cannot run the program.
    pub fn consume(&mut self, batch: Batch<'_>) -> Result<(), Error> {
        if self.is_done() {
            return Ok(());
        }
        within_limit("thread", batch.thread.0)?;
        self.switch_to(batch.thread)?;
        if self.relocates {
            self.consume_words::<true>(batch)
        } else {
            self.consume_words::<false>(batch)
        }
    }

    /// The inner loop, made once for designs that place memory in primary regions and once for the
    /// others.
    fn consume_words<const RELOCATES: bool>(&mut self, batch: Batch<'_>) -> Result<(), Error> {
        let words = batch.words;
        let mut at = 0;
        while let Some(&word) = words.get(at) {
            if word & ACCESS != 0 {
                if self.phase != Phase::Skip {
                    self.access::<RELOCATES>(word)?;
                }
                at += 1;
            } else if wire::is_block(word) {
                self.enter_block::<RELOCATES>(wire::block_of(word), batch.code)?;
                if self.is_done() {
                    self.digest_words(&words[..at]);
                    return Ok(());
                }
                at += 1;
            } else {
                let (event, used) =
                    Event::decode(&words[at..]).map_err(contigua_program::Error::from)?;
                self.event(batch.thread, &event)?;
                at += used;
            }
        }
        self.digest_words(words);
        Ok(())
    }

    fn digest_words(&mut self, words: &[u64]) {
        self.digest.update(bytemuck::cast_slice(words));
    }

    fn switch_to(&mut self, thread: ThreadId) -> Result<(), Error> {
        if self.thread == Some(thread) {
            return Ok(());
        }
        self.digest.update(&thread.0.to_le_bytes());
        if self.thread.replace(thread).is_some() && self.phase != Phase::Skip {
            self.executed.context_switches += 1;
            self.core
                .kernel(self.config.machine.kernel.context_switch_cycles);
        }
        self.fetch_line = u64::MAX;
        let before = self.kernel.space();
        self.kernel
            .run_thread(thread)
            .map_err(|fault| fault.at(self.position))?;
        self.dispatch(before);
        Ok(())
    }

    /// Loads what the hardware keeps of the running process, which may have changed.
    fn dispatch(&mut self, before: SpaceId) {
        self.place = NOWHERE;
        let same_space = self.kernel.space() == before;
        self.mmu.dispatch(self.kernel.registers(), same_space);
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Error> {
        if let Event::ThreadStart { process }
        | Event::ProcessStart { process }
        | Event::ProcessEnd { process }
        | Event::Fork { child: process }
        | Event::ForkFailed { child: process } = *event
        {
            within_limit("process", process.0)?;
        }
        let counted = self.phase != Phase::Skip;
        let before = self.kernel.space();
        let work = self
            .kernel
            .event(thread, event, &self.program, &mut self.mmu)
            .map_err(|fault| fault.at(self.position))?;
        if counted {
            self.core.kernel(work);
        }
        self.fetch_line = u64::MAX;
        self.dispatch(before);
        Ok(())
    }

    #[inline]
    fn enter_block<const RELOCATES: bool>(
        &mut self,
        id: BlockId,
        code: &dyn CodeLog,
    ) -> Result<(), Error> {
        let block = match self.blocks.get(id.0 as usize) {
            Some(block) if block.instructions != 0 => *block,
            _ => self.learn(id, code)?,
        };
        let instructions = u64::from(block.instructions);
        if self.left < instructions {
            // Whole blocks only: the region ends before a block that does not fit in.
            self.left = 0;
            self.next_phase_when_over();
            if self.is_done() {
                return Ok(());
            }
        }
        self.position += instructions;
        self.left = self.left.saturating_sub(instructions);
        if self.phase == Phase::Skip {
            return Ok(());
        }
        self.executed.blocks += 1;
        self.executed.instructions += instructions;
        self.core.instructions(block.instructions);
        self.fetch::<RELOCATES>(block)
    }

    #[cold]
    fn learn(&mut self, id: BlockId, code: &dyn CodeLog) -> Result<Block, Error> {
        let unknown = contigua_program::Error::UnknownBlock(id);
        let described = code
            .block(id)
            .filter(|c| c.instructions() > 0)
            .ok_or(unknown)?;
        let block = Block {
            start: described.address.get(),
            bytes: described.size().max(1),
            instructions: described.instructions(),
        };
        let index = id.0 as usize;
        if index >= self.blocks.len() {
            self.blocks.resize(index + index / 2 + 64, Block::default());
        }
        self.blocks[index] = block;
        Ok(block)
    }

    #[cold]
    fn next_phase_when_over(&mut self) {
        while self.left == 0 && self.phase != Phase::Done {
            (self.phase, self.left) = match self.phase {
                Phase::Skip => (Phase::Warmup, self.config.warmup),
                Phase::Warmup => {
                    self.reset_counters();
                    (Phase::Measure, self.config.instructions.unwrap_or(u64::MAX))
                }
                Phase::Measure | Phase::Done => (Phase::Done, 0),
            };
        }
    }

    fn reset_counters(&mut self) {
        self.executed = Executed::default();
        self.classified = ClassifiedMisses::default();
        self.mmu.reset_counters();
        self.core.reset();
        self.kernel.reset_counters();
        self.kernel.restart_clock();
        if let Some(hierarchy) = &mut self.hierarchy {
            hierarchy.reset_counters();
        }
    }

    /// Fetches a block's lines, translating once per page.
    #[inline]
    fn fetch<const RELOCATES: bool>(&mut self, block: Block) -> Result<(), Error> {
        let last = (block.start + u64::from(block.bytes) - 1) / LINE_BYTES;
        let mut line = block.start / LINE_BYTES;
        if line == self.fetch_line {
            line += 1;
        }
        while line <= last {
            let address = VirtAddr::new(line * LINE_BYTES);
            let physical = self.translate::<RELOCATES>(address, Access::Execute)?;
            if let Some(hierarchy) = &mut self.hierarchy {
                let latency = hierarchy.access(physical, AccessKind::Fetch);
                self.core.fetch(latency);
            }
            line += 1;
        }
        self.fetch_line = last;
        Ok(())
    }

    #[inline]
    fn access<const RELOCATES: bool>(&mut self, word: u64) -> Result<(), Error> {
        let address = word & ADDRESS_MASK;
        let size = 1 << (word >> SIZE_SHIFT & 7);
        let store = word & STORE != 0;
        self.executed.stores += u64::from(store);
        self.executed.loads += u64::from(!store);
        self.touch::<RELOCATES>(VirtAddr::new(address), store)?;
        if address % LINE_BYTES + size > LINE_BYTES {
            // The access touches a second line, perhaps of another page.
            let next = VirtAddr::new(address + size - 1).align_down(LINE_BYTES);
            self.touch::<RELOCATES>(next, store)?;
        }
        Ok(())
    }

    #[inline]
    fn touch<const RELOCATES: bool>(
        &mut self,
        address: VirtAddr,
        store: bool,
    ) -> Result<(), Error> {
        let (access, kind) = if store {
            (Access::Write, AccessKind::Write)
        } else {
            (Access::Read, AccessKind::Read)
        };
        let physical = self.translate::<RELOCATES>(address, access)?;
        if let Some(hierarchy) = &mut self.hierarchy {
            let latency = hierarchy.access(physical, kind);
            self.core.data(latency, store);
        }
        Ok(())
    }

    /// The physical address of an access, with everything that it takes to get it.
    #[inline]
    fn translate<const RELOCATES: bool>(
        &mut self,
        address: VirtAddr,
        access: Access,
    ) -> Result<PhysAddr, Error> {
        let address = if RELOCATES {
            self.place_of(address)
        } else {
            address
        };
        let space = self.kernel.space();
        let lookup = match access {
            Access::Execute => self.mmu.fetch(address, space),
            Access::Read => self.mmu.read(address, space),
            Access::Write => self.mmu.write(address, space),
        };
        match lookup {
            Lookup::Hit(physical) => Ok(physical),
            Lookup::Miss => self.miss(address, access),
        }
    }

    /// Where the kernel has placed an address of the program.
    #[inline]
    fn place_of(&mut self, address: VirtAddr) -> VirtAddr {
        if !self.place.range.contains(address) {
            self.place = self.kernel.place_of(address);
        }
        self.place.of(address)
    }

    #[cold]
    #[inline(never)]
    fn miss(&mut self, address: VirtAddr, access: Access) -> Result<PhysAddr, Error> {
        /// A fault that was handled lets the next attempt succeed; copying a page that was just
        /// filled can take one more. A host may have to map every node that a walk reads.
        const ATTEMPTS: usize = 24;
        let request = Request {
            address,
            space: self.kernel.space(),
            access,
        };
        for _ in 0..ATTEMPTS {
            let mut port = WalkPort::new(self.hierarchy.as_mut());
            let mut tables = self.kernel.tables();
            match self.mmu.miss(&request, &mut tables, &mut port) {
                Answer::Translated {
                    physical,
                    latency,
                    walked,
                } => {
                    self.core.translation(latency, walked);
                    if self.config.classify_misses && walked && access != Access::Execute {
                        self.classified.data_walks += 1;
                        self.classified.inside += u64::from(self.kernel.is_eligible(address));
                    }
                    return Ok(physical);
                }
                Answer::Fault { latency, host } => {
                    self.core.translation(latency, true);
                    let work = match host {
                        Some(physical) => self.kernel.host_fault(physical, &mut self.mmu),
                        None => self.kernel.fault(address, access, &mut self.mmu),
                    };
                    self.core
                        .kernel(work.map_err(|fault| fault.at(self.position))?);
                    if self.relocates {
                        // The access is tried again from its start: the segment may have grown
                        // over it, or the memory have left the region.
                        self.mmu.dispatch(self.kernel.registers(), true);
                        if let Some(physical) = self.registers_translate(address, access) {
                            return Ok(physical);
                        }
                    }
                }
            }
        }
        unreachable!("a fault at {address} was handled {ATTEMPTS} times and came back");
    }

    /// What the segment registers say, without the TLBs.
    fn registers_translate(&self, address: VirtAddr, access: Access) -> Option<PhysAddr> {
        if access == Access::Execute {
            return None;
        }
        self.kernel.registers().translate(address)
    }

    /// Lets the kernel do what it does in the background, at this point of simulated time.
    pub fn background(&mut self) {
        let now = self.core.cycles();
        let work: Cycles = self.kernel.background(now, &mut self.mmu);
        self.core.kernel(work);
    }
}

/// A place that no address lies in.
const NOWHERE: Place = Place {
    range: VirtRange {
        start: VirtAddr::new(0),
        end: VirtAddr::new(0),
    },
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

/// Digests are of words as they lie in memory, and must not differ between hosts.
const _: () = assert!(cfg!(target_endian = "little"));
