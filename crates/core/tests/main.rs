//! All tests of the crate in one program, which is linked once.

mod any_calls;
mod common;
mod ladders;
mod reference;
mod shadow;
