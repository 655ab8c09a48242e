//! One level of cache: write-back, write-allocate, 64-byte lines.

use contigua_units::{Bytes, LINE_BYTES};
use derive_more::AddAssign;
use serde::Serialize;

use crate::{Error, Sets};

/// Whether a line was written since it came in.
type Dirty = bool;

/// What a level did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign)]
pub struct LevelCounters {
    /// Look-ups that found their line.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Dirty lines that were evicted to the next level.
    pub write_backs: u64,
}

/// One level of cache. Lines are named by their number, the physical address over 64.
#[derive(Clone, Debug)]
pub struct Cache {
    lines: Sets<Dirty>,
    counters: LevelCounters,
}

impl Cache {
    /// An empty cache; `what` names it in errors.
    ///
    /// # Errors
    /// [`Error::Geometry`] when the size is not a whole number of sets of lines.
    pub fn new(what: &str, size: Bytes, ways: u32) -> Result<Self, Error> {
        Ok(Self {
            lines: Sets::new(what, size.get() / LINE_BYTES, ways)?,
            counters: LevelCounters::default(),
        })
    }

    /// Looks a line up and marks it dirty on a write. Says whether it is present.
    #[inline]
    pub fn access(&mut self, line: u64, write: bool) -> bool {
        if let Some(dirty) = self.lines.lookup(line, line) {
            *dirty |= write;
            self.counters.hits += 1;
            true
        } else {
            self.counters.misses += 1;
            false
        }
    }

    /// Enters a line that is not present. Returns the dirty line that had to go, if one had to.
    #[inline]
    pub fn fill(&mut self, line: u64, dirty: bool) -> Option<u64> {
        let (evicted, was_dirty) = self.lines.insert(line, line, dirty)?;
        was_dirty.then(|| {
            self.counters.write_backs += 1;
            evicted
        })
    }

    /// Takes in a dirty line that the level above evicted. Returns the dirty line that had to go,
    /// if one had to.
    #[inline]
    pub fn write_back(&mut self, line: u64) -> Option<u64> {
        match self.lines.lookup(line, line) {
            Some(dirty) => {
                *dirty = true;
                None
            }
            None => self.fill(line, true),
        }
    }

    /// What the level did since its counters were reset.
    #[must_use]
    pub fn counters(&self) -> LevelCounters {
        self.counters
    }

    /// Starts counting anew.
    pub fn reset_counters(&mut self) {
        self.counters = LevelCounters::default();
    }

    /// Checks the array's invariants.
    ///
    /// # Errors
    /// A sentence that names the set.
    pub fn validate(&self) -> Result<(), String> {
        self.lines.validate()
    }
}
