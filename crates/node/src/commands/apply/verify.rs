//! Verification of an advice: a program with and without it, in turns.

use std::io::{IsTerminal, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

use super::advice::Advice;
use super::saving::Saving;
use super::start::{Changes, Outcome, ReportFile, spawn};
use super::{Arguments, Item, Libraries, changes, command, rules, save};
use crate::output::print;

/// Measures, prints, and writes what holds.
///
/// # Errors
/// When the program fails, or its time cannot be measured.
pub fn run(
    arguments: &Arguments,
    advice: &mut Advice,
    libraries: &Libraries<'_>,
) -> anyhow::Result<ExitCode> {
    let chosen: Vec<usize> = (0..advice.items.len())
        .filter(|&index| advice.items[index].withdrawn.is_none())
        .collect();
    if chosen.is_empty() {
        bail!("the advice has nothing to apply");
    }
    // All changes together, then each alone, where there are several.
    let mut trials = vec![None];
    if chosen.len() > 1 {
        trials.extend(chosen.iter().copied().map(Some));
    }
    let savings = measure(arguments, advice, &trials, libraries)?;
    let whole = savings[0];
    let expected = advice.basis.saving.map_or(String::new(), |saving| {
        format!(" (expected: {})", words(saving, advice.basis.half_width))
    });
    let verdict = if whole.holds() {
        "the advice holds"
    } else {
        "the advice does not hold"
    };
    print(|out| {
        writeln!(
            out,
            "{} pairs: {verdict}; it saves {} of the CPU time{expected}",
            arguments.pairs,
            whole.words()
        )
    })?;
    let mut all_hold = whole.holds();
    // Of one change, all together are it.
    let alone = &savings[savings.len() - chosen.len()..];
    for (index, alone) in chosen.into_iter().zip(alone) {
        let item = &mut advice.items[index];
        let (said, expected) = (alone.words(), words(item.saving, item.half_width));
        let holds = alone.holds();
        if !holds {
            all_hold = false;
            item.withdrawn = Some(format!("--verify: {} pairs save {said}", arguments.pairs));
        }
        let word = if holds { "holds" } else { "withdrawn" };
        let line = format!("{word}: {}: saves {said} (expected: {expected})", item.name);
        print(|out| writeln!(out, "{}", contigua_input::printable(&line)))?;
    }
    if let Some(path) = &arguments.save {
        save(advice, path)?;
    }
    Ok(if all_hold {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn words(mean: f64, half_width: f64) -> String {
    format!("{:.1} % ± {:.1}", 100.0 * mean, 100.0 * half_width)
}

/// Runs the program as it is and with each of some changes, in rounds; what each saves of the round's first kind.
///
/// Rounds begin with another one each time: whatever the computer does meanwhile, it does to all of them.
fn measure(
    arguments: &Arguments,
    advice: &Advice,
    trials: &[Option<usize>],
    libraries: &Libraries<'_>,
) -> anyhow::Result<Vec<Saving>> {
    let mut clock = Clock::open()?;
    let mut kinds = vec![Changes::default()];
    for &only in trials {
        kinds.push(changes(advice, only, libraries)?);
    }
    let (start, rounds) = (Instant::now(), arguments.pairs as usize);
    // The first runs read files from the disk.
    for (kind, &only) in kinds[1..].iter().zip(trials) {
        let items: Vec<&Item> = advice.chosen(only).collect();
        let names: Vec<&str> = rules(&items).map(|item| item.name.as_str()).collect();
        let outcome = one(arguments, kind, &mut clock)?.1;
        if let (Some(outcome), None) = (outcome, only) {
            outcome.complain(&names);
        }
    }
    let mut savings = vec![Vec::with_capacity(rounds); trials.len()];
    let mut times = vec![0.0; kinds.len()];
    for round in 0..rounds {
        tell(round, rounds, start);
        for turn in 0..kinds.len() {
            let kind = (round + turn) % kinds.len();
            times[kind] = one(arguments, &kinds[kind], &mut clock)?.0;
        }
        if times[0] <= 0.0 {
            bail!("the program takes too little CPU time to compare");
        }
        for (saving, time) in savings.iter_mut().zip(&times[1..]) {
            saving.push(1.0 - time / times[0]);
        }
    }
    tell(rounds, rounds, start);
    Ok(savings.iter().map(|pairs| Saving::of(pairs)).collect())
}

/// Shows on a terminal how many rounds are done, and the time that is left; the last one wipes it.
fn tell(done: usize, rounds: usize, start: Instant) {
    let mut out = std::io::stderr();
    if !out.is_terminal() {
        return;
    }
    // The runs before the first round are like one.
    let each = start.elapsed().as_secs_f64() / (done + 1) as f64;
    let left = each * (rounds - done) as f64;
    let line = format!("round {} of {rounds}, {left:.0} s left", done + 1);
    let line = if done == rounds { "" } else { &line };
    // A terminal that fails loses the progress alone.
    let _ = write!(out, "\r\x1b[K{line}");
    let _ = out.flush();
}

/// Runs the program once; its CPU time in seconds, and what came of the rules.
fn one(
    arguments: &Arguments,
    changes: &Changes,
    clock: &mut Clock,
) -> anyhow::Result<(f64, Option<Outcome>)> {
    let mut command: Command = command(&arguments.program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    changes.apply(&mut command);
    let report = match changes.rules {
        Some(_) => Some(ReportFile::new(&mut command)?),
        None => None,
    };
    let before = clock.seconds()?;
    let status = spawn(&mut command)?.wait()?;
    let took = clock.seconds()? - before;
    if !status.success() {
        bail!(
            "{} ended with {status}: --verify compares runs that succeed",
            arguments.program[0].display()
        );
    }
    Ok((took, report.map(ReportFile::read).transpose()?))
}

/// CPU time of this process and those that it starts.
struct Clock(Counter);

impl Clock {
    fn open() -> anyhow::Result<Self> {
        let mut builder = Builder::new(Software::TASK_CLOCK);
        let opened = builder.observe_self().any_cpu().inherit(true).build();
        let mut counter = opened.context("the kernel's clock of CPU time (perf_event_open)")?;
        counter.enable()?;
        Ok(Self(counter))
    }

    fn seconds(&mut self) -> anyhow::Result<f64> {
        Ok(self.0.read()? as f64 / 1e9)
    }
}
