//! No text makes the readers of machines and designs panic.

#![no_main]

use contigua_machine::config::{parse_design, parse_machine};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = parse_design(text, "input");
    let _ = parse_machine(text, "input");
});
