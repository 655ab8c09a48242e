//! A program with a given demand on a simulated server, in virtual time.

use std::sync::atomic::{AtomicBool, Ordering};

use contigua_pageheap::replay::{Demand, Program, Settings, draw};
use contigua_pageheap::{PAGE_BYTES, Span, Statistics};
use contigua_units::Bytes;
use serde::Serialize;

use super::SimulatedServer;
use crate::Error;
use crate::config::RunConfig;

const SECOND: f64 = 1e9;
/// Bytes from one write to the next when an allocation is filled: pages of 4 KB.
const STRIDE: usize = 4096;

/// A program on a server.
#[derive(Clone, Debug)]
pub struct HeapRun {
    /// The server.
    pub server: RunConfig,
    /// The heap and the program. Its step is the time between two samples.
    pub program: Settings,
    /// How much the program uses when.
    pub demand: Vec<Demand>,
    /// Nanoseconds until the end.
    pub end: u64,
    /// Nanoseconds that the summary leaves out at the beginning.
    pub warmup: u64,
    /// Words that the program reads in each step, anywhere in what it has allocated with equal
    /// probability.
    pub reads: u32,
    /// Draws them.
    pub seed: u64,
}

/// The heap and the server at one time. Bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeapSample {
    /// Seconds since the start.
    pub seconds: f64,
    /// In allocations.
    pub used: u64,
    /// Memory that the heap takes for backed.
    pub mapped: u64,
    /// Memory that is resident on the server.
    pub resident: u64,
    /// Of that, in pages larger than 4 KB.
    pub huge: u64,
    /// Share of used memory that the heap takes for huge, 0 to 1.
    pub believed_coverage: f64,
    /// Average fragmentation of the heap's window until now.
    pub average_fragmentation: u64,
    /// Realized fragmentation.
    pub realized_fragmentation: u64,
    /// Reads of the program in this step (a number).
    pub reads: u64,
    /// Those of them that walked the page table (a number).
    pub walks: u64,
}

/// Means over time, and counts, after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeapSummary {
    /// In allocations, bytes.
    pub used: f64,
    /// Memory that the heap takes for backed, bytes.
    pub mapped: f64,
    /// Resident on the server, bytes.
    pub resident: f64,
    /// Share of resident memory in pages larger than 4 KB, 0 to 1.
    pub coverage: f64,
    /// Share of used memory that the heap takes for huge, 0 to 1.
    pub believed_coverage: f64,
    /// Free and mapped, bytes: average fragmentation.
    pub average_fragmentation: f64,
    /// Realized fragmentation, bytes.
    pub realized_fragmentation: f64,
    /// Page walks of the program's reads, for each of them.
    pub walks_per_read: f64,
    /// Cycles of these walks, for each read; 0 when only translation was simulated.
    pub walk_cycles_per_read: f64,
    /// Faults that mapped 4 KB.
    pub faults_4k: u64,
    /// Faults that mapped 2 MB.
    pub faults_2m: u64,
    /// Huge-page allocation failures.
    pub fallbacks: u64,
    /// Huge pages that releases broke.
    pub broken: u64,
    /// Huge pages made at the heap's request, ...
    pub collapsed: u64,
    /// ... and those for which there was no memory.
    pub collapses_failed: u64,
    /// Huge pages that the kernel made in the background.
    pub collapsed_in_background: u64,
    /// Bytes given back.
    pub given_back: u64,
    /// Pages that the kernel moved to make room, in 4 KB.
    pub pages_moved: u64,
    /// Cycles of the kernel's work for the program; 0 when only translation was simulated.
    pub kernel_cycles: u64,
}

/// Results of the replay of a heap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeapReport {
    /// After the warm-up.
    pub summary: HeapSummary,
    /// One for each step.
    pub samples: Vec<HeapSample>,
    /// 2 MB blocks that were free before the program began.
    pub free_2m_blocks_before: u64,
    /// 2 MB blocks of the server's memory.
    pub blocks_2m: u64,
}

/// Lets the program live to its end. `told` is called now and then with the part that is done.
///
/// # Errors
/// Those of [`SimulatedServer::new`]; [`Error::HeapMemory`] when the server has not enough memory;
/// [`Error::Interrupted`] soon after `cancel` was set.
pub fn run(run: &HeapRun, cancel: &AtomicBool, told: &dyn Fn(f64)) -> Result<HeapReport, Error> {
    let server = SimulatedServer::new(run.server.clone(), cancel)?;
    let before = server.report().contiguity_before;
    let mut life = Life {
        run,
        program: Program::new(server.os(), run.program.clone()),
        server,
        random: run.seed,
        reads: Reads::default(),
    };
    let mut samples = Vec::new();
    let step = run.program.step.max(1);
    let mut demand = run.demand.iter().peekable();
    let mut now = 0;
    let (mut counts, mut reads) = (Counts::default(), Reads::default());
    while now <= run.end {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        while let Some(next) = demand.next_if(|next| next.time < now || next.time == 0) {
            life.use_bytes(next).map_err(|error| life.named(error))?;
        }
        // The last step before what counts; a report is not for every step.
        if now < run.warmup && now + step >= run.warmup {
            (counts, reads) = (life.counts(), life.reads);
        }
        let sample = life.step(now).map_err(|error| life.named(error))?;
        samples.push(sample);
        told(now as f64 / run.end.max(1) as f64);
        now += step;
    }
    let first = samples.partition_point(|sample| sample.seconds * SECOND < run.warmup as f64);
    let summary = life.summary(&samples[first..], &counts, reads);
    Ok(HeapReport {
        summary,
        samples,
        free_2m_blocks_before: before.blocks_2m.free.into(),
        blocks_2m: before.blocks_2m.total.into(),
    })
}

/// Counts of the program's reads.
#[derive(Clone, Copy, Default)]
struct Reads {
    count: u64,
    walks: u64,
    walk_cycles: u64,
}

/// Counters of the server, of which a summary has the difference.
#[derive(Clone, Copy, Default)]
struct Counts {
    faults_4k: u64,
    faults_2m: u64,
    fallbacks: u64,
    broken: u64,
    collapsed: u64,
    collapses_failed: u64,
    collapsed_in_background: u64,
    given_back: u64,
    pages_moved: u64,
    kernel_cycles: u64,
}

struct Life<'a> {
    run: &'a HeapRun,
    program: Program<super::ServerOs>,
    server: SimulatedServer,
    random: u64,
    reads: Reads,
}

impl Life<'_> {
    /// Time comes to a change of demand; what is allocated is written.
    fn use_bytes(&mut self, demand: &Demand) -> Result<(), Error> {
        self.server.pass_until(demand.time);
        for span in self.program.use_bytes(demand.used) {
            for address in (span.address..span.end()).step_by(STRIDE) {
                self.server.touch(address, true)?;
            }
        }
        self.server.check()
    }

    /// Time comes to a step: the heap gives back what it will, the program reads.
    fn step(&mut self, now: u64) -> Result<HeapSample, Error> {
        self.server.pass_until(now);
        self.program.heap_mut().periodic();
        self.server.check()?;
        let before = self.reads;
        self.read()?;
        let heap: Statistics = self.program.heap().statistics();
        let [resident, huge] = self.server.resident();
        Ok(HeapSample {
            seconds: now as f64 / SECOND,
            used: heap.used,
            mapped: heap.mapped,
            resident,
            huge,
            believed_coverage: heap.coverage(),
            average_fragmentation: heap.average_fragmentation,
            realized_fragmentation: heap.realized_fragmentation,
            reads: self.reads.count - before.count,
            walks: self.reads.walks - before.walks,
        })
    }

    /// Reads words of any allocated page.
    fn read(&mut self) -> Result<(), Error> {
        let live = self.program.live();
        let Some(largest) = live.iter().map(|span| span.pages).max() else {
            return Ok(());
        };
        let mut draw = |bound: u64| draw(&mut self.random, bound);
        let before = self.server.walks();
        for _ in 0..self.run.reads {
            // Large spans are drawn as often as they have pages.
            let span: Span = loop {
                let span = live[draw(live.len() as u64) as usize];
                if draw(u64::from(largest)) < u64::from(span.pages) {
                    break span;
                }
            };
            let words = u64::from(span.pages) * PAGE_BYTES as u64 / 8;
            self.server
                .touch(span.address + draw(words) as usize * 8, false)?;
        }
        let mut walks = self.server.walks();
        walks -= before;
        self.reads.count += u64::from(self.run.reads);
        self.reads.walks += walks.walks() - walks.walks_faulting;
        self.reads.walk_cycles += walks.data_walk_cycles.get();
        Ok(())
    }

    /// A server without memory says when.
    fn named(&self, error: Error) -> Error {
        match error {
            Error::OutOfMemory { memory, .. } => Error::HeapMemory {
                memory,
                used: Bytes::new(self.program.heap().statistics().used),
            },
            other => other,
        }
    }

    fn counts(&self) -> Counts {
        let report = self.server.report();
        let (kernel, advice) = (&report.kernel, &report.advice);
        Counts {
            faults_4k: kernel.faults_anonymous_4k,
            faults_2m: kernel.faults_anonymous_2m,
            fallbacks: kernel.huge_page_fallbacks,
            broken: advice.huge_pages_broken,
            collapsed: advice.collapsed,
            collapses_failed: advice.collapses_failed,
            collapsed_in_background: kernel.huge_page_collapses - advice.collapsed,
            given_back: advice.given_back.get(),
            pages_moved: report.frames.frames_compacted_direct
                + report.frames.frames_compacted_background,
            kernel_cycles: report.time.map_or(0, |time| time.breakdown.kernel.get()),
        }
    }

    fn summary(&self, samples: &[HeapSample], from: &Counts, reads: Reads) -> HeapSummary {
        let count = samples.len().max(1) as f64;
        let mean =
            |figure: &dyn Fn(&HeapSample) -> f64| samples.iter().map(figure).sum::<f64>() / count;
        let resident = mean(&|sample| sample.resident as f64);
        let made = (self.reads.count - reads.count).max(1) as f64;
        let to = self.counts();
        HeapSummary {
            used: mean(&|sample| sample.used as f64),
            mapped: mean(&|sample| sample.mapped as f64),
            resident,
            coverage: mean(&|sample| sample.huge as f64) / resident.max(1.0),
            believed_coverage: mean(&|sample| sample.believed_coverage),
            average_fragmentation: mean(&|sample| (sample.mapped - sample.used) as f64),
            realized_fragmentation: mean(&|sample| sample.realized_fragmentation as f64),
            walks_per_read: (self.reads.walks - reads.walks) as f64 / made,
            walk_cycles_per_read: (self.reads.walk_cycles - reads.walk_cycles) as f64 / made,
            faults_4k: to.faults_4k - from.faults_4k,
            faults_2m: to.faults_2m - from.faults_2m,
            fallbacks: to.fallbacks - from.fallbacks,
            broken: to.broken - from.broken,
            collapsed: to.collapsed - from.collapsed,
            collapses_failed: to.collapses_failed - from.collapses_failed,
            collapsed_in_background: to.collapsed_in_background - from.collapsed_in_background,
            given_back: to.given_back - from.given_back,
            pages_moved: to.pages_moved - from.pages_moved,
            kernel_cycles: to.kernel_cycles - from.kernel_cycles,
        }
    }
}
