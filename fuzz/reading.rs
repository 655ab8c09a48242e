//! Reads a trace of another tool: no file makes its reader panic, hang or yield words that are no
//! records.

use std::io::Cursor;
use std::path::Path;

use contigua_program::Error;
use contigua_program::sources::Source;
use contigua_program::wire::{Record, Records};

/// Batches to read: compressed data may stand for many more than there is time for.
const BATCHES: usize = 100;

pub fn read<S: Source>(open: fn(Cursor<Vec<u8>>, &Path) -> Result<S, Error>, bytes: &[u8]) {
    let Ok(mut source) = open(Cursor::new(bytes.to_vec()), Path::new("input")) else {
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
}
