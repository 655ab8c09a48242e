//! Page migration in the last-level cache: the protocol of Contiguitas-HW.
//!
//! A page moves from a source frame to a destination frame while programs and devices use it. The
//! LLC keeps both frames of a migration and a pointer to the next line to copy in a table, and
//! sends each access, whichever frame it names, to the frame that has the line. So both mappings
//! stay valid, no core has to be interrupted, and each invalidates its TLB when it next passes
//! through the kernel.
//!
//! The protocol is here once, as two state machines without clocks, buses or allocation. [`Table`]
//! is the hardware's half: events are its methods, effects are what they return, and the caller
//! performs them. [`Transfer`] is the operating system's half of one migration: which step is due,
//! and whose acknowledgement is missing. The simulated machine and the model checker of
//! `tests/protocol` drive the same code, so what was checked is what runs.
//!
//! Sources are the Contiguitas paper (ISCA 2023) and its authors' article; `docs/design/migration.md`
//! says which rule stands where, which ones are ours, and what was checked.
//!
//! # Who does what
//!
//! | effect | performed by |
//! |---|---|
//! | [`TransferEffect::FlushDestination`] | invalidate the destination's lines in private caches |
//! | [`TransferEffect::Migrate`] | [`Table::migrate`]; recall the source's lines if [`Admission`] says so |
//! | [`TransferEffect::SetPageTables`] | write the entries of the page tables and of the IOMMU |
//! | [`TransferEffect::AwaitAcknowledgements`] | each agent reports [`TransferEvent::Invalidated`] and [`TransferEvent::Drained`] in its own time |
//! | [`TransferEffect::StartCopy`] | [`Table::start_copy`] |
//! | (the copying engine) | [`Table::copy_step`] until it returns a step that is `last`, then [`TransferEvent::Copied`] |
//! | [`TransferEffect::Clear`] | [`Table::clear`]; recall the source's lines if [`Clearing`] says so; [`Table::retire`] |
//! | [`TransferEffect::FreeSource`] | free the frame |

mod probe;
mod protocol;
mod transfer;

pub use probe::Probe;
pub use protocol::{
    Admission, Alias, ClearError, Clearing, CopyStep, EntryId, LINES_PER_PAGE, LOOKUP_FEMTOJOULES,
    MAX_ENTRIES, Mode, Refusal, Request, Retired, Service, SwitchOrder, Table,
};
pub use transfer::{
    Agent, Agents, Phase, Transfer, TransferEffect, TransferEvent, UnexpectedEvent,
};
