//! Counts of a sampled run, scaled to the whole region.
//!
//! The distance of units doubles as a program goes on, so of its beginning more is simulated than of
//! what follows. What was counted in each stretch of one distance therefore stands for that stretch
//! alone.

use serde_json::Value;

use super::Engine;
use super::regions::{add, since};
use crate::report::scale;

/// Stretches so far.
#[derive(Default, contigua_state::State)]
pub(super) struct Stretches {
    /// Counts of those that are over, scaled.
    over: Value,
    /// Distance of units in the one under way; 0 before the first.
    distance: u64,
    /// Its first instruction.
    begin: u64,
    /// Instructions that were simulated in detail before it.
    detailed: u64,
    /// Counts before it.
    before: Value,
}

impl Engine {
    /// Begins another stretch if the distance of units has doubled. Called where a unit ends, which is at
    /// the same instruction in a program and in each recording of it.
    pub(super) fn enter_stretch(&mut self) {
        let Some(sampler) = &self.sampler else {
            return;
        };
        let Some(distance) = sampler.distance_at(self.position) else {
            return;
        };
        if sampler.stretches.distance == distance {
            return;
        }
        let over = self.stretches_counted().unwrap_or_default();
        let stretch = Stretches {
            over,
            distance,
            begin: self.position,
            detailed: self.detailed_instructions(),
            before: self.counts(),
        };
        if let Some(sampler) = &mut self.sampler {
            sampler.stretches = stretch;
        }
    }

    /// Returns the counts of all stretches; `None` before the first.
    pub(super) fn stretches_counted(&self) -> Option<Value> {
        let stretches = &self.sampler.as_ref()?.stretches;
        if stretches.distance == 0 {
            return None;
        }
        let mut counts = since(&stretches.before, &self.counts());
        let instructions = (self.position - stretches.begin) as f64;
        let simulated = counts["executed"]["instructions"].as_u64().unwrap_or(0);
        let detailed = self.detailed_instructions() - stretches.detailed;
        let mut cores = counts["cores"].take();
        scale(&mut cores, instructions / detailed.max(1) as f64);
        scale(&mut counts, instructions / simulated.max(1) as f64);
        counts["cores"] = cores;
        let mut sum = stretches.over.clone();
        if sum.is_null() {
            return Some(counts);
        }
        add("", &mut sum, &counts);
        Some(sum)
    }
}
