//! Everything that decides the outcome of a run, and which parts of it exclude each other.

use schemars::JsonSchema;
use std::path::PathBuf;

use contigua_cache::coherent::MOST_CORES;
use contigua_program::layout::Layout;
use contigua_program::plan::{Plan, Sampling};
use serde::{Deserialize, Serialize};

use super::age::Age;
use super::design::DesignConfig;
use super::holes::Holes;
use super::machine::MachineConfig;
use super::regions::RegionConfig;
use crate::Error;

/// How much is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Detail {
    /// Translation only: counts of TLB misses, walks, references and faults, but no time.
    Translation,
    /// Translation and caches, and a core whose stalls add up: quick, and stalls are overstated.
    Additive,
    /// Translation, coherent caches and memory, and cores that execute out of order.
    #[default]
    Full,
}

/// Memory of a process that gets `MADV_HUGEPAGE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdvisedMemory {
    /// The process, by the order in which processes begin.
    pub process: u32,
    /// The mapping, by its place among all that the process maps by calls, from 0 on. None: the heap,
    /// which grows in steps of 2 MB as glibc's does with `glibc.malloc.hugetlb=1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u32>,
}

/// Everything that decides the outcome of a run, beside the events.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunConfig {
    /// Name of the design.
    pub design_name: String,
    /// The design.
    pub design: DesignConfig,
    /// Name of the machine.
    pub machine_name: String,
    /// The machine; its `memory` is what is simulated.
    pub machine: MachineConfig,
    /// Age of the machine's memory before the run.
    #[schemars(with = "String")]
    pub age: Age,
    /// Holes that the memory under study has.
    #[schemars(with = "Option<String>")]
    pub holes: Option<Holes>,
    /// Data TLB misses are counted by whether a primary region would hold their addresses.
    pub classify_misses: bool,
    /// How much is simulated.
    pub detail: Detail,
    /// Cores of the server. Threads are spread over them by their order of appearance.
    pub cores: u32,
    /// Pages in use that the kernel migrates in a second of simulated time.
    pub migrations_per_second: f64,
    /// The allocator that the program was given in the place of its C library's, with its settings.
    pub allocator: Option<String>,
    /// Memory that gets `MADV_HUGEPAGE` although the program does not ask.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advised: Vec<AdvisedMemory>,
    /// Choice of the program's addresses, if it is not the default; the engine has it of the program.
    #[serde(skip_serializing_if = "is_default_layout")]
    pub layout: Layout,
    /// Where a timeline of what happened is written, for Perfetto.
    #[serde(skip)]
    pub timeline: Option<PathBuf>,
    /// Where a profile is written: the instructions, mappings and threads that misses are caused by.
    #[serde(skip)]
    pub profile: Option<PathBuf>,
    /// The profile has reuse distances of data accesses, too.
    #[serde(skip)]
    pub locality: bool,
    /// Where mappings of processes are written, with their memory.
    #[serde(skip)]
    pub smaps: Option<PathBuf>,
    /// Seed of everything random.
    pub seed: u64,
    /// Instructions to fast-forward over first: only the operating system is simulated, and time.
    pub skip: u64,
    /// Instructions after these that are simulated and not counted.
    pub warmup: u64,
    /// Instructions after these that are counted; `None` is all that follow.
    pub instructions: Option<u64>,
    /// Seconds of simulated time after which the region of interest ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated_seconds: Option<f64>,
    /// All memory that a trace touches is mapped before it begins, in the order of addresses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mapped: bool,
    /// How these are sampled; all are simulated in detail where it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Regions that the user names, instead of `skip`, `warmup` and `sampling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<RegionConfig>,
    /// The probability with which intervals of a sampled run hold the value, 0 to 1.
    #[serde(skip_serializing_if = "is_default_confidence")]
    pub confidence: f64,
    /// Half of the interval of a sampled run's cycles that its user wants at most, as a share of
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<f64>,
}

/// Of intervals, where nobody chooses another.
pub const CONFIDENCE: f64 = 0.95;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as Serde calls it")]
fn is_default_confidence(confidence: &f64) -> bool {
    *confidence == CONFIDENCE
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as Serde calls it")]
fn is_default_layout(layout: &Layout) -> bool {
    *layout == Layout::default()
}

impl RunConfig {
    /// How its instructions are executed. The configuration was checked.
    #[must_use]
    pub fn plan(&self) -> Plan {
        Plan {
            skip: self.skip,
            sampling: self.sampling,
            regions: self.regions.as_ref().and_then(|r| r.regions().ok()),
        }
    }

    /// True where the report is an estimate from parts of the program.
    #[must_use]
    pub const fn estimates(&self) -> bool {
        self.sampling.is_some() || matches!(self.regions, Some(RegionConfig::SimPoints { .. }))
    }

    /// Checks what one part of the configuration demands of another.
    ///
    /// # Errors
    /// [`Error::Cores`], [`Error::NeedsFull`].
    pub fn check(&self) -> Result<(), Error> {
        if !(0.0..=1e9).contains(&self.migrations_per_second) {
            return Err(Error::Migrations(self.migrations_per_second));
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return Err(Error::Confidence(self.confidence));
        }
        if let Some(goal) = self.goal {
            if !(goal > 0.0 && goal < 1.0) {
                return Err(Error::Goal(goal));
            }
            if self.detail == Detail::Translation {
                return Err(Error::GoalNeedsTime);
            }
        }
        if self.instructions == Some(0) {
            return Err(Error::NoInstructions);
        }
        if let Some(seconds) = self.simulated_seconds {
            if !(seconds > 0.0 && seconds <= 1e9) {
                return Err(Error::SimulatedTime(seconds));
            }
            if self.detail == Detail::Translation {
                return Err(Error::NeedsTime);
            }
        }
        if self.locality && self.profile.is_none() {
            return Err(Error::LocalityNeedsProfile);
        }
        if let Some(sampling) = &self.sampling {
            sampling.validate().map_err(Error::Sampling)?;
            if self.cores > 1 {
                return Err(Error::SamplesOneCore(self.cores));
            }
            if self.warmup > 0 {
                return Err(Error::SamplingWarmsItself);
            }
        }
        if let Some(regions) = &self.regions {
            regions.regions().map_err(Error::Regions)?;
            let weights = regions.weights();
            if weights.iter().any(|weight| !(0.0..=1.0).contains(weight))
                || !weights.is_empty() && weights.iter().sum::<f64>() <= 0.0
            {
                return Err(Error::Weights);
            }
            let other = [
                ("--sample", self.sampling.is_some()),
                ("--skip", self.skip > 0),
                ("--warmup", self.warmup > 0),
                ("--migrations", self.migrations_per_second > 0.0),
                ("--cores", self.cores > 1),
                ("--timeline", self.timeline.is_some()),
                ("--profile", self.profile.is_some()),
                (
                    "--instructions",
                    self.instructions.is_some() && !regions.is_cued(),
                ),
            ];
            if let Some((option, _)) = other.into_iter().find(|(_, given)| *given) {
                return Err(Error::RegionsWith(option));
            }
        }
        if !(1..=MOST_CORES).contains(&(self.cores as usize)) {
            return Err(Error::Cores(self.cores));
        }
        let what = if self.cores > 1 && self.detail == Detail::Additive {
            "several cores need"
        } else if self.migrations_per_second > 0.0 && self.detail != Detail::Full {
            "migrations need"
        } else if self.timeline.is_some() && self.detail != Detail::Full {
            "a timeline needs"
        } else {
            return Ok(());
        };
        Err(Error::NeedsFull(what))
    }
}
