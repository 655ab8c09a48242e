//! The kernel's record of a perforated page.

use contigua_units::Frame;

use crate::holes::Holes;

/// Its chunk and its holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub(crate) struct Perforated {
    /// First frame of the chunk.
    pub(super) chunk: Frame,
    /// Its own holes.
    pub(super) own: Holes,
    /// Holes whose frame in the chunk waits for them: they are filled there.
    pub(super) reserved: Holes,
    /// Holes whose frame in the chunk somebody else has, as the scenario says. The page holds it
    /// on behalf of that somebody.
    pub(super) foreign: Holes,
}

impl Perforated {
    /// A page without holes.
    pub(crate) const fn whole(chunk: Frame) -> Self {
        Self {
            chunk,
            own: Holes::NONE,
            reserved: Holes::NONE,
            foreign: Holes::NONE,
        }
    }

    pub(super) fn frame(&self, sub_page: u32) -> Frame {
        self.chunk.offset(sub_page)
    }
}
