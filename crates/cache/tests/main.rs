//! All tests of the crate in one program, which is linked once.

mod coherent;
mod migration;
mod protocol;
