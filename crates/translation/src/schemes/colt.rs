//! `CoLT` (Pham, Vaidyanathan, Jaleel and Bhattacharjee, MICRO 2012), its set-associative form: an
//! entry of the L2 TLB holds a run of neighbouring 4 KB pages that are contiguous in memory too.
//! The walker finds the run among the eight entries of the cache line that it reads anyway.
//!
//! The paper coalesces in the first level as well; here the first level stays as the machine has
//! it, so that schemes differ in what answers its misses.

use contigua_cache::Sets;
use contigua_paging::{CollapseContext, FaultContext, Leaf, MappingPolicy};
use contigua_units::{Cycles, Frame, PAGE_BYTES, PageSize, VirtAddr};
use serde::{Deserialize, Serialize};

use super::thp::{self, HugePages};
use super::{BackgroundPass, Scheme};
use crate::radix::{allows, group_of, page};
use crate::{
    Error, Hardware, MemoryPort, Radix, Request, SpaceId, Tables, Translation, Translator,
    TranslatorCounters, VirtRange,
};

/// How long runs may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "colt")
)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where huge pages are used; nowhere, unless said otherwise.
    pub huge: thp::Config,
    /// log2 of the pages that share a set, and so of the longest run: 2, as the paper finds best.
    pub run_log2: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config {
                enabled: thp::Enabled::Never,
                ..thp::Config::default()
            },
            run_log2: 2,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        // A cache line has eight entries.
        let run = self.run_log2.min(3);
        let l2 = hardware
            .tlb
            .l2
            .iter()
            .find(|l2| l2.holds.contains(&PageSize::Size4K));
        let (entries, ways) = l2.map_or((1, 1), |l2| (l2.entries, l2.ways));
        Ok(Box::new(Colt {
            radix: Radix::new(hardware)?,
            runs: Sets::new("tlb.l2", u64::from(entries), ways)?,
            run,
            counters: Counters::default(),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(Policy(HugePages::new(&self.huge)))
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

struct Policy(HugePages);

impl MappingPolicy for Policy {
    fn on_fault(&self, context: &FaultContext) -> PageSize {
        self.0.on_fault(context)
    }

    fn collapse(&self, context: &CollapseContext) -> bool {
        self.0.collapse(context)
    }
}

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Counters {
    run_hits: u64,
    runs_entered: u64,
    pages_coalesced: u64,
}

/// A run: which pages of the group, and the frame that the group's first page would have.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Run {
    pages: u8,
    writable: bool,
    /// Modulo 2^32: the group's first page need not be part of the run.
    origin: u32,
}

#[derive(contigua_state::State)]
struct Colt {
    /// 2 MB and 1 GB pages; its walker.
    radix: Radix,
    /// 4 KB pages: runs of one or more, in sets that are chosen by group.
    runs: Sets<Run>,
    #[state(skip)]
    run: u32,
    counters: Counters,
}

const SPACE_SHIFT: u32 = 45;

impl Colt {
    /// A run is kept under its group and its first page.
    fn key(&self, space: SpaceId, group: u64, first: u32) -> u64 {
        (group << self.run | u64::from(first)) | u64::from(space.0) << SPACE_SHIFT
    }

    fn group(&self, address: VirtAddr) -> u64 {
        address.page().get() >> self.run
    }

    fn lookup(&mut self, address: VirtAddr, space: SpaceId) -> Option<Leaf> {
        let (_, part) = group_of(address, self.run);
        let group = self.group(address);
        for first in 0..=part {
            let key = self.key(space, group, first);
            if let Some(run) = self.runs.lookup(group, key)
                && run.pages >> part & 1 != 0
            {
                let frame = Frame::new(run.origin.wrapping_add(part));
                return Some(Leaf::new(frame, PageSize::Size4K, run.writable));
            }
        }
        None
    }

    /// Removes every run of a group that has pages within a range.
    fn remove(&mut self, space: SpaceId, range: VirtRange) {
        let run = self.run;
        self.runs.remove_if(|key, entry| {
            let first_page = (key & ((1 << SPACE_SHIFT) - 1)) >> run << run;
            let touches = |part: u64| {
                entry.pages >> part & 1 != 0
                    && range.contains(VirtAddr::new((first_page + part) * PAGE_BYTES))
            };
            key >> SPACE_SHIFT == u64::from(space.0) && (0..1 << run).any(touches)
        });
    }

    /// Removes what one group has.
    fn remove_group(&mut self, address: VirtAddr, space: SpaceId) {
        let group = self.group(address);
        for first in 0..1 << self.run {
            let key = self.key(space, group, first);
            self.runs.remove(group, key);
        }
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
        let pages = ((1_u32 << end) - (1 << first)) as u8;
        self.counters.runs_entered += 1;
        self.counters.pages_coalesced += u64::from(end - first - 1);
        let group = self.group(address);
        // A shorter run of the same pages may be there, from when less was mapped.
        for other in first..end {
            let key = self.key(space, group, other);
            self.runs.remove(group, key);
        }
        let run = Run {
            pages,
            writable: leaf.writable,
            origin,
        };
        self.runs.insert(group, self.key(space, group, first), run);
    }
}

impl Translator for Colt {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let latency: Cycles = self.radix.l2.latency();
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
        match self.radix.walk_only(request, tables, port) {
            Ok((leaf, latency)) => {
                if leaf.size == PageSize::Size4K {
                    self.enter(request, leaf, tables);
                } else {
                    self.radix.l2.insert(request.address, request.space, leaf);
                }
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        if range.bytes() <= PAGE_BYTES {
            self.remove_group(range.start, space);
        } else {
            self.remove(space, range);
        }
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.runs.clear();
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
        // The L2 TLB's entries, each with a bit for every page of a run; simulated in two arrays,
        // built as one.
        self.radix.storage_bits() + (self.runs.capacity() as u64) * (1 << self.run)
    }
}
