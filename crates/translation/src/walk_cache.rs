//! Page-walk caches: upper page-table entries, so that a walk can begin further down.
//!
//! One cache for each level above the leaves, as Barr, Cox and Rixner describe Intel's (ISCA
//! 2010): tagged with the part of the virtual address that led to the entry. Only entries that
//! point to another node are kept. A walk uses the deepest hit, and only that one counts as used.

use contigua_cache::{Geometry, Sets};
use contigua_paging::{Levels, SpaceId};
use contigua_state::{Reader, State, Writer, load_fixed, save_fixed};
use contigua_units::{Cycles, VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Geometry of the caches; a level without one always misses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WalkCacheConfig {
    /// PML5 entries: each covers 256 TB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pml5e: Option<Geometry>,
    /// PML4 entries: each covers 512 GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pml4e: Option<Geometry>,
    /// PDPT entries: each covers 1 GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdpte: Option<Geometry>,
    /// PD entries: each covers 2 MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pde: Option<Geometry>,
    /// Cycles of a walk beside its references: noticing the miss, looking up these caches, filling
    /// the TLB. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(extend("maximum" = 1_073_741_824))]
    pub start_cycles: Cycles,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(cycles: &Cycles) -> bool {
    *cycles == Cycles::ZERO
}

/// log2 of the bytes that an entry covers, deepest first: PDE, PDPTE, PML4E, PML5E.
const SHIFTS: [u32; 4] = [21, 30, 39, 48];
const SPACE_SHIFT: u32 = 40;
/// Marks entries of shadow page directories (the Perforated Page paper).
const SHADOW: u64 = 1 << 60;
/// Bits of an entry: at most 27 bits of address, 12-bit PCID, 40-bit frame number.
const ENTRY_BITS: u64 = 27 + 12 + 40;

/// The caches of all levels.
#[derive(Clone, Debug)]
pub struct WalkCache {
    levels: [Option<Sets<()>>; SHIFTS.len()],
}

impl State for WalkCache {
    fn save(&self, out: &mut Writer<'_>) {
        for level in &self.levels {
            save_fixed(level, out);
        }
    }

    fn load(&mut self, input: &mut Reader<'_>) -> Result<(), contigua_state::Error> {
        let mut levels = self.levels.iter_mut();
        levels.try_for_each(|level| load_fixed(level, input))
    }
}

impl WalkCache {
    /// Empty caches.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn new(config: &WalkCacheConfig) -> Result<Self, Error> {
        let level = |what, geometry: Option<Geometry>| {
            geometry.map(|g| Sets::with_geometry(what, g)).transpose()
        };
        Ok(Self {
            levels: [
                level("walk_cache.pde", config.pde)?,
                level("walk_cache.pdpte", config.pdpte)?,
                level("walk_cache.pml4e", config.pml4e)?,
                level("walk_cache.pml5e", config.pml5e)?,
            ],
        })
    }

    fn place(level: usize, address: VirtAddr, space: SpaceId) -> (u64, u64) {
        let number = address.get() >> SHIFTS[level];
        (number, number | u64::from(space.0) << SPACE_SHIFT)
    }

    /// Number of references that a walk of a table can skip: those down to the deepest hit.
    pub fn lookup(&mut self, address: VirtAddr, space: SpaceId, levels: Levels) -> usize {
        let above = levels.count() - 1;
        for level in 0..above {
            let (number, key) = Self::place(level, address, space);
            if let Some(sets) = &mut self.levels[level]
                && sets.lookup(number, key).is_some()
            {
                return above - level;
            }
        }
        0
    }

    /// Keeps the entries that a walk has read, of which the first `skipped` came from here and
    /// the last one, number `references - 1`, is a leaf or not present.
    pub fn fill(
        &mut self,
        address: VirtAddr,
        space: SpaceId,
        levels: Levels,
        skipped: usize,
        references: usize,
    ) {
        let above = levels.count() - 1;
        for depth in skipped..references.saturating_sub(1) {
            let level = above - 1 - depth;
            let (number, key) = Self::place(level, address, space);
            if let Some(sets) = &mut self.levels[level]
                && sets.lookup(number, key).is_none()
            {
                sets.insert(number, key, ());
            }
        }
    }

    /// Returns true if the shadow entry for the perforated page around an address is here.
    pub fn lookup_shadow(&mut self, address: VirtAddr, space: SpaceId) -> bool {
        let (number, key) = Self::place(0, address, space);
        let sets = self.levels[0].as_mut();
        sets.is_some_and(|sets| sets.lookup(number, key | SHADOW).is_some())
    }

    /// Keeps a shadow entry that was read.
    pub fn fill_shadow(&mut self, address: VirtAddr, space: SpaceId) {
        let (number, key) = Self::place(0, address, space);
        if let Some(sets) = &mut self.levels[0] {
            sets.insert(number, key | SHADOW, ());
        }
    }

    /// Forgets the entries that lead to a range of a space's addresses.
    pub fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        for (sets, shift) in self.levels.iter_mut().zip(SHIFTS) {
            if let Some(sets) = sets {
                let first = range.start.get() >> shift;
                let last = range.end.get().saturating_sub(1) >> shift;
                sets.remove_if(|key, ()| {
                    let number = key & ((1 << SPACE_SHIFT) - 1);
                    (key & !SHADOW) >> SPACE_SHIFT == u64::from(space.0)
                        && (first..=last).contains(&number)
                });
            }
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.levels.iter_mut().flatten().for_each(Sets::clear);
    }

    /// Bits of storage.
    #[must_use]
    pub fn storage_bits(&self) -> u64 {
        let entries = self
            .levels
            .iter()
            .flatten()
            .map(|sets| sets.capacity() as u64);
        entries.sum::<u64>() * ENTRY_BITS
    }
}
