//! A run as its user describes it: the document that Python hands over.
//!
//! Types, defaults and help of `contigua run` and of `contigua.RunOptions` are made of its schema
//! ([`crate::schema::run_document`]): a key is written here and nowhere else.

use std::collections::BTreeMap;
use std::path::PathBuf;

use contigua_program::layout::{AlignedShmem, Layout, Linux};
use contigua_program::plan::{Plan, Sampling};
use contigua_program::sources::TraceFormat;
use contigua_translation::ShmemEnabled;
use contigua_units::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::ageing::Snapshot;
use crate::config::{
    AdvisedMemory, Age, CONFIDENCE, DesignConfig, Detail, RegionConfig, RunConfig, parse_design,
    parse_machine,
};

mod os_text;
pub use os_text::OsText;

/// Designs that see one execution of a program, or one replay of a trace.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The designs.
    pub runs: Vec<RunSpec>,
    /// Events that they see.
    pub execution: Execution,
}

/// An execution of a program, or a replay of a trace.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Execution {
    /// The program and its arguments.
    pub command: Option<Vec<OsText>>,
    /// Replay this trace instead.
    pub trace: Option<OsText>,
    /// Who wrote the trace; drmemtrace is found by itself. Traces of other tools do not say what is
    /// mapped: all addresses are taken to be anonymous memory.
    pub trace_format: TraceFormat,
    /// Where pages of a drmemtrace trace lie: simulated, where designs place them; traced, where the
    /// traced machine had them (v2p.textproto or markers).
    pub physical: Physical,
    /// Stop the program after this time of this computer's clock, such as 30s; without a unit in seconds.
    pub seconds: Option<f64>,
    /// Also record the events here: all of them, or, where no design runs beside, those that skip and
    /// sample leave.
    pub record: Option<OsText>,
    /// Plan that the recording holds.
    pub record_plan: Recorded,
    /// Files of another system, such as unpacked packages of Debian's arm64. PROGRAM is looked for in
    /// PATH's directories within DIR, or within DIR by an absolute path; it sees DIR's files first,
    /// and then this computer's.
    pub root: Option<OsText>,
    /// Version of Linux whose rules place the program's mappings, and say which may have huge pages.
    pub linux: Linux,
    /// Randomize the program's addresses as Linux does, by the seed: where the program, its mappings and
    /// its stack begin. With several seeds, the program is executed once for each.
    pub randomize_va_space: bool,
    /// Place the program's shared memory as Linux does under this setting of huge pages for it: aligned to
    /// 2 MB unless it is never or deny. By default, it is aligned if any of the designs has another.
    pub shmem_enabled: Option<ShmemEnabled>,
    /// Seed of the program's addresses.
    pub layout_seed: Option<u64>,
    /// Libraries that are loaded before the program's, in this order.
    pub preload: Vec<OsText>,
    /// Environment variables of the program, beside ours.
    pub environment: BTreeMap<OsText, OsText>,
    /// Nanoseconds of the program's own clock for each instruction.
    pub clock: Option<u32>,
}

impl Execution {
    /// Choice of the addresses of a program that these designs run.
    ///
    /// # Errors
    /// [`Error::Spec`] without a seed that is needed, or for a trace, which has its addresses.
    pub fn layout<'a>(
        &self,
        designs: impl IntoIterator<Item = &'a DesignConfig>,
    ) -> Result<Layout, Error> {
        let wrong = |problem: &str| Err(Error::Spec(problem.to_owned()));
        let of_designs = designs.into_iter().map(DesignConfig::aligned_shmem);
        let aligned_shmem = match self.shmem_enabled {
            Some(enabled) => aligned_shmem(enabled),
            None if self.trace.is_some() => AlignedShmem::None,
            None => of_designs.max().unwrap_or_default(),
        };
        let layout = Layout {
            linux: self.linux,
            seed: self.layout_seed.filter(|_| self.randomize_va_space),
            aligned_shmem,
        };
        if self.randomize_va_space && layout.seed.is_none() {
            return wrong("randomize_va_space: layout_seed is missing");
        }
        if self.trace.is_some() && layout != Layout::default() {
            return wrong(
                "linux, randomize_va_space and shmem_enabled are of programs: a trace has its addresses",
            );
        }
        Ok(layout)
    }
}

const fn aligned_shmem(enabled: ShmemEnabled) -> AlignedShmem {
    match enabled {
        ShmemEnabled::Never | ShmemEnabled::Deny => AlignedShmem::None,
        ShmemEnabled::Advise | ShmemEnabled::WithinSize | ShmemEnabled::Always => {
            AlignedShmem::Unmounted
        }
        ShmemEnabled::Force => AlignedShmem::All,
    }
}

/// Where pages of a trace lie in physical memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Physical {
    /// Where the design places them.
    #[default]
    Simulated,
    /// Where the traced machine had them.
    Traced,
}

/// Reads a document of one of this module's types.
///
/// # Errors
/// [`Error::Spec`], with the key.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| Error::Spec(error.to_string()))
}

/// One design on one machine, and everything else that decides what a run finds.
#[derive(Clone, Debug, PartialEq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Name of the design.
    pub design_name: String,
    /// The design's TOML text.
    pub design: String,
    /// Name of the machine.
    pub machine_name: String,
    /// The machine's TOML text.
    pub machine: String,
    /// Simulated memory, such as 8G; by default a snapshot's, or the machine's.
    #[serde(default)]
    pub memory: Option<String>,
    /// Histories of memory, separated by commas: fresh; scattered:P with P % of frames unmovable;
    /// partial, a random server of a fleet; full, one without free memory; PROFILE:TIME such as
    /// web:2h; snapshot:FILE.
    #[serde(default = "fresh")]
    pub age: String,
    /// full: caches, and an instruction window in which what is independent overlaps; additive:
    /// caches, and stalls that add up, faster; translation: count translation events, no time,
    /// fastest.
    #[serde(default)]
    pub detail: Detail,
    /// Seed of everything random.
    #[serde(default = "one")]
    pub seed: u64,
    /// Instructions to fast-forward over first; only the operating system is simulated.
    #[serde(default)]
    pub skip: u64,
    /// Instructions to simulate without counting.
    #[serde(default)]
    pub warmup: u64,
    /// Instructions to count, then stop.
    #[serde(default)]
    pub instructions: Option<u64>,
    /// Simulated time to count, such as 200ms, then stop; without a unit in seconds.
    #[serde(default)]
    pub simulated_seconds: Option<f64>,
    /// Holes in the program's memory, separated by commas: SHARE:FRACTION:PATTERN:KIND such as
    /// 0.5:0.1:dispersed:remapped; PATTERN is clustered or dispersed, KIND remapped or unallocated.
    #[serde(default)]
    pub holes: Option<String>,
    /// Count data TLB misses that a direct segment would avoid (in JSON).
    #[serde(default)]
    pub classify_misses: bool,
    /// Cores that the program's threads run on, each with TLBs and caches of its own.
    #[serde(default = "one_core")]
    #[schemars(range(min = 1, max = 64))]
    pub cores: u32,
    /// Migrate this many in-use pages per simulated second, using the design's mechanism (kernel
    /// shootdown or last-level cache).
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1e9))]
    pub migrations: f64,
    /// The allocator that the program was given in the place of its C library's, with its settings.
    #[serde(default)]
    pub allocator: Option<String>,
    /// Memory that gets `MADV_HUGEPAGE` although the program does not ask: what an advice changes.
    #[serde(default)]
    pub advised: Vec<AdvisedMemory>,
    /// Write what each core did when, for Perfetto (Chrome's trace format). With several designs,
    /// FILE.json becomes FILE.DESIGN.json for each.
    #[serde(default)]
    pub timeline: Option<OsText>,
    /// Write which instructions, mappings, threads and call stacks cause TLB misses, walks, faults and
    /// cache misses. Several designs as for the timeline.
    #[serde(default)]
    pub profile: Option<OsText>,
    /// With a profile: count reuse distances of data accesses, too, for each mapping.
    #[serde(default)]
    pub locality: bool,
    /// Write mappings and their memory of each process at its end, in the format of /proc/PID/smaps.
    /// Several designs as for the timeline.
    #[serde(default)]
    pub smaps: Option<OsText>,
    /// Map all memory that a trace of another tool touches before it begins, in the order of
    /// addresses: first touches are no page faults. The trace is read twice.
    #[serde(default)]
    pub mapped: bool,
    /// How the region is sampled; all of it is simulated in detail where this is missing.
    #[serde(default)]
    pub sampling: Option<Sampling>,
    /// Regions that the user names, instead of `skip`, `warmup` and `sampling`.
    #[serde(default)]
    pub regions: Option<RegionConfig>,
    /// Probability with which intervals of a sampled run hold.
    #[serde(default = "confidence")]
    pub confidence: f64,
    /// Half of the interval of a sampled run's cycles that is wanted at most, as a share of them.
    #[serde(default)]
    pub goal: Option<f64>,
    /// The server's state is saved there.
    #[serde(default)]
    pub checkpoints: Vec<Save>,
    /// The checkpoint that the run goes on from.
    #[serde(default)]
    pub checkpoint: Option<OsText>,
}

/// A checkpoint to save.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Save {
    /// After so many instructions since the start of the recording.
    pub at: u64,
    /// The file.
    pub file: OsText,
}

/// Which instructions of a recording are kept, and how.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Instructions of which only what the operating system does is kept.
    #[serde(default)]
    pub skip: u64,
    /// How those behind them are sampled.
    #[serde(default)]
    pub sampling: Option<Sampling>,
}

impl Recorded {
    /// Plan that plugin and recording follow.
    ///
    /// # Errors
    /// [`Error::Sampling`].
    pub fn plan(self) -> Result<Plan, Error> {
        if let Some(sampling) = &self.sampling {
            sampling.validate().map_err(Error::Sampling)?;
        }
        Ok(Plan {
            skip: self.skip,
            sampling: self.sampling,
            ..Plan::default()
        })
    }
}

fn fresh() -> String {
    "fresh".to_owned()
}

const fn one() -> u64 {
    1
}

const fn one_core() -> u32 {
    1
}

const fn confidence() -> f64 {
    CONFIDENCE
}

impl RunSpec {
    /// Reads design and machine, and checks what one part demands of another.
    ///
    /// # Errors
    /// [`Error::MemorySize`], those of the parts, and those of [`RunConfig::check`].
    pub fn resolve(self) -> Result<RunConfig, Error> {
        let design = parse_design(&self.design, &self.design_name)?;
        let mut machine = parse_machine(&self.machine, &self.machine_name)?;
        let age = self.age.parse()?;
        if let Some(memory) = &self.memory {
            machine.memory = memory.parse::<Bytes>().map_err(|error| Error::MemorySize {
                text: memory.clone(),
                problem: error.to_string(),
            })?;
        } else if let Age::Snapshot(path) = &age {
            // A snapshot's server has the snapshot's memory, whatever the machine's file says.
            machine.memory = Snapshot::load(path)?.memory();
        }
        let config = RunConfig {
            design_name: self.design_name,
            design,
            machine_name: self.machine_name,
            machine,
            age,
            holes: self.holes.as_deref().map(str::parse).transpose()?,
            classify_misses: self.classify_misses,
            detail: self.detail,
            cores: self.cores,
            migrations_per_second: self.migrations,
            allocator: self.allocator,
            advised: self.advised,
            layout: Layout::default(),
            timeline: self.timeline.map(PathBuf::from),
            profile: self.profile.map(PathBuf::from),
            locality: self.locality,
            smaps: self.smaps.map(PathBuf::from),
            seed: self.seed,
            skip: self.skip,
            warmup: self.warmup,
            instructions: self.instructions,
            simulated_seconds: self.simulated_seconds,
            sampling: self.sampling,
            regions: self.regions,
            confidence: self.confidence,
            goal: self.goal,
            mapped: self.mapped,
        };
        config.check()?;
        Ok(config)
    }
}
