//! Prediction of the offset between virtual and physical addresses (`SpOT`: Alverti, Psomadakis,
//! Karakostas, Gandhi and others, ISCA 2020), by the instruction that misses the L2 TLB.
//!
//! Memory that lies in few long runs has few offsets, and an instruction tends to stay in one run. A
//! prediction lets the access go on at once; the page walk behind it checks it and fills the TLBs. A wrong
//! one costs the walk and a flush of the pipeline. Offsets go from the program's addresses to the server's
//! memory, so that in a virtual machine a prediction hides the two-dimensional walk.
//!
//! The kernel places faults so that mappings become few runs (CA paging, `paging/src/offsets.rs`); so does a
//! host that uses this scheme. Simplified: the page table's bit that marks long runs, without which nothing
//! is entered, is found from the tables when an entry is made, and costs nothing; what a wrong prediction
//! reads in the caches is left out; walks behind right predictions take no bandwidth of memory. Instruction
//! fetches are not predicted.

use contigua_cache::Sets;
use contigua_paging::{Leaf, MappingPolicy, SpaceId};
use contigua_state::{Plain, State};
use contigua_translation::schemes::thp;
use contigua_translation::{
    Aside, BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables,
    Translation, Translator, TranslatorCounters, allows, page,
};
use contigua_units::{Cycles, PAGE_BYTES, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

/// Geometry of the table of offsets, and what a wrong prediction costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "spot")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Faults are placed at the offset of their mapping (CA paging, the paper's kernel half).
    pub ca_paging: bool,
    /// Entries of the table: 32 (the paper).
    #[schemars(range(min = 1, max = 4096))]
    pub entries: u32,
    /// Its ways: 4 (the paper).
    #[schemars(range(min = 1, max = 64))]
    pub ways: u32,
    /// Pages of the least run for which an entry is made: 32. Not in what of the paper the project has; chosen.
    #[schemars(range(min = 1, max = 512))]
    pub least_pages: u32,
    /// Confidence from which an entry predicts, of 3: an offset that was right twice more often than wrong. Not
    /// in what of the paper the project has; chosen.
    #[schemars(range(min = 0, max = 3))]
    pub confidence: u8,
    /// Cycles of a wrong prediction beside those of the walk: a flush of the pipeline, as of a branch that was
    /// mispredicted. Not in what of the paper the project has; chosen.
    #[schemars(extend("maximum" = 1000))]
    pub flush_cycles: Cycles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            ca_paging: true,
            entries: 32,
            ways: 4,
            least_pages: 32,
            confidence: 2,
            flush_cycles: Cycles::new(20),
        }
    }
}

/// The highest confidence, of two bits.
const CERTAIN: u8 = 3;
/// Bits of a block's number in that of an instruction begin here.
const BLOCK_SHIFT: u32 = 9;
/// Bits of a space's number in a key begin here.
const SPACE_SHIFT: u32 = 47;

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Spot {
            radix: Radix::new(hardware)?,
            offsets: Sets::new("spot.entries", self.entries.into(), self.ways)?,
            config: self.clone(),
            counters: Counters::default(),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        Box::new(thp::HugePages {
            keeps_offsets: self.ca_paging,
            ..thp::HugePages::new(&self.huge)
        })
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

/// Offset that an instruction accessed last, and how often it was right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Plain)]
struct Offset {
    /// Frame less page.
    pages: i64,
    confidence: u8,
}

impl Offset {
    /// Offset of a page around an address.
    fn of(leaf: Leaf, address: VirtAddr) -> i64 {
        let frame = leaf.physical(address).get() / PAGE_BYTES;
        frame.cast_signed() - address.page().get().cast_signed()
    }
}

#[derive(Clone, Copy, Debug, Default, Plain)]
struct Counters {
    right: u64,
    wrong: u64,
}

#[derive(State)]
struct Spot {
    radix: Radix,
    /// By instruction.
    offsets: Sets<Offset>,
    #[state(skip)]
    config: Config,
    counters: Counters,
}

/// Number and key of an instruction's entry. Numbers of instructions begin anew in each of the program's short
/// blocks, so blocks are mixed in, as the low bits of addresses would differ.
fn key(request: &Request) -> (u64, u64) {
    let number = request.instruction;
    let space = u64::from(request.space.0) << SPACE_SHIFT;
    (number ^ number >> BLOCK_SHIFT, number | space)
}

impl Spot {
    /// The offset that an instruction's entry predicts.
    fn predict(&mut self, request: &Request) -> Option<i64> {
        let (number, key) = key(request);
        let known = self.offsets.lookup(number, key)?;
        (known.confidence >= self.config.confidence).then_some(known.pages)
    }

    /// Learns from a walk.
    fn learn(&mut self, request: &Request, leaf: Leaf, tables: &Tables<'_>) {
        if request.instruction == 0 {
            return;
        }
        let pages = Offset::of(leaf, request.address);
        let (number, key) = key(request);
        if let Some(known) = self.offsets.peek_mut(number, key) {
            if known.pages == pages {
                known.confidence = CERTAIN.min(known.confidence + 1);
            } else if known.confidence > 0 {
                known.confidence -= 1;
            } else {
                *known = Offset {
                    pages,
                    confidence: 1,
                };
            }
        } else if self.is_in_long_run(request.address, leaf, pages, tables) {
            let confidence = 1;
            self.offsets
                .insert(number, key, Offset { pages, confidence });
        }
    }

    /// The run of pages around an address is as long as it must be for an entry.
    fn is_in_long_run(
        &self,
        address: VirtAddr,
        leaf: Leaf,
        offset: i64,
        tables: &Tables<'_>,
    ) -> bool {
        let least = u64::from(self.config.least_pages);
        let goes_on = |at: VirtAddr| {
            let next = tables.resolve(at);
            next.is_some_and(|next| Offset::of(next, at) == offset)
        };
        let mut pages = u64::from(leaf.size.frames());
        let (mut first, mut end) = (
            address.align_down(leaf.size.bytes()),
            address.align_down(leaf.size.bytes()) + leaf.size.bytes(),
        );
        while pages < least && goes_on(end) {
            (end, pages) = (end + PAGE_BYTES, pages + 1);
        }
        while pages < least && first.get() >= PAGE_BYTES {
            first = VirtAddr::new(first.get() - PAGE_BYTES);
            if !goes_on(first) {
                break;
            }
            pages += 1;
        }
        pages >= least
    }
}

impl Translator for Spot {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let predicted = self.predict(request);
        let is_right = predicted.is_some_and(|offset| {
            let found = tables.resolve(request.address);
            found.is_some_and(|leaf| {
                Offset::of(leaf, request.address) == offset && allows(leaf, request.access)
            })
        });
        let walked = if is_right {
            self.radix.walk(request, tables, &mut Aside(port))
        } else {
            self.radix.walk(request, tables, port)
        };
        let (leaf, latency) = match walked {
            Ok(found) => found,
            Err(fault) => return fault,
        };
        self.learn(request, leaf, tables);
        self.radix.fill(request, leaf);
        let latency = match predicted {
            Some(_) if is_right => {
                self.counters.right += 1;
                self.radix.latency()
            }
            Some(_) => {
                self.counters.wrong += 1;
                latency + self.config.flush_cycles
            }
            None => latency,
        };
        page(leaf, latency, true)
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        // A walk checks every prediction: what is old is wrong once.
        self.radix.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.offsets.clear();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("spot_right", self.counters.right),
            ("spot_wrong", self.counters.wrong),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// The instruction's address and its space, the offset in pages, and the confidence.
        const ENTRY_BITS: u64 = 48 + 12 + 41 + 2;
        self.radix.storage_bits() + u64::from(self.config.entries) * ENTRY_BITS
    }
}
