//! Steps and states of the machine in words.

use contigua_cache::migration::{Alias, Request};

use super::model::{ALIASES, Action, Held, InFlight, Model, State, Task, Translation};

impl Model {
    /// Contents of private caches, in words; `None` if they are empty.
    pub fn describe_caches(state: &State) -> Option<String> {
        let mut words = Vec::new();
        for (core, agent) in state.agents.iter().enumerate() {
            for alias in ALIASES {
                for (line, cell) in agent.cells[alias as usize].iter().enumerate() {
                    if let Some((held, value)) = cell {
                        words.push(format!(
                            "core {core} has line {line} of the {} ({held:?}, {value:?})",
                            by(alias)
                        ));
                    }
                }
            }
        }
        (!words.is_empty()).then(|| format!("at first, {}", words.join("; ")))
    }

    /// A step in words.
    pub fn describe(&self, state: &State, action: Action) -> String {
        let who = |agent: usize| {
            if agent < self.configuration.cores {
                format!("core {agent}")
            } else {
                "the device".to_owned()
            }
        };
        let verb = |write| if write { "writes" } else { "reads" };
        let of = |page: usize| match self.configuration.pages {
            1 => String::new(),
            _ => format!(" (page {page})"),
        };
        match action {
            Action::StartWalk(agent, page) => {
                let tables = by(self.tables(state, agent, page));
                format!("{}'s page walk reads: {tables}{}", who(agent), of(page))
            }
            Action::FinishWalk(agent, page) => {
                format!("{}'s page walk fills its TLB{}", who(agent), of(page))
            }
            Action::LoseTranslation(agent, page) => {
                format!("{}'s TLB evicts the page{}", who(agent), of(page))
            }
            Action::Access { agent, line, write } => {
                let page = self.configuration.page_of(line);
                let Translation::Present(alias) = state.agents[agent].translations[page] else {
                    return format!("{action:?}");
                };
                let held = match state.agents[agent].cells[alias as usize][usize::from(line)] {
                    Some((Held::Shared, _)) if !write => "hit",
                    Some((Held::Exclusive | Held::Modified, _)) => "hit",
                    _ => "request to the LLC",
                };
                let (verb, alias) = (verb(write), by(alias));
                format!("{} {verb} line {line} by the {alias}: {held}", who(agent))
            }
            Action::Send(agent, page, alias) => {
                format!(
                    "{} sends a request by the {}{}",
                    who(agent),
                    by(alias),
                    of(page)
                )
            }
            Action::Serve(agent) => {
                let Some(InFlight { alias, line, write }) = state.agents[agent].request else {
                    return format!("{action:?}");
                };
                let request = if write { Request::Own } else { Request::Read };
                let location = by(self.service(state, alias, line, request).location);
                let what = if write { "write" } else { "read" };
                let alias = by(alias);
                format!(
                    "the LLC serves {}'s {what} of line {line} by the {alias}, at the {location}",
                    who(agent)
                )
            }
            Action::Evict { core, alias, line } => {
                format!("core {core} evicts line {line} of the {}", by(alias))
            }
            Action::Return { core, alias, line } => {
                let service = self.service(state, alias, line, Request::WriteBack);
                format!(
                    "core {core}'s dirty line {line} of the {} comes back, to the {}",
                    by(alias),
                    by(service.location)
                )
            }
            Action::Invalidate(agent, page) => {
                format!("{} invalidates its TLB{}", who(agent), of(page))
            }
            Action::Drain(agent, page) => {
                format!("{}'s requests are drained{}", who(agent), of(page))
            }
            Action::CopyLine(page) => format!("the hardware copies the next line{}", of(page)),
            Action::System(page) => match self.control(state).pages[page].task {
                Task::Effect(effect) => format!("operating system: {effect:?}{}", of(page)),
                Task::RecallSource { line, .. } => {
                    format!("the hardware recalls line {line} of the source")
                }
                task => format!("{task:?}"),
            },
            Action::SetCoreTables(page) => {
                format!("operating system: page table := destination{}", of(page))
            }
            Action::SetIommuTables(page) => {
                format!("operating system: IOMMU table := destination{}", of(page))
            }
            Action::NextOwner { core, line, write } => {
                let verb = verb(write);
                format!("on core {core}, the source frame's next owner {verb} line {line}")
            }
        }
    }
}

fn by(alias: Alias) -> &'static str {
    match alias {
        Alias::Source => "source",
        Alias::Destination => "destination",
    }
}
