//! `contigua-node manual`: writes man pages and shell completions, which packages install, and the
//! command's page of the documentation.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;

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
    let page = directory.join("contigua-node.md");
    fs::write(&page, markdown(command)).with_context(|| page.display().to_string())?;
    Ok(())
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
