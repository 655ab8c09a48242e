//! No text makes the readers of machines, designs and profiles panic.

#![no_main]

use contigua_machine::ageing::parse_profile;
use contigua_machine::config::{Age, parse_design, parse_machine};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = parse_design(text, "input");
    let _ = parse_machine(text, "input");
    let _ = parse_profile(text, "input");
    let _ = text.parse::<Age>();
});
