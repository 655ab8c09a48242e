//! Which threads run on the cores, and what they ask the kernel for.

use contigua_program::pieces::Pieces;
use contigua_program::syscall::Call;
use contigua_program::wire::{self, ACCESS, Event, ThreadId};
use contigua_units::Cycles;

use super::fold::Fold;
use super::timing::Windows;
use super::{EMPTY_PLACE, Engine, NO_BLOCK, Phase, within_limit};
use crate::Error;

impl Engine {
    /// The kernel works on the current core.
    pub(crate) fn charge(&mut self, work: Cycles) {
        self.timing.charge(self.current, work);
    }

    /// The kernel works on a core, and a timeline shows what for.
    pub(super) fn charge_for(&mut self, what: &'static str, core: usize, work: Cycles) {
        if let Some(timeline) = &mut self.timeline {
            timeline.span(core, what, self.timing.now(core), work);
        }
        self.timing.charge(core, work);
    }

    /// Interrupts the cores whose translations were taken away on the current one.
    pub(crate) fn interrupt_shootdown_targets(&mut self) {
        let targets = self.mmus.take_shootdown_targets();
        if targets == 0 {
            return;
        }
        let costs = &self.config.machine.kernel;
        let handler = costs.interrupt_handler_cycles;
        let work = costs.interrupt_cycles
            + costs.interrupt_target_cycles * u64::from(targets.count_ones());
        self.kernel.counters.shootdowns += 1;
        self.kernel.counters.interprocessor_interrupts += u64::from(targets.count_ones());
        self.charge_for("shootdown", self.current, work);
        self.interrupt(targets, handler);
    }

    /// Cores lose time to interrupts.
    pub(crate) fn interrupt(&mut self, targets: u64, handler: Cycles) {
        for core in 0..self.timing.windows().len() {
            if targets >> core & 1 != 0 {
                self.charge_for("interrupt", core, handler);
            }
        }
    }

    /// A core runs a thread; `words` are what it does next.
    pub(super) fn resume(
        &mut self,
        core: usize,
        thread: ThreadId,
        words: &[u64],
    ) -> Result<(), Error> {
        let was_running = self.current == core;
        if was_running && self.contexts[core].thread == Some(thread) {
            return Ok(());
        }
        self.current = core;
        self.fold = Fold::default();
        self.mmus.turn_to(core);
        self.kernel
            .run_thread(thread)
            .map_err(|fault| fault.at(self.position))?;
        self.passed.forget();
        let before = self.contexts[core].thread;
        if before == Some(thread) {
            return Ok(());
        }
        self.catch_up();
        if let Some(before) = before {
            let index = before.0 as usize;
            if index >= self.left_in.len() {
                self.left_in.resize(index + 1, NO_BLOCK);
            }
            self.left_in[index] = self.contexts[core].block;
            if self.phase != Phase::Skip || self.samples() {
                self.timing.drain(core);
                self.switch_threads(core, words)?;
            }
        }
        self.contexts[core].thread = Some(thread);
        self.contexts[core].leave_block();
        self.dispatch();
        // The thread goes on in the middle of a block.
        let goes_on = words.first().is_some_and(|word| word & ACCESS != 0);
        if goes_on && let Some(&block) = self.left_in.get(thread.0 as usize) {
            self.contexts[core].block = block;
            let Windows { list, blocks } = self.timing.here();
            if let Some(window) = list.get_mut(core)
                && block != NO_BLOCK
                && blocks.knows(block.0 as usize)
            {
                window.enter(blocks, block.0 as usize, 0);
            }
        }
        Ok(())
    }

    /// Charges the context switches of a core that goes on with another thread.
    ///
    /// How often the stream turns from a thread to another one says nothing of that: its threads
    /// ran on several processors of the host. A thread leaves its core when it waits or ends, and
    /// is preempted when its time slice is over. One that waited has left and come back.
    fn switch_threads(&mut self, core: usize, words: &[u64]) -> Result<(), Error> {
        let slice = self.config.machine.kernel.time_slice;
        let end = self.contexts[core].switched + slice.at(self.config.machine.clock);
        let event = match words.first() {
            Some(&word) if word & ACCESS == 0 && !wire::is_block(word) => Some(
                Event::decode(words)
                    .map_err(contigua_program::Error::from)?
                    .0,
            ),
            _ => None,
        };
        let call = event.as_ref().and_then(|event| self.call_of(event));
        let switches = match (event, call) {
            (_, Some(Call::Wait | Call::WaitForWord { .. })) => 2,
            (Some(Event::ThreadStart { .. }), _) => 1,
            _ => u64::from(self.contexts[core].is_vacant || self.now() >= end),
        };
        if switches > 0 {
            self.executed.context_switches += switches;
            self.enter_kernel(core);
            self.charge(self.config.machine.kernel.context_switch_cycles * switches);
            self.contexts[core].switched = self.now();
            self.contexts[core].is_vacant = false;
        }
        Ok(())
    }

    /// Loads what the hardware keeps of the process that a core runs, which may have changed.
    pub(super) fn dispatch(&mut self) {
        let space = self.kernel.space();
        let registers = self.kernel.registers();
        let context = &mut self.contexts[self.current];
        let same_space = context.space == space;
        context.space = space;
        context.place = EMPTY_PLACE;
        self.mmus
            .dispatch(self.current, space, registers, same_space);
    }

    /// Dispatches after a change of mappings, on every core that runs the process.
    pub(super) fn dispatch_everywhere(&mut self) {
        self.dispatch();
        if self.contexts.len() == 1 {
            return;
        }
        let space = self.kernel.space();
        let registers = self.kernel.registers();
        for (core, context) in self.contexts.iter_mut().enumerate() {
            if core != self.current && context.space == space && context.thread.is_some() {
                context.place = EMPTY_PLACE;
                self.mmus.dispatch(core, space, registers, true);
            }
        }
    }

    pub(super) fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Error> {
        if let Event::ThreadStart { process }
        | Event::ProcessStart { process }
        | Event::ProcessEnd { process }
        | Event::Fork { child: process }
        | Event::ForkFailed { child: process } = *event
        {
            within_limit("process", process.0)?;
        }
        if let Event::Fork { child } | Event::ForkFailed { child } = *event
            && self.kernel.is_running(child)
        {
            return Err(Error::OwnChild(child.0));
        }
        let counted = self.phase != Phase::Skip;
        let begun = self.now();
        let mut call = self.call_of(event);
        let mut pieces = core::mem::take(self.pieces_of(thread));
        match &mut call {
            Some(call) => pieces.fit(call),
            None => pieces.clear(),
        }
        if let Some(attribution) = &mut self.attribution {
            let block = self.contexts[self.current].block;
            attribution.event(thread, event, call.as_ref(), block);
        }
        if matches!(call, Some(Call::Allocate { .. })) {
            // A remark for the lab: the program without it would not enter the kernel.
            self.fold = Fold::default();
            self.contexts[self.current].leave_block();
            return Ok(());
        }
        if counted {
            self.timing.drain(self.current);
            self.enter_kernel(self.current);
            self.before_event(event, call.as_ref());
        }
        let work = self
            .kernel
            .event(thread, event, call.as_ref(), &mut self.mmus)
            .map_err(|fault| fault.at(self.position))?;
        self.charge(work);
        if counted {
            self.cache_written();
            self.interrupt_shootdown_targets();
        } else {
            self.kernel.written.clear();
            self.mmus.take_shootdown_targets();
            self.passed.forget();
        }
        if let Some(call) = &call {
            self.move_data(thread, call, pieces.ranges(), counted)?;
            self.note_request(thread, call, begun);
        }
        pieces.clear();
        *self.pieces_of(thread) = pieces;
        self.fold = Fold::default();
        let context = &mut self.contexts[self.current];
        context.leave_block();
        context.is_vacant |= matches!(event, Event::ThreadEnd | Event::ProcessEnd { .. });
        self.dispatch_everywhere();
        Ok(())
    }

    /// The elements of the vectors of a thread's next system call.
    pub(super) fn pieces_of(&mut self, thread: ThreadId) -> &mut Pieces {
        let index = thread.0 as usize;
        if index >= self.pieces.len() {
            self.pieces.resize_with(index + 1, Pieces::default);
        }
        &mut self.pieces[index]
    }

    /// Returns the effect of a system call.
    pub(super) fn call_of(&self, event: &Event) -> Option<Call> {
        match event {
            Event::Syscall(syscall) => Some(Call::of(self.program.architecture, syscall)),
            _ => None,
        }
    }
}
