//! All tests of the crate in one program, which is linked once.

mod contiguitas;
mod linux;
mod reference;
mod soak;
mod superpageblocks;
mod zone_movable;
