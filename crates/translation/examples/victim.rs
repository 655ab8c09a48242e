//! A victim TLB (after Jouppi's victim cache, ISCA 1990): a small, fully associative array behind
//! the L2 TLB takes what the L2 TLB evicts. A hit there swaps the two entries.

use contigua_paging::{Leaf, MappingPolicy, SpaceId};
use contigua_state::State;
use contigua_translation::schemes::thp;
use contigua_translation::{
    BackgroundPass, Error, Evicted, Hardware, MemoryPort, Radix, Request, Scheme, Tables,
    Translation, Translator, TranslatorCounters, allows, page,
};
use contigua_units::{Cycles, VirtRange};
use serde::{Deserialize, Serialize};

/// The victim TLB, and the pages that the kernel uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "victim")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Entries of the victim TLB.
    #[schemars(range(min = 1, max = 1024))]
    pub entries: u32,
    /// Cycles of a hit there, beyond those of the L2 TLB.
    #[schemars(extend("maximum" = 1000))]
    pub latency_cycles: Cycles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            entries: 16,
            latency_cycles: Cycles::new(1),
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(VictimTlb {
            radix: Radix::new(hardware)?,
            victims: Vec::with_capacity(self.entries as usize),
            entries: self.entries as usize,
            latency: self.latency_cycles,
            hits: 0,
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }
}

#[derive(State)]
struct VictimTlb {
    radix: Radix,
    /// Last evicted first.
    victims: Vec<Evicted>,
    #[state(skip)]
    entries: usize,
    #[state(skip)]
    latency: Cycles,
    hits: u64,
}

impl VictimTlb {
    /// Fills the L2 TLB and keeps what it evicts.
    fn fill(&mut self, request: &Request, leaf: Leaf) {
        if let Some(evicted) = self.radix.fill(request, leaf) {
            self.victims.truncate(self.entries - 1);
            self.victims.insert(0, evicted);
        }
    }
}

impl Translator for VictimTlb {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        let covers = |victim: &Evicted| victim.covers(request.address, request.space);
        if let Some(at) = self.victims.iter().position(covers) {
            let leaf = self.victims.remove(at).leaf;
            // A store to a page that the entry does not let write walks, as from the L2 TLB.
            if allows(leaf, request.access) {
                self.hits += 1;
                self.radix.count_hit(leaf.size);
                self.fill(request, leaf);
                return page(leaf, self.radix.latency() + self.latency, false);
            }
        }
        match self.radix.walk(request, tables, port) {
            Ok((leaf, latency)) => {
                self.fill(request, leaf);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        self.victims.retain(|victim| !victim.overlaps(space, range));
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.victims.clear();
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        vec![("victim_hits", self.hits)]
    }

    fn reset_counters(&mut self) {
        self.hits = 0;
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// Page number, identifier of the space, frame, size and permissions, as in the L2 TLB.
        const ENTRY_BITS: u64 = 36 + 12 + 40 + 2 + 6;
        self.radix.storage_bits() + self.entries as u64 * ENTRY_BITS
    }
}
