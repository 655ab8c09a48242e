//! No file makes the reader of traces panic, hang or yield words that are no records.
//!
//! The reader does not verify checksums when it is fuzzed, or nothing would get beyond them.

#![no_main]

use std::io::Cursor;
use std::path::Path;

use contigua_program::trace::TraceReader;
use contigua_program::wire::{Record, Records};
use libfuzzer_sys::fuzz_target;

/// Batches to read: compressed data may stand for many more than there is time for.
const BATCHES: usize = 1000;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = TraceReader::new(Cursor::new(bytes), Path::new("input")) else {
        return;
    };
    let plan = &reader.program().plan;
    assert!(plan.holds(plan) && plan.segment(0).end > 0);
    for _ in 0..BATCHES {
        let Ok(Some(batch)) = reader.next_batch() else {
            return;
        };
        for record in Records::new(batch.words) {
            if let Record::Block(id) = record.expect("a record") {
                let block = batch.code.block(id).expect("a description");
                assert!(block.instructions() > 0);
            }
        }
    }
});
