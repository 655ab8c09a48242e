//! Migrations by hardware, and the pageblock that it empties.

use contigua_units::{Frame, Order};

/// A block in use that hardware moves to one that was taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub struct Relocation {
    /// Its present frame.
    pub from: Frame,
    /// Its destination.
    pub to: Frame,
    /// Order of the block.
    pub order: Order,
}

/// A pageblock of the unmovable region that hardware empties.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
pub(crate) struct Clearing {
    pub(crate) number: usize,
    /// Frames of it that were looked at in this pass.
    pub(crate) looked_at: u32,
    pub(crate) passes: u32,
    /// Blocks that are on their way.
    pub(crate) under_way: u32,
    /// Frames that were in use when it began.
    pub(crate) used: u32,
    /// The pageblock down to which the region shrinks; without one, the region is compacted.
    pub(crate) shrinks_to: Option<usize>,
    /// It is given up when nothing is on its way.
    pub(crate) ends: bool,
}
