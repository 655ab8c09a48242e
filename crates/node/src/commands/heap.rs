//! `contigua-node heap`: statistics of processes that run under our malloc, and their heap profiles.

mod profile;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use contigua_input::Printable;
use contigua_telemetry::{Error, Figure, Kind, Reader, Unit};
use serde::Serialize;

use crate::metrics;
use crate::output::{Output, complain, print};
use crate::text::{Table, count, duration, size};
use profile::{Profile, encode};

/// Show the heap of processes that run under `libcontigua_malloc`
///
/// Processes of other users take root, or `CAP_SYS_PTRACE`. Names of functions are read from the files that the process
/// had mapped.
#[derive(Args)]
pub struct Arguments {
    /// The processes
    #[arg(value_name = "PID", required_unless_present_any = ["all", "profile"])]
    processes: Vec<u32>,

    /// All processes with statistics
    #[arg(long, conflicts_with = "processes")]
    all: bool,

    /// Print statistics as JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,

    /// Print statistics as Prometheus metrics
    #[arg(long)]
    prometheus: bool,

    /// Show a heap profile that the library wrote (`CONTIGUA_MALLOC_PROFILE`)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["processes", "all", "json", "prometheus"])]
    profile: Option<PathBuf>,

    /// Write it for `pprof`, instead
    #[arg(long, value_name = "FILE", requires = "profile", conflicts_with_all = ["processes", "all"])]
    pprof: Option<PathBuf>,
}

/// The version of the JSON; it grows when a key changes its meaning or goes.
const SCHEMA: u32 = 1;

/// A process in the JSON, which is an array of them.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProcessReport<'a> {
    /// The version of this JSON.
    schema: u32,
    /// The process.
    pid: u32,
    /// Its name, which it may choose.
    command: &'a str,
    /// Statistics by name, with the unit at its end; the allocator of the process decides which.
    statistics: BTreeMap<String, u64>,
}

struct Process {
    number: u32,
    command: String,
    figures: Vec<Figure>,
}

/// Shows statistics.
///
/// # Errors
/// When a process that was named shows none, or none does.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(path) = &arguments.profile {
        return show_profile(path, arguments.pprof.as_deref());
    }
    let processes = if arguments.all {
        find_all()?
    } else {
        let named = arguments.processes.iter();
        named
            .map(|&number| read(number))
            .collect::<Result<_, _>>()?
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &json(&processes)?).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if arguments.prometheus {
        out.write_all(prometheus(&processes).as_bytes())?;
    } else {
        write_text(&mut out, &processes)?;
    }
    out.flush()?;
    Ok(())
}

fn show_profile(path: &Path, pprof: Option<&Path>) -> anyhow::Result<()> {
    let profile = Profile::read(path).with_context(|| path.display().to_string())?;
    let Some(pprof) = pprof else {
        return print(|out| profile::write(out, &profile));
    };
    let output = Output::create(pprof)?;
    let written = output.file()?.write_all(&encode(&profile));
    written.with_context(|| output.name())?;
    output.keep()
}

fn read(number: u32) -> Result<Process, Error> {
    let page = Reader::of_process(number)?.read()?;
    // Any bytes: a process names itself.
    let command = fs::read(format!("/proc/{number}/comm")).unwrap_or_default();
    Ok(Process {
        number,
        command: String::from_utf8_lossy(&command)
            .trim_end_matches('\n')
            .to_owned(),
        figures: page.known().collect(),
    })
}

fn find_all() -> anyhow::Result<Vec<Process>> {
    let mut processes = Vec::new();
    let mut denied = 0;
    for entry in fs::read_dir("/proc").context("/proc")? {
        let name = entry.context("/proc")?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match read(number) {
            Ok(process) => processes.push(process),
            // Most processes show none, and some end while we look.
            Err(Error::NoPage { .. } | Error::NoProcess { .. }) => {}
            Err(Error::Denied { .. }) => denied += 1,
            Err(error) => complain(error),
        }
    }
    if processes.is_empty() {
        match denied {
            0 => {
                bail!("no process has statistics; start one with LD_PRELOAD=libcontigua_malloc.so")
            }
            _ => bail!(
                "no process that we may look at has statistics; {denied} others take root or \
                 CAP_SYS_PTRACE"
            ),
        }
    }
    processes.sort_unstable_by_key(|process| process.number);
    Ok(processes)
}

fn write_text(out: &mut impl Write, processes: &[Process]) -> io::Result<()> {
    let out = &mut Printable(out);
    for process in processes {
        writeln!(out, "process {} ({})", process.number, process.command)?;
        let mut table = Table::explained();
        for figure in &process.figures {
            let value = match figure.unit {
                Unit::Bytes => size(figure.value),
                Unit::Nanoseconds => duration(figure.value as f64 / 1e9),
                Unit::Count => count(figure.value),
            };
            let name = match figure.unit {
                Unit::Nanoseconds => "written, since the machine started".to_owned(),
                _ => figure.name.replace('_', " "),
            };
            table.row([name, value, figure.help.to_owned()]);
        }
        table.lines().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(())
}

fn json(processes: &[Process]) -> serde_json::Result<serde_json::Value> {
    let processes = processes.iter().map(|process| ProcessReport {
        schema: SCHEMA,
        pid: process.number,
        command: &process.command,
        statistics: process
            .figures
            .iter()
            .map(|figure| (key(figure), figure.value))
            .collect(),
    });
    serde_json::to_value(processes.collect::<Vec<_>>())
}

/// A figure's name, with its unit.
fn key(figure: &Figure) -> String {
    match figure.unit {
        Unit::Bytes => format!("{}_bytes", figure.name),
        Unit::Nanoseconds => "written_nanoseconds".to_owned(),
        Unit::Count => figure.name.to_owned(),
    }
}

fn prometheus(processes: &[Process]) -> String {
    let mut metrics = metrics::Metrics::default();
    // A newer process may have figures that an older one lacks.
    let most = processes.iter().max_by_key(|process| process.figures.len());
    for (index, figure) in most
        .iter()
        .flat_map(|process| process.figures.iter().enumerate())
    {
        let (unit, kind, divisor) = match (figure.unit, figure.kind) {
            (Unit::Bytes, Kind::Counter) => ("_bytes_total", metrics::Kind::Counter, 1.0),
            (Unit::Bytes, Kind::Gauge) => ("_bytes", metrics::Kind::Gauge, 1.0),
            (Unit::Nanoseconds, _) => ("_seconds", metrics::Kind::Gauge, 1e9),
            (Unit::Count, Kind::Counter) => ("_total", metrics::Kind::Counter, 1.0),
            (Unit::Count, Kind::Gauge) => ("", metrics::Kind::Gauge, 1.0),
        };
        let name = figure.name.trim_end_matches("_total");
        let name = if figure.unit == Unit::Nanoseconds {
            "written"
        } else {
            name
        };
        metrics.family(&format!("contigua_heap_{name}{unit}"), kind, figure.help);
        for process in processes {
            if let Some(figure) = process.figures.get(index) {
                let number = process.number.to_string();
                let labels = [("pid", number.as_str()), ("command", &process.command)];
                metrics.figure(&labels, figure.value as f64 / divisor);
            }
        }
    }
    metrics.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_a_version_and_units() {
        let page = contigua_telemetry::Page {
            figures: 32,
            heap_used: 4096,
            huge_intact: 2,
            nanoseconds: 7,
            ..contigua_telemetry::Page::default()
        };
        let process = Process {
            number: 7,
            command: "p".to_owned(),
            figures: page.known().collect(),
        };
        let json = json(&[process]).unwrap();
        assert_eq!(json[0]["schema"], SCHEMA);
        let statistics = &json[0]["statistics"];
        assert_eq!(statistics["heap_used_bytes"], 4096);
        assert_eq!(statistics["huge_intact"], 2);
        assert_eq!(statistics["written_nanoseconds"], 7);
        let all = statistics.as_object().unwrap();
        assert_eq!(all.len(), contigua_telemetry::Page::NAMES.len());
    }

    #[test]
    fn a_process_cannot_speak_to_the_terminal_by_its_name() {
        let process = Process {
            number: 7,
            command: "\x1b]0;owned\x07\u{9b}2J".to_owned(),
            figures: Vec::new(),
        };
        let mut out = Vec::new();
        write_text(&mut out, &[process]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "process 7 (\\u{1b}]0;owned\\u{7}\\u{9b}2J)\n");
    }
}
