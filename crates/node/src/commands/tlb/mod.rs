//! `contigua-node tlb`: how much of its time a processor walks page tables.
//!
//! Contiguitas, section 2.3 and figure 3: cycles of page walks as a share of all cycles, for
//! instructions and for data.

mod events;

use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use contigua_live::proc::System;
use contigua_units::Nanoseconds;
use perf_event::events::{Hardware, Raw};
use perf_event::{Builder, Counter};
use serde::Serialize;

use crate::commands::some_time;
use crate::text::{count, percent};
use events::{Event, Measure, Processor};

/// The version of the JSON; it grows when a key changes its meaning or goes.
const SCHEMA: u32 = 1;
/// The kernel's list of devices with counters.
const DEVICES: &str = "sys/bus/event_source/devices";

/// Measure the share of cycles that page walks take
///
/// All processors by default, which takes root, `CAP_PERFMON`, or a
/// `kernel.perf_event_paranoid` of 0 or less. Virtual machines often have no counters.
#[derive(Args)]
pub struct Arguments {
    /// Measure a process and those it starts from now on, instead of the whole machine
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,

    /// Duration of the measurement, such as 2m; without a unit in seconds
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = some_time)]
    seconds: Nanoseconds,

    /// Print statistics as JSON
    #[arg(long)]
    json: bool,

    /// Directory with the proc and sys of the machine, to ask what it could count
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Measures.
///
/// # Errors
/// When there are no counters, or they may not be used; says which.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let system = System::at(&arguments.root);
    check_counters(&system)?;
    let processor = Processor::of(&system);
    let kinds = processor.events();
    if kinds.is_empty() {
        bail!(
            "{} ({} family {} model {:#x}) has no counter of page walks that this version knows",
            processor.name,
            processor.vendor,
            processor.family,
            processor.model
        );
    }
    let places = match arguments.pid {
        Some(pid) => vec![Place::Process(pid)],
        None => online_processors(&system)?
            .into_iter()
            .map(Place::Processor)
            .collect(),
    };
    let mut counters = open(&kinds, &places)?;
    counters.each(Counter::enable)?;
    thread::sleep(Duration::from_nanos(arguments.seconds.get()));
    counters.each(Counter::disable)?;
    let figures = counters.read()?;
    if figures.cycles == 0.0 {
        bail!(
            "no cycle was counted in {}: the process slept or has ended",
            arguments.seconds
        );
    }
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", figures.json()?)?;
    } else {
        figures.write(&mut out)?;
    }
    Ok(())
}

/// Fails, with the reason, if the machine has no usable counters.
fn check_counters(system: &System) -> anyhow::Result<()> {
    let folder = system.path(DEVICES);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("this kernel cannot count: it has no {}", folder.display())
        }
        Err(error) => return Err(error).context(folder.display().to_string()),
    };
    let names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    // `cpu_core` on processors of two kinds; the others are ARM's.
    let is_counter = |name: &String| {
        name == "cpu"
            || name == "cpu_core"
            || name.starts_with("armv8")
            || name.starts_with("armv9")
    };
    if !names.iter().any(is_counter) {
        bail!(
            "this machine offers no processor counters: {} has none of a CPU. A virtual machine \
             has them only where its host passes them on (a virtual PMU); measure on the host, or \
             on a machine of the same kind without one",
            folder.display()
        );
    }
    Ok(())
}

fn online_processors(system: &System) -> anyhow::Result<Vec<usize>> {
    let path = "sys/devices/system/cpu/online";
    let text = system.word(path)?;
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |word: &str| {
            word.parse::<usize>()
                .with_context(|| format!("/{path}: {text}"))
        };
        numbers.extend(number(first)?..=number(last)?);
    }
    Ok(numbers)
}

#[derive(Clone, Copy)]
enum Place {
    Process(i32),
    Processor(usize),
}

/// Counters of all places: cycles, instructions and walks of each.
struct Counters {
    cycles: Vec<Counter>,
    instructions: Vec<Counter>,
    walks: Vec<(Event, Counter)>,
    measure: Measure,
}

/// Opens the first kind of counters that all places accept.
fn open(kinds: &[Vec<Event>], places: &[Place]) -> anyhow::Result<Counters> {
    let mut last = None;
    for kind in kinds {
        match open_kind(kind, places) {
            Ok(counters) => return Ok(counters),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| io::Error::other("no counters"));
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ": it takes root, CAP_PERFMON, or a lower kernel.perf_event_paranoid"
        }
        io::ErrorKind::NotFound => ": the processor, or its virtual PMU, does not have them",
        _ => "",
    };
    Err(error).with_context(|| format!("the counters of page walks cannot be opened{hint}"))
}

fn open_kind(kind: &[Event], places: &[Place]) -> io::Result<Counters> {
    let mut counters = Counters {
        cycles: Vec::new(),
        instructions: Vec::new(),
        walks: Vec::new(),
        measure: kind.first().map_or(Measure::Walks, |event| event.measure),
    };
    for &place in places {
        counters.cycles.push(open_one(Hardware::CPU_CYCLES, place)?);
        counters
            .instructions
            .push(open_one(Hardware::INSTRUCTIONS, place)?);
        for &event in kind {
            counters
                .walks
                .push((event, open_one(Raw::new(event.raw), place)?));
        }
    }
    Ok(counters)
}

fn open_one(event: impl perf_event::events::Event, place: Place) -> io::Result<Counter> {
    let mut builder = Builder::new(event);
    match place {
        Place::Process(pid) => builder.observe_pid(pid).any_cpu().inherit(true),
        Place::Processor(cpu) => builder.any_pid().one_cpu(cpu),
    };
    // What the kernel walks for a program counts, too (Contiguitas counts it).
    builder.include_kernel().build()
}

impl Counters {
    fn each(&mut self, act: impl Fn(&mut Counter) -> io::Result<()>) -> io::Result<()> {
        let walks = self.walks.iter_mut().map(|(_, counter)| counter);
        let all = self
            .cycles
            .iter_mut()
            .chain(&mut self.instructions)
            .chain(walks);
        for counter in all {
            act(counter)?;
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<Figures> {
        let mut figures = Figures {
            measure: self.measure,
            cycles: 0.0,
            instructions: 0.0,
            data: 0.0,
            instruction: 0.0,
        };
        for counter in &mut self.cycles {
            figures.cycles += scaled(counter)?;
        }
        for counter in &mut self.instructions {
            figures.instructions += scaled(counter)?;
        }
        for (event, counter) in &mut self.walks {
            let value = scaled(counter)?;
            if event.is_instruction {
                figures.instruction += value;
            } else {
                figures.data += value;
            }
        }
        Ok(figures)
    }
}

/// A count, scaled up where counters took turns.
fn scaled(counter: &mut Counter) -> io::Result<f64> {
    let data = counter.read_full()?;
    let seconds = |time: Option<Duration>| time.map_or(0.0, |time| time.as_secs_f64());
    let (enabled, running) = (seconds(data.time_enabled()), seconds(data.time_running()));
    if running == 0.0 {
        return Ok(0.0);
    }
    Ok(data.count() as f64 * enabled / running)
}

/// Measured counts.
struct Figures {
    measure: Measure,
    cycles: f64,
    instructions: f64,
    data: f64,
    instruction: f64,
}

impl Figures {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{} cycles, {} instructions",
            count(self.cycles as u64),
            count(self.instructions as u64)
        )?;
        match self.measure {
            Measure::Cycles => {
                for (name, walks) in [
                    ("data", self.data),
                    ("instructions", self.instruction),
                    ("both", self.data + self.instruction),
                ] {
                    writeln!(
                        out,
                        "cycles of page walks for {name}: {}",
                        percent(walks / self.cycles)
                    )?;
                }
            }
            Measure::Walks => {
                for (name, walks) in [("data", self.data), ("instructions", self.instruction)] {
                    writeln!(
                        out,
                        "page walks for {name}: {:.2} per 1000 instructions",
                        1000.0 * walks / self.instructions.max(1.0)
                    )?;
                }
                writeln!(out, "this processor counts walks, not their cycles")?;
            }
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        let of = |measure, value: f64| (self.measure == measure).then_some(value);
        let (cycles, walks) = (Measure::Cycles, Measure::Walks);
        serde_json::to_value(WalkReport {
            schema: SCHEMA,
            cycles: self.cycles,
            instructions: self.instructions,
            counts: self.measure,
            data_walks: of(walks, self.data),
            instruction_walks: of(walks, self.instruction),
            data_walk_active_cycles: of(cycles, self.data),
            instruction_walk_active_cycles: of(cycles, self.instruction),
            data_share_of_cycles: of(cycles, self.data / self.cycles),
            instruction_share_of_cycles: of(cycles, self.instruction / self.cycles),
        })
    }
}

/// The JSON. What the processor does not count is null.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WalkReport {
    /// The version of this JSON.
    schema: u32,
    /// Cycles in user mode and in the kernel.
    cycles: f64,
    /// Instructions.
    instructions: f64,
    /// Unit of the processor's page-walk counters.
    counts: Measure,
    /// Page walks for data.
    data_walks: Option<f64>,
    /// Page walks for instructions.
    instruction_walks: Option<f64>,
    /// Cycles in which a page walk for data is active.
    data_walk_active_cycles: Option<f64>,
    /// Cycles in which a page walk for instructions is active.
    instruction_walk_active_cycles: Option<f64>,
    /// Their share of all cycles, 0 to 1.
    data_share_of_cycles: Option<f64>,
    /// Their share of all cycles, 0 to 1.
    instruction_share_of_cycles: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_all_cycles() {
        let mut figures = Figures {
            measure: Measure::Cycles,
            cycles: 1000.0,
            instructions: 500.0,
            data: 140.0,
            instruction: 60.0,
        };
        let text = |figures: &Figures| {
            let mut out = Vec::new();
            figures.write(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(text(&figures).contains("for data: 14.0 %\n"));
        assert!(text(&figures).contains("for both: 20.0 %\n"));
        let json = figures.json().unwrap();
        assert_eq!(json["schema"], SCHEMA);
        assert_eq!(json["data_share_of_cycles"], 0.14);
        assert_eq!(json["data_walk_active_cycles"], 140.0);
        assert!(json["data_walks"].is_null());
        figures.measure = Measure::Walks;
        assert!(text(&figures).contains("for data: 280.00 per 1000 instructions"));
        let json = figures.json().unwrap();
        assert!(json["data_share_of_cycles"].is_null());
        assert!(json["data_walk_active_cycles"].is_null());
        assert_eq!(json["data_walks"], 140.0);
    }

    #[test]
    fn a_machine_without_counters_is_told_plainly() {
        let folder = tempfile::tempdir().unwrap();
        let system = System::at(folder.path());
        let error = check_counters(&system).unwrap_err().to_string();
        assert!(error.starts_with("this kernel cannot count"), "{error}");
        let devices = folder.path().join(DEVICES);
        std::fs::create_dir_all(devices.join("software")).unwrap();
        let error = check_counters(&system).unwrap_err().to_string();
        assert!(
            error.starts_with("this machine offers no processor counters"),
            "{error}"
        );
        std::fs::create_dir(devices.join("cpu")).unwrap();
        assert!(check_counters(&system).is_ok());
    }

    #[test]
    fn lists_of_processors_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sys/devices/system/cpu");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("online"), "0-2,5\n").unwrap();
        let system = System::at(folder.path());
        assert_eq!(online_processors(&system).unwrap(), [0, 1, 2, 5]);
        std::fs::write(path.join("online"), "x\n").unwrap();
        assert!(online_processors(&system).is_err());
    }
}
