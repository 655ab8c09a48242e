//! `contigua-node record`: how many frames have which words in `/proc/kpageflags`, and the kernel's
//! own statistics beside them.
//!
//! Tests of the rule that classifies frames read such files (`crates/live/tests/recorded`), and a
//! report of a frame that it gets wrong should have one.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::commands::Root;
use anyhow::Context;
use clap::Args;
use contigua_live::frames::{PageFile, PageSource, areas};
use contigua_live::proc::{System, free_frames};
use contigua_units::PAGE_BYTES;

/// Frames that are read at a time.
const CHUNK: u64 = 32_768;

/// Print how many frames have which flags, and the kernel's own statistics (for a bug report)
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    root: Root,
}

/// Prints.
///
/// # Errors
/// When the kernel's files cannot be read.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let system = System::at(&arguments.root);
    let files = system.page_files()?;
    let blocks = system.memory_blocks().unwrap_or_default();
    let before = figures(&system)?;
    let mut words: BTreeMap<u64, u64> = BTreeMap::new();
    let mut buffer = vec![0; CHUNK as usize];
    for area in areas(&system.ram_ranges()?, &system.zones()?, &blocks) {
        let mut start = area.frames.start;
        while area.is_online && start < area.frames.end {
            let wanted = CHUNK.min(area.frames.end - start) as usize;
            let read = files
                .read(PageFile::Flags, start, &mut buffer[..wanted])
                .context("/proc/kpageflags")?;
            for &word in &buffer[..read] {
                *words.entry(word).or_default() += 1;
            }
            start += wanted as u64;
        }
    }
    let after = figures(&system)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(out, "kernel {}", system.word("proc/sys/kernel/osrelease")?)?;
    for ((name, before), (_, after)) in before.into_iter().zip(after) {
        writeln!(out, "figure {name} {before} {after}")?;
    }
    for (word, count) in words {
        writeln!(out, "{word:#x} {count}")?;
    }
    out.flush()?;
    Ok(())
}

/// Frames by the kernel's own account.
fn figures(system: &System) -> anyhow::Result<[(&'static str, u64); 4]> {
    let meminfo = system.meminfo()?;
    let frames = |name| meminfo.number(name).unwrap_or(0) / PAGE_BYTES;
    let text = system.text("proc/slabinfo")?;
    let slabs = text.as_str().lines().skip(2).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        // Pages in a slab, and slabs.
        number(5).unwrap_or(0) * number(14).unwrap_or(0)
    });
    Ok([
        ("free", free_frames(&system.buddy_zones()?)),
        ("slab", slabs.sum()),
        ("page_table", frames("PageTables") + frames("SecPageTables")),
        ("hugetlb", frames("Hugetlb")),
    ])
}
