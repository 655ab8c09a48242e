//! All that can be said about a machine's memory, with or without the right to look at frames.

mod machine;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use contigua_contiguity::{Blocks, Contiguity, ORDERS};
use contigua_units::{Order, PAGE_BYTES};
use serde::Serialize;

use crate::Error;
use crate::census::{Bounds, Census, Frames, Summary};
use crate::classify::Class;
use crate::frames::{PageSource, areas};
use crate::owners::{self, Sites};
use crate::proc::{
    BuddyZone, Counters, Meminfo, MemoryBlocks, PageTypes, Pressure, System, Zone, free_frames,
};
use crate::ranges::WorstRange;
use crate::scan::{Outcome, Pace, Run, Sink, scan};
pub use machine::{HugePool, Machine, ThpSettings};
use machine::{huge_pools, machine, thp_settings};

/// The version of the report's JSON, `schema`; it grows when a key changes its meaning or goes. Version 1
/// had it as `version`, and counts of frames and pages without their units.
pub const SCHEMA: u32 = 2;

/// The worst 1 GB ranges that are kept.
pub const WORST: usize = 20;

/// Data that could not be read, and what reading it requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Missing {
    /// The missing data.
    pub what: &'static str,
    /// Why.
    pub why: String,
    /// Right or setting that would provide it; empty if there is none.
    pub needs: &'static str,
}

/// Measures at one size of block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SizeReport {
    /// Size of a block.
    pub block_bytes: u64,
    /// Blocks with memory in them.
    pub blocks: u32,
    /// Blocks that are entirely free.
    pub free_blocks: Bounds<u32>,
    /// Their share of free memory, 0 to 1 (Contiguitas, figure 4).
    pub free_share_of_free: Bounds<f64>,
    /// Blocks that perfect compaction could empty.
    pub potential_blocks: Bounds<u32>,
    /// Their share of all memory, 0 to 1.
    pub potential_share_of_memory: Bounds<f64>,
    /// Blocks that an unmovable frame pollutes (Contiguitas, figure 5). `certain` are the most,
    /// `possible` the fewest.
    pub unmovable_blocks: Bounds<u32>,
}

impl SizeReport {
    fn new(order: Order, contiguity: &Bounds<Contiguity>) -> Self {
        let find = |of: &Contiguity| {
            let blocks = of.blocks().into_iter().find(|&(other, _)| other == order);
            blocks.map_or_else(Blocks::default, |(_, blocks)| blocks)
        };
        let share = |blocks: u32, of: u64| {
            let frames = u64::from(blocks) * u64::from(order.frames());
            // Frames beyond a division's precision do not matter.
            frames as f64 / of.max(1) as f64
        };
        let (certain, possible) = (find(&contiguity.certain), find(&contiguity.possible));
        let of = contiguity;
        Self {
            block_bytes: order.bytes(),
            blocks: certain.total,
            free_blocks: Bounds {
                certain: certain.free,
                possible: possible.free,
            },
            free_share_of_free: Bounds {
                certain: share(certain.free, of.certain.free_frames),
                possible: share(possible.free, of.possible.free_frames),
            },
            potential_blocks: Bounds {
                certain: certain.potential,
                possible: possible.potential,
            },
            potential_share_of_memory: Bounds {
                certain: share(certain.potential, of.certain.managed_frames()),
                possible: share(possible.potential, of.possible.managed_frames()),
            },
            unmovable_blocks: Bounds {
                certain: certain.unmovable,
                possible: possible.unmovable,
            },
        }
    }
}

/// Pollution by a class or cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolluterReport {
    /// A class's key, or a cgroup's path.
    pub owner: String,
    /// Its frames that do not move.
    pub frames: u64,
    /// Blocks of 2 MB that it pollutes.
    pub blocks_2m: u64,
    /// Those that it pollutes alone; unknown for cgroups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_2m: Option<u64>,
    /// Blocks of 1 GB that it pollutes; unknown for cgroups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_1g: Option<u64>,
    /// Those that it pollutes alone; unknown for cgroups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_1g: Option<u64>,
}

/// Bounds on what unexplained frames are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unexplained {
    /// Frames that the kernel says are free on the lists of CPUs, machine-wide.
    #[serde(rename = "per_cpu_free_frames")]
    pub per_cpu_free: u64,
    /// Memory that the kernel has not initialized yet, as far as can be told.
    #[serde(rename = "not_initialised_frames")]
    pub not_initialized: u64,
    /// The kernel's own, at the least.
    #[serde(rename = "kernel_at_least_frames")]
    pub kernel_at_least: u64,
}

/// Results of the scan of all frames.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrameReport {
    /// Frames by class.
    pub classes: Frames,
    /// Frames by class of each zone, in the order of [`Report::zones`].
    pub zones: Vec<Frames>,
    /// Frames free by the allocator's own lists, before and after the scan.
    #[serde(rename = "buddy_free_frames")]
    pub buddy_free: [u64; 2],
    /// Assumed nature of unexplained frames.
    pub unexplained: Unexplained,
    /// Long-term pins that are held; which frames they are on, nobody can tell.
    pub pins_held: Option<u64>,
    /// Measures at 2, 4, 32 MB and 1 GB.
    pub sizes: [SizeReport; ORDERS.len()],
    /// The raw counts behind them.
    pub contiguity: Bounds<Contiguity>,
    /// Pollution by class, most first.
    pub polluters: Vec<PolluterReport>,
    /// Pollution by cgroups' kernel memory, most first.
    pub cgroups: Vec<PolluterReport>,
    /// Pollution by allocation site, most first; only with `page_owner=on`.
    pub sites: Option<Sites>,
    /// 1 GB ranges that something pollutes.
    pub polluted_ranges: u64,
    /// Those of them that the fewest pages keep from being free.
    pub worst: Vec<WorstRange>,
    /// Paths of the cgroups in `worst`.
    pub cgroup_paths: HashMap<u64, String>,
    /// Mappings, unknown bits and read errors of the scan.
    pub outcome: Outcome,
    /// Memory blocks that went online or offline during the scan.
    pub changed_blocks: Vec<u64>,
    /// Duration of the scan.
    pub seconds: f64,
}

/// All that can be said about a machine's memory.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Identity of the machine.
    pub machine: Machine,
    /// Results of the scan of all frames; only with the right to read them.
    pub frames: Option<FrameReport>,
    /// Zones.
    pub zones: Vec<Zone>,
    /// Free lists.
    pub free_lists: Vec<BuddyZone>,
    /// Pageblocks by migrate type; only for root.
    pub page_types: Option<PageTypes>,
    /// The kernel's account.
    pub meminfo: Meminfo,
    /// The kernel's counters.
    pub counters: Counters,
    /// Pressure.
    pub pressure: Option<Pressure>,
    /// Transparent huge pages.
    pub thp: ThpSettings,
    /// Pools of `HugeTLB`.
    pub huge_pools: Vec<HugePool>,
    /// Data that could not be read.
    pub missing: Vec<Missing>,
}

impl Report {
    /// Free blocks by the allocator's lists, which anyone may read: of 2 MB, and of 4 MB.
    ///
    /// Buddies merge, so an aligned free block of up to the largest order is on a list as such, or
    /// is part of a larger one.
    #[must_use]
    pub fn listed_blocks(&self, order: Order) -> u64 {
        let lists = self.free_lists.iter().flat_map(|zone| {
            let large = zone
                .blocks
                .iter()
                .enumerate()
                .skip(usize::from(order.get()));
            large.map(|(at, blocks)| blocks << (at - usize::from(order.get())))
        });
        lists.sum()
    }
}

/// Options of a report.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads and pauses of the scan.
    pub pace: Pace,
    /// Scan the frames.
    pub frames: bool,
    /// Read `page_owner`, which takes seconds for each gigabyte in use.
    pub sites: bool,
}

/// Looks at a machine. `extra` sees all runs of frames, too.
///
/// # Errors
/// Those of `extra`, and when not even `/proc/zoneinfo`, `buddyinfo`, `meminfo` and `vmstat`
/// can be read.
pub fn look(system: &System, options: Options, extra: &mut dyn Sink) -> Result<Report, LookError> {
    let zones = system.zones()?;
    let mut missing = Vec::new();
    let frames = if options.frames {
        frame_report(system, &zones, options, extra, &mut missing)?
    } else {
        None
    };
    let meminfo = system.meminfo()?;
    let page_types = note(
        &mut missing,
        "migrate types of pageblocks",
        system.page_types(),
    );
    let pressure = note(&mut missing, "memory pressure", system.memory_pressure());
    let memory = zones.iter().map(|zone| zone.managed).sum::<u64>() * PAGE_BYTES;
    Ok(Report {
        schema: SCHEMA,
        machine: machine(system, memory),
        frames,
        free_lists: system.buddy_zones()?,
        page_types,
        counters: system.vmstat()?,
        pressure,
        thp: thp_settings(system),
        huge_pools: huge_pools(system),
        meminfo,
        zones,
        missing,
    })
}

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The machine does not say.
    #[error(transparent)]
    Machine(#[from] Error),
    /// The sink of runs failed.
    #[error("{0}")]
    Output(#[from] io::Error),
}

/// Takes a result, or notes why it is missing.
fn note<T>(missing: &mut Vec<Missing>, what: &'static str, result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let needs = if error.is_denied() {
                "CAP_DAC_READ_SEARCH (root has it)"
            } else {
                ""
            };
            missing.push(Missing {
                what,
                why: error.to_string(),
                needs,
            });
            None
        }
    }
}

fn frame_report(
    system: &System,
    zones: &[Zone],
    options: Options,
    extra: &mut dyn Sink,
    missing: &mut Vec<Missing>,
) -> Result<Option<FrameReport>, LookError> {
    let Some(files) = note(missing, "every frame", system.page_files()) else {
        return Ok(None);
    };
    if let Err(error) = check_page_size(system) {
        missing.push(Missing {
            what: "every frame",
            why: error.to_string(),
            needs: "",
        });
        return Ok(None);
    }
    for (file, what) in [
        (crate::frames::PageFile::Counts, "mappings of frames"),
        (crate::frames::PageFile::Cgroups, "cgroups of frames"),
    ] {
        if !files.has(file) {
            missing.push(Missing {
                what,
                why: format!("{} cannot be opened", system.path(file.path()).display()),
                needs: "",
            });
        }
    }
    let ram = system.ram_ranges().unwrap_or_default();
    if ram.is_empty() {
        missing.push(Missing {
            what: "which addresses are memory (holes are taken from zones instead)",
            why: "/proc/iomem hides them".to_owned(),
            needs: "CAP_SYS_ADMIN (root has it)",
        });
    }
    let blocks = system.memory_blocks().unwrap_or_default();
    let before = free_frames(&system.buddy_zones()?);
    let started = std::time::Instant::now();
    let mut both = Both {
        census: Census::new(zones.len(), WORST),
        extra,
    };
    let outcome = scan(
        &files,
        &areas(&ram, zones, &blocks),
        options.pace,
        &mut both,
    )?;
    let seconds = started.elapsed().as_secs_f64();
    let after = free_frames(&system.buddy_zones()?);
    let summary = both.census.finish();
    let sites = options
        .sites
        .then(|| {
            note(
                missing,
                "allocation sites (boot with page_owner=on)",
                owners::sites(system),
            )
        })
        .flatten();
    let names = cgroup_paths(system);
    let zones_now = system.zones()?;
    Ok(Some(FrameReport {
        buddy_free: [before, after],
        unexplained: unexplained(&summary, &zones_now),
        pins_held: system.vmstat()?.pins_held(),
        sizes: ORDERS.map(|order| SizeReport::new(order, &summary.contiguity)),
        polluters: summary.classes.iter().map(polluter_report).collect(),
        cgroups: summary
            .cgroups
            .iter()
            .map(|share| PolluterReport {
                owner: cgroup_name(&names, share.inode),
                frames: share.frames,
                blocks_2m: share.blocks_2m,
                alone_2m: None,
                blocks_1g: None,
                alone_1g: None,
            })
            .collect(),
        sites,
        cgroup_paths: paths_of(&names, &summary.worst),
        contiguity: summary.contiguity,
        classes: summary.frames,
        zones: summary.zones,
        polluted_ranges: summary.polluted_ranges,
        worst: summary.worst,
        outcome,
        changed_blocks: changed(&blocks, &system.memory_blocks().unwrap_or_default()),
        seconds,
    }))
}

/// The census and whoever else wants to see.
struct Both<'a> {
    census: Census,
    extra: &'a mut dyn Sink,
}

impl Sink for Both<'_> {
    fn take(&mut self, run: Run) -> io::Result<()> {
        self.census.take(run)?;
        self.extra.take(run)
    }
}

/// A sink for those who want no more than the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Sink for Nobody {
    fn take(&mut self, _run: Run) -> io::Result<()> {
        Ok(())
    }
}

/// Pages of another size would need other tables. `KernelPageSize` of the first mapping of our own
/// says what the size is, without a system call.
fn check_page_size(system: &System) -> Result<(), Error> {
    let Ok(text) = system.text("proc/self/smaps") else {
        return Ok(());
    };
    let line = text
        .as_str()
        .lines()
        .find_map(|line| line.strip_prefix("KernelPageSize:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    match kilobytes {
        Some(kilobytes) if kilobytes * 1024 != PAGE_BYTES => Err(Error::PageSize {
            bytes: kilobytes * 1024,
        }),
        _ => Ok(()),
    }
}

fn unexplained(summary: &Summary, zones: &[Zone]) -> Unexplained {
    let mut result = Unexplained::default();
    for (zone, frames) in zones.iter().zip(&summary.zones) {
        let unexplained = frames.of(Class::Unexplained);
        let per_cpu = zone.per_cpu_free.min(unexplained);
        // What exists, but was neither given to the allocator nor set aside. A few frames at odd
        // places are not memory that waits for its initialization.
        let deficit = zone.present.saturating_sub(zone.managed);
        let deficit = deficit.saturating_sub(frames.of(Class::Reserved));
        let waiting = if deficit > zone.present / 100 {
            deficit
        } else {
            0
        };
        let waiting = waiting.min(unexplained - per_cpu);
        result.per_cpu_free += zone.per_cpu_free;
        result.not_initialized += waiting;
        result.kernel_at_least += unexplained - per_cpu - waiting;
    }
    result
}

fn polluter_report(share: &crate::census::ClassShare) -> PolluterReport {
    let at = |order: Order| share.polluted.iter().find(|(other, _)| *other == order);
    let blocks = |order| at(order).map(|(_, polluted)| u64::from(polluted.blocks));
    let alone = |order| at(order).map(|(_, polluted)| u64::from(polluted.alone));
    PolluterReport {
        owner: share.class.key().to_owned(),
        frames: share.frames,
        blocks_2m: blocks(Order::HUGE_2M).unwrap_or(0),
        alone_2m: alone(Order::HUGE_2M),
        blocks_1g: blocks(Order::HUGE_1G),
        alone_1g: alone(Order::HUGE_1G),
    }
}

fn changed(before: &MemoryBlocks, after: &MemoryBlocks) -> Vec<u64> {
    let state = |blocks: &MemoryBlocks| -> HashMap<u64, crate::proc::BlockState> {
        let blocks = blocks.blocks.iter();
        blocks.map(|block| (block.number, block.state)).collect()
    };
    let (before, after) = (state(before), state(after));
    let mut numbers: Vec<u64> = before.keys().chain(after.keys()).copied().collect();
    numbers.retain(|number| before.get(number) != after.get(number));
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Paths of the cgroups that account for memory, by inode number: those of version 2, and those of
/// the memory controller of version 1.
fn cgroup_paths(system: &System) -> HashMap<u64, String> {
    let mut names = HashMap::new();
    let root = system.path("sys/fs/cgroup");
    let memory = root.join("memory");
    let root = if memory.is_dir() { memory } else { root };
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        if let Ok(metadata) = fs::metadata(&folder) {
            let name = folder.strip_prefix(&root).unwrap_or(&folder);
            names.insert(metadata.ino(), format!("/{}", name.display()));
        }
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_dir());
        folders.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| is_folder(path)),
        );
    }
    names
}

fn cgroup_name(names: &HashMap<u64, String>, inode: u64) -> String {
    match names.get(&inode) {
        Some(name) => name.clone(),
        // Memory outlives the cgroup that allocated it.
        None => format!("a cgroup that is gone (inode {inode})"),
    }
}

fn paths_of(names: &HashMap<u64, String>, worst: &[WorstRange]) -> HashMap<u64, String> {
    let polluters = worst.iter().flat_map(|range| &range.polluters);
    let inodes = polluters
        .map(|polluter| polluter.cgroup)
        .filter(|&inode| inode != 0);
    inodes
        .map(|inode| (inode, cgroup_name(names, inode)))
        .collect()
}
