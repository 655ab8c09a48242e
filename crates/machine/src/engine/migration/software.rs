//! Pages that software moves (Contiguitas, Figure 1): away from the first step to the last.

use contigua_cache::migration::Probe;
use contigua_units::{Cycles, PAGE_BYTES, VirtRange};

use super::{Away, Engine, Found, LINES, Lazy, TICK};
use crate::config::SoftwareMigration;
use crate::kernel::Relocation;
use crate::port::pass;
use crate::processors::Target;

impl Engine {
    /// Figure 1 of Contiguitas, for a batch of pages: clear their entries, invalidate here,
    /// interrupt the others and wait for them, copy, write the entries.
    pub(super) fn migrate_in_software(&mut self, software: &SoftwareMigration, now: Cycles) {
        let mut batch = Vec::new();
        let mut mask = 0;
        for _ in 0..software.batch.max(1) {
            self.migrations.report.requested += 1;
            if let Found::Page(relocation) = self.find_page(&batch) {
                mask |= self.mmus.shootdown_targets(relocation.target);
                batch.push(relocation);
            }
        }
        if batch.is_empty() {
            return;
        }
        mask &= !(1 << self.current);
        let costs = self.kernel.costs().clone();
        let pages = batch.len() as u64;
        let copy = self.migrations.copy_time();
        let targets = u64::from(mask.count_ones());
        let clear = costs.page_table_entry_cycles * pages;
        let mut shootdown = costs.invalidation_cycles;
        if targets > 0 {
            shootdown += costs.interrupt_cycles + costs.interrupt_target_cycles * targets;
        }
        let restore = copy + costs.page_table_entry_cycles;
        let work = clear + shootdown + restore * pages;
        let handler = costs.interrupt_handler_cycles + costs.invalidation_cycles;
        for (number, relocation) in (0_u64..).zip(&batch) {
            let from = now + costs.page_table_entry_cycles * number;
            let until = now + clear + shootdown + restore * (number + 1);
            self.copy_through_caches(relocation, now);
            self.finish_in_software(relocation);
            // Neither this core nor one that is interrupted runs its program meanwhile.
            let mut probe = Probe::default();
            probe.delayed(Cycles::new(until.get() - from.get()));
            if targets > 0 {
                probe.delayed(handler);
            }
            self.away(relocation.target, from, until, probe);
        }
        let report = &mut self.migrations.report;
        report.interprocessor_interrupts += targets;
        report.lifetime_cycles += work * pages;
        if let Some(timeline) = &mut self.timeline {
            timeline.span(self.current, "software migration", now, work);
        }
        self.interrupt(mask, handler);
        self.charge(work);
    }

    /// The effect of a copy on caches: the copying core reads one frame and writes the other.
    fn copy_through_caches(&mut self, relocation: &Relocation, now: Cycles) {
        use contigua_cache::AccessKind::{Read, Write};
        use contigua_cache::coherent::CoreRequest;
        let Some(memory) = &mut self.memory else {
            return;
        };
        for line in 0..LINES {
            for (frame, kind) in [(relocation.source, Read), (relocation.destination, Write)] {
                let first = frame.address().get();
                let request = CoreRequest::new(
                    self.current,
                    contigua_units::PhysAddr::new(first + line * PAGE_BYTES / LINES),
                    kind,
                    now,
                );
                memory.access(&request, pass);
            }
        }
    }

    /// The page has moved, as far as everybody who waited can tell.
    fn finish_in_software(&mut self, relocation: &Relocation) {
        self.kernel.switch(relocation);
        self.invalidate_everywhere(relocation.target);
        self.kernel.free_frame(relocation.source);
        self.migrations.report.bytes_copied += PAGE_BYTES;
        self.completed(relocation.target);
    }

    fn away(&mut self, target: Target, from: Cycles, until: Cycles, probe: Probe) {
        if let Target::Page { space, page } = target {
            self.migrations.away.push(Away {
                space,
                page,
                from,
                until,
                probe,
            });
        }
    }

    /// A page that is away comes back at this time, which may be earlier than was planned.
    fn return_page(&mut self, target: Target, until: Cycles) {
        let away = &mut self.migrations.away;
        let page = away.iter_mut().find(|away| {
            let Away { space, page, .. } = **away;
            target == Target::Page { space, page }
        });
        if let Some(page) = page {
            page.until = until;
        }
    }

    fn invalidate_everywhere(&mut self, target: Target) {
        if let Target::Page { space, page } = target {
            let range = VirtRange::with_length(page, PAGE_BYTES);
            for core in 0..self.contexts.len() {
                self.mmus.invalidate_on(core, space, range);
            }
        }
    }

    /// LATR: the entry is cleared, nobody is interrupted, and the page is copied when every core
    /// has had its tick.
    pub(super) fn begin_lazy(&mut self, now: Cycles) {
        self.migrations.report.requested += 1;
        let Found::Page(relocation) = self.find_page(&[]) else {
            return;
        };
        let costs = self.kernel.costs();
        let start = costs.page_table_entry_cycles + costs.invalidation_cycles;
        let due = now + TICK.at(self.migrations.clock);
        let until = due + self.migrations.copy_time() + costs.page_table_entry_cycles;
        let handler = costs.invalidation_cycles;
        let others = self.mmus.holders_of(relocation.target) & !(1 << self.current);
        self.migrations.report.local_invalidations += u64::from(others.count_ones());
        let mut probe = Probe::default();
        probe.delayed(start);
        self.away(relocation.target, now, until, probe);
        self.migrations.lazy.push(Lazy {
            relocation,
            began: now,
            due,
        });
        self.charge(start);
        self.interrupt(others, handler);
    }

    pub(super) fn advance_lazy(&mut self, now: Cycles) {
        let mut at = 0;
        while at < self.migrations.lazy.len() {
            if self.migrations.lazy[at].due > now {
                at += 1;
                continue;
            }
            let lazy = self.migrations.lazy.remove(at);
            let work = self.migrations.copy_time() + self.kernel.costs().page_table_entry_cycles;
            let until = lazy.due + work;
            self.copy_through_caches(&lazy.relocation, now);
            self.return_page(lazy.relocation.target, until);
            self.finish_in_software(&lazy.relocation);
            self.migrations.report.lifetime_cycles += Cycles::new(until.get() - lazy.began.get());
            self.charge(work);
        }
    }
}
