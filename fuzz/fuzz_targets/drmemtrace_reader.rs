//! The reader of drmemtrace traces.

#![no_main]

#[path = "../reading.rs"]
mod reading;

use contigua_program::sources::drmemtrace::DrmemtraceSource;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| reading::read(DrmemtraceSource::new, bytes));
