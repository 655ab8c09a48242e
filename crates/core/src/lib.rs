//! Core timing models: what instructions and the latencies that they meet cost in cycles.
//!
//! A model is told what happens, in program order, and keeps the time. There are two.
//!
//! - [`IssueWidth`] issues at full width and adds every latency that the first-level caches do not
//!   hide. It overstates stalls, because a real core overlaps them, and the comparison of designs
//!   that differ in translation only is what it is good for.
//! - [`Window`] executes out of order: it knows what instructions wait for, and stalls overlap as
//!   far as dependences and the core's resources let them. A [`ShadowedWindow`] says what translation
//!   costs it.

#![forbid(unsafe_code)]

mod config;
mod shadow;
mod window;

use contigua_state::Plain;
use contigua_state::State;
use schemars::JsonSchema;
use std::ops::AddAssign as _;

use contigua_units::Cycles;
use derive_more::AddAssign;
use serde::Serialize;

pub use config::{
    CoreConfig, DivideConfig, LatencyConfig, Ports, PortsConfig, PredictorConfig, SlotsConfig,
    WindowConfig,
};
pub use shadow::{ShadowMiss, ShadowedWindow};
pub use window::{Blocks, CoreCounters, Exit, WalkActivity, WalkCycles, Window};

/// Why a core cannot be built as described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A core that never issues.
    #[error("core.issue_width is {0}; a core issues 1 to 64 instructions a cycle")]
    IssueWidth(u32),
    /// A number of things that no core has.
    #[error("core.{0}")]
    Range(#[from] contigua_units::ranges::OutOfRange),
    /// Ports that no core has.
    #[error("core.{key} is {value}; it lists different ports, numbered from 0 to 15")]
    Ports {
        /// Its key in the machine file.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// More ports than the model counts.
    #[error("core.ports has more than 16 ports for execution or for memory; list them by number")]
    ManyPorts,
    /// A table whose size is not one that an index of bits can have.
    #[error("core.{key} is {value}; it is a power of two up to 2^20")]
    PowerOfTwo {
        /// Its key in the machine file.
        key: &'static str,
        /// Its value.
        value: u32,
    },
}

/// Cycles by what they were spent on. The parts add up to the core's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign, Plain, JsonSchema)]
pub struct CycleBreakdown {
    /// Issuing instructions.
    pub issue: Cycles,
    /// Waiting for the right path after a mispredicted branch. Always 0 in the additive model.
    pub branch: Cycles,
    /// Waiting for operands that do not come from memory, for execution units, and for the
    /// latencies of operations and first-level hits. Always 0 in the additive model.
    pub dependence: Cycles,
    /// Waiting for instruction fetches beyond the first level.
    pub fetch: Cycles,
    /// Waiting for loads and stores beyond the first level.
    pub data: Cycles,
    /// Waiting for translations that needed no walk: L2 TLB hits.
    pub tlb: Cycles,
    /// Waiting for page walks.
    pub walk: Cycles,
    /// The kernel's work.
    pub kernel: Cycles,
    /// Nothing to do. Always 0 in the additive model.
    pub idle: Cycles,
}

impl CycleBreakdown {
    /// All cycles.
    #[must_use]
    pub fn total(&self) -> Cycles {
        let parts = [
            self.issue,
            self.branch,
            self.dependence,
            self.fetch,
            self.data,
            self.tlb,
            self.walk,
            self.kernel,
            self.idle,
        ];
        parts.into_iter().sum()
    }

    /// Cycles of the program itself: all but the kernel's and idle ones.
    #[must_use]
    pub fn program(&self) -> Cycles {
        let parts = Self {
            kernel: Cycles::ZERO,
            idle: Cycles::ZERO,
            ..*self
        };
        parts.total()
    }
}

/// Keeps a core's time. Latencies are beyond what a hit in the first level takes.
pub trait CoreModel {
    /// Instructions of a block begin to execute.
    fn instructions(&mut self, count: u32);
    /// An instruction fetch took this long.
    fn fetch(&mut self, latency: Cycles);
    /// A load or store took this long.
    fn data(&mut self, latency: Cycles, store: bool);
    /// A translation took this long after the first-level TLB missed; `walked` when page tables
    /// were read.
    fn translation(&mut self, latency: Cycles, walked: bool);
    /// The kernel worked this long on behalf of the program.
    fn kernel(&mut self, work: Cycles);
    /// The time.
    fn cycles(&self) -> Cycles;
    /// Breakdown of the time.
    fn breakdown(&self) -> CycleBreakdown;
    /// Starts at time 0 anew.
    fn reset(&mut self);
}

/// A core of fixed issue width whose stalls add up.
#[derive(Clone, Debug, State)]
pub struct IssueWidth {
    #[state(skip)]
    width: u32,
    /// Cycles of a look-up of the second-level TLB, with which translations that are walked for begin.
    #[state(skip)]
    second_level_tlb: Cycles,
    instructions: u64,
    /// Everything but `issue`, which follows from `instructions`.
    stalls: CycleBreakdown,
}

impl IssueWidth {
    /// A core at time 0.
    ///
    /// # Errors
    /// [`Error::IssueWidth`].
    pub fn new(config: &CoreConfig) -> Result<Self, Error> {
        const WIDEST: u32 = 64;
        if !(1..=WIDEST).contains(&config.issue_width) {
            return Err(Error::IssueWidth(config.issue_width));
        }
        Ok(Self {
            width: config.issue_width,
            second_level_tlb: Cycles::ZERO,
            instructions: 0,
            stalls: CycleBreakdown::default(),
        })
    }

    /// The core, where translations that are walked for begin with a look-up of the second-level TLB of so
    /// many cycles. 0 without this call.
    #[must_use]
    pub fn with_second_level_tlb(mut self, cycles: Cycles) -> Self {
        self.second_level_tlb = cycles;
        self
    }
}

impl CoreModel for IssueWidth {
    #[inline]
    fn instructions(&mut self, count: u32) {
        self.instructions += u64::from(count);
    }

    #[inline]
    fn fetch(&mut self, latency: Cycles) {
        self.stalls.fetch.add_assign(latency);
    }

    #[inline]
    fn data(&mut self, latency: Cycles, _store: bool) {
        self.stalls.data.add_assign(latency);
    }

    #[inline]
    fn translation(&mut self, latency: Cycles, walked: bool) {
        let looked_up = if walked {
            self.second_level_tlb.min(latency)
        } else {
            latency
        };
        self.stalls.tlb.add_assign(looked_up);
        self.stalls.walk.add_assign(latency - looked_up);
    }

    #[inline]
    fn kernel(&mut self, work: Cycles) {
        self.stalls.kernel.add_assign(work);
    }

    fn cycles(&self) -> Cycles {
        self.breakdown().total()
    }

    fn breakdown(&self) -> CycleBreakdown {
        CycleBreakdown {
            issue: Cycles::new(self.instructions.div_ceil(u64::from(self.width))),
            ..self.stalls
        }
    }

    fn reset(&mut self) {
        self.instructions = 0;
        self.stalls = CycleBreakdown::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(issue_width: u32) -> CoreConfig {
        CoreConfig {
            issue_width,
            ..config::skylake()
        }
    }

    fn core(issue_width: u32) -> IssueWidth {
        IssueWidth::new(&config(issue_width)).unwrap()
    }

    #[test]
    fn a_partly_filled_issue_cycle_counts_as_one() {
        let mut core = core(4);
        core.instructions(4);
        assert_eq!(core.cycles(), Cycles::new(1));
        core.instructions(1);
        assert_eq!(core.cycles(), Cycles::new(2));
        core.instructions(3);
        assert_eq!(core.cycles(), Cycles::new(2));
    }

    #[test]
    fn a_core_that_never_issues_is_refused() {
        assert_eq!(
            IssueWidth::new(&config(0)).unwrap_err(),
            Error::IssueWidth(0)
        );
    }

    proptest! {
        #[test]
        fn cycle_components_add_up_to_the_time(
            width in 1..9u32, steps in proptest::collection::vec((0..6u8, 0..1000u64), 0..200)
        ) {
            let mut core = core(width);
            let (mut stalls, mut instructions) = (0, 0);
            for (what, amount) in steps {
                let latency = Cycles::new(amount);
                match what {
                    0 => core.instructions(amount as u32),
                    1 => core.fetch(latency),
                    2 => core.data(latency, amount % 2 == 0),
                    3 => core.translation(latency, false),
                    4 => core.translation(latency, true),
                    _ => core.kernel(latency),
                }
                if what == 0 { instructions += amount } else { stalls += amount }
            }
            let expected = stalls + instructions.div_ceil(u64::from(width));
            prop_assert_eq!(core.cycles(), Cycles::new(expected));
            prop_assert_eq!(core.breakdown().total(), core.cycles());
            core.reset();
            prop_assert_eq!(core.cycles(), Cycles::ZERO);
        }
    }
}
