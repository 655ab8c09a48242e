//! The caches that belong to one core: L1 I and D, and an L2 that includes both.

use contigua_units::{Bytes, LINE_BYTES};

use super::payload::Payload;
use super::prefetch::{NextLines, Streams, Strides};
use crate::{Error, HierarchyConfig, LevelConfig, LevelCounters, Sets};

/// Rights of a core to a line: M, E and S of MESI; a line that is absent is I.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub(super) enum State {
    /// Others may have it, too.
    #[default]
    Shared,
    /// No other core has it, and it is as below.
    Exclusive,
    /// No other core has it, and it is newer than below.
    Modified,
}

/// A line of a first level.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
pub(super) struct FirstLine<D> {
    pub(super) state: State,
    pub(super) data: D,
}

/// A line of the second level. Its state is that of the core, but that the L1 D cache may have
/// modified a line that is exclusive here.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
pub(super) struct SecondLine<D> {
    pub(super) state: State,
    /// A prefetched line that has not been used yet.
    pub(super) prefetched: bool,
    /// The number of the prefetch that brought it; 0 if it was asked for.
    pub(super) prefetch: u32,
    /// Translations that it holds in place of data, as bits ...
    pub(super) translations: u8,
    /// ... and how often it is spared before it goes.
    pub(super) turns: u8,
    pub(super) data: D,
}

/// A line that left a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left<D> {
    pub(super) modified: bool,
    pub(super) data: D,
}

/// The caches of one core.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Private<D> {
    pub(super) l1i: Sets<FirstLine<D>>,
    pub(super) l1d: Sets<FirstLine<D>>,
    pub(super) l2: Sets<SecondLine<D>>,
    pub(super) strides: Strides,
    pub(super) streams: Streams,
    pub(super) next_lines: NextLines,
    /// Lines of the second level that hold translations.
    pub(super) blocks: u64,
    /// How often those that are used are spared.
    pub(super) turns: u8,
    pub(super) l1i_counters: LevelCounters,
    pub(super) l1d_counters: LevelCounters,
    pub(super) l2_counters: LevelCounters,
}

impl<D: Payload> Private<D> {
    pub(super) fn new(config: &HierarchyConfig) -> Result<Self, Error> {
        let lines = |level: &LevelConfig| level.size.get() / LINE_BYTES;
        Ok(Self {
            l1i: Sets::new("cache.l1i", lines(&config.l1i), config.l1i.ways)?,
            l1d: Sets::new("cache.l1d", lines(&config.l1d), config.l1d.ways)?,
            l2: Sets::new("cache.l2", lines(&config.l2), config.l2.ways)?,
            strides: Strides::new(),
            streams: Streams::new(),
            next_lines: NextLines::new(),
            blocks: 0,
            turns: 0,
            l1i_counters: LevelCounters::default(),
            l1d_counters: LevelCounters::default(),
            l2_counters: LevelCounters::default(),
        })
    }

    /// Takes a line out of all levels.
    pub(super) fn remove(&mut self, line: u64) -> Option<Left<D>> {
        let second = self.l2.remove(line, line)?;
        Some(self.remove_above(line, second))
    }

    /// Takes a line that has just left the second level out of the first.
    pub(super) fn remove_above(&mut self, line: u64, second: SecondLine<D>) -> Left<D> {
        self.l1i.remove(line, line);
        match self.l1d.remove(line, line) {
            Some(first) if first.state == State::Modified => Left {
                modified: true,
                data: first.data,
            },
            _ => Left {
                modified: second.state == State::Modified,
                data: second.data,
            },
        }
    }

    /// Lets other cores read a line that this one has to itself; what it was.
    pub(super) fn share(&mut self, line: u64) -> Option<Left<D>> {
        self.gather(line);
        let second = self.l2.peek_mut(line, line)?;
        let left = Left {
            modified: second.state == State::Modified,
            data: second.data,
        };
        second.state = State::Shared;
        if let Some(first) = self.l1d.peek_mut(line, line) {
            first.state = State::Shared;
        }
        Some(left)
    }

    /// Brings the second level up to date with what the L1 D cache has modified.
    pub(super) fn gather(&mut self, line: u64) {
        let Some(first) = self.l1d.peek_mut(line, line) else {
            return;
        };
        if first.state != State::Modified {
            return;
        }
        first.state = State::Exclusive;
        let data = first.data;
        let second = self
            .l2
            .peek_mut(line, line)
            .expect("the second level includes the first");
        second.state = State::Modified;
        second.data = data;
    }

    /// Enters a line into the L1 D cache from the second level, for a write if `write`.
    pub(super) fn fill_data(&mut self, line: u64, state: State, data: D, write: bool) {
        let state = if write {
            self.l1i.remove(line, line);
            State::Modified
        } else if self.l1i.peek_mut(line, line).is_some() {
            // Its own instruction cache is a reader, too: a write has to come by here.
            State::Shared
        } else if state == State::Modified {
            // The second level has the modified line; the copy above is as below.
            State::Exclusive
        } else {
            state
        };
        if let Some(first) = self.l1d.lookup(line, line) {
            *first = FirstLine { state, data };
            return;
        }
        let evicted = self.l1d.insert(line, line, FirstLine { state, data });
        if let Some((line, first)) = evicted
            && first.state == State::Modified
        {
            self.l1d_counters.write_backs += 1;
            let second = self
                .l2
                .peek_mut(line, line)
                .expect("the second level includes the first");
            second.state = State::Modified;
            second.data = first.data;
        }
    }

    /// Enters a line into the L1 I cache from the second level.
    pub(super) fn fill_instruction(&mut self, line: u64, data: D) {
        if let Some(first) = self.l1d.peek_mut(line, line) {
            first.state = State::Shared;
        }
        if let Some(first) = self.l1i.lookup(line, line) {
            first.data = data;
            return;
        }
        let state = State::Shared;
        self.l1i.insert(line, line, FirstLine { state, data });
    }

    /// Checks the arrays, and that the second level includes the first.
    pub(super) fn validate(&self) -> Result<(), String> {
        for (name, array) in [("L1I", &self.l1i), ("L1D", &self.l1d)] {
            array
                .validate()
                .map_err(|problem| format!("{name}: {problem}"))?;
            for (line, first) in array.iter() {
                let second = self.l2.peek(line, line);
                let Some(second) = second else {
                    return Err(format!("line {line:#x} is in {name} and not in L2"));
                };
                if first.state != State::Shared && second.state == State::Shared {
                    return Err(format!(
                        "line {line:#x} is writable in {name} and shared in L2"
                    ));
                }
                if first.state != State::Shared
                    && (name == "L1I" || self.l1i.peek(line, line).is_some())
                {
                    return Err(format!("line {line:#x} is writable and an instruction"));
                }
            }
        }
        self.l2
            .validate()
            .map_err(|problem| format!("L2: {problem}"))
    }

    pub(super) fn reset_counters(&mut self) {
        self.l1i_counters = LevelCounters::default();
        self.l1d_counters = LevelCounters::default();
        self.l2_counters = LevelCounters::default();
    }
}

/// Lines of a capacity.
pub(super) fn lines(size: Bytes) -> u64 {
    size.get() / LINE_BYTES
}
