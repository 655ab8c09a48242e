//! The host of a virtual machine: what maps the memory that the simulated kernel takes for its own.
//!
//! To its host, a virtual machine is a process whose addresses are the guest's physical ones, so
//! the same address spaces, policies and frames serve. The host maps memory when the guest first
//! uses it, and never takes it back.

use contigua_frames::{FrameClass, Move, Placement};
use contigua_paging::{
    AddressSpace, Areas, Effects, Error as PagingError, MappingPolicy, Memory, SpaceId, TableShape,
    Vma, Written,
};
use contigua_translation::HostTables;
use contigua_units::{Bytes, Cycles, Frame, PAGE_BYTES, PageSize, PhysAddr, VirtAddr, VirtRange};

use crate::Error;
use crate::ageing::fresh_memory;
use crate::config::{HostConfig, KernelCosts, RunConfig};
use crate::processors::Mmus;

/// Memory of a host beyond that of its guest, as a share of it: tables, and room for blocks that do
/// not fit together.
const MORE_MEMORY: f64 = 0.25;
/// Physical address of the guest from which on it has areas that the host lends (`HPL_HC_GPA_BEGIN` of the kernel
/// for DMT).
const LENT: u64 = 1 << 40;

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
    /// First frame of the guest's that was never lent.
    next_lent: Frame,
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
            areas: scheme.areas(false),
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
            next_lent: PhysAddr::new(LENT).frame(),
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
        self.make_areas(&mut effects);
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

    /// Makes areas of the host's page tables.
    fn make_areas(&mut self, effects: &mut Effects) {
        if !self.space.table().areas().is_some_and(Areas::is_wanted) {
            return;
        }
        let mut moves: Vec<Move> = Vec::new();
        let take = |frames, memory: &mut Memory| {
            memory.take_run(frames, FrameClass::PageTable, &mut moves)
        };
        self.space.make_areas(take, &mut self.memory, effects);
        self.follow(&moves, effects);
    }

    fn follow(&mut self, moves: &[Move], effects: &mut Effects) {
        for moved in moves {
            if self.space.follow(moved) {
                let page = VirtRange::with_length(moved.owner.page.address(), moved.order.bytes());
                effects.invalidations.push(page);
            }
        }
    }

    /// Frames in a row of the host's memory, mapped in a row for the guest; the guest's first one.
    pub(super) fn lend(&mut self, frames: u64, mmu: &mut Mmus) -> Option<Frame> {
        let mut moves: Vec<Move> = Vec::new();
        let class = FrameClass::PageTable;
        let block = self.memory.take_run(frames, class, &mut moves)?;
        let first = self.next_lent;
        self.next_lent = first.offset(frames as u32);
        let mut effects = Effects::default();
        self.follow(&moves, &mut effects);
        let range = lent(first, frames);
        let memory = &mut self.memory;
        let mut mapped = self.space.map(range, Vma::ANONYMOUS, memory, &mut effects);
        for at in 0..frames {
            let frame = block.offset(at as u32);
            if mapped.is_err() {
                let _ = memory.free(frame);
                continue;
            }
            let page = range.start + at * PAGE_BYTES;
            let (size, effects) = (PageSize::Size4K, &mut effects);
            mapped = self.space.map_elsewhere(page, frame, size, memory, effects);
        }
        if !moves.is_empty() {
            mmu.flush();
        }
        if mapped.is_err() {
            self.take_back(first, frames, mmu);
            return None;
        }
        Some(first)
    }

    /// Takes back what was lent.
    pub(super) fn take_back(&mut self, first: Frame, frames: u64, mmu: &mut Mmus) {
        let mut effects = Effects::default();
        let range = lent(first, frames);
        // Without memory to split a page, the frames stay where they are: all are small.
        let _ = self.space.unmap(range, &mut self.memory, &mut effects);
        mmu.flush();
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        self.memory
            .validate()
            .map_err(|problem| problem.to_string())?;
        self.space.validate(&self.memory)
    }
}

/// Addresses of the guest's that were lent.
fn lent(first: Frame, frames: u64) -> VirtRange {
    VirtRange::with_length(VirtAddr::new(first.address().get()), frames * PAGE_BYTES)
}
