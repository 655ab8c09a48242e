//! Redundant memory mappings (Karakostas, Gandhi, Ayar and others, ISCA 2015): a TLB of ranges
//! beside the L2 TLB. A range is any run of pages that is contiguous in both address spaces and
//! has one permission, however long.
//!
//! The paper's kernel allocates eagerly, so that mappings become few ranges. Here memory is taken
//! as the placement gives it, 2 MB at a time where it can, and ranges are what becomes of that.
//! As in the paper, the range table is walked in the background of the page walk, so it takes
//! time from nobody.

use std::collections::BTreeMap;

use contigua_paging::{Leaf, MappingPolicy};
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr};
use serde::{Deserialize, Serialize};

use super::thp;
use super::{BackgroundPass, Scheme};
use crate::radix::{Radix, allows, page};
use crate::{
    Error, Hardware, MemoryPort, Request, SpaceId, Tables, Translation, Translator,
    TranslatorCounters, VirtRange,
};

/// Number of ranges that the hardware keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "range")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Entries of the range TLB, fully associative: 32 (the paper, section 4.1).
    #[schemars(range(min = 1, max = 1024))]
    pub entries: u32,
    /// The least length of a range that is kept, in 4 KB pages.
    #[schemars(range(min = 1, max = 262_144))]
    pub least_pages: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            entries: 32,
            least_pages: 8,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(RangeTlb {
            radix: Radix::new(hardware)?,
            ranges: Vec::with_capacity(self.entries as usize),
            table: BTreeMap::new(),
            config: self.clone(),
            hits: 0,
            fills: 0,
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

/// A range of pages, and the frame of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
struct Range {
    space: SpaceId,
    start: VirtAddr,
    end: VirtAddr,
    frame: u32,
    writable: bool,
}

impl Range {
    fn leaf(&self, address: VirtAddr) -> Leaf {
        let pages = (address.align_down(PAGE_BYTES) - self.start) / PAGE_BYTES;
        let frame = contigua_units::Frame::new(self.frame + pages as u32);
        Leaf::new(frame, PageSize::Size4K, self.writable)
    }

    fn covers(&self, address: VirtAddr, space: SpaceId) -> bool {
        self.space == space && self.start <= address && address < self.end
    }
}

#[derive(contigua_state::State)]
struct RangeTlb {
    radix: Radix,
    /// Most recently used first.
    ranges: Vec<Range>,
    /// The range table: what is known of each space, by first address. It is filled when it is
    /// asked, and forgets what is invalidated, so what it says is always true.
    table: BTreeMap<(SpaceId, VirtAddr), Range>,
    #[state(skip)]
    config: Config,
    hits: u64,
    fills: u64,
}

impl RangeTlb {
    fn lookup(&mut self, address: VirtAddr, space: SpaceId) -> Option<Range> {
        let at = self
            .ranges
            .iter()
            .position(|range| range.covers(address, space))?;
        self.ranges[..=at].rotate_right(1);
        Some(self.ranges[0])
    }

    /// The longest range around a page that was just translated, from the table.
    fn find(&mut self, request: &Request, leaf: Leaf, tables: &Tables<'_>) -> Option<Range> {
        let Request { address, space, .. } = *request;
        let known = self.table.range(..=(space, address)).next_back();
        if let Some((_, range)) = known.filter(|(_, range)| range.covers(address, space)) {
            return (range.writable == leaf.writable).then_some(*range);
        }
        // Whole pages of the guest at a time; a host's are not looked at.
        if tables.host.is_some() {
            return None;
        }
        let start = address.align_down(leaf.size.bytes());
        let same = |at: VirtAddr, frame: Option<u32>| {
            let next = tables.table.leaf(at)?;
            let fits = Some(next.frame.get()) == frame
                && next.perforation.is_none()
                && next.accessed
                && (next.writable && next.dirty) == leaf.writable;
            fits.then_some(next)
        };
        let mut range = Range {
            space,
            start,
            end: start + leaf.size.bytes(),
            frame: leaf.frame.get(),
            writable: leaf.writable,
        };
        loop {
            let pages = (range.end - range.start) / PAGE_BYTES;
            match same(range.end, range.frame.checked_add(pages as u32)) {
                Some(next) if range.end.is_aligned(next.size.bytes()) => {
                    range.end = range.end + next.size.bytes();
                }
                _ => break,
            }
        }
        while let Some(before) = range.start.get().checked_sub(PAGE_BYTES) {
            let before = VirtAddr::new(before);
            let Some(previous) = tables.table.leaf(before) else {
                break;
            };
            let first = before.align_down(previous.size.bytes());
            let frame = range.frame.checked_sub(previous.size.frames());
            if same(first, frame).is_none() {
                break;
            }
            range.start = first;
            range.frame = previous.frame.get();
        }
        let pages = (range.end - range.start) / PAGE_BYTES;
        if pages < self.config.least_pages {
            return None;
        }
        // Shorter ranges may be known from when less was mapped.
        let whole = VirtRange::new(range.start, range.end);
        self.forget(space, whole);
        self.table.insert((space, range.start), range);
        Some(range)
    }

    fn forget(&mut self, space: SpaceId, range: VirtRange) {
        let overlaps = |known: &Range| {
            known.space == space && known.start < range.end && known.end > range.start
        };
        self.ranges.retain(|known| !overlaps(known));
        // Ranges of the table do not overlap: at most one begins before.
        let before = self.table.range(..(space, range.start)).next_back();
        let first = before
            .filter(|(_, known)| overlaps(known))
            .map(|(&key, _)| key);
        let inside = self.table.range((space, range.start)..(space, range.end));
        let keys: Vec<_> = first
            .into_iter()
            .chain(inside.map(|(&key, _)| key))
            .collect();
        for key in keys {
            self.table.remove(&key);
        }
    }
}

impl Translator for RangeTlb {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let latency = self.radix.l2.latency();
        // Both are looked up at once.
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, latency, false);
        }
        if let Some(range) = self.lookup(request.address, request.space) {
            let leaf = range.leaf(request.address);
            if allows(leaf, request.access) {
                self.hits += 1;
                return page(leaf, latency, false);
            }
        }
        match self.radix.walk(request, tables, port) {
            Ok((leaf, latency)) => {
                self.radix.fill(request, leaf);
                // A store may have made the page writable, or dirty.
                if let Some(known) = self.lookup(request.address, request.space)
                    && known.writable != leaf.writable
                {
                    self.forget(
                        request.space,
                        VirtRange::page_around(request.address, PageSize::Size4K),
                    );
                }
                if self.lookup(request.address, request.space).is_none()
                    && let Some(range) = self.find(request, leaf, tables)
                {
                    self.fills += 1;
                    self.ranges.truncate(self.config.entries as usize - 1);
                    self.ranges.insert(0, range);
                }
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        self.forget(space, range);
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.ranges.clear();
        self.table.clear();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![("range_hits", self.hits), ("range_fills", self.fills)]
    }

    fn reset_counters(&mut self) {
        self.hits = 0;
        self.fills = 0;
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// First and last page, frame, and permissions.
        const RANGE_BITS: u64 = 36 + 36 + 12 + 40 + 6;
        self.radix.storage_bits() + u64::from(self.config.entries) * RANGE_BITS
    }
}
