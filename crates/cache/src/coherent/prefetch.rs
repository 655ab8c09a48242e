//! What a core asks for before it is needed.

use serde::{Deserialize, Serialize};

/// Prefetchers into the second level. They stay within a 4 KB page, as physical addresses beyond
/// it say nothing about the program's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PrefetchConfig {
    /// The line after one that missed the second level, and after one that was prefetched and then
    /// used.
    pub next_line: bool,
    /// Lines at the stride in which an instruction has missed the first level.
    pub stride: bool,
}

/// Lines that a stride prefetcher runs ahead.
const DEGREE: i64 = 2;
/// Misses in the same stride before it is believed.
const CONFIDENT: u8 = 2;
const ENTRIES: usize = 64;
const LINES_OF_PAGE: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    instruction: u64,
    last: u64,
    stride: i64,
    confidence: u8,
}

/// The stride prefetcher of a core: a direct-mapped table by instruction.
#[derive(Clone, Debug)]
pub(super) struct Strides {
    entries: [Entry; ENTRIES],
}

impl Strides {
    pub(super) fn new() -> Self {
        Self {
            entries: [Entry::default(); ENTRIES],
        }
    }

    /// An instruction missed the first level; the lines to prefetch for it.
    pub(super) fn missed(
        &mut self,
        instruction: u64,
        line: u64,
    ) -> impl Iterator<Item = u64> + use<> {
        let entry = &mut self.entries[(instruction ^ instruction >> 6) as usize % ENTRIES];
        if entry.instruction != instruction {
            *entry = Entry {
                instruction,
                last: line,
                ..Entry::default()
            };
        }
        let stride = line.wrapping_sub(entry.last).cast_signed();
        if stride != 0 {
            if stride == entry.stride {
                entry.confidence = (entry.confidence + 1).min(CONFIDENT);
            } else {
                entry.stride = stride;
                entry.confidence = 0;
            }
            entry.last = line;
        }
        let ahead = if stride != 0 && entry.confidence == CONFIDENT {
            DEGREE
        } else {
            0
        };
        (1..=ahead)
            .map(move |distance| line.wrapping_add_signed(distance * stride))
            .filter(move |&wanted| same_page(line, wanted))
    }
}

/// Whether two lines lie in the same 4 KB page.
pub(super) fn same_page(one: u64, other: u64) -> bool {
    one / LINES_OF_PAGE == other / LINES_OF_PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stride_is_believed_after_it_was_seen_twice_more_and_stays_in_its_page() {
        let mut strides = Strides::new();
        let mut missed = |line| strides.missed(0x40_1000, line).collect::<Vec<_>>();
        assert!(missed(0).is_empty());
        assert!(missed(3).is_empty());
        assert!(missed(6).is_empty());
        assert_eq!(missed(9), [12, 15]);
        assert_eq!(missed(9), [] as [u64; 0]);
        assert_eq!(missed(12), [15, 18]);
        assert!(missed(40).is_empty());
        for line in [43, 46, 49, 52, 55] {
            missed(line);
        }
        assert_eq!(missed(58), [61]);
    }
}
