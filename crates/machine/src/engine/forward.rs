//! Going forward: the operating system's state goes on, and time with it; caches and cores do not.
//!
//! Of what the program executes, only the first access to each page counts: it faults where its
//! page is not mapped. A live program tells no others
//! ([`Mode::Forward`](contigua_program::plan::Mode)); a recorded one tells all, and [`Passed`]
//! finds the first ones again.

use contigua_program::footprint::TouchedPage;
use contigua_program::wire::{AccessWord, WIDE_ADDRESS_MASK};
use contigua_translation::{Access, Answer, Request};
use contigua_units::{Cycles, LINE_BYTES, PAGE_BYTES, VirtAddr, VirtRange};

use super::sampling::{Sampler, UNKNOWN_RATE};
use super::{Block, Engine, Phase};
use crate::Error;
use crate::port::WalkPort;

/// Pages that are remembered, a power of two.
const PAGES: usize = 1 << 12;
const GENERATION_SHIFT: u32 = 48;
const PAGE_SHIFT: u32 = 3;

/// Pages of the running process that were accessed lately, so that most accesses need no look-up.
/// A word for each: generation, page number, and a bit for each access type.
#[derive(contigua_state::State)]
pub(super) struct Passed {
    #[state(fixed)]
    pages: Box<[u64]>,
    /// Pages of an older generation are forgotten.
    generation: u64,
}

impl Passed {
    pub(super) fn new() -> Self {
        Self {
            pages: vec![0; PAGES].into_boxed_slice(),
            generation: 1,
        }
    }

    /// Notes an access; whether it is the first of its kind that is remembered.
    #[inline]
    fn is_first(&mut self, address: VirtAddr, access: Access) -> bool {
        let page = (address.get() & WIDE_ADDRESS_MASK) / PAGE_BYTES;
        let (wanted, leaves) = match access {
            Access::Read => (3, 1),
            Access::Write => (2, 2),
            Access::Execute => (4, 4),
        };
        let head = self.generation << GENERATION_SHIFT | page << PAGE_SHIFT;
        let known = &mut self.pages[page as usize % PAGES];
        let bits = *known ^ head;
        if bits >> PAGE_SHIFT != 0 {
            *known = head | leaves;
            return true;
        }
        *known |= leaves;
        bits & wanted == 0
    }

    /// Mappings have changed.
    pub(super) fn forget(&mut self) {
        self.generation += 1;
        if self.generation >> (64 - GENERATION_SHIFT) != 0 {
            *self = Self::new();
        }
    }
}

impl Engine {
    /// Instructions were executed of which nothing else was told.
    pub(super) fn forward(&mut self, instructions: u64) {
        if self.regions.is_some() {
            self.goes_forward();
            self.position += instructions;
            if self.is_by_counts() {
                self.left = self.left.saturating_sub(instructions);
            }
            self.pass_time(instructions);
            return;
        }
        if self.samples() && !matches!(self.phase, Phase::Skip | Phase::Done) {
            self.end_unit();
        }
        let limit = match (&self.config.instructions, self.samples()) {
            (Some(limit), true) => limit.saturating_sub(self.region_instructions()),
            _ => u64::MAX,
        };
        if limit <= instructions {
            self.phase = Phase::Done;
        }
        let instructions = instructions.min(limit);
        self.position += instructions;
        self.left = self.left.saturating_sub(instructions);
        self.pass_time(instructions);
        if self.sampler.is_some() && self.position >= self.config.skip {
            self.begin_region();
        }
    }

    /// Lets the time of instructions pass, as long as those that were simulated took; a cycle each
    /// before any was.
    pub(super) fn pass_time(&mut self, instructions: u64) {
        let rate = self.sampler.as_ref().map_or(UNKNOWN_RATE, Sampler::rate);
        self.timing.pass(self.current, instructions, rate);
    }

    /// A block of a program that tells all.
    pub(super) fn pass_block(&mut self, block: Block) -> Result<(), Error> {
        self.pass_time(u64::from(block.instructions));
        let last = block.start + u64::from(block.bytes) - 1;
        self.pass_over(VirtAddr::new(block.start), Access::Execute)?;
        if block.start / PAGE_BYTES != last / PAGE_BYTES {
            self.pass_over(VirtAddr::new(last), Access::Execute)?;
        }
        Ok(())
    }

    /// An access, by its word.
    #[inline]
    pub(super) fn pass_access(&mut self, word: AccessWord) -> Result<(), Error> {
        let address = if word.is_wide() {
            self.check_wide(word.address())?
        } else {
            word.address()
        };
        let size = word.bytes();
        let access = if word.is_store() {
            Access::Write
        } else {
            Access::Read
        };
        self.pass_over(VirtAddr::new(address), access)?;
        if address % PAGE_BYTES + size > PAGE_BYTES {
            let next = VirtAddr::new(address + size - 1).align_down(LINE_BYTES);
            self.pass_over(next, access)?;
        }
        Ok(())
    }

    /// Lets all pages of a range be mapped.
    pub(super) fn pass_over_all(&mut self, range: VirtRange, access: Access) -> Result<(), Error> {
        let mut at = range.start.align_down(PAGE_BYTES);
        while at < range.end {
            self.pass_over(at, access)?;
            at = at + PAGE_BYTES;
        }
        Ok(())
    }

    /// Lets the page of an address be mapped, if it is not.
    #[inline]
    pub(super) fn pass_over(&mut self, address: VirtAddr, access: Access) -> Result<(), Error> {
        if self.passed.is_first(address, access) {
            self.map(address, access, true)?;
        }
        Ok(())
    }

    /// Maps pages as a program has mapped them before its trace begins: without time and counts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn map_before(&mut self, pages: &[TouchedPage]) -> Result<(), Error> {
        let counters = self.kernel.counters;
        for touched in pages {
            let access = match (touched.written, touched.executed) {
                (true, _) => Access::Write,
                (_, true) => Access::Execute,
                _ => Access::Read,
            };
            self.kernel
                .run_process(touched.process)
                .map_err(|fault| fault.at(0))?;
            self.map(touched.page, access, false)?;
        }
        self.kernel.counters = counters;
        self.kernel.reset_counters();
        Ok(())
    }

    /// The page tables are walked with a unit that remembers nothing: what is told of a program
    /// that goes forward must not decide what the TLBs hold.
    #[cold]
    fn map(&mut self, address: VirtAddr, access: Access, charges: bool) -> Result<(), Error> {
        for _ in 0..Self::ATTEMPTS {
            // A fault may have moved what the program means by its address.
            let address = if self.relocates {
                self.kernel
                    .enter(address, access == Access::Write)
                    .of(address)
            } else {
                address
            };
            if self.registers_translate(address, access).is_some() {
                return Ok(());
            }
            let request = Request::new(address, self.kernel.space(), access);
            let mut port = WalkPort::new(None, self.current, Cycles::ZERO);
            let prober = self.mmus.prober();
            let answer = prober.miss(&request, &mut self.kernel.tables(), &mut port);
            let Answer::Fault { host, .. } = answer else {
                return Ok(());
            };
            let work = match host {
                Some(physical) => self.kernel.host_fault(physical, &mut self.mmus),
                None => self.kernel.fault(address, access, &mut self.mmus),
            };
            let work = work.map_err(|fault| fault.at(self.position))?;
            if charges {
                self.charge(work);
            }
            self.kernel.written.clear();
            self.mmus.take_shootdown_targets();
            self.passed.forget();
            if self.relocates {
                self.dispatch_everywhere();
            }
        }
        unreachable!(
            "a fault at {address} was handled {} times and came back",
            Self::ATTEMPTS
        );
    }

    /// The cores' clocks meet where going forward ends: what runs next on one of them must not wait
    /// until another has caught up.
    pub(super) fn meet_clocks(&mut self) {
        debug_assert_eq!(self.phase, Phase::Skip);
        let latest = self.timing.latest();
        for window in self.timing.windows_mut() {
            window.wait_until(latest);
        }
        self.migrations.begin_at(latest);
    }
}
