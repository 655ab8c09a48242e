//! Prefetching of page-table entries (ASAP: Margaritov, Ustiugov, Bugnion and Grot, MICRO 2019): the last two
//! levels of a mapping's page table lie in memory in the order of its addresses, so registers with the range and
//! its tables' first addresses tell where the entries are. They are read at once when the L2 TLB misses, while
//! the walker goes through the levels above; it finds them in the caches then.
//!
//! In a virtual machine both dimensions have registers. The guest's entries, and the host's that lead to them, are
//! read first; the host's entries for the page itself as soon as its address is known.
//!
//! Simplified: every mapping has a register (the paper finds that few hold nearly all of a program's memory), and
//! the entries are where the kernel put them: what the order of tables asks of memory is not taken from the
//! server. Where page-walk caches leave one entry to read, nothing is prefetched. Otherwise the walk begins when the
//! prefetched entries are there, which the paper's walker does not wait for; the first entry that it reads
//! above them is among those read at once instead, and it reads none of them again.

use contigua_paging::{MappingPolicy, SpaceId};
use contigua_state::State;
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables, Translation,
    Translator, TranslatorCounters, behind, page,
};
use contigua_units::{Cycles, PhysAddr, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

/// Levels that are prefetched, and the registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "asap")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Levels of a table that are prefetched, the last one first: 2 (the paper).
    #[schemars(range(min = 1, max = 2))]
    pub levels: u32,
    /// Registers of a hardware thread, which cost bits only. Not in what of the paper the project has; chosen.
    #[schemars(range(min = 1, max = 64))]
    pub registers: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            levels: 2,
            registers: 8,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Asap {
            radix: Radix::new(hardware)?,
            levels: self.levels as usize,
            prefetches: 0,
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn register_bits(&self) -> u64 {
        /// First and last page, and the first frame of the tables of either level.
        const RANGE_BITS: u64 = 36 + 36 + 2 * 40;
        u64::from(self.registers) * RANGE_BITS
    }
}

#[derive(State)]
struct Asap {
    radix: Radix,
    #[state(skip)]
    levels: usize,
    prefetches: u64,
}

/// Entries to read at once: two levels and one above, in both dimensions.
#[derive(Default)]
struct Entries {
    list: [PhysAddr; 9],
    count: usize,
}

impl Entries {
    fn push(&mut self, address: PhysAddr) {
        self.list[self.count] = address;
        self.count += 1;
    }

    fn get(&self) -> &[PhysAddr] {
        &self.list[..self.count]
    }

    /// Those of a walk that caches do not save: the first one, and the last levels.
    fn of(references: &[PhysAddr], skipped: usize, deep: usize) -> Self {
        let mut entries = Self::default();
        for (depth, &reference) in references.iter().enumerate().skip(skipped) {
            if depth == skipped || depth >= deep {
                entries.push(reference);
            }
        }
        entries
    }
}

/// A walk's way to the entries that were not prefetched.
struct Rest<'a> {
    port: &'a mut dyn MemoryPort,
    entries: &'a Entries,
}

impl MemoryPort for Rest<'_> {
    fn reference(&mut self, address: PhysAddr) -> Cycles {
        if self.entries.get().contains(&address) {
            return Cycles::ZERO;
        }
        self.port.reference(address)
    }
}

impl Asap {
    /// Reads the entries that registers tell; how long until the last one is there.
    fn prefetch(
        &mut self,
        request: &Request,
        tables: &Tables<'_>,
        port: &mut dyn MemoryPort,
        read: &mut Entries,
    ) -> Cycles {
        let address = request.address;
        let walker = &mut self.radix.walker;
        let levels = tables.table.levels();
        let walk = tables.table.walk(address);
        let skipped = walker.cache.lookup(address, request.space, levels);
        let deep = levels.count() - self.levels;
        let guest = Entries::of(walk.references(), skipped, deep);
        let Some(host) = &tables.host else {
            return self.read(&guest, port, read);
        };
        let mut first = Entries::default();
        for &entry in guest.get() {
            let at = VirtAddr::new(entry.get());
            let outer = host.table.walk(at);
            if let (Some(leaf), Some(&last)) = (outer.leaf, outer.references().last()) {
                first.push(last);
                first.push(leaf.physical(at));
            }
        }
        let mut second = Entries::default();
        if let Some(leaf) = walk.leaf {
            let at = leaf.physical(address);
            let levels = host.table.levels();
            let skipped = walker.host_skips(at, levels);
            let outer = host.table.walk(VirtAddr::new(at.get()));
            second = Entries::of(outer.references(), skipped, levels.count() - self.levels);
        }
        self.read(&first, port, read) + self.read(&second, port, read)
    }

    /// Reads several entries at once; one alone the walker reads as soon.
    fn read(&mut self, entries: &Entries, port: &mut dyn MemoryPort, read: &mut Entries) -> Cycles {
        if entries.count < 2 {
            return Cycles::ZERO;
        }
        self.prefetches += entries.count as u64;
        for &entry in entries.get() {
            read.push(entry);
        }
        port.references_at_once(entries.get())
    }
}

impl Translator for Asap {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let mut entries = Entries::default();
        let waited = self.prefetch(request, tables, port, &mut entries);
        let mut rest = Rest {
            port,
            entries: &entries,
        };
        match behind(waited, self.radix.walk(request, tables, &mut rest)) {
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
        vec![("asap_prefetches", self.prefetches)]
    }

    fn reset_counters(&mut self) {
        self.prefetches = 0;
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        self.radix.storage_bits()
    }
}
