//! Resident memory of the program, each frame once: now, at most, and over time, in two sums and a few points.

use contigua_frames::FrameClass;
use contigua_paging::{AddressSpace, Resident, RestSeg};
use contigua_units::{Bytes, PAGE_BYTES, PageSize};

use super::Kernel;
use crate::report::{MemoryReport, ResidencyReport};

const HUGE: u64 = PageSize::Size2M.bytes();

/// Points that are kept at most, one in each stretch of equal length. When there are more, the
/// stretches become twice as long.
const MOST_POINTS: usize = 64;
/// Instructions in a stretch at first.
const FIRST_DISTANCE: u64 = 10_000;

/// Resident bytes over instructions.
#[derive(contigua_state::State)]
pub(super) struct ResidencyHistory {
    /// True if memory that a primary region would hold is counted.
    #[state(skip)]
    classifies: bool,
    at: u64,
    /// Bytes times instructions.
    resident: u128,
    huge: u128,
    distance: u64,
    /// Instructions, resident bytes, those in huge pages, and those that a primary region would
    /// hold.
    points: Vec<[u64; 4]>,
}

impl ResidencyHistory {
    pub(super) fn new(classifies: bool) -> Self {
        Self {
            classifies,
            at: 0,
            resident: 0,
            huge: 0,
            distance: FIRST_DISTANCE,
            points: Vec::new(),
        }
    }

    /// Forgets all and begins again.
    pub(super) fn restart(&mut self) {
        *self = Self::new(self.classifies);
    }

    /// After so many instructions this much memory is resident, and of that so much in huge pages.
    /// Memory of a would-be primary region is counted at points only, because it takes long.
    pub(super) fn note(
        &mut self,
        instructions: u64,
        resident: u64,
        huge: u64,
        eligible: impl FnOnce() -> u64,
    ) {
        let passed = u128::from(instructions.saturating_sub(self.at));
        self.at = self.at.max(instructions);
        self.resident += passed * u128::from(resident);
        self.huge += passed * u128::from(huge);
        let slot = |instructions: u64, distance: u64| instructions / distance;
        if let Some(last) = self.points.last()
            && slot(instructions, self.distance) <= slot(last[0], self.distance)
        {
            return;
        }
        let eligible = if self.classifies { eligible() } else { 0 };
        self.points.push([instructions, resident, huge, eligible]);
        while self.points.len() > MOST_POINTS {
            self.distance *= 2;
            let distance = self.distance;
            self.points.dedup_by_key(|point| slot(point[0], distance));
        }
    }

    pub(super) fn report(&self) -> ResidencyReport {
        let mean = |sum: u128| Bytes::new((sum / u128::from(self.at.max(1))) as u64);
        let column = |index: usize| self.points.iter().map(|point| point[index]).collect();
        ResidencyReport {
            mean_resident: mean(self.resident),
            mean_huge: mean(self.huge),
            mean_huge_page_coverage: self.huge as f64 / (self.resident as f64).max(1.0),
            instructions: column(0),
            resident: column(1),
            huge: column(2),
            eligible: if self.classifies {
                column(3)
            } else {
                Vec::new()
            },
        }
    }
}

impl Kernel {
    pub(super) fn account(&mut self, before: Resident, after: Resident) {
        self.resident.replace(&before, &after);
        let bytes = self.resident().bytes();
        if bytes > self.resident_once {
            self.note_peak();
        }
        self.resident_once = bytes;
    }

    /// Memory of all processes, each frame once.
    pub(super) fn resident(&self) -> Resident {
        self.memory.counted_once(&self.resident)
    }

    /// Notes what is resident after so many instructions of the region of interest.
    pub(crate) fn note_residency(&mut self, instructions: u64) {
        let [all, huge] = self.resident_now();
        let (spaces, memory) = (&self.spaces, &self.memory);
        self.residency.note(instructions, all, huge, || {
            let spaces = spaces.iter().flatten();
            // Of what processes share, each has its part.
            all.min(spaces.map(|space| space.resident_eligible(memory)).sum())
        });
    }

    /// Resident bytes now, and of these the ones in pages larger than 4 KB.
    pub(crate) fn resident_now(&self) -> [u64; 2] {
        let resident = self.resident();
        let all = resident.bytes().get();
        let small = resident.pages_4k * PageSize::Size4K.bytes();
        [all, all - small]
    }

    pub(crate) fn residency(&self) -> ResidencyReport {
        self.residency.report()
    }

    /// The most that was resident, with the page tables and what was set aside then.
    pub(super) fn note_peak(&mut self) {
        let resident = self.resident();
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
        let segments = &self.memory.rest_segs.segments;
        let unused = unused + segments.iter().map(RestSeg::unused).sum::<u64>();
        let guests = if self.shape.has_shadows {
            self.memory.holes.bytes().get()
        } else {
            0
        };
        let hosts = self
            .host
            .as_ref()
            .map_or(0, |host| host.hole_bitmaps().get());
        let shared = self.memory.shared_memory();
        *peak = MemoryReport {
            resident_4k: Bytes::new(small),
            resident_2m: Bytes::new(resident.pages_2m * HUGE),
            resident_1g: Bytes::new(resident.pages_1g * PageSize::Size1G.bytes()),
            perforated: Bytes::new(resident.perforated_frames * PAGE_BYTES),
            segment: Bytes::new(resident.segment_frames * PAGE_BYTES),
            reserved: Bytes::new(resident.reserved_frames * PAGE_BYTES),
            huge_page_coverage: (all - small) as f64 / all.max(1) as f64,
            shmem: Bytes::new(shared.pages_4k * PAGE_BYTES + shared.pages_2m * HUGE),
            shmem_huge: Bytes::new(shared.pages_2m * HUGE),
            hugetlb_shared: Bytes::new(shared.hugetlb * HUGE),
            page_tables: Bytes::new(
                (self.memory.frames_of(FrameClass::PageTable) - self.page_tables_before)
                    * PAGE_BYTES,
            ),
            set_aside: Bytes::new(pooled.into_iter().sum::<u64>() + unused),
            hole_bitmaps: Bytes::new(guests + hosts),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_all_instructions_and_points_over_the_whole_run() {
        let mut residency = ResidencyHistory::new(true);
        let last = 1_000_000 * FIRST_DISTANCE;
        let step = FIRST_DISTANCE * 999;
        let mut at = 0;
        while at < last {
            at += step;
            residency.note(at, if at <= last / 2 { 100 } else { 300 }, 50, || 10);
        }
        let report = residency.report();
        assert!(
            (199..=201).contains(&report.mean_resident.get()),
            "{report:?}"
        );
        assert_eq!(report.mean_huge, Bytes::new(50));
        assert!((report.mean_huge_page_coverage - 0.25).abs() < 0.01);
        assert!(report.eligible.iter().all(|&bytes| bytes == 10));
        assert_eq!(report.eligible.len(), report.resident.len());
        let points = &report.instructions;
        assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&points.len()));
        assert!(points.is_sorted() && points[0] == step);
        assert!(points[points.len() - 1] > last / 10 * 9);
        // What is kept lies evenly.
        let gaps: Vec<u64> = points.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
        assert!(most <= &(least * 2), "{gaps:?}");
    }

    #[test]
    fn a_history_of_nothing_is_empty() {
        let report = ResidencyHistory::new(true).report();
        assert_eq!(report, ResidencyReport::default());
    }
}
