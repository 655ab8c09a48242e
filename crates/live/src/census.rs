//! Totals of a scan: frames by class and zone, contiguity within bounds, and polluters.

use std::collections::HashMap;
use std::io;

use contigua_contiguity::{Contiguity, Polluted, Polluters, Scan};
use contigua_units::Order;

use crate::classify::Class;
use crate::ranges::{Ranges, WorstRange};
use crate::scan::{Run, Sink};

/// Number of classes.
pub const CLASSES: usize = Class::ALL.len();

/// Frames by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames([u64; CLASSES]);

impl Frames {
    /// No frames.
    pub const NONE: Self = Self([0; CLASSES]);

    /// Frames of a class.
    #[must_use]
    pub const fn of(&self, class: Class) -> u64 {
        self.0[class as usize]
    }

    /// Frames of several classes.
    #[must_use]
    pub fn sum(&self, classes: &[Class]) -> u64 {
        classes.iter().map(|&class| self.of(class)).sum()
    }

    /// Classes with their frames.
    pub fn iter(&self) -> impl Iterator<Item = (Class, u64)> {
        Class::ALL.into_iter().zip(self.0)
    }

    /// Frames that are memory, in use by the kernel or not.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let all: u64 = self.0.iter().sum();
        all - self.of(Class::Hole)
    }

    /// Adds frames.
    pub const fn add(&mut self, class: Class, frames: u64) {
        self.0[class as usize] += frames;
    }
}

impl serde::Serialize for Frames {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(class, frames)| (class.key(), frames)))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Frames {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Frames".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let keys = Class::ALL.map(Class::key);
        let count = serde_json::json!({ "type": "integer", "minimum": 0 });
        let properties: serde_json::Map<_, _> = keys
            .iter()
            .map(|&key| (key.to_owned(), count.clone()))
            .collect();
        schemars::json_schema!({
            "description": "Frames by class.",
            "type": "object",
            "properties": properties,
            "required": keys,
        })
    }
}

/// A measure with what is unexplained taken for the kernel's, and for free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bounds<T> {
    /// Unexplained frames are the kernel's and do not move: free and potential contiguity are at
    /// least this.
    pub certain: T,
    /// Unexplained frames are free: free and potential contiguity are at most this.
    pub possible: T,
}

/// Pollution by a cgroup's kernel memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CgroupShare {
    /// Its inode number.
    pub inode: u64,
    /// Unmovable frames that are charged to it.
    pub frames: u64,
    /// Blocks of 2 MB with such a frame.
    pub blocks_2m: u64,
}

/// Pollution by a class's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassShare {
    /// The class.
    pub class: Class,
    /// Its frames.
    pub frames: u64,
    /// Blocks of each size with one of them.
    pub polluted: [(Order, Polluted); 4],
}

/// Everything that a scan adds up to.
#[derive(Clone, Debug)]
pub struct Summary {
    /// All frames.
    pub frames: Frames,
    /// The frames of each zone.
    pub zones: Vec<Frames>,
    /// Contiguity.
    pub contiguity: Bounds<Contiguity>,
    /// Pollution by class, the one with the most polluted 2 MB blocks first.
    pub classes: Vec<ClassShare>,
    /// Pollution by cgroup, in the order of `classes`.
    pub cgroups: Vec<CgroupShare>,
    /// 1 GB ranges that the fewest pages keep from being free, worst first.
    pub worst: Vec<WorstRange>,
    /// 1 GB ranges that something pollutes.
    pub polluted_ranges: u64,
}

/// Adds up a scan.
pub struct Census {
    position: u64,
    frames: Frames,
    zones: Vec<Frames>,
    certain: Scan,
    possible: Scan,
    polluters: Polluters<CLASSES>,
    cgroups: HashMap<u64, Counted>,
    ranges: Ranges,
}

#[derive(Default)]
struct Counted {
    frames: u64,
    blocks: u64,
    /// The block after the last that was counted.
    next_block: u64,
}

impl Census {
    /// A census of a machine with so many zones, which keeps so many of the worst ranges.
    #[must_use]
    pub fn new(zones: usize, worst: usize) -> Self {
        Self {
            position: 0,
            frames: Frames::default(),
            zones: vec![Frames::default(); zones],
            certain: Scan::new(),
            possible: Scan::new(),
            polluters: Polluters::new(),
            cgroups: HashMap::new(),
            ranges: Ranges::new(worst),
        }
    }

    fn charge(&mut self, run: Run) {
        let counted = self.cgroups.entry(run.cgroup).or_default();
        counted.frames += run.frames;
        let first = self.position >> Order::HUGE_2M.get();
        let last = (self.position + run.frames - 1) >> Order::HUGE_2M.get();
        counted.blocks += (last + 1).saturating_sub(first.max(counted.next_block));
        counted.next_block = last + 1;
    }

    /// The sums.
    #[must_use]
    pub fn finish(self) -> Summary {
        let polluters = self.polluters.finish();
        let mut classes: Vec<ClassShare> = Class::ALL
            .into_iter()
            .filter(|&class| class.pollutes())
            .map(|class| ClassShare {
                class,
                frames: self.frames.of(class),
                polluted: polluters.map(|(order, polluted)| (order, polluted[class as usize])),
            })
            .filter(|share| share.frames > 0)
            .collect();
        classes.sort_by_key(|share| std::cmp::Reverse(share.polluted[0].1.blocks));
        let mut cgroups: Vec<CgroupShare> = self
            .cgroups
            .into_iter()
            .map(|(inode, counted)| CgroupShare {
                inode,
                frames: counted.frames,
                blocks_2m: counted.blocks,
            })
            .collect();
        cgroups.sort_by_key(|share| (std::cmp::Reverse(share.blocks_2m), share.inode));
        let (worst, polluted_ranges) = self.ranges.finish();
        Summary {
            frames: self.frames,
            zones: self.zones,
            contiguity: Bounds {
                certain: self.certain.finish(),
                possible: self.possible.finish(),
            },
            classes,
            cgroups,
            worst,
            polluted_ranges,
        }
    }
}

impl Sink for Census {
    fn take(&mut self, run: Run) -> io::Result<()> {
        self.frames.add(run.class, run.frames);
        let zone = run
            .zone
            .and_then(|zone| self.zones.get_mut(usize::from(zone)));
        if let Some(zone) = zone {
            zone.add(run.class, run.frames);
        }
        self.certain.push(run.class.kind(), run.frames);
        self.possible.push(run.class.best_kind(), run.frames);
        let owner = run.class.pollutes().then_some(run.class as usize);
        self.polluters.push(owner, run.frames);
        if run.cgroup != 0 && run.frames > 0 {
            self.charge(run);
        }
        self.ranges.take(run)?;
        self.position += run.frames;
        Ok(())
    }
}
