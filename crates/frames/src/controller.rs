//! The resize controller: when to move the border between the two regions, and how far.
//!
//! A pure state machine, so that it moves the border of a simulated server and of a real one
//! alike. The paper computes the amount from the pressure on both regions with tunable parameters
//! (the article, "Resizing Policies") but does not publish its algorithm; this one is our proposal.
//! Proportional to the stall time, it is bounded and settles; different gains in the two
//! directions and the band of pressure between them keep it from oscillating; expansion comes
//! first because nothing can be reclaimed around an unmovable request that fails.

use contigua_units::{Bytes, Nanoseconds};

/// The tunable parameters.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "resize")
)]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Config {
    /// Pressure on unmovable requests, in percent of time, above which their region grows.
    pub unmovable_threshold: f64,
    /// Pressure on movable requests, in percent of time, above which the unmovable region shrinks.
    pub movable_threshold: f64,
    /// Growth for 100 % of pressure, in sizes of the unmovable region.
    pub growth_gain: f64,
    /// Shrinking for 100 % of pressure, in sizes of the unmovable region.
    pub shrink_gain: f64,
    /// The largest step, in percent of memory.
    pub largest_step_percent: f64,
    /// Time between two steps. Growth does not wait while free unmovable memory is short.
    pub cooldown: Nanoseconds,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            unmovable_threshold: 1.0,
            movable_threshold: 1.0,
            growth_gain: 0.5,
            shrink_gain: 0.25,
            largest_step_percent: 2.0,
            // The period of PSI's averages.
            cooldown: Nanoseconds::new(2_000_000_000),
        }
    }
}

/// One region as the controller sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionState {
    /// Its size.
    pub size: Bytes,
    /// Its free memory.
    pub free: Bytes,
    /// Below this much free memory reclaim starts.
    pub low: Bytes,
    /// Up to this much free memory reclaim goes on.
    pub high: Bytes,
    /// Share of the last 10 s in which requests for it stalled, in percent.
    pub pressure: f64,
}

/// Both regions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// The unmovable region.
    pub unmovable: RegionState,
    /// The movable region.
    pub movable: RegionState,
    /// What requests for unmovable memory failed to get since the last decision.
    pub requested: Bytes,
    /// Below this size the unmovable region must not shrink.
    pub least_unmovable: Bytes,
    /// The unit in which the border moves.
    pub granule: Bytes,
    /// Now.
    pub now: Nanoseconds,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Leave the border where it is.
    Stay,
    /// Give this much of the movable region to the unmovable one; whole granules.
    Expand(Bytes),
    /// Give this much of the unmovable region to the movable one; whole granules.
    Shrink(Bytes),
}

/// The controller: its parameters, and when it last moved the border.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "state", derive(contigua_state::State))]
pub struct Controller {
    #[cfg_attr(feature = "state", state(skip))]
    config: Config,
    last: Option<Nanoseconds>,
}

impl Controller {
    /// A controller that has not moved anything yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, last: None }
    }

    /// What to do now. A decision other than [`Decision::Stay`] starts the cooldown.
    pub fn decide(&mut self, inputs: &Inputs) -> Decision {
        let decision = self.wanted(inputs);
        if decision != Decision::Stay {
            self.last = Some(inputs.now);
        }
        decision
    }

    fn wanted(&self, inputs: &Inputs) -> Decision {
        let Inputs {
            unmovable,
            movable,
            granule,
            ..
        } = inputs;
        let config = &self.config;
        let is_cooling = self
            .last
            .is_some_and(|last| inputs.now.get() - last.get() < config.cooldown.get());
        let memory = unmovable.size.get() + movable.size.get();
        let largest = (memory as f64 * config.largest_step_percent / 100.0) as u64;
        let largest = (largest / granule.get()).max(1) * granule.get();
        let share = |gain: f64, pressure: f64| {
            (unmovable.size.get() as f64 * gain * pressure / 100.0) as u64
        };
        let is_short = unmovable.free < unmovable.low || inputs.requested.get() > 0;
        if is_short || unmovable.pressure > config.unmovable_threshold && !is_cooling {
            let missing = unmovable.high.get().saturating_sub(unmovable.free.get());
            let grown = share(config.growth_gain, unmovable.pressure);
            let amount = grown + missing.max(inputs.requested.get());
            let amount = amount.next_multiple_of(granule.get());
            return Decision::Expand(Bytes::new(amount.clamp(granule.get(), largest)));
        }
        let wants_less = movable.free < movable.low || movable.pressure > config.movable_threshold;
        if is_cooling || !wants_less || unmovable.pressure > config.unmovable_threshold / 2.0 {
            return Decision::Stay;
        }
        let missing = movable.high.get().saturating_sub(movable.free.get());
        let amount = (share(config.shrink_gain, movable.pressure) + missing)
            .min(
                unmovable
                    .free
                    .get()
                    .saturating_sub(2 * unmovable.high.get()),
            )
            .min(
                unmovable
                    .size
                    .get()
                    .saturating_sub(inputs.least_unmovable.get()),
            )
            .min(largest);
        let amount = amount / granule.get() * granule.get();
        if amount == 0 {
            Decision::Stay
        } else {
            Decision::Shrink(Bytes::new(amount))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn calm() -> Inputs {
        let region = |size, free| RegionState {
            size: Bytes::new(size * MIB),
            free: Bytes::new(free * MIB),
            low: Bytes::new(4 * MIB),
            high: Bytes::new(6 * MIB),
            pressure: 0.0,
        };
        Inputs {
            unmovable: region(1024, 100),
            movable: region(7168, 1000),
            requested: Bytes::new(0),
            least_unmovable: Bytes::new(64 * MIB),
            granule: Bytes::new(2 * MIB),
            now: Nanoseconds::new(100_000_000_000),
        }
    }

    fn decide(inputs: &Inputs) -> Decision {
        Controller::new(Config::default()).decide(inputs)
    }

    #[test]
    fn nothing_moves_while_nobody_is_short() {
        assert_eq!(decide(&calm()), Decision::Stay);
    }

    #[test]
    fn the_low_watermark_is_the_trigger_and_the_high_one_the_goal() {
        let mut inputs = calm();
        inputs.unmovable.free = inputs.unmovable.low;
        assert_eq!(decide(&inputs), Decision::Stay);
        inputs.unmovable.free = Bytes::new(4 * MIB - 1);
        // 2 MiB and a byte are missing.
        assert_eq!(decide(&inputs), Decision::Expand(Bytes::new(4 * MIB)));
        let mut inputs = calm();
        inputs.movable.free = inputs.movable.low;
        assert_eq!(decide(&inputs), Decision::Stay);
        inputs.movable.free = Bytes::new(4 * MIB - 1);
        assert_eq!(decide(&inputs), Decision::Shrink(Bytes::new(2 * MIB)));
    }

    #[test]
    fn a_request_that_failed_is_met_even_if_memory_is_free_in_smaller_pieces() {
        let mut inputs = calm();
        inputs.requested = Bytes::new(32 << 10);
        assert_eq!(decide(&inputs), Decision::Expand(Bytes::new(2 * MIB)));
    }

    #[test]
    fn steps_are_proportional_to_pressure_and_bounded() {
        let mut inputs = calm();
        inputs.unmovable.pressure = 1.0;
        assert_eq!(decide(&inputs), Decision::Stay);
        inputs.unmovable.pressure = 4.0;
        // 1024 MiB * 0.5 * 4 %, in whole blocks.
        assert_eq!(decide(&inputs), Decision::Expand(Bytes::new(22 * MIB)));
        inputs.unmovable.pressure = 100.0;
        // 2 % of 8 GiB.
        assert_eq!(decide(&inputs), Decision::Expand(Bytes::new(162 * MIB)));
        let mut inputs = calm();
        inputs.movable.pressure = 8.0;
        assert_eq!(decide(&inputs), Decision::Shrink(Bytes::new(20 * MIB)));
        inputs.movable.pressure = 100.0;
        // What the unmovable region has to spare.
        assert_eq!(decide(&inputs), Decision::Shrink(Bytes::new(88 * MIB)));
        inputs.unmovable.size = Bytes::new(64 * MIB);
        assert_eq!(decide(&inputs), Decision::Stay, "it is at its smallest");
    }

    #[test]
    fn the_unmovable_region_does_not_shrink_while_it_is_under_pressure() {
        let mut inputs = calm();
        inputs.movable.pressure = 50.0;
        inputs.unmovable.pressure = 0.6;
        assert_eq!(decide(&inputs), Decision::Stay);
        inputs.unmovable.pressure = 0.5;
        assert!(matches!(decide(&inputs), Decision::Shrink(_)));
    }

    #[test]
    fn after_a_step_only_a_shortage_of_unmovable_memory_moves_the_border() {
        let mut controller = Controller::new(Config::default());
        let mut inputs = calm();
        inputs.unmovable.pressure = 50.0;
        assert!(matches!(controller.decide(&inputs), Decision::Expand(_)));
        inputs.now = Nanoseconds::new(inputs.now.get() + 1_999_999_999);
        assert_eq!(controller.decide(&inputs), Decision::Stay);
        let mut short = inputs;
        short.unmovable.free = Bytes::new(0);
        assert!(matches!(
            controller.clone().decide(&short),
            Decision::Expand(_)
        ));
        inputs.now = Nanoseconds::new(inputs.now.get() + 1);
        assert!(matches!(controller.decide(&inputs), Decision::Expand(_)));
    }
}
