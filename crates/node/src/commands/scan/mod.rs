//! `contigua-node scan`: what every frame of this machine is, and how contiguous its memory is.

mod text;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use contigua_live::proc::System;
use contigua_live::report::{Nobody, Options, look};
use contigua_live::scan::Pace;

/// Look at every frame of memory: what it is, how contiguous memory is, and who is in the way.
#[derive(Args)]
pub struct Arguments {
    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Do not look at frames: only what the kernel's own summaries say, in no time
    #[arg(long)]
    quick: bool,

    /// Name the allocation sites of unmovable frames, on kernels booted with `page_owner=on` (slow)
    #[arg(long)]
    sites: bool,

    /// Threads that read
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZero<u16>>,

    /// Directory with the proc and sys of the machine to look at
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    root: PathBuf,
}

/// Scans.
///
/// # Errors
/// When the machine does not say even what everyone may know, or the output cannot be written.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let system = System::at(&arguments.root);
    let mut pace = Pace::default();
    if let Some(threads) = arguments.threads {
        pace.threads = usize::from(threads.get());
    }
    let options = Options {
        pace,
        frames: !arguments.quick,
        sites: arguments.sites,
    };
    let report = look(&system, options, &mut Nobody)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &report).context("standard output")?;
        writeln!(out)?;
    } else {
        text::write(&mut out, &report)?;
    }
    out.flush()?;
    Ok(())
}
