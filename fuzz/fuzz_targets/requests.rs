//! No bytes make the reader and the replay of recorded requests panic.

#![no_main]

use std::io::Cursor;

use contigua_machine::config::parse_design;
use contigua_machine::requests::replay;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for placement in ["linux", "contiguitas"] {
        let text = format!("description = \"\"\n[translation.base]\n[placement.{placement}]\n");
        let design = parse_design(&text, "design").expect("it is well formed");
        // Past the first bytes, which random ones would hardly meet.
        let framed = [b"ctgreqs1", bytes].concat();
        for record in [bytes, &framed] {
            let _ = replay(Cursor::new(record), &design.placement, &design.memory);
        }
    }
});
