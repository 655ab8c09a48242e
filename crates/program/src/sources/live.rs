//! Live programs: QEMU with the plugin, any number of readers, and what watches over both.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::{Batch, Program, Source};
use crate::Error;
use crate::code::CodeLog;
use crate::descriptors::Handles;
use crate::end::{End, Stop};
use crate::launch::{Launch, Surroundings};
use crate::lifeline::Lifeline;
use crate::plan::{Function, Plan, Regions};
use crate::ring::{Owner, Ring, RingReader};
use crate::symbols;
use crate::syscall::Architecture;
use crate::wire::Cue;

/// Interval at which a run checks that its program still lives.
const POLL: Duration = Duration::from_millis(10);

/// One execution of a program, watched by any number of [`LiveSource`]s.
pub struct LiveProgram {
    ring: Arc<Ring>,
    lifeline: Lifeline,
    _owner: Owner,
    child: Child,
    program: Program,
    status: Option<ExitStatus>,
    /// Why the run ends it, if it does.
    stopped: Option<Stop>,
    end: Arc<OnceLock<End>>,
}

/// A program that is ready to start. Readers are made before it starts, so that none misses its
/// beginning.
pub struct LiveSetup {
    ring: Arc<Ring>,
    launch: Launch,
    program: Program,
    end: Arc<OnceLock<End>>,
}

/// The plan of a recording: one that tells everything is none.
fn held_by(plan: &Plan) -> Plan {
    let told = Some(plan).filter(|plan| plan.goes_forward());
    told.cloned().unwrap_or_default()
}

impl LiveSetup {
    /// Prepares to run a command line.
    ///
    /// # Errors
    /// Those of [`Launch::prepare`] and [`Ring::create`].
    pub fn new(command: &[OsString], surroundings: Surroundings) -> Result<Self, Error> {
        let plan = held_by(&surroundings.plan);
        let layout = surroundings.layout;
        let launch = Launch::prepare(command, surroundings)?;
        let program = Program {
            command: launch.command(),
            architecture: launch.architecture(),
            reports_mappings: true,
            plan,
            layout,
        };
        Ok(Self {
            ring: Arc::new(Ring::create()?),
            launch,
            program,
            end: Arc::default(),
        })
    }

    /// Sets the plan of the program's simulation.
    ///
    /// # Errors
    /// [`Error::NoCues`] where regions are to be found by what the code says of them.
    pub fn set_plan(&mut self, plan: Plan) -> Result<(), Error> {
        if matches!(plan.regions, Some(Regions::Cued { .. })) {
            self.check_cues()?;
        }
        self.program.plan = held_by(&plan);
        self.launch.set_plan(plan);
        Ok(())
    }

    /// Checks that the program's code can be searched for markers or calls of a function.
    fn check_cues(&self) -> Result<(), Error> {
        match self.program.architecture {
            Architecture::X86_64 => Ok(()),
            other @ Architecture::Aarch64 => Err(Error::NoCues(other)),
        }
    }

    /// Finds a function: `NAME` of the program, or `NAME@FILE` of another file, which the program
    /// loads or executes.
    ///
    /// # Errors
    /// Those of [`symbols::find`], and [`Error::NoCues`].
    pub fn function(&self, text: &str) -> Result<Function, Error> {
        self.check_cues()?;
        let (name, file) = symbols::split(text);
        let file = file.as_deref().unwrap_or(self.launch.program());
        symbols::find(file, name)
    }

    /// A source of the program's events.
    ///
    /// # Errors
    /// [`Error::TooManyReaders`].
    pub fn source(&self) -> Result<LiveSource, Error> {
        Ok(LiveSource {
            reader: RingReader::new(self.ring.clone())?,
            program: self.program.clone(),
            end: self.end.clone(),
        })
    }

    /// Starts the program with the QEMU plugin in the file `plugin`.
    ///
    /// # Errors
    /// Those of [`Launch::start`] and [`Owner::new`], and [`Error::Qemu`].
    pub fn start(self, plugin: &File) -> Result<LiveProgram, Error> {
        let process = self.ring.new_process();
        let failed = |error: io::Error| Error::Qemu(format!("a pipe to it: {error}"));
        let (lifeline, guest_end) = Lifeline::new().map_err(failed)?;
        let handles = Handles {
            plugin: plugin.as_raw_fd(),
            ring: self.ring.descriptor().as_raw_fd(),
            lifeline: guest_end.as_raw_fd(),
        };
        let owner = Owner::new(self.ring.clone())?;
        let child = self.launch.start(&handles, process)?;
        Ok(LiveProgram {
            ring: self.ring,
            lifeline,
            _owner: owner,
            child,
            program: self.program,
            status: None,
            stopped: None,
            end: self.end,
        })
    }
}

impl LiveProgram {
    /// Description of the program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns true if the program and everything that it started have ended; then its sources end,
    /// too.
    ///
    /// # Errors
    /// [`Error::Qemu`] when QEMU ended before the program began.
    pub fn poll(&mut self) -> Result<bool, Error> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .map_err(|e| Error::Qemu(e.to_string()))?;
        }
        let held = self.lifeline.is_held();
        let left = self.ring.reap(held) || held;
        let Some(status) = self.status.filter(|_| !left) else {
            return Ok(false);
        };
        self.end.get_or_init(|| self.came_to(status));
        self.ring.end();
        if self.ring.published() == 0 {
            return Err(Error::Qemu(format!(
                "it ended with {status} before the program began; its message is above"
            )));
        }
        Ok(true)
    }

    /// End of the program, after all of its processes.
    fn came_to(&self, status: ExitStatus) -> End {
        let failure = self.ring.failure();
        let stopped = self.stopped.filter(|_| !self.ring.has_failed());
        match (stopped, failure, status.code(), status.signal()) {
            // Who was stopped did not tell its end.
            (Some(stop), ..) => End::Stopped(stop),
            (None, Some(reason), _, signal)
                if signal != Some(libc::SIGKILL) || self.ring.has_failed() =>
            {
                End::Failed(reason)
            }
            (None, _, Some(code), _) => End::Exited(code as u8),
            (None, _, None, signal) => End::Killed(signal.unwrap_or(0) as u8),
        }
    }

    /// Waits until [`LiveProgram::poll`] says that the program has ended, or the time is over.
    /// Says whether it has ended.
    ///
    /// # Errors
    /// Those of [`LiveProgram::poll`].
    pub fn wait(&mut self, at_most: Duration) -> Result<bool, Error> {
        let start = Instant::now();
        loop {
            if self.poll()? {
                return Ok(true);
            }
            if start.elapsed() >= at_most {
                return Ok(false);
            }
            thread::sleep(POLL.min(at_most));
        }
    }

    /// The run is to end: however the program ends now, this is why.
    pub fn expect_end(&mut self, why: Stop) {
        self.stopped.get_or_insert(why);
    }

    /// Begins or ends a region with the next system call that returns in the program.
    pub fn ask(&self, cue: Cue) {
        self.ring.ask(cue);
    }

    /// Stops the program where it is: every thread publishes what it has done, then all
    /// processes are killed. Returns once they are gone. What had failed by then is its end.
    ///
    /// # Errors
    /// Those of [`LiveProgram::poll`].
    pub fn stop(&mut self, why: Stop) -> Result<(), Error> {
        /// A running thread fills its chunk, and so sees the request, within microseconds.
        const TIME_TO_PUBLISH: Duration = Duration::from_millis(50);
        self.expect_end(why);
        self.ring.stop();
        thread::sleep(TIME_TO_PUBLISH);
        self.lifeline.cut();
        if self.status.is_none() {
            // Not bound to the lifeline yet, if it is only starting. An error means that it ended.
            let _ = self.child.kill();
        }
        while !self.poll()? {
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// End of the program; `None` while it runs.
    #[must_use]
    pub fn end(&self) -> Option<&End> {
        self.end.get()
    }
}

impl Drop for LiveProgram {
    fn drop(&mut self) {
        // What else happens to this process, the kernel does the same when the pipe is closed.
        if self.status.is_none() {
            let _ = self.stop(Stop::Interrupted);
        }
        self.ring.end();
    }
}

/// A reader of a live program.
pub struct LiveSource {
    reader: RingReader,
    program: Program,
    end: Arc<OnceLock<End>>,
}

impl Source for LiveSource {
    fn program(&self) -> &Program {
        &self.program
    }

    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error> {
        let Some((ring, thread, words)) = self.reader.next_with_ring() else {
            return Ok(None);
        };
        let code: &dyn CodeLog = ring;
        Ok(Some(Batch {
            thread,
            words,
            code,
        }))
    }

    fn end(&self) -> Option<&End> {
        self.end.get()
    }

    fn is_live(&self) -> bool {
        true
    }

    fn behind(&self) -> u64 {
        self.reader.behind()
    }
}
