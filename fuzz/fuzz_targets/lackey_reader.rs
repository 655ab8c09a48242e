//! The reader of Lackey traces.

#![no_main]

#[path = "../reading.rs"]
mod reading;

use contigua_program::sources::lackey::LackeySource;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| reading::read(LackeySource::new, bytes));
