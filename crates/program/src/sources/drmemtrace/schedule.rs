//! `serial_schedule.bin`: which thread ran when, and from which of its instructions on.
//!
//! An entry has 32 bytes: thread, timestamp, processor, instructions of the thread before. Entries are in the
//! order of time, and no two of a thread follow each other (`schedule_file_t` in `DynamoRIO`).

use std::collections::HashMap;
use std::path::Path;

use super::super::compressed::Input;
use super::files;
use super::shard::When;
use crate::Error;

const NAMES: [&str; 2] = ["serial_schedule.bin.gz", "serial_schedule.bin"];
const BYTES: usize = 32;
/// Entries that a schedule has at most.
const MAX_ENTRIES: usize = 1 << 26;

/// A thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) when: When,
    pub(super) start: u64,
}

/// The schedule that the trace at `path` comes with, if it does.
pub(super) fn read(path: &Path) -> Result<Option<Vec<Entry>>, Error> {
    let Some(path) = files::beside(path, &NAMES) else {
        return Ok(None);
    };
    let mut input = Input::open(&path)?;
    let mut entries = Vec::new();
    let mut bytes = [0; BYTES];
    while entries.len() < MAX_ENTRIES && input.record(&mut bytes).map_err(|f| f.at(&path))? {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        entries.push(Entry {
            when: When {
                timestamp: word(8),
                processor: word(16),
                thread: word(0),
            },
            start: word(24),
        });
    }
    Ok(Some(entries))
}

/// Position of each thread after so many instructions: its number in `threads`, its own
/// instructions, and its last place in the schedule.
pub(super) fn places(
    entries: &[Entry],
    threads: &[u64],
    instructions: u64,
) -> Vec<(usize, u64, When)> {
    let numbers: HashMap<u64, usize> = threads.iter().copied().zip(0..).collect();
    // From the end: where each thread goes on.
    let mut next: HashMap<u64, u64> = HashMap::new();
    let mut ends = vec![u64::MAX; entries.len()];
    for (entry, end) in entries.iter().zip(&mut ends).rev() {
        *end = next
            .insert(entry.when.thread, entry.start)
            .unwrap_or(u64::MAX);
    }
    let mut found: HashMap<usize, (u64, When)> = HashMap::new();
    let mut left = instructions;
    for (entry, end) in entries.iter().zip(ends) {
        let Some(&number) = numbers.get(&entry.when.thread) else {
            continue;
        };
        let runs = end.saturating_sub(entry.start).min(left);
        found.insert(number, (entry.start + runs, entry.when));
        left -= runs;
        if left == 0 {
            break;
        }
    }
    let mut places: Vec<_> = found
        .into_iter()
        .map(|(n, (count, when))| (n, count, when))
        .collect();
    places.sort_unstable_by_key(|&(number, ..)| number);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(thread: u64, timestamp: u64, start: u64) -> Entry {
        let processor = 0;
        Entry {
            when: When {
                timestamp,
                processor,
                thread,
            },
            start,
        }
    }

    #[test]
    fn threads_are_where_the_schedule_has_them_after_so_many_instructions() {
        let entries = [
            entry(7, 1, 0),
            entry(8, 2, 0),
            entry(7, 3, 100),
            entry(8, 4, 50),
        ];
        let at = |instructions| {
            let places = places(&entries, &[7, 8], instructions);
            places
                .iter()
                .map(|&(number, count, when)| (number, count, when.timestamp))
                .collect::<Vec<_>>()
        };
        assert_eq!(at(30), [(0, 30, 1)]);
        assert_eq!(at(120), [(0, 100, 1), (1, 20, 2)]);
        assert_eq!(at(160), [(0, 110, 3), (1, 50, 2)]);
    }
}
