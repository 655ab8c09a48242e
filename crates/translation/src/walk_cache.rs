//! Page-walk caches: upper page-table entries, so that a walk can begin further down.
//!
//! One cache for each level above the leaves, as Barr, Cox and Rixner describe Intel's (ISCA
//! 2010): tagged with the part of the virtual address that led to the entry. Only entries that
//! point to another node are kept. A walk uses the deepest hit, and only that one counts as used.

use contigua_cache::{Geometry, Sets};
use contigua_paging::SpaceId;
use contigua_units::{VirtAddr, VirtRange};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Geometry of the caches; a level without one always misses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCacheConfig {
    /// PML4 entries: each covers 512 GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pml4e: Option<Geometry>,
    /// PDPT entries: each covers 1 GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdpte: Option<Geometry>,
    /// PD entries: each covers 2 MB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pde: Option<Geometry>,
}

/// log2 of the bytes that an entry covers, root first.
const SHIFTS: [u32; 3] = [39, 30, 21];
const SPACE_SHIFT: u32 = 40;
/// Bits of an entry: at most 27 bits of address, 12-bit PCID, 40-bit frame number.
const ENTRY_BITS: u64 = 27 + 12 + 40;

/// The caches of all levels.
#[derive(Clone, Debug)]
pub struct WalkCache {
    levels: [Option<Sets<()>>; SHIFTS.len()],
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
                level("walk_cache.pml4e", config.pml4e)?,
                level("walk_cache.pdpte", config.pdpte)?,
                level("walk_cache.pde", config.pde)?,
            ],
        })
    }

    fn place(level: usize, address: VirtAddr, space: SpaceId) -> (u64, u64) {
        let number = address.get() >> SHIFTS[level];
        (number, number | u64::from(space.0) << SPACE_SHIFT)
    }

    /// How many references a walk can skip: one more than the depth of the deepest hit.
    pub fn lookup(&mut self, address: VirtAddr, space: SpaceId) -> usize {
        for level in (0..SHIFTS.len()).rev() {
            let (number, key) = Self::place(level, address, space);
            if let Some(sets) = &mut self.levels[level]
                && sets.lookup(number, key).is_some()
            {
                return level + 1;
            }
        }
        0
    }

    /// Keeps the entries that a walk has read, of which the first `skipped` came from here and
    /// the last one, number `references - 1`, is a leaf or not present.
    pub fn fill(&mut self, address: VirtAddr, space: SpaceId, skipped: usize, references: usize) {
        for level in skipped..references.saturating_sub(1) {
            let (number, key) = Self::place(level, address, space);
            if let Some(sets) = &mut self.levels[level]
                && sets.lookup(number, key).is_none()
            {
                sets.insert(number, key, ());
            }
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
                    key >> SPACE_SHIFT == u64::from(space.0) && (first..=last).contains(&number)
                });
            }
        }
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
