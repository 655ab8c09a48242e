//! `CoLT` (Pham, Vaidyanathan, Jaleel and Bhattacharjee, MICRO 2012), its set-associative form: an
//! entry of the L2 TLB holds a run of neighboring 4 KB pages that are contiguous in memory too.
//! The walker finds the run among the eight entries of the cache line that it reads anyway.
//!
//! The paper coalesces in the first level as well; here the first level stays as the machine has
//! it, so that schemes differ in what answers its misses.

use contigua_paging::{Leaf, MappingPolicy};
use contigua_units::{Frame, PAGE_BYTES, PageSize, VirtAddr};
use serde::{Deserialize, Serialize};

use super::thp;
use super::{BackgroundPass, Scheme};
use crate::radix::{allows, group_of, page};
use crate::tlb::{Entry, Kind};
use crate::{
    Error, Hardware, MemoryPort, Radix, Request, SpaceId, Tables, Translation, Translator,
    TranslatorCounters, VirtRange,
};

/// Length of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "colt")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages; none by default.
    pub huge: thp::Config,
    /// log2 of the pages that share a set, and so of the longest run: 2, as the paper finds best.
    #[schemars(range(min = 0, max = 3))]
    pub run_log2: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::never(),
            run_log2: 2,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Colt {
            radix: Radix::with_groups(hardware, self.run_log2)?,
            run: self.run_log2,
            counters: Counters::default(),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Counters {
    run_hits: u64,
    runs_entered: u64,
    pages_coalesced: u64,
}

#[derive(contigua_state::State)]
struct Colt {
    /// Its L2 TLB holds runs of one or more 4 KB pages in the array for 4 KB pages, beside the
    /// larger pages that share it.
    radix: Radix,
    #[state(skip)]
    run: u32,
    counters: Counters,
}

impl Colt {
    fn kind(&self) -> Kind {
        Kind::Run(self.run)
    }

    /// A run is kept under its first page, in the set of its group.
    fn lookup(&mut self, address: VirtAddr, space: SpaceId) -> Option<Leaf> {
        let (start, part) = group_of(address, self.run);
        let kind = self.kind();
        let array = self.radix.l2.array(PageSize::Size4K)?;
        for first in 0..=part {
            let first = start + u64::from(first) * PAGE_BYTES;
            if let Some(entry) = array.lookup(first, space, kind)
                && entry.run >> part & 1 != 0
            {
                let frame = Frame::new(entry.frame.get().wrapping_add(part));
                return Some(Leaf::new(frame, PageSize::Size4K, entry.writable));
            }
        }
        None
    }

    /// Removes the runs of a group that begin with the pages `first` to `end`.
    fn remove(&mut self, group: VirtAddr, space: SpaceId, pages: std::ops::Range<u32>) {
        let kind = self.kind();
        if let Some(array) = self.radix.l2.array(PageSize::Size4K) {
            for page in pages {
                array.remove(group + u64::from(page) * PAGE_BYTES, space, kind);
            }
        }
    }

    /// Removes all runs of the group around an address.
    fn remove_group(&mut self, address: VirtAddr, space: SpaceId) {
        let (start, _) = group_of(address, self.run);
        self.remove(start, space, 0..1 << self.run);
    }

    /// Enters the run around an address, as the tables have it.
    fn enter(&mut self, request: &Request, leaf: Leaf, tables: &Tables<'_>) {
        let Request { address, space, .. } = *request;
        let (start, part) = group_of(address, self.run);
        let origin = leaf.frame.get().wrapping_sub(part);
        let belongs = |other: u32| {
            other == part
                || tables
                    .resolve(start + u64::from(other) * PAGE_BYTES)
                    .is_some_and(|page| {
                        page.frame.get() == origin.wrapping_add(other)
                            && (page.writable && page.dirty) == leaf.writable
                            && page.accessed
                    })
        };
        let mut first = part;
        while first > 0 && belongs(first - 1) {
            first -= 1;
        }
        let mut end = part + 1;
        while end < 1 << self.run && belongs(end) {
            end += 1;
        }
        self.counters.runs_entered += 1;
        self.counters.pages_coalesced += u64::from(end - first - 1);
        // A shorter run of the same pages may be there, from when less was mapped.
        self.remove(start, space, first..end);
        let kind = self.kind();
        if let Some(array) = self.radix.l2.array(PageSize::Size4K) {
            let entry = Entry {
                frame: Frame::new(origin),
                run: ((1_u32 << end) - (1 << first)) as u8,
                ..Entry::of(leaf)
            };
            array.insert(start + u64::from(first) * PAGE_BYTES, space, kind, entry);
        }
    }
}

impl Translator for Colt {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let latency = self.radix.latency();
        if let Some(leaf) = self.lookup(request.address, request.space) {
            if allows(leaf, request.access) {
                self.counters.run_hits += 1;
                self.radix.walker.counters.hit(PageSize::Size4K);
                return page(leaf, latency, false);
            }
            self.remove_group(request.address, request.space);
        } else if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, latency, false);
        }
        match self.radix.walk(request, tables, port) {
            Ok((leaf, latency)) => {
                if leaf.size == PageSize::Size4K {
                    self.enter(request, leaf, tables);
                } else {
                    self.radix.fill(request, leaf);
                }
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        // The L2 TLB removes the runs in longer ranges itself.
        if range.bytes() <= PAGE_BYTES {
            self.remove_group(range.start, space);
        }
    }

    fn flush(&mut self) {
        self.radix.flush();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("run_hits", self.counters.run_hits),
            ("runs_entered", self.counters.runs_entered),
            ("pages_coalesced", self.counters.pages_coalesced),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        // A bit for every page of a run in each entry that can hold one.
        self.radix.storage_bits() + (self.radix.l2.capacity_for(PageSize::Size4K) << self.run)
    }
}
