//! One file each for the commands.

pub(crate) mod apply;
pub(crate) mod guard;
pub(crate) mod heap;
mod manual;
mod record;
mod scan;
pub(crate) mod tlb;
mod watch;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use contigua_units::Nanoseconds;

/// Where the machine's files are.
#[derive(Args)]
pub struct Root {
    /// Directory with the proc and sys of the machine
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    root: PathBuf,
}

impl Deref for Root {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.root
    }
}

/// Reads a time above 0; without a unit in seconds.
fn some_time(text: &str) -> Result<Nanoseconds, String> {
    match Nanoseconds::seconds(text) {
        Ok(time) if time.get() == 0 => Err("a time above 0 is needed, such as 15s".to_owned()),
        time => time.map_err(|error| error.to_string()),
    }
}

/// Command of the operator.
#[derive(Subcommand)]
pub enum Command {
    Apply(Box<apply::Arguments>),
    Scan(scan::Arguments),
    Watch(watch::Arguments),
    Heap(heap::Arguments),
    Tlb(tlb::Arguments),
    Guard(Box<guard::Arguments>),
    Record(record::Arguments),
    #[command(hide = true)]
    Manual(manual::Arguments),
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    ///
    /// Whatever the command reports, in one line.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Apply(arguments) => return apply::run(&arguments),
            Self::Scan(arguments) => return scan::run(&arguments),
            Self::Watch(arguments) => watch::run(&arguments)?,
            Self::Heap(arguments) => heap::run(&arguments)?,
            Self::Tlb(arguments) => tlb::run(&arguments)?,
            Self::Record(arguments) => record::run(&arguments)?,
            Self::Manual(arguments) => manual::run(&arguments)?,
            Self::Guard(arguments) => return guard::run(*arguments),
        }
        Ok(ExitCode::SUCCESS)
    }
}
