//! Direct Memory Translation (DMT: Zhang, Jia, Chai, Liu, Kim and Xu, ASPLOS 2024): the last page-table entries of
//! a mapping lie in a contiguous translation entry area (TEA), in the order of their addresses. Registers hold each
//! mapping's range and its area's first frame, so a miss of the L2 TLB reads the last entry alone. Pages of
//! 2 MB have an area of their own; entries of both sizes are read at once, and that of a page is waited for.
//! [`contigua_paging::Areas`] has the areas, and how they grow, are split and go.
//!
//! In a virtual machine both dimensions have registers: the host's entry for the guest's, the guest's, and the host's
//! for the page are read, three in all. A paravirtual guest (pvDMT) has its areas in memory that the host takes for
//! them, whose address registers tell: two. Without an area in either dimension, the walker of today's processors
//! walks the same tables; so it does when what registers tell is no page.
//!
//! Sources: the abstract, and the authors' kernel and page-walk model (`xlab-uiuc/dmt`: `linux/mm/hyperlane.c`,
//! `processor/Formula.cs`); the paper's text was not at hand. The kernel gives a mapping its area with the first page
//! table, of what `alloc_contig_pages` finds; that areas without such memory are split by halves is from memory, as are
//! the registers' widths. Simplified: nested virtualization (three levels) is left out, an area in which an entry is not
//! present faults without a walk, and look-ups of registers take no time (as in the authors' model).

use contigua_paging::{AreaShape, Leaf, MappingPolicy, PageTable, SpaceId};
use contigua_state::State;
use contigua_translation::schemes::thp::{self, Enabled};
use contigua_translation::{
    Access, BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables,
    Translation, Translator, TranslatorCounters, allows, behind, page,
};
use contigua_units::{Bytes, Cycles, PhysAddr, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

use crate::walker::{Found, Walked};

/// The areas, and their registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "dmt")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Registers of a hardware thread for each dimension, and so areas of a process: 16 (`HPL_SEG_LIMIT` of the
    /// authors' kernel).
    #[schemars(range(min = 1, max = 64))]
    pub registers: u32,
    /// Size of a mapping, or of mappings together, that is worth an area, and of what one that is split has at least:
    /// 64 MB (`HPL_VMA_THRESHOLD`; the kernel does not split).
    #[schemars(extend("x-minimum" = "2MiB", "x-maximum" = "1GiB", "x-power-of-two" = true))]
    pub least: Bytes,
    /// Part of a range, in percent, that mappings take which share an area: 98 (`HPL_MERGE_THRESHOLD`).
    #[schemars(range(min = 1, max = 100))]
    pub merge_percent: u32,
    /// In a virtual machine, the host takes the memory of the guest's areas (pvDMT).
    pub paravirtual: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            registers: 16,
            least: Bytes::new(64 << 20),
            merge_percent: 98,
            paravirtual: false,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Dmt {
            radix: Radix::new(hardware)?,
            start: hardware.walk_cache.start_cycles,
            counters: Counters::default(),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn areas(&self, is_guest: bool) -> Option<AreaShape> {
        Some(AreaShape {
            registers: self.registers,
            least: self.least.get(),
            merge_percent: self.merge_percent,
            has_huge: self.huge.enabled != Enabled::Never,
            is_in_host: is_guest && self.paravirtual,
        })
    }

    fn register_bits(&self) -> u64 {
        /// Range, first frame, size and state of an area; from memory.
        const REGISTER_BITS: u64 = 192;
        /// Sets of registers: of the host and of its guest.
        const SETS: u64 = 2;
        SETS * u64::from(self.registers) * REGISTER_BITS
    }
}

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Counters {
    /// Translations that registers told the way of.
    fetches: u64,
    /// Entries that they read one after another.
    steps: u64,
    /// Translations of the walker.
    walks: u64,
}

#[derive(State)]
struct Dmt {
    radix: Radix,
    /// Cycles of a walk beside its references.
    #[state(skip)]
    start: Cycles,
    counters: Counters,
}

/// Entries to read at once: one for each of two sizes, and of the host those for both.
#[derive(Clone, Copy, Default)]
struct Entries {
    list: [PhysAddr; 4],
    count: usize,
}

impl Entries {
    /// Those that registers tell for an address.
    fn of(table: &PageTable, address: VirtAddr) -> Self {
        let mut entries = Self::default();
        let told = table.areas();
        told.into_iter()
            .flat_map(|areas| areas.entries(address))
            .for_each(|entry| entries.push(entry));
        entries
    }

    /// Of those that registers tell, the one of the page that is there; all where none is.
    fn wanted(table: &PageTable, address: VirtAddr) -> Self {
        let mut entries = Self::default();
        let leaf = table.leaf(address);
        let areas = table.areas();
        match leaf.and_then(|leaf| areas?.entry(address, leaf.size)) {
            Some(entry) => entries.push(entry),
            None => return Self::of(table, address),
        }
        entries
    }

    /// Entries of a host's table for each of some entries of its guest's.
    fn around(&self, host: &PageTable, find: impl Fn(&PageTable, VirtAddr) -> Self) -> Self {
        let mut entries = Self::default();
        for &entry in self.get() {
            for &outer in find(host, inside(entry)).get() {
                entries.push(outer);
            }
        }
        entries
    }

    /// Places of a guest's entries in the host's memory, as far as it has mapped them.
    fn translated(&self, host: &PageTable) -> Self {
        let mut entries = Self::default();
        for &entry in self.get() {
            let at = inside(entry);
            if let Some(leaf) = host.leaf(at) {
                entries.push(leaf.physical(at));
            }
        }
        entries
    }

    fn push(&mut self, entry: PhysAddr) {
        self.list[self.count] = entry;
        self.count += 1;
    }

    fn get(&self) -> &[PhysAddr] {
        &self.list[..self.count]
    }
}

/// Returns true if registers tell the entry of what is mapped at an address, or that nothing is.
fn tell(table: &PageTable, address: VirtAddr) -> bool {
    table
        .areas()
        .is_some_and(|areas| match table.leaf(address) {
            Some(leaf) => areas.entry(address, leaf.size).is_some(),
            None => areas.entries(address).next().is_some(),
        })
}

/// A guest's address, as the host has it.
fn inside(address: PhysAddr) -> VirtAddr {
    VirtAddr::new(address.get())
}

impl Dmt {
    /// Reads entries at once, and waits for those that are wanted.
    fn read(
        &mut self,
        entries: &Entries,
        wanted: &Entries,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) {
        self.counters.steps += 1;
        self.radix.walker.counters.references += entries.count as u64;
        *latency += port.references_at_once(wanted.get());
        for &entry in entries.get() {
            if !wanted.get().contains(&entry) {
                port.reference_aside(entry);
            }
        }
    }

    /// Reads what registers tell; `latency` grows by the time. None where they tell nothing.
    fn fetch(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Option<Walked> {
        let address = request.address;
        let told = Entries::of(tables.table, address);
        let areas = tables.table.areas().filter(|_| told.count > 0)?;
        let is_in_host = areas.shape().is_in_host;
        let wanted = Entries::wanted(tables.table, address);
        let (mut entries, mut needed) = (told, wanted);
        if let Some(host) = &tables.host {
            let page = tables
                .table
                .leaf(address)
                .map(|leaf| leaf.physical(address));
            let is_told = |&at: &PhysAddr| tell(host.table, inside(at));
            if !page.iter().all(is_told) || !is_in_host && !told.get().iter().all(is_told) {
                return None;
            }
            if !is_in_host {
                let all = told.around(host.table, Entries::of);
                let first = wanted.around(host.table, Entries::wanted);
                self.read(&all, &first, port, latency);
            }
            (entries, needed) = (told.translated(host.table), wanted.translated(host.table));
            // The host maps what it lends; of the guest's own memory, it may not have mapped an area yet.
            if entries.count < told.count {
                let missing = |at: &&PhysAddr| host.table.leaf(inside(**at)).is_none();
                let host = told.get().iter().find(missing).copied();
                return Some(Walked::Fault { host });
            }
        }
        self.read(&entries, &needed, port, latency);
        if tables.table.leaf(address).is_some() && !tell(tables.table, address) {
            return None;
        }
        Some(self.page(request, tables, port, latency))
    }

    /// The page that the process's entry maps, and the host's around it.
    fn page(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
        latency: &mut Cycles,
    ) -> Walked {
        let store = request.access == Access::Write;
        let walk = tables.table.walk_and_mark(request.address, store);
        self.radix.walker.counters.pages_marked += u64::from(walk.marked);
        let Some(leaf) = walk.leaf.filter(|&leaf| allows(leaf, request.access)) else {
            return Walked::Fault { host: None };
        };
        // The first store must come back here, to mark the page as dirty.
        let writable = leaf.writable && leaf.dirty;
        let guest = Leaf { writable, ..leaf };
        let Some(host) = &mut tables.host else {
            return Walked::Found(Found { guest, host: None });
        };
        let at = guest.physical(request.address);
        let all = Entries::of(host.table, inside(at));
        let last = Entries::wanted(host.table, inside(at));
        self.read(&all, &last, port, latency);
        // The host maps guest memory for reading and writing: all of it is dirty to it.
        match host.table.walk_and_mark(inside(at), true).leaf {
            Some(page) => Walked::Found(Found {
                guest,
                host: Some(page),
            }),
            None => Walked::Fault { host: Some(at) },
        }
    }
}

impl Translator for Dmt {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let mut read = self.start;
        let found = if let Some(walked) = self.fetch(request, tables, port, &mut read) {
            self.counters.fetches += 1;
            let latency = self.radix.latency() + read;
            self.radix.finish(walked, request, tables, port, latency)
        } else {
            self.counters.walks += 1;
            // What was read in vain is waited for, too; the walker has a start of its own.
            let vain = read - self.start;
            behind(vain, self.radix.walk(request, tables, port))
        };
        match found {
            Ok((leaf, latency)) => {
                self.radix.fill(request, leaf);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.radix.flush();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("dmt_fetches", self.counters.fetches),
            ("dmt_steps", self.counters.steps),
            ("dmt_walks", self.counters.walks),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        self.radix.storage_bits()
    }
}
