//! A server's life before a program runs on it: hours of allocations, by its tenants and by its
//! kernel, on the frames of its memory. `docs/design/server-ageing.md` explains the model.
//!
//! Time advances in ticks of 10 ms. Each actor (tenants, page cache, each source of the kernel's
//! demand) has its own random numbers, so that the same seed makes the same history under every
//! placement, as far as memory allows.

mod gigantic;
mod nodes;
mod picture;
mod profile;
mod random;
mod sample;
mod snapshot;
mod sources;
mod tenants;
mod wheel;

pub use gigantic::{GiganticPage, GiganticPages};
pub use picture::{Cell, Picture};
pub use profile::{
    Bursts, Class, PageCache, Pins, Profile, Source, Tenants, Weighted, parse_profile,
};
pub use sample::{AgeReport, NodeSample, RegionPressure, Sample, ServerCounters};
pub use snapshot::{Snapshot, SnapshotError};

use contigua_frames::{
    Boxed, Config, Evict, FrameClass, Frames, Group, Layout, Placement, Request,
};
use contigua_paging::Memory;
use contigua_units::{Bytes, Nanoseconds, Order};
use serde::Serialize;

use crate::Error;
use crate::config::DesignConfig;
use crate::mover;
use nodes::{Nodes, Place};
use sources::Kernel;
use tenants::Population;
use wheel::TICK;

/// CPUs whose lists the server's allocations go through in turn.
const CPUS: usize = 8;

/// Most nodes: those of an eight-socket server.
const MOST_NODES: u32 = 8;
/// Memory of a node is a multiple of this.
const BLOCK_BYTES: u64 = 2 << 20;

/// Share of memory that the kernel's code and data take for good. A Linux kernel of a server
/// distribution takes some 100 MB of a machine of 32 GB, with what it allocates at boot.
const BOOT_SHARE: f64 = 0.003;

/// Everything that decides a server's life.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct AgeConfig {
    /// Name of the design.
    pub design_name: String,
    /// The design, of which the placement and the memory settings count here.
    pub design: DesignConfig,
    /// Name of the profile.
    pub profile_name: String,
    /// Workload of the server.
    pub profile: Profile,
    /// Its memory.
    pub memory: Bytes,
    /// Seed of everything random.
    pub seed: u64,
    /// Scales the tenants' demand for memory.
    pub load: f64,
    /// Scales the kernel's demand for unmovable memory.
    pub kernel: f64,
    /// Scales the files that the tenants use.
    pub files: f64,
    /// Demand follows a day, rather than being steady.
    pub daily: bool,
    /// Nodes that share the memory evenly.
    #[schemars(range(min = 1, max = 8))]
    pub nodes: u32,
}

/// A server that ages.
#[derive(Clone)]
pub struct Server {
    config: AgeConfig,
    nodes: Nodes,
    tenants: Population,
    kernel: Kernel,
    clock: Clock,
}

/// The server's time, and what went wrong in it.
#[derive(Clone)]
struct Clock {
    now: Nanoseconds,
    counters: ServerCounters,
}

/// The groups of a server's memory: those that reclaim looks at first.
struct Groups;

impl Groups {
    /// Files of each tenant.
    fn files(tenant: usize) -> Group {
        Group(tenant as u16)
    }

    /// Slots of the kernel's caches.
    const CACHES: Group = Group(profile::MOST_TENANTS as u16);
    /// Slots of the kernel's other memory.
    const KERNEL: Group = Group(Self::CACHES.0 + wheel::GROUPS as u16);
    /// Slots of pinned memory.
    const PINNED: Group = Group(Self::KERNEL.0 + wheel::GROUPS as u16);
    /// Memory of the kernel that is there for good.
    const BOOT: Group = Group(Self::PINNED.0 + wheel::GROUPS as u16);
    /// Groups for the memory of a tenant: its page tables, then its arenas.
    const TENANTS: u16 = Self::BOOT.0 + 1;
    /// Groups for whoever uses the memory afterwards.
    const LATER: u16 = Self::TENANTS + profile::MOST_TENANTS as u16 * tenants::GROUPS;
    /// All.
    const ALL: usize = Self::LATER as usize + LATER_GROUPS;
}

/// Groups for the program that runs on an aged server.
pub(crate) const LATER_GROUPS: usize = 8;

/// The first of them.
pub(crate) fn later_group(number: u16) -> Group {
    Group(Groups::LATER + number)
}

/// Memory of each node.
fn memory_of_each(config: &AgeConfig) -> Result<Bytes, Error> {
    let AgeConfig { nodes, memory, .. } = *config;
    if nodes == 1 {
        return Ok(memory);
    }
    let is_even = (2..=MOST_NODES).contains(&nodes)
        && memory.get().is_multiple_of(u64::from(nodes) * BLOCK_BYTES);
    if !is_even {
        return Err(Error::Nodes { nodes, memory });
    }
    let each = Bytes::new(memory.get() / u64::from(nodes));
    crate::limits::check_memory(each)?;
    Ok(each)
}

/// Fresh memory with room for a server's groups.
pub(crate) fn fresh_memory(
    memory: Bytes,
    config: &Config,
    placement: &Placement,
) -> Result<Memory, Error> {
    let layout = Layout::new(memory.frames() as usize, Groups::ALL, CPUS);
    Frames::new(Boxed::new(layout), config.clone(), placement.clone())
        .map(Memory::from)
        .map_err(Error::Frames)
}

impl Server {
    /// A server that has just booted.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Frames`], [`Error::Profile`].
    pub fn new(config: AgeConfig) -> Result<Self, Error> {
        crate::limits::check_memory(config.memory)?;
        let each = memory_of_each(&config)?;
        let problem = |problem: String| Error::Profile {
            profile: config.profile_name.clone(),
            problem,
        };
        config.profile.check().map_err(problem)?;
        let factors = [
            ("load", config.load),
            ("kernel", config.kernel),
            ("files", config.files),
        ];
        for (name, value) in factors {
            if !(0.0..=10.0).contains(&value) {
                return Err(problem(format!(
                    "{name} is {value}; it is a factor, from 0 to 10"
                )));
            }
        }
        let design = &config.design;
        let memories: Result<Vec<Memory>, Error> = (0..config.nodes)
            .map(|_| fresh_memory(each, &design.memory, &design.placement))
            .collect();
        let mut nodes = Nodes::new(memories?);
        for tenant in 0..profile::MOST_TENANTS as usize {
            nodes.set_evict(Groups::files(tenant), Evict::File);
        }
        for slot in 0..wheel::GROUPS as u16 {
            nodes.set_evict(Group(Groups::CACHES.0 + slot), Evict::Shrink);
        }
        let mut server = Self {
            tenants: Population::new(&config),
            kernel: Kernel::new(&config),
            clock: Clock {
                now: Nanoseconds::new(0),
                counters: ServerCounters::default(),
            },
            nodes,
            config,
        };
        server.boot();
        Ok(server)
    }

    /// The kernel's own code and data, early and for good.
    fn boot(&mut self) {
        let frames = (self.nodes.total() as f64 * BOOT_SHARE) as u64;
        let order = Order::new(4);
        for _ in 0..frames / u64::from(order.frames()) {
            let request = Request {
                long_lived: true,
                group: Some(Groups::BOOT),
                ..Request::new(order, FrameClass::KernelOther)
            };
            self.clock.obtain(&request, &mut self.nodes);
        }
    }

    /// Configuration of the server.
    #[must_use]
    pub fn config(&self) -> &AgeConfig {
        &self.config
    }

    /// The memory of each node.
    pub fn memories(&self) -> impl Iterator<Item = &Memory> {
        self.nodes.memories()
    }

    /// The memory of its first node.
    ///
    /// # Panics
    /// Never: a server has a node.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        self.memories().next().expect("a server has a node")
    }

    fn counters(&self) -> contigua_frames::Counters {
        let counters = self.memories().map(|memory| memory.counters());
        counters.fold(contigua_frames::Counters::default(), |sum, of| {
            sum.plus(&of)
        })
    }

    /// Time since it booted.
    #[must_use]
    pub fn now(&self) -> Nanoseconds {
        self.clock.now
    }

    /// Gives up everything but the memory of the first node, for a program to run on, and the time.
    #[must_use]
    pub fn into_memory(self) -> (Memory, Nanoseconds) {
        (self.nodes.into_first(), self.clock.now)
    }

    /// The memory of the first node, for what a design takes at boot.
    pub(crate) fn memory_mut(&mut self) -> &mut Memory {
        self.nodes.first_mut()
    }

    /// Lets time pass until `end`, in whole ticks.
    pub fn run_until(&mut self, end: Nanoseconds) {
        while self.clock.now.get() + TICK.get() <= end.get() {
            self.tick();
        }
    }

    fn tick(&mut self) {
        let clock = &mut self.clock;
        clock.now = Nanoseconds::new(clock.now.get() + TICK.get());
        let ticks = clock.now.get() / TICK.get();
        // Interrupts and tenants run where they may.
        self.nodes.set_cpu((ticks % CPUS as u64) as usize);
        self.kernel.tick(clock, &mut self.nodes);
        self.tenants.tick(clock, &mut self.nodes);
        self.nodes.background(clock.now);
    }

    /// Lets all tenants leave, and their files stay: what a program finds that is started on the
    /// server next.
    pub fn dismiss_tenants(&mut self) {
        self.tenants.dismiss(self.clock.now, &mut self.nodes);
        self.settle();
    }

    /// Lets files take all memory that is free.
    pub fn fill_with_files(&mut self) {
        self.tenants
            .fill_with_files(&mut self.clock, &mut self.nodes);
        self.settle();
    }

    /// Gives every free frame that a CPU keeps at hand back, so that a picture or a snapshot shows
    /// it as free, and ends what hardware moves.
    pub fn settle(&mut self) {
        self.nodes.settle();
    }

    /// Checks the memory.
    ///
    /// # Errors
    /// A sentence that says where.
    pub fn validate(&self) -> Result<(), String> {
        self.nodes.validate()
    }
}

impl Clock {
    /// Times that a request waits for the kernel's threads before it gives up.
    const MAX_OOM_RETRIES: usize = 3;

    /// Takes a block, waiting for the kernel's threads if need be.
    fn obtain(&mut self, request: &Request, memory: &mut Nodes) -> Option<Place> {
        let mut place = memory.allocate_or_reclaim(request);
        // The threads run beside everybody: they do not wait for the end of the tick.
        if memory.has_background_work() {
            memory.background(self.now);
        }
        if place.is_none() && !request.atomic {
            for _ in 0..Self::MAX_OOM_RETRIES {
                memory.background(self.now);
                place = memory.allocate_or_reclaim(request);
                if place.is_some() {
                    self.counters.waits += 1;
                    return place;
                }
            }
            if memory.is_clearing() {
                place = self.wait_for_border(request, memory);
            }
            place = place.or_else(|| {
                let last = Request {
                    last_resort: true,
                    ..*request
                };
                memory.allocate_or_reclaim(&last)
            });
        }
        if place.is_none() {
            let kind = request.class.kind();
            if kind == contigua_contiguity::FrameKind::Movable {
                self.counters.failures_movable += 1;
            } else if request.atomic {
                self.counters.failures_atomic += 1;
            } else {
                self.counters.failures_unmovable += 1;
            }
        }
        place
    }

    /// Takes a block as soon as hardware has emptied one for it, if it does within a tick. The
    /// time goes into the pressure.
    fn wait_for_border(&mut self, request: &Request, memory: &mut Nodes) -> Option<Place> {
        let mut waited = 0;
        while waited < TICK.get() && memory.is_clearing() {
            waited += mover::LIFETIME.get();
            let now = Nanoseconds::new(self.now.get() + waited);
            memory.move_until(now);
            if let Some(place) = memory.allocate(request) {
                memory.stall(request, Nanoseconds::new(waited));
                self.counters.waits += 1;
                return Some(place);
            }
        }
        memory.stall(request, Nanoseconds::new(waited));
        None
    }
}
