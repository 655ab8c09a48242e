//! The physical memory of the running machine.
#![forbid(unsafe_code)]
