//! Files that appear whole or not at all, and what is said where one does not.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

/// Makes a file that would exceed the limit of file sizes an error of the write (`EFBIG`), which
/// names the file. Linux's default is to end the process (`SIGXFSZ`).
///
/// # Errors
/// When signals cannot be handled.
pub fn survive_size_limits() -> io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).map(drop)
}

/// A result that is being written, and what it is called.
pub struct Output {
    name: String,
    output: contigua_output::Output,
}

impl Output {
    /// Begins a file; `-` is standard output.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let output = contigua_output::Output::create(path).with_context(|| name.clone())?;
        Ok(Self { name, output })
    }

    /// To write to.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn file(&self) -> anyhow::Result<File> {
        self.output.file().with_context(|| self.name())
    }

    /// Returns the name of the finished file.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// When it cannot be written or renamed.
    pub fn keep(self) -> anyhow::Result<()> {
        self.output.keep().context(self.name)
    }
}

/// The outputs of a command. One that cannot be written does not keep others from it.
#[derive(Default)]
pub struct Outputs {
    has_failed: bool,
}

impl Outputs {
    /// Says why an output is not there, if it is not.
    pub fn note(&mut self, written: anyhow::Result<()>) {
        if let Err(error) = written {
            self.has_failed = true;
            complain(format_args!("{error:#}"));
        }
    }

    /// The command's exit status.
    pub fn code(&self) -> ExitCode {
        if self.has_failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

/// Prints with `print`. Whoever read our output may have seen enough, as `| head` does.
///
/// # Errors
/// When standard output cannot be written for another reason.
pub fn print(print: impl FnOnce(&mut dyn Write) -> Result<(), io::Error>) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match print(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Says something on standard error; where that is gone, nobody can be told. It may quote what
/// others wrote.
pub fn complain(what: impl std::fmt::Display) {
    let said = what.to_string();
    let said = contigua_input::printable_lines(&said);
    let _ = writeln!(io::stderr(), "contigua-node: {said}");
}
