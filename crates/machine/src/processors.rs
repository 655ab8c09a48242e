//! The memory-management units of all cores, and who has to be told when a mapping changes.
//!
//! Shootdowns are those of Linux on x86 (`arch/x86/mm/tlb.c`). The cores in `mm_cpumask` are
//! interrupted: those that have loaded the address space. A core that switches to another one
//! leaves the mask (`switch_mm_irqs_off`), and one that is idle keeps the address space loaded in
//! lazy TLB mode and is only interrupted when page tables are freed (`native_flush_tlb_multi`).
//! Either one flushes what it has of the address space before it runs it again, when that has
//! changed meanwhile (`tlb_gen`).

use std::ops::AddAssign;

use contigua_paging::{Segment, SpaceId};
use contigua_translation::{Hardware, Mmu, Scheme};
use contigua_units::{VirtAddr, VirtRange};

/// All addresses of a process.
const EVERYTHING: VirtRange = VirtRange::new(VirtAddr::new(0), VirtAddr::new(1 << 57));

/// A page or buffer that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub(crate) enum Target {
    /// A page of a program.
    Page {
        /// Whose.
        space: SpaceId,
        /// Its address.
        page: VirtAddr,
    },
    /// A buffer that the network device reads and writes.
    Buffer,
}

/// Cores by what they know of a space; bit `n` is core `n`.
#[derive(Clone, Copy, Default, contigua_state::Plain)]
struct Cores {
    /// They may have translations of it.
    holders: u64,
    /// They have it loaded (`mm_cpumask`).
    loaded: u64,
    /// They must flush it before they run it again.
    stale: u64,
}

/// A unit for each core.
#[derive(contigua_state::State)]
pub(crate) struct Mmus {
    #[state(fixed)]
    units: Vec<Mmu>,
    /// No core's: for walks that leave no trace.
    prober: Mmu,
    /// The core that runs the kernel.
    current: usize,
    /// By space.
    spaces: Vec<Cores>,
    /// By core: the space that it has loaded.
    loaded: Vec<Option<SpaceId>>,
    /// Cores that have nothing to run.
    idle: u64,
    /// Other cores that changes since the last look have to interrupt.
    shootdown_targets: u64,
}

impl Mmus {
    pub(crate) fn new(
        hardware: &Hardware<'_>,
        scheme: &dyn Scheme,
        cores: usize,
    ) -> Result<Self, contigua_translation::Error> {
        Ok(Self {
            units: (0..cores)
                .map(|_| Mmu::new(hardware, scheme))
                .collect::<Result<_, _>>()?,
            prober: Mmu::new(hardware, scheme)?,
            current: 0,
            spaces: Vec::new(),
            loaded: vec![None; cores],
            idle: 0,
            shootdown_targets: 0,
        })
    }

    /// The unit of the core that is running.
    #[inline]
    pub(crate) fn current(&mut self) -> &mut Mmu {
        &mut self.units[self.current]
    }

    /// A unit that holds no translations.
    pub(crate) fn prober(&mut self) -> &mut Mmu {
        self.prober.flush();
        &mut self.prober
    }

    /// Another core runs.
    #[inline]
    pub(crate) fn turn_to(&mut self, core: usize) {
        self.current = core;
        if let Some(space) = self.loaded[core] {
            self.catch_up(core, space);
        }
    }

    /// The cores that have nothing to run, from now on.
    pub(crate) fn set_idle(&mut self, cores: u64) {
        self.idle = cores;
    }

    /// Flushes what a core has of a space that changed while the core did not run it.
    fn catch_up(&mut self, core: usize, space: SpaceId) {
        let cores = self.cores(space);
        if cores.stale >> core & 1 != 0 {
            cores.stale &= !(1 << core);
            self.units[core].invalidate(space, EVERYTHING);
        }
    }

    fn cores(&mut self, space: SpaceId) -> &mut Cores {
        let index = usize::from(space.0);
        if index >= self.spaces.len() {
            self.spaces.resize(index + 1, Cores::default());
        }
        &mut self.spaces[index]
    }

    /// Takes a page that the hardware of any core found costly to translate.
    pub(crate) fn take_costly_page(&mut self) -> Option<(SpaceId, VirtAddr)> {
        self.units.iter_mut().find_map(Mmu::take_costly_page)
    }

    pub(crate) fn units(&self) -> &[Mmu] {
        &self.units
    }

    /// Adds up what all units counted.
    pub(crate) fn sum<T: Default + AddAssign>(&self, counters: impl Fn(&Mmu) -> T) -> T {
        self.units.iter().fold(T::default(), |mut sum, unit| {
            sum += counters(unit);
            sum
        })
    }

    /// A core turns to a space, or the space's registers have changed.
    pub(crate) fn dispatch(
        &mut self,
        core: usize,
        space: SpaceId,
        segment: Segment,
        same_space: bool,
    ) {
        if let Some(before) = self.loaded[core].replace(space)
            && before != space
        {
            self.cores(before).loaded &= !(1 << core);
        }
        self.catch_up(core, space);
        let cores = self.cores(space);
        cores.loaded |= 1 << core;
        cores.holders |= 1 << core;
        self.units[core].dispatch(segment, same_space);
    }

    fn known(&self, space: SpaceId) -> Cores {
        let known = self.spaces.get(usize::from(space.0));
        known.copied().unwrap_or_default()
    }

    /// Cores that may have translations of what moves. Buffers are the kernel's, and every core is
    /// in the kernel at times.
    pub(crate) fn holders_of(&self, target: Target) -> u64 {
        match target {
            Target::Page { space, .. } => self.known(space).holders,
            Target::Buffer => u64::MAX >> (64 - self.units.len()),
        }
    }

    /// Cores that the kernel interrupts when it moves something. Those that are idle, or run
    /// something else, flush later.
    pub(crate) fn shootdown_targets(&self, target: Target) -> u64 {
        match target {
            Target::Page { space, .. } => self.known(space).loaded & !self.idle,
            Target::Buffer => self.holders_of(target),
        }
    }

    /// Forgets everything about a range of a space's addresses, on all cores. Those that run it are
    /// interrupted for it, and when page tables were freed, those that have it loaded in lazy TLB
    /// mode as well.
    pub(crate) fn invalidate(&mut self, space: SpaceId, range: VirtRange, freed_tables: bool) {
        self.invalidate_here(space, range);
        let here = 1 << self.current;
        let lazy = if freed_tables { 0 } else { self.idle };
        let cores = self.cores(space);
        let targets = cores.loaded & !lazy & !here;
        cores.stale |= cores.holders & !targets & !here;
        self.interrupt_for(targets, space, range);
    }

    fn interrupt_for(&mut self, targets: u64, space: SpaceId, range: VirtRange) {
        if targets == 0 {
            return;
        }
        self.shootdown_targets |= targets;
        for (core, unit) in self.units.iter_mut().enumerate() {
            if targets >> core & 1 != 0 {
                unit.invalidate(space, range);
            }
        }
    }

    /// Forgets everything about a range of a space's addresses on the core that is running.
    pub(crate) fn invalidate_here(&mut self, space: SpaceId, range: VirtRange) {
        self.units[self.current].invalidate(space, range);
    }

    /// A space is no more: its number may be used for another one.
    pub(crate) fn end(&mut self, space: SpaceId) {
        let targets = self.known(space).loaded & !(1 << self.current);
        self.interrupt_for(targets, space, EVERYTHING);
        for unit in &mut self.units {
            unit.invalidate(space, EVERYTHING);
        }
        *self.cores(space) = Cores::default();
        for loaded in &mut self.loaded {
            if *loaded == Some(space) {
                *loaded = None;
            }
        }
    }

    /// Invalidates on one core, which does it by itself.
    pub(crate) fn invalidate_on(&mut self, core: usize, space: SpaceId, range: VirtRange) {
        self.units[core].invalidate(space, range);
    }

    /// Forgets a range of a space's addresses on all cores, each of which does it by itself.
    pub(crate) fn forget(&mut self, space: SpaceId, range: VirtRange) {
        for unit in &mut self.units {
            unit.invalidate(space, range);
        }
    }

    /// Forgets everything on all cores.
    pub(crate) fn flush(&mut self) {
        for unit in &mut self.units {
            unit.flush();
        }
        self.shootdown_targets |= ((1 << (self.units.len() - 1)) - 1) * 2 + 1;
        self.shootdown_targets &= !(1 << self.current);
    }

    /// The cores that have to be interrupted for what was changed since the last time.
    #[inline]
    pub(crate) fn take_shootdown_targets(&mut self) -> u64 {
        std::mem::take(&mut self.shootdown_targets)
    }

    pub(crate) fn reset_counters(&mut self) {
        for unit in &mut self.units {
            unit.reset_counters();
        }
    }
}
