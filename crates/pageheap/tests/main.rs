//! All tests of the crate in one program, which is linked once.

mod common;
mod linux;
mod properties;
mod sequences;
