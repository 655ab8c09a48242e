//! `contigua-node manual`: writes man pages and shell completions, which packages install, and the
//! command's page of the documentation.

use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::output::Output;

/// Columns of the help that the page shows.
const WIDTH: usize = 90;

/// Write man pages, shell completions and the page of the documentation
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
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let made = tempfile::tempdir().context("a temporary directory")?;
    make(made.path()).context("a temporary directory")?;
    for file in fs::read_dir(made.path())? {
        let file = file?;
        let output = Output::create(&directory.join(file.file_name()))?;
        let copied = io::copy(&mut File::open(file.path())?, &mut output.file()?);
        copied.with_context(|| output.name())?;
        output.keep()?;
    }
    Ok(())
}

/// Makes them in a directory that is nobody else's: the generators write through whatever has the
/// name of a file.
fn make(directory: &Path) -> io::Result<()> {
    let command = crate::Arguments::command();
    clap_mangen::generate_to(command.clone(), directory)?;
    for &shell in Shell::value_variants() {
        if matches!(shell, Shell::Bash | Shell::Zsh | Shell::Fish) {
            clap_complete::generate_to(shell, &mut command.clone(), "contigua-node", directory)?;
        }
    }
    fs::write(directory.join("contigua-node.md"), markdown(command))
}

/// The help of the command and of each of its subcommands, under headings. It is committed as
/// `docs/reference/contigua-node.md`; a test compares.
fn markdown(command: Command) -> String {
    let mut text = String::from(
        "# contigua-node\n\nWritten by `contigua-node manual`. The [operator's guide](../node.md) says \
         what the figures mean.\n",
    );
    let mut command = command.term_width(WIDTH).disable_help_subcommand(true);
    command.build();
    section(&mut text, &mut command, 2);
    text
}

fn section(text: &mut String, command: &mut Command, level: usize) {
    let name = command
        .get_bin_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let help = command.render_long_help().to_string();
    let lines = help
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n");
    let marks = "#".repeat(level);
    let _ = write!(
        text,
        "\n{marks} `{name}`\n\n```text\n{}\n```\n",
        lines.trim()
    );
    for inner in command.get_subcommands_mut().filter(|c| !c.is_hide_set()) {
        section(text, inner, (level + 1).min(4));
    }
}
