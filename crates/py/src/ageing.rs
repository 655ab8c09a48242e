//! Ageing of servers, for Python.

use std::path::PathBuf;

use contigua_machine::ageing::{
    AgeConfig, AgeReport, Cell, GiganticPages, Picture, Sample, Server, Snapshot, parse_profile,
};
use contigua_machine::config;
use contigua_units::{Bytes, Nanoseconds};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine_error;
use crate::explore::{Failure, PolicySpec};

/// Simulated time between two looks at signals and two reports of progress.
const LOOK: u64 = 10_000_000_000;

/// Interval of looks under a policy in Python, which is slower and may have raised an exception.
const EXPLORING_LOOK: u64 = 1_000_000_000;

/// A server's life, as Python describes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct AgeSpec {
    design_name: String,
    design: String,
    profile_name: String,
    profile: String,
    memory: String,
    hours: f64,
    seed: u64,
    sample_seconds: f64,
    load: f64,
    kernel: f64,
    #[pyo3(default = 1.0)]
    files: f64,
    daily: bool,
    paranoid: bool,
    #[pyo3(default = 0)]
    gigantic_pages: u64,
    #[pyo3(default = 1)]
    nodes: u32,
}

impl AgeSpec {
    fn config(&self) -> PyResult<AgeConfig> {
        let memory: Result<Bytes, _> = self.memory.parse();
        let profile = parse_profile(&self.profile, &self.profile_name);
        Ok(AgeConfig {
            design_name: self.design_name.clone(),
            design: config::parse_design(&self.design, &self.design_name).map_err(engine_error)?,
            profile_name: self.profile_name.clone(),
            profile: profile.map_err(engine_error)?,
            memory: memory
                .map_err(|error| engine_error(format!("memory {:?}: {error}", self.memory)))?,
            seed: self.seed,
            load: self.load,
            kernel: self.kernel,
            files: self.files,
            daily: self.daily,
            nodes: self.nodes,
        })
    }
}

/// A time above 0 in nanoseconds, from a number of units of `nanoseconds`.
fn time(what: &str, value: f64, nanoseconds: f64) -> PyResult<u64> {
    let longest = 366.0 * 86_400e9;
    let time = value * nanoseconds;
    if time > 0.0 && time <= longest {
        Ok(time as u64)
    } else {
        let problem = format!("{what} is {value}; it is a time above 0 and within a year");
        Err(engine_error(problem))
    }
}

/// The memory of a server after some time, and what became of it on the way.
#[pyclass(frozen)]
pub struct AgedServer {
    snapshot: Snapshot,
    /// Samples as a JSON list.
    #[pyo3(get)]
    samples: String,
    /// Configuration and last sample as a JSON object.
    #[pyo3(get)]
    report: String,
}

#[pymethods]
impl AgedServer {
    /// A picture: width, height, names of the values, and values row by row.
    fn memory_map<'py>(
        &self,
        py: Python<'py>,
        cell: &str,
    ) -> PyResult<(usize, usize, Vec<&'static str>, Bound<'py, PyBytes>)> {
        let kind = Cell::named(cell).ok_or_else(|| {
            engine_error(format!("unknown cell {cell:?}: known are block and frame"))
        })?;
        let picture = py.detach(|| Picture::of(&self.snapshot, kind));
        let cells = PyBytes::new(py, &picture.cells);
        Ok((
            picture.width,
            picture.height,
            kind.classes().to_vec(),
            cells,
        ))
    }

    /// Writes a snapshot that `contigua run --age snapshot:FILE` starts from.
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
    fn save(&self, path: PathBuf) -> PyResult<()> {
        self.snapshot.save(&path).map_err(engine_error)
    }
}

/// Ages a server, under the design's placement or under a policy in Python.
#[pyfunction]
#[pyo3(signature = (spec, progress=None, policy=None))]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
pub fn age(
    py: Python<'_>,
    spec: AgeSpec,
    progress: Option<Py<PyAny>>,
    policy: Option<PolicySpec>,
) -> PyResult<AgedServer> {
    let mut config = spec.config()?;
    let (mut look, mut failure) = (LOOK, Failure::default());
    if let Some(policy) = policy {
        look = EXPLORING_LOOK;
        policy.name.clone_into(&mut config.design_name);
        (config.design.placement, failure) = policy.placement();
    }
    let end = time("hours", spec.hours, 3600e9)?;
    let every = time("sample_seconds", spec.sample_seconds, 1e9)?;
    py.detach(|| {
        let mut server = Server::new(config).map_err(engine_error)?;
        let mut samples = vec![server.sample()];
        let mut next_sample = every;
        let mut now = 0;
        while now < end {
            now = end.min(next_sample).min(now + look);
            server.run_until(Nanoseconds::new(now));
            failure.check()?;
            if now == next_sample && now < end {
                samples.push(server.sample());
                next_sample += every;
            }
            if spec.paranoid {
                server.validate().map_err(engine_error)?;
            }
            Python::attach(|py| {
                if let Some(progress) = &progress {
                    progress.call1(py, (now as f64 / 1e9,))?;
                }
                py.check_signals()
            })?;
        }
        server.settle();
        failure.check()?;
        samples.push(server.sample());
        let config = serde_json::to_value(server.config()).map_err(engine_error)?;
        let snapshot = Snapshot::of_nodes(server.memories(), server.now(), config);
        let pages = spec.gigantic_pages;
        let gigantic = (pages > 0).then(|| server.allocate_gigantic(pages));
        AgedServer::new(snapshot, &samples, gigantic)
    })
}

impl AgedServer {
    fn new(
        snapshot: Snapshot,
        samples: &[Sample],
        gigantic: Option<GiganticPages>,
    ) -> PyResult<Self> {
        let last = samples.last();
        let report = AgeReport {
            version: env!("CARGO_PKG_VERSION"),
            config: snapshot.origin.clone(),
            last: last.ok_or_else(|| engine_error("no sample was taken"))?,
            gigantic,
        };
        Ok(Self {
            report: serde_json::to_string(&report).map_err(engine_error)?,
            samples: serde_json::to_string(samples).map_err(engine_error)?,
            snapshot,
        })
    }
}

/// Reads a snapshot. Its only sample has no events: these are not in the file.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
pub fn load_snapshot(path: PathBuf) -> PyResult<AgedServer> {
    let snapshot = Snapshot::load(&path).map_err(engine_error)?;
    let memory = snapshot.restore_as_it_was(&path).map_err(engine_error)?;
    let mut sample = Sample::of_memory(&memory, snapshot.now);
    sample.events.memory = contigua_frames::Counters::default();
    AgedServer::new(snapshot, &[sample], None)
}

/// Reads a profile and returns it as JSON with every default filled in.
#[pyfunction]
pub fn resolve_profile(text: &str, path: &str) -> PyResult<String> {
    let profile = parse_profile(text, path).map_err(engine_error)?;
    serde_json::to_string(&profile).map_err(engine_error)
}
