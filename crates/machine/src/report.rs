//! The result of a run: one value, the same bytes for the same events, configuration and seed.

use contigua_state::Plain;
use contigua_state::State;
use schemars::JsonSchema;
use std::collections::BTreeMap;

use contigua_cache::coherent::MigrationTraffic;
use contigua_cache::migration::Probe;
use contigua_contiguity::Contiguity;
use contigua_core::CycleBreakdown;
use contigua_paging::Orders;
use contigua_program::end::{End, Stop};
use contigua_program::plan::Sampling;
use contigua_translation::{MmuCounters, TranslatorCounters};
use contigua_units::{Bytes, Cycles};
use serde::Serialize;

use crate::config::RunConfig;
use crate::unavailable::Unavailable;

/// The version of the reports' JSON: it changes when a key goes or changes its meaning. Reports of
/// version 1 have no number, and sizes as text.
pub const SCHEMA: u32 = 2;

/// Everything that a run found out.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the program that wrote the report.
    pub version: &'static str,
    /// True if the run saw all that was requested, of a program that did its work: `false` after an
    /// interruption, a signal that ended the program, an exit status other than 0, and where the
    /// program could not be observed to its end.
    pub complete: bool,
    /// Reason for the end of the run.
    pub ended: Ended,
    /// Full configuration of the simulation.
    pub config: RunConfig,
    /// The program under study.
    pub program: ProgramReport,
    /// Instructions, accesses and threads within the region of interest.
    pub executed: Executed,
    /// Time; absent when only translation was simulated.
    pub time: Option<TimeReport>,
    /// How the run was sampled, and what that leaves open; absent when all was simulated. Then
    /// `time` is an estimate, and so are the hardware's counters (`tlb`, `translation`,
    /// `translation_scheme`, `classified`, `cache`, `cores`, `devices`), which in JSON are scaled
    /// from what was simulated to the region; the operating system's are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<SampleReport>,
    /// Regions that the user named, where they count exactly; all other parts are of them together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<RegionReport>,
    /// Counts of several regions together, or points' estimates for the whole program, by the names
    /// of parts below; in JSON in their place.
    #[serde(skip)]
    pub counted: Option<serde_json::Value>,
    /// TLBs, by side.
    pub tlb: MmuCounters,
    /// Answers to L1 TLB misses, by source.
    pub translation: TranslatorCounters,
    /// Counters of the translation scheme.
    pub translation_scheme: BTreeMap<&'static str, u64>,
    /// Data TLB misses by whether a primary region would hold their addresses; absent when that
    /// was not asked for.
    pub classified: Option<ClassifiedMisses>,
    /// Storage that the design takes in the processor.
    pub hardware: HardwareReport,
    /// Caches, by level; absent when only translation was simulated.
    pub cache: Option<contigua_cache::coherent::MemoryCounters>,
    /// Each core; empty unless cores were simulated in full.
    pub cores: Vec<CoreReport>,
    /// Pages that moved while they were in use; absent unless that was asked for.
    pub migration: Option<MigrationReport>,
    /// Work of the network device; absent unless devices were simulated.
    pub devices: Option<DeviceReport>,
    /// Page faults and the kernel's work for them.
    pub kernel: KernelReport,
    /// Work of the thread that coalesces mappings; absent where the design has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranger: Option<RangerReport>,
    /// Restrictive segments; absent where the design has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_segs: Option<RestSegsReport>,
    /// Events in physical memory.
    pub frames: contigua_frames::Counters,
    /// Size of the unmovable region at the end, where the placement has one.
    #[serde(rename = "unmovable_region_bytes", serialize_with = "optional_number")]
    #[schemars(with = "Option<u64>")]
    pub unmovable_region: Option<Bytes>,
    /// System calls, by what they do to memory and data.
    pub syscalls: SyscallReport,
    /// Advice that the program, or its allocator, gave the kernel about its memory.
    pub advice: AdviceReport,
    /// The program's memory at its largest.
    pub memory: MemoryReport,
    /// The program's memory throughout the region of interest.
    pub residency: ResidencyReport,
    /// Requests that the program received on connections that it accepted, and answered; absent where
    /// there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestsReport>,
    /// Contiguity of physical memory before the program started.
    pub contiguity_before: Contiguity,
    /// Contiguity of physical memory when it ended, before its memory was given back.
    pub contiguity_after: Contiguity,
}

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[derive(JsonSchema)]
pub enum Ended {
    /// The program ended, or the trace.
    #[default]
    Program,
    /// The program ended with an exit status other than 0: `program.exit_status`.
    ExitStatus,
    /// A signal ended the program: `program.signal`.
    Signal,
    /// The program could not be observed to its end: `program.failure`.
    Failure,
    /// All instructions that were to be counted have been executed.
    Instructions,
    /// The time that the program was given is over, simulated or of this computer.
    Time,
    /// Somebody interrupted it.
    Interrupted,
}

/// Storage that translation and migration take in the processor, in bits; the caches' own is not
/// counted. Each structure says beside its configuration what an entry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HardwareReport {
    /// Both first-level TLBs of a core.
    pub first_level_tlb_bits: u64,
    /// Storage after L1 in each core: L2 TLBs, page-walk caches, those for a host, and additions of
    /// the scheme.
    pub translation_bits: u64,
    /// Registers of a hardware thread.
    pub register_bits: u64,
    /// The table of pages that migrate, in each slice of the last-level cache.
    pub migration_bits_per_slice: u64,
    /// Slices of the last-level cache.
    pub slices: u32,
}

/// Requests to a server. A request begins with the call that receives on a connection, and ends with the
/// call that first sends on it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RequestsReport {
    /// Received and answered within the region of interest.
    pub answered: u64,
    /// Received, and not answered when it ended.
    pub unanswered: u64,
    /// From receiving to sending; absent unless all time was simulated.
    pub latency_cycles: Option<LatencyReport>,
}

/// Latencies of requests in cycles. Percentiles are known to 0.4 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct LatencyReport {
    /// The mean.
    pub mean: f64,
    /// Half of the requests took no longer.
    pub p50: Cycles,
    /// 95 of 100 took no longer.
    pub p95: Cycles,
    /// 99 of 100 took no longer.
    pub p99: Cycles,
    /// 999 of 1,000 took no longer.
    pub p99_9: Cycles,
    /// The longest.
    pub most: Cycles,
}

/// One core.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CoreReport {
    /// Its time.
    pub cycles: Cycles,
    /// Instructions that it executed.
    pub instructions: u64,
    /// Time by cause.
    pub breakdown: CycleBreakdown,
    /// Events in its instruction window.
    pub window: contigua_core::CoreCounters,
    /// Its page walks.
    pub walks: contigua_core::WalkActivity,
}

/// Pages that moved while they were in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, State, JsonSchema)]
pub struct MigrationReport {
    /// How.
    #[state(skip)]
    pub mechanism: &'static str,
    /// Migrations that were due.
    pub requested: u64,
    /// Those for which no page was found that can move.
    pub without_page: u64,
    /// Those of pages that a device holds, which software cannot move.
    pub held: u64,
    /// Those that ended.
    pub completed: u64,
    /// Pages of programs among them.
    pub pages: u64,
    /// Network buffers among them.
    pub buffers: u64,
    /// Those that the kernel had to wait for, because it was about to change the page's mapping.
    pub hurried: u64,
    /// Times that the hardware's table was full.
    pub retries: u64,
    /// Bytes copied.
    pub bytes_copied: u64,
    /// Interrupts sent to other cores.
    pub interprocessor_interrupts: u64,
    /// Translations that cores invalidated by themselves, without an interrupt.
    pub local_invalidations: u64,
    /// Accesses that met a page that was away, and waited.
    pub waits: u64,
    /// Cycles of these waits.
    pub wait_cycles: Cycles,
    /// For how long pages could not be used, as accesses of cores and devices observed it.
    pub unavailable: Unavailable,
    /// The part of it that devices observed.
    pub unavailable_to_devices: Unavailable,
    /// Traffic of the last level's table.
    #[state(skip)]
    pub traffic: MigrationTraffic,
    /// From the first line that hardware copies of a page to the last, all pages together.
    pub copy_cycles: Cycles,
    /// From a migration's begin to its end, all together.
    pub lifetime_cycles: Cycles,
}

impl MigrationReport {
    /// Takes in what accesses observed of a page that has moved.
    pub(crate) fn observe(&mut self, probe: &Probe) {
        self.unavailable.add(probe.longest());
        self.unavailable_to_devices.add(probe.longest_of_device());
    }
}

/// The network device and the unit that translates its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct DeviceReport {
    /// Bytes that the device wrote into buffers.
    pub bytes_received: u64,
    /// Bytes that it read from buffers.
    pub bytes_sent: u64,
    /// Times that the kernel told the network device of new buffers.
    pub doorbells: u64,
    /// Time for which processors waited for the network device: for data, or for a free buffer.
    pub wait_cycles: Cycles,
    /// Look-ups in the TLB of the IOMMU.
    pub iotlb_lookups: u64,
    /// Those that missed.
    pub iotlb_misses: u64,
    /// Translations that were taken out of it.
    pub iotlb_invalidations: u64,
    /// Look-ups in the device's own TLB, if it has one.
    pub device_tlb_lookups: u64,
    /// Those that missed.
    pub device_tlb_misses: u64,
    /// Entries of the IOMMU's tables that walks read.
    pub iommu_reads: u64,
    /// Time that these walks took the device.
    pub iommu_walk_cycles: Cycles,
    /// Invalidations that the kernel put into the queue, each of a page or of all.
    pub queued_invalidations: u64,
    /// Time for which processors waited for them.
    pub invalidation_wait_cycles: Cycles,
}

/// Misses that a direct segment would avoid, as the Direct Segments paper counts them (section
/// 5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct ClassifiedMisses {
    /// Data TLB misses that walked.
    pub data_walks: u64,
    /// Those whose address lies in private anonymous writable memory.
    pub inside: u64,
}

/// Which program ran, and which events it made.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProgramReport {
    /// The command line.
    pub command: Vec<String>,
    /// The architecture.
    pub architecture: &'static str,
    /// XXH3-64 of the events that were consumed, in hexadecimal.
    pub events: String,
    /// True if the stream ended before the program did: a limit was reached.
    pub limited: bool,
    /// The program's exit status; absent where it did not exit within the run, and where a trace does
    /// not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<u8>,
    /// The number of the signal that ended the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// Why the program was not observed to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Threads that ran.
    pub threads: u64,
    /// Processes that ran.
    pub processes: u64,
}

/// Counts of what was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct Executed {
    /// Instructions. As in QEMU, a repeated string instruction counts once for each iteration, and
    /// once more to find that none is left; plans count in the same way.
    pub instructions: u64,
    /// Difference to a processor's counter (perf's `instructions`), which counts a repeated `movs` or
    /// `stos` once. `ipc` is of instructions without them.
    pub string_iterations: u64,
    /// Blocks of straight-line code, as QEMU translates them.
    pub blocks: u64,
    /// Loads. A vector access that QEMU splits counts once for each part.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Switches from a thread to another one.
    pub context_switches: u64,
}

/// Simulated time.
#[derive(Clone, Debug, PartialEq, Serialize, Plain, JsonSchema)]
pub struct TimeReport {
    /// All cycles; of several cores, those of the one that took longest.
    pub cycles: Cycles,
    /// Cycles in which cores were not idle, all cores together.
    pub busy_cycles: Cycles,
    /// Instructions per cycle, all cores together.
    pub ipc: f64,
    /// Cycles by cause, all cores together.
    pub breakdown: CycleBreakdown,
    /// Share of `busy_cycles` that a perfect TLB would save, 0 to 1; `None` where too little was
    /// simulated to tell.
    pub translation_overhead: Option<f64>,
    /// Cycles in which at least one of a core's page walkers works, all cores together.
    pub walk_active: Cycles,
    /// Cycles of all page walks.
    pub walk_pending: Cycles,
}

/// Regions that the user named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Plain, JsonSchema)]
pub struct RegionReport {
    /// How many there were.
    pub count: u64,
    /// Their instructions.
    pub instructions: u64,
    /// Instructions of the program before each of the first thousand.
    pub begins: Vec<u64>,
    /// Instructions of each of these.
    pub lengths: Vec<u64>,
    /// Cycles of each of these; empty when only translation was simulated.
    pub cycles: Vec<u64>,
}

/// How a run was sampled.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SampleReport {
    /// As it was asked for; `None` where units are points that the user named.
    pub sampling: Option<Sampling>,
    /// The share of the program that each unit stands for, where the user says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Vec<f64>>,
    /// The probability with which an interval holds the value, 0 to 1.
    pub confidence: f64,
    /// Standard errors in half an interval (Student's distribution); `None` for a single unit, and
    /// for units that were not drawn at random.
    pub quantile: Option<f64>,
    /// Units of a stratum: intervals come from how those of one differ (the last one has what is
    /// left, too).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stratum: Option<u64>,
    /// The requested error and the one found, where one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<GoalReport>,
    /// Units that count.
    pub units: u64,
    /// Their instructions.
    pub instructions: u64,
    /// Instructions that were simulated, those that warm caches among them.
    pub simulated_instructions: u64,
    /// Of those, instructions that were simulated with their time.
    pub detailed_instructions: u64,
    /// Figures of the region.
    pub estimates: BTreeMap<&'static str, Estimate>,
    /// Changes by longer warming, which `estimates` have; absent where nothing lay between units,
    /// where too few were checked, and where that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warming: Option<WarmingReport>,
    /// Figures of each unit: counts, and cycles of the program by what they were spent on.
    pub by_unit: BTreeMap<&'static str, Vec<u64>>,
}

/// Changes by longer warming of some units.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct WarmingReport {
    /// Units that were warmed longer, too: their places in `by_unit` of the sample.
    pub units: Vec<u64>,
    /// Standard errors in half an interval of a change.
    pub quantile: f64,
    /// By which share the program's cycles of these units change.
    pub cycles: Estimate,
    /// True if that is more than its interval.
    pub differs: bool,
    /// Figures of these units after longer warming.
    pub by_unit: BTreeMap<&'static str, Vec<u64>>,
}

/// The requested width of the interval of cycles, whether it was reached, and how to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GoalReport {
    /// Half of the interval that was wanted at most, as a share of cycles.
    pub error: f64,
    /// True if the interval is as narrow as requested.
    pub reached: bool,
    /// Half of the interval that was found, as a share of cycles; `None` where nothing is known of
    /// it.
    pub half_width: Option<f64>,
    /// Units that would reach it, by the variation of these; `None` where it is reached, or not
    /// known.
    pub units: Option<u64>,
    /// The distance at which the region has as many; `None` where little would lie between them.
    pub distance: Option<u64>,
}

/// A figure with its confidence interval: `value - half_width` to `value + half_width`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// `None` where nothing is known of the error.
    pub half_width: Option<f64>,
}

/// Work of the thread that coalesces mappings (Translation Ranger).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct RangerReport {
    /// Passes that began.
    pub passes: u64,
    /// 4 KB pages that were moved to free places.
    pub moved_pages: u64,
    /// 4 KB pages that were exchanged with what was in their places.
    pub exchanged_pages: u64,
    /// 2 MB pages made of small ones that were in place.
    pub huge_pages_made: u64,
    /// Cycles of all passes.
    pub work_cycles: u64,
    /// Cycles of the last pass.
    pub last_work_cycles: u64,
    /// 4 KB pages that the last pass left elsewhere, since they do not move.
    pub left_immovable_pages: u64,
    /// ... since their places are beyond the end of memory, or across the border of a region.
    pub left_outside_pages: u64,
    /// ... since pages of another size are in their places.
    pub left_unlike_pages: u64,
    /// ... since what is in their places does not move.
    pub left_unmovable_pages: u64,
    /// Runs of the process with the most memory, at the end.
    pub runs: RunsReport,
}

/// Memory that is used like a set-associative cache of pages (Utopia).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct RestSegsReport {
    /// Memory of both segments.
    pub bytes: u64,
    /// Memory that they lack, since no longer run of it could be made.
    pub missing_bytes: u64,
    /// Pages of 4 KB that are there at the end.
    pub pages_4k: u64,
    /// Pages of 2 MB that are there at the end.
    pub pages_2m: u64,
}

/// Runs of pages that are contiguous in both address spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct RunsReport {
    /// Memory in all of them.
    pub bytes: u64,
    /// Their number.
    pub runs: u64,
    /// The fewest that hold 99 % of the memory.
    pub covering_99_percent: u64,
    /// Memory in runs of at least 2 MB.
    pub bytes_in_2m: u64,
    /// The longest one.
    pub longest_bytes: u64,
}

/// The simulated kernel's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct KernelReport {
    /// Faults that were resolved with a zero-filled 4 KB page.
    pub faults_anonymous_4k: u64,
    /// Faults that were resolved with a zero-filled 2 MB page.
    pub faults_anonymous_2m: u64,
    /// Reads that mapped the zero page or the huge one.
    #[serde(default)]
    pub faults_zero_page: u64,
    /// Faults on file mappings, and on pages of shared memory that were there already.
    pub faults_file: u64,
    /// Faults that copied a page.
    pub faults_copy_on_write: u64,
    /// Faults on pages that were mapped by the time of the fault.
    pub faults_spurious: u64,
    /// 2 MB pages that were wanted and for which no 2 MB block was free.
    pub huge_page_fallbacks: u64,
    /// Folios that faults mapped, by order from 2 (16 KB) to 8 (1 MB): Linux's `anon_fault_alloc`.
    #[serde(default, skip_serializing_if = "are_zero")]
    pub folios: [u64; Orders::COUNT],
    /// Those that were wanted and for which no block was free: Linux's `anon_fault_fallback`.
    #[serde(default, skip_serializing_if = "are_zero")]
    pub folio_fallbacks: [u64; Orders::COUNT],
    /// 2 MB pages made by the background pass.
    pub huge_page_collapses: u64,
    /// Pages of 1 GB that faults mapped from free memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub giant_pages: u64,
    /// Those that were wanted, and for which no range was free or could be emptied.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub giant_page_fallbacks: u64,
    /// Pages of 1 GB made by the background pass.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub giant_page_promotions: u64,
    /// 4 KB pages that faults mapped and that a thread had zeroed before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prezeroed_pages: u64,
    /// Looks at accessed bits.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub looks: u64,
    /// 4 KB pages of zeros in huge pages that were taken back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zeros_recovered: u64,
    /// 2 MB pages that were split.
    pub huge_page_splits: u64,
    /// Of these, for `munmap`, `brk` and mappings over others.
    #[serde(default)]
    pub splits_munmap: u64,
    /// For `mprotect`.
    #[serde(default)]
    pub splits_mprotect: u64,
    /// For `mremap`.
    #[serde(default)]
    pub splits_mremap: u64,
    /// For `madvise`.
    #[serde(default)]
    pub splits_madvise: u64,
    /// For a fault: a store to a page that others see, too.
    #[serde(default)]
    pub splits_fault: u64,
    /// The longest time that one access waited for the kernel: a page fault, with the reclaim and
    /// compaction that it did, or a page that migrated.
    #[serde(default)]
    pub longest_stall_cycles: Cycles,
    /// Ranges of addresses invalidated in the TLBs.
    pub invalidations: u64,
    /// Touches of a primary region beyond its segment, over which the segment grew.
    pub faults_segment: u64,
    /// Faults of a virtual machine on memory that its host had not mapped.
    pub faults_host: u64,
    /// Cycles that these took, which a virtual machine that has its memory already does not have.
    #[serde(default)]
    pub host_fault_cycles: Cycles,
    /// Perforated pages made.
    pub perforations: u64,
    /// Holes made in pages that were mapped.
    pub punches: u64,
    /// Holes filled.
    pub patches: u64,
    /// Groups of pages that were marked as contiguous, or lost the mark.
    pub folds: u64,
    /// Times that a direct segment changed.
    pub segment_updates: u64,
    /// Hashed page tables that were made or grew.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub table_growths: u64,
    /// Of those that were to, there was no contiguous memory for these; they are tried again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub table_growths_failed: u64,
    /// Bytes of the largest block that such a table asked for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub table_largest_block: u64,
    /// Lines of such tables that moved, to make room or to grow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub table_lines_moved: u64,
    /// Pages for which all frames that their hashes name were in use.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub placement_conflicts: u64,
    /// Frames of the server in use with the first of these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub used_at_first_conflict: u64,
    /// Pages placed anywhere, because nothing in these frames could be evicted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub misplaced_pages: u64,
    /// Pages of any size that first touches and khugepaged put into restrictive segments.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restricted_pages: u64,
    /// Pages for which no way of their set was free there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub full_sets: u64,
    /// Pages that moved into such a segment, because they were costly to translate.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pages_moved_in: u64,
    /// Pages that moved out of one, to make room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pages_moved_out: u64,
    /// Pages of the program, of any size, that the kernel moved to other frames.
    pub pages_moved: u64,
    /// Times that other cores were interrupted to invalidate.
    pub shootdowns: u64,
    /// Cores that were interrupted for that, all shootdowns together.
    pub interprocessor_interrupts: u64,
    /// Accesses that no reported mapping explained; a page was mapped for each.
    pub unexplained_accesses: u64,
}

/// System calls by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct SyscallReport {
    /// All.
    pub all: u64,
    /// Those that changed mappings.
    pub memory: u64,
    /// Those that moved data to the program.
    pub receives: u64,
    /// Bytes moved to the program.
    pub bytes_received: u64,
    /// Those that moved data from the program.
    pub sends: u64,
    /// Bytes moved from the program.
    pub bytes_sent: u64,
    /// Those that made a file descriptor.
    pub opens: u64,
    /// Those that waited for events.
    pub waits: u64,
    /// Those that asked for `io_uring`, which QEMU's user mode refuses.
    #[serde(skip_serializing_if = "is_zero")]
    pub io_uring: u64,
    /// Those that asked for asynchronous I/O (`io_setup`), which it refuses.
    #[serde(skip_serializing_if = "is_zero")]
    pub aio: u64,
    /// Those that asked for `userfaultfd`, which it refuses.
    #[serde(skip_serializing_if = "is_zero")]
    pub userfaultfd: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as Serde calls it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn are_zero(counts: &[u64; Orders::COUNT]) -> bool {
    counts.iter().all(is_zero)
}

/// Calls of `madvise`, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Plain, JsonSchema)]
pub struct AdviceReport {
    /// `MADV_DONTNEED`.
    pub dont_need: u64,
    /// `MADV_FREE`.
    pub free: u64,
    /// `MADV_HUGEPAGE`.
    pub huge: u64,
    /// `MADV_NOHUGEPAGE`.
    pub no_huge: u64,
    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`.
    pub populate: u64,
    /// `MADV_COLLAPSE`.
    pub collapse: u64,
    /// Memory that `MADV_DONTNEED` took away.
    #[serde(rename = "given_back_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub given_back: Bytes,
    /// Of that, memory in whole huge pages.
    #[serde(rename = "given_back_whole_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub given_back_whole: Bytes,
    /// Huge pages that `MADV_DONTNEED` and `MADV_FREE` broke.
    pub huge_pages_broken: u64,
    /// Huge pages that `MADV_COLLAPSE` made.
    pub collapsed: u64,
    /// Huge pages that `MADV_COLLAPSE` could not make, because no block of 2 MB could be allocated.
    pub collapses_failed: u64,
}

/// The program's memory over instructions, all processes together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct ResidencyReport {
    /// Mean of resident memory.
    #[serde(rename = "mean_resident_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub mean_resident: Bytes,
    /// Mean of resident memory in pages larger than 4 KB.
    #[serde(rename = "mean_huge_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub mean_huge: Bytes,
    /// The second of the first, 0 to 1.
    pub mean_huge_page_coverage: f64,
    /// Instructions since the region of interest began, at each point.
    pub instructions: Vec<u64>,
    /// Resident bytes at each point.
    #[serde(rename = "resident_bytes")]
    pub resident: Vec<u64>,
    /// Resident bytes in pages larger than 4 KB at each point.
    #[serde(rename = "huge_bytes")]
    pub huge: Vec<u64>,
    /// Resident bytes of private, anonymous, writable memory at each point: what a primary region
    /// would hold. Empty unless misses are classified.
    #[serde(rename = "eligible_bytes")]
    pub eligible: Vec<u64>,
}

/// The program's memory, all processes together, when most of it was resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Plain, JsonSchema)]
pub struct MemoryReport {
    /// Resident in 4 KB pages.
    #[serde(rename = "resident_4k_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub resident_4k: Bytes,
    /// Resident in 2 MB pages.
    #[serde(rename = "resident_2m_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub resident_2m: Bytes,
    /// Resident in 1 GB pages.
    #[serde(rename = "resident_1g_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub resident_1g: Bytes,
    /// Resident in perforated pages and their holes.
    #[serde(rename = "perforated_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub perforated: Bytes,
    /// Mapped by a direct segment.
    #[serde(rename = "segment_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub segment: Bytes,
    /// Waiting for holes of perforated pages to be touched; not resident.
    #[serde(rename = "reserved_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub reserved: Bytes,
    /// Share of resident memory in pages larger than 4 KB, 0 to 1.
    pub huge_page_coverage: f64,
    /// Of shared memory, in pages of any size, mapped or not (Linux's `Shmem`).
    #[serde(rename = "shmem_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub shmem: Bytes,
    /// Of that, in 2 MB pages (`ShmemHugePages`).
    #[serde(rename = "shmem_huge_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub shmem_huge: Bytes,
    /// Shared memory that the program asked of `HugeTLB`.
    #[serde(rename = "hugetlb_shared_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub hugetlb_shared: Bytes,
    /// Frames that page tables take.
    #[serde(rename = "page_tables_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub page_tables: Bytes,
    /// Set aside for the program and not in use: huge pages of the pool, and what was taken for
    /// segments that are shorter yet. Nobody else can have it.
    #[serde(rename = "set_aside_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub set_aside: Bytes,
    /// Where the hole bitmaps of guest and host lie.
    #[serde(rename = "hole_bitmaps_bytes", serialize_with = "number")]
    #[schemars(with = "u64")]
    pub hole_bitmaps: Bytes,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) fn number<S: serde::Serializer>(size: &Bytes, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(size.get())
}

#[expect(clippy::ref_option, reason = "as serde calls it")]
pub(crate) fn optional_number<S: serde::Serializer>(
    size: &Option<Bytes>,
    out: S,
) -> Result<S::Ok, S::Error> {
    size.map(Bytes::get).serialize(out)
}

impl Report {
    /// Notes how the program came to its end. A run that had counted all its instructions by then
    /// stays complete.
    pub fn end(&mut self, end: &End) {
        if self.ended == Ended::Instructions {
            return;
        }
        let program = &mut self.program;
        self.ended = match end {
            End::Exited(status) => {
                program.exit_status = Some(*status);
                if *status == 0 {
                    Ended::Program
                } else {
                    Ended::ExitStatus
                }
            }
            End::Killed(signal) => {
                program.signal = Some(*signal);
                Ended::Signal
            }
            End::Failed(reason) => {
                program.failure = Some(reason.clone());
                Ended::Failure
            }
            End::Stopped(Stop::Time) => Ended::Time,
            End::Stopped(Stop::Interrupted) => Ended::Interrupted,
            End::Stopped(Stop::Done) => Ended::Program,
        };
        self.complete = matches!(self.ended, Ended::Program | Ended::Time);
    }

    /// The report as JSON, indented, ending in a newline.
    ///
    /// # Panics
    /// Never: every part of a report can be written as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let written = match (&self.sample, &self.counted) {
            (_, None) => serde_json::to_string_pretty(self),
            (None, Some(counted)) => serde_json::to_value(self).and_then(|mut value| {
                for (part, counted) in counted.as_object().into_iter().flatten() {
                    value[part] = counted.clone();
                }
                serde_json::to_string_pretty(&value)
            }),
            (Some(_), Some(counted)) => serde_json::to_value(self).and_then(|mut value| {
                for part in ESTIMATED {
                    value[part] = counted[part].clone();
                }
                for part in ["blocks", "loads", "stores", "string_iterations"] {
                    value["executed"][part] = counted["executed"][part].clone();
                }
                let cores = value["cores"].as_array_mut().into_iter().flatten();
                for (index, core) in cores.enumerate() {
                    core["window"] = counted["cores"][index]["window"].clone();
                }
                serde_json::to_string_pretty(&value)
            }),
        };
        let mut text = written.expect("a report is plain data");
        text.push('\n');
        text
    }
}

/// Parts of a sampled report that count what was simulated.
const ESTIMATED: [&str; 6] = [
    "tlb",
    "translation",
    "translation_scheme",
    "classified",
    "cache",
    "devices",
];

/// Returns true if a key is of a largest or smallest value, which does not add up.
pub(crate) fn is_extreme(key: &str) -> bool {
    matches!(key, "longest_stall_cycles" | "max_cycles" | "min_cycles")
}

/// Scales all counts; what is no whole number is a share or a text, and stays.
pub(crate) fn scale(value: &mut serde_json::Value, factor: f64) {
    match value {
        serde_json::Value::Number(number) => {
            if let Some(count) = number.as_u64() {
                *number = ((count as f64 * factor).round() as u64).into();
            }
        }
        serde_json::Value::Array(parts) => parts.iter_mut().for_each(|part| scale(part, factor)),
        serde_json::Value::Object(parts) => {
            let counts = parts.iter_mut().filter(|(key, _)| !is_extreme(key));
            counts.for_each(|(_, part)| scale(part, factor));
        }
        _ => {}
    }
}
