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
    /// Lines that follow a sequence of first-level misses in one page, up to so many ahead; 0 for
    /// none.
    #[serde(default)]
    pub stream_lines: u8,
}

/// Lines that a stride prefetcher runs ahead.
const DEGREE: i64 = 2;
/// Misses in the same stride before it is believed.
const CONFIDENT: u8 = 2;
const ENTRIES: usize = 64;
/// Lines of a 4 KB page.
const LINES_OF_PAGE: u64 = 64;
/// Pages whose misses are followed. Intel's streamer follows 32, wherever they lie (Optimization
/// Reference Manual 248966, "Data Prefetching"); here each has its place by a hash.
const STREAMS: usize = 64;
/// Prefetches for one miss (the same place).
const STREAM_PREFETCHES: i64 = 2;
/// Lines between two misses of a sequence, at most. Ours: cores look up lines out of order, and some
/// are in the first level already.
const STREAM_STEP: i64 = 4;
/// 2⁶⁴ divided by the golden ratio, for Fibonacci hashing.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Entry {
    instruction: u64,
    last: u64,
    stride: i64,
    confidence: u8,
}

/// The stride prefetcher of a core: a direct-mapped table by instruction.
#[derive(Clone, Debug, contigua_state::Plain)]
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

/// The misses in one page, by their place in it.
#[derive(Clone, Copy, Debug, Default, contigua_state::Plain)]
struct Stream {
    page: u64,
    /// The latest.
    last: i64,
    /// The furthest line that was prefetched.
    head: i64,
    /// 1 upwards, -1 downwards, 0 if there is no sequence.
    direction: i64,
}

/// The stream prefetcher of a core: a direct-mapped table by page.
#[derive(Clone, Debug, contigua_state::Plain)]
pub(super) struct Streams {
    streams: [Stream; STREAMS],
}

impl Streams {
    pub(super) fn new() -> Self {
        let none = Stream {
            page: u64::MAX,
            ..Stream::default()
        };
        Self {
            streams: [none; STREAMS],
        }
    }

    /// A line missed the first level; the lines to prefetch for it: once three misses make a
    /// sequence, the next two that were not, up to `distance` ahead.
    #[inline]
    pub(super) fn missed(&mut self, line: u64, distance: u8) -> impl Iterator<Item = u64> + use<> {
        const LAST: i64 = LINES_OF_PAGE.cast_signed() - 1;
        let (page, place) = (line / LINES_OF_PAGE, (line % LINES_OF_PAGE).cast_signed());
        let stream = &mut self.streams[(page.wrapping_mul(GOLDEN_RATIO) >> 32) as usize % STREAMS];
        if stream.page != page {
            *stream = Stream {
                page,
                last: place,
                ..Stream::default()
            };
        }
        let step = place - stream.last;
        let is_near = (1..=STREAM_STEP).contains(&step.abs());
        let direction = if is_near { step.signum() } else { 0 };
        let goes_on = is_near && direction == stream.direction;
        let (mut from, mut count) = (place, 0);
        if goes_on {
            // Past what was prefetched, unless the program is past that.
            from = (stream.head * direction).max(place * direction) * direction;
            let end = (place + direction * i64::from(distance)).clamp(0, LAST);
            count = ((end - from) * direction).clamp(0, STREAM_PREFETCHES);
        }
        if step != 0 {
            *stream = Stream {
                page,
                last: place,
                head: from + count * direction,
                direction,
            };
        }
        let first = page * LINES_OF_PAGE;
        (1..=count).map(move |nth| first + (from + nth * direction).cast_unsigned())
    }
}

/// Whether two lines lie in the same 4 KB page.
pub(super) fn same_page(one: u64, other: u64) -> bool {
    one / LINES_OF_PAGE == other / LINES_OF_PAGE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    #[test]
    fn a_sequence_of_three_misses_is_followed_two_lines_a_miss_up_to_a_distance() {
        let mut streams = Streams::new();
        let mut missed = |line| streams.missed(line, 6).collect::<Vec<_>>();
        assert!(missed(64).is_empty());
        assert!(missed(65).is_empty());
        assert_eq!(missed(66), [67, 68]);
        assert_eq!(missed(67), [69, 70]);
        assert_eq!(missed(68), [71, 72]);
        assert_eq!(missed(69), [73, 74]);
        assert_eq!(missed(70), [75, 76]);
        // As far ahead as it goes: now one line a miss.
        assert_eq!(missed(71), [77]);
        assert_eq!(missed(71), [] as [u64; 0]);
        // A jump within the page is another sequence.
        assert!(missed(100).is_empty());
        assert!(missed(98).is_empty());
        assert_eq!(missed(97), [96, 95]);
        assert_eq!(missed(93), [92, 91]);
        // It ends with the page.
        for line in [69, 68, 67] {
            missed(line);
        }
        assert_eq!(missed(66), [64]);
        assert!(missed(65).is_empty());
    }

    proptest! {
        #[test]
        fn streams_stay_in_their_page_and_within_the_distance(
            distance in 0..64_u8,
            misses in proptest::collection::vec((0..3_u64, 0..64_u64, 0..6_u64), 1..200)
        ) {
            let mut streams = Streams::new();
            for (page, place, length) in misses {
                for line in (page * 64 + place)..(page * 64 + place + length) {
                    for wanted in streams.missed(line, distance) {
                        prop_assert!(same_page(line, wanted), "{} for {}", wanted, line);
                        prop_assert!(wanted.abs_diff(line) <= distance.into());
                        prop_assert!(wanted != line);
                    }
                }
            }
        }
    }
}
