//! `contigua-node manual`: writes man pages and shell completions, which packages install.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

/// Write man pages and shell completions
#[derive(Args)]
pub struct Arguments {
    /// Directory to write them to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes them.
///
/// # Errors
/// When the directory cannot be written to.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let directory = &arguments.directory;
    let wrong = || directory.display().to_string();
    fs::create_dir_all(directory).with_context(wrong)?;
    let command = crate::Arguments::command();
    clap_mangen::generate_to(command.clone(), directory).with_context(wrong)?;
    for &shell in Shell::value_variants() {
        if matches!(shell, Shell::Bash | Shell::Zsh | Shell::Fish) {
            clap_complete::generate_to(shell, &mut command.clone(), "contigua-node", directory)
                .with_context(wrong)?;
        }
    }
    Ok(())
}
