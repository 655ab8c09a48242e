//! Mappings that get areas for their page tables (`table/areas.rs`), several near each other one for all of them (DMT).

use contigua_units::{Frame, VirtAddr, VirtRange};

use crate::effects::Effects;
use crate::memory::Memory;
use crate::space::{AddressSpace, free_node};
use crate::table::hashed::Growth;

impl AddressSpace {
    /// Makes areas for mappings with page tables outside of all, of runs of frames that `take` gives. What moves into
    /// them is among the effects.
    pub fn make_areas(
        &mut self,
        mut take: impl FnMut(u64, &mut Memory) -> Option<Frame>,
        memory: &mut Memory,
        effects: &mut Effects,
    ) -> Growth {
        let mut all = Growth::default();
        for at in self.table.take_wanted() {
            let Some(cluster) = self.cluster(at) else {
                continue;
            };
            let growth = self
                .table
                .make_areas(cluster, at, |frames| take(frames, memory));
            effects.zeroed_4k += growth.frames;
            effects.copied_4k += growth.copied;
            if growth.copied > 0 {
                // Page-walk caches lead to the nodes that moved.
                effects.invalidations.push(cluster);
            }
            all.add(growth);
        }
        self.settle_areas(memory, effects);
        all
    }

    /// The mapping around an address, with others near it: together they take the part of their range that one area
    /// for all of them needs. None if they are too small.
    fn cluster(&self, at: VirtAddr) -> Option<VirtRange> {
        let shape = self.table.areas()?.shape();
        let (mut range, _) = self.vma(at)?;
        if self.assumes_mappings {
            return None;
        }
        let is_stack = |other: VirtRange| {
            let end = self.stack.map(|stack| stack.end());
            end.is_some_and(|end| other.start < end && end <= other.end)
        };
        let mut taken = range.bytes();
        let ranges = self
            .vmas
            .iter()
            .map(|(range, _)| VirtRange::new(VirtAddr::new(range.start), VirtAddr::new(range.end)));
        let ranges: Vec<VirtRange> = ranges.collect();
        let position = ranges.partition_point(|other| other.end <= at);
        let (mut below, mut above) = (position, position + 1);
        let mut merge = |next: Option<&VirtRange>| {
            let next = *next.filter(|&&next| !is_stack(next))?;
            let (start, end) = (range.start.min(next.start), range.end.max(next.end));
            let whole = VirtRange { start, end };
            let parts = taken + next.bytes();
            let fits = parts * 100 >= whole.bytes() * u64::from(shape.merge_percent);
            fits.then(|| (range, taken) = (whole, parts))
        };
        while merge(ranges.get(above)).is_some() {
            above += 1;
        }
        while below > 0 && merge(ranges.get(below - 1)).is_some() {
            below -= 1;
        }
        (taken >= shape.least).then_some(range)
    }

    /// Gives back areas and nodes that are not needed any more.
    pub(crate) fn settle_areas(&mut self, memory: &mut Memory, effects: &mut Effects) {
        let (released, returned) = self.table.take_area_frames();
        effects.returned.extend(returned);
        for frame in released {
            free_node(frame, memory, effects);
        }
    }
}
