//! Starting a program with changes, waiting for it, and what came of the changes.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::thread;

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tempfile::NamedTempFile;

use crate::output::complain;

/// The library's variables (`crates/apply`).
const RULES: &str = "CONTIGUA_APPLY";
const REPORT: &str = "CONTIGUA_APPLY_REPORT";
/// Bytes of the library's report: more than it needs.
const REPORT_BYTES: u64 = 4096;
const MALLOC_HUGE_PAGES: &str = "glibc.malloc.hugetlb=1";

/// Changes to a program's environment.
#[derive(Default)]
pub struct Changes {
    /// The library's rules.
    pub rules: Option<String>,
    /// The C library's malloc uses huge pages.
    pub malloc_huge_pages: bool,
    /// Libraries that are loaded before the program's.
    pub libraries: Vec<PathBuf>,
}

impl Changes {
    /// Adds them to a command.
    pub fn apply(&self, command: &mut Command) {
        command.env_remove(RULES).env_remove(REPORT);
        if let Some(rules) = &self.rules {
            command.env(RULES, rules);
        }
        if self.malloc_huge_pages {
            command.env(
                "GLIBC_TUNABLES",
                with("GLIBC_TUNABLES", [MALLOC_HUGE_PAGES.into()]),
            );
        }
        if !self.libraries.is_empty() {
            let libraries = self
                .libraries
                .iter()
                .map(|library| library.clone().into_os_string());
            command.env("LD_PRELOAD", with("LD_PRELOAD", libraries));
        }
    }
}

/// A variable's value, with ours before what is there.
fn with(variable: &str, ours: impl IntoIterator<Item = OsString>) -> OsString {
    let before = env::var_os(variable).filter(|value| !value.is_empty());
    let all: Vec<OsString> = ours.into_iter().chain(before).collect();
    all.join(":".as_ref())
}

/// Results of the rules in the processes of a program.
pub struct Outcome {
    words: Vec<u64>,
}

impl Outcome {
    /// Processes of the program that had the library.
    fn processes(&self) -> u64 {
        self.words[0]
    }

    /// Mappings that a rule named, and the last error of one that the kernel refused.
    fn rule(&self, index: usize) -> (u64, i32) {
        (self.words[1 + 2 * index], self.words[2 + 2 * index] as i32)
    }

    /// Reports the rules that did not work, by their names.
    pub fn complain(&self, rules: &[&str]) {
        if rules.is_empty() {
            return;
        }
        if self.processes() == 0 {
            complain(
                "the advice was not applied: no process of the program had loaded the library",
            );
            return;
        }
        for (name, index) in rules.iter().zip(0..) {
            match self.rule(index) {
                (0, _) => complain(format_args!(
                    "{name}: the program made no such mapping, nothing was changed for it"
                )),
                (_, 0) => {}
                (count, error) => complain(format_args!(
                    "{name}: found {count} times, and the kernel refused: {}",
                    std::io::Error::from_raw_os_error(error)
                )),
            }
        }
    }
}

/// File in which the library counts.
pub struct ReportFile(NamedTempFile);

impl ReportFile {
    /// Makes it, for a command.
    ///
    /// # Errors
    /// When there is no place for it.
    pub fn new(command: &mut Command) -> anyhow::Result<Self> {
        let file = NamedTempFile::new().context("a file for the library's counts")?;
        file.as_file().set_len(REPORT_BYTES)?;
        command.env(REPORT, file.path());
        Ok(Self(file))
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn read(self) -> anyhow::Result<Outcome> {
        let bytes = fs::read(self.0.path()).context("the library's counts")?;
        let words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let mut words: Vec<u64> = words.collect();
        words.resize(REPORT_BYTES as usize / 8, 0);
        Ok(Outcome { words })
    }
}

/// Runs a program to its end, passes signals on, and reports the rules that did not work. The exit status is the
/// program's.
///
/// # Errors
/// When it cannot be started.
pub fn run(
    command: &mut Command,
    changes: Option<&Changes>,
    rules: &[&str],
) -> anyhow::Result<ExitCode> {
    let report = match changes {
        Some(changes) if changes.rules.is_some() => Some(ReportFile::new(command)?),
        _ => None,
    };
    let mut signals = Signals::new(passed_on())?;
    let mut child = spawn(command)?;
    let handle = signals.handle();
    let process = Pid::from_child(&child);
    let passing = thread::spawn(move || {
        for number in signals.forever() {
            // A terminal sends these to the program, too.
            if !matches!(number, SIGINT | SIGQUIT)
                && let Some(signal) = Signal::from_named_raw(number)
            {
                let _ = kill_process(process, signal);
            }
        }
    });
    // Its number stays its own until it is waited for.
    while waitid(
        WaitId::Pid(process),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
    )
    .is_err_and(|error| error == rustix::io::Errno::INTR)
    {}
    handle.close();
    let _ = passing.join();
    let status = child.wait()?;
    if let Some(report) = report {
        report.read()?.complain(rules);
    }
    Ok(code(status))
}

/// Starts a command.
///
/// # Errors
/// When it cannot be started; names it.
pub fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    let name = command.get_program().display().to_string();
    command.spawn().context(name)
}

fn code(status: ExitStatus) -> ExitCode {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    ExitCode::from(code as u8)
}

/// Signals for the program, without those that are ignored, as under `nohup`.
fn passed_on() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = line
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let all = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    all.into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0)
        .collect()
}
