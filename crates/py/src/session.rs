//! One execution, or one trace, and everything that reads it: designs and a recorder, each on a
//! thread of its own.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contigua_machine::config::{Detail, RegionConfig, RunConfig};
use contigua_machine::{Engine, Progress, Report, Run, Saves, simulate, simulate_from};
use contigua_program::descriptors::anonymous_file;
use contigua_program::end::{End, Stop};
use contigua_program::footprint::{TouchedPage, footprint};
use contigua_program::launch::Surroundings;
use contigua_program::plan::{Mode, Plan, Regions};
use contigua_program::sources::drmemtrace::DrmemtraceSource;
use contigua_program::sources::live::{LiveProgram, LiveSetup, LiveSource};
use contigua_program::sources::{Program, Source, TraceFormat};
use contigua_program::trace::TraceWriter;
use contigua_program::vectors::BlockVectors;
use contigua_program::wire::{Event, Record, Records};
use pyo3::PyErr;

use crate::load::Load;
use crate::{engine_error, program_error};

/// The QEMU plugin.
const PLUGIN: &[u8] = include_bytes!(env!("CONTIGUA_PLUGIN"));

/// How often progress is told and limits are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a program that was interrupted may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
const PANICKED: &str = "internal error: a simulation thread panicked; see above";

/// Source of events.
pub enum Input {
    /// A program that is started for this purpose.
    Live(Vec<OsString>, Box<Surroundings>),
    /// A trace that was recorded before.
    Trace(PathBuf, TraceFormat),
}

/// Where a run's server is saved, and where it comes from.
#[derive(Default)]
pub struct Checkpoints {
    /// After how many instructions, and the file.
    pub saves: Vec<(u64, PathBuf)>,
    /// The file that the run goes on from.
    pub from: Option<PathBuf>,
}

/// Runs to do, and their input.
pub struct Session {
    pub configs: Vec<RunConfig>,
    /// Of each of them.
    pub checkpoints: Vec<Checkpoints>,
    pub input: Input,
    /// Where to record the events as well.
    pub record: Option<PathBuf>,
    /// Events that the recording holds. Designs beside it see no others.
    pub record_plan: Plan,
    /// Pages of a trace lie where the traced machine had them.
    pub traced_pages: bool,
    /// The client that loads the program, if it is a server.
    pub load: Option<Load>,
    /// Stop the program after this long.
    pub time_limit: Option<Duration>,
}

/// Results of a session.
pub struct Outcome {
    pub reports: Vec<Report>,
    pub exit_code: i32,
    /// Why outputs are not there: the recording, timelines, profiles, checkpoints. Each fails alone.
    pub failures: Vec<String>,
}

impl Outcome {
    /// # Errors
    /// When a program that nobody interrupted has not what a run was to simulate.
    fn new(runs: Vec<Run>, end: Option<&End>) -> Result<Self, PyErr> {
        if end != Some(&End::Stopped(Stop::Interrupted))
            && let Some(missed) = runs.iter().find_map(|run| run.missed.as_ref())
        {
            return Err(engine_error(missed));
        }
        let mut failures = Vec::new();
        let reports = runs.into_iter().map(|run| {
            let lost = [run.timeline, run.profile, run.smaps].into_iter();
            let lost = lost.filter_map(Result::err).chain(run.checkpoints);
            failures.extend(lost.map(|error| error.to_string()));
            run.report
        });
        Ok(Self {
            reports: reports.collect(),
            exit_code: end.map_or(0, End::exit_code),
            failures,
        })
    }
}

/// Told now and then how far each design is: instructions, batches behind. An error ends the
/// session, as far as it has come.
type Observer<'a> = &'a dyn Fn(&[(u64, u64)]) -> Result<(), PyErr>;

impl Session {
    /// Runs the session. An interrupt (the observer's error) ends the program; what ran is
    /// reported.
    pub fn run(self, observer: Observer<'_>) -> Result<Outcome, PyErr> {
        match &self.input {
            Input::Live(command, surroundings) => self.run_live(command, surroundings, observer),
            Input::Trace(path, format) => self.run_trace(path, *format, observer),
        }
    }

    fn run_trace(
        &self,
        path: &Path,
        format: TraceFormat,
        observer: Observer<'_>,
    ) -> Result<Outcome, PyErr> {
        if self.configs.len() > 1 && !path.is_file() && !path.is_dir() && path.exists() {
            return Err(engine_error(format!(
                "{}: no regular file, which several designs can read; give one design, or a file",
                path.display()
            )));
        }
        if let Some(name) = self
            .configs
            .iter()
            .find_map(|config| config.regions.as_ref()?.function())
        {
            return Err(engine_error(format!(
                "{}: calls of {name} are found while a program runs: run the program, or record it \
                 with `contigua run --region function:{name} --record FILE`, and replay that with \
                 --region markers",
                path.display()
            )));
        }
        let mut sources = Vec::new();
        for config in &self.configs {
            let mut source = self.source(path, format)?;
            if config.detail == Detail::Full && !source.has_registers() {
                let error = contigua_machine::Error::NoRegisters(path.to_owned());
                return Err(engine_error(error));
            }
            source.set_address_bits(config.machine.page_table_levels.0.address_bits());
            self.skip_in(&mut *source)?;
            sources.push(source);
        }
        self.check_checkpoints(path, &sources)?;
        let mut configs = self.configs.clone();
        for (config, source) in configs.iter_mut().zip(&sources) {
            let followed = config.follow(&source.program().plan);
            followed.map_err(|error| engine_error(format!("{}: {error}", path.display())))?;
        }
        let touched = self.footprint(path, format, observer)?;
        let programs = sources.iter().map(|source| source.program().clone());
        let origins = self.checkpoints.iter().zip(&sources).map(|(of, source)| {
            let from = of.from.as_ref().zip(source.identity());
            from.map(|(file, identity)| (file.as_path(), identity))
        });
        let servers = servers(
            &configs,
            programs.collect(),
            &origins.collect::<Vec<_>>(),
            &touched,
            observer,
        )?;
        for (source, (_, batches)) in sources.iter_mut().zip(&servers) {
            if *batches > 0 {
                source.seek(*batches).map_err(engine_error)?;
            }
        }
        let saves = self
            .checkpoints
            .iter()
            .map(|of| Saves::new(of.saves.clone()));
        let designs: Vec<_> = servers.into_iter().zip(sources).zip(saves).collect();
        let progress: Vec<Progress> = self.configs.iter().map(|_| Progress::default()).collect();
        let mut interrupted = false;
        let runs = thread::scope(|scope| {
            let mut team = Team::default();
            for ((((engine, batches), mut source), saves), own) in
                designs.into_iter().zip(&progress)
            {
                team.begin(scope, move || {
                    simulate_from(engine, &mut *source, own, batches, saves)
                })
                .inspect_err(|_| cancel(&progress))?;
            }
            team.join(|| {
                if observer(&state(&progress)).is_err() && !interrupted {
                    interrupted = true;
                    cancel(&progress);
                }
            })
        })?;
        let end = if interrupted {
            Some(End::Stopped(Stop::Interrupted))
        } else {
            // A recording that was interrupted is replayed to its end.
            let known = runs.iter().find_map(|run| run.end.clone());
            known.filter(|end| !matches!(end, End::Stopped(_)))
        };
        Outcome::new(runs, end.as_ref())
    }

    /// The trace as it is replayed.
    ///
    /// # Errors
    /// When it cannot be opened, or has not what is asked for.
    fn source(&self, path: &Path, format: TraceFormat) -> Result<Box<dyn Source>, PyErr> {
        if !self.traced_pages {
            return format.open(path).map_err(engine_error);
        }
        let refuse = |why: &str| {
            Err(engine_error(format!(
                "{}: {why}: leave --physical traced out",
                path.display()
            )))
        };
        if format != TraceFormat::Drmemtrace {
            return refuse("only traces of drmemtrace say where pages were");
        }
        if self.configs.iter().any(|config| config.mapped) {
            return refuse("--mapped places memory anew");
        }
        let open = || DrmemtraceSource::open(path).map_err(engine_error);
        let mappings = DrmemtraceSource::mappings(path).map_err(engine_error)?;
        let mut source = open()?;
        if mappings.is_none() {
            // Markers of the first pages come before their accesses.
            let mut probe = open()?;
            probe.place_as_traced(Vec::new());
            let first = probe.next_batch().map_err(engine_error)?;
            let is_told = |word| matches!(word, Ok(Record::Event(Event::Traced { .. })));
            if !first.is_some_and(|batch| Records::new(batch.words).any(is_told)) {
                return refuse(
                    "there is no v2p.textproto beside it, and it has no physical addresses inside",
                );
            }
        }
        source.place_as_traced(mappings.unwrap_or_default());
        Ok(Box::new(source))
    }

    /// Passes over what all designs skip, where the first touches of pages are not needed.
    fn skip_in(&self, source: &mut dyn Source) -> Result<(), PyErr> {
        let skips =
            |config: &RunConfig| (config.mapped || self.traced_pages).then_some(config.skip);
        let least = self.configs.iter().map(skips).min().flatten();
        source.skip(least.unwrap_or(0)).map_err(engine_error)?;
        Ok(())
    }

    /// The pages that a trace touches, where they are to be mapped before it begins.
    fn footprint(
        &self,
        path: &Path,
        format: TraceFormat,
        observer: Observer<'_>,
    ) -> Result<Vec<TouchedPage>, PyErr> {
        let Some(config) = self.configs.iter().find(|config| config.mapped) else {
            return Ok(Vec::new());
        };
        if path.exists() && !path.is_file() && !path.is_dir() {
            return Err(engine_error(format!(
                "{}: no regular file, which --mapped reads twice; give a file, or leave --mapped out",
                path.display()
            )));
        }
        let mut source = format.open(path).map_err(engine_error)?;
        source.set_address_bits(config.machine.page_table_levels.0.address_bits());
        self.skip_in(&mut *source)?;
        let cancel = AtomicBool::new(false);
        let found = thread::scope(|scope| {
            let mut team = Team::default();
            team.begin(scope, || footprint(&mut *source, &cancel))?;
            team.join_or_cancel(&cancel, observer)
        });
        Ok(found?.pop().unwrap_or_default())
    }

    /// # Errors
    /// When a checkpoint is asked for that a replay of the trace cannot go on from.
    fn check_checkpoints(&self, path: &Path, sources: &[Box<dyn Source>]) -> Result<(), PyErr> {
        let asked = |of: &Checkpoints| of.from.is_some() || !of.saves.is_empty();
        if !self.checkpoints.iter().any(asked) {
            return Ok(());
        }
        if sources.iter().any(|source| source.identity().is_none()) {
            return Err(engine_error(format!(
                "{}: checkpoints need a recording of `contigua record`, in which a run can begin in the \
                 middle",
                path.display()
            )));
        }
        if self.configs.iter().any(|config| config.timeline.is_some()) {
            return Err(engine_error(
                "--timeline cannot be combined with checkpoints: they do not store the timeline",
            ));
        }
        if self.configs.iter().any(|config| config.profile.is_some()) {
            return Err(engine_error(
                "a profile cannot be combined with checkpoints: they do not store it",
            ));
        }
        if self.configs.iter().any(|config| config.smaps.is_some()) {
            return Err(engine_error(
                "--smaps cannot be combined with checkpoints: they do not store processes that ended",
            ));
        }
        Ok(())
    }

    fn run_live(
        &self,
        command: &[OsString],
        surroundings: &Surroundings,
        observer: Observer<'_>,
    ) -> Result<Outcome, PyErr> {
        let asked = |of: &Checkpoints| of.from.is_some() || !of.saves.is_empty();
        if self.checkpoints.iter().any(asked) {
            return Err(engine_error(
                "checkpoints are of replays, because a program cannot be resumed: record it with \
                 `contigua record -o FILE`, and give --trace FILE",
            ));
        }
        let mut setup = LiveSetup::new(command, surroundings.clone()).map_err(program_error)?;
        let plan = self.plan(&setup).map_err(engine_error)?;
        setup.set_plan(plan).map_err(engine_error)?;
        let mut sources = Vec::new();
        for _ in &self.configs {
            sources.push(setup.source().map_err(engine_error)?);
        }
        let programs = sources.iter().map(|source| source.program().clone());
        let servers = servers(&self.configs, programs.collect(), &[], &[], observer)?;
        let servers = servers.into_iter().map(|(engine, _)| engine);
        let designs: Vec<_> = servers.zip(sources).collect();
        let recorder = self
            .record
            .as_ref()
            .map(|path| -> Result<_, contigua_program::Error> {
                let source = setup.source()?;
                let writer = TraceWriter::create(path, source.program())?;
                Ok((source, writer))
            })
            .transpose()
            .map_err(engine_error)?;
        let plugin = plugin_file().map_err(engine_error)?;
        let mut program = setup.start(&plugin).map_err(engine_error)?;
        let progress: Vec<Progress> = self.configs.iter().map(|_| Progress::default()).collect();
        thread::scope(|scope| {
            let recording =
                recorder.map(|(source, writer)| begin(scope, move || record(source, writer)));
            let mut team = Team::default();
            let begun = designs.into_iter().zip(&progress).try_for_each(
                |((engine, mut source), progress)| {
                    team.begin(scope, move || simulate(engine, &mut source, progress))
                },
            );
            let recording = match (recording.transpose(), begun) {
                (Ok(recording), Ok(())) => recording,
                (Err(error), _) | (_, Err(error)) => {
                    // Threads that have begun come to their end with the program.
                    drop(program);
                    return Err(error);
                }
            };
            let readers_done =
                || !progress.is_empty() && progress.iter().all(|p| p.done.load(Ordering::Acquire));
            let watched = self.watch(&mut program, &progress, &readers_done, observer);
            // Whatever happened, let the readers come to their end before anything is said.
            drop_if_failed(&watched, program);
            let runs = team.join(|| {
                let _ = observer(&state(&progress));
            });
            let recorded = recording.map(thread::ScopedJoinHandle::join);
            let end = watched?;
            let mut outcome = Outcome::new(runs?, Some(&end))?;
            let recorded = recorded.transpose().map_err(|_| engine_error(PANICKED))?;
            let finished = recorded.map(|writer| writer?.finish(Some(&end)));
            if let Some(Err(error)) = finished {
                outcome.failures.push(error.to_string());
            }
            Ok(outcome)
        })
    }

    /// Counts which blocks each interval of so many instructions executes; nothing is simulated. Also
    /// the exit status.
    pub fn block_vectors(
        &self,
        interval: u64,
        observer: Observer<'_>,
    ) -> Result<(BlockVectors, i32), PyErr> {
        let mut vectors = BlockVectors::new(interval);
        let cancel = AtomicBool::new(false);
        let exit_code = match &self.input {
            Input::Trace(path, format) => {
                let mut source = format.open(path).map_err(engine_error)?;
                thread::scope(|scope| {
                    let mut team = Team::default();
                    team.begin(scope, || vectors.read(&mut *source, &cancel))?;
                    team.join_or_cancel(&cancel, observer)?;
                    Ok::<_, PyErr>(0)
                })?
            }
            Input::Live(command, surroundings) => {
                let surroundings = Surroundings {
                    plan: Plan {
                        regions: Some(Regions::Blocks),
                        ..Plan::default()
                    },
                    ..Surroundings::clone(surroundings)
                };
                let setup = LiveSetup::new(command, surroundings).map_err(program_error)?;
                let mut source = setup.source().map_err(engine_error)?;
                let plugin = plugin_file().map_err(engine_error)?;
                let mut program = setup.start(&plugin).map_err(engine_error)?;
                thread::scope(|scope| {
                    let reader = begin(scope, || vectors.read(&mut source, &cancel))?;
                    let watched = self.watch(&mut program, &[], &|| false, observer);
                    drop_if_failed(&watched, program);
                    join(reader)?;
                    watched.map(|end| end.exit_code())
                })?
            }
        };
        vectors.finish();
        Ok((vectors, exit_code))
    }

    /// Parts of the program that must be observed: all of it when it is recorded, for others to use.
    fn plan(&self, setup: &LiveSetup) -> Result<Plan, contigua_program::Error> {
        let mut plans = self.configs.iter().map(RunConfig::plan);
        let mut first = plans.next().unwrap_or_default();
        let same = plans.all(|plan| plan == first);
        if let Some(Regions::Cued { function, .. }) = &mut first.regions {
            let name = self.configs[0]
                .regions
                .as_ref()
                .and_then(RegionConfig::function);
            *function = name.map(|name| setup.function(name)).transpose()?;
        }
        Ok(match first.regions {
            // Where regions are is in the recording, too.
            Some(Regions::Cued { function, .. }) if self.record.is_some() => Plan {
                regions: Some(Regions::Cued {
                    outside: Mode::Warm,
                    function,
                }),
                ..Plan::default()
            },
            _ if self.record.is_some() => self.record_plan.clone(),
            _ if same => first,
            _ => Plan::default(),
        })
    }

    /// Waits for the program's end, or makes it end when a limit is reached.
    fn watch(
        &self,
        program: &mut LiveProgram,
        progress: &[Progress],
        readers_done: &dyn Fn() -> bool,
        observer: Observer<'_>,
    ) -> Result<End, PyErr> {
        let start = Instant::now();
        let mut interrupted: Option<Instant> = None;
        loop {
            if program.wait(TICK).map_err(engine_error)? {
                return ended(program);
            }
            if let Some(load) = &self.load {
                load.pass_on(|cue| program.ask(cue));
            }
            if observer(&state(progress)).is_err() {
                // It may say otherwise, and will not do what it would have done.
                program.expect_end(Stop::Interrupted);
                interrupted.get_or_insert_with(Instant::now);
            }
            if interrupted.is_some_and(|since| since.elapsed() >= GRACE) {
                program.stop(Stop::Interrupted).map_err(engine_error)?;
                return ended(program);
            }
            let late = self
                .time_limit
                .is_some_and(|limit| start.elapsed() >= limit);
            if late || readers_done() {
                let why = if late { Stop::Time } else { Stop::Done };
                program.stop(why).map_err(engine_error)?;
                return ended(program);
            }
        }
    }
}

fn ended(program: &LiveProgram) -> Result<End, PyErr> {
    let end = program.end().cloned();
    end.ok_or_else(|| engine_error("internal error: the program has not ended"))
}

/// Every design's server, before anything runs, and how many batches of its recording it has had:
/// none, or what the checkpoint says that it comes from. Pages are mapped where that is asked for. What cannot be built is said first. The
/// observer is told of no instructions during ageing.
fn servers(
    configs: &[RunConfig],
    programs: Vec<Program>,
    origins: &[Option<(&Path, u64)>],
    touched: &[TouchedPage],
    observer: Observer<'_>,
) -> Result<Vec<(Engine, u64)>, PyErr> {
    let cancel = AtomicBool::new(false);
    thread::scope(|scope| {
        let cancel = &cancel;
        // Where the host has two cores for each design, it takes them.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let two_threads = cores >= 2 * configs.len();
        let mut team = Team::default();
        configs
            .iter()
            .zip(programs)
            .zip(origins.iter().copied().chain(iter::repeat(None)))
            .try_for_each(|((config, program), origin)| {
                team.begin(scope, move || {
                    let (mut engine, batches) = match origin {
                        Some((file, identity)) => Engine::restore(config, program, file, identity)?,
                        None => (Engine::prepare(config.clone(), program, cancel)?, 0),
                    };
                    if config.mapped {
                        engine.map_before(touched)?;
                    }
                    if two_threads {
                        engine.use_second_thread();
                    }
                    Ok::<_, contigua_machine::Error>((engine, batches))
                })
            })
            .inspect_err(|_| cancel.store(true, Ordering::Relaxed))?;
        team.join_or_cancel(cancel, observer)
    })
}

/// Threads that do the same, each of which wakes who waits for them.
struct Team<'scope, T, E> {
    threads: Vec<thread::ScopedJoinHandle<'scope, Result<T, E>>>,
    /// How many have not ended.
    left: Arc<AtomicUsize>,
}

impl<T, E> Default for Team<'_, T, E> {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            left: Arc::default(),
        }
    }
}

impl<'scope, T: Send + 'scope, E: Display + Send + 'scope> Team<'scope, T, E> {
    fn begin(
        &mut self,
        scope: &'scope thread::Scope<'scope, '_>,
        work: impl FnOnce() -> Result<T, E> + Send + 'scope,
    ) -> Result<(), PyErr> {
        let member = Member {
            left: Arc::clone(&self.left),
            waiter: thread::current(),
        };
        self.left.fetch_add(1, Ordering::Relaxed);
        let thread = begin(scope, move || {
            let _member = member;
            work()
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Waits for all, in the thread that began them, and calls `look` every [`TICK`].
    fn join(self, mut look: impl FnMut()) -> Result<Vec<T>, PyErr> {
        while self.left.load(Ordering::Acquire) > 0 {
            thread::park_timeout(TICK);
            look();
        }
        self.threads.into_iter().map(join).collect()
    }

    /// Joins all workers. An observer that fails sets `cancel`, and its error is the outcome.
    fn join_or_cancel(self, cancel: &AtomicBool, observer: Observer<'_>) -> Result<Vec<T>, PyErr> {
        let mut outcome = Ok(());
        let joined = self.join(|| {
            if outcome.is_ok() {
                outcome = observer(&[]);
                cancel.store(outcome.is_err(), Ordering::Relaxed);
            }
        });
        outcome?;
        joined
    }
}

/// One of a [`Team`], until it ends or panics.
struct Member {
    left: Arc<AtomicUsize>,
    waiter: thread::Thread,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.left.fetch_sub(1, Ordering::Release);
        self.waiter.unpark();
    }
}

/// Starts a thread. There may be none for this user, or in this namespace.
fn begin<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<thread::ScopedJoinHandle<'scope, T>, PyErr> {
    let begun = thread::Builder::new().spawn_scoped(scope, work);
    begun.map_err(|error| {
        engine_error(format!(
            "cannot start a thread: {error}; raise the limit of processes (ulimit -u), and start \
             the command by a process of its own where a PID namespace was made (unshare --fork)"
        ))
    })
}

/// Ends the program when watching it has failed; its readers end with it.
fn drop_if_failed<T>(watched: &Result<T, PyErr>, program: LiveProgram) {
    if watched.is_err() {
        drop(program);
    }
}

fn state(progress: &[Progress]) -> Vec<(u64, u64)> {
    let load = |p: &Progress| {
        (
            p.instructions.load(Ordering::Relaxed),
            p.behind.load(Ordering::Relaxed),
        )
    };
    progress.iter().map(load).collect()
}

fn cancel(progress: &[Progress]) {
    for progress in progress {
        progress.cancel.store(true, Ordering::Relaxed);
    }
}

/// Records to the end of the stream. Who knows why it ended finishes the file.
fn record(
    mut source: LiveSource,
    mut writer: TraceWriter,
) -> Result<TraceWriter, contigua_program::Error> {
    let mut outcome = Ok(());
    while let Some(batch) = source.next_batch()? {
        // After an error, read on: the designs beside this recording are not to blame.
        if outcome.is_ok() {
            outcome = writer.write(&batch);
        }
    }
    outcome?;
    Ok(writer)
}

fn join<T, E: Display>(thread: thread::ScopedJoinHandle<'_, Result<T, E>>) -> Result<T, PyErr> {
    match thread.join() {
        Ok(result) => result.map_err(engine_error),
        Err(_) => Err(engine_error(PANICKED)),
    }
}

/// The plugin as a file that QEMU can load, in anonymous memory.
fn plugin_file() -> std::io::Result<File> {
    let mut file = anonymous_file(c"contigua-qemu-plugin.so")?;
    file.write_all(PLUGIN)?;
    Ok(file)
}
