//! A machine around the protocol: cores with TLBs and private caches, a device behind an IOMMU, the
//! LLC, the operating system, and someone who gets the source frame afterwards.
//!
//! Data are abstracted to what the properties ask: whether a copy of a line is the page's last
//! write, the last write of the frame's next owner, or neither. That is exact and takes any number
//! of writes: nothing tells two outdated values apart, and an outdated one never becomes current.
//! LLC and memory are one place, because the LLC, too, holds lines by physical frame.

use std::collections::HashMap;
use std::fmt;

use contigua_cache::migration::{
    Agent, Agents, Alias, EntryId, Mode, Refusal, Request, Service, SwitchOrder, Table, Transfer,
    TransferEffect, TransferEvent,
};
use contigua_units::Frame;

use super::rules::Rules;
use super::{MAX_CORES, MAX_LINES, MAX_PAGES};

pub(super) const ALIASES: [Alias; 2] = [Alias::Source, Alias::Destination];

/// Configuration that a search explores.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own to the model"
)]
pub struct Configuration {
    pub cores: usize,
    /// Pages that migrate, each by an entry of its own.
    pub pages: usize,
    /// Entries of the table.
    pub entries: u8,
    /// Lines of each page.
    pub lines: u8,
    /// There is a device with an IOMMU.
    pub device: bool,
    pub order: SwitchOrder,
    pub mode: Mode,
    pub rules: Rules,
    /// A request can be under way between its agent and the LLC. If not, it is served as it is
    /// sent.
    pub requests_travel: bool,
    /// An invalidation stops the agent's page walk, as R2 demands.
    pub invalidation_stops_walks: bool,
    /// Agents report R3 as it comes true. If not, they do so too early, and the operating system
    /// looks at R3 itself before Clear.
    pub drains_reported: bool,
    /// Agents whose acknowledgements the operating system requests.
    pub holders: Holders,
    /// The source frame is used again after it was freed.
    pub reuse: bool,
    /// Every agent invalidates its TLB in the end. If not, the last one never passes through the
    /// kernel.
    pub every_agent_invalidates: bool,
    /// A line under both frames is an error by itself. Without, only wrong data and requests to a
    /// frame that was given up are.
    pub forbid_double_alias: bool,
    /// TLBs, caches and data are followed. Without, an agent may send a request by either frame at
    /// any time: nothing that a migration waits for depends on what they hold, so that all of its
    /// ends, and more, are those of this smaller machine.
    pub contents: bool,
}

/// Agents whose acknowledgements the operating system requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// Everybody's.
    All,
    /// Those who could hold the source mapping when the page tables had been written.
    AfterSwitch,
    /// Those who could when they were going to be written, which is wrong.
    BeforeSwitch,
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            SwitchOrder::CopyThenSwitch => "copy-then-switch",
            SwitchOrder::SwitchThenCopy => "switch-then-copy",
        };
        let mode = match self.mode {
            Mode::Cacheable => "cacheable",
            Mode::Noncacheable => "noncacheable",
        };
        let device = if self.device { " + device" } else { "" };
        let travel = if self.requests_travel {
            ""
        } else {
            ", requests at once"
        };
        let reuse = if self.reuse { "" } else { ", no reuse" };
        let holders = match self.holders {
            Holders::AfterSwitch => ", only holders acknowledge",
            Holders::All | Holders::BeforeSwitch => "",
        };
        let pages = match (self.pages, self.entries) {
            (1, _) => String::new(),
            (pages, 1) => format!(", pages {pages} for an entry"),
            (pages, entries) => format!(", pages {pages}, entries {entries}"),
        };
        let contents = if self.contents { "" } else { ", no contents" };
        let (cores, lines) = (self.cores, self.lines);
        write!(
            f,
            "{order}, {mode}: cores {cores}{device}{pages}, lines {lines}{travel}{holders}{reuse}\
             {contents}"
        )
    }
}

impl Configuration {
    /// Returns true if cores are alike, so that states may be taken together ([`Model::pack`]).
    pub fn is_symmetric(&self) -> bool {
        self.rules.await_every_core
            && self.holders != Holders::BeforeSwitch
            && self.every_agent_invalidates
    }

    /// Lines of all pages; those of a page follow one another.
    pub(super) fn all_lines(&self) -> u16 {
        self.pages as u16 * u16::from(self.lines)
    }

    /// The page of a line.
    pub(super) fn page_of(&self, line: u16) -> usize {
        usize::from(line / u16::from(self.lines))
    }

    /// The number of a line in its page.
    fn in_page(&self, line: u16) -> u8 {
        (line % u16::from(self.lines)) as u8
    }

    /// A page's lines.
    pub fn lines_of(&self, page: usize) -> std::ops::Range<u16> {
        let first = page as u16 * u16::from(self.lines);
        first..first + u16::from(self.lines)
    }
}

/// Version of a copy of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Outdated,
    /// The page's last write.
    Page,
    /// The last write of the source frame's next owner.
    NextOwner,
}

/// States of MESI, and a dirty line on its way back to the LLC. The core cannot use that one; the
/// LLC can still recall it, as in any directory protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Shared,
    Exclusive,
    Modified,
    OnTheWayBack,
}

impl Held {
    fn is_dirty(self) -> bool {
        matches!(self, Self::Modified | Self::OnTheWayBack)
    }
}

pub type Cell = Option<(Held, Value)>;

/// A page's entry of an agent's TLB, or the page walk that will fill it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    Absent,
    Walking(Alias),
    Present(Alias),
}

/// A request between its agent and the LLC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub alias: Alias,
    pub line: u16,
    pub write: bool,
}

/// A core, or the device with its IOMMU, which has no cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentState {
    /// Of each page.
    pub translations: [Translation; MAX_PAGES],
    pub request: Option<InFlight>,
    pub cells: [[Cell; MAX_LINES]; 2],
}

pub(super) const IDLE: AgentState = AgentState {
    translations: [Translation::Absent; MAX_PAGES],
    request: None,
    cells: [[None; MAX_LINES]; 2],
};

/// Next step of the operating system, or of the hardware in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    Nothing,
    Effect(TransferEffect),
    /// The tables of processor and IOMMU that are still to be written.
    SetPageTables {
        cores: bool,
        iommu: bool,
    },
    /// The next source line to recall for Migrate or for Clear.
    RecallSource {
        line: u16,
        clear: bool,
    },
}

/// Everything that is not with an agent or in a frame. There are few of these, so states name them
/// by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control {
    pub table: Table,
    pub pages: [PageControl; MAX_PAGES],
}

/// The migration of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageControl {
    pub transfer: Transfer,
    pub entry: Option<EntryId>,
    pub task: Task,
    core_tables: Alias,
    iommu_tables: Alias,
    /// Lines that were copied, as bits.
    pub copied: u64,
    pub retired: bool,
    pub freed: bool,
    /// Lines of the source frame that its next owner has written, as bits.
    rewritten: u64,
    /// [`Holders::BeforeSwitch`].
    holders: Agents,
}

/// A state of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub control: u32,
    /// Cores first, then the device.
    pub agents: [AgentState; MAX_CORES + 1],
    pub frames: [[Value; MAX_LINES]; 2],
}

/// A step of the machine. Agents are by number, the device after the cores; then the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    StartWalk(usize, usize),
    FinishWalk(usize, usize),
    LoseTranslation(usize, usize),
    Access {
        agent: usize,
        line: u16,
        write: bool,
    },
    /// A request of [`Configuration::contents`].
    Send(usize, usize, Alias),
    Serve(usize),
    Evict {
        core: usize,
        alias: Alias,
        line: u16,
    },
    Return {
        core: usize,
        alias: Alias,
        line: u16,
    },
    Invalidate(usize, usize),
    Drain(usize, usize),
    CopyLine(usize),
    System(usize),
    SetCoreTables(usize),
    SetIommuTables(usize),
    NextOwner {
        core: usize,
        line: u16,
        write: bool,
    },
}

/// Violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A read, or the reading half of an atomic operation, did not return the page's last write.
    StaleRead,
    /// The next owner of the source frame did not read what it wrote last.
    NextOwnerReadsForeignData,
    /// A request for the page named the source frame after the entry was retired.
    UseAfterRetire,
    /// A dirty line of the page came back to the source frame after the entry was retired.
    LateWriteBack,
    /// A line is in private caches under both frames while the entry lives.
    DoubleAlias,
    /// A line was copied twice, out of order or not at all.
    Copy,
    /// The table or the transfer refused a step.
    Protocol(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StaleRead => "it does not get the page's last write",
            Self::NextOwnerReadsForeignData => "it does not get the next owner's last write",
            Self::UseAfterRetire => "it names the source frame, which was given up",
            Self::LateWriteBack => "the page's data go to the source frame, which was given up",
            Self::DoubleAlias => "a line is in private caches under both frames",
            Self::Copy => "a line is not copied exactly once",
            Self::Protocol(error) => error,
        })
    }
}

/// The machine of a configuration.
pub struct Model {
    pub(super) configuration: Configuration,
    pub(super) controls: Vec<Control>,
    numbers: HashMap<Control, u32>,
    pub(super) renamed: HashMap<(u32, [u8; MAX_CORES]), u32>,
}

impl Model {
    /// The frame that an alias of a page names.
    fn frame(page: usize, alias: Alias) -> Frame {
        Frame::new(1 + 2 * page as u32 + alias as u32)
    }

    pub fn new(configuration: Configuration) -> Self {
        assert!(configuration.cores <= MAX_CORES);
        assert!(usize::from(configuration.all_lines()) <= MAX_LINES);
        assert!((1..=MAX_PAGES).contains(&configuration.pages));
        assert!(configuration.is_symmetric() || configuration.cores <= 1);
        Self {
            configuration,
            controls: Vec::new(),
            numbers: HashMap::new(),
            renamed: HashMap::new(),
        }
    }

    /// Number of different states of table, transfer and operating system that were met.
    pub fn controls(&self) -> usize {
        self.controls.len()
    }

    /// The operating system has just chosen the destinations, and private caches are empty.
    pub fn clean_state(&mut self) -> State {
        let Configuration {
            lines,
            entries,
            order,
            ..
        } = self.configuration;
        let mut transfer = Transfer::new(order);
        let effect = transfer
            .on(TransferEvent::DestinationReserved)
            .expect("a new transfer waits for this");
        let page = PageControl {
            transfer,
            entry: None,
            task: effect.map_or(Task::Nothing, Task::Effect),
            core_tables: Alias::Source,
            iommu_tables: Alias::Source,
            copied: 0,
            retired: false,
            freed: false,
            rewritten: 0,
            holders: Agents::NONE,
        };
        let control = self.number(&Control {
            table: Table::with_lines(entries.into(), lines),
            pages: [page; MAX_PAGES],
        });
        State {
            control,
            agents: [IDLE; MAX_CORES + 1],
            frames: [[Value::Page; MAX_LINES], [Value::Outdated; MAX_LINES]],
        }
    }

    /// [`Model::clean_state`], and those in which some lines of the destinations are still in
    /// private caches because of the frames' previous owners.
    pub fn initial_states(&mut self) -> Vec<State> {
        let cores = self.configuration.cores;
        let mut states = vec![self.clean_state()];
        if !self.configuration.contents {
            return states;
        }
        for line in 0..usize::from(self.configuration.all_lines()) {
            for state in states.clone() {
                let mut shared = state;
                for core in 0..cores {
                    shared.agents[core].cells[1][line] = Some((Held::Shared, Value::Outdated));
                    for held in [Held::Exclusive, Held::Modified, Held::OnTheWayBack] {
                        let mut state = state;
                        state.agents[core].cells[1][line] = Some((held, Value::Outdated));
                        states.push(state);
                    }
                }
                states.push(shared);
            }
        }
        states
    }

    /// The steps that are possible in a state, except those that change nothing: a read that hits
    /// the page's last write, and a write that hits a modified line.
    pub fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.clear();
        let configuration = &self.configuration;
        let control = self.control(state);
        for agent in self.agents() {
            self.agent_actions(state, control, agent, actions);
        }
        for core in 0..configuration.cores {
            for alias in ALIASES {
                for line in 0..configuration.all_lines() {
                    actions.extend(Self::leaving(state, core, alias, line));
                }
            }
        }
        for page in 0..configuration.pages {
            self.page_actions(state, control, page, actions);
        }
    }

    /// Returns true if a step is possible in a state: if it is one of [`Model::actions`].
    pub fn allows(&self, state: &State, action: Action) -> bool {
        let control = self.control(state);
        let mut actions = Vec::new();
        match action {
            Action::Evict { core, alias, line } | Action::Return { core, alias, line } => {
                actions.extend(Self::leaving(state, core, alias, line));
            }
            Action::CopyLine(page)
            | Action::System(page)
            | Action::SetCoreTables(page)
            | Action::SetIommuTables(page) => {
                self.page_actions(state, control, page, &mut actions);
            }
            Action::NextOwner { line, .. } => {
                let page = self.configuration.page_of(line);
                self.page_actions(state, control, page, &mut actions);
            }
            Action::StartWalk(agent, _)
            | Action::FinishWalk(agent, _)
            | Action::LoseTranslation(agent, _)
            | Action::Access { agent, .. }
            | Action::Send(agent, ..)
            | Action::Serve(agent)
            | Action::Invalidate(agent, _)
            | Action::Drain(agent, _) => self.agent_actions(state, control, agent, &mut actions),
        }
        actions.contains(&action)
    }

    /// The step by which a line leaves a private cache, if the cache has it.
    fn leaving(state: &State, core: usize, alias: Alias, line: u16) -> Option<Action> {
        let (held, _) = state.agents[core].cells[alias as usize][usize::from(line)]?;
        Some(match held {
            Held::OnTheWayBack => Action::Return { core, alias, line },
            _ => Action::Evict { core, alias, line },
        })
    }

    /// Steps of the operating system, the copy and the next owner, for a page.
    fn page_actions(
        &self,
        state: &State,
        control: &Control,
        page: usize,
        actions: &mut Vec<Action>,
    ) {
        let configuration = &self.configuration;
        let of = &control.pages[page];
        match of.task {
            Task::Nothing | Task::Effect(TransferEffect::AwaitAcknowledgements) => {}
            Task::SetPageTables { cores, iommu } => {
                if cores {
                    actions.push(Action::SetCoreTables(page));
                }
                if iommu {
                    actions.push(Action::SetIommuTables(page));
                }
            }
            Task::Effect(TransferEffect::Clear)
                if !configuration.drains_reported
                    && self
                        .agents()
                        .any(|agent| self.names_source(&state.agents[agent], page)) => {}
            Task::Effect(_) | Task::RecallSource { .. } => actions.push(Action::System(page)),
        }
        let recalling = matches!(of.task, Task::RecallSource { clear: false, .. });
        if of.entry.is_some_and(|e| control.table.is_copying(e)) && !recalling {
            actions.push(Action::CopyLine(page));
        }
        if of.freed && configuration.reuse {
            for core in 0..configuration.cores {
                for line in configuration.lines_of(page) {
                    for write in [false, true] {
                        actions.push(Action::NextOwner { core, line, write });
                    }
                }
            }
        }
    }

    fn agent_actions(
        &self,
        state: &State,
        control: &Control,
        agent: usize,
        actions: &mut Vec<Action>,
    ) {
        let AgentState {
            translations,
            request,
            cells,
        } = state.agents[agent];
        let pages = self.configuration.pages;
        if !self.configuration.contents && request.is_none() {
            for page in 0..pages {
                actions.extend(ALIASES.map(|alias| Action::Send(agent, page, alias)));
            }
        }
        let followed = if self.configuration.contents {
            pages
        } else {
            0
        };
        for (page, &translation) in translations.iter().enumerate().take(followed) {
            match translation {
                Translation::Absent => actions.push(Action::StartWalk(agent, page)),
                Translation::Walking(_) => actions.push(Action::FinishWalk(agent, page)),
                Translation::Present(alias) => {
                    actions.push(Action::LoseTranslation(agent, page));
                    for line in self.configuration.lines_of(page) {
                        for write in [false, true] {
                            let held = cells[alias as usize][usize::from(line)];
                            let changes_nothing = match held {
                                Some((Held::Modified, Value::Page)) => true,
                                Some((Held::Shared | Held::Exclusive, Value::Page)) => !write,
                                _ => false,
                            };
                            let hits = match held {
                                Some((Held::Modified | Held::Exclusive, _)) => true,
                                Some((Held::Shared, _)) => !write,
                                _ => false,
                            };
                            let given_up = control.pages[page].retired && alias == Alias::Source;
                            let possible =
                                given_up || !changes_nothing && (hits || request.is_none());
                            if possible {
                                actions.push(Action::Access { agent, line, write });
                            }
                        }
                    }
                }
            }
        }
        if request.is_some() {
            actions.push(Action::Serve(agent));
        }
        let name = self.agent(agent);
        for page in 0..self.configuration.pages {
            let transfer = &control.pages[page].transfer;
            let is_last = self.agents().last() == Some(agent);
            let is_deaf = is_last && !self.configuration.every_agent_invalidates;
            if transfer.uninvalidated().contains(name) {
                if is_deaf {
                    continue;
                }
                actions.push(Action::Invalidate(agent, page));
            } else if transfer.missing().contains(name)
                && (!self.names_source(&state.agents[agent], page)
                    || !self.configuration.drains_reported)
            {
                actions.push(Action::Drain(agent, page));
            }
        }
    }

    /// The state after a step.
    pub fn step(&mut self, state: &State, action: Action) -> Result<State, Violation> {
        let mut next = *state;
        match action {
            Action::StartWalk(agent, page) => {
                let read = self.tables(state, agent, page);
                next.agents[agent].translations[page] = Translation::Walking(read);
            }
            Action::FinishWalk(agent, page) => {
                if let Translation::Walking(alias) = state.agents[agent].translations[page] {
                    next.agents[agent].translations[page] = Translation::Present(alias);
                }
            }
            Action::LoseTranslation(agent, page) => {
                next.agents[agent].translations[page] = Translation::Absent;
            }
            Action::Access { agent, line, write } => self.access(&mut next, agent, line, write)?,
            Action::Send(agent, page, alias) => {
                let line = self.configuration.lines_of(page).start;
                let write = false;
                next.agents[agent].request = Some(InFlight { alias, line, write });
            }
            Action::Serve(agent) if !self.configuration.contents => {
                next.agents[agent].request = None;
            }
            Action::Serve(agent) => self.serve(&mut next, agent)?,
            Action::Evict { core, alias, line } => {
                let cell = &mut next.agents[core].cells[alias as usize][usize::from(line)];
                *cell = match *cell {
                    Some((Held::Modified, value)) => Some((Held::OnTheWayBack, value)),
                    _ => None,
                };
            }
            Action::Return { core, alias, line } => {
                let value = state.agents[core].cells[alias as usize][usize::from(line)];
                let retired = self.page(state, line).retired;
                if retired
                    && alias == Alias::Source
                    && !matches!(value, Some((_, Value::NextOwner)))
                {
                    return Err(Violation::LateWriteBack);
                }
                self.recall(&mut next, core, alias, line);
            }
            Action::Invalidate(agent, page) => {
                let translation = &mut next.agents[agent].translations[page];
                let walking = matches!(translation, Translation::Walking(_));
                if !walking || self.configuration.invalidation_stops_walks {
                    *translation = Translation::Absent;
                }
                let agent = self.agent(agent);
                for other in 0..self.configuration.pages {
                    if other == page || !self.configuration.rules.acknowledge_each_page {
                        self.report(&mut next, other, TransferEvent::Invalidated(agent))?;
                    }
                }
                if !self.configuration.rules.await_requests {
                    self.report(&mut next, page, TransferEvent::Drained(agent))?;
                }
            }
            Action::Drain(agent, page) => {
                self.report(&mut next, page, TransferEvent::Drained(self.agent(agent)))?;
            }
            Action::CopyLine(page) => self.copy_line(&mut next, page)?,
            Action::System(page) => self.system(&mut next, page)?,
            Action::SetCoreTables(page) => self.set_tables(&mut next, page, true)?,
            Action::SetIommuTables(page) => self.set_tables(&mut next, page, false)?,
            Action::NextOwner { core, line, write } => {
                self.next_owner(&mut next, core, line, write)?;
            }
        }
        if self.configuration.forbid_double_alias {
            self.forbid_double_alias(&next)?;
        }
        Ok(next)
    }

    /// A load, store or atomic operation of an agent with a translation. A plain store leaves the
    /// same state as an atomic operation that saw the last write, so all writes are atomic
    /// operations here.
    fn access(
        &mut self,
        state: &mut State,
        agent: usize,
        line: u16,
        write: bool,
    ) -> Result<(), Violation> {
        let page = self.configuration.page_of(line);
        let Translation::Present(alias) = state.agents[agent].translations[page] else {
            unreachable!("only an agent with a translation accesses");
        };
        if self.page(state, line).retired && alias == Alias::Source {
            return Err(Violation::UseAfterRetire);
        }
        let cell = &mut state.agents[agent].cells[alias as usize][usize::from(line)];
        match *cell {
            Some((Held::Shared, value)) if !write => expect(value, Value::Page),
            Some((Held::Exclusive | Held::Modified, value)) => {
                expect(value, Value::Page)?;
                if write {
                    supersede(state, line, Value::Page);
                    state.agents[agent].cells[alias as usize][usize::from(line)] =
                        Some((Held::Modified, Value::Page));
                }
                Ok(())
            }
            _ => {
                state.agents[agent].request = Some(InFlight { alias, line, write });
                if self.configuration.requests_travel {
                    return Ok(());
                }
                self.serve(state, agent)
            }
        }
    }

    /// An agent's request reaches the LLC.
    fn serve(&mut self, state: &mut State, agent: usize) -> Result<(), Violation> {
        let Some(InFlight { alias, line, write }) = state.agents[agent].request.take() else {
            unreachable!("only requests are served");
        };
        if self.page(state, line).retired && alias == Alias::Source {
            return Err(Violation::UseAfterRetire);
        }
        let device = agent == self.configuration.cores;
        let request = match (device, write) {
            (false, false) => Request::Read,
            (false, true) => Request::Own,
            (true, false) => Request::DeviceRead,
            (true, true) => Request::DeviceWrite,
        };
        let keeper = (!device).then_some(agent);
        self.perform(state, keeper, alias, line, request, Value::Page)
    }

    /// Service of a request by an LLC with a directory of private caches.
    fn perform(
        &self,
        state: &mut State,
        keeper: Option<usize>,
        alias: Alias,
        line: u16,
        request: Request,
        owner: Value,
    ) -> Result<(), Violation> {
        let write = matches!(request, Request::Own | Request::DeviceWrite);
        let service = self.service(state, alias, line, request);
        let cores = 0..self.configuration.cores;
        if service.invalidate_opposite {
            for core in cores.clone() {
                self.recall(state, core, alias.opposite(), line);
            }
        }
        let mut shared = false;
        for core in cores {
            let held = state.agents[core].cells[alias as usize][usize::from(line)];
            let (Some((held, value)), Some(keeper)) = (held, keeper) else {
                self.recall(state, core, alias, line);
                continue;
            };
            self.recall(state, core, alias, line);
            if !write && core != keeper && held != Held::OnTheWayBack {
                state.agents[core].cells[alias as usize][usize::from(line)] =
                    Some((Held::Shared, value));
                shared = true;
            }
        }
        let location = service.location as usize;
        let value = state.frames[location][usize::from(line)];
        // A device writes whole lines, so what was there does not matter to it.
        let first_write = owner == Value::NextOwner && !self.is_rewritten(state, line)
            || request == Request::DeviceWrite;
        if !first_write {
            expect(value, owner)?;
        }
        if write {
            supersede(state, line, owner);
        }
        let keeper = keeper.filter(|_| service.retain);
        if let Some(keeper) = keeper {
            let (held, value) = match (write, shared) {
                (true, _) => (Held::Modified, owner),
                (false, true) => (Held::Shared, value),
                (false, false) => (Held::Exclusive, value),
            };
            state.agents[keeper].cells[alias as usize][usize::from(line)] = Some((held, value));
        } else if write {
            state.frames[location][usize::from(line)] = owner;
        }
        Ok(())
    }

    /// Takes a line out of a private cache; dirty data is written back.
    fn recall(&self, state: &mut State, core: usize, alias: Alias, line: u16) {
        let cell = state.agents[core].cells[alias as usize][usize::from(line)].take();
        if let Some((held, value)) = cell
            && held.is_dirty()
        {
            let location = self
                .service(state, alias, line, Request::WriteBack)
                .location;
            state.frames[location as usize][usize::from(line)] = value;
        }
    }

    /// The table's service; without an entry, the LLC's usual one.
    pub fn service(&self, state: &State, alias: Alias, line: u16, request: Request) -> Service {
        let table = &self.control(state).table;
        let frame = Self::frame(self.configuration.page_of(line), alias);
        match table.find(frame) {
            Some((entry, alias)) => {
                let rules = self.configuration.rules;
                let mut service = table.serve(entry, self.configuration.in_page(line), request);
                service.invalidate_opposite &= rules.invalidate_opposite;
                let redirect = match (request, alias) {
                    (Request::WriteBack, _) => rules.redirect_write_backs,
                    (_, Alias::Destination) => rules.redirect_destination,
                    _ => true,
                };
                if !redirect {
                    service.location = alias;
                }
                service
            }
            None => Service {
                location: alias,
                invalidate_opposite: false,
                retain: true,
            },
        }
    }

    fn copy_line(&mut self, state: &mut State, page: usize) -> Result<(), Violation> {
        let mut control = *self.control(state);
        let entry = control.pages[page].entry.expect("only a live entry copies");
        let before = control.table.pointer(entry);
        let step = control
            .table
            .copy_step(entry)
            .expect("the copy is not done");
        let copied = &mut control.pages[page].copied;
        let bit = 1_u64 << step.line;
        let increment = control.table.pointer(entry) == before + 1;
        let frames = [step.source, step.destination];
        let of_page = frames == ALIASES.map(|alias| Self::frame(page, alias));
        if step.line != before || !increment || !of_page || *copied & bit != 0 {
            return Err(Violation::Copy);
        }
        *copied |= bit;
        let recall = self.configuration.rules.recall_at_copy;
        let line = self.configuration.lines_of(page).start + u16::from(step.line);
        // Recall with the pointer where it was: the line is still at the source.
        for core in 0..self.configuration.cores {
            if step.recall_source && recall {
                self.recall(state, core, Alias::Source, line);
            }
            if step.recall_destination && recall {
                self.recall(state, core, Alias::Destination, line);
            }
        }
        let line = usize::from(line);
        state.frames[1][line] = state.frames[0][line];
        state.control = self.number(&control);
        if step.last {
            self.report(state, page, TransferEvent::Copied)?;
        }
        Ok(())
    }

    /// The operating system's next step, or the hardware's in its name.
    fn system(&mut self, state: &mut State, page: usize) -> Result<(), Violation> {
        let mut control = *self.control(state);
        let cores = 0..self.configuration.cores;
        let rules = self.configuration.rules;
        let frames = ALIASES.map(|alias| Self::frame(page, alias));
        let lines = self.configuration.lines_of(page);
        match control.pages[page].task {
            Task::Effect(TransferEffect::FlushDestination) => {
                if rules.flush_destination {
                    for line in lines {
                        for core in cores.clone() {
                            self.recall(state, core, Alias::Destination, line);
                        }
                    }
                }
                self.report(state, page, TransferEvent::DestinationFlushed)
            }
            Task::Effect(TransferEffect::Migrate) => {
                let Configuration { mode, order, .. } = self.configuration;
                let admission = match control.table.migrate(frames[0], frames[1], mode, order) {
                    Ok(admission) => admission,
                    Err(refusal @ Refusal::Full { .. }) => {
                        return self.report(state, page, TransferEvent::Refused(refusal));
                    }
                    Err(refusal) => return Err(protocol(refusal)),
                };
                control.pages[page].entry = Some(admission.entry);
                let recall = admission.recall_source_lines && rules.recall_source_at_migrate;
                if recall {
                    control.pages[page].task = Task::RecallSource {
                        line: lines.start,
                        clear: false,
                    };
                }
                state.control = self.number(&control);
                if recall {
                    return Ok(());
                }
                self.report(state, page, TransferEvent::Accepted)
            }
            Task::Effect(TransferEffect::SetPageTables) => {
                control.pages[page].task = Task::SetPageTables {
                    cores: true,
                    iommu: self.configuration.device,
                };
                if self.configuration.holders == Holders::BeforeSwitch {
                    control.pages[page].holders = self.holders(state, page);
                }
                state.control = self.number(&control);
                Ok(())
            }
            Task::Effect(TransferEffect::StartCopy) => {
                control.table.start_copy(live(&control.pages[page])?);
                control.pages[page].task = Task::Nothing;
                state.control = self.number(&control);
                Ok(())
            }
            Task::Effect(TransferEffect::Clear) => {
                let clearing = control
                    .table
                    .clear(live(&control.pages[page])?)
                    .map_err(protocol)?;
                if clearing.recall_source_lines && rules.recall_source_at_clear {
                    control.pages[page].task = Task::RecallSource {
                        line: lines.start,
                        clear: true,
                    };
                    state.control = self.number(&control);
                    return Ok(());
                }
                self.retire(state, page, control)
            }
            Task::RecallSource { line, clear } => {
                for core in cores {
                    self.recall(state, core, Alias::Source, line);
                }
                if line + 1 < lines.end {
                    control.pages[page].task = Task::RecallSource {
                        line: line + 1,
                        clear,
                    };
                    state.control = self.number(&control);
                    Ok(())
                } else if clear {
                    self.retire(state, page, control)
                } else {
                    self.report(state, page, TransferEvent::Accepted)
                }
            }
            Task::Effect(TransferEffect::FreeSource) => {
                control.pages[page].freed = true;
                control.pages[page].task = Task::Nothing;
                state.control = self.number(&control);
                Ok(())
            }
            task => Err(Violation::Protocol(format!("{task:?} is not a step"))),
        }
    }

    fn retire(
        &mut self,
        state: &mut State,
        page: usize,
        mut control: Control,
    ) -> Result<(), Violation> {
        control
            .table
            .retire(live(&control.pages[page])?)
            .map_err(protocol)?;
        if control.pages[page].copied != u64::MAX >> (64 - self.configuration.lines) {
            return Err(Violation::Copy);
        }
        control.pages[page].entry = None;
        control.pages[page].retired = true;
        state.control = self.number(&control);
        self.report(state, page, TransferEvent::Cleared)
    }

    fn set_tables(
        &mut self,
        state: &mut State,
        page: usize,
        of_cores: bool,
    ) -> Result<(), Violation> {
        let mut control = *self.control(state);
        let of = &mut control.pages[page];
        let Task::SetPageTables { cores, iommu } = &mut of.task else {
            unreachable!("only when tables are to be set");
        };
        if of_cores {
            *cores = false;
            of.core_tables = Alias::Destination;
        } else {
            *iommu = false;
            of.iommu_tables = Alias::Destination;
        }
        let done = !*cores && !*iommu;
        state.control = self.number(&control);
        if done {
            let agents = match self.configuration.holders {
                Holders::All => self.agents().map(|agent| self.agent(agent)).collect(),
                Holders::AfterSwitch => self.holders(state, page),
                Holders::BeforeSwitch => control.pages[page].holders,
            };
            let agents = self.awaited(agents);
            self.report(state, page, TransferEvent::PageTablesSet(agents))?;
        }
        Ok(())
    }

    /// Those of `agents` that the rules wait for.
    fn awaited(&self, mut agents: Agents) -> Agents {
        let rules = self.configuration.rules;
        if !rules.await_iotlb {
            agents = agents.without(Agent::IOMMU);
        }
        if !rules.await_every_core
            && let Some(core) = agents.iter().find(|&agent| agent != Agent::IOMMU)
        {
            agents = agents.without(core);
        }
        agents
    }

    /// Agents that hold the source mapping, are about to, or have sent requests by it.
    fn holders(&self, state: &State, page: usize) -> Agents {
        let holds = |agent: &usize| {
            let agent = &state.agents[*agent];
            self.names_source(agent, page)
                || matches!(
                    agent.translations[page],
                    Translation::Walking(Alias::Source) | Translation::Present(Alias::Source)
                )
        };
        let holders = self.agents().filter(holds);
        holders.map(|agent| self.agent(agent)).collect()
    }

    /// Tells the transfer what happened; what it wants becomes the next task.
    fn report(
        &mut self,
        state: &mut State,
        page: usize,
        event: TransferEvent,
    ) -> Result<(), Violation> {
        let mut control = *self.control(state);
        let of = &mut control.pages[page];
        let effect = of.transfer.on(event).map_err(protocol)?;
        let acknowledgement = matches!(
            event,
            TransferEvent::Invalidated(_) | TransferEvent::Drained(_)
        );
        if !acknowledgement || effect.is_some() {
            of.task = effect.map_or(Task::Nothing, Task::Effect);
        }
        state.control = self.number(&control);
        Ok(())
    }

    /// The next owner of the source frame uses it, with a translation of its own.
    fn next_owner(
        &mut self,
        state: &mut State,
        core: usize,
        line: u16,
        write: bool,
    ) -> Result<(), Violation> {
        let rewritten = self.is_rewritten(state, line);
        let cell = state.agents[core].cells[0][usize::from(line)];
        match cell {
            Some((held, value)) if !write && held != Held::OnTheWayBack => {
                if rewritten && value != Value::NextOwner {
                    return Err(Violation::NextOwnerReadsForeignData);
                }
            }
            Some((Held::Exclusive | Held::Modified, value)) => {
                if rewritten && value != Value::NextOwner {
                    return Err(Violation::NextOwnerReadsForeignData);
                }
                supersede(state, line, Value::NextOwner);
                state.agents[core].cells[0][usize::from(line)] =
                    Some((Held::Modified, Value::NextOwner));
            }
            _ => {
                let request = if write { Request::Own } else { Request::Read };
                self.perform(
                    state,
                    Some(core),
                    Alias::Source,
                    line,
                    request,
                    Value::NextOwner,
                )?;
            }
        }
        if write && !rewritten {
            let mut control = *self.control(state);
            let page = self.configuration.page_of(line);
            control.pages[page].rewritten |= 1 << self.configuration.in_page(line);
            state.control = self.number(&control);
        }
        Ok(())
    }

    fn forbid_double_alias(&self, state: &State) -> Result<(), Violation> {
        let cores = &state.agents[..self.configuration.cores];
        for line in 0..self.configuration.all_lines() {
            if self.page(state, line).entry.is_none() {
                continue;
            }
            let line = usize::from(line);
            let [source, destination] =
                [0, 1].map(|alias| cores.iter().any(|core| core.cells[alias][line].is_some()));
            if source && destination {
                return Err(Violation::DoubleAlias);
            }
        }
        Ok(())
    }

    /// Returns true if all migrations are over.
    pub fn is_done(&self, state: &State) -> bool {
        let pages = &self.control(state).pages[..self.configuration.pages];
        pages.iter().all(|page| page.freed)
    }

    /// The steps that bring a machine to rest in which no agent starts anything new.
    pub fn is_progress(action: Action) -> bool {
        matches!(
            action,
            Action::FinishWalk(..)
                | Action::Serve(_)
                | Action::Return { .. }
                | Action::Invalidate(..)
                | Action::Drain(..)
                | Action::CopyLine(_)
                | Action::System(_)
                | Action::SetCoreTables(_)
                | Action::SetIommuTables(_)
        )
    }

    fn agents(&self) -> impl Iterator<Item = usize> + use<> {
        let Configuration { cores, device, .. } = self.configuration;
        (0..cores).chain(device.then_some(cores))
    }

    fn agent(&self, agent: usize) -> Agent {
        if agent < self.configuration.cores {
            Agent::core(agent)
        } else {
            Agent::IOMMU
        }
    }

    pub fn control(&self, state: &State) -> &Control {
        &self.controls[state.control as usize]
    }

    /// The next owner of the line's frame has written it.
    fn is_rewritten(&self, state: &State, line: u16) -> bool {
        self.page(state, line).rewritten >> self.configuration.in_page(line) & 1 == 1
    }

    /// The migration of a line's page.
    fn page(&self, state: &State, line: u16) -> &PageControl {
        &self.control(state).pages[self.configuration.page_of(line)]
    }

    /// The frame of a page that an agent's page walk finds.
    pub(super) fn tables(&self, state: &State, agent: usize, page: usize) -> Alias {
        let page = &self.control(state).pages[page];
        if agent < self.configuration.cores {
            page.core_tables
        } else {
            page.iommu_tables
        }
    }

    /// Returns true if a request for a page's source is under way.
    fn names_source(&self, agent: &AgentState, page: usize) -> bool {
        agent.request.is_some_and(|request| {
            request.alias == Alias::Source && self.configuration.page_of(request.line) == page
        })
    }

    pub fn number(&mut self, control: &Control) -> u32 {
        if let Some(&number) = self.numbers.get(control) {
            return number;
        }
        let number = u32::try_from(self.controls.len()).expect("fewer controls than states");
        self.controls.push(*control);
        self.numbers.insert(*control, number);
        number
    }
}

fn live(page: &PageControl) -> Result<EntryId, Violation> {
    page.entry
        .ok_or_else(|| Violation::Protocol("no entry is live".to_owned()))
}

fn protocol(error: impl fmt::Display) -> Violation {
    Violation::Protocol(error.to_string())
}

fn expect(value: Value, owner: Value) -> Result<(), Violation> {
    if value == owner {
        Ok(())
    } else if owner == Value::Page {
        Err(Violation::StaleRead)
    } else {
        Err(Violation::NextOwnerReadsForeignData)
    }
}

/// A new write makes the owner's earlier one outdated, wherever it is.
fn supersede(state: &mut State, line: u16, owner: Value) {
    let line = usize::from(line);
    for alias in 0..2 {
        let frame = &mut state.frames[alias][line];
        if *frame == owner {
            *frame = Value::Outdated;
        }
        for agent in &mut state.agents {
            if let Some((_, value)) = &mut agent.cells[alias][line]
                && *value == owner
            {
                *value = Value::Outdated;
            }
        }
    }
}
