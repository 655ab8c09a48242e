//! Sampled runs: units of detail, and what they say of the whole region.
//!
//! What a unit counts in proportion to its instructions (cycles of the program, misses, walks) is an
//! estimate for the region, with an interval; the operating system goes on between units as well, so
//! what it counts, its cycles among that, is exact.

use std::collections::BTreeMap;

use contigua_core::{CycleBreakdown, ShadowedWindow};
use contigua_program::plan::{Mode, Plan, Sampling};
use contigua_units::Cycles;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{Engine, Phase};
use crate::report::{Estimate, SampleReport, TimeReport};

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
/// Cycles that a core with a perfect TLB would have taken, the kernel's among them.
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

/// Units so far.
pub(crate) struct Sampler {
    plan: Plan,
    sampling: Sampling,
    confidence: f64,
    /// Where the region began, once it has.
    region: Option<u64>,
    /// Where each unit began in the region, without the offset, and its figures.
    units: Vec<(u64, Figures)>,
    /// Where the unit under way began, and the figures then.
    open: Option<(u64, Figures)>,
    /// Instructions of all units, and their cycles without the kernel's.
    seen: [u64; 2],
    rate: u64,
}

/// Cycles of the program: without the kernel's.
fn user(figures: &Figures) -> u64 {
    PARTS.map(|part| figures[part]).sum::<u64>() - figures[KERNEL]
}

impl Sampler {
    pub(super) fn new(skip: u64, sampling: Sampling, confidence: f64) -> Self {
        Self {
            plan: Plan {
                skip,
                sampling: Some(sampling),
            },
            sampling,
            confidence,
            region: None,
            units: Vec::new(),
            open: None,
            seen: [0, 0],
            rate: UNKNOWN_RATE,
        }
    }

    /// Cycles of the program for an instruction, as far as units say, in units of
    /// 2^-[`RATE_SHIFT`].
    pub(super) fn rate(&self) -> u64 {
        self.rate
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

    /// Whether the region of interest of a sampled run has begun.
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
            Mode::Warm if self.left >= LEAD + instructions => {
                self.left -= LEAD;
                Phase::Warm
            }
            Mode::Warm => Phase::Warmup,
            Mode::Detail => Phase::Measure,
        };
        if matches!(self.phase, Phase::Warmup | Phase::Measure)
            && before != Phase::Warmup
            && let Some(window) = self.windows.get_mut(self.current)
        {
            window.start_shadow();
        }
        if self.phase == Phase::Measure {
            let begin = self.position.saturating_sub(sampler.plan.skip);
            let begin = begin.saturating_sub(sampler.sampling.offset);
            let figures = self.figures();
            self.open_unit(begin, figures);
        } else if before != Phase::Skip && self.phase != Phase::Warmup {
            self.leave_detail();
        }
    }

    fn open_unit(&mut self, begin: u64, figures: Figures) {
        if let Some(sampler) = &mut self.sampler {
            // Where the unit's warming began says which unit it is.
            let distance = sampler.sampling.distance_at(begin);
            sampler.open = Some((begin / distance * distance, figures));
        }
    }

    fn close_unit(&mut self) {
        if self.phase != Phase::Measure {
            return;
        }
        let now = self.figures();
        if let Some(sampler) = &mut self.sampler
            && let Some((begin, before)) = sampler.open.take()
        {
            let mut unit = now;
            for (value, before) in unit.iter_mut().zip(before) {
                *value -= before;
            }
            sampler.seen[0] += unit[INSTRUCTIONS];
            sampler.seen[1] += user(&unit);
            let [instructions, cycles] = sampler.seen.map(u128::from);
            sampler.rate = ((cycles << RATE_SHIFT) / instructions.max(1)) as u64;
            sampler.units.push((begin, unit));
        }
    }

    /// The program goes forward from here on.
    pub(super) fn end_unit(&mut self) {
        self.close_unit();
        (self.phase, self.left) = (Phase::Skip, 0);
        self.leave_detail();
    }

    /// The cores have nothing under way when they go forward.
    fn leave_detail(&mut self) {
        if let Some(window) = self.windows.get_mut(self.current) {
            window.drain(&self.decoded);
            window.stop_shadow();
        }
        self.lanes[self.current].fetch_line = u64::MAX;
        self.passed.forget();
    }

    /// Everything that units count, since the region began.
    fn figures(&self) -> Figures {
        let time = self.breakdown();
        let walks = self.walk_cycles(&time);
        let perfect = match self.windows.as_slice() {
            [] => Cycles::new(time.total().get() - time.tlb.get() - time.walk.get()),
            windows => windows.iter().map(ShadowedWindow::perfect).sum(),
        };
        let tlb = crate::run::sum(self.mmus.units(), contigua_translation::Mmu::counters);
        let translator = crate::run::sum(
            self.mmus.units(),
            contigua_translation::Mmu::translator_counters,
        );
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

    /// What the units say of the region, and its time.
    pub(crate) fn sample(&self) -> Option<(SampleReport, TimeReport)> {
        let sampler = self.sampler.as_ref()?;
        let region = self.region_instructions();
        let now = self.figures();
        let distance = sampler.sampling.distance_at(region);
        // A program that is shorter than a unit was not watched from its beginning.
        let watched = !sampler.units.is_empty();
        let even = |(begin, unit): &(u64, Figures)| (begin % distance == 0).then_some(*unit);
        let mut units: Vec<Figures> = sampler.units.iter().filter_map(even).collect();
        if units.is_empty() {
            // The program is shorter than a unit: all that was simulated is one.
            units.push(now);
        }
        let estimator = Estimator::new(&units, sampler.confidence);
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
            let perfect = |unit: &Figures| unit[PERFECT].saturating_sub(unit[KERNEL]);
            let kept = estimator.ratio(perfect, user);
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
        let by_unit = NAMES.iter().enumerate().map(|(index, &name)| {
            let column = units.iter().map(|unit| unit[index]);
            (name, column.collect())
        });
        let total = breakdown.total();
        let report = SampleReport {
            sampling: sampler.sampling,
            confidence: sampler.confidence,
            quantile: estimator.quantile,
            units: units.len() as u64,
            instructions: units.iter().map(|unit| unit[INSTRUCTIONS]).sum(),
            simulated_instructions: self.executed.instructions,
            detailed_instructions: if self.windows.is_empty() {
                self.executed.instructions
            } else {
                self.instructions_by_core().sum()
            },
            estimates,
            by_unit: by_unit.collect(),
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

/// Ratios over units, with confidence intervals.
struct Estimator<'a> {
    units: &'a [Figures],
    /// Standard errors in half an interval; `None` for a single unit, of which nothing is known.
    quantile: Option<f64>,
}

impl<'a> Estimator<'a> {
    fn new(units: &'a [Figures], confidence: f64) -> Self {
        let freedom = units.len() as f64 - 1.0;
        let quantile = StudentsT::new(0.0, 1.0, freedom)
            .ok()
            .map(|distribution| distribution.inverse_cdf(0.5 + confidence / 2.0));
        Self { units, quantile }
    }

    /// The sum of a figure over that of another one (Cochran, *Sampling Techniques*, chapter 6).
    fn ratio(&self, figure: impl Fn(&Figures) -> u64, of: impl Fn(&Figures) -> u64) -> Estimate {
        let count = self.units.len() as f64;
        let (sum, base) = self.units.iter().fold((0.0, 0.0), |(sum, base), unit| {
            (sum + figure(unit) as f64, base + of(unit) as f64)
        });
        let value = if base > 0.0 { sum / base } else { 0.0 };
        let squares: f64 = self
            .units
            .iter()
            .map(|unit| (figure(unit) as f64 - value * of(unit) as f64).powi(2))
            .sum();
        let half_width = self.quantile.map(|quantile| {
            let error = (squares / (count - 1.0) / count).sqrt() / (base / count).max(1.0);
            quantile * error
        });
        Estimate { value, half_width }
    }

    /// A figure of the region.
    fn total(&self, figure: impl Fn(&Figures) -> u64, region: u64) -> u64 {
        let ratio = self.ratio(figure, |unit| unit[INSTRUCTIONS]);
        (ratio.value * region as f64).round() as u64
    }
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
    fn one_unit_says_nothing_of_its_error() {
        let units = units(&[10]);
        let estimate = Estimator::new(&units, 0.95).ratio(user, |_| 1);
        assert_eq!(estimate.half_width, None);
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
