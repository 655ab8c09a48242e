//! Tenants: programs that arrive, grow, give memory back and take it again, use files, and leave.

use contigua_frames::{FrameClass, Group, Request};
use contigua_units::{Nanoseconds, Order};

use super::nodes::Nodes;
use super::random::Random;
use super::wheel::TICK;
use super::{AgeConfig, Clock, Groups};

/// Groups of a tenant's anonymous memory, each of which is given back in the order in which it
/// was taken or against it. Several of them mix what is freed.
const ARENAS: u16 = 16;
/// Groups of a tenant: one for its page tables, and the arenas.
pub(super) const GROUPS: u16 = 1 + ARENAS;

/// 4 KB pages that a page-table node maps.
const NODE_PAGES: u64 = 512;

/// A day.
const DAY: f64 = 86_400e9;

/// All tenants of a server.
#[derive(Clone)]
pub(super) struct Population {
    tenants: Vec<Tenant>,
    files: Files,
    config: super::Tenants,
    /// Frames of a tenant of even size.
    even: f64,
    daily: bool,
}

#[derive(Clone)]
struct Tenant {
    number: usize,
    /// When it is here and how much it wants: the same under every design.
    life: Random,
    /// Which memory it takes and gives back. How often it is asked depends on the design.
    random: Random,
    state: State,
    /// Frames of single pages, for page tables.
    small: u64,
    frames: u64,
    /// Fractions of frames to be taken and given back.
    growth_due: f64,
    churn_due: f64,
}

#[derive(Clone, Copy)]
enum State {
    /// Nobody is here until then.
    Away(Nanoseconds),
    /// Somebody is here until then, who wants this many frames.
    Here(Nanoseconds, f64),
}

/// The files of all tenants.
#[derive(Clone)]
struct Files {
    config: super::PageCache,
    random: Random,
    /// Frames of all files that are used.
    most: f64,
    /// Frames read anew in a tick.
    rate: f64,
    due: f64,
    next_deletion: Nanoseconds,
}

impl Population {
    pub(super) fn new(config: &AgeConfig) -> Self {
        let tenants = &config.profile.tenants;
        let memory = config.memory.frames() as f64;
        let even = memory * tenants.share * config.load / f64::from(tenants.count);
        let tenant = |number: u32| {
            let mut life = Random::new(config.seed, "tenant", u64::from(number));
            // The first ones arrive in the first minutes.
            let arrival = life.exponential(tenants.growth);
            Tenant {
                number: number as usize,
                life,
                random: Random::new(config.seed, "memory of tenant", u64::from(number)),
                state: State::Away(arrival),
                small: 0,
                frames: 0,
                growth_due: 0.0,
                churn_due: 0.0,
            }
        };
        let files = &config.profile.page_cache;
        let mut random = Random::new(config.seed, "files", 0);
        Self {
            tenants: (0..tenants.count).map(tenant).collect(),
            files: Files {
                most: memory * files.share * config.files,
                rate: memory * files.turnover * TICK.get() as f64 / 60e9,
                due: 0.0,
                next_deletion: random.exponential(files.deletion_interval),
                config: files.clone(),
                random,
            },
            config: tenants.clone(),
            even,
            daily: config.daily,
        }
    }

    pub(super) fn tick(&mut self, clock: &mut Clock, memory: &mut Nodes) {
        let demand = if self.daily {
            let phase = clock.now.get() as f64 / DAY * std::f64::consts::TAU;
            1.0 + self.config.swing * phase.sin()
        } else {
            1.0
        };
        let mut starving = false;
        for tenant in &mut self.tenants {
            starving |= !tenant.tick(&self.config, self.even, demand, clock, memory);
        }
        if starving {
            self.kill_one(clock, memory);
        }
        self.files.tick(self.config.count, clock, memory);
    }

    /// All tenants leave. Their files are shared, and stay.
    pub(super) fn dismiss(&mut self, now: Nanoseconds, memory: &mut Nodes) {
        for tenant in &mut self.tenants {
            tenant.give_up(memory);
            tenant.state = State::Away(now);
        }
    }

    /// Files take what is free, until reclaim has gone around a part of them once.
    pub(super) fn fill_with_files(&mut self, clock: &mut Clock, memory: &mut Nodes) {
        self.files.most = memory.total() as f64;
        let rounds = memory.free_frames() + memory.total() / 8;
        self.files.due += rounds as f64;
        self.files.read(self.config.count, clock, memory);
        self.files.due = 0.0;
    }

    /// The out-of-memory killer: the largest tenant goes.
    fn kill_one(&mut self, clock: &mut Clock, memory: &mut Nodes) {
        if let Some(largest) = self.tenants.iter_mut().max_by_key(|tenant| tenant.frames) {
            clock.counters.kills += 1;
            largest.leave(&self.config, clock.now, memory);
        }
    }
}

impl Tenant {
    fn tables(&self) -> Group {
        Group(Groups::TENANTS + self.number as u16 * GROUPS)
    }

    fn arena(&self, number: u32) -> Group {
        Group(self.tables().0 + 1 + number as u16)
    }

    /// Says whether there was memory for everything.
    fn tick(
        &mut self,
        config: &super::Tenants,
        even: f64,
        demand: f64,
        clock: &mut Clock,
        memory: &mut Nodes,
    ) -> bool {
        memory.run_on(self.number);
        match self.state {
            State::Away(until) if clock.now >= until => {
                let lifetime = self.life.exponential(config.lifetime);
                let end = Nanoseconds::new(clock.now.get() + lifetime.get());
                let size = 1.0 + config.spread * (2.0 * self.life.share() - 1.0);
                self.state = State::Here(end, even * size);
                true
            }
            State::Away(_) => true,
            State::Here(end, _) if clock.now >= end => {
                self.leave(config, clock.now, memory);
                true
            }
            State::Here(_, size) => self.live(config, size * demand, clock, memory),
        }
    }

    fn live(
        &mut self,
        config: &super::Tenants,
        size: f64,
        clock: &mut Clock,
        memory: &mut Nodes,
    ) -> bool {
        // Memory is given back in pieces, as allocators do.
        const PIECE: f64 = 256.0;
        let tick = TICK.get() as f64;
        self.churn_due += self.frames as f64 * config.churn * tick / 60e9;
        if self.churn_due >= PIECE {
            self.shrink(self.churn_due as u64, memory);
            self.churn_due = 0.0;
        }
        let missing = size - self.frames as f64;
        if missing < 0.0 {
            self.shrink((-missing) as u64, memory);
            self.growth_due = 0.0;
            return true;
        }
        let rate = size * tick / config.growth.get() as f64;
        self.growth_due += missing.min(rate);
        while self.growth_due >= 1.0 {
            let Some(grown) = self.grow(config, clock, memory) else {
                self.growth_due = 0.0;
                return false;
            };
            self.growth_due -= grown as f64;
        }
        true
    }

    /// Takes a huge page or a piece of single ones, into an arena; the frames, or `None` when
    /// there is no memory.
    fn grow(
        &mut self,
        config: &super::Tenants,
        clock: &mut Clock,
        memory: &mut Nodes,
    ) -> Option<u64> {
        /// Single pages that a program touches one after the other.
        const RUN: u32 = 64;
        let arena = self.random.below(u32::from(ARENAS));
        let group = self.arena(arena);
        let wants_huge = self.random.share()
            < config.huge * f64::from(RUN)
                / (config.huge * f64::from(RUN) + (1.0 - config.huge) * NODE_PAGES as f64)
                    .max(1e-9);
        if wants_huge {
            let request = Request {
                group: Some(group),
                ..Request::new(Order::HUGE_2M, FrameClass::Anonymous)
            };
            // As with Linux's default for faults: no waiting for a huge page.
            if memory.allocate(&request).is_some() {
                clock.counters.huge_pages += 1;
                self.frames += NODE_PAGES;
                return Some(NODE_PAGES);
            }
            clock.counters.huge_page_fallbacks += 1;
            memory.want_compaction(Order::HUGE_2M);
        }
        let run = if wants_huge { NODE_PAGES as u32 } else { RUN };
        for _ in 0..run {
            let request = Request {
                group: Some(group),
                ..Request::new(Order::BASE, FrameClass::Anonymous)
            };
            clock.obtain(&request, memory)?;
            self.frames += 1;
            self.small += 1;
        }
        while memory.frames_in(self.tables()) * NODE_PAGES < self.small {
            let request = Request {
                group: Some(self.tables()),
                ..Request::new(Order::BASE, FrameClass::PageTable)
            };
            clock.obtain(&request, memory)?;
        }
        Some(u64::from(run))
    }

    /// Gives about `frames` back.
    fn shrink(&mut self, frames: u64, memory: &mut Nodes) {
        let mut left = frames.min(self.frames);
        while left > 0 && self.frames > 0 {
            let arena = self.random.below(u32::from(ARENAS));
            let group = self.arena(arena);
            let newest = self.random.below(2) == 0;
            // A piece of one arena at a time.
            let piece = left.min(64);
            let mut freed = 0;
            while freed < piece {
                let done = if newest {
                    memory.free_newest(group)
                } else {
                    memory.free_oldest(group)
                };
                let Some(done) = done else { break };
                freed += u64::from(done);
                self.frames -= u64::from(done);
                if done == 1 {
                    // A part of a huge page that was split to be moved was never counted.
                    self.small = self.small.saturating_sub(1);
                }
            }
            left = left.saturating_sub(freed.max(1));
        }
        self.free_tables(memory);
    }

    fn free_tables(&mut self, memory: &mut Nodes) {
        while memory.frames_in(self.tables()) > self.small.div_ceil(NODE_PAGES) {
            memory.free_oldest(self.tables());
        }
    }

    fn leave(&mut self, config: &super::Tenants, now: Nanoseconds, memory: &mut Nodes) {
        self.give_up(memory);
        while memory.free_oldest(Groups::files(self.number)).is_some() {}
        memory.forget_evicted(Groups::files(self.number));
        let back = self.life.exponential(config.gap);
        self.state = State::Away(Nanoseconds::new(now.get() + back.get()));
    }

    /// Gives all anonymous memory back.
    fn give_up(&mut self, memory: &mut Nodes) {
        for arena in 0..u32::from(ARENAS) {
            let group = self.arena(arena);
            while memory.free_oldest(group).is_some() {}
        }
        while memory.free_oldest(self.tables()).is_some() {}
        self.small = 0;
        self.frames = 0;
        self.growth_due = 0.0;
        self.churn_due = 0.0;
    }
}

impl Files {
    fn tick(&mut self, tenants: u32, clock: &mut Clock, memory: &mut Nodes) {
        self.due += self.rate;
        self.read(tenants, clock, memory);
        if clock.now >= self.next_deletion {
            self.delete(tenants, clock.now, memory);
        }
    }

    /// Reads files anew, as many frames as are due.
    fn read(&mut self, tenants: u32, clock: &mut Clock, memory: &mut Nodes) {
        // A file is read in pieces, as readahead does.
        const PIECE: u32 = 32;
        while self.due >= f64::from(PIECE) {
            self.due -= f64::from(PIECE);
            let tenant = self.random.below(tenants) as usize;
            memory.run_on(tenant);
            let group = Groups::files(tenant);
            let is_reused = self.random.share() < self.config.reused;
            if is_reused {
                // It may be what was read, used and evicted before.
                memory.refault(group, PIECE);
            }
            for _ in 0..PIECE {
                if memory.frames_of(FrameClass::PageCache) as f64 >= self.most {
                    // The files in use have changed: the oldest are closed.
                    memory.free_oldest(group);
                }
                let request = Request {
                    group: Some(group),
                    ..Request::new(Order::BASE, FrameClass::PageCache)
                };
                // Reading ahead gives up when memory is short.
                let Some(place) = memory.allocate(&request) else {
                    clock.counters.reads_given_up += 1;
                    if memory.has_background_work() {
                        memory.background(clock.now);
                    }
                    break;
                };
                if is_reused {
                    memory.touch(place);
                }
            }
        }
    }

    /// Somebody deletes files.
    fn delete(&mut self, tenants: u32, now: Nanoseconds, memory: &mut Nodes) {
        let pause = self.random.exponential(self.config.deletion_interval);
        self.next_deletion = Nanoseconds::new(now.get() + pause.get());
        let group = Groups::files(self.random.below(tenants) as usize);
        let cached = memory.frames_of(FrameClass::PageCache) as f64;
        let mut left = (cached * self.config.deleted) as u64;
        memory.forget_evicted(group);
        let newest = self.random.below(2) == 0;
        while left > 0 {
            let done = if newest {
                memory.free_newest(group)
            } else {
                memory.free_oldest(group)
            };
            if done.is_none() {
                break;
            }
            left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AgeConfig, Server, parse_profile};
    use super::*;
    use crate::config::parse_design;
    use contigua_units::{Bytes, Frame};

    fn server(design: &str, profile: &str) -> Server {
        Server::new(AgeConfig {
            design_name: "design".to_owned(),
            design: parse_design(design, "design").unwrap(),
            profile_name: "profile".to_owned(),
            profile: parse_profile(profile, "profile").unwrap(),
            memory: Bytes::new(1 << 30),
            seed: 1,
            load: 1.0,
            kernel: 1.0,
            files: 1.0,
            daily: false,
            nodes: 1,
        })
        .unwrap()
    }

    /// Otherwise a difference between two designs could be one between their loads.
    #[test]
    fn tenants_come_grow_and_go_alike_under_every_design() {
        let profile = include_str!("../../../../python/contigua/data/profiles/mixed.toml");
        let designs = [
            include_str!("../../../../python/contigua/data/designs/linux-4k.toml"),
            include_str!("../../../../python/contigua/data/designs/contiguitas-hw.toml"),
        ];
        let mut servers = designs.map(|design| server(design, profile));
        for minutes in (10..=120).step_by(10) {
            let lives = servers.each_mut().map(|server| {
                server.run_until(Nanoseconds::new(minutes * 60_000_000_000));
                let tenants = server.tenants.tenants.iter();
                let states = tenants.map(|tenant| match tenant.state {
                    State::Away(until) => (until, None),
                    State::Here(until, size) => (until, Some(size as u64)),
                });
                states.collect::<Vec<_>>()
            });
            assert_eq!(lives[0], lives[1], "after {minutes} minutes");
        }
        assert!(
            servers
                .iter()
                .all(|server| server.sample().events.server.kills == 0)
        );
    }

    #[test]
    fn huge_pages_that_were_split_are_given_back_page_by_page() {
        let profile = include_str!("../../../../python/contigua/data/profiles/web.toml");
        let design = include_str!("../../../../python/contigua/data/designs/linux-thp.toml");
        let minutes = |minutes: u64| Nanoseconds::new(minutes * 60_000_000_000);
        let mut server = server(design, profile);
        server.run_until(minutes(10));
        let memory = server.nodes.memories_mut().next().unwrap();
        let is_huge = |&(class, _, frames): &(FrameClass, Frame, u32)| {
            class == FrameClass::Anonymous && u64::from(frames) == NODE_PAGES
        };
        let huge: Vec<_> = memory.blocks().filter(is_huge).collect();
        assert!(huge.len() > 50, "{}", huge.len());
        for (_, frame, _) in huge {
            memory.split(frame).unwrap();
        }
        for tenant in &mut server.tenants.tenants {
            tenant.shrink(tenant.frames, &mut server.nodes);
            assert!(tenant.small <= tenant.frames);
        }
        server.run_until(minutes(20));
        // A page table maps 512 pages: of 1 GB, 512 map all.
        assert!(server.memory().frames_of(FrameClass::PageTable) < 4 * NODE_PAGES);
        server.validate().unwrap();
    }
}
