//! Configuration of the last level that cores share.

use contigua_units::Cycles;
use serde::{Deserialize, Serialize};

use super::{Insertion, Topology};
use crate::Error;
use crate::migration::{MAX_ENTRIES, Table};

/// Configuration of the last level that cores share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SharedConfig {
    /// Slices of the last level; addresses are spread over them by a hash.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 256)))]
    pub slices: u32,
    /// True if the last level has every line that a core has. Otherwise it takes what private
    /// caches evict, and memory is read past it.
    pub inclusive: bool,
    /// Position in its set at which a line enters that an inclusive last level reads from memory.
    #[serde(default, skip_serializing_if = "Insertion::is_recent")]
    pub insertion: Insertion,
    /// Lines of private caches that a slice's directory keeps track of.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 16_777_216)))]
    pub directory_entries: u32,
    /// Entries of a set of the directory.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 16_384)))]
    pub directory_ways: u32,
    /// The network between cores and slices.
    pub topology: Topology,
    /// From a tile to its neighbor. The latency of the last level is the mean over its slices.
    #[cfg_attr(feature = "schema", schemars(extend("maximum" = 1_048_576)))]
    pub hop_cycles: Cycles,
    /// Pages that may migrate at a time, when the last level migrates pages.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 16)))]
    pub migration_entries: u8,
}

impl SharedConfig {
    /// The table of migrations of a last level of so many ways.
    ///
    /// # Errors
    /// [`Error::MigrationEntries`], [`Error::InclusiveWays`].
    pub fn table(&self, llc_ways: u32) -> Result<Table, Error> {
        /// A transaction enters up to three lines of a set: the one that is asked for, and two that
        /// private caches and the directory give back for it. The first must not go again.
        const INCLUSIVE_WAYS: u32 = 4;
        if !(1..=MAX_ENTRIES).contains(&usize::from(self.migration_entries)) {
            return Err(Error::MigrationEntries(self.migration_entries));
        }
        if self.inclusive && llc_ways < INCLUSIVE_WAYS {
            return Err(Error::InclusiveWays(llc_ways));
        }
        Ok(Table::new(usize::from(self.migration_entries)))
    }
}
