//! `contigua-node scan`: what every frame of this machine is, and how contiguous its memory is.

mod picture;
mod summary;
mod table;
mod text;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use contigua_live::blocks::{Block, ByBlock};
use contigua_live::picture::Look;
use contigua_live::proc::System;
use contigua_live::report::{LookError, Options, Report, look};
use contigua_live::scan::{Pace, Run, Sink};
use contigua_live::snapshot::SnapshotWriter;

use crate::commands::Root;
use crate::output::{Output, Outputs, print};
use table::BlockTable;

/// Look at every frame of memory: what it is, how contiguous memory is, and who is in the way
///
/// Frames may be looked at by root, or with `CAP_DAC_READ_SEARCH` and `CAP_SYS_ADMIN`; others get
/// what the kernel's summaries say.
#[derive(Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command line"
)]
pub struct Arguments {
    /// Print the report as JSON
    #[arg(long, conflicts_with = "picture")]
    json: bool,

    /// Write a table with a row for each block of 2 MB
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,

    /// Write everything to a file that `contigua fleet report` and `contigua run --age` read
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,

    /// Write a picture of physical memory
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,

    /// Show a picture of physical memory
    #[arg(long)]
    picture: bool,

    /// Do not look at frames: only what the kernel's own summaries say, in no time
    #[arg(long, conflicts_with_all = ["parquet", "snapshot", "png", "picture", "sites"])]
    quick: bool,

    /// Name the allocation sites of unmovable frames, on kernels booted with `page_owner=on` (slow)
    #[arg(long)]
    sites: bool,

    /// Threads that read
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZero<u16>>,

    #[command(flatten)]
    root: Root,
}

/// Scans.
///
/// # Errors
/// When the machine does not say even what everyone may know, or the output cannot be written.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
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
    let mut files = Files::open(arguments, &system)?;
    let report = files.look(&system, options)?;
    let wants_frames = arguments.parquet.is_some()
        || arguments.snapshot.is_some()
        || arguments.png.is_some()
        || arguments.picture;
    if report.frames.is_none() && wants_frames {
        let missing = report.missing.first();
        let why = missing.map_or_else(String::new, |of| {
            format!("{}; it takes {}", of.why, of.needs)
        });
        bail!("files and pictures show frames, and these cannot be seen: {why}");
    }
    let printed = print(|mut out| {
        if arguments.json {
            serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
            writeln!(out)
        } else if arguments.picture {
            picture::print(&mut out, &files.looks)
        } else {
            text::write(&mut out, &report)
        }
    });
    let mut outputs = std::mem::take(&mut files.outputs);
    outputs.note(printed);
    if let Some(path) = &arguments.png {
        outputs.note(picture::write_png(path, &files.looks));
    }
    files.finish(&report, &mut outputs);
    Ok(outputs.code())
}

/// Whoever sees the runs of a scan.
struct Files<'a> {
    snapshot: Option<(SnapshotWriter<'a, File>, Output)>,
    table: Option<BlockTable>,
    looks: Vec<Look>,
    outputs: Outputs,
}

impl Files<'_> {
    fn open(arguments: &Arguments, system: &System) -> anyhow::Result<Self> {
        let snapshot = match &arguments.snapshot {
            Some(path) => {
                let output = Output::create(path)?;
                let file = output.file()?;
                let writer = SnapshotWriter::new(file).with_context(|| output.name())?;
                Some((writer, output))
            }
            None => None,
        };
        let table = match &arguments.parquet {
            Some(path) => Some(BlockTable::create(path, &system.zones()?)?),
            None => None,
        };
        Ok(Self {
            snapshot,
            table,
            looks: Vec::new(),
            outputs: Outputs::default(),
        })
    }

    fn look(&mut self, system: &System, options: Options) -> Result<Report, LookError> {
        let Self {
            snapshot,
            table,
            looks,
            outputs,
        } = self;
        let noted = RefCell::new(outputs);
        let mut runs = Split {
            snapshot,
            outputs: &noted,
            blocks: ByBlock::new(|block: &Block| {
                looks.push(Look::of(block));
                if let Some(writer) = table
                    && let Err(error) = writer.push(block)
                {
                    noted
                        .borrow_mut()
                        .note(Err(error).with_context(|| writer.name()));
                    *table = None;
                }
                Ok(())
            }),
        };
        let report = look(system, options, &mut runs)?;
        runs.blocks.finish()?;
        Ok(report)
    }

    fn finish(self, report: &Report, outputs: &mut Outputs) {
        if let Some((writer, output)) = self.snapshot {
            let written = writer.finish(report).with_context(|| output.name());
            outputs.note(written.and_then(|_| output.keep()));
        }
        if let Some(table) = self.table {
            outputs.note(table.finish(report));
        }
    }
}

/// Sink for snapshot and blocks; notes a failed snapshot and goes on with the blocks.
struct Split<'a, 'b, F> {
    snapshot: &'a mut Option<(SnapshotWriter<'b, File>, Output)>,
    outputs: &'a RefCell<&'a mut Outputs>,
    blocks: ByBlock<F>,
}

impl<F: FnMut(&Block) -> io::Result<()>> Sink for Split<'_, '_, F> {
    fn take(&mut self, run: Run) -> io::Result<()> {
        if let Some((writer, output)) = self.snapshot
            && let Err(error) = writer.take(run)
        {
            let written = Err(error).with_context(|| output.name());
            self.outputs.borrow_mut().note(written);
            *self.snapshot = None;
        }
        self.blocks.take(run)
    }
}
