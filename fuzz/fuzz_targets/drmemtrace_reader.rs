//! No file makes the reader of drmemtrace traces panic, hang or yield words that are no records.

#![no_main]

use std::io::Cursor;
use std::path::Path;

use contigua_program::sources::Source;
use contigua_program::sources::drmemtrace::DrmemtraceSource;
use contigua_program::wire::{Record, Records};
use libfuzzer_sys::fuzz_target;

/// Batches to read: compressed data may stand for many more than there is time for.
const BATCHES: usize = 100;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut source) = DrmemtraceSource::new(Cursor::new(bytes.to_vec()), Path::new("input"))
    else {
        return;
    };
    for _ in 0..BATCHES {
        let Ok(Some(batch)) = source.next_batch() else {
            return;
        };
        for record in Records::new(batch.words) {
            if let Record::Block(id) = record.expect("a record") {
                assert!(batch.code.block(id).is_some());
                let _ = batch.code.instructions(id);
            }
        }
    }
});
