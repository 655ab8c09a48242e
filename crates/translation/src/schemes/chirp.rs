//! Replacement of L2 TLB entries by control-flow signatures (`CHiRP`: Mirbagher-Ajorpaz, Garza, Pokam and Jiménez, MICRO
//! 2020): an entry that is predicted not to be used again goes before the least recently used one.
//!
//! An access to the L2 TLB has a *signature*: the instruction, the instructions of the last 16 accesses, and the last
//! eight conditional and eight indirect branches. It chooses one of 4,096 counters of two bits. An entry keeps the
//! signature of its last access; when it goes without ever having been used, that signature's counter rises, and at its
//! first use it falls. From a threshold on, entries of the signature are *dead*: of a set's dead entries the least
//! recently used one goes first. Later uses change signature and prediction, and train nothing.
//!
//! Histories are the paper's from memory, whose text was not at hand (two bits of an instruction's address for each access,
//! shifted by four; bits 4 to 11 of a branch's address); how entries are trained is as an open simulator (Virtuoso) has
//! it. Where a value says so, it was chosen.
//!
//! Simplified: instructions have numbers in place of addresses, which are mixed first; that of a fetch is its page's. A
//! branch's address is that behind it. How 64 bits become a signature of 16 is ours. Returns are not among the
//! branches. What data prefetchers translate ahead has no signature: it trains nothing, and is not dead. All sizes of
//! pages that share an array are treated alike.

use contigua_cache::Sets;
use contigua_paging::{Leaf, MappingPolicy, SpaceId};
use contigua_state::{Plain, State};
use contigua_translation::schemes::thp;
use contigua_translation::{
    Access, BackgroundPass, Error, Hardware, MemoryPort, Radix, Request, Scheme, Tables,
    Translation, Translator, TranslatorCounters, page,
};
use contigua_units::{PAGE_BYTES, PageSize, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

use crate::tlb::Kind;

/// Table of counters, and from when entries are dead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "chirp")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages.
    pub huge: thp::Config,
    /// Counters, of two bits: 4,096, from memory.
    #[schemars(range(min = 1, max = 65_536))]
    pub counters: u32,
    /// Counter from which entries are dead; at 4, none are. Chosen.
    #[schemars(range(min = 1, max = 4))]
    pub threshold: u8,
    /// Branches are part of signatures.
    pub branches: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::default(),
            counters: 4096,
            threshold: 2,
            branches: true,
        }
    }
}

/// Fibonacci hashing: the product's high bits depend on all of a number's. Halves of a history must not be folded onto
/// each other, since a loop with a power of two of branches makes them equal.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
/// The highest counter, of two bits.
const MOST: u8 = 3;
/// Bits of a space's number in a key begin here, and those of a size.
const SPACE_SHIFT: u32 = 45;
const SIZE_SHIFT: u32 = SPACE_SHIFT + 16;

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        let mut holder = [None; PageSize::ALL.len()];
        let mut arrays = Vec::new();
        for (index, config) in hardware.tlb.l2.iter().enumerate() {
            arrays.push(Sets::new("tlb.l2", u64::from(config.entries), config.ways)?);
            config
                .holds
                .iter()
                .for_each(|&size| holder[size as usize] = Some(index));
        }
        Ok(Box::new(Chirp {
            radix: Radix::new(hardware)?,
            arrays,
            holder,
            counters: vec![0; self.counters as usize],
            path: 0,
            config: self.clone(),
            statistics: Statistics::default(),
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn follows_branches(&self) -> bool {
        self.branches
    }
}

/// Replacement state of an entry of the L2 TLB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Plain)]
struct Entry {
    signature: u16,
    /// It has a signature.
    is_signed: bool,
    is_dead: bool,
    was_used: bool,
}

#[derive(Clone, Copy, Debug, Default, Plain)]
struct Statistics {
    dead_evicted: u64,
    unused_evicted: u64,
    first_uses: u64,
    dead_used: u64,
}

#[derive(State)]
struct Chirp {
    radix: Radix,
    /// Beside each array of the L2 TLB, in the same order.
    #[state(fixed)]
    arrays: Vec<Sets<Entry>>,
    /// Array that holds pages of a size.
    #[state(skip)]
    holder: [Option<usize>; PageSize::ALL.len()],
    counters: Vec<u8>,
    /// Instructions of the last accesses, four bits each.
    path: u64,
    #[state(skip)]
    config: Config,
    statistics: Statistics,
}

/// Number and key of a page.
fn key(address: VirtAddr, space: SpaceId, size: PageSize) -> (u64, u64) {
    let number = address.get() >> size.shift();
    let key = number | u64::from(space.0) << SPACE_SHIFT | (size as u64) << SIZE_SHIFT;
    (number, key)
}

/// Space, first address and size of a key's page.
fn page_of(key: u64) -> (SpaceId, VirtAddr, PageSize) {
    let size = PageSize::ALL[(key >> SIZE_SHIFT) as usize % PageSize::ALL.len()];
    let number = key & ((1 << SPACE_SHIFT) - 1);
    let space = SpaceId((key >> SPACE_SHIFT) as u16);
    (space, VirtAddr::new(number << size.shift()), size)
}

impl Chirp {
    /// The signature of an access, if it has one; it becomes part of those to come.
    fn sign(&mut self, request: &Request) -> Option<u16> {
        let number = match (request.instruction, request.access) {
            (0, Access::Execute) => request.address.page().get(),
            (0, _) => return None,
            (number, _) => number,
        };
        // Numbers are dense, in which addresses differ in all bits.
        let mixed = number.wrapping_mul(SCATTER) >> 32;
        let mut signature = mixed ^ self.path;
        if self.config.branches {
            signature ^= request.branches.conditional ^ request.branches.indirect;
        }
        self.path = self.path << 4 | mixed & 3;
        Some((signature.wrapping_mul(SCATTER) >> 48) as u16)
    }

    fn counter(&mut self, signature: u16) -> &mut u8 {
        let at = usize::from(signature) % self.counters.len();
        &mut self.counters[at]
    }

    fn is_dead(&mut self, signature: u16) -> bool {
        let threshold = self.config.threshold;
        *self.counter(signature) >= threshold
    }

    /// An entry is used.
    fn used(&mut self, request: &Request, size: PageSize, signature: Option<u16>) {
        let (number, key) = key(request.address, request.space, size);
        let array = self.holder[size as usize].map(|index| &mut self.arrays[index]);
        let Some(entry) = array.and_then(|array| array.lookup(number, key).copied()) else {
            return;
        };
        let Some(signature) = signature else {
            return;
        };
        if !entry.was_used {
            self.statistics.first_uses += 1;
            self.statistics.dead_used += u64::from(entry.is_dead);
            if entry.is_signed {
                let counter = self.counter(entry.signature);
                *counter = counter.saturating_sub(1);
            }
        }
        let now = Entry {
            signature,
            is_signed: true,
            is_dead: self.is_dead(signature),
            was_used: true,
        };
        let array = self.holder[size as usize].map(|index| &mut self.arrays[index]);
        if let Some(entry) = array.and_then(|array| array.peek_mut(number, key)) {
            *entry = now;
        }
    }

    /// Enters a page in place of a dead entry, or of the least recently used one.
    fn fill(&mut self, request: &Request, leaf: Leaf, signature: Option<u16>) {
        let Some(index) = self.holder[leaf.size as usize] else {
            return;
        };
        let (number, key) = key(request.address, request.space, leaf.size);
        let array = &mut self.arrays[index];
        if array.least_recent(number).is_some() {
            let dead = array.set(number).filter(|(_, entry)| entry.is_dead).last();
            if let Some((dead, _)) = dead {
                let (space, address, size) = page_of(dead);
                let entry = array.remove(number, dead);
                if let Some(entries) = self.radix.l2.array(size) {
                    entries.remove(address, space, Kind::Page(size));
                }
                self.statistics.dead_evicted += 1;
                self.evicted(entry.unwrap_or_default());
            }
        }
        let entry = Entry {
            signature: signature.unwrap_or_default(),
            is_signed: signature.is_some(),
            is_dead: signature.is_some_and(|signature| self.is_dead(signature)),
            was_used: false,
        };
        let evicted = self.radix.fill(request, leaf);
        let beside = self.arrays[index].insert(number, key, entry);
        debug_assert_eq!(
            evicted.map(|evicted| (evicted.space, evicted.address, evicted.leaf.size)),
            beside.map(|(key, _)| page_of(key)),
            "the arrays go in step"
        );
        if let Some((_, entry)) = beside {
            self.evicted(entry);
        }
    }

    /// An entry had to go: if it was never used, its signature is one of dead entries.
    fn evicted(&mut self, entry: Entry) {
        if entry.is_signed && !entry.was_used {
            self.statistics.unused_evicted += 1;
            let counter = self.counter(entry.signature);
            *counter = (*counter + 1).min(MOST);
        }
    }

    /// The L2 TLB has no page of an address any more.
    fn remove(&mut self, address: VirtAddr, space: SpaceId) {
        for size in PageSize::ALL {
            let (number, key) = key(address, space, size);
            if let Some(index) = self.holder[size as usize] {
                self.arrays[index].remove(number, key);
            }
        }
    }
}

impl Translator for Chirp {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        let signature = self.sign(request);
        if let Some(leaf) = self.radix.look_up(request) {
            self.used(request, leaf.size, signature);
            return page(leaf, self.radix.latency(), false);
        }
        // An entry that does not allow the access has gone.
        self.remove(request.address, request.space);
        match self.radix.walk(request, tables, port) {
            Ok((leaf, latency)) => {
                self.fill(request, leaf, signature);
                page(leaf, latency, true)
            }
            Err(fault) => fault,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
        if range.bytes() <= PAGE_BYTES {
            self.remove(range.start, space);
            return;
        }
        for array in &mut self.arrays {
            array.remove_if(|key, _| {
                let (of, start, size) = page_of(key);
                of == space && start < range.end && start + size.bytes() > range.start
            });
        }
    }

    fn flush(&mut self) {
        self.radix.flush();
        self.arrays.iter_mut().for_each(Sets::clear);
    }

    fn counters(&self) -> TranslatorCounters {
        self.radix.counters()
    }

    fn scheme_counters(&self) -> Vec<(&'static str, u64)> {
        let statistics = &self.statistics;
        vec![
            ("chirp_dead_evicted", statistics.dead_evicted),
            ("chirp_unused_evicted", statistics.unused_evicted),
            ("chirp_first_uses", statistics.first_uses),
            ("chirp_dead_used", statistics.dead_used),
        ]
    }

    fn reset_counters(&mut self) {
        self.statistics = Statistics::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        /// A signature, and whether there is one, the entry is dead, and it was used.
        const ENTRY_BITS: u64 = 16 + 3;
        /// Of accesses, conditional and indirect branches.
        const HISTORY_BITS: u64 = 3 * 64;
        let entries = self.arrays.iter().map(|array| array.capacity() as u64);
        let counters = 2 * self.counters.len() as u64;
        self.radix.storage_bits() + entries.sum::<u64>() * ENTRY_BITS + counters + HISTORY_BITS
    }
}
