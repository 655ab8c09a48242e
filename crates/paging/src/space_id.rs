//! Numbers of address spaces.

use contigua_state::Plain;

/// Names an address space; TLB entries are tagged with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Plain)]
pub struct SpaceId(pub u16);
