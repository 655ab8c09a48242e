//! The engine as a Python module.
//!
//! Python passes configuration as TOML text and gets reports as JSON text: both sides have good
//! libraries for these, and the formats are the same as on disk.

mod ageing;
mod explore;
mod heap;
mod load;
mod output;
mod places;
mod requests;
mod session;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use contigua_machine::config::{self, RunConfig};
use contigua_machine::schema as schemas;
use contigua_machine::spec::{self, Document, Execution, Physical, Recorded, RunSpec};
use contigua_program::emulator::Emulator;
use contigua_program::footprint::census;
use contigua_program::launch::{self, Surroundings};
use contigua_program::plan::Plan;
use contigua_program::root::Root;
use contigua_program::sources::drmemtrace::{self, is_drmemtrace};
use contigua_program::sources::trace::TraceSource;
use contigua_program::sources::{Source, TraceFormat};
use contigua_program::syscall::Architecture;
use contigua_translation::SchemeConfig;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;

use load::Load;
use session::{Checkpoints, Input, Session};

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

/// Runs designs on one execution of a program, or on one trace.
///
/// The document is a [`Document`] as JSON. `progress` is called a few times a second with a list of
/// (instructions, batches behind), one for each design. A region that is a client's begins and ends as its
/// driver says (`load`). Returns the reports as JSON, the program's exit
/// status (130 after an interruption), and why outputs (the recording, timelines, checkpoints) are not
/// there.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
#[pyo3(signature = (document, progress=None, load=None))]
fn run(
    py: Python<'_>,
    document: &[u8],
    progress: Option<Py<PyAny>>,
    load: Option<Load>,
) -> PyResult<(Vec<String>, i32, Vec<String>)> {
    let Document { runs, execution } = spec::read(document).map_err(engine_error)?;
    let (mut configs, mut checkpoints) = (Vec::new(), Vec::new());
    for mut spec in runs {
        let saves = std::mem::take(&mut spec.checkpoints).into_iter();
        checkpoints.push(Checkpoints {
            saves: saves.map(|save| (save.at, save.file.into())).collect(),
            from: spec.checkpoint.take().map(PathBuf::from),
        });
        configs.push(spec.resolve().map_err(engine_error)?);
    }
    let mut session = session_of(execution, configs, checkpoints)?;
    session.load = load;
    if let Input::Live(_, surroundings) = &mut session.input {
        let is_profiled = |config: &RunConfig| config.profile.is_some();
        surroundings.names = session.configs.iter().any(is_profiled);
    }
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

/// A session of designs, which may be none.
fn session_of(
    execution: Execution,
    configs: Vec<RunConfig>,
    checkpoints: Vec<Checkpoints>,
) -> PyResult<Session> {
    let designs = configs.iter().map(|config| &config.design);
    let layout = execution.layout(designs).map_err(engine_error)?;
    let input = match (execution.command, execution.trace) {
        (Some(command), None) => {
            let variables = execution.environment.into_iter();
            let surroundings = Surroundings {
                preload: execution.preload.into_iter().map(PathBuf::from).collect(),
                root: execution
                    .root
                    .map_or(Root::HOST, |root| Root::new(root.into())),
                variables: variables.map(|(k, v)| (k.into(), v.into())).collect(),
                clock: execution.clock,
                plan: Plan::default(),
                layout,
                names: false,
            };
            Input::Live(
                command.into_iter().map(OsString::from).collect(),
                Box::new(surroundings),
            )
        }
        (None, Some(trace)) => {
            let path = PathBuf::from(trace);
            let format = execution.trace_format.found_at(&path);
            Input::Trace(path, format)
        }
        _ => return Err(engine_error("give either a command or a trace")),
    };
    if execution.seconds == Some(0.0) {
        return Err(engine_error("--wall 0 s is out of range: more than 0 s"));
    }
    let seconds = execution.seconds.map(Duration::try_from_secs_f64);
    let seconds = seconds.transpose();
    Ok(Session {
        configs,
        checkpoints,
        input,
        load: None,
        record: execution.record.map(PathBuf::from),
        record_plan: execution.record_plan.plan().map_err(engine_error)?,
        traced_pages: execution.physical == Physical::Traced,
        time_limit: seconds.map_err(|error| engine_error(format!("seconds: {error}")))?,
    })
}

/// Contents of a trace of Contigua's, as JSON ([`Recorded`]): instructions that were skipped, and how
/// those after them were sampled, if they were.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
fn trace_plan(trace: PathBuf) -> PyResult<String> {
    if is_drmemtrace(&trace) {
        return serde_json::to_string(&Recorded::default()).map_err(engine_error);
    }
    let source = TraceSource::open(&trace).map_err(engine_error)?;
    let plan = &source.program().plan;
    let recorded = Recorded {
        skip: plan.skip,
        sampling: plan.sampling,
    };
    serde_json::to_string(&recorded).map_err(engine_error)
}

/// Counts which blocks each interval of so many instructions of a program executes, or of a trace.
///
/// The program or trace is an [`Execution`] as JSON.
/// Returns the intervals as a sparse matrix by rows, three arrays as bytes in the order of this
/// machine: where each row begins (64 bits), numbers of blocks (32 bits), and the instructions that
/// were executed in each (64 bits); then all instructions, and the program's exit status.
#[pyfunction]
fn block_vectors<'py>(
    py: Python<'py>,
    interval: u64,
    execution: &[u8],
) -> PyResult<([Bound<'py, PyBytes>; 3], u64, i32)> {
    let session = session_of(
        spec::read(execution).map_err(engine_error)?,
        Vec::new(),
        Vec::new(),
    )?;
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

/// Format, file, counts by name, threads.
type FileInfo = (&'static str, PathBuf, Vec<(&'static str, u64)>, Vec<u64>);

/// Says what a trace holds: format, file, and counts by name, for each of its files.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
fn trace_info(py: Python<'_>, trace: PathBuf, trace_format: &str) -> PyResult<Vec<FileInfo>> {
    let format = TraceFormat::deserialize(trace_format.into_deserializer());
    let format = format
        .map_err(|error: ValueError| engine_error(error))?
        .found_at(&trace);
    let name = format.name();
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
fn resolve_run(run: &[u8]) -> PyResult<String> {
    let config = spec::read(run).and_then(RunSpec::resolve);
    serde_json::to_string(&config.map_err(engine_error)?).map_err(engine_error)
}

/// The JSON schema of files of a kind: `design`, `machine` or `profile`; of reports of `run` or `age`; of
/// the `document` that [`run`] is told.
#[pyfunction]
fn schema(kind: &str) -> PyResult<String> {
    let schema = match kind {
        "design" => schemas::design(),
        "machine" => schemas::machine(),
        "profile" => schemas::profile(),
        "run" => schemas::run_reports(),
        "document" => schemas::run_document(),
        "age" => schemas::age_reports(),
        "attribution" => schemas::attribution(),
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
    module.add_function(wrap_pyfunction!(places::build_id, module)?)?;
    module.add_function(wrap_pyfunction!(places::disassemble, module)?)?;
    module.add_function(wrap_pyfunction!(schema, module)?)?;
    module.add_function(wrap_pyfunction!(emulator, module)?)?;
    module.add_function(wrap_pyfunction!(emulator_options, module)?)?;
    module.add_class::<ageing::AgedServer>()?;
    module.add_class::<output::Output>()?;
    module.add_class::<Load>()?;
    module.add_function(wrap_pyfunction!(ageing::age, module)?)?;
    module.add_function(wrap_pyfunction!(ageing::load_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(ageing::resolve_profile, module)?)?;
    module.add_function(wrap_pyfunction!(heap::replay_heap, module)?)?;
    module.add_function(wrap_pyfunction!(heap::heap_spikes, module)?)?;
    module.add_function(wrap_pyfunction!(heap::heap_on_server, module)?)?;
    module.add_function(wrap_pyfunction!(requests::replay_requests, module)?)?;
    Ok(())
}
