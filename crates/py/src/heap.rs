//! The page heap in virtual time, for Python: demand goes in, the heap's figures come out as JSON.

use std::sync::atomic::{AtomicBool, Ordering};

use contigua_machine::heap::{HeapRun, run};
use contigua_machine::spec::{self, RunSpec};
use contigua_pageheap::replay::{Demand, Removal, Sample, Settings, Summary, replay, spikes};
use contigua_pageheap::{Config, PAGE_BYTES};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::engine_error;

/// The longest replay, in steps: a day of seconds. What is drawn or averaged never needs more.
const LONGEST: f64 = 86_400.0;
const NANOSECONDS: f64 = 1e9;

/// A replay, as Python describes it. Times in seconds, sizes in bytes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct HeapSpec {
    demand: Vec<(f64, u64)>,
    seconds: f64,
    release_rate: u64,
    interval: f64,
    cache_interval: f64,
    schedule: f64,
    collapses: u32,
    sizes: Vec<u64>,
    removal: String,
    seed: u64,
}

impl HeapSpec {
    fn settings(&self) -> PyResult<Settings> {
        let removal = match self.removal.as_str() {
            "oldest" => Removal::Oldest,
            "newest" => Removal::Newest,
            "random" => Removal::Random(self.seed),
            other => {
                return Err(engine_error(format!(
                    "unknown removal {other:?}: known are oldest, newest and random"
                )));
            }
        };
        let pages = |&bytes: &u64| {
            u32::try_from(bytes.div_ceil(PAGE_BYTES as u64))
                .map_err(|_| engine_error(format!("no allocation has {bytes} bytes")))
        };
        Ok(Settings {
            config: Config {
                release_rate: self.release_rate,
                interval: time("interval", self.interval)?,
                cache_interval: time("cache_interval", self.cache_interval)?,
                schedule: time("schedule", self.schedule)?,
                collapses: self.collapses,
                ..Config::DEFAULT
            },
            sizes: self.sizes.iter().map(pages).collect::<PyResult<_>>()?,
            removal,
            ..Settings::default()
        })
    }

    fn trace(&self) -> PyResult<Vec<Demand>> {
        let step = |&(seconds, used): &(f64, u64)| {
            let time = time("demand", seconds)?;
            Ok(Demand { time, used })
        };
        self.demand.iter().map(step).collect()
    }
}

/// Seconds as nanoseconds.
fn time(what: &str, seconds: f64) -> PyResult<u64> {
    if (0.0..=LONGEST).contains(&seconds) {
        Ok((seconds * NANOSECONDS).round() as u64)
    } else {
        Err(engine_error(format!(
            "{what} is {seconds} s, and must be 0 to {LONGEST} s"
        )))
    }
}

/// Replays demand on a page heap in virtual time. Samples are taken each second; the summary is of
/// those after `warmup` seconds. Returns both as JSON.
#[pyfunction]
#[pyo3(signature = (spec, *, warmup=0.0))]
#[allow(
    clippy::needless_pass_by_value,
    reason = "PyO3 hands values over; in Python this is a dictionary"
)]
pub fn replay_heap(py: Python<'_>, spec: HeapSpec, warmup: f64) -> PyResult<String> {
    let (settings, trace) = (spec.settings()?, spec.trace()?);
    let (end, from) = (time("seconds", spec.seconds)?, time("warmup", warmup)?);
    let text = py.detach(|| {
        let samples = replay(&trace, end, &settings);
        let first = samples.partition_point(|sample| sample.time < from);
        let summary = Summary::of(&samples[first..]);
        json!({ "summary": of_summary(&summary), "samples": of_samples(&samples) }).to_string()
    });
    Ok(text)
}

/// Lets a program of given demand live with its page heap on a simulated server, in virtual time. It
/// writes what it allocates, and each second reads so many words of it. The summary leaves out the
/// first `warmup` seconds. `progress` is told the part that is done. Returns JSON.
#[pyfunction]
#[pyo3(signature = (spec, server, *, warmup=0.0, reads=0, progress=None))]
#[allow(
    clippy::needless_pass_by_value,
    reason = "PyO3 hands values over; in Python these are dictionaries"
)]
pub fn heap_on_server(
    py: Python<'_>,
    spec: HeapSpec,
    server: &[u8],
    warmup: f64,
    reads: u32,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let server: RunSpec = spec::read(server).map_err(engine_error)?;
    let life = HeapRun {
        seed: server.seed,
        server: server.resolve().map_err(engine_error)?,
        program: spec.settings()?,
        demand: spec.trace()?,
        end: time("seconds", spec.seconds)?,
        warmup: time("warmup", warmup)?,
        reads,
    };
    py.detach(|| {
        let cancel = AtomicBool::new(false);
        let interrupted = std::cell::Cell::new(None);
        let outcome = run(&life, &cancel, &|done| {
            let told = Python::attach(|py| {
                if let Some(progress) = &progress {
                    progress.call1(py, (done,))?;
                }
                py.check_signals()
            });
            if let Err(error) = told {
                interrupted.set(Some(error));
                cancel.store(true, Ordering::Relaxed);
            }
        });
        if let Some(error) = interrupted.take() {
            return Err(error);
        }
        serde_json::to_string(&outcome.map_err(engine_error)?).map_err(engine_error)
    })
}

fn of_summary(summary: &Summary) -> Value {
    json!({
        "used": summary.used,
        "mapped": summary.mapped,
        "average_fragmentation": summary.average_fragmentation,
        "realized_fragmentation": summary.realized_fragmentation,
        "coverage": summary.coverage,
        "broken_total": summary.broken_total,
        "skipped": summary.skipped,
        "skipped_correct": summary.skipped_correct,
    })
}

/// Columns.
fn of_samples(samples: &[Sample]) -> Value {
    let column = |figure: &dyn Fn(&Sample) -> f64| samples.iter().map(figure).collect::<Vec<_>>();
    json!({
        "seconds": column(&|sample| sample.time as f64 / NANOSECONDS),
        "used": column(&|sample| sample.statistics.used as f64),
        "mapped": column(&|sample| sample.statistics.mapped as f64),
        "coverage": column(&|sample| sample.statistics.coverage()),
        "average_fragmentation": column(&|sample| sample.statistics.average_fragmentation as f64),
        "realized_fragmentation":
            column(&|sample| sample.statistics.realized_fragmentation as f64),
    })
}

/// Spikes of random size and lifetime over a base, drawn with a seed: (seconds, bytes), each until
/// the next.
#[pyfunction]
pub fn heap_spikes(
    base: u64,
    highest: u64,
    every: f64,
    longest: f64,
    seconds: f64,
    seed: u64,
) -> PyResult<Vec<(f64, u64)>> {
    let trace = spikes(
        base,
        highest,
        time("every", every)?,
        time("longest", longest)?,
        time("seconds", seconds)?,
        seed,
    );
    let steps = trace.iter().map(|demand| {
        let seconds = demand.time as f64 / NANOSECONDS;
        (seconds, demand.used)
    });
    Ok(steps.collect())
}
