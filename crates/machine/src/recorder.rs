//! Memory of unit tests: lines hold the number of their last write, and an observer records what
//! happens.

use std::collections::HashMap;

use contigua_cache::coherent::{Access, Event, MemorySystem, Payload};

/// The number of a line's last write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub(crate) struct Version(u64);

/// Memory whose lines hold their last write, and which records what happens.
pub(crate) type TracedMemory = MemorySystem<Version>;

impl Version {
    /// Contents of a line that was never written.
    pub(crate) fn first(line: u64) -> Self {
        Self(1 << 63 | line)
    }
}

/// An event, or an access and the data that it met or left.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Record {
    Event(Event),
    Access(Access, Version),
}

/// Memory of a run that is followed.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    lines: HashMap<u64, Version>,
    written: u64,
    /// Records that were not taken yet, in a run that is followed.
    pub(crate) records: Option<Vec<Record>>,
}

impl Recorder {
    fn record(&mut self, record: Record) {
        if let Some(records) = &mut self.records {
            records.push(record);
        }
    }
}

impl Payload for Version {
    type Memory = Recorder;

    const OBSERVES: bool = true;

    fn load(memory: &Recorder, line: u64) -> Self {
        let known = memory.lines.get(&line).copied();
        known.unwrap_or_else(|| Self::first(line))
    }

    fn store(self, memory: &mut Recorder, line: u64) {
        memory.lines.insert(line, self);
    }

    fn accessed(&mut self, memory: &mut Recorder, access: Access) {
        if access.write {
            memory.written += 1;
            *self = Self(memory.written);
        }
        memory.record(Record::Access(access, *self));
    }

    fn observe(memory: &mut Recorder, event: Event) {
        memory.record(Record::Event(event));
    }
}
