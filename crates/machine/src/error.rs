//! The crate's errors.

use std::path::PathBuf;

use contigua_units::{Bytes, VirtAddr};

/// Why a run could not be made or finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A machine or design file is not well formed.
    #[error("{}: {message}{hint}", path.display())]
    Config {
        /// Which file.
        path: PathBuf,
        /// The parser's message, with line and column.
        message: String,
        /// A line that offers a known key, or nothing.
        hint: String,
    },
    /// A history that does not exist.
    #[error(
        "unknown age {text:?}: ages are fresh, scattered:P with P percent of frames unmovable (0 to \
         90), partial, full, PROFILE:TIME such as web:2h with a profile among {profiles}, and \
         snapshot:FILE"
    )]
    Age {
        /// Value that was written.
        text: String,
        /// The profiles that there are.
        profiles: String,
    },
    /// A scenario of holes that does not exist.
    #[error(
        "unknown holes {0:?}: write SHARE:FRACTION:PATTERN:KIND such as 0.5:0.1:dispersed:remapped, \
         with shares of 0 to 1, clustered or dispersed, remapped or unallocated"
    )]
    Holes(String),
    /// The document that describes a run is not well formed.
    #[error("run: {0}")]
    Spec(String),
    /// A size of memory that is none.
    #[error("memory {text:?}: {problem}")]
    MemorySize {
        /// Value that was written.
        text: String,
        /// Problem with it.
        problem: String,
    },
    /// A number of cores that no server has.
    #[error("cores = {0} is out of range: 1 to 64")]
    Cores(u32),
    /// A rate of migrations that is none.
    #[error("migrations = {0} is out of range: 0 to 10^9 per second")]
    Migrations(f64),
    /// A time that no run has.
    #[error("--for {0} s is out of range: more than 0 s of simulated time, at most 10^9 s")]
    SimulatedTime(f64),
    /// A run that counts nothing.
    #[error("--instructions 0 is out of range: at least 1, or nothing would be measured")]
    NoInstructions,
    /// Simulated time where none is.
    #[error(
        "--for is simulated time, which --detail translation has none of: give --wall, or another \
         --detail"
    )]
    NeedsTime,
    /// Something that a lesser detail does not simulate.
    #[error("{0} the whole simulation: run with --detail full")]
    NeedsFull(&'static str),
    /// A timeline that could not be written.
    #[error("{}: {source}", path.display())]
    Timeline {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A profile of a run that could not be written.
    #[error("{}: {source}", path.display())]
    ProfileFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Mappings of processes that could not be written.
    #[error("{}: {source}", path.display())]
    Smaps {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Cancelled before the server had aged.
    #[error("interrupted during ageing")]
    Interrupted,
    /// A profile whose values make no sense.
    #[error("profile {profile}: {problem}")]
    Profile {
        /// Which profile.
        profile: String,
        /// Problem with it.
        problem: String,
    },
    /// A probability that is none.
    #[error("confidence = {0} is out of range: a probability between 0 and 1, such as 0.95")]
    Confidence(f64),
    /// An error that is none.
    #[error("goal = {0} is out of range: a share of cycles between 0 and 1, such as 0.02")]
    Goal(f64),
    /// A goal for what is not simulated.
    #[error(
        "--sample-error is an error of cycles, and --detail translation has none: leave one out"
    )]
    GoalNeedsTime,
    /// Regions that cannot be.
    #[error("{0}")]
    Regions(contigua_program::plan::Invalid),
    /// Shares of the program that are none.
    #[error("weights of points are shares of the program, 0 to 1, and not all 0")]
    Weights,
    /// Regions say themselves where they begin and end.
    #[error("{0} cannot be combined with regions, windows or SimPoints: leave it out")]
    RegionsWith(&'static str),
    /// Units that cannot be.
    #[error("sampling: {0}")]
    Sampling(contigua_program::plan::Invalid),
    /// Cores that run side by side.
    #[error(
        "sampling takes one core so far, not {0}: leave --cores out, threads then share the core"
    )]
    SamplesOneCore(u32),
    /// Two ways to say the same.
    #[error("a sampled run warms caches before each unit: leave --warmup out")]
    SamplingWarmsItself,
    /// A recording of a part of the program, and a run of more.
    #[error(
        "it holds what `contigua record {0}` keeps, and this run needs more: leave --skip and --sample \
         out to use what is there, or record the program again"
    )]
    NotRecorded(String),
    /// Memory that the design cannot divide.
    #[error("memory: {0}")]
    Frames(contigua_frames::Error),
    /// A snapshot that cannot be used.
    #[error(transparent)]
    Snapshot(#[from] crate::ageing::SnapshotError),
    /// A snapshot of another size than the server.
    #[error(
        "the snapshot is of {found} of memory and the server has {wanted}; use --memory {found}"
    )]
    SnapshotSize {
        /// Memory of the snapshot.
        found: Bytes,
        /// Memory of the server.
        wanted: Bytes,
    },
    /// Less memory than a server can boot with.
    #[error("{memory} of memory: a simulated server has at least {least} and at most {most}")]
    Memory {
        /// Amount that was asked for.
        memory: Bytes,
        /// The least.
        least: Bytes,
        /// The most.
        most: Bytes,
    },
    /// Nodes that cannot share the memory evenly.
    #[error(
        "{memory} of memory on {nodes} nodes: 1 to 8 nodes have the same whole number of 2 MiB"
    )]
    Nodes {
        /// Number of nodes.
        nodes: u32,
        /// Memory of all.
        memory: Bytes,
    },
    /// More memory than the computer that simulates it can keep account of.
    #[error(
        "{memory} of memory: simulating it takes {needed} and this computer has {available} \
         available; give less with --memory"
    )]
    HostMemory {
        /// Memory that was asked for.
        memory: Bytes,
        /// Memory that its frame records take.
        needed: Bytes,
        /// Memory that is available here.
        available: Bytes,
    },
    /// A component's parameters do not fit together.
    #[error("machine {machine}: {problem}")]
    Component {
        /// Which machine.
        machine: String,
        /// Part that does not fit.
        problem: String,
    },
    /// The program needs more memory than the simulated server has.
    #[error(
        "the simulated server ran out of its {memory} of memory at instruction {instruction}; \
         give it more with --memory"
    )]
    OutOfMemory {
        /// The server's memory.
        memory: Bytes,
        /// How far the program came.
        instruction: u64,
    },
    /// A run cannot go on from a file, or its state cannot be saved.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Problem and remedy.
        problem: crate::checkpoint::CheckpointProblem,
    },
    /// A heap needs more memory than the simulated server has.
    #[error(
        "the simulated server ran out of its {memory} of memory with {used} in use by the heap; \
         give it more, or the program less demand"
    )]
    HeapMemory {
        /// The server's memory.
        memory: Bytes,
        /// Memory that the heap's program had allocated by then.
        used: Bytes,
    },
    /// A stream names more threads or processes than any run has.
    #[error(
        "the event stream names {what} number {number}; streams number them from 0, below {limit}"
    )]
    Identity {
        /// A thread or a process.
        what: &'static str,
        /// Its number.
        number: u32,
        /// The first number that is too large.
        limit: u32,
    },
    /// An address that the machine's page tables do not hold.
    #[error(
        "instruction {instruction} uses the address {address}, and the machine's page tables hold \
         {bits} bits: run it on a machine with page_table_levels = 5"
    )]
    Address {
        /// The address.
        address: VirtAddr,
        /// The instruction's place in the stream.
        instruction: u64,
        /// Address bits that page tables hold.
        bits: u32,
    },
    /// A trace without registers, to be run by a core that waits for them.
    #[error(
        "{0}: the trace does not say which registers its instructions use, so that no instruction \
         would wait for another: run it with --detail additive"
    )]
    NoRegisters(PathBuf),
    /// Mappings of a trace that reports its own.
    #[error(
        "--mapped is for traces of other tools, which do not report what is mapped: a program and its \
         recording have page faults of their own, leave it out"
    )]
    ReportsMappings,
    /// Reuse distances are part of a profile.
    #[error(
        "locality needs a profile to be written to: give profile=FILE, or use `contigua profile`"
    )]
    LocalityNeedsProfile,
    /// A stream in which a process is its own child.
    #[error("the event stream has process {0} fork itself: it is damaged; record it again")]
    OwnChild(u32),
    /// The events could not be read.
    #[error(transparent)]
    Program(#[from] contigua_program::Error),
}
