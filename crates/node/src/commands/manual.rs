//! `contigua-node manual`: writes man pages and shell completions, which packages install, and the
//! command's page of the documentation.

use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::output::Output;

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

/// A table of all commands, each with its arguments and options under it. It is committed as
/// `docs/reference/contigua-node.md`; a test compares.
fn markdown(command: Command) -> String {
    let mut text = String::from(
        "# contigua-node\n\nWritten by `contigua-node manual`; the [operator's guide](../node.md) \
         explains the values. Every command has `-h` and `--help`.\n\n\
         | command, option | meaning |\n|---|---|\n",
    );
    let mut command = command.disable_help_subcommand(true);
    command.build();
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        rows(&mut text, inner);
    }
    text
}

/// The rows of a command and its subcommands.
fn rows(text: &mut String, command: &Command) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let paragraphs = about.split("\n\n").map(|each| each.trim_end_matches('.'));
    let about = cell(&paragraphs.collect::<Vec<_>>().join(". "));
    let _ = writeln!(text, "| **{name}** | **{about}** |");
    for argument in command.get_arguments().filter(|a| !a.is_hide_set()) {
        if !["help", "version"].contains(&argument.get_id().as_str()) {
            let shape = cell(&argument.to_string());
            let _ = writeln!(text, "| `{shape}` | {} |", meaning(argument));
        }
    }
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        rows(text, inner);
    }
}

/// Returns the description of an argument, its possible values, and its default.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    if argument.get_action().takes_values() {
        for value in argument.get_possible_values() {
            let help = value.get_help().map(ToString::to_string);
            let _ = write!(
                text,
                "; `{}`: {}",
                value.get_name(),
                help.unwrap_or_default()
            );
        }
        let defaults = argument.get_default_values();
        for default in defaults
            .iter()
            .filter(|_| !argument.is_hide_default_value_set())
        {
            let _ = write!(text, " (default: `{}`)", default.to_string_lossy());
        }
    }
    cell(&text)
}

/// Text in one line that cannot break a table.
fn cell(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.replace('|', "\\|")
}
