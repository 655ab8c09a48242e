//! Lines and stores on their way from and to memory.

/// Entries of each table. A core has fewer than 128 lines or walks in flight; the rest keeps those
/// apart that share low bits.
pub(super) const ENTRIES: usize = 512;

/// A line or translation that was asked for.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
struct Flight {
    key: u64,
    start: u64,
    end: u64,
}

/// Lines, or translations, on their way. Direct-mapped: one that shares the low bits of its number
/// with a later one is forgotten.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct InFlight {
    #[state(fixed)]
    entries: Box<[Flight]>,
}

impl InFlight {
    pub(super) fn new() -> Self {
        let none = Flight {
            key: u64::MAX,
            start: 0,
            end: 0,
        };
        Self {
            entries: vec![none; ENTRIES].into(),
        }
    }

    /// When `key` arrives, if it is under way at `time`.
    ///
    /// Caches answer in program order, so that an instruction may hit on what an earlier one brings
    /// later. Then it is this one that has to wait, for as long as the earlier one would have, and
    /// the arrival is moved forward for those that follow.
    #[inline]
    pub(super) fn arrival(&mut self, key: u64, time: u64) -> Option<u64> {
        let entry = &mut self.entries[key as usize % ENTRIES];
        if entry.key != key || entry.end <= time {
            return None;
        }
        if time < entry.start {
            entry.end = time + (entry.end - entry.start);
            entry.start = time;
        }
        Some(entry.end)
    }

    /// `key` is under way from `start` to `end`.
    pub(super) fn insert(&mut self, key: u64, start: u64, end: u64) {
        self.entries[key as usize % ENTRIES] = Flight { key, start, end };
    }
}

/// A store that has not reached the cache.
#[derive(Clone, Copy, Debug, contigua_state::Plain)]
struct Store {
    word: u64,
    ready: u64,
    commit: u64,
}

/// Words of 8 bytes that stores hold, for the loads that come after them. Direct-mapped as
/// [`InFlight`] is.
#[derive(Clone, Debug, contigua_state::State)]
pub(super) struct Stored {
    #[state(fixed)]
    entries: Box<[Store]>,
}

impl Stored {
    pub(super) fn new() -> Self {
        let none = Store {
            word: u64::MAX,
            ready: 0,
            commit: 0,
        };
        Self {
            entries: vec![none; ENTRIES].into(),
        }
    }

    /// When the store that holds `word` at `time` has its data, if there is one.
    #[inline]
    pub(super) fn ready(&self, word: u64, time: u64) -> Option<u64> {
        let entry = self.entries[word as usize % ENTRIES];
        (entry.word == word && time < entry.commit).then_some(entry.ready)
    }

    /// A store of `word` has its data at `ready` and writes it to the cache at `commit`.
    #[inline]
    pub(super) fn insert(&mut self, word: u64, ready: u64, commit: u64) {
        self.entries[word as usize % ENTRIES] = Store {
            word,
            ready,
            commit,
        };
    }
}
