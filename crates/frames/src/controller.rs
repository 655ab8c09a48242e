//! The resize controller: when to move the border between the two regions, and how far.
//!
//! A pure state machine, so that it moves the border of a simulated server and of a real one
//! alike. The paper computes the amount from the pressure on both regions with tunable parameters
//! (the article, "Resizing Policies") but does not publish its algorithm; this one is our proposal.
//! Proportional to the stall time, it is bounded and settles; different gains in the two
//! directions and the band of pressure between them keep it from oscillating; expansion comes
//! first because nothing can be reclaimed around an unmovable request that fails. What the
//! unmovable region has to spare goes back ([`GiveBack`]): at once when a movable request fails, and
//! otherwise when it was idle for some time.

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
    /// Free memory below a region's low watermark moves the border.
    pub watermarks: bool,
    /// Pressure on unmovable requests, in percent of time, above which their region grows.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 100.0)))]
    pub unmovable_threshold: f64,
    /// Pressure on movable requests, in percent of time, above which the unmovable region shrinks.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 100.0)))]
    pub movable_threshold: f64,
    /// Growth for 100 % of pressure, in sizes of the unmovable region.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1000.0)))]
    pub growth_gain: f64,
    /// Shrinking for 100 % of pressure, in sizes of the unmovable region.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1000.0)))]
    pub shrink_gain: f64,
    /// The largest step, in percent of memory.
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 100.0)))]
    pub largest_step_percent: f64,
    /// Time between two steps. Growth does not wait while free unmovable memory is short.
    #[cfg_attr(feature = "schema", schemars(extend("x-minimum" = "0ns", "x-maximum" = "24h")))]
    pub cooldown: Nanoseconds,
}

/// When unmovable memory goes back that nobody is short of. Our choice: the paper says only that
/// resizing follows reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GiveBack {
    /// Time for which it was idle. 0: it stays.
    pub idle: Nanoseconds,
    /// Free memory that the unmovable region keeps beside twice its high watermark, in percent of
    /// the memory in use there.
    pub reserve_percent: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            watermarks: true,
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
    /// Unmovable memory that requests failed to get since the last decision.
    pub requested: Bytes,
    /// Movable memory that requests failed to get since the last decision.
    pub requested_movable: Bytes,
    /// Below this size the unmovable region must not shrink.
    pub least_unmovable: Bytes,
    /// The unit in which the border moves.
    pub granule: Bytes,
    /// Now.
    pub now: Nanoseconds,
}

/// Decision of the controller.
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
    #[cfg_attr(feature = "state", state(skip))]
    give_back: GiveBack,
    last: Option<Nanoseconds>,
    /// Unmovable memory that is idle, if there is any.
    idle: Option<Idle>,
}

/// Memory that the unmovable region had to spare all the time.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "state", derive(contigua_state::Plain))]
struct Idle {
    since: Nanoseconds,
    least: u64,
}

impl Controller {
    /// A controller that has not moved anything yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            give_back: GiveBack::default(),
            last: None,
            idle: None,
        }
    }

    /// One that gives idle memory back.
    #[must_use]
    pub fn giving_back(self, give_back: GiveBack) -> Self {
        Self { give_back, ..self }
    }

    /// Decides what to do now. A decision other than [`Decision::Stay`] starts the cooldown.
    pub fn decide(&mut self, inputs: &Inputs) -> Decision {
        let idle = self.idle(inputs);
        let decision = self.wanted(inputs, idle);
        if decision != Decision::Stay {
            self.last = Some(inputs.now);
        }
        decision
    }

    /// Memory that the unmovable region can give back without coming near its reserve.
    fn spare(&self, inputs: &Inputs) -> u64 {
        let Inputs { unmovable, .. } = inputs;
        let used = unmovable.size.get().saturating_sub(unmovable.free.get());
        let share = (used as f64 * self.give_back.reserve_percent / 100.0) as u64;
        beyond(inputs, 2 * unmovable.high.get() + share)
    }

    /// Memory that has been idle for long enough to go back.
    fn idle(&mut self, inputs: &Inputs) -> u64 {
        let spare = self.spare(inputs);
        if spare == 0 || inputs.requested.get() > 0 || self.give_back.idle.get() == 0 {
            self.idle = None;
            return 0;
        }
        let idle = self.idle.get_or_insert(Idle {
            since: inputs.now,
            least: spare,
        });
        idle.least = idle.least.min(spare);
        if inputs.now.get() - idle.since.get() < self.give_back.idle.get() {
            return 0;
        }
        let least = idle.least;
        self.idle = None;
        least
    }

    fn wanted(&self, inputs: &Inputs, idle: u64) -> Decision {
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
        let is_low = |region: &RegionState| config.watermarks && region.free < region.low;
        let starving = inputs.requested_movable.get();
        let missing = |region: &RegionState| region.high.get().saturating_sub(region.free.get());
        // A reserve is not filled from a side that has none.
        let fills_reserve = is_low(unmovable) && starving == 0 && !is_low(movable);
        // Nor does the region grow for a request that failed earlier while a movable one fails and it has room by now.
        let has_room = unmovable.free.get() >= unmovable.high.get() + inputs.requested.get();
        let is_asked = inputs.requested.get() > 0 && !(starving > 0 && has_room);
        let is_pressed = unmovable.pressure > config.unmovable_threshold && !is_cooling;
        if is_asked || fills_reserve || is_pressed && starving == 0 {
            let grown = share(config.growth_gain, unmovable.pressure);
            let amount = grown + missing(unmovable).max(inputs.requested.get());
            let amount = amount.next_multiple_of(granule.get());
            return Decision::Expand(Bytes::new(amount.clamp(granule.get(), largest)));
        }
        // Nobody is killed for memory that lies idle on the other side, nor for a reserve there.
        if starving > 0 {
            let granule = granule.get();
            let amount = starving.max(missing(movable)).next_multiple_of(granule);
            let amount = amount
                .min(beyond(inputs, unmovable.high.get()))
                .min(largest);
            if amount > 0 {
                return Decision::Shrink(Bytes::new(amount));
            }
        }
        if idle > 0 && unmovable.pressure <= config.unmovable_threshold / 2.0 {
            return Decision::Shrink(Bytes::new(idle.min(largest)));
        }
        let wants_less = is_low(movable) || movable.pressure > config.movable_threshold;
        if is_cooling || !wants_less || unmovable.pressure > config.unmovable_threshold / 2.0 {
            return Decision::Stay;
        }
        let amount = (share(config.shrink_gain, movable.pressure) + missing(movable))
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

/// Free memory of the unmovable region beyond a reserve, down to its smallest size; whole granules.
fn beyond(inputs: &Inputs, reserve: u64) -> u64 {
    let Inputs { unmovable, .. } = inputs;
    let room = unmovable
        .size
        .get()
        .saturating_sub(inputs.least_unmovable.get());
    let spare = unmovable.free.get().saturating_sub(reserve).min(room);
    spare / inputs.granule.get() * inputs.granule.get()
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
            requested_movable: Bytes::new(0),
            least_unmovable: Bytes::new(64 * MIB),
            granule: Bytes::new(2 * MIB),
            now: Nanoseconds::new(100_000_000_000),
        }
    }

    fn decide(inputs: &Inputs) -> Decision {
        Controller::new(Config::default()).decide(inputs)
    }

    #[test]
    fn border_stays_while_no_region_is_short() {
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

    fn generous() -> Controller {
        Controller::new(Config::default()).giving_back(GiveBack {
            idle: Nanoseconds::new(60_000_000_000),
            reserve_percent: 10.0,
        })
    }

    #[test]
    fn idle_unmovable_memory_goes_back_within_minutes_and_the_reserve_stays() {
        let mut controller = generous();
        let mut inputs = calm();
        // 824 MiB are in use: a tenth of them and twice the high watermark are kept.
        inputs.unmovable.free = Bytes::new(200 * MIB);
        let start = inputs.now.get();
        let mut given = 0;
        for second in 0..600 {
            inputs.now = Nanoseconds::new(start + second * 1_000_000_000);
            match controller.decide(&inputs) {
                Decision::Stay => {}
                Decision::Shrink(bytes) => {
                    given += bytes.get();
                    inputs.unmovable.size = Bytes::new(inputs.unmovable.size.get() - bytes.get());
                    inputs.unmovable.free = Bytes::new(inputs.unmovable.free.get() - bytes.get());
                    assert!(second >= 60, "{second}");
                }
                Decision::Expand(bytes) => panic!("{bytes}"),
            }
        }
        assert_eq!(given / MIB, 104, "200 - 12 - 82.4, in whole blocks");
    }

    #[test]
    fn memory_needed_now_and_then_is_not_idle() {
        let mut controller = generous();
        let mut inputs = calm();
        let start = inputs.now.get();
        for second in 0..600 {
            inputs.now = Nanoseconds::new(start + second * 1_000_000_000);
            let free = if second % 30 == 29 { 90 } else { 300 };
            inputs.unmovable.free = Bytes::new(free * MIB);
            assert_eq!(controller.decide(&inputs), Decision::Stay, "{second}");
        }
    }

    #[test]
    fn a_movable_request_that_failed_gets_what_is_idle_at_once() {
        let mut controller = generous();
        let mut inputs = calm();
        inputs.unmovable.free = Bytes::new(300 * MIB);
        inputs.requested_movable = Bytes::new(4096);
        assert_eq!(
            controller.decide(&inputs),
            Decision::Shrink(Bytes::new(2 * MIB))
        );
        // Not even the cooldown is waited for.
        inputs.requested_movable = Bytes::new(3 * MIB);
        assert_eq!(
            controller.decide(&inputs),
            Decision::Shrink(Bytes::new(4 * MIB))
        );
        // The reserve goes, too, but not what the unmovable region's own requests need.
        inputs.unmovable.free = Bytes::new(100 * MIB);
        assert!(matches!(controller.decide(&inputs), Decision::Shrink(_)));
        inputs.unmovable.free = Bytes::new(7 * MIB);
        assert_eq!(controller.decide(&inputs), Decision::Stay);
    }

    #[test]
    fn movable_memory_comes_up_to_its_high_watermark_at_once() {
        let mut inputs = calm();
        inputs.unmovable.free = Bytes::new(300 * MIB);
        inputs.movable = RegionState {
            free: Bytes::new(15 * MIB),
            low: Bytes::new(20 * MIB),
            high: Bytes::new(30 * MIB),
            ..inputs.movable
        };
        inputs.requested_movable = Bytes::new(4096);
        assert_eq!(decide(&inputs), Decision::Shrink(Bytes::new(16 * MIB)));
    }

    #[test]
    fn a_reserve_is_not_filled_from_a_side_that_is_short_but_a_request_is_met() {
        let mut inputs = calm();
        inputs.unmovable.free = Bytes::new(3 * MIB);
        assert_eq!(decide(&inputs), Decision::Expand(Bytes::new(4 * MIB)));
        inputs.movable.free = Bytes::new(3 * MIB);
        assert_eq!(decide(&inputs), Decision::Stay);
        inputs.requested = Bytes::new(4096);
        assert_eq!(decide(&inputs), Decision::Expand(Bytes::new(4 * MIB)));
    }

    #[test]
    fn of_two_requests_that_failed_the_one_whose_side_has_room_waits() {
        let mut inputs = calm();
        inputs.requested = Bytes::new(4096);
        inputs.requested_movable = Bytes::new(4096);
        assert_eq!(decide(&inputs), Decision::Shrink(Bytes::new(2 * MIB)));
        inputs.unmovable.free = Bytes::new(3 * MIB);
        assert_eq!(decide(&inputs), Decision::Expand(Bytes::new(4 * MIB)));
    }
}
