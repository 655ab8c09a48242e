//! The guard: looks, decides, and moves blocks so that it may die at any moment.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use contigua_frames::controller::{Controller, Decision, Inputs};
use contigua_units::{Bytes, Nanoseconds};

use super::config::{Config, OnlineNew};
use super::machine::{Block, ChangeError, Machine, MachineError, Place, Step, Survey, Target};
use super::plan::{Refusal, candidates, permit, rank};
use super::report::{Reason, Report};
use super::state::{Intent, State, StateError};
use super::view::{Attribution, nodes};

/// Error that ends the guard.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The state file.
    #[error("state file: {0}")]
    State(#[from] StateError),
}

/// Result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    GivenUp,
    Unsettled,
}

/// A block that failed.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    until: Duration,
    length: Duration,
}

/// Blocks whose frames are looked at for one move. Reading a block's words costs about 1.5 ms.
const LOOKED_AT: usize = 16;
/// Blocks that may fail in one look at the machine.
const FAILURES: usize = 3;
/// Blocks that failed are left alone no longer than this.
const MAX_BACKOFF: Duration = Duration::from_hours(1);

/// The guard of one machine.
pub struct Guard<M> {
    pub(super) machine: M,
    pub(super) config: Config,
    is_dry_run: bool,
    pub(super) state: State,
    controllers: BTreeMap<u32, Controller>,
    attribution: Attribution,
    backoffs: BTreeMap<u64, Backoff>,
    moved: VecDeque<Duration>,
}

pub(super) const fn duration(time: Nanoseconds) -> Duration {
    Duration::from_nanos(time.get())
}

impl<M: Machine> Guard<M> {
    /// A guard that goes on where the one before it ended; see [`Self::recover`].
    ///
    /// # Errors
    /// A state file that cannot be read.
    pub fn new(mut machine: M, config: Config, is_dry_run: bool) -> Result<Self, Error> {
        let boot = machine.boot();
        let state = match machine.load()? {
            Some(text) => State::read(&text, &boot)?,
            None => State::new(boot),
        };
        Ok(Self {
            machine,
            config,
            is_dry_run,
            state,
            controllers: BTreeMap::new(),
            attribution: Attribution::default(),
            backoffs: BTreeMap::new(),
            moved: VecDeque::new(),
        })
    }

    /// Returns the state that survives a restart.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The machine.
    #[cfg(test)]
    pub const fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The machine, without the guard.
    #[cfg(test)]
    #[must_use]
    pub fn into_machine(self) -> M {
        self.machine
    }

    /// Looks at the machine once and moves what must be moved.
    ///
    /// # Errors
    /// Failures to read or record; the machine is then as the state file says.
    pub fn tick(&mut self) -> Result<Vec<Report>, Error> {
        let mut reports = Vec::new();
        if !self.is_dry_run {
            self.recover(&mut reports)?;
            if self.state.intent.is_some() {
                return Ok(reports);
            }
        }
        let survey = self.machine.survey()?;
        if self.config.online_new == OnlineNew::Movable {
            self.bring_online(&survey, &mut reports)?;
        }
        let (kernel, movable) = self.attribution.divide(&survey);
        for node in nodes(&survey, &self.config) {
            if !node.has_border() {
                continue;
            }
            let inputs = Inputs {
                unmovable: node.state(&node.kernel, kernel),
                movable: node.movable_state(movable, survey.block),
                // Stock Linux does not count what failed.
                requested: Bytes::new(0),
                requested_movable: Bytes::new(0),
                least_unmovable: node.kernel_min,
                granule: survey.block,
                now: Nanoseconds::new(survey.at.as_nanos() as u64),
            };
            let controller = self
                .controllers
                .entry(node.number)
                .or_insert_with(|| Controller::new(self.config.controller.clone()));
            let (from, to, amount, short) = match controller.decide(&inputs) {
                Decision::Stay => continue,
                Decision::Expand(amount) => {
                    (Place::Movable, Place::Kernel, amount, inputs.unmovable)
                }
                Decision::Shrink(amount) => (Place::Kernel, Place::Movable, amount, inputs.movable),
            };
            reports.push(Report::Wants(Reason {
                node: node.number,
                short: to,
                available: short.free,
                low: short.low,
                pressure: short.pressure,
                amount,
            }));
            let blocks = amount.get() / survey.block.get();
            self.shift(node.number, from, to, blocks, &mut reports)?;
            if self.state.intent.is_some() {
                break;
            }
        }
        Ok(reports)
    }

    /// Moves some blocks of a node.
    fn shift(
        &mut self,
        node: u32,
        from: Place,
        to: Place,
        blocks: u64,
        reports: &mut Vec<Report>,
    ) -> Result<(), Error> {
        let mut failures = 0;
        for _ in 0..blocks {
            loop {
                let survey = self.machine.survey()?;
                if self.is_limited(survey.at, reports) {
                    return Ok(());
                }
                let Some((block, used)) = self.choose(&survey, node, from, reports) else {
                    return Ok(());
                };
                let intent = Intent { block, from, to };
                if self.is_dry_run {
                    // Nothing changes, so the next would be the same block.
                    reports.push(Report::Would { intent, used });
                    return Ok(());
                }
                match self.change(intent, survey.at, used, reports)? {
                    Outcome::Done => break,
                    Outcome::Unsettled => return Ok(()),
                    Outcome::GivenUp => failures += 1,
                }
                if failures == FAILURES {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The best block that may leave, and how much of it is in use.
    fn choose(
        &mut self,
        survey: &Survey,
        node: u32,
        from: Place,
        reports: &mut Vec<Report>,
    ) -> Option<(u64, u64)> {
        let nodes = nodes(survey, &self.config);
        let node = nodes.iter().find(|each| each.number == node)?;
        let backs_off = |number| {
            self.backoffs
                .get(&number)
                .is_some_and(|backoff| survey.at < backoff.until)
        };
        let all = candidates(node, from, backs_off);
        let mut refusal = Refusal::NoBlock { region: from };
        for some in all.chunks(LOOKED_AT) {
            let census = self.machine.census(some);
            for (number, occupancy) in rank(node, some, &census) {
                let block = survey.block(number)?;
                match permit(node, &block, survey.block, occupancy, node.reserve) {
                    Ok(()) => return Some((number, occupancy.movable + occupancy.unexplained)),
                    Err(why @ Refusal::NoRoom { .. }) => refusal = why,
                    Err(why) => {
                        reports.push(Report::Refused(why));
                        return None;
                    }
                }
            }
        }
        reports.push(Report::Refused(refusal));
        None
    }

    fn is_limited(&mut self, now: Duration, reports: &mut Vec<Report>) -> bool {
        let minute = Duration::from_mins(1);
        while self
            .moved
            .front()
            .is_some_and(|&at| now.saturating_sub(at) >= minute)
        {
            self.moved.pop_front();
        }
        let blocks = self.moved.len() as u32;
        let is_limited = blocks >= self.config.blocks_per_minute;
        if is_limited {
            reports.push(Report::Limited { blocks });
        }
        is_limited
    }

    /// Brings blocks online that somebody plugged in.
    fn bring_online(&mut self, survey: &Survey, reports: &mut Vec<Report>) -> Result<(), Error> {
        for block in &survey.blocks {
            let backs_off = self
                .backoffs
                .get(&block.number)
                .is_some_and(|backoff| survey.at < backoff.until);
            if block.place != Place::Offline || backs_off {
                continue;
            }
            let intent = Intent {
                block: block.number,
                from: Place::Offline,
                to: Place::Movable,
            };
            if self.is_dry_run {
                reports.push(Report::Would { intent, used: 0 });
            } else {
                self.change(intent, survey.at, 0, reports)?;
            }
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), Error> {
        Ok(self.machine.store(&self.state.text())?)
    }

    /// Moves a block. Whatever happens, it ends in a zone, or the intent stays on record.
    pub(super) fn change(
        &mut self,
        intent: Intent,
        now: Duration,
        used: u64,
        reports: &mut Vec<Report>,
    ) -> Result<Outcome, Error> {
        self.machine.step(Step::BeforeIntent)?;
        self.state.intent = Some(intent);
        self.save()?;
        self.machine.step(Step::AfterIntent)?;
        self.moved.push_back(now);
        if intent.from != Place::Offline {
            match self.set(intent.block, Target::Offline)? {
                Ok(()) => {}
                Err(why @ ChangeError::Stuck(_)) => return Ok(unsettled(intent, &why, reports)),
                Err(why) => return self.give_up(intent, now, &why, reports),
            }
        }
        self.machine.step(Step::AfterOffline)?;
        if let Some(online) = target(intent.to) {
            match self.set(intent.block, online)? {
                Ok(()) => {}
                Err(why @ ChangeError::Stuck(_)) => return Ok(unsettled(intent, &why, reports)),
                Err(why) => {
                    if let Some(back) = target(intent.from)
                        && let Err(worse) = self.set(intent.block, back)?
                    {
                        let why = format!("{why}; bringing it back: {worse}");
                        return Ok(unsettled(intent, &why, reports));
                    }
                    return self.give_up(intent, now, &why, reports);
                }
            }
        }
        self.machine.step(Step::AfterOnline)?;
        self.state.arrived(intent);
        self.state.intent = None;
        self.save()?;
        self.machine.step(Step::AfterRecord)?;
        self.backoffs.remove(&intent.block);
        reports.push(Report::Moved { intent, used });
        Ok(Outcome::Done)
    }

    /// Changes a block; death is an error, anything else an answer.
    fn set(&mut self, block: u64, to: Target) -> Result<Result<(), ChangeError>, Error> {
        match self.machine.change(block, to, duration(self.config.limit)) {
            Err(ChangeError::Killed) => Err(MachineError::Killed.into()),
            answer => Ok(answer),
        }
    }

    fn give_up(
        &mut self,
        intent: Intent,
        now: Duration,
        why: &ChangeError,
        reports: &mut Vec<Report>,
    ) -> Result<Outcome, Error> {
        let before = self
            .backoffs
            .get(&intent.block)
            .map(|backoff| 2 * backoff.length);
        let length = before.unwrap_or(duration(self.config.retry_after));
        let length = length.min(MAX_BACKOFF);
        let until = now.saturating_add(length);
        self.backoffs
            .insert(intent.block, Backoff { until, length });
        self.state.intent = None;
        self.state.undone += 1;
        self.save()?;
        reports.push(Report::GivenUp {
            intent,
            why: why.to_string(),
            backoff: length,
        });
        Ok(Outcome::GivenUp)
    }

    /// Settles the move that was under way when the last guard died: back to where the block was,
    /// if that can be, and else on to where it was to be. The intent stays if neither can be.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub fn recover(&mut self, reports: &mut Vec<Report>) -> Result<(), Error> {
        let Some(intent) = self.state.intent else {
            return Ok(());
        };
        let survey = self.machine.survey()?;
        let mut place = survey.block(intent.block).map(|block| block.place);
        if place == Some(Place::Leaving) {
            unsettled(intent, &"the kernel is still emptying it", reports);
            return Ok(());
        }
        if place == Some(Place::Offline)
            && intent.from != Place::Offline
            && intent.to != Place::Offline
        {
            let mut problems = Vec::new();
            for back in [intent.from, intent.to] {
                let Some(online) = target(back) else { continue };
                match self.set(intent.block, online)? {
                    Ok(()) => {
                        place = Some(back);
                        break;
                    }
                    Err(problem) => problems.push(problem.to_string()),
                }
            }
            if place == Some(Place::Offline) {
                unsettled(intent, &problems.join("; "), reports);
                return Ok(());
            }
        }
        match place {
            Some(place) if place == intent.to => self.state.arrived(intent),
            Some(_) => self.state.undone += 1,
            None => {
                self.state.originals.remove(&intent.block);
            }
        }
        self.state.intent = None;
        self.save()?;
        reports.push(Report::Recovered { intent, now: place });
        Ok(())
    }

    /// The way back: brings every block that was moved to where it was. What cannot be brought back
    /// now stays on record.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub fn release(&mut self) -> Result<Vec<Report>, Error> {
        let mut reports = Vec::new();
        self.recover(&mut reports)?;
        // A return may make room for another.
        loop {
            let mut has_moved = false;
            let mut problems = Vec::new();
            for (number, original) in self.state.originals.clone() {
                if self.state.intent.is_some() {
                    break;
                }
                has_moved |= self.bring_back(number, original, &mut reports, &mut problems)?;
            }
            if !has_moved {
                reports.extend(problems);
                return Ok(reports);
            }
        }
    }

    /// Brings a block back; whether it moved.
    fn bring_back(
        &mut self,
        number: u64,
        original: Place,
        reports: &mut Vec<Report>,
        problems: &mut Vec<Report>,
    ) -> Result<bool, Error> {
        let survey = self.machine.survey()?;
        let block = survey.block(number);
        let Some(block) = block.filter(|block| block.place != original) else {
            // Somebody else brought it back, or unplugged it.
            self.state.originals.remove(&number);
            self.save()?;
            return Ok(false);
        };
        if let Err(why) = self.may_return(&survey, block) {
            problems.push(Report::Refused(why));
            return Ok(false);
        }
        let intent = Intent {
            block: number,
            from: block.place,
            to: original,
        };
        let mut said = Vec::new();
        let outcome = self.change(intent, survey.at, 0, &mut said)?;
        let is_done = outcome == Outcome::Done;
        (if is_done { reports } else { problems }).extend(said);
        Ok(is_done)
    }

    fn may_return(&mut self, survey: &Survey, block: Block) -> Result<(), Refusal> {
        if block.place == Place::Offline {
            return Ok(());
        }
        let mut nodes = nodes(survey, &self.config).into_iter();
        let Some(mut node) = nodes.find(|node| node.number == block.node) else {
            return Ok(());
        };
        // The operator's wishes were for the guard; the kernel's watermarks hold for all.
        (node.kernel_min, node.movable_min) = (Bytes::new(0), Bytes::new(0));
        let census = self.machine.census(&[block.number]);
        let occupancy = census.get(&block.number).copied().unwrap_or_default();
        if occupancy.unmovable > 0 {
            return Err(Refusal::NoBlock {
                region: block.place,
            });
        }
        permit(&node, &block, survey.block, occupancy, Bytes::new(0))
    }
}

fn unsettled(intent: Intent, why: &impl ToString, reports: &mut Vec<Report>) -> Outcome {
    reports.push(Report::Unsettled {
        intent,
        why: why.to_string(),
    });
    Outcome::Unsettled
}

/// Returns the target that brings a block online in a place; `None` if the place is no region.
const fn target(place: Place) -> Option<Target> {
    match place {
        Place::Kernel => Some(Target::Kernel),
        Place::Movable => Some(Target::Movable),
        Place::Offline | Place::Leaving | Place::Fixed => None,
    }
}
