//! Several cores in the order of their simulated times.
//!
//! The stream has one total order, in which the host happened to run the guest's threads. Cores
//! take turns by their own clocks instead. The stream is cut into *slices* of one thread each, and
//! a window of slices is kept; the core whose clock is least runs next, until another one's is.
//!
//! Two things keep their place in the stream, because what comes after may depend on them. A slice
//! with a change of mappings, a thread or a process runs alone: after everything before it, and
//! before everything behind it. A thread that returns from waiting for a lock goes on only when
//! everything before it has run, at the time at which it was woken. Threads that wait for the
//! world outside (the network, a timer) do not wait in simulated time: servers are simulated as
//! if they always had a next request.
//!
//! Where slices begin and end depends on nothing but the words of the stream, so a recorded
//! program and a running one give the same report.

use std::collections::{HashMap, VecDeque};

use contigua_program::sources::Batch;
use contigua_program::syscall::Call;
use contigua_program::wire::{self, ACCESS, Event, ThreadId};
use contigua_units::{Cycles, VirtAddr};

use super::{Engine, Phase};
use crate::Error;
use crate::config::Detail;

/// A slice is closed when it has as many words.
const SLICE_WORDS: usize = 4096;
/// Slices that are kept: some milliseconds of a host core.
const WINDOW: usize = 256;
/// Cycles that a core may run ahead of the one behind it.
const QUANTUM: u64 = 500;

/// Slices for which a slice must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
enum Order {
    /// For its core only.
    Free,
    /// For everything before it.
    AfterOlder,
    /// Needs the core alone: everything behind it waits.
    Alone,
}

#[derive(contigua_state::Plain)]
struct Slice {
    thread: ThreadId,
    core: usize,
    order: Order,
    words: Vec<u64>,
    /// Words that have run.
    used: usize,
}

impl Slice {
    fn is_done(&self) -> bool {
        self.used == self.words.len()
    }
}

/// Slices that have not run to their end, and those between them.
#[derive(contigua_state::State)]
pub(super) struct Schedule {
    /// In the order of the stream; the last one may still grow.
    slices: VecDeque<Slice>,
    /// Number of the first one.
    first: u64,
    /// The last slice takes no more words.
    closed: bool,
    /// By core: the numbers of its slices that have not run to their end.
    #[state(fixed)]
    queues: Vec<VecDeque<u64>>,
    /// Slices that run alone and have not.
    alone: VecDeque<u64>,
    /// By thread.
    cores: Vec<usize>,
    /// When each lock was last told to wake somebody.
    woken: HashMap<u64, Cycles>,
    /// When a thread was last made, and when one last ended.
    spawned: Cycles,
    ended: Cycles,
    #[state(skip)]
    spare: Vec<Vec<u64>>,
}

impl Schedule {
    pub(super) fn new(cores: usize) -> Self {
        Self {
            slices: VecDeque::new(),
            first: 0,
            closed: true,
            queues: vec![VecDeque::new(); cores],
            alone: VecDeque::new(),
            cores: Vec::new(),
            woken: HashMap::new(),
            spawned: Cycles::ZERO,
            ended: Cycles::ZERO,
            spare: Vec::new(),
        }
    }

    /// The core of a thread: the next one in turn for a thread that is new.
    fn core_of(&mut self, thread: ThreadId) -> usize {
        let index = thread.0 as usize;
        while self.cores.len() <= index {
            self.cores.push(self.cores.len() % self.queues.len());
        }
        self.cores[index]
    }

    fn append(&mut self, thread: ThreadId, order: Order, words: &[u64]) {
        let fits = !self.closed
            && order == Order::Free
            && self
                .slices
                .back()
                .is_some_and(|last| last.thread == thread && last.words.len() < SLICE_WORDS);
        if !fits {
            let core = self.core_of(thread);
            let number = self.first + self.slices.len() as u64;
            self.queues[core].push_back(number);
            if order == Order::Alone {
                self.alone.push_back(number);
            }
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            self.slices.push_back(Slice {
                thread,
                core,
                order,
                words: buffer,
                used: 0,
            });
        }
        let last = self
            .slices
            .back_mut()
            .expect("there is a slice to append to");
        last.words.extend_from_slice(words);
        self.closed = order == Order::Alone;
    }

    fn slice(&mut self, number: u64) -> &mut Slice {
        let index = number - self.first;
        &mut self.slices[index as usize]
    }

    /// True if no other slice holds this one back.
    fn is_ready(&self, number: u64) -> bool {
        let oldest = number == self.first;
        match self.slices[(number - self.first) as usize].order {
            Order::Free => oldest || self.alone.front().is_none_or(|&alone| alone > number),
            Order::AfterOlder | Order::Alone => oldest,
        }
    }

    /// Cores whose thread waits for a lock, as bits. One without a slice in the window is not known
    /// to be idle: the host may have run its thread late.
    fn idle(&self) -> u64 {
        let mut idle = 0;
        for (core, queue) in self.queues.iter().enumerate() {
            let waits = queue.front().is_some_and(|&number| {
                let slice = &self.slices[(number - self.first) as usize];
                slice.order == Order::AfterOlder && slice.used == 0
            });
            idle |= u64::from(waits) << core;
        }
        idle
    }

    /// Slices that take no more words.
    fn complete(&self) -> usize {
        self.slices.len() - usize::from(!self.closed && !self.slices.is_empty())
    }
}

/// Returns the order that an event of the stream must keep: calls that change no mapping need none.
fn order_of(call: Option<&Call>) -> Order {
    match call {
        Some(Call::WaitForWord { .. }) => Order::AfterOlder,
        Some(call) if call.keeps_mappings() => Order::Free,
        _ => Order::Alone,
    }
}

impl Engine {
    /// Takes a batch into the window, and runs what falls out of it.
    pub(super) fn schedule(&mut self, batch: Batch<'_>) -> Result<(), Error> {
        let words = batch.words;
        let mut at = 0;
        while at < words.len() {
            // As far as words need no look.
            let mut end = at;
            while let Some(&word) = words.get(end)
                && end - at < SLICE_WORDS
                && (word & ACCESS != 0 || wire::is_block(word))
            {
                if word & ACCESS == 0 {
                    let block = wire::block_of(word);
                    let known = self.blocks.get(block.0 as usize);
                    if known.is_none_or(|block| block.instructions == 0) {
                        self.learn(block, Some(batch.code))?;
                    }
                }
                end += 1;
            }
            // No more than the open slice has room for, so that slices are the same whatever the
            // batches are.
            while at < end {
                let room = self.schedule.room(batch.thread);
                let next = end.min(at + room);
                self.schedule
                    .append(batch.thread, Order::Free, &words[at..next]);
                at = next;
                self.run_beyond(WINDOW)?;
                if self.is_done() {
                    return Ok(());
                }
            }
            if let Some(&word) = words.get(at)
                && word & ACCESS == 0
                && !wire::is_block(word)
            {
                let (event, used) =
                    Event::decode(&words[at..]).map_err(contigua_program::Error::from)?;
                let order = match event {
                    Event::Forward { .. }
                    | Event::Fetch { .. }
                    | Event::Piece { .. }
                    | Event::Cue(_)
                    | Event::FileName { .. }
                    | Event::FileMapped { .. }
                    | Event::Interrupt => Order::Free,
                    _ => order_of(self.call_of(&event).as_ref()),
                };
                self.schedule
                    .append(batch.thread, order, &words[at..at + used]);
                at += used;
                self.run_beyond(WINDOW)?;
                if self.is_done() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Runs what is left in the window.
    ///
    /// # Errors
    /// Those of [`Engine::consume`].
    pub fn finish(&mut self) -> Result<(), Error> {
        for checks in &mut self.checks {
            checks.finish()?;
        }
        self.schedule.closed = true;
        self.run_beyond(0)?;
        self.catch_up();
        self.finish_regions();
        Ok(())
    }

    /// Lets cores run until no more than so many slices are left.
    fn run_beyond(&mut self, slices: usize) -> Result<(), Error> {
        while self.schedule.complete() > slices && !self.is_done() {
            self.step()?;
        }
        Ok(())
    }

    /// Lets the core whose clock is least run, until another one's is.
    fn step(&mut self) -> Result<(), Error> {
        let timed = self.config.detail == Detail::Full && self.phase != Phase::Skip;
        let (mut chosen, mut least, mut next) = (None, u64::MAX, u64::MAX);
        for (core, queue) in self.schedule.queues.iter().enumerate() {
            let Some(&number) = queue.front() else {
                continue;
            };
            let is_open = !self.schedule.closed
                && number + 1 == self.schedule.first + self.schedule.slices.len() as u64;
            if is_open || !self.schedule.is_ready(number) {
                continue;
            }
            // Without clocks, the stream's order.
            let clock = if timed {
                self.timing.now(core).get()
            } else {
                number
            };
            if clock < least {
                (chosen, next, least) = (Some(number), least, clock);
            } else {
                next = next.min(clock);
            }
        }
        let number = chosen.expect("the oldest slice can always run");
        let until = if timed {
            next.saturating_add(QUANTUM)
        } else {
            u64::MAX
        };
        self.run_slice(number, until)
    }

    fn run_slice(&mut self, number: u64, until: u64) -> Result<(), Error> {
        let slice = self.schedule.slice(number);
        let (thread, core) = (slice.thread, slice.core);
        let words = std::mem::take(&mut slice.words);
        let used = slice.used;
        self.mmus.set_idle(self.schedule.idle());
        self.resume(core, thread, &words[used..])?;
        let done = self.consume_words(thread, &words[used..], None, until);
        let slice = self.schedule.slice(number);
        slice.words = words;
        slice.used += done?;
        if slice.is_done() {
            let queue = &mut self.schedule.queues[core];
            debug_assert_eq!(queue.front(), Some(&number));
            queue.pop_front();
            if self.schedule.alone.front() == Some(&number) {
                self.schedule.alone.pop_front();
            }
            self.retire_slices();
            self.run_background();
        }
        Ok(())
    }

    /// Forgets the oldest slices that have run to their end.
    fn retire_slices(&mut self) {
        while let Some(oldest) = self.schedule.slices.front()
            && oldest.is_done()
        {
            let slice = self.schedule.slices.pop_front();
            let slice = slice.expect("there is an oldest slice");
            self.schedule.first += 1;
            self.digest.take(slice.thread, &slice.words);
            self.schedule.spare.push(slice.words);
        }
    }

    /// Brings the clocks of cores together where an event requires it.
    pub(super) fn synchronize(&mut self, event: &Event, call: Option<&Call>) {
        if self.timing.windows().is_empty() || self.contexts.len() == 1 {
            return;
        }
        let core = self.current;
        let now = self.timing.now(core);
        let wait = match (event, call) {
            // The first thread can begin before its maker is back from the call.
            (Event::ThreadStart { .. }, _) if self.schedule.spawned == Cycles::ZERO => {
                self.timing.latest()
            }
            (Event::ThreadStart { .. }, _) => self.schedule.spawned,
            (Event::ThreadEnd, _) => {
                self.schedule.ended = now;
                return;
            }
            (_, Some(Call::Spawn)) => {
                self.schedule.spawned = now;
                return;
            }
            (_, Some(Call::WakeWord { address })) => {
                self.schedule.woken.insert(address.get(), now);
                return;
            }
            (_, Some(Call::WaitForWord { address })) => self.schedule.woken_at(*address),
            _ => return,
        };
        if wait > now {
            self.timing.windows_mut()[core].wait_until(wait);
        }
    }
}

impl Schedule {
    /// Words that the open slice takes of a thread, or a new one would.
    fn room(&self, thread: ThreadId) -> usize {
        match self.slices.back() {
            Some(last) if !self.closed && last.thread == thread => {
                let room = SLICE_WORDS.saturating_sub(last.words.len());
                if room == 0 { SLICE_WORDS } else { room }
            }
            _ => SLICE_WORDS,
        }
    }

    /// When somebody who waited at an address was woken. The kernel wakes those who wait for the
    /// end of a thread, without a call.
    fn woken_at(&self, address: VirtAddr) -> Cycles {
        let woken = self.woken.get(&address.get()).copied();
        woken.unwrap_or(self.ended)
    }
}
