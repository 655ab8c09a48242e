//! The operating system's half: the steps of one migration, and who has acknowledged.

use super::{Refusal, SwitchOrder};

/// Someone with a TLB of its own: a core, or the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Agent(u8);

impl Agent {
    /// The IOMMU with its TLB, and the devices behind it.
    pub const IOMMU: Self = Self(127);

    /// A core by its number.
    ///
    /// # Panics
    /// If the number is 127 or above.
    #[must_use]
    pub const fn core(number: usize) -> Self {
        assert!(number < Self::IOMMU.0 as usize);
        Self(number as u8)
    }

    /// The core's number; `None` for the IOMMU.
    #[must_use]
    pub const fn core_number(self) -> Option<usize> {
        match self {
            Self::IOMMU => None,
            Self(number) => Some(number as usize),
        }
    }
}

/// A set of agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, contigua_state::Plain)]
pub struct Agents(u128);

impl Agents {
    /// Empty set.
    pub const NONE: Self = Self(0);

    /// Returns true if the set is empty.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of agents in the set.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns true if this agent is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, agent: Agent) -> bool {
        self.0 >> agent.0 & 1 == 1
    }

    /// The set and this agent.
    #[must_use]
    pub const fn with(self, agent: Agent) -> Self {
        Self(self.0 | 1 << agent.0)
    }

    /// The set without this agent.
    #[must_use]
    pub const fn without(self, agent: Agent) -> Self {
        Self(self.0 & !(1 << agent.0))
    }

    /// The agents that are in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Each agent, cores first and by number.
    pub fn iter(self) -> impl Iterator<Item = Agent> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let agent = (rest != 0).then(|| Agent(rest.trailing_zeros() as u8))?;
            rest &= rest - 1;
            Some(agent)
        })
    }
}

impl FromIterator<Agent> for Agents {
    fn from_iter<I: IntoIterator<Item = Agent>>(agents: I) -> Self {
        agents.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Event reported to the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferEvent {
    /// It has a free frame to move to, its own and mapped nowhere.
    DestinationReserved,
    /// No private cache has a line of the destination any more.
    DestinationFlushed,
    /// The hardware took the migration, and has recalled the source's lines if it had to.
    Accepted,
    /// It did not.
    Refused(Refusal),
    /// All lines are copied.
    Copied,
    /// The page tables, the IOMMU's too, name the destination. The agents are those that could
    /// hold the source mapping: the set is read *after* the page tables were written, because a
    /// core that joins the address space in between may still have walked the old entry.
    PageTablesSet(Agents),
    /// R2: the agent's TLB has no source mapping, and no page walk of its that read the old entry
    /// is still going to fill it. A core that sleeps and will flush when it wakes counts. Clear waits
    /// for every core (ours) and for the IOMMU (paper, section 2.1: the IOMMU's and the devices' TLBs
    /// follow the same steps).
    Invalidated(Agent),
    /// R3: requests with source addresses that the agent had sent when it invalidated (misses,
    /// store buffer, posted writes) have been served (ours). In [`SwitchOrder::SwitchThenCopy`] the
    /// copy waits for it already.
    Drained(Agent),
    /// The hardware has retired the entry.
    Cleared,
}

/// Next action of the operating system, which then reports its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferEffect {
    /// Invalidate the destination's lines in private caches: [`TransferEvent::DestinationFlushed`].
    /// A dirty line of the frame's previous owner would be redirected onto the source (ours).
    FlushDestination,
    /// Send Migrate, after a refusal not before an entry was retired: [`TransferEvent::Accepted`]
    /// or [`TransferEvent::Refused`].
    Migrate,
    /// Give the destination back; the migration is over without having begun.
    Abandon,
    /// Write the page tables, then find out whose TLBs matter: [`TransferEvent::PageTablesSet`].
    SetPageTables,
    /// Let each agent of [`Transfer::missing`] invalidate when it next passes through the kernel
    /// (a context switch, a system call, an interrupt, the timer tick), and queue an invalidation
    /// for the IOMMU: [`TransferEvent::Invalidated`] and [`TransferEvent::Drained`] of each.
    AwaitAcknowledgements,
    /// Tell the hardware to copy: [`TransferEvent::Copied`].
    StartCopy,
    /// Send Clear: [`TransferEvent::Cleared`].
    Clear,
    /// Free the source frame; the migration is over.
    FreeSource,
}

/// Phase of a migration, by the event that the operating system waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, contigua_state::Plain)]
pub enum Phase {
    /// A free frame.
    Reserve,
    /// The destination leaves private caches.
    Flush,
    /// The hardware takes the migration.
    Admit,
    /// The hardware copies.
    Copy,
    /// The page tables are written.
    Switch,
    /// Acknowledgements (R2, R3).
    Acknowledge,
    /// The hardware retires the entry (R1, R4).
    Clear,
    /// Nothing: the page is at the destination.
    Done,
    /// Nothing: the hardware refused the migration for good.
    Abandoned,
}

/// An event that cannot happen in this phase: the caller has lost track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} while the migration waits for {phase:?}")]
pub struct UnexpectedEvent {
    /// Phase of the migration.
    pub phase: Phase,
    /// The event that was reported.
    pub event: TransferEvent,
}

/// The operating system's half of one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, contigua_state::Plain)]
pub struct Transfer {
    /// Agents that have not acknowledged R2.
    uninvalidated: Agents,
    /// Agents that have not acknowledged R3.
    undrained: Agents,
    order: SwitchOrder,
    phase: Phase,
}

impl Transfer {
    /// A migration that waits for [`TransferEvent::DestinationReserved`].
    #[must_use]
    pub const fn new(order: SwitchOrder) -> Self {
        Self {
            uninvalidated: Agents::NONE,
            undrained: Agents::NONE,
            order,
            phase: Phase::Reserve,
        }
    }

    /// Takes in what happened and says what to do next, if anything.
    ///
    /// Agents invalidate for many reasons, so their acknowledgements are welcome at any time, and
    /// count if the migration waits for them.
    ///
    /// # Errors
    /// [`UnexpectedEvent`]; nothing has changed.
    pub fn on(&mut self, event: TransferEvent) -> Result<Option<TransferEffect>, UnexpectedEvent> {
        use SwitchOrder::{CopyThenSwitch, SwitchThenCopy};
        use TransferEvent as Event;

        let effect = match (self.phase, event) {
            (_, Event::Invalidated(agent)) => return Ok(self.acknowledge(agent, false)),
            (_, Event::Drained(agent)) => return Ok(self.acknowledge(agent, true)),
            (Phase::Reserve, Event::DestinationReserved) => {
                self.go(Phase::Flush, TransferEffect::FlushDestination)
            }
            (Phase::Flush, Event::DestinationFlushed)
            | (Phase::Admit, Event::Refused(Refusal::Full { .. })) => {
                self.go(Phase::Admit, TransferEffect::Migrate)
            }
            (Phase::Admit, Event::Refused(_)) => self.go(Phase::Abandoned, TransferEffect::Abandon),
            (Phase::Admit, Event::Accepted) => match self.order {
                CopyThenSwitch => {
                    self.phase = Phase::Copy;
                    return Ok(None);
                }
                SwitchThenCopy => self.go(Phase::Switch, TransferEffect::SetPageTables),
            },
            (Phase::Copy, Event::Copied) => match self.order {
                CopyThenSwitch => self.go(Phase::Switch, TransferEffect::SetPageTables),
                SwitchThenCopy => self.go(Phase::Clear, TransferEffect::Clear),
            },
            (Phase::Switch, Event::PageTablesSet(agents)) => {
                self.uninvalidated = agents;
                self.undrained = agents;
                if agents.is_empty() {
                    self.acknowledged()
                } else {
                    self.go(Phase::Acknowledge, TransferEffect::AwaitAcknowledgements)
                }
            }
            (Phase::Clear, Event::Cleared) => self.go(Phase::Done, TransferEffect::FreeSource),
            (phase, event) => return Err(UnexpectedEvent { phase, event }),
        };
        Ok(Some(effect))
    }

    /// Phase of the migration.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns true if the migration is over, one way or the other.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::Abandoned)
    }

    /// Agents that have still to acknowledge.
    #[must_use]
    pub const fn missing(&self) -> Agents {
        self.uninvalidated.union(self.undrained)
    }

    /// Agents whose invalidation (R2) is missing.
    #[must_use]
    pub const fn uninvalidated(&self) -> Agents {
        self.uninvalidated
    }

    /// Returns the migration with the agents renamed. All agents are alike to it, which lets a model
    /// checker look at one state of each symmetric group.
    #[must_use]
    pub fn renamed(self, name: impl Fn(Agent) -> Agent) -> Self {
        Self {
            uninvalidated: self.uninvalidated.iter().map(&name).collect(),
            undrained: self.undrained.iter().map(&name).collect(),
            ..self
        }
    }

    fn go(&mut self, phase: Phase, effect: TransferEffect) -> TransferEffect {
        self.phase = phase;
        effect
    }

    fn acknowledge(&mut self, agent: Agent, drained: bool) -> Option<TransferEffect> {
        let missing = self.missing();
        if !drained {
            self.uninvalidated = self.uninvalidated.without(agent);
        } else if !self.uninvalidated.contains(agent) {
            // Until it has invalidated, an agent can send more requests.
            self.undrained = self.undrained.without(agent);
        }
        (!missing.is_empty() && self.missing().is_empty()).then(|| self.acknowledged())
    }

    /// R2 and R3 hold.
    fn acknowledged(&mut self) -> TransferEffect {
        match self.order {
            SwitchOrder::CopyThenSwitch => self.go(Phase::Clear, TransferEffect::Clear),
            SwitchOrder::SwitchThenCopy => self.go(Phase::Copy, TransferEffect::StartCopy),
        }
    }
}
