//! One design, from the first event to the report.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contigua_core::CoreModel;
use contigua_program::sources::Source;

use crate::config::Detail;
use crate::report::{ProgramReport, Report, TimeReport};
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

/// Runs a design on a source to its end and reports. The source is read to its end in any case,
/// so that other readers of the same program are not held back.
///
/// # Errors
/// [`Error`], when the server cannot run the program, or the events cannot be read.
pub fn simulate(
    mut engine: Engine,
    source: &mut dyn Source,
    progress: &Progress,
) -> Result<Report, Error> {
    let outcome = consume(&mut engine, source, progress);
    progress.done.store(true, Ordering::Release);
    let drained = drain(source, progress);
    outcome?;
    drained?;
    Ok(engine.report())
}

fn consume(engine: &mut Engine, source: &mut dyn Source, progress: &Progress) -> Result<(), Error> {
    while !engine.is_done() && !progress.cancel.load(Ordering::Relaxed) {
        let Some(batch) = source.next_batch()? else {
            break;
        };
        engine.consume(batch)?;
        engine.background();
        progress
            .instructions
            .store(engine.position(), Ordering::Relaxed);
        progress.behind.store(source.behind(), Ordering::Relaxed);
    }
    Ok(())
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
    /// What the run has found out so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let full = self.config.detail == Detail::Full;
        let cycles = self.core.cycles();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            config: self.config.clone(),
            program: ProgramReport {
                command: self.program.command.clone(),
                architecture: self.program.architecture.name(),
                events: format!("{:016x}", self.digest.digest()),
                limited: self.was_limited(),
                threads: self.kernel.thread_count(),
                processes: self.kernel.process_count(),
            },
            executed: self.executed,
            time: full.then(|| TimeReport {
                cycles,
                ipc: self.executed.instructions as f64 / cycles.get().max(1) as f64,
                breakdown: self.core.breakdown(),
            }),
            tlb: self.mmu.counters(),
            translation: self.mmu.translator_counters(),
            translation_scheme: self.mmu.scheme_counters().into_iter().collect(),
            classified: self.config.classify_misses.then_some(self.classified),
            translation_storage_bits: self.mmu.storage_bits(),
            cache: self
                .hierarchy
                .as_ref()
                .map(contigua_cache::Hierarchy::counters),
            kernel: self.kernel.counters,
            frames: self.kernel.memory_events(),
            unmovable_region: self.kernel.unmovable_region(),
            syscalls: self.kernel.syscalls,
            memory: self.kernel.peak,
            contiguity_before: self.kernel.contiguity_before,
            contiguity_after: self.kernel.contiguity(),
        }
    }

    /// Checks every structure of the server.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self) -> Result<(), String> {
        self.kernel.validate()?;
        self.hierarchy
            .as_ref()
            .map_or(Ok(()), contigua_cache::Hierarchy::validate)
    }
}
