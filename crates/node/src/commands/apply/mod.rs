//! `contigua-node apply`: a program with the changes of an advice, without touching its files.

mod advice;
mod program;
mod saving;
mod start;
mod verify;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use contigua_live::proc::System;

use crate::output::{Output, complain};
pub(crate) use advice::Advice;
use advice::{Action, Item};
use program::Program;
use start::Changes;

/// The library with the rules for mappings.
const LIBRARY: &str = "libcontigua_apply.so";
/// The malloc, by the names that builds and packages give it.
const MALLOC: [&str; 2] = ["libcontigua_malloc.so", "libcontigua_malloc.so.0"];

/// Run a program with the page sizes that `contigua profile --advice` found to help
///
/// Nothing is changed but this execution: memory that the advice names gets huge pages, through environment variables
/// and a small library. An advice for another program is refused. A mapping that the program does not make is reported
/// when it ends; nothing else changes.
#[derive(Args)]
pub struct Arguments {
    /// Run the program with and without the advice in turns, and tell whether it holds (exit status 1 if not)
    #[arg(long, conflicts_with = "exec")]
    verify: bool,

    /// Pairs of runs for --verify
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(i64::from(saving::LEAST_PAIRS)..=1000))]
    pairs: u32,

    /// With --verify: write the advice, with what did not help marked as withdrawn
    #[arg(long, value_name = "FILE", requires = "verify")]
    save: Option<PathBuf>,

    /// Become the program, and report nothing when it ends: for services
    #[arg(long)]
    exec: bool,

    /// Folder with the preloaded libraries
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    libraries: Option<PathBuf>,

    /// Directory with the sys of the machine, to ask for its page sizes
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,

    /// The file of `contigua profile --advice`
    #[arg(value_name = "ADVICE")]
    advice: PathBuf,

    /// The program and its arguments, after --
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    program: Vec<OsString>,
}

/// Runs the program; its exit status is the command's.
///
/// # Errors
/// When the advice cannot be applied to it: then it does not run.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut advice = Advice::read(&arguments.advice)?;
    let program = Program::find(&arguments.program[0])?;
    program.check(&advice)?;
    if advice.needs_loader() {
        program.check_loader()?;
    }
    let libraries = Libraries(arguments.libraries.as_deref());
    let mode = thp_mode(&System::at(&arguments.root));
    if mode.as_deref() == Some("never") {
        let what = "transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled is never): the advice has \
                    no effect";
        if arguments.verify {
            bail!("{what}");
        }
        complain(format_args!(
            "{what}; {} runs without it",
            arguments.program[0].display()
        ));
        return start::run(&mut command(&arguments.program), None, &[]);
    }
    if arguments.verify {
        return verify::run(arguments, &mut advice, &libraries);
    }
    let items: Vec<&Item> = advice.chosen(None).collect();
    let changes = changes(&advice, None, &libraries)?;
    let mut command = command(&arguments.program);
    changes.apply(&mut command);
    if arguments.exec {
        return Err(command.exec()).context(arguments.program[0].display().to_string());
    }
    let rules: Vec<&str> = rules(&items).map(|item| item.name.as_str()).collect();
    start::run(&mut command, Some(&changes), &rules)
}

/// Items that the library does, in the order of its rules.
fn rules<'a>(items: &'a [&'a Item]) -> impl Iterator<Item = &'a Item> {
    items.iter().copied().filter(|item| item.is_rule())
}

fn command(program: &[OsString]) -> Command {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    command
}

/// Changes of an advice, or of one of its items.
fn changes(
    advice: &Advice,
    only: Option<usize>,
    libraries: &Libraries<'_>,
) -> anyhow::Result<Changes> {
    let has = |action| advice.chosen(only).any(|item| item.action == action);
    let mut changes = Changes {
        rules: advice.rules(only),
        malloc_huge_pages: has(Action::MallocHugePages),
        libraries: Vec::new(),
    };
    if changes.rules.is_some() {
        changes.libraries.push(libraries.find(&[LIBRARY])?);
    }
    if has(Action::ContiguaMalloc) {
        changes.libraries.push(libraries.find(&MALLOC)?);
    }
    Ok(changes)
}

/// The chosen mode of transparent huge pages; `None` where the kernel has none.
fn thp_mode(system: &System) -> Option<String> {
    let text = system
        .text("sys/kernel/mm/transparent_hugepage/enabled")
        .ok()?;
    let (_, rest) = text.as_str().split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Where libraries to preload are: in a folder that was named, or about this program.
struct Libraries<'a>(Option<&'a Path>);

impl Libraries<'_> {
    fn find(&self, names: &[&str]) -> anyhow::Result<PathBuf> {
        let folders: Vec<PathBuf> = if let Some(folder) = self.0 {
            vec![folder.to_owned()]
        } else {
            let program = std::env::current_exe()?.canonicalize()?;
            let beside = program.parent().unwrap_or(Path::new("/")).to_owned();
            let own = beside.join("../lib/contigua-node");
            let system = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
            vec![own, beside.join("../lib"), system.into(), beside]
        };
        let files = folders
            .iter()
            .flat_map(|folder| names.iter().map(|name| folder.join(name)));
        let found = files
            .filter_map(|file| file.canonicalize().ok())
            .find(|file| file.is_file());
        let found = found.with_context(|| {
            let folders: Vec<String> = folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            format!(
                "{} is in none of {}: name its folder with --libraries",
                names[0],
                folders.join(", ")
            )
        })?;
        let text = found.to_string_lossy();
        if text.contains([':', ' ', '\u{fffd}']) {
            bail!(
                "{}: the loader takes no path with a space or colon",
                found.display()
            );
        }
        Ok(found)
    }
}

/// Writes an advice.
fn save(advice: &Advice, path: &Path) -> anyhow::Result<()> {
    let output = Output::create(path)?;
    let text = toml::to_string(advice)?;
    std::io::Write::write_all(&mut output.file()?, text.as_bytes())
        .with_context(|| output.name())?;
    output.keep()
}
