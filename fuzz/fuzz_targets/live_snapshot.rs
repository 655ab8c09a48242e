//! No bytes make the reader of real servers' snapshots panic, compressed or not.

#![no_main]

use contigua_live::owners;
use contigua_live::snapshot::SnapshotReader;
use libfuzzer_sys::fuzz_target;

fn read(bytes: &[u8]) {
    let Ok(mut reader) = SnapshotReader::new(bytes) else {
        return;
    };
    while let Ok(Some(_)) = reader.next_run() {}
    let _ = reader.report();
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    // Past the checksum and the first line, which random bytes would hardly meet.
    let classes = (0..4).map(|_| "\"slab\"").collect::<Vec<_>>().join(",");
    let mut inner =
        format!("{{\"format\":\"contigua-live-memory\",\"version\":1,\"classes\":[{classes}]}}\n")
            .into_bytes();
    inner.extend(bytes);
    read(&zstd::encode_all(&inner[..], 1).expect("memory is enough"));
    // The kernel wrote this one, but a recorded one may come from anywhere.
    let _ = owners::read(bytes);
});
