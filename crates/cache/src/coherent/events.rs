//! Events for observers of a memory system: tests follow every step of a migration by them. The
//! simulated server has no observer, and its code nothing of this.

use contigua_units::{Frame, VirtAddr};

use crate::migration::{EntryId, TransferEvent};

/// Event in a memory system. Lines are physical addresses, in lines; an agent is a core by its
/// number, or `None` for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A core's next access is one of its program to this page.
    Program {
        /// The core.
        core: usize,
        /// Address space.
        space: u64,
        /// First address of the page.
        page: VirtAddr,
    },
    /// The home of a line serves a request.
    Served {
        /// The requester.
        agent: Option<usize>,
        /// The line, as the requester names it.
        line: u64,
        /// A write, or a request to own the line.
        write: bool,
        /// The line that has the data.
        backing: u64,
    },
    /// A private cache gives a modified line back.
    WroteBack {
        /// The line, as the core named it.
        line: u64,
        /// The line that takes the data.
        backing: u64,
    },
    /// A core's private caches gave a line up for want of room.
    Evicted {
        /// The core.
        core: usize,
        /// The line, as the core named it.
        line: u64,
    },
    /// A step that concerns this line is complete: cores whose private caches have it, as bits.
    Line {
        /// The line, as cores name it.
        line: u64,
        /// Cores that have it in MESI's state S.
        shared: u64,
        /// In state E.
        exclusive: u64,
        /// In state M.
        modified: u64,
    },
    /// A migration begins; its source's lines in private caches follow ([`Event::Line`]).
    Began {
        /// Its entry.
        entry: EntryId,
        /// The frame that the page leaves.
        source: Frame,
        /// The frame that it goes to.
        destination: Frame,
    },
    /// All lines of the source that are in private caches were told. They are recalled next, if
    /// they have to be.
    Admitted {
        /// The entry.
        entry: EntryId,
    },
    /// The page of a migration is this one.
    Moves {
        /// The entry.
        entry: EntryId,
        /// Address space.
        space: u64,
        /// First address of the page.
        page: VirtAddr,
    },
    /// The operating system lets the copy begin.
    CopyStarted {
        /// The entry.
        entry: EntryId,
    },
    /// The engine copies a line.
    Copied {
        /// The entry.
        entry: EntryId,
        /// Line of the page.
        line: u8,
    },
    /// The operating system sends Clear.
    Cleared {
        /// The entry.
        entry: EntryId,
    },
    /// Private caches have given up the source's lines, if they had to: the entry goes.
    Retired {
        /// The entry.
        entry: EntryId,
    },
    /// The operating system's half of a migration takes in an event.
    Told {
        /// The entry.
        entry: EntryId,
        /// The event.
        event: TransferEvent,
    },
}

/// Access to the data of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who accesses it.
    pub by: Accessor,
    /// The line, as the accessor names it.
    pub line: u64,
    /// A write.
    pub write: bool,
}

/// Accessor of a line's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessor {
    /// A core, in its private caches.
    Core(usize),
    /// A core (or `None` for a device), at the line's home.
    AtHome(Option<usize>),
    /// The engine that migrates pages.
    Engine,
}
