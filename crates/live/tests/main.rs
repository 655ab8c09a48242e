//! All tests of the crate in one program, which is linked once.

mod recorded;
mod scan;
mod this_machine;
