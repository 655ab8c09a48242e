//! contiguity
