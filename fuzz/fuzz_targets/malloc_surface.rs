//! No sequence of calls makes the malloc break a promise of C, POSIX or glibc.
//!
//! The fuzzer's runtime has a malloc of its own, so ours does not interpose here: the same
//! functions are called by name. `CONTIGUA_MALLOC_PER_CPU=off` and the other variables apply.

#![no_main]

#[path = "../../crates/malloc/tests/surface/mod.rs"]
mod surface;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| surface::run(bytes, surface::Process::SequenceOnly));
