//! The model of the migration protocol whose states are visited one by one by the tests of the
//! cache crate, for pages and tables of the engine's size.

/// Cores of all runs.
pub(super) const MAX_CORES: usize = 4;
/// Pages that are followed at a time: those that migrate, and some that have arrived.
pub(super) const MAX_PAGES: usize = 8;
/// Lines of all pages.
pub(super) const MAX_LINES: usize = 64 * MAX_PAGES;

#[allow(dead_code, reason = "searches through all states use the rest")]
#[path = "../../../../../cache/tests/protocol/model.rs"]
pub(super) mod model;
#[path = "../../../../../cache/tests/protocol/rules.rs"]
pub(super) mod rules;
#[allow(dead_code, reason = "counter-examples of searches use the rest")]
#[path = "../../../../../cache/tests/protocol/words.rs"]
mod words;
