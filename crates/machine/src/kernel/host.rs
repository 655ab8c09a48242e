//! The host of a virtual machine: what maps the memory that the simulated kernel takes for its own.
//!
//! To its host, a virtual machine is a process whose addresses are the guest's physical ones, so
//! the same address spaces, policies and frames serve. The host maps memory when the guest first
//! uses it, and never takes it back.

use contigua_frames::Placement;
use contigua_paging::{
    AddressSpace, Effects, Error as PagingError, MappingPolicy, Memory, SpaceId, TableShape, Vma,
    Written,
};
use contigua_translation::HostTables;
use contigua_units::{Bytes, Cycles, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::Error;
use crate::ageing::fresh_memory;
use crate::config::{HostConfig, KernelCosts, RunConfig};
use crate::processors::Mmus;

/// Memory of a host beyond that of its guest, as a share of it: tables, and room for blocks that do
/// not fit together.
const MORE_MEMORY: f64 = 0.25;

/// A host with one guest.
#[derive(contigua_state::State)]
pub(super) struct Host {
    memory: Memory,
    space: AddressSpace,
    #[state(skip)]
    policy: Box<dyn MappingPolicy>,
    #[state(skip)]
    has_bitmaps: bool,
    /// True where all was mapped before, and no work is seen.
    #[state(skip)]
    is_populated: bool,
}

impl Host {
    /// A host that has just started a virtual machine with the memory of the machine under study.
    ///
    /// # Errors
    /// [`Error::Frames`], and [`Error::Component`] when there is no memory for its tables.
    pub(super) fn new(config: &HostConfig, run: &RunConfig) -> Result<Self, Error> {
        let no_room = |_| Error::Component {
            machine: run.machine_name.clone(),
            problem: "the host has no memory for the tables of its guest".to_owned(),
        };
        let guest = run.machine.memory.get();
        let scheme = &config.translation;
        let placement: &Placement = &config.placement;
        let giant = PageSize::Size1G.bytes();
        let bytes = (guest as f64 * (1.0 + MORE_MEMORY)) as u64;
        let bytes = Bytes::new(bytes.next_multiple_of(giant) + giant);
        let mut memory = fresh_memory(bytes, &run.design.memory, placement)?;
        if let Some(reserved) = scheme.reserved() {
            let pages = (guest / reserved.size.bytes()).max(1);
            memory.reserve_huge(reserved.size, pages, &mut ());
        }
        let shape = TableShape {
            levels: run.machine.page_table_levels.0,
            has_shadows: scheme.has_shadows(),
            hashing: None,
            buckets: None,
        };
        let mut space = AddressSpace::with(SpaceId(0), shape, &mut memory).map_err(no_room)?;
        // Another seed than the guest's: the two are fragmented independently.
        let scenario = run.holes.map(|holes| holes.scenario(!run.seed));
        space.set_fragmentation(
            scenario.filter(|_| scheme.has_shadows() || scheme.primary().is_none()),
        );
        // The area above the memory holds the guest's hole bitmaps.
        let all = VirtRange::with_length(VirtAddr::new(0), guest.next_multiple_of(giant) + giant);
        match scheme.primary() {
            Some(primary) if primary.chunk.is_some() => {
                space.reserve_machine(all, 1);
                let bytes = space.take_chunk(guest, &mut memory, &mut ());
                // The segment maps the virtual machine's memory from the start.
                let last = VirtAddr::new(bytes.saturating_sub(1));
                let policy = scheme.policy();
                space
                    .fault(last, true, &*policy, &mut memory, &mut Effects::default())
                    .map_err(no_room)?;
            }
            _ => space
                .map(all, Vma::ANONYMOUS, &mut memory, &mut Effects::default())
                .map_err(no_room)?,
        }
        Ok(Self {
            memory,
            space,
            policy: scheme.policy(),
            has_bitmaps: scheme.has_shadows(),
            is_populated: config.populated,
        })
    }

    pub(super) const fn is_populated(&self) -> bool {
        self.is_populated
    }

    pub(super) fn tables(&mut self) -> HostTables<'_> {
        HostTables {
            segment: self.space.segment(),
            table: self.space.table_mut(),
            holes: &self.memory.holes,
        }
    }

    /// Address range of its hole bitmaps, if its pages can have holes.
    pub(super) fn hole_bitmaps(&self) -> Bytes {
        if self.has_bitmaps {
            self.memory.holes.bytes()
        } else {
            Bytes::new(0)
        }
    }

    pub(super) fn segment(&self) -> contigua_paging::Segment {
        self.space.segment()
    }

    /// Maps what the guest uses for the first time; the work that it took. Leaving and entering
    /// the virtual machine is part of what a page fault costs.
    pub(super) fn fault(
        &mut self,
        address: PhysAddr,
        costs: &KernelCosts,
        mmu: &mut Mmus,
        written: &mut Vec<Written>,
    ) -> Result<Cycles, PagingError> {
        let mut effects = Effects::default();
        let at = VirtAddr::new(address.get());
        self.space
            .fault(at, true, &*self.policy, &mut self.memory, &mut effects)?;
        if !effects.invalidations.is_empty() {
            // Entries that name the guest's addresses do not say whose memory they lead to.
            mmu.flush();
        }
        if self.is_populated {
            return Ok(Cycles::ZERO);
        }
        written.append(&mut effects.written);
        Ok(costs.page_fault_cycles
            + costs.zero_4k_cycles * effects.zeroed_4k
            + costs.zero_2m_cycles * effects.zeroed_2m
            + costs.copy_4k_cycles * effects.copied_4k
            + costs.page_table_node_cycles * effects.nodes)
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        self.memory
            .validate()
            .map_err(|problem| problem.to_string())?;
        self.space.validate(&self.memory)
    }
}
