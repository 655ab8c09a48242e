//! State of a server at one time.

use std::collections::BTreeMap;

use contigua_contiguity::Contiguity;
use contigua_frames::pressure::Averages;
use contigua_frames::{Counters, FrameClass};
use contigua_units::{Bytes, Nanoseconds, PAGE_BYTES};
use serde::Serialize;

#[cfg(doc)]
use super::AgeConfig;
use super::{GiganticPages, Server};

/// A server at one time.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Sample {
    /// Time since it booted.
    pub seconds: f64,
    /// Contiguity of its memory.
    pub contiguity: Contiguity,
    /// Frames in use, by class.
    pub classes: BTreeMap<&'static str, u64>,
    /// Size of the unmovable region, where there is one.
    #[serde(
        rename = "unmovable_region_bytes",
        serialize_with = "crate::report::optional_number"
    )]
    #[schemars(with = "Option<u64>")]
    pub unmovable_region: Option<Bytes>,
    /// Pressure on memory.
    pub pressure: RegionPressure,
    /// Counts since it booted.
    pub events: Events,
    /// Each node, of a server that has several: above, their contiguity, classes, regions and counts are
    /// summed, and pressure is the highest of any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeSample>,
}

/// A node at one time.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct NodeSample {
    /// Contiguity of its memory.
    pub contiguity: Contiguity,
    /// Size of its unmovable region, where there is one.
    #[serde(
        rename = "unmovable_region_bytes",
        serialize_with = "crate::report::optional_number"
    )]
    #[schemars(with = "Option<u64>")]
    pub unmovable_region: Option<Bytes>,
    /// Pressure on its memory.
    pub pressure: RegionPressure,
}

/// Pressure on memory, by what tasks waited for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct RegionPressure {
    /// Movable memory.
    pub movable: Averages,
    /// Unmovable memory.
    pub unmovable: Averages,
    /// Either.
    pub all: Averages,
}

/// Counts of memory's events, and of those of its users.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Events {
    /// In memory. Requests that failed at first and were met after waiting count as failures here.
    #[serde(flatten)]
    pub memory: Counters,
    /// To those who use it.
    pub server: ServerCounters,
}

/// Counts of tenants and sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct ServerCounters {
    /// Requests that were met only after waiting for the kernel's threads.
    pub waits: u64,
    /// Requests of tenants that were not met at all.
    pub failures_movable: u64,
    /// Requests of the kernel that were not met at all, although they could wait.
    pub failures_unmovable: u64,
    /// Requests that could not wait and were not met.
    pub failures_atomic: u64,
    /// Blocks that could not be pinned.
    pub failures_pin: u64,
    /// Tenants killed because memory had run out.
    pub kills: u64,
    /// Huge pages that tenants got.
    pub huge_pages: u64,
    /// Huge pages that they did not get.
    pub huge_page_fallbacks: u64,
    /// Pages that were not read ahead because memory was short.
    pub reads_given_up: u64,
    /// Requests that were met on another node than the one that ran.
    pub remote: u64,
}

/// The result of a server's life.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct AgeReport<'a> {
    /// Version of the program that wrote the report.
    pub version: &'static str,
    /// Configuration that determined it: an [`AgeConfig`], or a snapshot's origin.
    pub config: serde_json::Value,
    /// State at the end.
    #[serde(rename = "final")]
    pub last: &'a Sample,
    /// 1 GB pages that were allocated afterwards; `null` if none were asked for.
    pub gigantic: Option<GiganticPages>,
}

impl Sample {
    /// A memory at a time after its server booted.
    #[must_use]
    pub fn of_memory(memory: &contigua_paging::Memory, now: Nanoseconds) -> Self {
        let in_use = FrameClass::ALL.into_iter().skip(1);
        Self {
            seconds: now.get() as f64 / 1e9,
            contiguity: memory.contiguity(),
            classes: in_use
                .map(|class| (class.name(), memory.frames_of(class)))
                .collect(),
            unmovable_region: memory
                .border()
                .map(|border| Bytes::new(u64::from(border.get()) * PAGE_BYTES)),
            pressure: RegionPressure {
                movable: memory.pressure().movable(),
                unmovable: memory.pressure().unmovable(),
                all: memory.pressure().all(),
            },
            events: Events {
                memory: memory.counters(),
                server: ServerCounters::default(),
            },
            nodes: Vec::new(),
        }
    }

    /// Takes another node of the server in.
    fn add(&mut self, other: Self) {
        self.contiguity = self.contiguity.plus(&other.contiguity);
        for (name, frames) in other.classes {
            *self.classes.entry(name).or_default() += frames;
        }
        self.unmovable_region = self
            .unmovable_region
            .zip(other.unmovable_region)
            .map(|(one, other)| Bytes::new(one.get() + other.get()));
        self.pressure = RegionPressure {
            movable: self.pressure.movable.higher(&other.pressure.movable),
            unmovable: self.pressure.unmovable.higher(&other.pressure.unmovable),
            all: self.pressure.all.higher(&other.pressure.all),
        };
        self.events.memory = self.events.memory.plus(&other.events.memory);
    }
}

impl Server {
    /// The server now.
    ///
    /// # Panics
    /// Never: a server has a node.
    #[must_use]
    pub fn sample(&self) -> Sample {
        let memories = self.nodes.memories();
        let samples = memories.map(|memory| Sample::of_memory(memory, self.clock.now));
        let samples: Vec<Sample> = samples.collect();
        let nodes = if samples.len() > 1 {
            samples.iter().map(NodeSample::of).collect()
        } else {
            Vec::new()
        };
        let sum = samples.into_iter().reduce(|mut sum, sample| {
            sum.add(sample);
            sum
        });
        let mut sample = sum.expect("a server has a node");
        sample.nodes = nodes;
        sample.events.server = self.clock.counters;
        sample.events.server.remote = self.nodes.remote();
        sample
    }
}

impl NodeSample {
    fn of(sample: &Sample) -> Self {
        Self {
            contiguity: sample.contiguity,
            unmovable_region: sample.unmovable_region,
            pressure: sample.pressure,
        }
    }
}
