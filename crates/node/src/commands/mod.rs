//! One file each for the commands.

mod scan;

use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    Scan(scan::Arguments),
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    ///
    /// Whatever the command reports, in one line.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Scan(arguments) => scan::run(&arguments),
        }
    }
}
