//! Sampled runs: units of detail, and what they say of the whole region.
//!
//! Counts of a unit in proportion to its instructions (cycles of the program, misses, walks) are
//! estimates for the region, with an interval; the operating system goes on between units as well,
//! so its counts, its cycles among them, are exact.
//!
//! Warming is short where units are far apart. A second server warms some of them longer; what that
//! changes is added to all estimates (double sampling: Cochran, *Sampling Techniques*, chapter 12),
//! and intervals hold it: nobody knows what still longer warming would change.
//!
//! Units are drawn at random, one from each stretch, or they are points that the user names, each
//! with the share of the program that it stands for (`SimPoint`). Nothing is known of the error of
//! the latter.

use std::collections::BTreeMap;

use contigua_core::{CycleBreakdown, ShadowedWindow};
use contigua_program::plan::{Mode, Plan, Regions, Units, Window, Windows};
use contigua_translation::Mmu;
use contigua_units::Cycles;
use serde_json::Value;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::regions::{add, since};
use super::stretches::Stretches;
use super::{Engine, Phase};
use crate::report::scale;
use crate::report::{Estimate, GoalReport, SampleReport, TimeReport, WarmingReport};

/// Figures of a unit, in this order.
const NAMES: [&str; COUNT] = [
    "instructions",
    "issue",
    "branch",
    "dependence",
    "fetch",
    "data",
    "tlb",
    "walk",
    "kernel",
    "l1d_tlb_misses",
    "l1i_tlb_misses",
    "walks_4k",
    "walks_2m",
    "walks_1g",
    "walk_references",
    "perfect_tlb",
    "walk_active",
    "walk_pending",
];
const COUNT: usize = 18;
const INSTRUCTIONS: usize = 0;
/// The parts of a core's time.
const PARTS: std::ops::Range<usize> = 1..9;
const WALK: usize = 7;
const KERNEL: usize = 8;
const DATA_MISSES: usize = 9;
const CODE_MISSES: usize = 10;
const WALKS: std::ops::Range<usize> = 11..14;
/// Cycles that a core with a perfect TLB would have taken; those of a unit without the kernel's.
const PERFECT: usize = 15;
const WALK_ACTIVE: usize = 16;
const WALK_PENDING: usize = 17;

type Figures = [u64; COUNT];

/// Fractional bits of a rate.
pub(super) const RATE_SHIFT: u32 = 20;
/// A cycle an instruction: before anything was simulated.
pub(super) const UNKNOWN_RATE: u64 = 1 << RATE_SHIFT;
/// The last instructions of warming fill the core's window: they are simulated as those that count
/// are (the detailed warming of SMARTS, section 3.2, for which it takes 2,000 to 4,000).
const LEAD: u64 = 4000;

/// Instructions at the region's beginning that are simulated in detail, where they are told: a
/// program may be over before its first unit.
const BEGINNING: u64 = 10_000;

/// Units so far.
#[derive(contigua_state::State)]
pub(crate) struct Sampler {
    #[state(skip)]
    plan: Plan,
    /// The share of the program that each window stands for; `None` where units are drawn.
    #[state(skip)]
    weights: Option<Vec<f64>>,
    #[state(skip)]
    confidence: f64,
    /// Where the region began, once it has.
    region: Option<u64>,
    /// Where each unit ends in the region, or which window it is; its figures.
    units: Vec<(u64, Figures)>,
    /// Unit under way: its number, and the counters when it began.
    open: Option<(u64, Figures)>,
    /// All that each point counted, by the window, and what was counted when the one under way
    /// began.
    counts: BTreeMap<u64, Value>,
    counts_before: Value,
    pub(super) stretches: Stretches,
    rate: u64,
}

/// Cycles of the program: without the kernel's.
fn user(figures: &Figures) -> u64 {
    PARTS.map(|part| figures[part]).sum::<u64>() - figures[KERNEL]
}

/// The rate after a unit: half of it is the unit's, a quarter that of the unit before, and so on.
fn latest_rate(before: u64, is_first: bool, unit: &Figures) -> u64 {
    let cycles = u128::from(user(unit)) << RATE_SHIFT;
    let own = (cycles / u128::from(unit[INSTRUCTIONS].max(1))) as u64;
    if is_first {
        own
    } else {
        u64::midpoint(before, own)
    }
}

/// Returns a unit's counts of the program. The kernel's cycles are counted exactly over the whole
/// region, and those of a context switch at a unit's border belong to neither side.
fn without_kernel(mut unit: Figures) -> Figures {
    unit[PERFECT] = unit[PERFECT].saturating_sub(unit[KERNEL]);
    unit[KERNEL] = 0;
    unit
}

impl Sampler {
    pub(super) fn new(mut plan: Plan, weights: Option<Vec<f64>>, confidence: f64) -> Self {
        if let Some(sampling) = &mut plan.sampling
            && sampling.units == Units::Told
        {
            sampling.units = Units::All;
        }
        Self {
            plan,
            weights,
            confidence,
            region: None,
            units: Vec::new(),
            open: None,
            counts: BTreeMap::new(),
            counts_before: Value::Null,
            stretches: Stretches::default(),
            rate: UNKNOWN_RATE,
        }
    }

    /// Cycles of the program for an instruction, as the latest units say, in units of
    /// 2^-[`RATE_SHIFT`].
    ///
    /// Units of earlier phases must not count: warming at their rate fills memory's channels more, or
    /// less, than the program does, and a unit begins with these.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    fn windows(&self) -> Option<&Windows> {
        match &self.plan.regions {
            Some(Regions::Windows(windows)) => Some(windows),
            _ => None,
        }
    }

    /// The distance of units at an instruction of the region, unless they are points.
    pub(super) fn distance_at(&self, position: u64) -> Option<u64> {
        let sampling = self.plan.sampling.filter(|_| self.weights.is_none())?;
        Some(sampling.distance_at(position - self.region?))
    }

    /// Which unit a block is in that ends before an instruction.
    fn unit_before(&self, end: u64) -> u64 {
        if let Some(windows) = self.windows() {
            return windows.next(end - 1).unwrap_or(usize::MAX) as u64;
        }
        let count = (end - 1).saturating_sub(self.plan.skip);
        self.plan.sampling.map_or(0, |s| s.end_of_unit(count))
    }

    /// Units that count and were simulated twice, by their place among those that count: with `warm` and
    /// with longer warming. Without gaps, all that came before has warmed a unit: more changes nothing.
    fn checked(&self, region: u64, checks: &Self) -> Vec<(usize, Figures, Figures)> {
        let Some(sampling) = checks.plan.sampling.filter(|s| s.has_gaps(region)) else {
            return Vec::new();
        };
        let all = self.plan.sampling.unwrap_or(sampling);
        let counted = self.units.iter().filter(|(end, _)| all.keeps(*end, region));
        let counted = counted.enumerate();
        let kept = counted.filter(|(_, (end, _))| sampling.keeps(*end, region));
        let twice = kept.filter_map(|(number, (end, unit))| {
            if !sampling.has_gaps(end.saturating_sub(1)) {
                return Some((number, *unit, *unit));
            }
            let at = checks.units.binary_search_by_key(end, |(end, _)| *end);
            let (_, longer) = checks.units[at.ok()?];
            (longer[INSTRUCTIONS] == unit[INSTRUCTIONS]).then_some((number, *unit, longer))
        });
        twice.collect()
    }

    /// The units that count when the region has so many instructions, and how much.
    fn counted(&self, region: u64) -> (Vec<Figures>, Option<Vec<f64>>) {
        let Some(weights) = &self.weights else {
            let counts = |end| self.plan.sampling.is_none_or(|s| s.keeps(end, region));
            let left = |(end, unit): &(u64, Figures)| counts(*end).then_some(*unit);
            return (self.units.iter().filter_map(left).collect(), None);
        };
        // Threads that share a window can leave it and come back.
        let mut parts: BTreeMap<u64, Figures> = BTreeMap::new();
        for (window, part) in &self.units {
            let unit = parts.entry(*window).or_insert([0; COUNT]);
            for (sum, value) in unit.iter_mut().zip(part) {
                *sum += value;
            }
        }
        let weight = |window: &u64| weights.get(*window as usize).copied().unwrap_or(0.0);
        let shares = parts.keys().map(weight).collect();
        (parts.into_values().collect(), Some(shares))
    }
}

impl Engine {
    /// Instructions in the region of interest, whether they were simulated or not.
    pub(crate) fn region_instructions(&self) -> u64 {
        match &self.sampler {
            Some(sampler) => sampler.region.map_or(0, |begin| self.position - begin),
            None => self.executed.instructions,
        }
    }

    /// Returns estimates of all counts: of points, each of which stands for its share, or of stretches.
    pub(crate) fn estimated_counts(&self) -> Option<Value> {
        let sampler = self.sampler.as_ref()?;
        let region = self.region_instructions();
        let (units, weights) = sampler.counted(region);
        let Some(weights) = weights else {
            return self.stretches_counted();
        };
        let all: f64 = weights.iter().sum();
        let mut sum = Value::Null;
        for ((unit, weight), counts) in units.iter().zip(&weights).zip(sampler.counts.values()) {
            let mut counts = counts.clone();
            let share = weight / all.max(f64::MIN_POSITIVE);
            let factor = share * region as f64 / unit[INSTRUCTIONS].max(1) as f64;
            scale(&mut counts, factor);
            add("", &mut sum, &counts);
        }
        (!sum.is_null()).then_some(sum)
    }

    /// A point that lies behind the program's end.
    pub(super) fn missed_point(&self) -> Option<Window> {
        let windows = self.sampler.as_ref()?.windows()?;
        let missed = windows.list().iter().find(|w| w.begin >= self.position);
        missed.copied()
    }

    /// True once the region of interest of a sampled run has begun.
    pub(super) fn samples(&self) -> bool {
        self.sampler.as_ref().is_some_and(|s| s.region.is_some())
    }

    /// Begins the region of interest of a sampled run, if it has not begun.
    pub(super) fn begin_region(&mut self) {
        if let Some(sampler) = &mut self.sampler
            && sampler.region.is_none()
        {
            sampler.region = Some(self.position);
            self.meet_clocks();
            self.reset_counters();
            self.enter_stretch();
        }
    }

    /// A block of so many instructions does not fit into the segment any more.
    #[cold]
    pub(super) fn next_segment(&mut self, instructions: u64) {
        if self.phase == Phase::Done {
            return;
        }
        self.close_unit();
        self.begin_region();
        let Some(sampler) = &mut self.sampler else {
            return;
        };
        let region = sampler.region.unwrap_or(self.position);
        let limit = self.config.instructions.unwrap_or(u64::MAX);
        if self.position - region + instructions > limit {
            (self.phase, self.left) = (Phase::Done, 0);
            return;
        }
        let segment = sampler.plan.segment(self.position + instructions - 1);
        let before = self.phase;
        let end = segment.end.min(region.saturating_add(limit));
        self.left = end.saturating_sub(self.position);
        self.phase = match segment.mode {
            Mode::Forward => Phase::Skip,
            Mode::Warm if self.position == region && self.left > BEGINNING => {
                self.left = BEGINNING;
                Phase::Warmup
            }
            Mode::Warm if self.left >= LEAD + instructions => {
                self.left -= LEAD;
                Phase::Warm
            }
            Mode::Warm => Phase::Warmup,
            Mode::Detail => Phase::Measure,
        };
        if matches!(self.phase, Phase::Warmup | Phase::Measure)
            && before != Phase::Warmup
            && let Some(window) = self.timing.windows_mut().get_mut(self.current)
        {
            window.start_shadow();
        }
        if self.phase == Phase::Measure {
            let unit = sampler.unit_before(self.position + instructions);
            let counts = sampler.weights.is_some().then(|| self.counts());
            let figures = self.figures();
            if let Some(sampler) = &mut self.sampler {
                sampler.open = Some((unit, figures));
                sampler.counts_before = counts.unwrap_or_default();
            }
        } else if before != Phase::Skip && self.phase != Phase::Warmup {
            self.leave_detail();
        }
    }

    fn close_unit(&mut self) {
        if self.phase != Phase::Measure {
            return;
        }
        let now = self.figures();
        let weighs = self.sampler.as_ref().is_some_and(|s| s.weights.is_some());
        let counts = weighs.then(|| self.counts());
        if let Some(sampler) = &mut self.sampler
            && let Some((begin, before)) = sampler.open.take()
        {
            let mut unit = now;
            for (value, before) in unit.iter_mut().zip(before) {
                *value -= before;
            }
            let unit = without_kernel(unit);
            sampler.rate = latest_rate(sampler.rate, sampler.units.is_empty(), &unit);
            sampler.units.push((begin, unit));
            if let Some(counts) = counts {
                let more = since(&sampler.counts_before, &counts);
                add("", sampler.counts.entry(begin).or_default(), &more);
            }
        }
        self.enter_stretch();
    }

    /// The program goes forward from here on.
    pub(super) fn end_unit(&mut self) {
        self.close_unit();
        (self.phase, self.left) = (Phase::Skip, 0);
        self.leave_detail();
    }

    /// The cores have nothing under way when they go forward.
    pub(super) fn leave_detail(&mut self) {
        self.timing.drain(self.current);
        if let Some(window) = self.timing.windows_mut().get_mut(self.current) {
            window.stop_shadow();
        }
        self.contexts[self.current].fetch_line = u64::MAX;
        self.passed.forget();
    }

    /// Everything that units count, since the region began.
    fn figures(&self) -> Figures {
        let time = self.breakdown();
        let walks = self.walk_cycles(&time);
        let perfect = match self.timing.windows() {
            [] => Cycles::new(time.total().get() - time.tlb.get() - time.walk.get()),
            windows => windows.iter().map(ShadowedWindow::perfect).sum(),
        };
        let tlb = self.mmus.sum(Mmu::counters);
        let translator = self.mmus.sum(Mmu::translator_counters);
        [
            self.executed.instructions,
            time.issue.get(),
            time.branch.get(),
            time.dependence.get(),
            time.fetch.get(),
            time.data.get(),
            time.tlb.get(),
            time.walk.get(),
            time.kernel.get(),
            tlb.data.misses(),
            tlb.instruction.misses(),
            translator.walks_4k,
            translator.walks_2m,
            translator.walks_1g,
            translator.references,
            perfect.get(),
            walks.walk_active.get(),
            walks.walk_pending.get(),
        ]
    }

    pub(super) fn detailed_instructions(&self) -> u64 {
        if self.timing.windows().is_empty() {
            return self.executed.instructions;
        }
        self.instructions_by_core().sum()
    }

    /// Returns the units' estimates for the region, and its time.
    pub(crate) fn sample(&self) -> Option<(SampleReport, TimeReport)> {
        let sampler = self.sampler.as_ref()?;
        let region = self.region_instructions();
        let now = self.figures();
        // A program that is shorter than a unit was not watched from its beginning.
        let watched = !sampler.units.is_empty();
        let (mut units, mut weights) = sampler.counted(region);
        if units.is_empty() {
            // The program was over before its first unit: all that was simulated in detail is one.
            let mut all = now;
            all[INSTRUCTIONS] = self.detailed_instructions();
            units.push(without_kernel(all));
            weights = weights.map(|_| vec![1.0]);
        }
        let checks = self.checks.first().and_then(|one| one.sampler.as_ref());
        let checked = checks.map_or_else(Vec::new, |checks| sampler.checked(region, checks));
        let estimator = match &weights {
            None => Estimator::new(&units, sampler.confidence).check(&checked, sampler.confidence),
            Some(weights) => Estimator::weighted(&units, weights),
        };
        let kernel = now[KERNEL];
        let program = estimator.ratio(user, |unit| unit[INSTRUCTIONS]);
        let cycles = program.times(region as f64).plus(kernel as f64);
        let part = |index: usize| {
            let total = estimator.total(|unit| unit[index], region);
            Cycles::new(if index == KERNEL { kernel } else { total })
        };
        let breakdown = CycleBreakdown {
            issue: part(1),
            branch: part(2),
            dependence: part(3),
            fetch: part(4),
            data: part(5),
            tlb: part(6),
            walk: part(WALK),
            kernel: part(KERNEL),
            idle: Cycles::ZERO,
        };
        let user_share = program.value * region as f64 / cycles.value.max(1.0);
        let per_thousand = |figure: &dyn Fn(&Figures) -> u64| {
            estimator
                .ratio(figure, |unit| unit[INSTRUCTIONS])
                .times(1e3)
        };
        let overhead = watched.then(|| {
            let kept = estimator.ratio(|unit| unit[PERFECT], user);
            Estimate {
                value: (1.0 - kept.value).max(0.0),
                ..kept
            }
            .times(user_share)
        });
        let mut estimates = BTreeMap::from([
            ("cycles", cycles),
            ("ipc", cycles.inverse(region as f64)),
            (
                "walk_share",
                estimator.ratio(|unit| unit[WALK], user).times(user_share),
            ),
            ("l1d_tlb_mpki", per_thousand(&|unit| unit[DATA_MISSES])),
            ("l1i_tlb_mpki", per_thousand(&|unit| unit[CODE_MISSES])),
            (
                "l2_tlb_mpki",
                per_thousand(&|unit| WALKS.map(|index| unit[index]).sum()),
            ),
        ]);
        estimates.extend(overhead.map(|overhead| ("translation_overhead", overhead)));
        let total = breakdown.total();
        let report = SampleReport {
            sampling: sampler.plan.sampling,
            weights: weights.clone(),
            confidence: sampler.confidence,
            quantile: estimator.quantile,
            stratum: estimator.quantile.map(|_| STRATUM as u64),
            goal: self
                .config
                .goal
                .map(|error| GoalReport::new(error, cycles, &units, region)),
            units: units.len() as u64,
            instructions: units.iter().map(|unit| unit[INSTRUCTIONS]).sum(),
            simulated_instructions: self.executed.instructions,
            detailed_instructions: self.detailed_instructions(),
            estimates,
            warming: estimator.warming(&checked),
            by_unit: by_unit(&units),
        };
        let time = TimeReport {
            cycles: total,
            busy_cycles: total,
            ipc: region as f64 / total.get().max(1) as f64,
            breakdown,
            translation_overhead: overhead.map(|overhead| overhead.value),
            walk_active: part(WALK_ACTIVE),
            walk_pending: part(WALK_PENDING),
        };
        Some((report, time))
    }
}

/// Columns of a report.
fn by_unit(units: &[Figures]) -> BTreeMap<&'static str, Vec<u64>> {
    let columns = NAMES.iter().enumerate();
    columns
        .filter(|(index, _)| *index != KERNEL)
        .map(|(index, &name)| (name, units.iter().map(|unit| unit[index]).collect()))
        .collect()
}

/// Fewer units that were warmed longer, too, say nothing of what that changes.
const FEWEST_CHECKED: usize = 4;

/// Units of a stratum. Those of one are compared with one another only: units are drawn from all
/// parts of the program, so what differs between its phases is no error. Fewer units would take
/// what neighbors have in common for accuracy.
const STRATUM: usize = 16;

/// Units by the strata that they belong to; what is left at the end belongs to the last one.
fn strata<T>(units: &[T]) -> impl Iterator<Item = &[T]> {
    let count = (units.len() / STRATUM).max(1);
    (0..count).map(move |stratum| {
        let last = stratum + 1 == count;
        let end = if last {
            units.len()
        } else {
            (stratum + 1) * STRATUM
        };
        &units[stratum * STRATUM..end]
    })
}

/// Ratios over units, with confidence intervals.
struct Estimator<'a> {
    units: &'a [Figures],
    /// How often each unit is in the region, for each of its instructions; empty where all are
    /// alike.
    scales: Vec<f64>,
    /// Standard errors in half an interval; `None` for a single unit, of which nothing is known.
    quantile: Option<f64>,
    /// Units that were simulated twice: with `warm`, and with longer warming.
    checked: Vec<(Figures, Figures)>,
    /// Standard errors in half the interval of a change.
    quantile_of_change: f64,
}

/// Standard errors in half an interval.
fn quantile(freedom: usize, confidence: f64) -> Option<f64> {
    StudentsT::new(0.0, 1.0, freedom as f64)
        .ok()
        .map(|distribution| distribution.inverse_cdf(0.5 + confidence / 2.0))
}

impl<'a> Estimator<'a> {
    fn new(units: &'a [Figures], confidence: f64) -> Self {
        let freedom = units.len().saturating_sub(strata(units).count());
        Self {
            units,
            scales: Vec::new(),
            quantile: quantile(freedom, confidence),
            checked: Vec::new(),
            quantile_of_change: 0.0,
        }
    }

    /// Takes units into account that were warmed longer, too, if there are enough of them.
    fn check(mut self, checked: &[(usize, Figures, Figures)], confidence: f64) -> Self {
        if checked.len() < FEWEST_CHECKED {
            return self;
        }
        let pairs = checked.iter().map(|&(_, short, long)| (short, long));
        self.checked = pairs.collect();
        self.quantile_of_change = quantile(checked.len() - 1, confidence).unwrap_or(0.0);
        self
    }

    /// Units that stand for shares of the region.
    fn weighted(units: &'a [Figures], weights: &[f64]) -> Self {
        let scale = |(unit, weight): (&Figures, &f64)| weight / unit[INSTRUCTIONS].max(1) as f64;
        Self {
            units,
            scales: units.iter().zip(weights).map(scale).collect(),
            quantile: None,
            checked: Vec::new(),
            quantile_of_change: 0.0,
        }
    }

    /// The sum of a figure over that of another one (Cochran, *Sampling Techniques*, chapter 6, and
    /// 5A.12 on strata that are put together). What longer warming changes is added to both; half
    /// of the interval is at least as much.
    fn ratio(&self, figure: impl Fn(&Figures) -> u64, of: impl Fn(&Figures) -> u64) -> Estimate {
        let count = self.units.len() as f64;
        let scales = self.scales.iter().copied().chain(std::iter::repeat(1.0));
        let scaled = self.units.iter().zip(scales);
        let (sum, base) = scaled.fold((0.0, 0.0), |(sum, base), (unit, scale)| {
            (
                sum + scale * figure(unit) as f64,
                base + scale * of(unit) as f64,
            )
        });
        let sum = sum + count * self.change(|unit| figure(unit) as f64).value;
        let base = base + count * self.change(|unit| of(unit) as f64).value;
        let value = if base > 0.0 {
            (sum / base).max(0.0)
        } else {
            0.0
        };
        let residual = |unit: &Figures| figure(unit) as f64 - value * of(unit) as f64;
        let half_width = self.quantile.map(|quantile| {
            let squares = strata(self.units).map(|units| {
                let mean = units.iter().map(residual).sum::<f64>() / units.len() as f64;
                let square = |unit| (residual(unit) - mean).powi(2);
                units.iter().map(square).sum::<f64>()
            });
            let freedom = count - strata(self.units).count() as f64;
            let error = (squares.sum::<f64>() / freedom / count).sqrt();
            let change = self.change(residual);
            let halves = [
                quantile * error,
                change.half_width.unwrap_or(0.0),
                change.value,
            ];
            let half = halves.iter().map(|half| half * half).sum::<f64>().sqrt();
            half / (base / count).max(1.0)
        });
        Estimate { value, half_width }
    }

    /// By how much longer warming changes a figure of a unit: the mean, and half its interval.
    fn change(&self, figure: impl Fn(&Figures) -> f64) -> Estimate {
        let count = self.checked.len() as f64;
        if self.checked.is_empty() {
            return Estimate {
                value: 0.0,
                half_width: None,
            };
        }
        let pairs = self.checked.iter();
        let changes: Vec<f64> = pairs
            .map(|(short, long)| figure(long) - figure(short))
            .collect();
        let mean = changes.iter().sum::<f64>() / count;
        let squares = changes.iter().map(|change| (change - mean).powi(2));
        let error = (squares.sum::<f64>() / (count - 1.0) / count).sqrt();
        Estimate {
            value: mean,
            half_width: Some(self.quantile_of_change * error),
        }
    }

    /// Change of the program's cycles by longer warming.
    fn warming(&self, checked: &[(usize, Figures, Figures)]) -> Option<WarmingReport> {
        let change = self.change(|unit| user(unit) as f64);
        let half = change.half_width?;
        let all = self.units.iter().map(user).sum::<u64>() as f64 / self.units.len() as f64;
        let longer: Vec<Figures> = checked.iter().map(|(_, _, long)| *long).collect();
        Some(WarmingReport {
            units: checked
                .iter()
                .map(|(number, _, _)| *number as u64)
                .collect(),
            quantile: self.quantile_of_change,
            cycles: Estimate {
                value: change.value / all.max(1.0),
                half_width: Some(half / all.max(1.0)),
            },
            differs: change.value.abs() > half,
            by_unit: by_unit(&longer),
        })
    }

    /// A figure of the region.
    fn total(&self, figure: impl Fn(&Figures) -> u64, region: u64) -> u64 {
        let ratio = self.ratio(figure, |unit| unit[INSTRUCTIONS]);
        (ratio.value * region as f64).round() as u64
    }
}
impl GoalReport {
    /// Half an interval shrinks with the root of the number of units (SMARTS, section 3.1).
    fn new(error: f64, cycles: Estimate, units: &[Figures], region: u64) -> Self {
        let half_width = cycles.half_width.map(|half| half / cycles.value.max(1.0));
        let reached = half_width.is_some_and(|half| half <= error);
        let wanted = half_width
            .filter(|_| !reached)
            .map(|half| (units.len() as f64 * (half / error).powi(2)).ceil() as u64)
            // A tenth more: what is known of the variation comes from units, too.
            .map(|units| units.saturating_add(units.div_ceil(10)));
        let simulated: u64 = units.iter().map(|unit| unit[INSTRUCTIONS]).sum();
        let length = simulated as f64 / units.len().max(1) as f64;
        let distance = wanted.map(|wanted| region as f64 / wanted as f64);
        Self {
            error,
            reached,
            half_width,
            units: wanted,
            // With half of the program in units, all of it takes hardly longer.
            distance: distance
                .filter(|distance| *distance >= 2.0 * length)
                .map(two_digits),
        }
    }
}

/// A number of two digits and zeros, not more than another one.
fn two_digits(number: f64) -> u64 {
    let number = number as u64;
    let zeros = 10_u64.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    number / zeros * zeros
}

impl Estimate {
    fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            half_width: self.half_width.map(|half| half * factor),
        }
    }

    fn plus(self, exact: f64) -> Self {
        Self {
            value: self.value + exact,
            ..self
        }
    }

    /// `of` over this, to first order.
    fn inverse(self, of: f64) -> Self {
        let value = of / self.value.max(1.0);
        Self {
            value,
            half_width: self
                .half_width
                .map(|half| half / self.value.max(1.0) * value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(cycles: &[u64]) -> Vec<Figures> {
        let unit = |&cycles: &u64| {
            let mut figures = [0; COUNT];
            figures[INSTRUCTIONS] = 1000;
            figures[1] = cycles;
            figures
        };
        cycles.iter().map(unit).collect()
    }

    #[test]
    fn warming_follows_a_new_phase_after_a_few_units() {
        let phases = [vec![200; 100], vec![1100; 4]].concat();
        let (mut rate, mut is_first) = (UNKNOWN_RATE, true);
        for unit in units(&phases) {
            rate = latest_rate(rate, is_first, &unit);
            is_first = false;
        }
        let cycles = rate as f64 / UNKNOWN_RATE as f64;
        assert!((1.0..1.1).contains(&cycles), "{cycles}");
    }

    #[test]
    fn an_interval_is_students() {
        // A textbook's: mean 12, standard deviation sqrt(10/4), five values, t = 2.776.
        let units = units(&[10, 11, 12, 13, 14]);
        let estimate = Estimator::new(&units, 0.95).ratio(user, |_| 1);
        assert!((estimate.value - 12.0).abs() < 1e-12);
        let half = estimate.half_width.unwrap();
        assert!(
            (half - 2.776_445 * (2.5_f64 / 5.0).sqrt()).abs() < 1e-4,
            "{half}"
        );
    }

    #[test]
    fn what_differs_between_phases_is_no_error() {
        // Two phases of 20 units each; each unit is one cycle off its phase's mean.
        let mut cycles = [100; 20].to_vec();
        cycles.extend([500; 20]);
        for (number, cycles) in cycles.iter_mut().enumerate() {
            *cycles += 2 * (number as u64 % 2);
        }
        let units = units(&cycles);
        let estimate = Estimator::new(&units, 0.95).ratio(user, |_| 1);
        assert!((estimate.value - 301.0).abs() < 1e-9);
        // Strata of 16 and of 24; of the latter, four lie in the first phase.
        let between: f64 = 4.0 * 20.0 / 24.0 * 400.0 * 400.0;
        let half = 2.024_394 * ((between + 40.0) / 38.0 / 40.0_f64).sqrt();
        let found = estimate.half_width.unwrap();
        assert!((found - half).abs() < 1e-3, "{found} {half}");
    }

    #[test]
    fn points_count_by_their_weights() {
        // Cycles of 1000 instructions, and of 500.
        let mut units = units(&[1000, 3000]);
        units[1][INSTRUCTIONS] = 500;
        let estimator = Estimator::weighted(&units, &[0.75, 0.25]);
        let estimate = estimator.ratio(user, |unit| unit[INSTRUCTIONS]);
        // 0.75 * 1 + 0.25 * 6 cycles an instruction.
        assert!((estimate.value - 2.25).abs() < 1e-12);
        assert_eq!(estimate.half_width, None);
        assert_eq!(estimator.total(user, 1_000_000), 2_250_000);
        // Weights need not add up to 1.
        let half = Estimator::weighted(&units, &[0.375, 0.125]);
        assert_eq!(half.total(user, 1_000_000), 2_250_000);
    }

    #[test]
    fn one_unit_says_nothing_of_its_error() {
        let units = units(&[10]);
        let estimate = Estimator::new(&units, 0.95).ratio(user, |_| 1);
        assert_eq!(estimate.half_width, None);
    }

    #[test]
    fn a_goal_that_is_missed_says_what_reaches_it() {
        let units = units(&[10, 11, 12, 13, 14]);
        let goal = |error, half_width| {
            let cycles = Estimate {
                value: 200.0,
                half_width,
            };
            GoalReport::new(error, cycles, &units, 1_000_000)
        };
        let reached = goal(0.05, Some(10.0));
        assert!(reached.reached && (reached.units, reached.distance) == (None, None));
        // An interval twice as wide: four times as many units, and a tenth more.
        let missed = goal(0.05, Some(20.0));
        assert!(!missed.reached);
        assert_eq!(missed.half_width, Some(0.1));
        assert_eq!((missed.units, missed.distance), (Some(22), Some(45_000)));
        // A hundred times: more than half of the program.
        let far = goal(0.05, Some(1000.0));
        assert_eq!((far.units, far.distance), (Some(55_000), None));
        let unknown = goal(0.05, None);
        assert!(!unknown.reached && unknown.units.is_none() && unknown.distance.is_none());
    }

    #[test]
    fn what_grows_with_the_instructions_has_no_error() {
        let units: Vec<Figures> = units(&[1, 1, 1])
            .into_iter()
            .zip([500, 1000, 2000])
            .map(|(mut unit, instructions)| {
                (unit[INSTRUCTIONS], unit[1]) = (instructions, 2 * instructions);
                unit
            })
            .collect();
        let estimator = Estimator::new(&units, 0.95);
        let estimate = estimator.ratio(user, |unit| unit[INSTRUCTIONS]);
        assert_eq!((estimate.value, estimate.half_width), (2.0, Some(0.0)));
        assert_eq!(estimator.total(user, 1_000_000), 2_000_000);
    }
}
