//! One file each for the commands.

mod guard;
mod scan;

use std::process::ExitCode;

use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    Scan(scan::Arguments),
    Guard(Box<guard::Arguments>),
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    ///
    /// Whatever the command reports, in one line.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Scan(arguments) => scan::run(&arguments)?,
            Self::Guard(arguments) => return guard::run(*arguments),
        }
        Ok(ExitCode::SUCCESS)
    }
}
