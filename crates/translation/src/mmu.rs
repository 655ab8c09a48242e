//! The memory-management unit of a core: L1 TLBs in front of a translator.

use contigua_paging::{Segment, SpaceId};
use contigua_state::Plain;
use contigua_state::State;
use contigua_units::{Cycles, PageSize, PhysAddr, VirtAddr, VirtRange};
use derive_more::AddAssign;
use schemars::JsonSchema;
use serde::Serialize;

use crate::tlb::L1Tlb;
use crate::{
    Access, Answer, Error, Hardware, MemoryPort, Request, Scheme, Tables, Translation, Translator,
    TranslatorCounters,
};

/// Result of an L1 TLB look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The physical address.
    Hit(PhysAddr),
    /// Ask [`Mmu::miss`].
    Miss,
}

/// Counters of one L1 TLB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Plain, JsonSchema)]
pub struct SideCounters {
    /// Look-ups. Instruction fetches look up once for each cache line that they enter.
    pub lookups: u64,
    /// Misses that were filled with a 4 KB page.
    pub misses_4k: u64,
    /// Misses that were filled with a 2 MB page.
    pub misses_2m: u64,
    /// Misses that were filled with a 1 GB page.
    pub misses_1g: u64,
}

impl SideCounters {
    /// Misses, whatever filled them.
    #[must_use]
    pub const fn misses(&self) -> u64 {
        self.misses_4k + self.misses_2m + self.misses_1g
    }
}

/// Counters of both L1 TLBs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Plain, JsonSchema)]
pub struct MmuCounters {
    /// Loads and stores.
    pub data: SideCounters,
    /// Instruction fetches.
    pub instruction: SideCounters,
    /// Loads and stores that the segment registers translated: they are no look-ups.
    pub segment_accesses: u64,
    /// Loads that missed the L1 TLB.
    pub load_misses: MissCounters,
    /// Stores that missed it.
    pub store_misses: MissCounters,
    /// Instruction fetches that missed it.
    pub fetch_misses: MissCounters,
}

/// Outcomes of misses of an L1 TLB. The names are perf's (Intel's `DTLB_LOAD_MISSES.STLB_HIT` and
/// its like).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Plain, JsonSchema)]
pub struct MissCounters {
    /// Those that needed no walk: the L2 TLB, or what the scheme has beside it, knew.
    pub stlb_hit: u64,
    /// Walks that found a 4 KB page.
    pub walk_completed_4k: u64,
    /// Walks that found a 2 MB page.
    pub walk_completed_2m: u64,
    /// Walks that found a 1 GB page.
    pub walk_completed_1g: u64,
}

impl MissCounters {
    fn count(&mut self, size: PageSize, walked: bool) {
        let counter = match (walked, size) {
            (false, _) => &mut self.stlb_hit,
            (true, PageSize::Size4K) => &mut self.walk_completed_4k,
            (true, PageSize::Size2M) => &mut self.walk_completed_2m,
            (true, PageSize::Size1G) => &mut self.walk_completed_1g,
        };
        *counter += 1;
    }
}

/// BASE, LIMIT and OFFSET of the running thread (Direct Segments, section 3.1). A match suppresses
/// the TLBs and takes no longer than they do.
#[derive(Clone, Copy, Debug, Default, Plain)]
struct Registers {
    base: u64,
    /// LIMIT less BASE: one comparison tells.
    length: u64,
    offset: u64,
}

impl Registers {
    #[inline]
    fn translate(&self, address: VirtAddr) -> Option<PhysAddr> {
        (address.get().wrapping_sub(self.base) < self.length)
            .then(|| PhysAddr::new(address.get().wrapping_add(self.offset)))
    }
}

/// L1 TLBs and what lies behind them, and the segment registers beside them.
#[derive(State)]
pub struct Mmu {
    registers: Registers,
    data: L1Tlb,
    instruction: L1Tlb,
    /// TLB entries carry address-space identifiers.
    #[state(skip)]
    tagged: bool,
    /// Part of the latency of what is walked for that is no walk: the look-up of the L2 TLB.
    #[state(skip)]
    second_level: Cycles,
    /// The translator takes what the L1 TLBs evict.
    #[state(skip)]
    passes_evictions: bool,
    #[state(inner)]
    translator: Box<dyn Translator>,
    counters: MmuCounters,
    data_walks: Cycles,
    instruction_walks: Cycles,
    /// The translator's counters of translations ahead.
    ahead: TranslatorCounters,
}

impl Mmu {
    /// Empty structures for a design.
    ///
    /// # Errors
    /// [`Error`], when a geometry is impossible or a parameter of the scheme is out of range.
    pub fn new(hardware: &Hardware<'_>, scheme: &dyn Scheme) -> Result<Self, Error> {
        scheme.validate()?;
        let translator = scheme.translator(hardware)?;
        let tlb = hardware.tlb;
        Ok(Self {
            registers: Registers::default(),
            data: L1Tlb::new("l1d", &tlb.l1d, translator.group())?,
            instruction: L1Tlb::new("l1i", &tlb.l1i, translator.group())?,
            tagged: tlb.address_space_ids,
            second_level: tlb.second_level_cycles(),
            passes_evictions: translator.takes_first_level_evictions(),
            translator,
            counters: MmuCounters::default(),
            data_walks: Cycles::ZERO,
            instruction_walks: Cycles::ZERO,
            ahead: TranslatorCounters::default(),
        })
    }

    /// The core turns to a thread: its segment is loaded and, where entries carry no address-space
    /// identifiers and the space is another one, everything else is forgotten.
    pub fn dispatch(&mut self, segment: Segment, same_space: bool) {
        self.registers = Registers {
            base: segment.base.get(),
            length: segment.bytes(),
            offset: segment.offset,
        };
        if !same_space && !self.tagged {
            self.flush();
        }
    }

    /// Forgets everything.
    pub fn flush(&mut self) {
        self.data.clear();
        self.instruction.clear();
        self.translator.flush();
    }

    /// Looks the address of an instruction up.
    #[inline]
    pub fn fetch(&mut self, address: VirtAddr, space: SpaceId) -> Lookup {
        self.counters.instruction.lookups += 1;
        if let Some(hit) = self.instruction.most_recent(address, space) {
            return Lookup::Hit(hit.physical);
        }
        match self.instruction.lookup_all(address, space) {
            Some(hit) => Lookup::Hit(hit.physical),
            None => Lookup::Miss,
        }
    }

    /// Counts an L1 ITLB hit on the page fetched last.
    #[inline]
    pub fn count_repeated_fetch(&mut self) {
        self.counters.instruction.lookups += 1;
    }

    /// Looks the address of a load up.
    ///
    /// Hardware compares the registers and probes the TLB at once. What a segment maps is in no
    /// TLB, so the answer is the same when the entries that were used last are probed first.
    #[inline]
    pub fn read(&mut self, address: VirtAddr, space: SpaceId) -> Lookup {
        self.counters.data.lookups += 1;
        if let Some(hit) = self.data.most_recent(address, space) {
            return Lookup::Hit(hit.physical);
        }
        if let Some(physical) = self.through_segment(address) {
            return Lookup::Hit(physical);
        }
        match self.data.lookup_all(address, space) {
            Some(hit) => Lookup::Hit(hit.physical),
            None => Lookup::Miss,
        }
    }

    /// Looks the address of a store up. An entry that does not allow stores is no hit, and goes.
    #[inline]
    pub fn write(&mut self, address: VirtAddr, space: SpaceId) -> Lookup {
        self.counters.data.lookups += 1;
        if let Some(hit) = self.data.most_recent(address, space)
            && hit.writable
        {
            return Lookup::Hit(hit.physical);
        }
        if let Some(physical) = self.through_segment(address) {
            return Lookup::Hit(physical);
        }
        match self.data.lookup_all(address, space) {
            Some(hit) if hit.writable => Lookup::Hit(hit.physical),
            Some(_) => {
                self.data.remove(address, space);
                Lookup::Miss
            }
            None => Lookup::Miss,
        }
    }

    /// Translates through the segment registers; such an access is no look-up of the TLB.
    #[inline]
    fn through_segment(&mut self, address: VirtAddr) -> Option<PhysAddr> {
        let physical = self.registers.translate(address)?;
        self.counters.data.lookups -= 1;
        self.counters.segment_accesses += 1;
        Some(physical)
    }

    /// Translates what the L1 TLB does not have, and fills it.
    pub fn miss(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Answer {
        match self.translator.translate(request, tables, port) {
            Translation::Fault { latency, host } => {
                self.add_walk_cycles(request.access, latency - self.second_level.min(latency));
                Answer::Fault { latency, host }
            }
            Translation::Page {
                leaf,
                latency,
                walked,
                group,
            } => {
                let misses = match request.access {
                    Access::Execute => &mut self.counters.fetch_misses,
                    Access::Read => &mut self.counters.load_misses,
                    Access::Write => &mut self.counters.store_misses,
                };
                misses.count(leaf.size, walked);
                if walked {
                    self.add_walk_cycles(request.access, latency - self.second_level.min(latency));
                }
                let (tlb, counters) = match request.access {
                    Access::Execute => (&mut self.instruction, &mut self.counters.instruction),
                    Access::Read | Access::Write => (&mut self.data, &mut self.counters.data),
                };
                match leaf.size {
                    PageSize::Size4K => counters.misses_4k += 1,
                    PageSize::Size2M => counters.misses_2m += 1,
                    PageSize::Size1G => counters.misses_1g += 1,
                }
                let evicted = if group {
                    tlb.insert_group(request.address, request.space, leaf)
                } else {
                    tlb.insert(request.address, request.space, leaf)
                };
                if self.passes_evictions
                    && let Some(evicted) = &evicted
                {
                    self.translator.first_level_evicted(evicted, request.access);
                }
                Answer::Translated {
                    physical: leaf.physical(request.address),
                    latency,
                    walked,
                }
            }
        }
    }

    /// Translates an address that a prefetcher expects, if that needs no fault. What lies behind the L1 TLBs
    /// remembers it; nothing is counted but by a scheme's own counters.
    pub fn ahead(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Option<PhysAddr> {
        if let Some(physical) = self.registers.translate(request.address) {
            return Some(physical);
        }
        let before = self.translator.counters();
        let found = self.translator.translate(request, tables, port);
        self.ahead += self.translator.counters();
        self.ahead -= before;
        match found {
            Translation::Page { leaf, .. } => Some(leaf.physical(request.address)),
            Translation::Fault { .. } => None,
        }
    }

    /// Forgets everything about a range of a space's addresses.
    pub fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.data.invalidate(space, range);
        self.instruction.invalidate(space, range);
        self.translator.invalidate(space, range);
    }

    /// Counters of the L1 TLBs since the last reset.
    #[must_use]
    pub fn counters(&self) -> MmuCounters {
        self.counters
    }

    /// Counters of the translator since the last reset.
    #[must_use]
    pub fn translator_counters(&self) -> TranslatorCounters {
        let mut counters = self.translator.counters();
        counters -= self.ahead;
        TranslatorCounters {
            walk_cycles: self.data_walks + self.instruction_walks,
            data_walk_cycles: self.data_walks,
            instruction_walk_cycles: self.instruction_walks,
            ..counters
        }
    }

    /// A walk took that long, or longer by that than the port said.
    pub fn add_walk_cycles(&mut self, access: Access, cycles: Cycles) {
        *match access {
            Access::Execute => &mut self.instruction_walks,
            Access::Read | Access::Write => &mut self.data_walks,
        } += cycles;
    }

    /// Takes a page that was found costly to translate.
    pub fn take_costly_page(&mut self) -> Option<(SpaceId, VirtAddr)> {
        self.translator.take_costly_page()
    }

    /// Counters of the scheme only, by name.
    #[must_use]
    pub fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        self.translator.scheme_counters()
    }

    /// Bits of storage of the L1 TLBs.
    #[must_use]
    pub fn first_level_bits(&self) -> u64 {
        let more = |size| self.translator.first_level_bits(size);
        self.data.storage_bits(more) + self.instruction.storage_bits(more)
    }

    /// Bits of storage behind the L1 TLBs.
    #[must_use]
    pub fn storage_bits(&self) -> u64 {
        self.translator.storage_bits()
    }

    /// Starts counting anew; the structures keep what they hold.
    pub fn reset_counters(&mut self) {
        self.counters = MmuCounters::default();
        (self.data_walks, self.instruction_walks) = (Cycles::ZERO, Cycles::ZERO);
        self.ahead = TranslatorCounters::default();
        self.translator.reset_counters();
    }
}
