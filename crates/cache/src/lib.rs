//! Caches, from the set-associative array that everything is made of to the memory of a server
//! with several cores ([`coherent::MemorySystem`]), and the protocol by which a last-level cache
//! moves pages ([`migration`]).
//!
//! TLBs and page-walk caches are caches of translations, so the `translation` crate builds them
//! from the same [`Sets`].

#![forbid(unsafe_code)]

pub mod coherent;
mod config;
pub mod migration;
mod sets;

pub use config::{AccessKind, HierarchyConfig, LevelConfig, LevelCounters, ServedBy};
pub use sets::{EMPTY, Geometry, Sets};

/// Why a cache cannot be built as described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of ways that cannot be.
    #[error("{what}: {entries} entries do not divide into sets of {ways} ways")]
    Geometry {
        /// The structure.
        what: String,
        /// Entries in all.
        entries: u64,
        /// Ways of a set.
        ways: u32,
    },
    /// A number of cores that cannot be.
    #[error("{0} cores; a server has 1 to 64")]
    Cores(usize),
    /// A table of migrations that cannot be.
    #[error(
        "cache.shared.migration_entries is {0}; a last level migrates 1 to {most} pages at a time",
        most = migration::MAX_ENTRIES
    )]
    MigrationEntries(u8),
    /// A last level that includes private caches and would lose a line while it is filled.
    #[error("cache.llc has {0} ways; one that is inclusive needs 4 or more")]
    InclusiveWays(u32),
    /// The last level does not divide into its slices.
    #[error("cache.llc: {lines} lines do not divide into {slices} slices")]
    Slices {
        /// Lines of the last level.
        lines: u64,
        /// Its slices.
        slices: u32,
    },
}
