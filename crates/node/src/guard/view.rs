//! The controller's view of memory, from the kernel's statistics.
//!
//! *Available* memory of a region is what it could serve without swapping or failing: free frames
//! beyond the kernel's protection of lower zones, frames on per-CPU lists, and page cache;
//! anonymous memory as far as there is swap. Free memory alone is no signal, because a healthy
//! server fills both regions with page cache.
//!
//! *Pressure* is system-wide in stock Linux, while the controller of the Contiguitas article wants
//! one for each region. The kernel counts direct reclaim by the zone that an allocation was meant
//! for (`allocstall_normal`, `allocstall_movable`), so PSI's share is divided in these proportions;
//! time lost without any direct reclaim is mostly for refaults, which are movable memory's.

use std::collections::VecDeque;
use std::time::Duration;

use contigua_frames::controller::RegionState;
use contigua_live::proc::Zone;
use contigua_units::{Bytes, PAGE_BYTES};

use super::config::Config;
use super::machine::{Block, Place, Survey};

/// A region of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Memory that the page allocator was given.
    pub size: Bytes,
    /// Memory available without swapping.
    pub available: Bytes,
    /// The kernel's low watermark.
    pub low: Bytes,
    /// The kernel's high watermark.
    pub high: Bytes,
}

/// A node: its blocks and its two regions.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its blocks, by number.
    pub blocks: Vec<Block>,
    /// `DMA32` and `Normal`.
    pub kernel: Region,
    /// `ZONE_MOVABLE`.
    pub movable: Region,
    /// Free memory to keep above the low watermark of each region.
    pub reserve: Bytes,
    /// The kernel zones are never smaller.
    pub kernel_min: Bytes,
    /// The movable zone is never smaller.
    pub movable_min: Bytes,
}

impl Node {
    /// A region as the controller sees it.
    #[must_use]
    pub const fn state(&self, region: &Region, pressure: f64) -> RegionState {
        RegionState {
            size: region.size,
            free: region.available,
            low: Bytes::new(region.low.get() + self.reserve.get()),
            high: Bytes::new(region.high.get() + 2 * self.reserve.get()),
            pressure,
        }
    }

    /// The movable region as the controller sees it. It asks for what is missing to the goal, in
    /// whole blocks, rounded down; so the goal is a block beyond the trigger at least, or a region
    /// that is short with a small reserve would never get one.
    #[must_use]
    pub fn movable_state(&self, pressure: f64, block: Bytes) -> RegionState {
        let mut state = self.state(&self.movable, pressure);
        state.high = state.high.max(Bytes::new(state.low.get() + block.get()));
        state
    }

    /// Returns true if some blocks are movable and others could be.
    #[must_use]
    pub fn has_border(&self) -> bool {
        self.movable.size.get() > 0 && self.kernel.size.get() > 0
    }
}

/// Returns true for a zone that serves only devices with short addresses, or that the allocator
/// does not use.
fn is_left_alone(zone: &Zone) -> bool {
    matches!(zone.name.as_str(), "DMA" | "Device")
}

/// The nodes that have memory.
#[must_use]
pub fn nodes(survey: &Survey, config: &Config) -> Vec<Node> {
    let mut numbers: Vec<u32> = survey.zones.iter().map(|zone| zone.node).collect();
    numbers.dedup();
    let nodes = numbers.into_iter().map(|number| {
        let zones: Vec<&Zone> = survey
            .zones
            .iter()
            .filter(|zone| zone.node == number)
            .collect();
        let blocks = survey.blocks.iter().filter(|block| block.node == number);
        let kernel = region(&zones, survey.swap, |zone| !zone.is_movable());
        let movable = region(&zones, survey.swap, Zone::is_movable);
        let block = survey.block.get();
        let memory = kernel.size.get() + movable.size.get();
        Node {
            number,
            blocks: blocks.copied().collect(),
            reserve: config.reserve.unwrap_or(Bytes::new(block / 2)),
            kernel_min: config.kernel_min.unwrap_or(Bytes::new(memory / 10)),
            movable_min: config.movable_min.unwrap_or(Bytes::new(block)),
            kernel,
            movable,
        }
    });
    nodes
        .filter(|node| node.kernel.size.get() + node.movable.size.get() > 0)
        .collect()
}

fn region(zones: &[&Zone], swap: Bytes, is_in: impl Fn(&Zone) -> bool) -> Region {
    // Allocations for the kernel's highest zone may not touch what protects the lower ones.
    let normal = zones.iter().position(|zone| zone.name == "Normal");
    let mut region = Region::default();
    let mut anonymous = 0;
    let add = |sum: &mut Bytes, frames: u64| {
        *sum = Bytes::new(sum.get().saturating_add(frames.saturating_mul(PAGE_BYTES)));
    };
    for zone in zones.iter().filter(|zone| is_in(zone)) {
        if is_left_alone(zone) || zone.managed == 0 {
            continue;
        }
        let counter = |name| zone.counter(name).unwrap_or(0);
        let protected = normal.and_then(|normal| zone.protection.get(normal));
        let free = zone.free.saturating_sub(protected.copied().unwrap_or(0));
        let files = counter("nr_zone_inactive_file") + counter("nr_zone_active_file");
        anonymous += counter("nr_zone_inactive_anon") + counter("nr_zone_active_anon");
        add(&mut region.size, zone.managed);
        add(&mut region.available, free + zone.per_cpu_free + files);
        add(&mut region.low, zone.watermarks.low + zone.watermarks.boost);
        add(
            &mut region.high,
            zone.watermarks.high + zone.watermarks.boost,
        );
    }
    add(&mut region.available, anonymous.min(swap.frames()));
    region
}

/// The window over which stalls are attributed: that of PSI's shortest average.
const WINDOW: Duration = Duration::from_secs(10);

/// Divides pressure between the regions.
#[derive(Clone, Debug, Default)]
pub struct Attribution {
    samples: VecDeque<(Duration, u64, u64)>,
}

impl Attribution {
    /// Takes a survey, and returns the pressure on the kernel zones and on the movable one, in
    /// percent of time.
    pub fn divide(&mut self, survey: &Survey) -> (f64, f64) {
        let sample = (survey.at, survey.kernel_stalls, survey.movable_stalls);
        self.samples.push_back(sample);
        while self.samples.len() > 2 && survey.at.saturating_sub(self.samples[1].0) >= WINDOW {
            self.samples.pop_front();
        }
        let (_, kernel, movable) = self.samples[0];
        let kernel = survey.kernel_stalls.saturating_sub(kernel);
        let movable = survey.movable_stalls.saturating_sub(movable);
        let pressure = survey.pressure.unwrap_or(0.0);
        if kernel + movable == 0 {
            return (0.0, pressure);
        }
        let share = kernel as f64 / (kernel + movable) as f64;
        (pressure * share, pressure * (1.0 - share))
    }
}

/// The blocks of a node that are where they should not be, if as many were movable as are and all
/// of them lay at the top: movable ones below the border, and kernel ones above it.
#[must_use]
pub fn islands(blocks: &[Block]) -> Vec<u64> {
    let takes_part = |place| matches!(place, Place::Kernel | Place::Movable);
    let taking: Vec<&Block> = blocks
        .iter()
        .filter(|block| takes_part(block.place))
        .collect();
    let kernel = taking
        .iter()
        .filter(|block| block.place == Place::Kernel)
        .count();
    let wrong = taking.iter().enumerate().filter(|(index, block)| {
        let belongs = if *index < kernel {
            Place::Kernel
        } else {
            Place::Movable
        };
        block.place != belongs
    });
    wrong.map(|(_, block)| block.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use contigua_live::proc::Watermarks;

    fn zone(name: &str, managed: u64, free: u64) -> Zone {
        Zone {
            name: name.to_owned(),
            managed,
            present: managed,
            free,
            watermarks: Watermarks {
                min: 10,
                low: 20,
                high: 30,
                boost: 0,
            },
            ..Zone::default()
        }
    }

    fn survey() -> Survey {
        let mut low = zone("DMA32", 1000, 400);
        low.protection = vec![0, 0, 150, 300, 300];
        let mut normal = zone("Normal", 2000, 100);
        normal.protection = vec![0, 0, 0, 60, 60];
        normal.per_cpu_free = 7;
        normal.counters = vec![
            ("nr_zone_inactive_file".to_owned(), 40),
            ("nr_zone_active_file".to_owned(), 3),
            ("nr_zone_active_anon".to_owned(), 1000),
        ];
        Survey {
            block: Bytes::new(128 << 20),
            zones: vec![
                zone("DMA", 50, 50),
                low,
                normal,
                zone("Movable", 5000, 800),
                zone("Device", 0, 0),
            ],
            ..Survey::default()
        }
    }

    #[test]
    fn available_is_what_kernel_allocations_could_have() {
        let mut survey = survey();
        let nodes = |survey: &Survey| super::nodes(survey, &Config::default());
        let node = &nodes(&survey)[0];
        assert_eq!(node.kernel.size.frames(), 3000, "without DMA");
        // 400 - 150 protected, 100 free, 7 on lists, 43 page cache.
        assert_eq!(node.kernel.available.frames(), 250 + 100 + 7 + 43);
        assert_eq!(node.kernel.high.frames(), 60);
        assert_eq!(node.movable.available.frames(), 800);
        survey.swap = Bytes::new(500 * PAGE_BYTES);
        assert_eq!(nodes(&survey)[0].kernel.available.frames(), 400 + 500);
    }

    #[test]
    fn a_movable_zone_that_is_short_asks_for_a_block_however_small_the_reserve() {
        let config = Config {
            reserve: Some(Bytes::new(0)),
            ..Config::default()
        };
        let survey = survey();
        let node = &super::nodes(&survey, &config)[0];
        let state = node.movable_state(0.0, survey.block);
        assert_eq!(state.low.frames(), 20);
        assert!(state.high.get() - state.low.get() >= survey.block.get());
        assert_eq!(node.state(&node.kernel, 0.0).high.frames(), 60);
    }

    #[test]
    fn pressure_goes_to_those_who_had_to_reclaim() {
        let mut attribution = Attribution::default();
        let mut survey = survey();
        survey.pressure = Some(8.0);
        (survey.kernel_stalls, survey.movable_stalls) = (1000, 1000);
        assert_eq!(
            attribution.divide(&survey),
            (0.0, 8.0),
            "stalls before are old"
        );
        survey.at = Duration::from_secs(5);
        (survey.kernel_stalls, survey.movable_stalls) = (1003, 1001);
        assert_eq!(attribution.divide(&survey), (6.0, 2.0));
        // Ten seconds after the last change nothing of it is left.
        for second in 6..16 {
            survey.at = Duration::from_secs(second);
            attribution.divide(&survey);
        }
        assert_eq!(attribution.divide(&survey), (0.0, 8.0));
    }

    #[test]
    fn islands_are_blocks_on_the_wrong_side() {
        use Place::{Fixed, Kernel as K, Movable as M, Offline};
        let wrong = |places: &[Place]| {
            let blocks: Vec<Block> = (0..)
                .zip(places)
                .map(|(number, &place)| Block {
                    number,
                    node: 0,
                    place,
                })
                .collect();
            islands(&blocks)
        };
        assert!(wrong(&[Fixed, K, K, M, M]).is_empty());
        assert_eq!(wrong(&[K, M, K, M, M]), [1, 2]);
        assert_eq!(wrong(&[Fixed, K, Offline, M, M, K]), [3, 5]);
        assert!(wrong(&[M, M]).is_empty());
    }
}
