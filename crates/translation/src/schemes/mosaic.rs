//! Mosaic Pages (Gosakan and others, ASPLOS 2023): an entry of the L2 TLB translates 4 to 64 neighboring pages, which lie
//! in frames that have nothing to do with one another. Hashes of a page name 104 frames for it (`paging/iceberg.rs`), so
//! that seven bits, its compressed frame number (CPFN), say where it lies.
//!
//! A walk reads a table of contents (`ToC`), the CPFNs of all pages of a mosaic page, and an entry is filled from it. A page
//! that was not there then has none in the entry, and its first use is a miss that fills the entry anew. So does the
//! authors' simulator (`gem5-custom/src/arch/x86/tlb.cc` in oscarlab/mosaic-asplos23-artifacts), from which the arities and
//! this rule are; the paper itself was not at hand.
//!
//! Simplified: a `ToC` is the page-table entries of the tree, read as one; a table of such tables is denser. An entry also has a bit
//! for each page that lets stores through, ours, since stores to clean pages walk. Pages enter it that were used, as the
//! tree's accessed bits ask for. Invalidating a page drops its mosaic page's entry, theirs its CPFN alone. Pages that lie
//! elsewhere (of files, of shared memory, those that a fork shares, huge ones, conflicts, and all of virtual machines) have
//! entries of their own, which take the places of others. The hash takes no cycle beyond the L2 TLB's latency: the paper's
//! circuit runs at 4 GHz (abstract). The first level stays as the machine has it.

use contigua_paging::{Buckets, Leaf, MappingPolicy};
use contigua_units::{Frame, PAGE_BYTES, PageSize};
use serde::{Deserialize, Serialize};

use super::thp;
use super::{BackgroundPass, Scheme};
use crate::radix::{allows, group_of, page};
use crate::tlb::{Entry, Kind};
use crate::{
    Error, Hardware, MemoryPort, Radix, Request, SpaceId, Tables, Translation, Translator,
    TranslatorCounters, VirtRange,
};

/// Bits of a frame number in an entry for one page, as in the L2 TLB.
const FRAME_BITS: u64 = 40;
/// Bits of a page in an entry: its CPFN, and whether stores are let through.
const PAGE_BITS: u64 = 7 + 1;
/// The CPFN of a page that the entry does not translate.
const NONE: u8 = 127;

/// Size of mosaic pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "mosaic")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Use of huge pages beside mosaic pages; none by default, as in the paper.
    pub huge: thp::Config,
    /// log2 of the pages of a mosaic page (its arity): 2 to 6 in the authors' simulator, 2 in its examples.
    #[schemars(range(min = 1, max = 6))]
    pub arity_log2: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            huge: thp::Config::never(),
            arity_log2: 2,
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Mosaic::new(hardware, self.arity_log2)?))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.huge.policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.huge.background()
    }

    fn places_by_hash(&self) -> bool {
        true
    }

    fn register_bits(&self) -> u64 {
        // Number of buckets.
        32
    }
}

/// The table of contents of a mosaic page, as an entry has it.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
struct Toc {
    cpfns: [u8; 64],
    /// Pages that may be written, as bits.
    writable: u64,
}

impl Toc {
    const EMPTY: Self = Self {
        cpfns: [NONE; 64],
        writable: 0,
    };

    fn enter(&mut self, part: u32, cpfn: u8, writable: bool) {
        self.cpfns[part as usize] = cpfn;
        self.writable |= u64::from(writable) << part;
    }
}

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Counters {
    hits: u64,
    entered: u64,
    pages: u64,
    missing: u64,
    plain: u64,
}

#[derive(contigua_state::State)]
struct Mosaic {
    /// Its L2 TLB holds mosaic pages as groups in the array for 4 KB pages, beside the pages that share it. In place of a
    /// frame, they have the number of their table of contents.
    radix: Radix,
    #[state(skip)]
    arity: u32,
    tocs: Vec<Toc>,
    /// Tables that no entry has, as far as is known: invalidations drop entries without a word.
    unused: Vec<u32>,
    /// Scratch for finding out.
    #[state(skip)]
    used: Vec<bool>,
    counters: Counters,
}

impl Mosaic {
    fn new(hardware: &Hardware<'_>, arity: u32) -> Result<Self, Error> {
        let radix = Radix::with_groups(hardware, arity)?;
        // Twice what is needed, so that unused ones are seldom looked for.
        let tocs = 2 * radix.l2.capacity_for(PageSize::Size4K) as u32;
        Ok(Self {
            radix,
            arity,
            tocs: vec![Toc::EMPTY; tocs as usize],
            unused: (0..tocs).collect(),
            used: vec![false; tocs as usize],
            counters: Counters::default(),
        })
    }

    fn kind(&self) -> Kind {
        Kind::Group(self.arity)
    }

    /// Buckets in which pages of the tables are placed; `None` in virtual machines.
    fn buckets(tables: &Tables<'_>) -> Option<Buckets> {
        tables.table.buckets().filter(|_| tables.host.is_none())
    }

    /// The page that an entry of a mosaic page translates, if it allows the access.
    fn look_up(&mut self, request: &Request, tables: &Tables<'_>) -> Option<Leaf> {
        let kind = self.kind();
        let array = self.radix.l2.array(PageSize::Size4K)?;
        let entry = array.lookup(request.address, request.space, kind)?;
        let toc = &self.tocs[entry.frame.get() as usize];
        let (_, part) = group_of(request.address, self.arity);
        let cpfn = toc.cpfns[part as usize];
        if cpfn == NONE {
            self.counters.missing += 1;
            return None;
        }
        let number = request.address.page().get();
        let frame = Self::buckets(tables)?.frame(request.space, number, cpfn)?;
        let leaf = Leaf::new(frame, PageSize::Size4K, toc.writable >> part & 1 != 0);
        allows(leaf, request.access).then_some(leaf)
    }

    /// Enters the mosaic page around an address as the tables have it, if hashes name the frame that was walked to; else
    /// the page alone.
    fn fill(&mut self, request: &Request, leaf: Leaf, tables: &Tables<'_>) {
        let number = request.address.page().get();
        let buckets = Self::buckets(tables).filter(|_| leaf.size == PageSize::Size4K);
        let own = buckets.and_then(|buckets| {
            let cpfn = buckets.number(request.space, number, leaf.frame)?;
            Some((buckets, cpfn))
        });
        let Some((buckets, cpfn)) = own else {
            self.counters.plain += 1;
            if let Some(evicted) = self.radix.fill(request, leaf)
                && evicted.group > 0
            {
                self.unused.push(evicted.leaf.frame.get());
            }
            return;
        };
        let (start, part) = group_of(request.address, self.arity);
        let mut toc = Toc::EMPTY;
        toc.enter(part, cpfn, leaf.writable);
        let mut pages = 1;
        for other in (0..1 << self.arity).filter(|&other| other != part) {
            let at = start + u64::from(other) * PAGE_BYTES;
            if let Some(found) = tables.resolve(at).filter(|found| found.accessed)
                && let Some(cpfn) = buckets.number(request.space, at.page().get(), found.frame)
            {
                toc.enter(other, cpfn, found.writable && found.dirty);
                pages += 1;
            }
        }
        self.counters.entered += 1;
        self.counters.pages += pages;
        let kind = self.kind();
        let Request { address, space, .. } = *request;
        let array = self.radix.l2.array(PageSize::Size4K);
        let present = array.and_then(|array| array.lookup(address, space, kind));
        if let Some(entry) = present {
            self.tocs[entry.frame.get() as usize] = toc;
            return;
        }
        let Some(place) = self.unused_toc() else {
            return;
        };
        self.tocs[place as usize] = toc;
        if let Some(array) = self.radix.l2.array(PageSize::Size4K) {
            let entry = Entry {
                frame: Frame::new(place),
                ..Entry::default()
            };
            if let Some(evicted) = array.insert(address, space, kind, entry)
                && evicted.group > 0
            {
                self.unused.push(evicted.leaf.frame.get());
            }
        }
    }

    /// A table of contents that no entry has; `None` where the L2 TLB holds no 4 KB pages.
    fn unused_toc(&mut self) -> Option<u32> {
        if self.unused.is_empty() {
            self.used.fill(false);
            for (kind, entry) in self.radix.l2.entries() {
                if let Kind::Group(_) = kind {
                    self.used[entry.frame.get() as usize] = true;
                }
            }
            let tocs = 0..self.tocs.len() as u32;
            self.unused
                .extend(tocs.filter(|&toc| !self.used[toc as usize]));
        }
        self.unused.pop()
    }
}

impl Translator for Mosaic {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        port: &mut dyn MemoryPort,
    ) -> Translation {
        if let Some(leaf) = self.look_up(request, tables) {
            self.counters.hits += 1;
            self.radix.walker.counters.hit(PageSize::Size4K);
            return page(leaf, self.radix.latency(), false);
        }
        if let Some(leaf) = self.radix.look_up(request) {
            return page(leaf, self.radix.latency(), false);
        }
        match self.radix.walk(request, tables, port) {
            Ok((leaf, latency)) => {
                self.fill(request, leaf, tables);
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
            ("mosaic_hits", self.counters.hits),
            ("mosaic_entered", self.counters.entered),
            ("mosaic_pages", self.counters.pages),
            ("mosaic_pages_missing", self.counters.missing),
            ("mosaic_plain_entered", self.counters.plain),
        ]
    }

    fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        // One bit tells mosaic pages from others; their pages lie where the others' frame number is, and beyond.
        let more = (PAGE_BITS << self.arity).saturating_sub(FRAME_BITS) + 1;
        self.radix.storage_bits() + self.radix.l2.capacity_for(PageSize::Size4K) * more
    }
}
