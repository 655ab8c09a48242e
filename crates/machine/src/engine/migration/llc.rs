//! Pages that the last level moves: what the protocol's two halves ask for, and when.

use contigua_cache::coherent::Event;
use contigua_cache::migration::{
    Agent, Agents, SwitchOrder, Transfer, TransferEffect, TransferEvent,
};
use contigua_units::{Cycles, PAGE_BYTES, VirtRange};

use super::{Engine, Moving, TICK};
use crate::config::LlcMigration;
use crate::kernel::Relocation;
use crate::processors::Target;

impl Engine {
    /// Asks the last level to migrate a page. When its table is full, the page waits.
    pub(super) fn begin_in_llc(&mut self, llc: &LlcMigration, relocation: Relocation, now: Cycles) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        let Relocation {
            source,
            destination,
            ..
        } = relocation;
        memory.flush(destination, now);
        let Ok(entry) = memory.migrate(source, destination, llc.mode, llc.order, now) else {
            self.migrations.report.retries += 1;
            self.migrations.refused.push_back(relocation);
            return;
        };
        if let Target::Page { space, page } = relocation.target {
            let space = space.0.into();
            memory.note(Event::Moves { entry, space, page });
        }
        self.migrations.moving.push(Moving {
            relocation,
            transfer: Transfer::new(llc.order),
            entry,
            began: now,
            phase_began: now,
            copies: llc.order == SwitchOrder::CopyThenSwitch,
            line_ends: now,
        });
        let last = self.migrations.moving.len() - 1;
        let mut effect = None;
        for event in [
            TransferEvent::DestinationReserved,
            TransferEvent::DestinationFlushed,
            TransferEvent::Accepted,
        ] {
            effect = self.tell(last, event);
        }
        self.perform(last, effect, now);
    }

    /// Does what the operating system's half of a migration asks for.
    pub(super) fn perform(&mut self, at: usize, effect: Option<TransferEffect>, now: Cycles) {
        let mut effect = effect;
        while let Some(wanted) = effect.take() {
            let moving = &mut self.migrations.moving[at];
            let relocation = moving.relocation;
            let event = match wanted {
                TransferEffect::SetPageTables => {
                    self.mark_phase(at, "copy", now);
                    self.kernel.switch(&relocation);
                    let entry_write = self.kernel.costs().page_table_entry_cycles;
                    self.charge(entry_write);
                    let holders = self.mmus.holders_of(relocation.target);
                    let mut agents: Agents = (0..self.contexts.len())
                        .filter(|core| holders >> core & 1 != 0)
                        .map(Agent::core)
                        .collect();
                    if relocation.target == Target::Buffer {
                        let machine = &self.config.machine;
                        let latency = machine.iommu.invalidation(machine.clock);
                        let Relocation {
                            source,
                            destination,
                            ..
                        } = relocation;
                        self.devices.moved(source, destination, now, latency);
                        agents = agents.with(Agent::IOMMU);
                    }
                    Some(TransferEvent::PageTablesSet(agents))
                }
                TransferEffect::StartCopy => {
                    self.mark_phase(at, "wait for invalidations", now);
                    let entry = self.migrations.moving[at].entry;
                    if let Some(memory) = &mut self.memory {
                        memory.start_copy(entry);
                    }
                    let moving = &mut self.migrations.moving[at];
                    moving.copies = true;
                    moving.line_ends = now;
                    None
                }
                TransferEffect::Clear => {
                    self.mark_phase(at, "wait for invalidations", now);
                    let entry = self.migrations.moving[at].entry;
                    if let Some(memory) = &mut self.memory {
                        memory
                            .clear(entry, now)
                            .expect("all lines are copied when the kernel sends Clear");
                        self.migrations.report.observe(&memory.probe(entry));
                    }
                    Some(TransferEvent::Cleared)
                }
                TransferEffect::FreeSource => {
                    self.kernel.free_frame(relocation.source);
                    let report = &mut self.migrations.report;
                    report.bytes_copied += PAGE_BYTES;
                    let began = self.migrations.moving[at].began;
                    report.lifetime_cycles += Cycles::new(now.get().saturating_sub(began.get()));
                    self.completed(relocation.target);
                    None
                }
                TransferEffect::AwaitAcknowledgements => None,
                TransferEffect::FlushDestination
                | TransferEffect::Migrate
                | TransferEffect::Abandon => {
                    unreachable!("a migration that was accepted is past its beginning")
                }
            };
            if let Some(event) = event {
                effect = self.tell(at, event);
            }
        }
    }

    /// Tells the operating system's half of a migration what happened, never out of turn; returns
    /// what it wants next.
    fn tell(&mut self, at: usize, event: TransferEvent) -> Option<TransferEffect> {
        let moving = &mut self.migrations.moving[at];
        let entry = moving.entry;
        if let Some(memory) = &mut self.memory {
            memory.note(Event::Told { entry, event });
        }
        let effect = moving.transfer.on(event);
        effect.expect("the engine follows the protocol's phases")
    }

    fn mark_phase(&mut self, at: usize, name: &'static str, now: Cycles) {
        let moving = &mut self.migrations.moving[at];
        let began = std::mem::replace(&mut moving.phase_began, now);
        if let Some(timeline) = &mut self.timeline {
            timeline.migration(moving.entry.index(), name, began, now);
        }
    }

    /// Copies the lines that are due, and lets cores invalidate that have had their tick.
    pub(super) fn advance_moving(&mut self, now: Cycles) {
        let tick = TICK.at(self.migrations.clock);
        let mut at = 0;
        while at < self.migrations.moving.len() {
            let moving = &self.migrations.moving[at];
            let elapsed = now.get().saturating_sub(moving.phase_began.get());
            if moving.copies {
                self.copy_until(at, Some(now), now);
            } else if elapsed >= tick.get() {
                self.acknowledge_all(at, now);
            } else {
                // The IOMMU works its queue off by itself.
                let buffer = self.migrations.moving[at].relocation.destination;
                if self.devices.settles(buffer).is_none() {
                    self.acknowledge(at, Agent::IOMMU, now);
                }
            }
            at += 1;
        }
        self.forget_finished();
    }

    /// Copies the lines of a page, one after the other, that the engine comes to until a time, or
    /// all. Each takes as long as the last level and memory take for it beside everybody else.
    pub(super) fn copy_until(&mut self, at: usize, until: Option<Cycles>, now: Cycles) {
        let (Some(memory), Some(moving)) = (&mut self.memory, self.migrations.moving.get_mut(at))
        else {
            return;
        };
        while until.is_none_or(|until| moving.line_ends <= until) {
            let begins = moving.line_ends;
            let Some(latency) = memory.copy_line(moving.entry, begins) else {
                // The last line is there.
                moving.copies = false;
                let report = &mut self.migrations.report;
                report.copy_cycles +=
                    Cycles::new(begins.get().saturating_sub(moving.phase_began.get()));
                let effect = self.tell(at, TransferEvent::Copied);
                self.perform(at, effect, now);
                return;
            };
            moving.line_ends = begins + latency;
        }
    }

    /// A core has invalidated, or the IOMMU has.
    fn acknowledge(&mut self, at: usize, agent: Agent, now: Cycles) {
        let moving = &mut self.migrations.moving[at];
        if !moving.transfer.missing().contains(agent) {
            return;
        }
        // Requests that the core had sent are served by now: transactions are atomic.
        for event in [
            TransferEvent::Invalidated(agent),
            TransferEvent::Drained(agent),
        ] {
            let effect = self.tell(at, event);
            self.perform(at, effect, now);
        }
    }

    /// Every core has had its timer tick.
    pub(super) fn acknowledge_all(&mut self, at: usize, now: Cycles) {
        let missing = self.migrations.moving[at].transfer.missing();
        for agent in missing.iter() {
            if let Some(core) = agent.core_number() {
                self.invalidate_here(at, core);
            } else {
                self.settle_device(at, now);
            }
            self.acknowledge(at, agent, now);
        }
    }

    /// Waits for the invalidations of a buffer that migrates.
    fn settle_device(&mut self, at: usize, now: Cycles) {
        let buffer = self.migrations.moving[at].relocation.destination;
        if let Some(ends) = self.devices.settles(buffer) {
            self.charge(Cycles::new(ends.get().saturating_sub(now.get())));
            self.work_devices(ends);
            self.devices.work_queue(ends.max(now));
        }
    }

    /// A core forgets its own translation of a page that migrates.
    fn invalidate_here(&mut self, at: usize, core: usize) {
        let target = self.migrations.moving[at].relocation.target;
        if let Target::Page { space, page } = target {
            let range = VirtRange::with_length(page, PAGE_BYTES);
            self.mmus.invalidate_on(core, space, range);
        }
        self.migrations.report.local_invalidations += 1;
        let work = self.config.machine.kernel.invalidation_cycles;
        self.charge_for("invalidation", core, work);
        if let Some(memory) = &mut self.memory {
            memory.hold_up(self.migrations.moving[at].entry, core, work);
        }
    }

    /// A core enters the kernel: it invalidates what it owes.
    #[inline]
    pub(in crate::engine) fn enter_kernel(&mut self, core: usize) {
        if !self.migrations.moving.is_empty() {
            self.pay_invalidations(core);
        }
    }

    #[cold]
    fn pay_invalidations(&mut self, core: usize) {
        let now = self.now();
        let agent = Agent::core(core);
        for at in 0..self.migrations.moving.len() {
            if self.migrations.moving[at]
                .transfer
                .missing()
                .contains(agent)
            {
                self.invalidate_here(at, core);
                self.acknowledge(at, agent, now);
            }
        }
        self.forget_finished();
    }

    pub(super) fn forget_finished(&mut self) {
        self.migrations
            .moving
            .retain(|moving| !moving.transfer.is_over());
    }
}
