//! Takes the engine's trace step by step, and refuses what no step of the model does.
//!
//! A page of the engine that migrates is a page of the model; all that migrate at a time are pages
//! of one model, and share its table. What the engine does to a page's lines, and what its
//! operating system does, are steps of the model by name. Two kinds are not in the trace. A TLB
//! evicts and walks fill it unseen: an access by a frame that the model's TLB does not name is
//! explained by an eviction and a walk, if the model's page tables name that frame, and a core that
//! the engine will wait for may have walked before the page tables are set. One that it will not
//! wait for holds nothing: in the model it acknowledges at once.
//!
//! After each step, the abstraction of the engine's state is the model's: where the engine serves
//! a line, which private caches have it in which of MESI's states (S stands for E where the
//! engine's directory took a core for a sharer that had dropped its line), whether the data are the
//! last write, the pointer, and who has to acknowledge.

use std::collections::HashMap;

use contigua_cache::coherent::{Access, Accessor, Event};
use contigua_cache::migration::{
    Agent, Agents, Alias, EntryId, Mode, Request, SwitchOrder, TransferEvent,
};
use contigua_units::{Frame, VirtAddr};

use super::protocol::model::{
    Action, Configuration, Held, Holders, Model, PageControl, State, Task, Translation, Value,
};
use super::protocol::rules::Rules;
use super::protocol::{MAX_CORES, MAX_PAGES};
use crate::recorder::{Record, Version};

const LINES: u64 = 64;
/// States of table and operating system that a model keeps before it forgets them.
const MAX_CONTROLS: usize = 20_000;

type Result<T = ()> = std::result::Result<T, String>;

/// A page that is followed.
struct Page {
    entry: Option<EntryId>,
    /// Source and destination.
    frames: [Frame; 2],
    /// Address space and address; `None` for a buffer.
    address: Option<(u64, VirtAddr)>,
    /// The last write of each line, if it is known.
    last: [Option<Version>; LINES as usize],
    /// The last write of the source frame's next owner.
    last_of_next_owner: [Option<Version>; LINES as usize],
    /// Number of its migration.
    number: u64,
}

/// A line of a page that is followed.
#[derive(Clone, Copy)]
struct Place {
    page: usize,
    alias: Alias,
    /// In its page.
    offset: usize,
    /// Among the model's.
    line: u16,
}

/// Steps that were accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accepted {
    /// Events of pages that are followed.
    pub events: u64,
    /// Steps of the model that the trace tells.
    pub steps: u64,
    /// Steps of TLBs and page walks, which it does not tell.
    pub unseen: u64,
    pub migrations: u64,
    pub copies: u64,
    pub redirected: u64,
    pub write_backs: u64,
    pub device: u64,
    pub next_owner: u64,
    /// The most that were under way at a time.
    pub most: usize,
}

/// A model that follows an engine.
pub(super) struct Acceptor {
    configuration: Configuration,
    model: Model,
    state: State,
    /// A page before its migration.
    fresh: PageControl,
    pages: Vec<Option<Page>>,
    /// Pages by the frames that they have.
    frames: HashMap<Frame, (usize, Alias)>,
    /// Last write of each line by its physical address, if it is known.
    last: HashMap<u64, Option<Version>>,
    /// The page that a core's program accesses next.
    named: [Option<(u64, VirtAddr)>; MAX_CORES],
    /// The page whose lines are being told for the first time.
    begins: Option<usize>,
    pub accepted: Accepted,
}

impl Acceptor {
    pub(super) fn new(cores: usize, entries: u8, order: SwitchOrder, mode: Mode) -> Self {
        let configuration = Configuration {
            cores,
            pages: MAX_PAGES,
            entries,
            lines: LINES as u8,
            device: true,
            order,
            mode,
            rules: Rules::ALL,
            requests_travel: true,
            invalidation_stops_walks: true,
            drains_reported: true,
            holders: Holders::All,
            reuse: true,
            every_agent_invalidates: true,
            forbid_double_alias: true,
            contents: true,
        };
        let mut model = Model::new(configuration);
        let state = model.clean_state();
        let fresh = model.control(&state).pages[0];
        Self {
            configuration,
            model,
            state,
            fresh,
            pages: (0..MAX_PAGES).map(|_| None).collect(),
            frames: HashMap::new(),
            last: HashMap::new(),
            named: [None; MAX_CORES],
            begins: None,
            accepted: Accepted::default(),
        }
    }

    /// Takes a record of the engine.
    ///
    /// # Errors
    /// A sentence that says what the model does not do.
    pub(super) fn accept(&mut self, record: &Record) -> Result {
        let concerns = match *record {
            Record::Event(event) => self.event(event)?,
            Record::Access(access, version) => self.access(access, version)?,
        };
        self.accepted.events += u64::from(concerns);
        Ok(())
    }

    /// Takes an event; returns true if it concerns a page that is followed.
    fn event(&mut self, event: Event) -> Result<bool> {
        match event {
            Event::Program { core, space, page } => {
                self.named[core] = Some((space, page));
                return Ok(false);
            }
            Event::Began {
                entry,
                source,
                destination,
            } => self.begin(entry, [source, destination])?,
            Event::Admitted { entry } => self.admit(entry)?,
            Event::Moves { entry, space, page } => {
                let number = self.page_of(entry)?;
                self.page_mut(number).address = Some((space, page));
            }
            Event::Line {
                line,
                shared,
                exclusive,
                modified,
            } => {
                let Some(place) = self.find(line) else {
                    return Ok(false);
                };
                let held = [shared, exclusive, modified];
                if self.begins == Some(place.page) {
                    self.enter(place, held)?;
                } else {
                    self.compare(place, held)?;
                }
            }
            Event::Served {
                agent,
                line,
                write,
                backing,
            } => return self.serve(agent, line, write, backing),
            Event::WroteBack { line, backing } => {
                let Some(place) = self.find(line) else {
                    return Ok(false);
                };
                self.accepted.write_backs += 1;
                self.expect_location(place, Request::WriteBack, line, backing)?;
            }
            Event::Evicted { core, line } => {
                let Some(place) = self.find(line) else {
                    return Ok(false);
                };
                let Place { alias, line, .. } = place;
                self.step(Action::Evict { core, alias, line })?;
                if self.held(place, core) == Some(Held::OnTheWayBack) {
                    self.step(Action::Return { core, alias, line })?;
                }
            }
            Event::CopyStarted { entry } | Event::Cleared { entry } => {
                let page = self.page_of(entry)?;
                self.step(Action::System(page))?;
            }
            Event::Copied { entry, line } => {
                let page = self.page_of(entry)?;
                self.step(Action::CopyLine(page))?;
                self.accepted.copies += 1;
                let control = self.model.control(&self.state);
                let entry = control.pages[page].entry;
                let pointer = entry.map(|entry| control.table.pointer(entry));
                if pointer != Some(line + 1) {
                    return Err(format!(
                        "the engine copies line {line}; the model's pointer is {pointer:?}"
                    ));
                }
            }
            Event::Retired { entry } => {
                let page = self.page_of(entry)?;
                self.recall(page)?;
                if !self.model.control(&self.state).pages[page].retired {
                    return Err("the engine retires an entry that the model keeps".to_owned());
                }
            }
            Event::Told { entry, event } => self.told(entry, event)?,
        }
        Ok(true)
    }

    /// A migration begins: a page of the model is its, in the state before Migrate.
    fn begin(&mut self, entry: EntryId, frames: [Frame; 2]) -> Result {
        for frame in frames {
            if let Some(&(page, _)) = self.frames.get(&frame) {
                self.forget(page)?;
            }
        }
        let ended = |page: &Option<Page>| page.as_ref().is_none_or(|page| page.entry.is_none());
        let number = |page: &Option<Page>| page.as_ref().map_or(0, |page| page.number);
        let free = (0..MAX_PAGES).filter(|&page| ended(&self.pages[page]));
        let page = free
            .min_by_key(|&page| number(&self.pages[page]))
            .ok_or("more pages migrate than the table has entries")?;
        self.forget(page)?;
        let mut last = [None; LINES as usize];
        for (offset, last) in (0..).zip(&mut last) {
            let [source, destination] = frames.map(|frame| line_of(frame, offset));
            *last = self.last_of(source);
            self.last.insert(destination, *last);
        }
        self.accepted.migrations += 1;
        self.pages[page] = Some(Page {
            entry: Some(entry),
            frames,
            address: None,
            last,
            last_of_next_owner: [None; LINES as usize],
            number: self.accepted.migrations,
        });
        self.frames.insert(frames[0], (page, Alias::Source));
        self.frames.insert(frames[1], (page, Alias::Destination));
        self.begins = Some(page);
        let live = self.pages.iter().flatten();
        let live = live.filter(|page| page.entry.is_some()).count();
        self.accepted.most = self.accepted.most.max(live);
        Ok(())
    }

    /// Last write of a line: its first contents, if it was not written since the trace began.
    fn last_of(&self, line: u64) -> Option<Version> {
        let last = self.last.get(&line).copied();
        last.unwrap_or_else(|| Some(Version::first(line)))
    }

    /// Frees a page of the model.
    fn forget(&mut self, page: usize) -> Result {
        let Some(old) = self.pages[page].take() else {
            return Ok(());
        };
        if old.entry.is_some() {
            return Err("a frame of a migration takes part in another".to_owned());
        }
        for frame in old.frames {
            self.frames.remove(&frame);
        }
        for line in self.configuration.lines_of(page) {
            for alias in 0..2 {
                for agent in &mut self.state.agents {
                    agent.cells[alias][usize::from(line)] = None;
                }
            }
            self.state.frames[0][usize::from(line)] = Value::Page;
            self.state.frames[1][usize::from(line)] = Value::Outdated;
        }
        for agent in &mut self.state.agents {
            agent.translations[page] = Translation::Absent;
        }
        let mut control = *self.model.control(&self.state);
        control.pages[page] = self.fresh;
        self.state.control = self.model.number(&control);
        Ok(())
    }

    /// Lines of a page that begins to migrate are in private caches.
    fn enter(&mut self, place: Place, held: [u64; 3]) -> Result {
        if place.alias == Alias::Destination {
            // Flushed: the model's cache has nothing either.
            return self.compare(place, held);
        }
        let states = [Held::Shared, Held::Exclusive, Held::Modified];
        let line = usize::from(place.line);
        for core in 0..self.configuration.cores {
            for (mask, state) in held.into_iter().zip(states) {
                if mask >> core & 1 == 1 {
                    self.state.agents[core].cells[0][line] = Some((state, Value::Page));
                }
            }
        }
        if held[2] != 0 {
            self.state.frames[0][line] = Value::Outdated;
        }
        Ok(())
    }

    /// All lines were told: the flush and Migrate.
    fn admit(&mut self, entry: EntryId) -> Result {
        self.begins = None;
        let page = self.page_of(entry)?;
        self.step(Action::System(page))?;
        self.step(Action::System(page))?;
        self.recall(page)
    }

    /// The hardware recalls the source's lines, if it has to.
    fn recall(&mut self, page: usize) -> Result {
        while let Task::RecallSource { .. } = self.model.control(&self.state).pages[page].task {
            self.step(Action::System(page))?;
        }
        Ok(())
    }

    /// The operating system's half is told something.
    fn told(&mut self, entry: EntryId, event: TransferEvent) -> Result {
        let page = self.page_of(entry)?;
        match event {
            TransferEvent::PageTablesSet(agents) => self.switch(page, agents),
            TransferEvent::Invalidated(agent) => {
                self.step(Action::Invalidate(self.number_of(agent), page))
            }
            TransferEvent::Drained(agent) => self.step(Action::Drain(self.number_of(agent), page)),
            TransferEvent::Cleared => {
                let of = self.page_mut(page);
                of.entry = None;
                // The source's lines are as old as their last recalls. It is freed.
                let source = of.frames[0];
                let lines = (0..LINES).map(|offset| (line_of(source, offset), None));
                self.last.extend(lines);
                self.step(Action::System(page))
            }
            TransferEvent::Copied => {
                let copied = self.model.control(&self.state).pages[page].copied;
                if copied == u64::MAX {
                    Ok(())
                } else {
                    Err(format!("only the lines {copied:#x} are copied"))
                }
            }
            TransferEvent::DestinationReserved
            | TransferEvent::DestinationFlushed
            | TransferEvent::Accepted
            | TransferEvent::Refused(_) => Ok(()),
        }
    }

    /// The page tables are set, and some agents are waited for.
    fn switch(&mut self, page: usize, agents: Agents) -> Result {
        let waits_for = |number: usize| {
            let agent = match number {
                core if core < self.configuration.cores => Agent::core(core),
                _ => Agent::IOMMU,
            };
            agents.contains(agent)
        };
        let agents = 0..=self.configuration.cores;
        let (holders, others): (Vec<_>, Vec<_>) = agents.partition(|&agent| waits_for(agent));
        for agent in holders {
            if self.state.agents[agent].translations[page] == Translation::Absent {
                self.step_unseen(Action::StartWalk(agent, page))?;
                self.step_unseen(Action::FinishWalk(agent, page))?;
            }
        }
        self.step(Action::System(page))?;
        self.step(Action::SetCoreTables(page))?;
        self.step(Action::SetIommuTables(page))?;
        for agent in others {
            self.step(Action::Invalidate(agent, page))?;
            self.step(Action::Drain(agent, page))?;
        }
        Ok(())
    }

    /// The home of a line serves a request.
    fn serve(
        &mut self,
        agent: Option<usize>,
        line: u64,
        write: bool,
        backing: u64,
    ) -> Result<bool> {
        let Some(place) = self.find(line) else {
            return Ok(false);
        };
        let request = match (agent, write) {
            (Some(_), false) => Request::Read,
            (Some(_), true) => Request::Own,
            (None, false) => Request::DeviceRead,
            (None, true) => Request::DeviceWrite,
        };
        self.accepted.device += u64::from(agent.is_none());
        self.accepted.redirected += u64::from(line != backing);
        self.expect_location(place, request, line, backing)?;
        if let Some(core) = agent {
            let held = self.held(place, core);
            let misses = match held {
                None | Some(Held::Shared) => held.is_none() || write,
                Some(Held::Exclusive) => write,
                Some(Held::Modified | Held::OnTheWayBack) => false,
            };
            if !misses {
                return Err(format!(
                    "core {core} misses a line that is {held:?} in the model's cache"
                ));
            }
        }
        if self.is_next_owners(place, agent) {
            let Some(core) = agent else {
                // The model's next owner is a program.
                self.forget(place.page)?;
                return Ok(true);
            };
            let line = place.line;
            self.step(Action::NextOwner { core, line, write })?;
            self.accepted.next_owner += 1;
            return Ok(true);
        }
        let agent = agent.unwrap_or(self.configuration.cores);
        self.translate(agent, place)?;
        let line = place.line;
        self.step(Action::Access { agent, line, write })?;
        if self.state.agents[agent].request.is_some() {
            self.step(Action::Serve(agent))?;
        }
        Ok(true)
    }

    /// An access reaches a line's data.
    fn access(&mut self, access: Access, version: Version) -> Result<bool> {
        let Access { by, line, write } = access;
        let named = match by {
            Accessor::Core(core) => Some(core),
            Accessor::AtHome(core) => core,
            Accessor::Engine => None,
        };
        let Some(place) = self.find(line) else {
            if write {
                self.last.insert(line, Some(version));
            }
            self.unname(named);
            return Ok(false);
        };
        let is_next_owners = by != Accessor::Engine && self.is_next_owners(place, named);
        if let Accessor::Core(core) = by {
            let held = self.held(place, core);
            let hits = match held {
                None | Some(Held::OnTheWayBack) => false,
                Some(Held::Shared) => !write,
                Some(Held::Exclusive | Held::Modified) => true,
            };
            if !hits {
                return Err(format!(
                    "core {core} hits a line that is {held:?} in the model's cache"
                ));
            }
            let line = place.line;
            if is_next_owners {
                self.step(Action::NextOwner { core, line, write })?;
                self.accepted.next_owner += 1;
            } else {
                self.translate(core, place)?;
                if !write || held != Some(Held::Modified) {
                    // A hit of the last write changes nothing, and is no step of the model.
                    let agent = core;
                    let action = Action::Access { agent, line, write };
                    if self.model.allows(&self.state, action) {
                        self.step(action)?;
                    }
                }
            }
        }
        self.unname(named);
        self.follow_data(place, is_next_owners, write, line, version)?;
        Ok(true)
    }

    /// The data of an access are the last write, or the next one.
    fn follow_data(
        &mut self,
        place: Place,
        is_next_owners: bool,
        write: bool,
        line: u64,
        version: Version,
    ) -> Result {
        let page = self.page_mut(place.page);
        if is_next_owners {
            let last = &mut page.last_of_next_owner[place.offset];
            if write {
                *last = Some(version);
                self.last.insert(line, Some(version));
            } else if last.is_some_and(|last| last != version) {
                return Err(format!("the next owner reads {version:?}, not {last:?}"));
            }
            return Ok(());
        }
        let last = &mut page.last[place.offset];
        if write {
            *last = Some(version);
            let destination = line_of(page.frames[1], line % LINES);
            self.last.insert(destination, Some(version));
        } else if *last.get_or_insert(version) != version {
            return Err(format!(
                "line {} of the {:?} is read as {version:?}, last written as {last:?}",
                place.offset, place.alias
            ));
        }
        Ok(())
    }

    /// An agent uses a frame: its TLB names it, or evicted the page and a walk finds it.
    fn translate(&mut self, agent: usize, place: Place) -> Result {
        let Place { page, alias, .. } = place;
        let translation = self.state.agents[agent].translations[page];
        if translation == Translation::Present(alias) {
            return Ok(());
        }
        if translation != Translation::Absent {
            self.step_unseen(Action::LoseTranslation(agent, page))?;
        }
        self.step_unseen(Action::StartWalk(agent, page))?;
        self.step_unseen(Action::FinishWalk(agent, page))?;
        if self.state.agents[agent].translations[page] == Translation::Present(alias) {
            return Ok(());
        }
        Err(format!(
            "agent {agent} uses the {alias:?}, which neither its TLB nor the page tables name"
        ))
    }

    /// Private caches have a line as the model's have it.
    fn compare(&self, place: Place, held: [u64; 3]) -> Result {
        for core in 0..self.configuration.cores {
            let [shared, exclusive, modified] = held.map(|mask| mask >> core & 1 == 1);
            let model = self.held(place, core);
            let agrees = match model {
                None => !(shared || exclusive || modified),
                Some(Held::Shared) => shared,
                Some(Held::Exclusive) => exclusive || shared,
                Some(Held::Modified) => modified,
                Some(Held::OnTheWayBack) => false,
            };
            if !agrees {
                let engine = ["S", "E", "M"]
                    .into_iter()
                    .zip([shared, exclusive, modified]);
                let engine: String = engine.filter(|&(_, is)| is).map(|(name, _)| name).collect();
                return Err(format!(
                    "core {core} has line {} of the {:?} as {engine:?}, in the model as {model:?}",
                    place.offset, place.alias
                ));
            }
        }
        Ok(())
    }

    /// The engine and the model serve a request from the same frame.
    fn expect_location(&self, place: Place, request: Request, line: u64, backing: u64) -> Result {
        let service = self
            .model
            .service(&self.state, place.alias, place.line, request);
        let page = self.page(place.page);
        let frame = page.frames[service.location as usize];
        let expected = line_of(frame, line % LINES);
        if backing == expected {
            return Ok(());
        }
        Err(format!(
            "{request:?} of line {} of the {:?} goes to {backing:#x}; the model's goes to the \
             {:?}, {expected:#x}",
            place.offset, place.alias, service.location
        ))
    }

    /// A step that the trace does not tell.
    fn step_unseen(&mut self, action: Action) -> Result {
        self.step(action)?;
        self.accepted.steps -= 1;
        self.accepted.unseen += 1;
        Ok(())
    }

    fn step(&mut self, action: Action) -> Result {
        if !self.model.allows(&self.state, action) {
            return Err(format!(
                "not a step of the model now: {} ({action:?})",
                self.model.describe(&self.state, action)
            ));
        }
        self.state = self.model.step(&self.state, action).map_err(|violation| {
            format!("{}: {violation}", self.model.describe(&self.state, action))
        })?;
        self.accepted.steps += 1;
        if self.model.controls() > MAX_CONTROLS {
            let control = *self.model.control(&self.state);
            self.model = Model::new(self.configuration);
            self.state.control = self.model.number(&control);
        }
        Ok(())
    }

    /// Returns true if an access by a source frame that was freed is one of the frame's next owner:
    /// the program of the core accesses another page.
    fn is_next_owners(&self, place: Place, core: Option<usize>) -> bool {
        let freed = self.model.control(&self.state).pages[place.page].freed;
        let named = core.and_then(|core| self.named[core]);
        let page = self.page(place.page);
        // The next owner may be the same address, whose new page was zeroed.
        let is_new = page.last_of_next_owner.iter().all(Option::is_some);
        let is_pages = named.is_some() && named == page.address && !is_new;
        place.alias == Alias::Source && freed && !is_pages
    }

    fn unname(&mut self, core: Option<usize>) {
        if let Some(core) = core {
            self.named[core] = None;
        }
    }

    fn held(&self, place: Place, core: usize) -> Option<Held> {
        let cells = &self.state.agents[core].cells[place.alias as usize];
        cells[usize::from(place.line)].map(|(held, _)| held)
    }

    fn find(&self, line: u64) -> Option<Place> {
        let frame = Frame::new(u32::try_from(line / LINES).ok()?);
        let &(page, alias) = self.frames.get(&frame)?;
        let offset = line % LINES;
        Some(Place {
            page,
            alias,
            offset: offset as usize,
            line: self.configuration.lines_of(page).start + offset as u16,
        })
    }

    fn page(&self, page: usize) -> &Page {
        self.pages[page].as_ref().expect("its frames are known")
    }

    fn page_mut(&mut self, page: usize) -> &mut Page {
        self.pages[page].as_mut().expect("its frames are known")
    }

    fn page_of(&self, entry: EntryId) -> Result<usize> {
        let is_its = |page: &Option<Page>| page.as_ref().is_some_and(|p| p.entry == Some(entry));
        let page = self.pages.iter().position(is_its);
        page.ok_or_else(|| format!("{entry:?} is not live"))
    }

    fn number_of(&self, agent: Agent) -> usize {
        agent.core_number().unwrap_or(self.configuration.cores)
    }
}

/// The physical address of a frame's line, in lines.
fn line_of(frame: Frame, offset: u64) -> u64 {
    u64::from(frame.get()) * LINES + offset
}
