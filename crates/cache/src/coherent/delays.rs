//! Delays that migrations in the last level cause to accesses.

use contigua_units::Cycles;

use crate::migration::{EntryId, MAX_ENTRIES, Probe};

/// Requester that waits for an answer of a line's home, and the time since when.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// A core.
    Core(usize, Cycles),
    /// A device.
    Device(Cycles),
    /// No requester: a prefetch.
    Nobody,
}

/// The line that the engine copies for an entry, and when.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct LineCopy {
    line: u8,
    begins: Cycles,
    ends: Cycles,
}

/// The probes of all entries.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Delays {
    probes: [Probe; MAX_ENTRIES],
    copies: [LineCopy; MAX_ENTRIES],
    /// By entry and core: for how long the kernel has held the core up since its last access.
    held: Vec<u32>,
}

impl Delays {
    pub(super) fn new(cores: usize) -> Self {
        Self {
            probes: [Probe::default(); MAX_ENTRIES],
            copies: [LineCopy::default(); MAX_ENTRIES],
            held: vec![0; cores * MAX_ENTRIES],
        }
    }

    fn of(&mut self, entry: EntryId) -> &mut [u32] {
        let cores = self.held.len() / MAX_ENTRIES;
        &mut self.held[entry.index() * cores..][..cores]
    }

    /// A migration begins.
    pub(super) fn begin(&mut self, entry: EntryId) {
        self.probes[entry.index()] = Probe::default();
        self.copies[entry.index()] = LineCopy::default();
        self.of(entry).fill(0);
    }

    /// The engine copies a line.
    pub(super) fn copies(&mut self, entry: EntryId, line: u8, begins: Cycles, ends: Cycles) {
        self.copies[entry.index()] = LineCopy { line, begins, ends };
    }

    /// The kernel holds a core up.
    pub(super) fn hold(&mut self, entry: EntryId, core: usize, time: Cycles) {
        let held = &mut self.of(entry)[core];
        *held += time.get() as u32;
        let held = Cycles::new(u64::from(*held));
        self.probes[entry.index()].delayed(held);
    }

    /// An access to a line of an entry's page takes `extra` longer, and waits for a copy of this
    /// very line. Returns by how much it is delayed in the last level.
    pub(super) fn meet(&mut self, entry: EntryId, line: u8, asker: Asker, extra: u64) -> u64 {
        let (Asker::Core(_, time) | Asker::Device(time)) = asker else {
            return extra;
        };
        let copy = &self.copies[entry.index()];
        let meets = copy.line == line && copy.begins <= time && time < copy.ends;
        let wait = if meets {
            copy.ends.get() - time.get()
        } else {
            0
        };
        let delay = extra + wait;
        if let Asker::Core(core, _) = asker {
            let held = std::mem::take(&mut self.of(entry)[core]);
            self.probes[entry.index()].delayed(Cycles::new(delay + u64::from(held)));
        } else {
            self.probes[entry.index()].device_delayed(Cycles::new(delay));
        }
        delay
    }

    pub(super) fn probe(&self, entry: EntryId) -> Probe {
        self.probes[entry.index()]
    }
}
