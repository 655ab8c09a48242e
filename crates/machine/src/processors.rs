//! The memory-management units of all cores, and who has to be told when a mapping changes.

use contigua_paging::{Segment, SpaceId};
use contigua_translation::{Hardware, Mmu, SchemeConfig};
use contigua_units::VirtRange;

use crate::kernel::Target;

/// A unit for each core.
pub(crate) struct Mmus {
    units: Vec<Mmu>,
    /// No core's: for walks that leave no trace.
    prober: Mmu,
    /// The core that runs the kernel.
    current: usize,
    /// By space: cores that may have translations of it.
    holders: Vec<u64>,
    /// Other cores that changes since the last look have to interrupt.
    victims: u64,
}

impl Mmus {
    pub(crate) fn new(
        hardware: &Hardware<'_>,
        scheme: &SchemeConfig,
        cores: usize,
    ) -> Result<Self, contigua_translation::Error> {
        Ok(Self {
            units: (0..cores)
                .map(|_| Mmu::new(hardware, scheme))
                .collect::<Result<_, _>>()?,
            prober: Mmu::new(hardware, scheme)?,
            current: 0,
            holders: Vec::new(),
            victims: 0,
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
    }

    pub(crate) fn units(&self) -> &[Mmu] {
        &self.units
    }

    /// A core turns to a space, or the space's registers have changed.
    pub(crate) fn dispatch(
        &mut self,
        core: usize,
        space: SpaceId,
        segment: Segment,
        same_space: bool,
    ) {
        let index = usize::from(space.0);
        if index >= self.holders.len() {
            self.holders.resize(index + 1, 0);
        }
        self.holders[index] |= 1 << core;
        self.units[core].dispatch(segment, same_space);
    }

    /// Cores that may have translations of a space.
    pub(crate) fn holders(&self, space: SpaceId) -> u64 {
        self.holders.get(usize::from(space.0)).copied().unwrap_or(0)
    }

    /// Cores that may have translations of what moves. Buffers are the kernel's, and every core is
    /// in the kernel at times.
    pub(crate) fn holders_of(&self, target: Target) -> u64 {
        match target {
            Target::Page { space, .. } => self.holders(space),
            Target::Buffer => u64::MAX >> (64 - self.units.len()),
        }
    }

    /// Forgets everything about a range of a space's addresses, on all cores. The others are
    /// interrupted for it.
    pub(crate) fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.units[self.current].invalidate(space, range);
        let others = self.holders(space) & !(1 << self.current);
        if others != 0 {
            self.victims |= others;
            for (core, unit) in self.units.iter_mut().enumerate() {
                if others >> core & 1 != 0 {
                    unit.invalidate(space, range);
                }
            }
        }
    }

    /// The same on one core, which does it by itself.
    pub(crate) fn invalidate_on(&mut self, core: usize, space: SpaceId, range: VirtRange) {
        self.units[core].invalidate(space, range);
    }

    /// Forgets everything on all cores.
    pub(crate) fn flush(&mut self) {
        for unit in &mut self.units {
            unit.flush();
        }
        self.victims |= ((1 << (self.units.len() - 1)) - 1) * 2 + 1;
        self.victims &= !(1 << self.current);
    }

    /// The cores that have to be interrupted for what was changed since the last time.
    #[inline]
    pub(crate) fn take_victims(&mut self) -> u64 {
        std::mem::take(&mut self.victims)
    }

    pub(crate) fn reset_counters(&mut self) {
        for unit in &mut self.units {
            unit.reset_counters();
        }
    }
}
