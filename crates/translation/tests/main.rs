//! All tests of the crate in one program, which is linked once.

mod blocks;
mod chirp;
mod common;
mod dmt;
mod documentation;
mod hooks;
mod mosaic;
mod perforated;
mod reference;
mod rivals;
mod schemes;
mod segments;
mod utopia;
#[path = "../examples/victim.rs"]
mod victim;
mod victims;
