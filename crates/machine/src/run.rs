//! One design, from the first event to the report.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contigua_core::{CoreModel, CycleBreakdown, ShadowedWindow, WalkCycles};
use contigua_program::end::{End, Stop};
use contigua_program::sources::Source;
use contigua_translation::Mmu;
use contigua_units::PageSize;

use crate::attribution::About;
use crate::checkpoint::Saves;
use crate::config::{Detail, MigrationConfig};
use crate::engine::regions::Regions;
use crate::port::Memory;
use crate::report::{
    CoreReport, Ended, Executed, HardwareReport, ProgramReport, Report, TimeReport,
};
use crate::{Engine, Error};

/// How far a run is, for whoever watches it from another thread.
#[derive(Debug, Default)]
pub struct Progress {
    /// Instructions since the start of the stream.
    pub instructions: AtomicU64,
    /// Batches that the program is ahead.
    pub behind: AtomicU64,
    /// The region of interest is over, or the stream has ended.
    pub done: AtomicBool,
    /// Set from outside to end the run early; it then reports what it has.
    pub cancel: AtomicBool,
}

/// Results of a run.
#[derive(Debug)]
pub struct Run {
    /// Its report.
    pub report: Report,
    /// Regions that it was to simulate and did not find in the program.
    pub missed: Option<String>,
    /// How the program came to its end, as far as is known: `None`, too, where the run was over before.
    pub end: Option<End>,
    /// Result of writing its timeline. A failure costs nothing else.
    pub timeline: Result<(), Error>,
    /// Result of writing its profile.
    pub profile: Result<(), Error>,
    /// Result of writing its processes' mappings.
    pub smaps: Result<(), Error>,
    /// Checkpoints that were not saved.
    pub checkpoints: Vec<Error>,
}

/// Runs a design on a source to its end and reports. The source is read to its end in any case,
/// so that other readers of the same program are not held back.
///
/// # Errors
/// [`Error`], when the server cannot run the program, or the events cannot be read.
pub fn simulate(
    engine: Engine,
    source: &mut dyn Source,
    progress: &Progress,
) -> Result<Run, Error> {
    simulate_from(engine, source, progress, 0, Saves::default())
}

/// Simulates a source of which the engine has had so many batches. The server's state is saved
/// on the way.
///
/// # Errors
/// Those of [`simulate`].
pub fn simulate_from(
    mut engine: Engine,
    source: &mut dyn Source,
    progress: &Progress,
    batches: u64,
    mut saves: Saves,
) -> Result<Run, Error> {
    let from = engine.position();
    let mut checkpoints = saves.begin(from);
    let mut read = batches;
    let outcome = consume(&mut engine, source, progress, |engine, source| {
        read += 1;
        saves.save(engine, source, read, &mut checkpoints);
    });
    checkpoints.extend(saves.missed(from, engine.position()));
    progress.done.store(true, Ordering::Release);
    let drained = drain(source, progress);
    let stopped = outcome?;
    drained?;
    let mut report = engine.report();
    let end = match stopped {
        None => source.end().filter(|_| !engine.is_done()).cloned(),
        Some(stop) => Some(End::Stopped(stop)),
    };
    if let Some(end) = &end {
        report.end(end);
    }
    Ok(Run {
        report,
        missed: engine.missed(end.as_ref()),
        end,
        timeline: engine.save_timeline(),
        profile: engine.save_profile(),
        smaps: engine.save_smaps(),
        checkpoints,
    })
}

/// Runs the events, and tells of each batch; why not to their end, where the user said so.
fn consume(
    engine: &mut Engine,
    source: &mut dyn Source,
    progress: &Progress,
    mut after_batch: impl FnMut(&mut Engine, &dyn Source),
) -> Result<Option<Stop>, Error> {
    let mut stopped = None;
    while !engine.is_done() {
        if engine.is_over() {
            stopped = Some(Stop::Time);
            break;
        }
        if progress.cancel.load(Ordering::Relaxed) {
            stopped = Some(Stop::Interrupted);
            break;
        }
        let Some(batch) = source.next_batch()? else {
            break;
        };
        engine.consume(batch)?;
        engine.background();
        after_batch(engine, source);
        progress
            .instructions
            .store(engine.position(), Ordering::Relaxed);
        progress.behind.store(source.behind(), Ordering::Relaxed);
    }
    engine.finish()?;
    Ok(stopped)
}

/// Reads a live program to its end; a stored one has nobody waiting.
fn drain(source: &mut dyn Source, progress: &Progress) -> Result<(), Error> {
    while source.behind() > 0 || source.is_live() {
        if source.next_batch()?.is_none() {
            break;
        }
    }
    progress.behind.store(0, Ordering::Relaxed);
    Ok(())
}

impl Engine {
    /// Returns the report of the run so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let (sample, time) = match self.sample() {
            Some((sample, time)) => {
                let timed = self.config.detail != Detail::Translation;
                (Some(sample), timed.then_some(time))
            }
            None => (None, self.time()),
        };
        let (counted, time) = match self.regions.as_ref().map(Regions::sums) {
            Some((Some(sums), sum)) => (Some(sums.clone()), sum.cloned()),
            _ => (self.estimated_counts(), time),
        };
        let mut cores = self.core_reports();
        if let (Some(_), Some(time), [core]) = (&sample, &time, &mut cores[..]) {
            core.cycles = time.cycles;
            core.breakdown = time.breakdown;
            core.instructions = self.region_instructions();
            core.walks = core.walks.scaled_to(time.walk_active);
        }
        Report {
            schema: crate::report::SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            complete: true,
            ended: if self.was_limited() {
                Ended::Instructions
            } else {
                Ended::Program
            },
            config: self.config.clone(),
            program: ProgramReport {
                command: self.program.command.clone(),
                architecture: self.program.architecture.name(),
                events: format!("{:016x}", self.digest.digest()),
                limited: self.was_limited(),
                exit_status: None,
                signal: None,
                failure: None,
                threads: self.kernel.thread_count(),
                processes: self.kernel.process_count(),
            },
            executed: Executed {
                instructions: self.region_instructions(),
                ..self.executed
            },
            time,
            sample,
            regions: self
                .regions
                .as_ref()
                .map(|regions| regions.report().clone()),
            counted,
            tlb: self.mmus.sum(Mmu::counters),
            translation: self.mmus.sum(Mmu::translator_counters),
            translation_scheme: self.scheme_counters(),
            classified: self.config.classify_misses.then_some(self.classified),
            hardware: self.hardware(),
            cache: self.memory.as_ref().map(Memory::counters),
            cores,
            migration: self.migration_report(),
            devices: self.memory.is_some().then(|| self.devices.report()),
            kernel: self.kernel.counters,
            ranger: self.kernel.ranger(),
            rest_segs: self.kernel.rest_segs(),
            frames: self.kernel.memory_events(),
            unmovable_region: self.kernel.unmovable_region(),
            syscalls: self.kernel.syscalls,
            advice: self.kernel.advice,
            memory: self.kernel.peak,
            residency: self.kernel.residency(),
            requests: self.requests(),
            contiguity_before: self.kernel.contiguity_before,
            contiguity_after: self.kernel.contiguity(),
        }
    }

    /// Returns the storage that the design takes in the processor.
    fn hardware(&self) -> HardwareReport {
        let mmu = &self.mmus.units()[0];
        let design = &self.config.design;
        let host = design.host.as_ref().map(|host| &host.translation);
        let shared = &self.config.machine.cache.shared;
        let ways = self.config.machine.cache.llc.ways;
        let table = matches!(design.migration, MigrationConfig::Llc(_))
            .then(|| shared.table(ways).ok())
            .flatten();
        HardwareReport {
            first_level_tlb_bits: mmu.first_level_bits(),
            translation_bits: mmu.storage_bits(),
            // One set serves the guest's segment, the host's, or both composed.
            register_bits: host
                .map_or(0, |host| host.register_bits())
                .max(design.translation.register_bits()),
            migration_bits_per_slice: table.map_or(0, |table| table.storage_bits()),
            slices: shared.slices,
        }
    }

    /// Time, where it was simulated.
    pub(crate) fn time(&self) -> Option<TimeReport> {
        if self.config.detail == Detail::Translation {
            return None;
        }
        let breakdown = self.breakdown();
        let busy = breakdown.program() + breakdown.kernel;
        let (cycles, saved) = match self.timing.windows() {
            [] => {
                let saved = breakdown.tlb + breakdown.walk;
                (busy, Some(saved.get() as f64))
            }
            windows => {
                let longest = windows.iter().map(ShadowedWindow::cycles).max();
                // A core that has executed too little to tell has nothing to save.
                let saved = windows.iter().filter_map(ShadowedWindow::saved);
                (
                    longest.unwrap_or_default(),
                    saved.reduce(|sum, of| sum + of),
                )
            }
        };
        let walks = self.walk_cycles(&breakdown);
        let retired = self.executed.instructions - self.executed.string_iterations;
        Some(TimeReport {
            cycles,
            busy_cycles: busy,
            ipc: retired as f64 / cycles.get().max(1) as f64,
            breakdown,
            translation_overhead: saved.map(|saved| saved / busy.get().max(1) as f64),
            walk_active: walks.walk_active,
            walk_pending: walks.walk_pending,
        })
    }

    /// Returns cycles by cause, all cores together.
    pub(crate) fn breakdown(&self) -> CycleBreakdown {
        if self.timing.windows().is_empty() {
            return self.timing.sum.breakdown();
        }
        let mut breakdown = CycleBreakdown::default();
        for window in self.timing.windows() {
            breakdown += window.breakdown();
        }
        breakdown
    }

    /// Cycles of page walks on all cores. Where stalls add up, walks never overlap.
    pub(crate) fn walk_cycles(&self, breakdown: &CycleBreakdown) -> WalkCycles {
        if self.timing.windows().is_empty() {
            return WalkCycles {
                walk_active: breakdown.walk,
                walk_pending: breakdown.walk,
            };
        }
        let mut cycles = WalkCycles::default();
        for window in self.timing.windows() {
            cycles += window.walks().all;
        }
        cycles
    }

    pub(crate) fn core_reports(&self) -> Vec<CoreReport> {
        let cores = self
            .timing
            .windows()
            .iter()
            .zip(self.instructions_by_core());
        cores
            .map(|(window, instructions)| CoreReport {
                cycles: window.cycles(),
                instructions,
                breakdown: window.breakdown(),
                window: window.counters(),
                walks: window.walks(),
            })
            .collect()
    }

    pub(crate) fn scheme_counters(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for unit in self.mmus.units() {
            for (name, count) in unit.scheme_counters() {
                *sums.entry(name).or_default() += count;
            }
        }
        sums
    }

    /// Writes the timeline, if one was asked for.
    ///
    /// # Errors
    /// [`Error::Timeline`], and no half of a file stays behind.
    pub fn save_timeline(&self) -> Result<(), Error> {
        match (&self.timeline, &self.config.timeline) {
            (Some(timeline), Some(path)) => timeline.save(path, self.timing.windows().len()),
            _ => Ok(()),
        }
    }

    /// Writes the profile, if one was asked for.
    ///
    /// # Errors
    /// [`Error::ProfileFile`], and no half of a file stays behind.
    pub fn save_profile(&self) -> Result<(), Error> {
        let (Some(attribution), Some(path)) = (&self.attribution, &self.config.profile) else {
            return Ok(());
        };
        let report = self.report();
        let time = report.time.as_ref();
        let about = About {
            version: report.version,
            design: &self.config.design_name,
            machine: &self.config.machine_name,
            command: &self.program.command,
            total_instructions: report.executed.instructions,
            cycles: time.map(|time| time.cycles.get()),
            translation_overhead: time.and_then(|time| time.translation_overhead),
            sampled: report.sample.is_some(),
            tlb_entries: self.config.machine.tlb.entries(PageSize::Size4K),
        };
        attribution.save(path, &about)
    }

    /// Writes mappings of the processes, if they were asked for.
    ///
    /// # Errors
    /// [`Error::Smaps`], and no half of a file stays behind.
    pub fn save_smaps(&self) -> Result<(), Error> {
        let (Some(text), Some(path)) = (self.kernel.smaps(), &self.config.smaps) else {
            return Ok(());
        };
        contigua_output::write(path, text.as_bytes()).map_err(|source| Error::Smaps {
            path: path.clone(),
            source,
        })
    }

    /// Checks every structure of the server.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self) -> Result<(), String> {
        self.kernel.validate()?;
        self.checks.iter().try_for_each(Self::validate)?;
        self.memory.as_ref().map_or(Ok(()), Memory::validate)
    }
}
