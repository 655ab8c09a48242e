//! An open hashed page table without page-walk caches ("Hash, Don't Cache (the Page Table)": Yaniv and Tsafrir,
//! SIGMETRICS 2016): one contiguous table of lines of 64 bytes with a tag and the entries of eight neighboring
//! pages. A walk reads the line that a hash tells, and the next ones until it finds the page's or a free one;
//! half full, the table has nearly all lines where they are sought. [`contigua_paging::Hashed`] has the table.
//!
//! The table is taken from the server before the first page is mapped; without contiguous memory for it, the
//! program does not begin. When it is full, memory has run out.
//!
//! Simplified: each process has a table of its own, and another one of at most 1 MB for pages of 2 MB, for which the
//! paper has no place; where there are such pages, it is searched after the first. In virtual machines the host has a tree.

use contigua_paging::{Hashing, MappingPolicy, SpaceId};
use contigua_state::State;
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables, Translation,
    Translator, TranslatorCounters, page,
};
use contigua_units::{Bytes, Cycles, LINE_BYTES, PAGE_BYTES, PageSize, PhysAddr, VirtRange};
use serde::{Deserialize, Serialize};

/// The table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "hdc")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Size of the table: 16 MB, half full with 4 GB of neighboring pages of 4 KB (the
    /// paper's load is 1/2, cited from memory).
    #[schemars(extend("x-minimum" = "4KiB", "x-maximum" = "1GiB", "x-power-of-two" = true))]
    pub size: Bytes,
    /// Cycles of the hash function. As of `ecpt`; chosen.
    #[schemars(extend("maximum" = 1000))]
    pub hash_cycles: Cycles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            size: Bytes::new(16 << 20),
            hash_cycles: Cycles::new(2),
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Hdc {
            radix: Radix::new(hardware)?,
            begun: hardware.walk_cache.start_cycles + self.hash_cycles,
            reads: 0,
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn hashing(&self) -> Option<Hashing> {
        let pages = self.size.get().div_ceil(PAGE_BYTES);
        Some(Hashing {
            ways: 1,
            lines: pages * (PAGE_BYTES / LINE_BYTES),
            chunk: None,
            full: 100,
        })
    }

    fn register_bits(&self) -> u64 {
        /// First frame and size of a table.
        const TABLE_BITS: u64 = 40 + 5;
        2 * TABLE_BITS
    }
}

#[derive(State)]
struct Hdc {
    radix: Radix,
    #[state(skip)]
    begun: Cycles,
    reads: u64,
}

/// Lines of a look-up that are kept; of longer ones, which a table near its end has, only these are read.
const MOST_LINES: usize = 64;

/// The lines that a walk reads, one after another.
fn lines(request: &Request, tables: &Tables<'_>, lines: &mut [PhysAddr; MOST_LINES]) -> usize {
    let Some(hashed) = tables.table.hashed() else {
        return 0;
    };
    let address = request.address;
    let is_huge = hashed.place(address, PageSize::Size4K).is_none();
    let huge = PageSize::ALL[1..].iter().copied();
    let huge = huge.filter(|&size| is_huge && hashed.has(size));
    let sizes = std::iter::once(PageSize::Size4K).chain(huge);
    let all = sizes.flat_map(|size| hashed.chain(address, size));
    let mut count = 0;
    for (place, line) in lines.iter_mut().zip(all) {
        *place = line;
        count += 1;
    }
    count
}

impl Hdc {
    fn walk(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let mut list = [PhysAddr::new(0); MOST_LINES];
        let count = lines(request, tables, &mut list);
        self.reads += count as u64;
        let mut begun = self.begun;
        let (last, before) = match list[..count].split_last() {
            Some((last, before)) => (std::slice::from_ref(last), before),
            None => (&[][..], &[][..]),
        };
        for &line in before {
            if let Err(fault) = self.radix.read(line, &mut begun, tables, port) {
                return fault;
            }
        }
        match self.radix.probe(request, last, begun, tables, port) {
            Ok((leaf, latency)) => {
                self.radix.fill(request, leaf);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }
}

impl Translator for Hdc {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        match self.radix.look_up(request) {
            Some(leaf) => page(leaf, self.radix.latency(), false),
            None => self.walk(request, tables, port),
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
        vec![("hdc_reads", self.reads)]
    }

    fn reset_counters(&mut self) {
        self.reads = 0;
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        self.radix.storage_bits_without_walk_caches()
    }
}
