//! The engine as a Python module.
//!
//! Python passes configuration as TOML text and gets reports as JSON text: both sides have good
//! libraries for these, and the formats are the same as on disk.

mod ageing;
mod explore;
mod heap;
mod output;
mod places;
mod requests;
mod session;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use contigua_machine::ageing::Snapshot;
use contigua_machine::config::{self, Age, Detail, Point, RegionConfig, RunConfig};
use contigua_machine::schema as schemas;
use contigua_program::emulator::Emulator;
use contigua_program::footprint::census;
use contigua_program::launch::{self, Surroundings};
use contigua_program::plan::{Plan, Sampling, Window};
use contigua_program::root::Root;
use contigua_program::sources::Source;
use contigua_program::sources::drmemtrace::{self, is_drmemtrace};
use contigua_program::sources::trace::TraceSource;
use contigua_program::syscall::Architecture;
use contigua_translation::SchemeConfig;
use contigua_units::Bytes;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use session::{Checkpoints, Input, Session, TraceFormat};

create_exception!(
    _engine,
    EngineError,
    PyException,
    "What the engine could not do, and why."
);

create_exception!(
    _engine,
    NoSuchProgramError,
    EngineError,
    "There is no program of that name."
);
create_exception!(
    _engine,
    NotExecutableError,
    EngineError,
    "A file that cannot be executed here."
);

/// An error of starting a program, of a class of its own where shells have an exit status for it.
fn program_error(error: contigua_program::Error) -> PyErr {
    use contigua_program::Error;
    match error {
        Error::NoSuchProgram(_) => NoSuchProgramError::new_err(error.to_string()),
        Error::NotExecutable { .. }
        | Error::ForeignArchitecture { .. }
        | Error::NoLoader { .. } => NotExecutableError::new_err(error.to_string()),
        other => engine_error(other),
    }
}

fn engine_error(error: impl std::fmt::Display) -> PyErr {
    EngineError::new_err(error.to_string())
}

/// One design on one machine, as Python describes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct RunSpec {
    design_name: String,
    design: String,
    machine_name: String,
    machine: String,
    memory: Option<String>,
    age: String,
    detail: String,
    seed: u64,
    skip: u64,
    warmup: u64,
    instructions: Option<u64>,
    #[pyo3(default)]
    holes: Option<String>,
    #[pyo3(default)]
    classify_misses: bool,
    #[pyo3(default)]
    cores: Option<u32>,
    #[pyo3(default)]
    migrations: Option<f64>,
    #[pyo3(default)]
    allocator: Option<String>,
    #[pyo3(default)]
    timeline: Option<PathBuf>,
    #[pyo3(default)]
    profile: Option<PathBuf>,
    /// Distance, warm, detail, seed, most, as [`Sampling`] has them.
    #[pyo3(default)]
    sampling: Option<SamplingTuple>,
    #[pyo3(default)]
    regions: Option<RegionSpec>,
    #[pyo3(default)]
    confidence: Option<f64>,
    /// After how many instructions the server's state is saved, and the file.
    #[pyo3(default)]
    checkpoints: Option<Vec<(u64, PathBuf)>>,
    /// The checkpoint that it goes on from.
    #[pyo3(default)]
    checkpoint: Option<PathBuf>,
    /// The error that a sampled run's user wants at most, as a share of cycles.
    #[pyo3(default)]
    goal: Option<f64>,
    /// Memory that a trace touches was mapped before.
    #[pyo3(default)]
    mapped: Option<bool>,
}

/// Regions that the user names, as Python describes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct RegionSpec {
    /// `windows`, `simpoints`, `markers` or `function`.
    kind: String,
    /// Instructions that warm caches and TLBs before a window.
    #[pyo3(default)]
    warm: Option<u64>,
    /// Begins and ends of windows.
    #[pyo3(default)]
    windows: Option<Vec<(u64, u64)>>,
    /// What they stand for, of points.
    #[pyo3(default)]
    weights: Option<Vec<f64>>,
    /// The function's name.
    #[pyo3(default)]
    function: Option<String>,
    /// Outside of what the program begins and ends.
    #[pyo3(default)]
    keep_warm: Option<bool>,
}

impl RegionSpec {
    fn resolve(self) -> PyResult<RegionConfig> {
        let warm = self.warm.unwrap_or(0);
        let keep_warm = self.keep_warm.unwrap_or(false);
        let windows = self.windows.unwrap_or_default().into_iter();
        let windows = windows.map(|(begin, end)| Window { begin, end });
        Ok(match self.kind.as_str() {
            "windows" => RegionConfig::Windows {
                warm,
                windows: windows.collect(),
            },
            "simpoints" => RegionConfig::SimPoints {
                warm,
                points: windows
                    .zip(self.weights.unwrap_or_default())
                    .map(|(window, weight)| Point { window, weight })
                    .collect(),
            },
            "markers" => RegionConfig::Markers { keep_warm },
            "function" => RegionConfig::Function {
                name: self.function.unwrap_or_default(),
                keep_warm,
            },
            other => {
                let known = "windows, simpoints, markers and function";
                return Err(engine_error(format!(
                    "unknown regions {other:?}: known are {known}"
                )));
            }
        })
    }
}

impl RunSpec {
    fn resolve(self) -> PyResult<RunConfig> {
        let design = config::parse_design(&self.design, &self.design_name).map_err(engine_error)?;
        let mut machine =
            config::parse_machine(&self.machine, &self.machine_name).map_err(engine_error)?;
        if let Some(memory) = &self.memory {
            let parsed: Result<Bytes, _> = memory.parse();
            machine.memory = parsed.map_err(|e| engine_error(format!("memory {memory:?}: {e}")))?;
        }
        let age: Age = self.age.parse().map_err(engine_error)?;
        if let (Age::Snapshot(path), None) = (&age, &self.memory) {
            // A snapshot's server has the snapshot's memory, whatever the machine's file says.
            let snapshot = Snapshot::load(path).map_err(engine_error)?;
            machine.memory = snapshot.memory();
        }
        let detail = match self.detail.as_str() {
            "full" => Detail::Full,
            "additive" => Detail::Additive,
            "translation" => Detail::Translation,
            other => {
                let known = "full, additive and translation";
                return Err(engine_error(format!(
                    "unknown detail {other:?}: known are {known}"
                )));
            }
        };
        let holes = self.holes.as_deref().map(str::parse).transpose();
        let config = RunConfig {
            design_name: self.design_name,
            design,
            machine_name: self.machine_name,
            machine,
            age,
            holes: holes.map_err(engine_error)?,
            classify_misses: self.classify_misses,
            detail,
            cores: self.cores.unwrap_or(1),
            migrations_per_second: self.migrations.unwrap_or(0.0),
            allocator: self.allocator,
            timeline: self.timeline,
            profile: self.profile,
            seed: self.seed,
            skip: self.skip,
            warmup: self.warmup,
            instructions: self.instructions,
            sampling: self.sampling.map(sampling_of),
            regions: self.regions.map(RegionSpec::resolve).transpose()?,
            confidence: self.confidence.unwrap_or(config::CONFIDENCE),
            goal: self.goal,
            mapped: self.mapped.unwrap_or(false),
        };
        config.check().map_err(engine_error)?;
        Ok(config)
    }
}

/// Runs designs on one execution of a program, or on one trace.
///
/// Exactly one of `command` and `trace` is given. `progress` is called a few times a second with
/// a list of (instructions, batches behind), one for each design. What is recorded is all, or what
/// `record_plan` says: instructions to skip, and how to sample the others. A program can be given a library
/// to load before all others (`preload`), variables (`environment`), and a clock of its own that
/// ticks so many nanoseconds for each instruction. Returns the reports as JSON, the program's exit
/// status (130 after an interruption), and why outputs (the recording, timelines, checkpoints) are not
/// there.
#[pyfunction]
#[allow(
    clippy::needless_pass_by_value,
    clippy::too_many_arguments,
    reason = "PyO3 hands values over; in Python these are keywords"
)]
#[pyo3(signature = (runs, *, command=None, trace=None, trace_format="contigua", record=None, record_plan=None, seconds=None, preload=None, root=None, environment=None, clock=None, physical="simulated", progress=None))]
fn run(
    py: Python<'_>,
    runs: Vec<RunSpec>,
    command: Option<Vec<OsString>>,
    trace: Option<PathBuf>,
    trace_format: &str,
    record: Option<PathBuf>,
    record_plan: Option<PlanTuple>,
    seconds: Option<f64>,
    preload: Option<PathBuf>,
    root: Option<PathBuf>,
    environment: Option<Vec<(OsString, OsString)>>,
    clock: Option<u32>,
    physical: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Vec<String>, i32, Vec<String>)> {
    let traced_pages = match physical {
        "simulated" => false,
        "traced" => true,
        other => {
            return Err(engine_error(format!(
                "unknown placement {other:?}: known are simulated and traced"
            )));
        }
    };
    let mut checkpoints = Vec::new();
    let mut configs = Vec::new();
    for mut spec in runs {
        checkpoints.push(Checkpoints {
            saves: spec.checkpoints.take().unwrap_or_default(),
            from: spec.checkpoint.take(),
        });
        configs.push(spec.resolve()?);
    }
    let surroundings = Surroundings {
        preload,
        root: root.map_or(Root::HOST, Root::new),
        variables: environment.unwrap_or_default(),
        clock,
        plan: Plan::default(),
        names: configs
            .iter()
            .any(|config: &RunConfig| config.profile.is_some()),
    };
    let input = match (command, trace) {
        (Some(command), None) => Input::Live(command, surroundings),
        (None, Some(trace)) => trace_input(trace, trace_format)?,
        _ => return Err(engine_error("give either a command or a trace")),
    };
    let time_limit = seconds.map(Duration::try_from_secs_f64).transpose();
    let session = Session {
        configs,
        checkpoints,
        input,
        record,
        record_plan: record_plan.map_or(Ok(Plan::default()), plan_of)?,
        traced_pages,
        time_limit: time_limit.map_err(|error| engine_error(format!("seconds: {error}")))?,
    };
    let outcome = py.detach(|| {
        session.run(&|state| {
            Python::attach(|py| {
                if let Some(progress) = &progress {
                    progress.call1(py, (state.to_vec(),))?;
                }
                py.check_signals()
            })
        })
    })?;
    let reports = outcome
        .reports
        .iter()
        .map(contigua_machine::Report::to_json);
    Ok((reports.collect(), outcome.exit_code, outcome.failures))
}

/// Instructions to skip, and how those behind them are sampled: distance, warm, detail, seed, most, as
/// [`Sampling`] has them.
type PlanTuple = (u64, Option<SamplingTuple>);
type SamplingTuple = (u64, u64, u64, u64, u64);

fn sampling_of((distance, warm, detail, seed, most): SamplingTuple) -> Sampling {
    Sampling {
        distance,
        warm,
        detail,
        seed,
        most,
    }
}

fn plan_of((skip, sampling): PlanTuple) -> PyResult<Plan> {
    let sampling = sampling.map(sampling_of);
    if let Some(sampling) = &sampling {
        sampling
            .validate()
            .map_err(|error| engine_error(format!("sampling: {error}")))?;
    }
    Ok(Plan {
        skip,
        sampling,
        ..Plan::default()
    })
}

/// What a trace of Contigua's was recorded under: instructions that were skipped, and how those behind
/// them were sampled, if they were.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
fn trace_plan(trace: PathBuf) -> PyResult<PlanTuple> {
    if is_drmemtrace(&trace) {
        return Ok((0, None));
    }
    let source = TraceSource::open(&trace).map_err(engine_error)?;
    let plan = &source.program().plan;
    let sampling = plan
        .sampling
        .map(|s| (s.distance, s.warm, s.detail, s.seed, s.most));
    Ok((plan.skip, sampling))
}

/// Counts which blocks each interval of so many instructions of a program executes, or of a trace.
///
/// Returns the intervals as a sparse matrix by rows, three arrays as bytes in the order of this
/// machine: where each row begins (64 bits), numbers of blocks (32 bits), and the instructions that
/// were executed in each (64 bits); then all instructions, and the program's exit status.
#[pyfunction]
#[pyo3(signature = (interval, *, command=None, trace=None, trace_format="contigua", seconds=None, root=None))]
fn block_vectors<'py>(
    py: Python<'py>,
    interval: u64,
    command: Option<Vec<OsString>>,
    trace: Option<PathBuf>,
    trace_format: &str,
    seconds: Option<f64>,
    root: Option<PathBuf>,
) -> PyResult<([Bound<'py, PyBytes>; 3], u64, i32)> {
    let surroundings = Surroundings {
        root: root.map_or(Root::HOST, Root::new),
        ..Surroundings::default()
    };
    let input = match (command, trace) {
        (Some(command), None) => Input::Live(command, surroundings),
        (None, Some(trace)) => trace_input(trace, trace_format)?,
        _ => return Err(engine_error("give either a command or a trace")),
    };
    let time_limit = seconds.map(Duration::try_from_secs_f64).transpose();
    let session = Session {
        configs: Vec::new(),
        checkpoints: Vec::new(),
        input,
        record: None,
        record_plan: Plan::default(),
        traced_pages: false,
        time_limit: time_limit.map_err(|error| engine_error(format!("seconds: {error}")))?,
    };
    let (vectors, exit_code) = py.detach(|| {
        session.block_vectors(interval, &|_| {
            Python::attach(|py| {
                py.check_signals()?;
                Ok(())
            })
        })
    })?;
    let (begins, blocks, counts) = vectors.rows();
    let arrays = [
        PyBytes::new(py, &wide_bytes(begins)),
        PyBytes::new(
            py,
            &blocks
                .iter()
                .flat_map(|n| n.to_ne_bytes())
                .collect::<Vec<u8>>(),
        ),
        PyBytes::new(py, &wide_bytes(counts)),
    ];
    Ok((arrays, vectors.instructions(), exit_code))
}

fn wide_bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
}

fn trace_input(path: PathBuf, format: &str) -> PyResult<Input> {
    let format = parse_format(format)?.found_at(&path);
    Ok(Input::Trace(path, format))
}

/// Format, file, counts by name, threads.
type FileInfo = (&'static str, PathBuf, Vec<(&'static str, u64)>, Vec<u64>);

/// Says what a trace holds: format, file, and counts by name, for each of its files.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
fn trace_info(py: Python<'_>, trace: PathBuf, trace_format: &str) -> PyResult<Vec<FileInfo>> {
    let format = parse_format(trace_format)?.found_at(&trace);
    let name = TraceFormat::NAMES
        .iter()
        .find(|(_, known)| *known == format);
    let name = name.map_or("", |(name, _)| *name);
    py.detach(|| {
        if format == TraceFormat::Drmemtrace {
            let counts = drmemtrace::count(&trace).map_err(engine_error)?;
            let file = |file: drmemtrace::Counts| {
                let counts = vec![
                    ("instructions", file.instructions),
                    ("instructions_not_fetched", file.not_fetched),
                    ("loads", file.loads),
                    ("stores", file.stores),
                    ("data_pages", file.data_pages),
                    ("prefetches", file.prefetches),
                    ("system_calls", file.system_calls),
                    ("kernel_events", file.kernel_events),
                    ("version", file.version),
                    ("file_type", file.file_type),
                ];
                (name, file.file, counts, file.threads)
            };
            return Ok(counts.into_iter().map(file).collect());
        }
        let mut source = format.open(&trace).map_err(engine_error)?;
        let never = AtomicBool::new(false);
        let found = census(&mut *source, &never).map_err(engine_error)?;
        let counts = vec![
            ("instructions", found.instructions),
            ("loads", found.loads),
            ("stores", found.stores),
            ("data_pages", found.data_pages),
        ];
        Ok(vec![(name, trace, counts, (0..found.threads).collect())])
    })
}

fn parse_format(name: &str) -> PyResult<TraceFormat> {
    let names = TraceFormat::NAMES;
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, format)| *format).ok_or_else(|| {
        let known = names.map(|(known, _)| known).join(", ");
        engine_error(format!("unknown trace format {name:?}: known are {known}"))
    })
}

/// Reads a design and returns it as JSON with every default filled in.
#[pyfunction]
fn resolve_design(text: &str, path: &str) -> PyResult<String> {
    let design = config::parse_design(text, path).map_err(engine_error)?;
    serde_json::to_string(&design).map_err(engine_error)
}

/// Reads a machine and returns it as JSON with every default filled in.
#[pyfunction]
fn resolve_machine(text: &str, path: &str) -> PyResult<String> {
    let machine = config::parse_machine(text, path).map_err(engine_error)?;
    serde_json::to_string(&machine).map_err(engine_error)
}

/// Checks what [`run`] would simulate, and returns it as JSON with every default filled in.
///
/// Two runs on the same events have the same report if these texts are the same.
#[pyfunction]
fn resolve_run(spec: RunSpec) -> PyResult<String> {
    serde_json::to_string(&spec.resolve()?).map_err(engine_error)
}

/// The JSON schema of files of a kind: `design`, `machine` or `profile`; of reports of `run` or `age`.
#[pyfunction]
fn schema(kind: &str) -> PyResult<String> {
    let schema = match kind {
        "design" => schemas::design(),
        "machine" => schemas::machine(),
        "profile" => schemas::profile(),
        "run" => schemas::run_reports(),
        "age" => schemas::age_reports(),
        other => return Err(engine_error(format!("nothing is a {other:?}"))),
    };
    serde_json::to_string(&schema).map_err(engine_error)
}

fn parse_architecture(name: &str) -> PyResult<Architecture> {
    let found = Architecture::ALL
        .into_iter()
        .find(|known| known.name() == name);
    found.ok_or_else(|| {
        let known = Architecture::ALL.map(Architecture::name).join(", ");
        engine_error(format!("unknown architecture {name:?}: known are {known}"))
    })
}

/// The QEMU that runs programs of an architecture.
#[pyfunction]
#[pyo3(signature = (architecture="x86_64"))]
fn emulator(architecture: &str) -> PyResult<String> {
    let found = Emulator::find(parse_architecture(architecture)?).map_err(engine_error)?;
    Ok(found.path.to_string_lossy().into_owned())
}

/// Options of QEMU that decide what programs do: the processor that they find, and their addresses.
#[pyfunction]
#[pyo3(signature = (architecture="x86_64"))]
fn emulator_options(architecture: &str) -> PyResult<Vec<String>> {
    let architecture = parse_architecture(architecture)?;
    let processor = vec!["-cpu".to_owned(), launch::processor(architecture)];
    let found = Emulator::find(architecture);
    let addresses = found.map_or_else(|_| Vec::new(), |emulator| emulator.options());
    Ok([processor, addresses].concat())
}

/// The native half of the `contigua` package.
#[pymodule]
fn _engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("EngineError", module.py().get_type::<EngineError>())?;
    module.add(
        "NoSuchProgramError",
        module.py().get_type::<NoSuchProgramError>(),
    )?;
    module.add(
        "NotExecutableError",
        module.py().get_type::<NotExecutableError>(),
    )?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("SCHEMES", SchemeConfig::NAMES.to_vec())?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(trace_plan, module)?)?;
    module.add_function(wrap_pyfunction!(trace_info, module)?)?;
    module.add_function(wrap_pyfunction!(block_vectors, module)?)?;
    module.add_function(wrap_pyfunction!(resolve_design, module)?)?;
    module.add_function(wrap_pyfunction!(resolve_machine, module)?)?;
    module.add_function(wrap_pyfunction!(resolve_run, module)?)?;
    module.add_function(wrap_pyfunction!(places::locate, module)?)?;
    module.add_function(wrap_pyfunction!(schema, module)?)?;
    module.add_function(wrap_pyfunction!(emulator, module)?)?;
    module.add_function(wrap_pyfunction!(emulator_options, module)?)?;
    module.add_class::<ageing::AgedServer>()?;
    module.add_class::<output::Output>()?;
    module.add_function(wrap_pyfunction!(ageing::age, module)?)?;
    module.add_function(wrap_pyfunction!(ageing::load_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(ageing::resolve_profile, module)?)?;
    module.add_function(wrap_pyfunction!(heap::replay_heap, module)?)?;
    module.add_function(wrap_pyfunction!(heap::heap_spikes, module)?)?;
    module.add_function(wrap_pyfunction!(heap::heap_on_server, module)?)?;
    module.add_function(wrap_pyfunction!(requests::replay_requests, module)?)?;
    Ok(())
}
