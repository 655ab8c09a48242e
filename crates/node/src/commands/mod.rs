//! One file for each command.

use clap::Subcommand;

/// What to do.
#[derive(Subcommand)]
pub enum Command {}

impl Command {
    /// Does it.
    ///
    /// # Errors
    ///
    /// Whatever the command reports, in one line.
    pub fn run(self) -> anyhow::Result<()> {
        match self {}
    }
}
