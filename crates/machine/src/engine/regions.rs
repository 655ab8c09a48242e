//! Regions that the user names: what counts, and what is passed over between them.
//!
//! Each region is simulated as a run of its own would be: counters begin at zero, and what it counted
//! is added to what those before it did. Outside, the program goes forward, or keeps caches and TLBs
//! warm.

use contigua_program::end::End;
use contigua_program::plan::{Mode, Plan, Window, Windows};
use contigua_program::wire::Cue;
use contigua_translation::Mmu;
use serde_json::{Value, json};

use super::{Engine, Phase};
use crate::port::Memory;
use crate::report::{RegionReport, TimeReport, is_extreme};

/// Regions so far.
#[derive(contigua_state::State)]
pub(crate) struct Regions {
    #[state(skip)]
    plan: Plan,
    /// The program's markers say that a region is under way.
    marked: bool,
    /// Calls of the function that are under way, one for each thread at most.
    calls: u64,
    /// Instructions before the region under way.
    open: Option<u64>,
    /// Counts of all regions.
    sums: Option<Value>,
    time: Option<TimeReport>,
    report: RegionReport,
}

/// More than a block has.
const LONGEST_BLOCK: u64 = 1024;
/// Regions whose figures are kept one by one.
const MOST_LISTED: usize = 1000;

impl Regions {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            marked: false,
            calls: 0,
            open: None,
            sums: None,
            time: None,
            report: RegionReport::default(),
        }
    }

    fn windows(&self) -> Option<&Windows> {
        match &self.plan.regions {
            Some(contigua_program::plan::Regions::Windows(windows)) => Some(windows),
            _ => None,
        }
    }

    pub(crate) fn report(&self) -> &RegionReport {
        &self.report
    }

    /// Counts of all regions, as a report has them, and their time.
    pub(crate) fn sums(&self) -> (Option<&Value>, Option<&TimeReport>) {
        (self.sums.as_ref(), self.time.as_ref())
    }
}

impl Engine {
    /// The phase before the first block.
    pub(super) fn begin_regions(&mut self) {
        let outside = self.regions.as_ref().map(|r| r.plan.outside_cues());
        (self.phase, self.left) = match outside.flatten() {
            Some(mode) => (outside_phase(mode), u64::MAX),
            None => (Phase::Skip, 0),
        };
    }

    /// A block of so many instructions does not fit into the phase any more.
    #[cold]
    pub(super) fn next_part(&mut self, instructions: u64) {
        self.close_region();
        let Some(regions) = &self.regions else {
            return;
        };
        let segment = regions.plan.segment(self.position + instructions - 1);
        if segment.end == u64::MAX {
            // Behind the last window, or as much as was to be counted between two cues.
            (self.phase, self.left) = (Phase::Done, 0);
            return;
        }
        if segment.mode == Mode::Detail {
            return self.open_region(segment.end.saturating_sub(self.position));
        }
        let phase = outside_phase(segment.mode);
        if phase != Phase::Skip {
            self.end_skipping();
        }
        (self.phase, self.left) = (phase, segment.end.saturating_sub(self.position));
    }

    /// True if counts of instructions say where regions are.
    pub(super) fn is_by_counts(&self) -> bool {
        self.regions.as_ref().is_some_and(|r| r.windows().is_some())
    }

    /// Something was told that only a program tells that goes forward: what is left is less than
    /// its next block.
    pub(super) fn goes_forward(&mut self) {
        let by_counts = self.is_by_counts();
        let inside = !matches!(self.phase, Phase::Skip | Phase::Done);
        if self.left >= LONGEST_BLOCK {
            return;
        }
        if by_counts && inside {
            self.next_part(self.left + 1);
        } else if self.samples() && self.phase == Phase::Measure {
            self.next_segment(self.left + 1);
        }
    }

    /// The program begins or ends a region; whether the phase changed.
    pub(super) fn cue(&mut self, cue: Cue) -> bool {
        let Some(regions) = &mut self.regions else {
            return false;
        };
        let Some(outside) = regions.plan.outside_cues() else {
            return false;
        };
        match cue {
            Cue::Begin => regions.marked = true,
            Cue::End => regions.marked = false,
            Cue::Enter => regions.calls += 1,
            Cue::Leave => regions.calls = regions.calls.saturating_sub(1),
        }
        let wanted = regions.marked || regions.calls > 0;
        if self.phase == Phase::Done || wanted == regions.open.is_some() {
            return false;
        }
        if wanted {
            let counted = regions.report.instructions;
            let limit = self.config.instructions.unwrap_or(u64::MAX);
            self.open_region(limit - counted.min(limit));
        } else {
            self.close_region();
            (self.phase, self.left) = (outside_phase(outside), u64::MAX);
        }
        true
    }

    fn open_region(&mut self, left: u64) {
        self.end_skipping();
        self.reset_counters();
        (self.phase, self.left) = (Phase::Measure, left);
        if let Some(regions) = &mut self.regions {
            regions.open = Some(self.position);
        }
    }

    fn end_skipping(&mut self) {
        if self.phase == Phase::Skip {
            self.meet_clocks();
        }
    }

    /// Adds what the region under way has counted, if there is one.
    fn close_region(&mut self) {
        let Some(begin) = self.regions.as_mut().and_then(|r| r.open.take()) else {
            return;
        };
        let time = self.time();
        let counts = self.counts();
        let instructions = self.executed.instructions;
        if let Some(regions) = &mut self.regions {
            match &mut regions.sums {
                None => regions.sums = Some(counts),
                Some(sums) => add("", sums, &counts),
            }
            let report = &mut regions.report;
            report.count += 1;
            report.instructions += instructions;
            if report.begins.len() < MOST_LISTED {
                report.begins.push(begin);
                report.lengths.push(instructions);
                report
                    .cycles
                    .extend(time.as_ref().map(|time| time.cycles.get()));
            }
            let iterations = regions.sums.as_ref().map_or(0, string_iterations);
            let all = report.instructions - iterations;
            regions.time = match (regions.time.take(), time) {
                (Some(sum), Some(time)) => Some(add_time(&sum, &time, all)),
                (sum, time) => sum.or(time),
            };
        }
        self.leave_detail();
    }

    /// The stream is over.
    pub(super) fn finish_regions(&mut self) {
        self.close_region();
        let none = |regions: &Regions| regions.report.count == 0;
        if self.regions.as_ref().is_some_and(none) {
            // What was simulated was no region.
            self.reset_counters();
        }
    }

    /// Regions that the run was to simulate and did not find in the program, in words.
    pub(crate) fn missed(&self, end: Option<&End>) -> Option<String> {
        let executed = self.position;
        if let Some(option) = self.ended_within() {
            let ended = end.filter(|end| **end != End::Exited(0));
            let ended = ended.map_or_else(|| "ended".to_owned(), End::to_string);
            return Some(format!(
                "the program {ended} after {executed} instructions, within {option}: nothing was \
                 measured"
            ));
        }
        let beyond = |window: &Window| {
            format!(
                "the window {window} lies behind the program's end: it executed {executed} \
                 instructions"
            )
        };
        if let Some(regions) = &self.regions {
            let Some(windows) = regions.windows() else {
                return (regions.report.count == 0).then(|| {
                    format!(
                        "the program executed {executed} instructions, and no region began among \
                         them"
                    )
                });
            };
            let missed = windows.list().iter().find(|w| w.begin >= executed);
            return missed.map(beyond);
        }
        self.missed_point().as_ref().map(beyond)
    }

    /// The option that the stream ended within, if it was over before anything was counted.
    fn ended_within(&self) -> Option<String> {
        let (skip, warmup) = (self.config.skip, self.config.warmup);
        let skips = match &self.sampler {
            Some(_) => !self.samples(),
            None => self.phase == Phase::Skip,
        };
        if self.regions.is_some() || self.missed_point().is_some() {
            None
        } else if skips && skip > 0 {
            Some(format!("--skip {skip}"))
        } else if (skips || self.phase == Phase::Warmup) && warmup > 0 {
            let before = if skip > 0 {
                format!("--skip {skip} and ")
            } else {
                String::new()
            };
            Some(format!("{before}--warmup {warmup}"))
        } else {
            None
        }
    }

    /// All that is counted but time, by what a report calls it.
    pub(super) fn counts(&self) -> Value {
        json!({
            "executed": self.executed,
            "tlb": self.mmus.sum(Mmu::counters),
            "translation": self.mmus.sum(Mmu::translator_counters),
            "translation_scheme": self.scheme_counters(),
            "classified": self.config.classify_misses.then_some(self.classified),
            "cache": self.memory.as_ref().map(Memory::counters),
            "cores": self.core_reports(),
            "migration": self.migration_report(),
            "devices": self.memory.is_some().then(|| self.devices.report()),
            "kernel": self.kernel.counters,
            "frames": self.kernel.memory_events(),
            "syscalls": self.kernel.syscalls,
            "advice": self.kernel.advice,
        })
    }
}

const fn outside_phase(mode: Mode) -> Phase {
    match mode {
        Mode::Forward => Phase::Skip,
        Mode::Warm | Mode::Detail => Phase::Warm,
    }
}

/// Returns counts less those of an earlier moment.
pub(super) fn since(before: &Value, now: &Value) -> Value {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => now
            .iter()
            .map(|(key, now)| {
                (
                    key.clone(),
                    match before.get(key) {
                        Some(before) if !is_extreme(key) => since(before, now),
                        _ => now.clone(),
                    },
                )
            })
            .collect(),
        (Value::Array(before), Value::Array(now)) => {
            let before = before.iter().map(Some).chain(std::iter::repeat(None));
            now.iter()
                .zip(before)
                .map(|(now, before)| before.map_or(now.clone(), |b| since(b, now)))
                .collect()
        }
        (Value::Number(before), Value::Number(count)) => match (before.as_u64(), count.as_u64()) {
            (Some(before), Some(count)) => count.saturating_sub(before).into(),
            _ => now.clone(),
        },
        _ => now.clone(),
    }
}

/// The time of two regions after another, of so many instructions.
/// Iterations in what regions counted together, which are no instructions of their own.
fn string_iterations(counts: &Value) -> u64 {
    counts["executed"]["string_iterations"]
        .as_u64()
        .unwrap_or_default()
}

fn add_time(one: &TimeReport, other: &TimeReport, instructions: u64) -> TimeReport {
    let mut breakdown = one.breakdown;
    breakdown += other.breakdown;
    let cycles = one.cycles + other.cycles;
    let both = [one, other].into_iter().filter_map(|time| {
        let cycles = time.busy_cycles.get() as f64;
        Some((time.translation_overhead? * cycles, cycles))
    });
    let overhead = both.reduce(|sum, more| (sum.0 + more.0, sum.1 + more.1));
    TimeReport {
        cycles,
        busy_cycles: one.busy_cycles + other.busy_cycles,
        ipc: instructions as f64 / cycles.get().max(1) as f64,
        breakdown,
        translation_overhead: overhead.map(|(saved, cycles)| saved / cycles.max(1.0)),
        walk_active: one.walk_active + other.walk_active,
        walk_pending: one.walk_pending + other.walk_pending,
    }
}

/// Adds what one region counted to what others did. A value is known by its key.
pub(super) fn add(key: &str, sum: &mut Value, more: &Value) {
    match (&mut *sum, more) {
        (Value::Object(sum), Value::Object(more)) => {
            for (key, more) in more {
                match sum.get_mut(key) {
                    Some(sum) => add(key, sum, more),
                    None => {
                        sum.insert(key.clone(), more.clone());
                    }
                }
            }
        }
        (Value::Array(sum), Value::Array(more)) => {
            for (index, more) in more.iter().enumerate() {
                match sum.get_mut(index) {
                    Some(sum) => add(key, sum, more),
                    None => sum.push(more.clone()),
                }
            }
        }
        (Value::Number(one), Value::Number(other)) => {
            if let (Some(one), Some(other)) = (one.as_u64(), other.as_u64()) {
                *sum = match key {
                    "max_cycles" | "longest_stall_cycles" | "table_largest_block" => one.max(other),
                    "min_cycles" if one == 0 => other,
                    "min_cycles" if other == 0 => one,
                    "min_cycles" => one.min(other),
                    _ => one + other,
                }
                .into();
            }
        }
        (Value::Null, _) => *sum = more.clone(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_since_is_what_is_missing_to_a_sum() {
        let one = json!({"a": 1, "parts": [1, 2], "name": "x", "deep": {"b": 7}, "max_cycles": 3});
        let other = json!({"a": 5, "parts": [1, 4, 9], "name": "x", "deep": {"b": 8, "c": 2},
                           "max_cycles": 9});
        let mut sum = one.clone();
        let more = since(&one, &other);
        assert_eq!(
            more,
            json!({"a": 4, "parts": [0, 2, 9], "name": "x", "deep": {"b": 1, "c": 2},
                   "max_cycles": 9})
        );
        add("", &mut sum, &more);
        assert_eq!(sum, other);
    }

    #[test]
    fn counts_add_up_by_their_names() {
        let mut sum = json!({
            "a": 1, "parts": [1, 2], "size_bytes": 4096, "share": 0.5, "name": "software",
            "max_cycles": 7, "min_cycles": 3, "none": null, "deep": {"b": 1},
        });
        let more = json!({
            "a": 2, "parts": [10, 20, 30], "size_bytes": 8192, "share": 0.7, "name": "software",
            "max_cycles": 5, "min_cycles": 2, "none": 4, "deep": {"b": 2, "c": 3},
        });
        add("", &mut sum, &more);
        assert_eq!(
            sum,
            json!({
                "a": 3, "parts": [11, 22, 30], "size_bytes": 12288, "share": 0.5, "name": "software",
                "max_cycles": 7, "min_cycles": 2, "none": 4, "deep": {"b": 3, "c": 3},
            })
        );
    }
}
