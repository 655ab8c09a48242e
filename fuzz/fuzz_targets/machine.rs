//! No machine file makes the reader panic, and no machine that it accepts makes a server panic or take
//! gigabytes.
//!
//! Inputs are machine files, or edits of those that we ship: random text hardly ever has all keys. An
//! edit puts another number in the place of one of a file's.

#![no_main]

use contigua_machine::Engine;
use contigua_machine::config::{Age, Detail, RunConfig, parse_design, parse_machine};
use contigua_program::layout::Layout;
use contigua_program::plan::Plan;
use contigua_program::sources::Program;
use contigua_program::syscall::Architecture;
use contigua_units::Bytes;
use libfuzzer_sys::fuzz_target;

const MACHINES: [&str; 3] = [
    include_str!("../../python/contigua/data/machines/skylake.toml"),
    include_str!("../../python/contigua/data/machines/sandy-bridge.toml"),
    include_str!("../../python/contigua/data/machines/sapphire-rapids.toml"),
];
const DESIGN: &str = include_str!("../../python/contigua/data/designs/linux-thp.toml");
/// A server is built for one of so many inputs: it takes milliseconds.
const SERVERS: u8 = 64;

/// Puts numbers in the places of others, as ten bytes say: which one, and the digits.
fn edited(text: &str, edits: &[u8]) -> String {
    let text: String = text
        .lines()
        .map(|line| {
            line.split(" # ")
                .next()
                .unwrap_or(line)
                .trim_end()
                .to_owned()
                + "\n"
        })
        .filter(|line| !line.starts_with('#'))
        .collect();
    let is_number = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    let mut parts: Vec<String> = text
        .split_inclusive(|c: char| !c.is_ascii_digit() && c != '.')
        .map(str::to_owned)
        .collect();
    let places: Vec<usize> = (0..parts.len()).filter(|&i| is_number(&parts[i])).collect();
    for edit in edits.chunks_exact(10) {
        let place = places[usize::from(edit[0]) % places.len()];
        let value = u64::from_le_bytes(edit[2..10].try_into().expect("eight bytes"));
        let value = value >> (edit[1] % 64);
        let end = parts[place].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        parts[place] = format!("{value}{end}");
    }
    parts.concat()
}

fn server(text: &str) {
    let Ok(mut machine) = parse_machine(text, "input") else {
        return;
    };
    machine.memory = Bytes::new(64 << 20);
    let config = RunConfig {
        design_name: "design".to_owned(),
        design: parse_design(DESIGN, "design").expect("ours"),
        machine_name: "machine".to_owned(),
        machine,
        age: Age::Fresh,
        holes: None,
        classify_misses: false,
        detail: Detail::Full,
        cores: 1,
        migrations_per_second: 0.0,
        allocator: None,
        timeline: None,
        seed: 1,
        skip: 0,
        warmup: 0,
        instructions: None,
        sampling: None,
        regions: None,
        confidence: 0.95,
        goal: None,
        mapped: false,
        profile: None,
        simulated_seconds: None,
    };
    let program = Program {
        command: vec!["fuzz".to_owned()],
        architecture: Architecture::X86_64,
        reports_mappings: true,
        plan: Plan::default(),
        layout: Layout::default(),
    };
    let _ = Engine::new(config, program);
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = parse_machine(text, "input");
    }
    if let [which, builds, edits @ ..] = bytes {
        let text = edited(MACHINES[usize::from(*which) % MACHINES.len()], edits);
        if builds % SERVERS == 0 {
            server(&text);
        } else {
            let _ = parse_machine(&text, "input");
        }
    }
});
