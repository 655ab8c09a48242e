//! What the program has resident: now, over time, and at most.

use contigua_frames::FrameClass;
use contigua_paging::{AddressSpace, Resident};
use contigua_units::{Bytes, PAGE_BYTES, PageSize};

use super::Kernel;
use crate::report::{MemoryReport, ResidencyReport};

impl Kernel {
    pub(super) fn account(&mut self, before: Resident, after: Resident) {
        self.resident.replace(&before, &after);
        if after.bytes() > before.bytes() {
            self.note_peak();
        }
    }

    /// Notes what is resident after so many instructions of the region of interest.
    pub(crate) fn note_residency(&mut self, instructions: u64) {
        let [all, huge] = self.resident_now();
        let spaces = &self.spaces;
        self.residency.note(instructions, all, huge, || {
            spaces
                .iter()
                .flatten()
                .map(AddressSpace::resident_eligible)
                .sum()
        });
    }

    /// Resident bytes now, and of these the ones in pages larger than 4 KB.
    pub(crate) fn resident_now(&self) -> [u64; 2] {
        let all = self.resident.bytes().get();
        let small = self.resident.pages_4k * PageSize::Size4K.bytes();
        [all, all - small]
    }

    pub(crate) fn residency(&self) -> ResidencyReport {
        self.residency.report()
    }

    /// The most that was resident, with the page tables and what was set aside then.
    pub(super) fn note_peak(&mut self) {
        let resident = self.resident;
        let peak = &mut self.peak;
        let before = [
            peak.resident_4k,
            peak.resident_2m,
            peak.resident_1g,
            peak.perforated,
            peak.segment,
        ];
        let before: u64 = before.into_iter().map(Bytes::get).sum();
        let all = resident.bytes().get();
        if all < before {
            return;
        }
        let small = resident.pages_4k * PageSize::Size4K.bytes();
        let pooled = [PageSize::Size2M, PageSize::Size1G]
            .map(|size| self.memory.reserved_huge(size) * size.bytes());
        let spaces = self.spaces.iter().flatten();
        let unused: u64 = spaces.map(AddressSpace::chunk_unused).sum();
        let guests = if self.shape.has_shadows {
            self.memory.holes.bytes().get()
        } else {
            0
        };
        let hosts = self
            .host
            .as_ref()
            .map_or(0, |host| host.hole_bitmaps().get());
        *peak = MemoryReport {
            resident_4k: Bytes::new(small),
            resident_2m: Bytes::new(resident.pages_2m * PageSize::Size2M.bytes()),
            resident_1g: Bytes::new(resident.pages_1g * PageSize::Size1G.bytes()),
            perforated: Bytes::new(resident.perforated_frames * PAGE_BYTES),
            segment: Bytes::new(resident.segment_frames * PAGE_BYTES),
            reserved: Bytes::new(resident.reserved_frames * PAGE_BYTES),
            huge_page_coverage: (all - small) as f64 / all.max(1) as f64,
            page_tables: Bytes::new(
                (self.memory.frames_of(FrameClass::PageTable) - self.page_tables_before)
                    * PAGE_BYTES,
            ),
            set_aside: Bytes::new(pooled.into_iter().sum::<u64>() + unused),
            hole_bitmaps: Bytes::new(guests + hosts),
        };
    }
}
