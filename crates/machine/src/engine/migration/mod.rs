//! Pages that move while programs and devices use them: which, when, how, and who waits.
//!
//! The kernel starts migrations at a steady rate, from whatever core's turn it is then. In
//! software a page is away from the first step to the last (Contiguitas, Figure 1), other cores are
//! interrupted, and whoever touches the page waits. In the last level both of the page's frames
//! stay valid; the steps and what they wait for are those of [`contigua_cache::migration`], and
//! each core invalidates its own translation when it next enters the kernel, or at its timer tick.
//!
//! Other changes of a page's mapping (a fault, a system call on memory, the kernel's threads) first
//! wait for the migrations under way to end.

mod llc;
mod software;
#[cfg(test)]
mod trace;

use std::collections::VecDeque;

use contigua_cache::coherent::MigrationTraffic;
use contigua_cache::migration::{EntryId, Probe, Transfer};
use contigua_paging::SpaceId;
use contigua_program::syscall::Call;
use contigua_program::wire::Event;
use contigua_state::{Plain, Reader, Writer};
use contigua_translation::Request;
use contigua_units::{Cycles, Frame, Megahertz, Nanoseconds, PAGE_BYTES, VirtAddr};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::Engine;
use crate::config::{MigrationConfig, RunConfig, Shootdown};
use crate::kernel::Relocation;
use crate::port::Memory;
use crate::processors::Target;
use crate::report::MigrationReport;

/// A core that does not enter the kernel invalidates at its timer tick: LATR's millisecond
/// (Kumar et al., ASPLOS 2018, section 4.1).
const TICK: Nanoseconds = Nanoseconds::new(1_000_000);
/// Pages that TLBs missed last, each once: those in use.
const RECENT: usize = 64;
const LINES: u64 = 64;

/// A page that the last level migrates.
#[derive(contigua_state::Plain)]
struct Moving {
    relocation: Relocation,
    transfer: Transfer,
    entry: EntryId,
    began: Cycles,
    /// When the phase that it is in began.
    phase_began: Cycles,
    /// The engine copies its lines.
    copies: bool,
    /// When the engine has copied the line that it works on.
    line_ends: Cycles,
}

/// A page that software has taken away.
#[derive(Clone, Copy, contigua_state::Plain)]
struct Away {
    space: SpaceId,
    page: VirtAddr,
    /// Cores that are behind this have not come to it yet.
    from: Cycles,
    until: Cycles,
    probe: Probe,
}

/// A page of LATR: away, until every core has had its tick.
#[derive(contigua_state::Plain)]
struct Lazy {
    relocation: Relocation,
    began: Cycles,
    due: Cycles,
}

/// Result of the search for a page to migrate.
enum Found {
    /// A page, and a frame for it.
    Page(Relocation),
    /// A page that a device holds, which the mechanism cannot move.
    Held,
    /// No page that can move, or no memory for it.
    Nothing,
}

/// Random numbers.
struct Draws(Xoshiro256PlusPlus);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }
}

impl Plain for Draws {
    fn write(&self, out: &mut Writer<'_>) {
        let text = serde_json::to_string(&self.0);
        text.expect("the generator is four numbers").write(out);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, contigua_state::Error> {
        let state = serde_json::from_str(&String::read(input)?);
        state.map(Self).map_err(|_| contigua_state::Error::Value)
    }
}

/// Migrations under way, and the rate of new ones.
#[derive(contigua_state::State)]
pub(crate) struct Migrations {
    #[state(skip)]
    config: MigrationConfig,
    #[state(skip)]
    clock: Megahertz,
    /// Cycles between two; 0 for none.
    #[state(skip)]
    interval: u64,
    next: Cycles,
    /// When something is due at the latest.
    due: Cycles,
    moving: Vec<Moving>,
    away: Vec<Away>,
    lazy: Vec<Lazy>,
    /// Pages that the table had no room for.
    refused: VecDeque<Relocation>,
    recent: [(SpaceId, VirtAddr); RECENT],
    recent_at: usize,
    random: Draws,
    report: MigrationReport,
}

impl Migrations {
    pub(super) fn new(config: &RunConfig) -> Self {
        let clock = config.machine.clock;
        let cycles_of_second = f64::from(clock.get()) * 1e6;
        let rate = config.migrations_per_second;
        let interval = if rate > 0.0 {
            ((cycles_of_second / rate) as u64).max(1)
        } else {
            0
        };
        let first = if interval == 0 { u64::MAX } else { interval };
        Self {
            config: config.design.migration.clone(),
            clock,
            interval,
            next: Cycles::new(first),
            due: Cycles::new(first),
            moving: Vec::new(),
            away: Vec::new(),
            lazy: Vec::new(),
            refused: VecDeque::new(),
            recent: [(SpaceId(0), VirtAddr::new(0)); RECENT],
            recent_at: 0,
            random: Draws(Xoshiro256PlusPlus::seed_from_u64(config.seed)),
            report: MigrationReport::default(),
        }
    }

    /// Nothing migrates before this.
    pub(super) fn begin_at(&mut self, now: Cycles) {
        if self.are_on() {
            self.next = now + Cycles::new(self.interval);
            self.due = self.next;
        }
    }

    /// When a core has to look at migrations.
    #[inline]
    pub(super) fn due(&self) -> Cycles {
        self.due
    }

    /// True if pages migrate in this run.
    #[inline]
    pub(super) fn are_on(&self) -> bool {
        self.interval != 0
    }

    pub(super) fn reset_counters(&mut self) {
        self.report = MigrationReport::default();
    }

    /// Report of what moved, with the traffic of the last level's table.
    pub(crate) fn report(&self, traffic: MigrationTraffic) -> Option<MigrationReport> {
        self.are_on().then(|| {
            let mut report = self.report.clone();
            report.traffic = traffic;
            report.mechanism = match self.config {
                MigrationConfig::Software(_) => "software",
                MigrationConfig::Llc(_) => "llc",
            };
            let is_lazy = |away: &&Away| {
                let Away { space, page, .. } = **away;
                let target = Target::Page { space, page };
                let mut lazy = self.lazy.iter();
                lazy.any(|lazy| lazy.relocation.target == target)
            };
            for away in self.away.iter().filter(|away| !is_lazy(away)) {
                report.observe(&away.probe);
            }
            report
        })
    }

    /// Says when the next core has to look.
    fn plan(&mut self, now: Cycles) {
        self.due = self.next;
        if !self.moving.is_empty() {
            // Copies advance a line at a time; everything else waits for cores.
            let rest = now + Cycles::new(TICK.at(self.clock).get() / 16);
            let copying = self.moving.iter().filter(|moving| moving.copies);
            let line = copying.map(|moving| moving.line_ends).min();
            self.due = self.due.min(rest).min(line.unwrap_or(rest));
        }
        for lazy in &self.lazy {
            self.due = self.due.min(lazy.due);
        }
    }

    /// Returns the time that software takes to copy a page, as it is configured.
    fn copy_time(&self) -> Cycles {
        match &self.config {
            MigrationConfig::Software(software) => software.copy.at(self.clock),
            MigrationConfig::Llc(_) => Cycles::ZERO,
        }
    }

    /// Ends the observation of pages that are back.
    fn end_away(&mut self, now: Cycles) {
        let report = &mut self.report;
        self.away.retain(|away| {
            let is_away = away.until > now;
            if !is_away {
                report.observe(&away.probe);
            }
            is_away
        });
    }

    /// A page that is in use.
    fn candidate(&mut self) -> (SpaceId, VirtAddr) {
        self.recent[self.random.next() as usize % RECENT]
    }
}

impl Engine {
    pub(crate) fn migration_report(&self) -> Option<MigrationReport> {
        let traffic = self.memory.as_ref().map(Memory::migration_traffic);
        self.migrations.report(traffic.unwrap_or_default())
    }

    /// A TLB missed: the page is in use. When it is away, the access waits for it.
    pub(super) fn stall_on_migrating_page(&mut self, request: &Request, time: Cycles) {
        let migrations = &mut self.migrations;
        let page = request.address.align_down(PAGE_BYTES);
        // Cores that all invalidated one page miss it one after the other.
        if !migrations.recent.contains(&(request.space, page)) {
            migrations.recent[migrations.recent_at] = (request.space, page);
            migrations.recent_at = (migrations.recent_at + 1) % RECENT;
        }
        if migrations.away.is_empty() {
            return;
        }
        let is_met = |away: &&mut Away| {
            away.space == request.space
                && away.page == page
                && (away.from..away.until).contains(&time)
        };
        let away = migrations.away.iter_mut().filter(is_met);
        let Some(away) = away.max_by_key(|away| away.until) else {
            return;
        };
        // The walk finds the entry not present: a page fault, which sleeps until the page is back.
        let left = Cycles::new(away.until.get() - time.get());
        let wait = left + self.config.machine.kernel.page_fault_cycles;
        away.probe.delayed(wait);
        migrations.report.waits += 1;
        migrations.report.wait_cycles += wait;
        let longest = &mut self.kernel.counters.longest_stall_cycles;
        *longest = (*longest).max(wait);
        if let Some(timeline) = &mut self.timeline {
            timeline.span(self.current, "wait for a migrating page", time, wait);
        }
        self.charge(wait);
    }

    /// Does what is due of migrations, on the current core.
    #[cold]
    pub(super) fn migrate_pages(&mut self) {
        let now = self.now();
        self.migrations.end_away(now);
        self.work_devices(now);
        self.devices.work_queue(now);
        self.advance_moving(now);
        self.advance_lazy(now);
        while self.migrations.next <= now {
            self.migrations.next += Cycles::new(self.migrations.interval.max(1));
            // A core that slept through several does not make up for them.
            if self.migrations.next <= now {
                let missed = (now.get() - self.migrations.next.get()) / self.migrations.interval;
                self.migrations.next += Cycles::new(missed * self.migrations.interval);
            }
            self.begin_migration(now);
        }
        self.migrations.plan(now);
        if !self.migrations.moving.is_empty()
            && let Some(due) = self.devices.due()
        {
            self.migrations.due = self.migrations.due.min(due);
        }
    }

    fn begin_migration(&mut self, now: Cycles) {
        match self.migrations.config.clone() {
            MigrationConfig::Software(software) => match software.shootdown {
                Shootdown::Interrupt => self.migrate_in_software(&software, now),
                Shootdown::Lazy => self.begin_lazy(now),
            },
            MigrationConfig::Llc(llc) => {
                self.migrations.report.requested += 1;
                let waiting = self.migrations.refused.pop_front();
                let found = match self.find_page(waiting.as_slice()) {
                    Found::Page(relocation) => Some(relocation),
                    Found::Held | Found::Nothing => None,
                };
                for relocation in waiting.into_iter().chain(found) {
                    self.begin_in_llc(&llc, relocation, now);
                }
            }
        }
    }

    /// A page that is to move, with a frame for it to go to. Network buffers and pages of programs
    /// take turns, as far as there are any. Those of a batch are taken.
    fn find_page(&mut self, batch: &[Relocation]) -> Found {
        let found = self.choose_page(batch);
        let report = &mut self.migrations.report;
        match found {
            Found::Page(_) => {}
            Found::Held => report.held += 1,
            Found::Nothing => report.without_page += 1,
        }
        found
    }

    fn choose_page(&mut self, batch: &[Relocation]) -> Found {
        const ATTEMPTS: usize = 16;
        let choice = self.migrations.random.next();
        if choice.is_multiple_of(2)
            && let Some(frame) = self.devices.network.buffer(choice >> 1)
        {
            // Its device cannot be made to wait, so software cannot move it (Contiguitas, section
            // 2.1).
            if matches!(self.migrations.config, MigrationConfig::Software(_)) {
                return Found::Held;
            }
            if !self.is_moving(frame)
                && !batch.iter().any(|other| other.source == frame)
                && let Some(relocation) = self.kernel.begin_buffer_relocation(frame)
            {
                return Found::Page(relocation);
            }
        }
        for _ in 0..ATTEMPTS {
            let (space, page) = self.migrations.candidate();
            let away = &self.migrations.away;
            if away
                .iter()
                .any(|away| away.space == space && away.page == page)
            {
                continue;
            }
            let moving = self
                .migrations
                .moving
                .iter()
                .map(|moving| &moving.relocation);
            let lazy = self.migrations.lazy.iter().map(|lazy| &lazy.relocation);
            let refused = self.migrations.refused.iter();
            let target = Target::Page { space, page };
            let mut taken = moving.chain(lazy).chain(refused).chain(batch);
            if taken.any(|other| other.target == target) {
                continue;
            }
            if let Some(relocation) = self.kernel.begin_relocation(space, page) {
                return Found::Page(relocation);
            }
        }
        Found::Nothing
    }

    /// True if a frame's page is on its way to another one.
    pub(super) fn is_moving(&self, frame: Frame) -> bool {
        let moving = self
            .migrations
            .moving
            .iter()
            .map(|moving| &moving.relocation);
        let refused = self.migrations.refused.iter();
        moving.chain(refused).any(|other| other.source == frame)
    }

    fn completed(&mut self, target: Target) {
        let report = &mut self.migrations.report;
        report.completed += 1;
        match target {
            Target::Page { .. } => report.pages += 1,
            Target::Buffer => report.buffers += 1,
        }
    }

    /// Ends all migrations under way, because the kernel is about to change mappings.
    #[inline]
    pub(super) fn complete_pending_migrations(&mut self) {
        let migrations = &self.migrations;
        if !(migrations.moving.is_empty()
            && migrations.lazy.is_empty()
            && migrations.refused.is_empty())
        {
            self.end_migrations();
        }
    }

    #[cold]
    fn end_migrations(&mut self) {
        let now = self.now();
        while let Some(relocation) = self.migrations.refused.pop_front() {
            self.kernel.free_frame(relocation.destination);
        }
        for lazy in &mut self.migrations.lazy {
            // The core that hurries may be behind the one that began.
            lazy.due = lazy.due.min(now.max(lazy.began));
            self.migrations.report.hurried += 1;
        }
        let latest = self.migrations.lazy.iter().map(|lazy| lazy.due).max();
        self.advance_lazy(latest.unwrap_or(now).max(now));
        // Entries copy beside each other: the kernel waits for the last.
        let mut end = now;
        for at in 0..self.migrations.moving.len() {
            self.migrations.report.hurried += 1;
            while !self.migrations.moving[at].transfer.is_over() {
                if self.migrations.moving[at].copies {
                    self.copy_until(at, None, now);
                    end = end.max(self.migrations.moving[at].line_ends);
                } else {
                    self.acknowledge_all(at, now);
                }
            }
        }
        self.forget_finished();
        self.charge(Cycles::new(end.get() - now.get()));
    }

    /// Lets migrations end before the kernel handles a fault that may meet them.
    pub(super) fn before_fault(&mut self, request: &Request) {
        let page = request.address.align_down(PAGE_BYTES);
        let space = request.space;
        let target = Target::Page { space, page };
        let moving = self
            .migrations
            .moving
            .iter()
            .map(|moving| &moving.relocation);
        let lazy = self.migrations.lazy.iter().map(|lazy| &lazy.relocation);
        let refused = self.migrations.refused.iter();
        let meets = moving
            .chain(lazy)
            .chain(refused)
            .any(|other| other.target == target);
        if meets || self.kernel.fault_may_move() {
            self.complete_pending_migrations();
        }
    }

    /// Lets migrations end before the kernel changes mappings for an event.
    pub(super) fn before_event(&mut self, event: &Event, call: Option<&Call>) {
        self.synchronize(event, call);
        let changes = !call.is_some_and(Call::keeps_mappings);
        if changes || self.kernel.may_move_soon() {
            self.complete_pending_migrations();
        }
    }
}
