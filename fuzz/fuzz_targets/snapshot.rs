//! No bytes make the reader of memory snapshots panic, compressed or not.

#![no_main]

use contigua_machine::ageing::Snapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Snapshot::read(bytes);
    // Past the checksum, which random bytes would hardly meet.
    let framed = zstd::encode_all(bytes, 1).expect("memory is enough");
    let _ = Snapshot::read(&framed[..]);
});
