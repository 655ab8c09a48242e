//! The crate's errors.

use std::io;
use std::path::PathBuf;

use crate::syscall::Architecture;
use crate::wire::{BlockId, Malformed};

/// Why a stream of events could not be produced or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A function is not in a file.
    #[error("{}: {problem}", path.display())]
    Symbol {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// The program to run does not exist.
    #[error("{}: no such program; give a path, or a name found in PATH", .0.display())]
    NoSuchProgram(PathBuf),
    /// The program to run is not something that can be executed.
    #[error("{}: not an executable program ({reason})", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// The contents that were found instead.
        reason: String,
    },
    /// The program is for an architecture that the front end does not run.
    #[error(
        "{}: a program for {found}, and this front end runs x86_64 and aarch64 programs; \
         record it where it runs and replay the trace",
        path.display()
    )]
    ForeignArchitecture {
        /// The file.
        path: PathBuf,
        /// Its architecture.
        found: String,
    },
    /// A library that was to be loaded before the program's own is not one.
    #[error(
        "{}: no shared library that the program can load; give the path of one, without \
         commas, colons and blanks",
        .0.display()
    )]
    Preload(PathBuf),
    /// A library was to be loaded before a program that loads none.
    #[error(
        "{}: linked statically, so that no library can be loaded before it; link it dynamically, or \
         run it with its own allocator",
        .0.display()
    )]
    Static(PathBuf),
    /// A dynamic program of another system, whose loader and libraries are not here.
    #[error(
        "{}: its loader {} is not here; give --root DIR, a folder with the files of a system for \
         {}, or link it statically",
        path.display(), loader.display(), architecture.name()
    )]
    NoLoader {
        /// The program.
        path: PathBuf,
        /// The loader that it names.
        loader: PathBuf,
        /// The program's architecture.
        architecture: Architecture,
    },
    /// The files of another system were to be used, and cannot.
    #[error("{}: no folder to run programs from: {problem}", path.display())]
    Root {
        /// The folder.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// Regions were to be found by what the code of a program says of them, which is not known for
    /// its architecture.
    #[error(
        "markers and calls of functions are found in x86_64 programs, and this one is for {}: name \
         the region by counts of instructions (--window, --skip, --instructions)",
        .0.name()
    )]
    NoCues(Architecture),
    /// There is no QEMU whose user mode loads plugins.
    #[error(
        "no QEMU that loads plugins ({reason}); {}",
        how_to_get_qemu(*architecture)
    )]
    NoQemu {
        /// Of the program that was to run.
        architecture: Architecture,
        /// The candidates, and the fault of each.
        reason: String,
    },
    /// QEMU could not be started, or ended before the program began.
    #[error("QEMU could not run the program: {0}")]
    Qemu(String),
    /// The shared memory between QEMU and the readers could not be set up.
    #[error("shared memory for the event ring: {step}: {source}")]
    Ring {
        /// The step that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not tell when a thread has ended.
    #[error(
        "set_robust_list: {0}: contigua needs robust futexes to know when a process has ended; \
         under QEMU's user mode, which has none, run it in a virtual machine; where a seccomp \
         filter refuses the call, allow it"
    )]
    NoRobustFutexes(io::Error),
    /// The run has more distinct blocks of code than it can.
    #[error("the program has more distinct code than a run can hold")]
    TooMuchCode,
    /// There is no place for another process.
    #[error("the program has too many processes at a time")]
    TooManyProcesses,
    /// The ring already serves as many readers as it can.
    #[error("an event ring serves at most {limit} readers")]
    TooManyReaders {
        /// The limit.
        limit: u32,
    },
    /// The memory offered as a ring is not one, or of another version.
    #[error("not an event ring of version {expected} (found {found})")]
    NotARing {
        /// The version that this build uses.
        expected: u32,
        /// The version found; 0 when the memory holds something else.
        found: u32,
    },
    /// A stream contained words that are no record.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A stream named a block that it has not described.
    #[error("the event stream executes block {} without having described it", .0.0)]
    UnknownBlock(BlockId),
    /// Only recordings can be entered in the middle.
    #[error("only recordings of `contigua record` can be entered in the middle")]
    CannotSeek,
    /// A trace is not readable as one.
    #[error("{}: {problem}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The fault, and its remedy.
        problem: crate::TraceProblem,
    },
}

fn how_to_get_qemu(architecture: Architecture) -> String {
    let (argument, variable) = match architecture {
        Architecture::X86_64 => ("", "CONTIGUA_QEMU"),
        Architecture::Aarch64 => (" --architecture aarch64", "CONTIGUA_QEMU_AARCH64"),
    };
    format!(
        "run `contigua setup qemu{argument}` to build one, or set {variable} to the path of one"
    )
}

/// Fault of a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceProblem {
    /// The file does not begin as a trace does.
    #[error("not a {format} trace ({detail})")]
    NotATrace {
        /// The expected format.
        format: &'static str,
        /// The contents that were found.
        detail: String,
    },
    /// The trace was written by another version of the format.
    #[error(
        "trace format version {found}, and this build reads versions up to {expected}; record it again"
    )]
    Version {
        /// The version of the file.
        found: u32,
        /// The version of this build.
        expected: u32,
    },
    /// The file ends too early.
    #[error("truncated at byte {offset}: the recording was cut short; record it again")]
    Truncated {
        /// Offset of the file's end.
        offset: u64,
    },
    /// Stored bytes differ from what was written.
    #[error("corrupted near byte {offset} ({detail}); copy or record the file again")]
    Corrupted {
        /// Offset of the start of the damaged part.
        offset: u64,
        /// The part that did not fit.
        detail: String,
    },
    /// A line or record of a foreign trace does not follow its format.
    #[error("{place}: {detail}")]
    Record {
        /// The line or record number.
        place: String,
        /// The fault.
        detail: String,
    },
}

#[cfg(feature = "sources")]
impl Error {
    /// A [`Error::File`] for `path`.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

/// An error that does not know yet which file it is about.
#[cfg(feature = "sources")]
pub(crate) enum Failure {
    Io(io::Error),
    Trace(TraceProblem),
}

#[cfg(feature = "sources")]
impl Failure {
    pub(crate) fn at(self, path: &std::path::Path) -> Error {
        match self {
            Self::Io(source) => Error::file(path)(source),
            Self::Trace(problem) => Error::Trace {
                path: path.to_owned(),
                problem,
            },
        }
    }
}

#[cfg(feature = "sources")]
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(feature = "sources")]
impl From<TraceProblem> for Failure {
    fn from(problem: TraceProblem) -> Self {
        Self::Trace(problem)
    }
}
