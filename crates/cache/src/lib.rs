//! Caches, from the set-associative array that everything is made of to the path from a core to
//! memory.
//!
//! TLBs and page-walk caches are caches of translations, so the `translation` crate builds them
//! from the same [`Sets`].

#![forbid(unsafe_code)]

mod hierarchy;
mod level;
mod sets;

pub use hierarchy::{
    AccessKind, Hierarchy, HierarchyConfig, HierarchyCounters, LevelConfig, ServedBy,
};
pub use level::{Cache, LevelCounters};
pub use sets::{EMPTY, Geometry, Sets};

/// Why a cache cannot be built as described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of ways that cannot be.
    #[error("{what}: {entries} entries do not divide into sets of {ways} ways")]
    Geometry {
        /// Which structure.
        what: String,
        /// Entries in all.
        entries: u64,
        /// Ways of a set.
        ways: u32,
    },
}
