//! From what a person wrote to what is simulated.
//!
//! Machines and designs are TOML files. Reading one yields a complete value, with every default
//! filled in; that value, not the text, goes into the report. Unknown keys are errors that name
//! the place and offer the nearest known key.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use contigua_cache::HierarchyConfig;
use contigua_cache::coherent::MOST_CORES;
use contigua_cache::migration::{Mode, SwitchOrder};
use contigua_core::CoreConfig;
use contigua_frames::Placement;
use contigua_paging::{Fragmentation, HoleKind, Levels, Pattern};
use contigua_program::plan::{self, Invalid, Plan, Regions, Sampling, Window, Windows};
use contigua_translation::{NestedConfig, SchemeConfig, TlbConfig, WalkCacheConfig};
use contigua_units::{Bytes, Cycles, Megahertz, Nanoseconds};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::ageing::Profile;
use crate::kernel::history;
use crate::limits;

/// The hardware of a simulated server: a file in `machines/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MachineConfig {
    /// What machine this is, for people.
    pub description: String,
    /// Clock of the core.
    pub clock: Megahertz,
    /// Physical memory.
    pub memory: Bytes,
    /// The core.
    pub core: CoreConfig,
    /// Translation lookaside buffers.
    pub tlb: TlbConfig,
    /// Page-walk caches.
    pub walk_cache: WalkCacheConfig,
    /// What translates a guest's physical addresses, for designs with a host.
    #[serde(default)]
    pub nested: NestedConfig,
    /// Levels of the page tables.
    #[serde(default)]
    pub page_table_levels: PageTableLevels,
    /// Caches and memory.
    pub cache: HierarchyConfig,
    /// What the kernel's work costs.
    pub kernel: KernelCosts,
}

impl MachineConfig {
    /// Checks that every value is one that hardware could have, before anything is allocated for it.
    ///
    /// # Errors
    /// A sentence with the key, its value and its limits.
    pub fn validate(&self) -> Result<(), String> {
        limits::check(self)?;
        self.core.validate().map_err(|error| error.to_string())
    }
}

/// 4 or 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PageTableLevels(pub Levels);

#[cfg(feature = "schema")]
impl schemars::JsonSchema for PageTableLevels {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PageTableLevels".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "description": "4 or 5.", "type": "integer", "enum": [4, 5] })
    }
}

impl TryFrom<u8> for PageTableLevels {
    type Error = String;

    fn try_from(levels: u8) -> Result<Self, String> {
        match levels {
            4 => Ok(Self(Levels::Four)),
            5 => Ok(Self(Levels::Five)),
            other => Err(format!("page tables have 4 or 5 levels, not {other}")),
        }
    }
}

impl From<PageTableLevels> for u8 {
    fn from(levels: PageTableLevels) -> Self {
        levels.0.count() as Self
    }
}

/// Cycles that the kernel's work takes. The kernel's own accesses are not simulated, so these
/// figures include them; `docs/reference/costs.md` names their sources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelCosts {
    /// Entering, handling and leaving a page fault, without zeroing or copying. A page that a call
    /// maps (`MAP_POPULATE`) costs the same without entry and exit, which are `syscall_cycles`.
    pub page_fault_cycles: Cycles,
    /// Zeroing a 4 KB page.
    pub zero_4k_cycles: Cycles,
    /// Zeroing a 2 MB page.
    pub zero_2m_cycles: Cycles,
    /// Copying a 4 KB page.
    pub copy_4k_cycles: Cycles,
    /// Allocating and zeroing a page-table node.
    pub page_table_node_cycles: Cycles,
    /// Entering and leaving a system call, without what it does.
    pub syscall_cycles: Cycles,
    /// Finding, splitting and merging VMAs in a call that maps, unmaps, protects or moves memory.
    pub vma_cycles: Cycles,
    /// Unmapping a page of any size: clearing its entry, reverse mapping and counters.
    pub unmap_page_cycles: Cycles,
    /// Freeing a page of any size, or a page-table node, in a batch.
    pub free_page_cycles: Cycles,
    /// Rewriting the entry of a page of any size in a range: another permission, a split, a move.
    pub protect_page_cycles: Cycles,
    /// Copying the entry of a page of any size to a child, with reverse mapping and counters.
    pub fork_page_cycles: Cycles,
    /// Switching from a thread to another one.
    pub context_switch_cycles: Cycles,
    /// How long a thread runs while others wait for its core.
    #[serde(default = "KernelCosts::default_time_slice")]
    pub time_slice: Nanoseconds,
    /// Invalidating a range of addresses in the local TLBs.
    pub invalidation_cycles: Cycles,
    /// Clearing or writing a page-table entry with its lock held.
    pub page_table_entry_cycles: Cycles,
    /// Interrupting other cores: what it takes whatever their number.
    pub interrupt_cycles: Cycles,
    /// What it takes for each of them, until its acknowledgement is there.
    pub interrupt_target_cycles: Cycles,
    /// What a core loses that is interrupted to invalidate.
    pub interrupt_handler_cycles: Cycles,
}

impl KernelCosts {
    /// Linux's base slice is 2.8 to 3 ms with eight processors and more (`kernel/sched/fair.c`,
    /// `sysctl_sched_base_slice`, Linux 6.6 to 6.12), and ends with the next tick: 4 ms with Debian's
    /// and Ubuntu's 250 ticks a second.
    const fn default_time_slice() -> Nanoseconds {
        Nanoseconds::new(4_000_000)
    }
}

/// What is compared: a file in `designs/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DesignConfig {
    /// What design this is, for people.
    pub description: String,
    /// The translation scheme, both halves.
    pub translation: SchemeConfig,
    /// Where physical memory is taken from.
    #[serde(default)]
    pub placement: contigua_frames::Placement,
    /// Settings of the kernel's memory management.
    #[serde(default)]
    pub memory: contigua_frames::Config,
    /// How pages of a running program move.
    #[serde(default)]
    pub migration: MigrationConfig,
    /// The host, when the kernel runs in a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostConfig>,
}

/// How pages move while programs run that use them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MigrationConfig {
    /// As every kernel does today: the page is away from its first step to its last.
    Software(SoftwareMigration),
    /// Contiguitas' hardware in the last-level cache.
    Llc(LlcMigration),
}

impl Default for MigrationConfig {
    fn default() -> Self {
        Self::Software(SoftwareMigration::default())
    }
}

/// Migration as every kernel does today (paper 000, Figure 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SoftwareMigration {
    /// How other cores forget the old translation.
    pub shootdown: Shootdown,
    /// Pages that share a shootdown.
    pub batch: u32,
    /// Copying a page that nobody has in its caches (mechanisms B7: 2 microseconds).
    pub copy: Nanoseconds,
}

impl Default for SoftwareMigration {
    fn default() -> Self {
        Self {
            shootdown: Shootdown::Interrupt,
            batch: 1,
            copy: Nanoseconds::new(2_000),
        }
    }
}

/// How cores are made to forget a translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Shootdown {
    /// They are interrupted, and waited for.
    #[default]
    Interrupt,
    /// They do it at their next timer tick, and the page waits for that (LATR: Kumar et al.,
    /// ASPLOS 2018).
    Lazy,
}

/// Contiguitas' migration in the last-level cache (paper 001; paper 000, section 3.3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LlcMigration {
    /// Whether private caches may keep lines of a page that migrates.
    pub mode: Mode,
    /// What comes first, the copy or the new page-table entry.
    pub order: SwitchOrder,
    /// Copying a page in the background (mechanisms B7: 4 microseconds).
    pub copy: Nanoseconds,
}

impl Default for LlcMigration {
    fn default() -> Self {
        Self {
            mode: Mode::Cacheable,
            order: SwitchOrder::CopyThenSwitch,
            copy: Nanoseconds::new(4_000),
        }
    }
}

/// The host of a virtual machine that has the server's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// How the host maps the virtual machine's memory. The hardware is that of the guest's scheme.
    pub translation: SchemeConfig,
    /// Where the host's memory is taken from.
    #[serde(default)]
    pub placement: contigua_frames::Placement,
}

/// How much is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// The history of a server's memory before the program starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Age {
    /// Nothing was ever allocated.
    #[default]
    Fresh,
    /// This share of all frames (0 to 1) is unmovable, spread evenly at random.
    Scattered(f64),
    /// A random server of a fleet: its former tenants have left, their traces have not.
    Partial,
    /// The same, and files have taken all memory that was free (paper 000, section 5: under Linux
    /// no 2 MB block is free).
    Full,
    /// A server that was used in this way for this long, and whose tenants have left.
    Lived(&'static str, Nanoseconds),
    /// The state that this file holds.
    Snapshot(PathBuf),
}

impl FromStr for Age {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || Error::Age {
            text: text.to_owned(),
            profiles: history::PROFILES.map(|(name, _)| name).join(", "),
        };
        match text.split_once(':') {
            None => match text {
                "fresh" => Ok(Self::Fresh),
                "partial" => Ok(Self::Partial),
                "full" => Ok(Self::Full),
                _ => Err(unknown()),
            },
            Some(("scattered", percent)) => {
                let percent = percent.trim_end_matches('%').parse();
                let percent: f64 = percent.map_err(|_| unknown())?;
                if !(0.0..=90.0).contains(&percent) {
                    return Err(unknown());
                }
                Ok(Self::Scattered(percent / 100.0))
            }
            Some(("snapshot", path)) if !path.is_empty() => Ok(Self::Snapshot(path.into())),
            Some((profile, time)) => {
                let known = history::PROFILES.iter().find(|(name, _)| *name == profile);
                let (name, _) = known.ok_or_else(unknown)?;
                Ok(Self::Lived(name, time.parse().map_err(|_| unknown())?))
            }
        }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fresh => f.write_str("fresh"),
            Self::Scattered(share) => write!(f, "scattered:{}", share * 100.0),
            Self::Partial => f.write_str("partial"),
            Self::Full => f.write_str("full"),
            Self::Lived(profile, time) => write!(f, "{profile}:{time}"),
            Self::Snapshot(path) => write!(f, "snapshot:{}", path.display()),
        }
    }
}

impl Serialize for Age {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A scenario of fragmentation: `SHARE:FRACTION:PATTERN:KIND`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holes {
    /// Share of the program's 2 MB pages that have holes, 0 to 1.
    pub share: f64,
    /// Share of such a page that is holes, above 0 and at most 1.
    pub fraction: f64,
    /// Where in the page.
    pub pattern: Pattern,
    /// What they are.
    pub kind: HoleKind,
}

impl Holes {
    /// The scenario, with its pages chosen by a seed.
    #[must_use]
    pub fn scenario(&self, seed: u64) -> Fragmentation {
        Fragmentation {
            share: self.share,
            holes: self.fraction,
            pattern: self.pattern,
            kind: self.kind,
            seed,
        }
    }
}

impl FromStr for Holes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = || {
            let mut parts = text.split(':');
            let share: f64 = parts.next()?.parse().ok()?;
            let fraction: f64 = parts.next()?.parse().ok()?;
            let pattern = match parts.next()? {
                "clustered" => Pattern::Clustered,
                "dispersed" => Pattern::Dispersed,
                _ => return None,
            };
            let kind = match parts.next()? {
                "remapped" => HoleKind::Remapped,
                "unallocated" => HoleKind::Unallocated,
                _ => return None,
            };
            let fits = (0.0..=1.0).contains(&share)
                && fraction > 0.0
                && fraction <= 1.0
                && parts.next().is_none();
            fits.then_some(Self {
                share,
                fraction,
                pattern,
                kind,
            })
        };
        parsed().ok_or_else(|| Error::Holes(text.to_owned()))
    }
}

impl fmt::Display for Holes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            Pattern::Clustered => "clustered",
            Pattern::Dispersed => "dispersed",
        };
        let kind = match self.kind {
            HoleKind::Remapped => "remapped",
            HoleKind::Unallocated => "unallocated",
        };
        write!(f, "{}:{}:{pattern}:{kind}", self.share, self.fraction)
    }
}

impl Serialize for Holes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Everything that decides the outcome of a run, beside the events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunConfig {
    /// Name of the design.
    pub design_name: String,
    /// The design.
    pub design: DesignConfig,
    /// Name of the machine.
    pub machine_name: String,
    /// The machine; its `memory` is what is simulated.
    pub machine: MachineConfig,
    /// What the machine's memory went through before.
    pub age: Age,
    /// Holes that the memory under study has.
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
    /// Where a timeline of what happened is written, for Perfetto.
    #[serde(skip)]
    pub timeline: Option<PathBuf>,
    /// Seed of everything random.
    pub seed: u64,
    /// Instructions to go forward over first: the operating system's state goes on, and time.
    pub skip: u64,
    /// Instructions after these that are simulated and not counted.
    pub warmup: u64,
    /// Instructions after these that are counted; `None` is all that follow.
    pub instructions: Option<u64>,
    /// How these are sampled; all are simulated in detail where it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Regions that the user names, instead of `skip`, `warmup` and `sampling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<RegionConfig>,
    /// The probability with which intervals of a sampled run hold the value, 0 to 1.
    #[serde(skip_serializing_if = "is_default_confidence")]
    pub confidence: f64,
}

/// Regions of the program that the user names.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RegionConfig {
    /// By counts of instructions.
    Windows {
        /// Instructions that warm caches and TLBs before each.
        warm: u64,
        /// In any order.
        windows: Vec<Window>,
    },
    /// Windows that stand for the whole program (Sherwood et al., "`SimPoint`", ASPLOS 2002).
    SimPoints {
        /// Instructions that warm caches and TLBs before each.
        warm: u64,
        /// In any order.
        points: Vec<Point>,
    },
    /// From a marker in the program's code to another one.
    Markers {
        /// Caches and TLBs are kept warm outside.
        keep_warm: bool,
    },
    /// Calls of a function.
    Function {
        /// Its name, as the user gave it.
        name: String,
        /// Caches and TLBs are kept warm outside.
        keep_warm: bool,
    },
}

/// A window, and the share of the program that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The window.
    #[serde(flatten)]
    pub window: Window,
    /// The share, 0 to 1.
    pub weight: f64,
}

impl RegionConfig {
    /// The function whose calls they are.
    #[must_use]
    pub fn function(&self) -> Option<&str> {
        match self {
            Self::Function { name, .. } => Some(name),
            _ => None,
        }
    }

    /// What both sides of a run follow. Where a function is, is found when the program is.
    ///
    /// # Errors
    /// [`Invalid`], for windows that cannot be.
    pub fn regions(&self) -> Result<Regions, Invalid> {
        let outside = |keep_warm: bool| {
            if keep_warm {
                plan::Mode::Warm
            } else {
                plan::Mode::Forward
            }
        };
        Ok(match self {
            Self::Windows { warm, windows } => {
                Regions::Windows(Windows::new(*warm, windows.clone())?)
            }
            Self::SimPoints { warm, points } => {
                let windows = points.iter().map(|point| point.window);
                Regions::Windows(Windows::new(*warm, windows.collect())?)
            }
            Self::Markers { keep_warm } | Self::Function { keep_warm, .. } => Regions::Cued {
                outside: outside(*keep_warm),
                function: None,
            },
        })
    }

    /// Whether the program itself begins and ends them.
    #[must_use]
    pub const fn is_cued(&self) -> bool {
        matches!(self, Self::Markers { .. } | Self::Function { .. })
    }

    /// The shares of points, in the program's order; none for other regions.
    #[must_use]
    pub fn weights(&self) -> Vec<f64> {
        let Self::SimPoints { points, .. } = self else {
            return Vec::new();
        };
        let mut points = points.clone();
        points.sort_by_key(|point| point.window.begin);
        points.iter().map(|point| point.weight).collect()
    }
}

/// Of intervals, where nobody chooses another.
pub const CONFIDENCE: f64 = 0.95;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as Serde calls it")]
fn is_default_confidence(confidence: &f64) -> bool {
    *confidence == CONFIDENCE
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

    /// Whether the report is an estimate from parts of the program.
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

/// Reads a machine from TOML. `path` is where the text came from, for messages.
///
/// # Errors
/// [`Error::Config`] with the place and the nearest known key, [`Error::Component`] when a value is
/// beyond all hardware.
pub fn parse_machine(text: &str, path: &str) -> Result<MachineConfig, Error> {
    let machine: MachineConfig = parse(text, path)?;
    machine.validate().map_err(|problem| Error::Component {
        machine: path.to_owned(),
        problem,
    })?;
    Ok(machine)
}

/// Reads a design from TOML. `path` is where the text came from, for messages.
///
/// # Errors
/// [`Error::Config`] with the place and the nearest known key.
pub fn parse_design(text: &str, path: &str) -> Result<DesignConfig, Error> {
    let mut design: DesignConfig = parse(text, path)?;
    if let (MigrationConfig::Llc(_), Placement::Contiguitas(placement)) =
        (&design.migration, &mut design.placement)
    {
        // What hardware can move is not in the way of a region that shrinks.
        placement.hardware_migration = true;
    }
    Ok(design)
}

/// Reads a profile from TOML. `path` is where the text came from, for messages.
///
/// # Errors
/// [`Error::Config`] with the place and the nearest known key, [`Error::Profile`].
pub fn parse_profile(text: &str, path: &str) -> Result<Profile, Error> {
    let profile: Profile = parse(text, path)?;
    profile.check().map_err(|problem| Error::Profile {
        profile: path.to_owned(),
        problem,
    })?;
    Ok(profile)
}

/// The JSON schema of a machine, a design and a profile: what editors check and complete by, and
/// what the reference is written from.
#[cfg(feature = "schema")]
pub mod schema {
    use schemars::{Schema, schema_for};

    /// Of [`MachineConfig`](super::MachineConfig).
    #[must_use]
    pub fn machine() -> Schema {
        schema_for!(super::MachineConfig)
    }

    /// Of [`DesignConfig`](super::DesignConfig).
    #[must_use]
    pub fn design() -> Schema {
        schema_for!(super::DesignConfig)
    }

    /// Of [`Profile`](super::Profile).
    #[must_use]
    pub fn profile() -> Schema {
        schema_for!(super::Profile)
    }
}

fn parse<T: for<'de> Deserialize<'de>>(text: &str, path: &str) -> Result<T, Error> {
    toml::from_str(text).map_err(|error| Error::Config {
        path: PathBuf::from(path),
        hint: nearest_key(error.message()),
        message: error.to_string().trim_end().to_owned(),
    })
}

/// The known key that is most like the unknown one in an error message of serde's, as a sentence.
fn nearest_key(message: &str) -> String {
    const LIKENESS: f64 = 0.7;
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !(message.contains("unknown field") || message.contains("unknown variant")) {
        return String::new();
    }
    let Some(unknown) = quoted.next() else {
        return String::new();
    };
    quoted
        .map(|known| (strsim::jaro_winkler(unknown, known), known))
        .filter(|(likeness, _)| *likeness >= LIKENESS)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or_else(String::new, |(_, known)| {
            format!("\ndid you mean `{known}`?")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_written_as_it_is_read() {
        for text in [
            "fresh",
            "scattered:0.2",
            "scattered:10",
            "partial",
            "full",
            "web:7200s",
            "snapshot:a/b",
        ] {
            assert_eq!(text.parse::<Age>().unwrap().to_string(), text);
        }
        for text in [
            "old",
            "scattered",
            "scattered:x",
            "scattered:-1",
            "scattered:91",
            "scattered:nan",
            "web",
            "wep:2h",
            "web:2",
            "snapshot:",
        ] {
            assert!(text.parse::<Age>().is_err(), "{text}");
        }
    }

    #[test]
    fn holes_are_written_as_they_are_read() {
        for text in ["0.5:0.1:clustered:remapped", "1:1:dispersed:unallocated"] {
            assert_eq!(text.parse::<Holes>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "1",
            "1:0:clustered:remapped",
            "2:0.1:clustered:remapped",
            "1:nan:clustered:remapped",
            "1:0.1:random:remapped",
            "1:0.1:clustered:gone",
            "1:0.1:clustered:remapped:x",
        ] {
            assert!(text.parse::<Holes>().is_err(), "{text}");
        }
    }

    #[test]
    fn hardware_that_moves_pages_clears_the_way_for_a_region_that_shrinks() {
        let moves = |migration: &str| {
            let text = format!(
                "description = \"x\"\n[translation.base]\n[placement.contiguitas]\n{migration}"
            );
            match parse_design(&text, "d").unwrap().placement {
                Placement::Contiguitas(placement) => placement.hardware_migration,
                other => panic!("{}", other.name()),
            }
        };
        assert!(moves("[migration.llc]"));
        assert!(!moves("[migration.software]"));
        assert!(!moves(""));
    }

    #[test]
    fn a_misspelt_key_is_reported_where_it_stands_with_the_right_one() {
        let text = "description = \"x\"\n\n[translation.thp]\nenabeld = \"always\"\n";
        let error = parse_design(text, "d.toml").unwrap_err().to_string();
        assert!(error.contains("d.toml"), "{error}");
        assert!(error.contains("line 4"), "{error}");
        assert!(error.contains("did you mean `enabled`?"), "{error}");
        let error = parse_design("description = \"x\"\n[translation.thb]\n", "d").unwrap_err();
        assert!(error.to_string().contains("did you mean `thp`?"), "{error}");
    }
}
