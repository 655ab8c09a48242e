//! The reader of ChampSim traces.

#![no_main]

#[path = "../reading.rs"]
mod reading;

use contigua_program::sources::champsim::ChampSimSource;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| reading::read(ChampSimSource::new, bytes));
