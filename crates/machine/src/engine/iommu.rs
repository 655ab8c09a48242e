//! The unit that translates a device's addresses: tables of four levels in the kernel's memory, a
//! TLB, the addresses of last-level tables, and a queue of invalidations, which takes time.
//!
//! Addresses are given downwards from 4 GB, as Linux's `dma-iommu` does. Memory that is mapped for
//! one transfer is invalidated in batches after it was unmapped, or at once, and its address is used
//! again only then. A device with address translation services (ATS) has a TLB of its own before
//! the unit's. Until an invalidation has ended, the device may use the old translation.

use std::collections::HashMap;

use contigua_units::{Cycles, Frame, Nanoseconds, PAGE_BYTES, PhysAddr};

use crate::config::IommuConfig;
use crate::report::DeviceReport;

/// Addresses that Linux gives first: below 4 GB.
const TOP: u64 = (4 << 30) / PAGE_BYTES;
const LEVELS: u32 = 4;
/// Address bits of a level, and bytes of an entry (Intel VT-d, section 3.7).
const LEVEL_BITS: u32 = 9;
const ENTRY_BYTES: u64 = 8;
/// Unmapped pages that are invalidated together at the latest (`IOVA_FQ_SIZE`, `dma-iommu.c`).
const BATCH: usize = 256;
/// How long the first of them waits at most (`IOVA_FQ_TIMEOUT`).
pub(super) const BATCH_TIME: Nanoseconds = Nanoseconds::new(10_000_000);

/// When pages are unmapped, and when they are invalidated.
#[derive(Clone, Copy)]
pub(super) struct Unmapping {
    pub(super) now: Cycles,
    /// Of an invalidation.
    pub(super) latency: Cycles,
    /// How long pages wait for others; none where they are invalidated at once.
    pub(super) batched: Option<Cycles>,
}

/// A number of a page among the device's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, contigua_state::Plain)]
pub(crate) struct DevicePage(u64);

impl DevicePage {
    /// Key of the table of this level; the page's entry in it is the key of the level below.
    fn above(self, level: u32) -> u64 {
        self.0 >> (LEVEL_BITS * level)
    }
}

/// Entries that were used last, up to a capacity.
#[derive(Default, contigua_state::Plain)]
struct Recent {
    /// Least recently used first.
    entries: Vec<(u64, Frame)>,
}

impl Recent {
    fn find(&mut self, key: u64) -> Option<Frame> {
        let at = self.entries.iter().rposition(|&(held, _)| held == key)?;
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        Some(entry.1)
    }

    fn fill(&mut self, key: u64, frame: Frame, capacity: u32) {
        if self.entries.len() >= capacity as usize {
            self.entries.remove(0);
        }
        self.entries.push((key, frame));
    }

    fn forget(&mut self, key: u64) -> u64 {
        let before = self.entries.len();
        self.entries.retain(|&(held, _)| held != key);
        (before - self.entries.len()) as u64
    }
}

#[derive(Default, contigua_state::Plain)]
pub(crate) struct Iommu {
    /// By level and by what lies above their addresses.
    tables: HashMap<(u32, u64), Frame>,
    mapped: HashMap<u64, Frame>,
    tlb: Recent,
    device_tlb: Recent,
    /// Last-level tables.
    last_level: Recent,
    /// Invalidations, and when each has ended.
    queue: Vec<(DevicePage, Cycles)>,
    /// Unmapped pages of which the TLBs may have translations.
    unmapped: Vec<DevicePage>,
    /// When they are invalidated at the latest.
    batch_due: Cycles,
    free: Vec<DevicePage>,
    /// Addresses that were never used lie below.
    used: u64,
}

impl Iommu {
    /// Maps a frame. `take` gives frames for tables; none without one.
    pub(super) fn map(
        &mut self,
        frame: Frame,
        mut take: impl FnMut() -> Option<Frame>,
    ) -> Option<DevicePage> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => DevicePage(TOP.checked_sub(self.used + 1)?),
        };
        for level in 1..=LEVELS {
            let key = (level, page.above(level));
            if !self.tables.contains_key(&key) {
                let Some(table) = take() else {
                    if page.0 + self.used >= TOP {
                        self.free.push(page);
                    }
                    return None;
                };
                self.tables.insert(key, table);
            }
        }
        self.used = self.used.max(TOP - page.0);
        self.mapped.insert(page.0, frame);
        Some(page)
    }

    /// Writes another frame into the entry of a page that stays mapped, and queues an invalidation.
    pub(super) fn remap(
        &mut self,
        page: DevicePage,
        frame: Frame,
        now: Cycles,
        latency: Cycles,
        counters: &mut DeviceReport,
    ) {
        self.mapped.insert(page.0, frame);
        self.queue.push((page, now + latency));
        counters.queued_invalidations += 1;
    }

    /// Unmaps pages. Returns the cycles for which the processor waits for the queue: once for all
    /// pages, if they are invalidated now.
    pub(super) fn unmap(
        &mut self,
        pages: &[DevicePage],
        time: Unmapping,
        counters: &mut DeviceReport,
    ) -> Cycles {
        for page in pages {
            self.mapped.remove(&page.0);
        }
        if let Some(batched) = time.batched
            && self.unmapped.is_empty()
        {
            self.batch_due = time.now + batched;
        }
        self.unmapped.extend(pages);
        let is_due = time.batched.is_none() || self.unmapped.len() >= BATCH;
        if pages.is_empty() || !is_due {
            return Cycles::ZERO;
        }
        if time.batched.is_none() {
            counters.queued_invalidations += 1;
            for page in &self.unmapped {
                counters.iotlb_invalidations += self.tlb.forget(page.0);
                self.device_tlb.forget(page.0);
            }
            self.free.append(&mut self.unmapped);
        } else {
            self.end_batch(counters);
        }
        counters.invalidation_wait_cycles += time.latency;
        time.latency
    }

    /// Invalidates all translations, whatever their number.
    fn end_batch(&mut self, counters: &mut DeviceReport) {
        counters.queued_invalidations += 1;
        counters.iotlb_invalidations += self.tlb.entries.len() as u64;
        self.tlb.entries.clear();
        self.device_tlb.entries.clear();
        self.last_level.entries.clear();
        self.free.append(&mut self.unmapped);
    }

    /// Ends the invalidations that are due, of a batch those of all pages.
    pub(super) fn work(&mut self, now: Cycles, counters: &mut DeviceReport) {
        if !self.unmapped.is_empty() && self.batch_due <= now {
            self.end_batch(counters);
        }
        let Self {
            queue,
            tlb,
            device_tlb,
            ..
        } = self;
        queue.retain(|&(page, due)| {
            if due <= now {
                counters.iotlb_invalidations += tlb.forget(page.0);
                device_tlb.forget(page.0);
            }
            due > now
        });
    }

    /// When the next invalidation ends.
    pub(super) fn due(&self) -> Option<Cycles> {
        self.queue.iter().map(|&(_, due)| due).min()
    }

    /// When the last of a page's invalidations ends.
    pub(super) fn settles(&self, page: DevicePage) -> Option<Cycles> {
        let of = self.queue.iter().filter(|&&(queued, _)| queued == page);
        of.map(|&(_, due)| due).max()
    }

    /// Translates a page for the device. `read` reads an entry of a table and says how long that
    /// takes.
    pub(super) fn translate(
        &mut self,
        page: DevicePage,
        config: &IommuConfig,
        counters: &mut DeviceReport,
        mut read: impl FnMut(PhysAddr) -> Cycles,
    ) -> Option<Frame> {
        if config.device_tlb_entries > 0 {
            counters.device_tlb_lookups += 1;
            if let Some(frame) = self.device_tlb.find(page.0) {
                return Some(frame);
            }
            counters.device_tlb_misses += 1;
        }
        counters.iotlb_lookups += 1;
        let known = self.tlb.find(page.0);
        let frame = match known {
            Some(frame) => frame,
            None => self.walk(page, config, counters, &mut read)?,
        };
        if config.device_tlb_entries > 0 {
            self.device_tlb
                .fill(page.0, frame, config.device_tlb_entries);
        }
        Some(frame)
    }

    fn walk(
        &mut self,
        page: DevicePage,
        config: &IommuConfig,
        counters: &mut DeviceReport,
        read: &mut impl FnMut(PhysAddr) -> Cycles,
    ) -> Option<Frame> {
        counters.iotlb_misses += 1;
        let is_known = self.last_level.find(page.above(1)).is_some();
        for level in (1..=if is_known { 1 } else { LEVELS }).rev() {
            let table = *self.tables.get(&(level, page.above(level)))?;
            let entry = page.above(level - 1) % (1 << LEVEL_BITS);
            let at = table.address().get() + entry * ENTRY_BYTES;
            counters.iommu_reads += 1;
            counters.iommu_walk_cycles += read(PhysAddr::new(at));
            if level == 1 && !is_known {
                self.last_level
                    .fill(page.above(1), table, config.table_entries);
            }
        }
        let frame = *self.mapped.get(&page.0)?;
        self.tlb.fill(page.0, frame, config.tlb_entries);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LATENCY: Cycles = Cycles::new(100);

    fn config(device_tlb_entries: u32) -> IommuConfig {
        IommuConfig {
            tlb_entries: 4,
            device_tlb_entries,
            ..IommuConfig::default()
        }
    }

    fn unmapping(strict: bool, now: Cycles) -> Unmapping {
        Unmapping {
            now,
            latency: LATENCY,
            batched: (!strict).then_some(Cycles::new(1000)),
        }
    }

    fn tables() -> impl FnMut() -> Option<Frame> {
        let mut next = 1000;
        move || {
            next += 1;
            Some(Frame::new(next))
        }
    }

    fn translate(
        iommu: &mut Iommu,
        page: DevicePage,
        config: &IommuConfig,
        counters: &mut DeviceReport,
    ) -> Option<Frame> {
        iommu.translate(page, config, counters, |_| Cycles::new(10))
    }

    #[test]
    fn a_walk_reads_four_tables_and_then_one() {
        let (mut iommu, mut counters, config) =
            (Iommu::default(), DeviceReport::default(), config(0));
        let mut take = tables();
        let pages: Vec<_> = (0..6)
            .map(|frame| iommu.map(Frame::new(frame), &mut take).unwrap())
            .collect();
        // One table of each level for addresses side by side.
        assert_eq!(iommu.tables.len(), 4);
        let mut reads = Vec::new();
        iommu.translate(pages[0], &config, &mut counters, |at| {
            reads.push(at.get() % PAGE_BYTES);
            Cycles::new(10)
        });
        assert_eq!(reads, [0, 3 * 8, 511 * 8, 511 * 8]);
        assert_eq!(counters.iommu_walk_cycles, Cycles::new(40));
        for &page in &pages {
            translate(&mut iommu, page, &config, &mut counters);
        }
        assert_eq!((counters.iommu_reads, counters.iotlb_misses), (4 + 5, 6));
    }

    #[test]
    fn a_device_uses_the_old_translation_until_its_invalidation_has_ended() {
        for device_tlb in [0, 2] {
            let (mut iommu, mut counters) = (Iommu::default(), DeviceReport::default());
            let config = config(device_tlb);
            let page = iommu.map(Frame::new(7), tables()).unwrap();
            let mut now = |iommu: &mut Iommu| translate(iommu, page, &config, &mut counters);
            assert_eq!(now(&mut iommu), Some(Frame::new(7)));
            let mut told = DeviceReport::default();
            iommu.remap(page, Frame::new(8), Cycles::new(50), LATENCY, &mut told);
            iommu.work(Cycles::new(149), &mut told);
            assert_eq!(now(&mut iommu), Some(Frame::new(7)));
            assert_eq!(iommu.settles(page), Some(Cycles::new(150)));
            iommu.work(Cycles::new(150), &mut told);
            assert_eq!(iommu.settles(page), None);
            assert_eq!(now(&mut iommu), Some(Frame::new(8)));
            assert_eq!(
                (told.queued_invalidations, told.iotlb_invalidations),
                (1, 1)
            );
        }
    }

    #[test]
    fn batches_wait_once_and_strict_units_each_time() {
        for (strict, waits) in [(true, 600), (false, 2)] {
            let (mut iommu, mut counters) = (Iommu::default(), DeviceReport::default());
            let mut take = tables();
            for transfer in 0..600 {
                let page = iommu.map(Frame::new(transfer), &mut take).unwrap();
                iommu.unmap(&[page], unmapping(strict, Cycles::ZERO), &mut counters);
            }
            assert_eq!(counters.invalidation_wait_cycles, Cycles::new(100 * waits));
            // Addresses are used again once nothing of them is left.
            assert_eq!(iommu.used, if strict { 1 } else { BATCH as u64 });
        }
    }

    #[test]
    fn a_batch_ends_when_its_first_page_has_waited_long_enough() {
        let (mut iommu, mut counters) = (Iommu::default(), DeviceReport::default());
        let (config, mut take) = (config(0), tables());
        for start in [0, 600] {
            let page = iommu.map(Frame::new(start), &mut take).unwrap();
            translate(&mut iommu, page, &config, &mut counters);
            let now = Cycles::new(start.into());
            iommu.unmap(&[page], unmapping(false, now), &mut counters);
        }
        iommu.work(Cycles::new(999), &mut counters);
        assert_eq!((counters.iotlb_invalidations, iommu.free.len()), (0, 0));
        iommu.work(Cycles::new(1000), &mut counters);
        assert_eq!((counters.iotlb_invalidations, iommu.free.len()), (2, 2));
        assert_eq!(counters.invalidation_wait_cycles, Cycles::ZERO);
    }

    #[test]
    fn without_memory_for_tables_nothing_is_mapped_and_no_address_lost() {
        let mut iommu = Iommu::default();
        assert_eq!(iommu.map(Frame::new(1), || None), None);
        let page = iommu.map(Frame::new(1), tables()).unwrap();
        assert_eq!(page.0, TOP - 1);
    }

    proptest! {
        /// A settled unit translates to the frame that was mapped last, and no address serves twice.
        #[test]
        fn a_settled_unit_agrees_with_its_tables(
            steps in proptest::collection::vec((0_u8..4, 0_usize..8), 1..400),
            strict: bool,
            device_tlb in prop_oneof![Just(0_u32), Just(3)],
        ) {
            let (mut iommu, mut counters) = (Iommu::default(), DeviceReport::default());
            let (config, mut take) = (config(device_tlb), tables());
            let mut model: Vec<(DevicePage, Frame)> = Vec::new();
            let mut now = Cycles::ZERO;
            for (frame, (step, at)) in steps.into_iter().enumerate() {
                now += Cycles::new(40);
                iommu.work(now, &mut counters);
                let frame = Frame::new(frame as u32);
                match (step, at < model.len()) {
                    (0, _) => {
                        let page = iommu.map(frame, &mut take).unwrap();
                        prop_assert!(model.iter().all(|&(other, _)| other != page));
                        prop_assert_eq!(
                            translate(&mut iommu, page, &config, &mut counters),
                            Some(frame)
                        );
                        model.push((page, frame));
                    }
                    (1, true) => {
                        model[at].1 = frame;
                        iommu.remap(model[at].0, frame, now, LATENCY, &mut counters);
                    }
                    (2, true) => {
                        let (page, _) = model.remove(at);
                        // The kernel waits for what is queued before it unmaps.
                        iommu.work(now + LATENCY, &mut counters);
                        iommu.unmap(&[page], unmapping(strict, now), &mut counters);
                    }
                    (_, true) => {
                        let (page, frame) = model[at];
                        if iommu.settles(page).is_none() {
                            let found = translate(&mut iommu, page, &config, &mut counters);
                            prop_assert_eq!(found, Some(frame));
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
