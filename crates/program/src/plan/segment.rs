//! Segments of a plan.

/// Mode of execution; a later one tells more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// It is told how many they are, and the first access to each page: enough for the operating
    /// system.
    Forward,
    /// All is told, to warm caches and TLBs.
    Warm,
    /// All is told, and counts.
    Detail,
}

/// Instructions that are executed in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Mode of their execution.
    pub mode: Mode,
    /// The count of instructions, since the program began, at which the next segment begins.
    pub end: u64,
}

/// Shorter units and windows end within a few blocks.
pub(super) const LEAST_DETAIL: u64 = 1000;
