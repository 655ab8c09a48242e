//! Verification of an advice: a program with and without it, in turns.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

use super::advice::Advice;
use super::start::{Changes, Outcome, ReportFile, spawn};
use super::{Arguments, Item, Libraries, changes, command, rules, save};
use crate::output::print;

/// Two-sided 95 % quantiles of Student's t distribution, by degrees of freedom from 1 on (any table of it); the
/// last one is for more.
const T95: [f64; 31] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042, 2.042,
];

/// Mean of a share, and half of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Saving {
    mean: f64,
    half_width: f64,
}

impl Saving {
    /// From savings of pairs, of which there are two at least.
    fn of(pairs: &[f64]) -> Self {
        let count = pairs.len() as f64;
        let mean = pairs.iter().sum::<f64>() / count;
        let squares: f64 = pairs.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        let freedom = (pairs.len() - 1).clamp(1, T95.len());
        Self {
            mean,
            half_width: T95[freedom - 1] * error,
        }
    }

    /// The interval is above 0.
    fn holds(self) -> bool {
        self.mean > self.half_width
    }

    fn words(self) -> String {
        format!(
            "{:.1} % ± {:.1}",
            100.0 * self.mean,
            100.0 * self.half_width
        )
    }
}

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
    let mut clock = Clock::open()?;
    let whole = measure(arguments, advice, None, libraries, &mut clock)?;
    let expected = advice.basis.saving.map(|mean| Saving {
        mean,
        half_width: advice.basis.half_width,
    });
    let expected = expected.map_or(String::new(), |saving| {
        format!(" (expected: {})", saving.words())
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
    for index in chosen.iter().copied() {
        let alone = match chosen.len() {
            1 => whole,
            _ => measure(arguments, advice, Some(index), libraries, &mut clock)?,
        };
        let item = &mut advice.items[index];
        let expected = Saving {
            mean: item.saving,
            half_width: item.half_width,
        };
        let (said, expected) = (alone.words(), expected.words());
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

fn measure(
    arguments: &Arguments,
    advice: &Advice,
    only: Option<usize>,
    libraries: &Libraries<'_>,
    clock: &mut Clock,
) -> anyhow::Result<Saving> {
    let changes = changes(advice, only, libraries)?;
    let items: Vec<&Item> = advice.chosen(only).collect();
    let names: Vec<&str> = rules(&items).map(|item| item.name.as_str()).collect();
    let nothing = Changes::default();
    // The first runs read files from the disk.
    let outcome = one(arguments, &changes, clock)?.1;
    if let Some(outcome) = outcome {
        outcome.complain(&names);
    }
    let pairs = (0..arguments.pairs).map(|pair| {
        let mut times = [0.0; 2];
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for with in order {
            let changes = if with == 1 { &changes } else { &nothing };
            times[with] = one(arguments, changes, clock)?.0;
        }
        if times[0] <= 0.0 {
            bail!("the program takes too little CPU time to compare");
        }
        Ok(1.0 - times[1] / times[0])
    });
    let pairs: Vec<f64> = pairs.collect::<anyhow::Result<_>>()?;
    Ok(Saving::of(&pairs))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        // R: t.test(c(0.10, 0.12, 0.14, 0.08)): mean 0.11, interval 0.06891 to 0.15109.
        let saving = Saving::of(&[0.10, 0.12, 0.14, 0.08]);
        assert!((saving.mean - 0.11).abs() < 1e-12, "{saving:?}");
        assert!((saving.half_width - 0.041_08).abs() < 2e-5, "{saving:?}");
        assert!(saving.holds());
        assert!(!Saving::of(&[0.1, -0.1, 0.05]).holds());
        assert!(Saving::of(&[0.1; 40]).half_width < 1e-12);
    }
}
