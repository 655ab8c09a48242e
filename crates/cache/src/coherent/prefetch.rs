//! Prefetchers of a core.

use serde::{Deserialize, Serialize};

/// Prefetchers into the second level. They stay within a 4 KB page, as physical addresses beyond
/// it say nothing about the program's; only the stream prefetcher may have the next page's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PrefetchConfig {
    /// The line after one that missed the second level, and after one that was prefetched and then
    /// used.
    pub next_line: bool,
    /// These only while the program uses a quarter of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub next_line_adapts: bool,
    /// Lines at the stride in which an instruction has missed the first level.
    pub stride: bool,
    /// Lines that follow a sequence of first-level misses in one page, up to so many ahead; 0 for
    /// none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(max = 64)))]
    pub stream_lines: u8,
    /// A sequence that comes to the end of its page goes on in the next one of the program, which the
    /// core translates ahead.
    #[serde(default)]
    pub next_page: bool,
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
/// Misses in other pages of its place that a sequence outlives. Ours: random reads between the lines of
/// a sequence do not end it.
const OTHERS: u64 = 4;
/// Lines between two misses of a sequence, at most. Ours: cores look up lines out of order, and some
/// are in the first level already.
const STREAM_STEP: i64 = 4;
/// 2⁶⁴ divided by the golden ratio, for Fibonacci hashing.
pub(super) const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

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

/// The lines that the next-line prefetcher would fetch, whether it does or not, and how many of them the
/// program came to (Pugsley et al., "Sandbox Prefetching", HPCA 2014).
#[derive(Clone, Debug, contigua_state::Plain)]
pub(super) struct NextLines {
    /// Each by its lowest bits; [`UNKNOWN`] once it was used.
    wanted: [u64; NEXT_LINES],
    counted: u32,
    used: u32,
    are_worth_it: bool,
}

/// Lines after which they are judged anew. Ours.
const NEXT_LINES: usize = 64;
/// Number of these that have to be used. Ours.
const NEXT_LINES_USED: u32 = 16;

impl NextLines {
    pub(super) fn new() -> Self {
        Self {
            wanted: [UNKNOWN; NEXT_LINES],
            counted: 0,
            used: 0,
            are_worth_it: true,
        }
    }

    /// A line missed the first level.
    #[inline]
    pub(super) fn missed(&mut self, line: u64) {
        let wanted = &mut self.wanted[line as usize % NEXT_LINES];
        if *wanted == line {
            *wanted = UNKNOWN;
            self.used += 1;
        }
    }

    /// A line would be fetched. Says whether it is worth it.
    #[inline]
    pub(super) fn want(&mut self, line: u64) -> bool {
        self.wanted[line as usize % NEXT_LINES] = line;
        self.counted += 1;
        if self.counted == NEXT_LINES as u32 {
            self.are_worth_it = self.used >= NEXT_LINES_USED;
            (self.counted, self.used) = (0, 0);
        }
        self.are_worth_it
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
    /// Page in which the sequence continues; [`UNKNOWN`] or [`NOWHERE`].
    next: u64,
    /// Misses in other pages of this place since the sequence went on.
    others: u64,
}

/// The page behind a sequence's is not known yet.
const UNKNOWN: u64 = u64::MAX;
/// There is none: it is not mapped.
const NOWHERE: u64 = u64::MAX - 1;

impl Stream {
    /// No sequence yet.
    const fn new(page: u64, place: i64) -> Self {
        Self {
            page,
            last: place,
            head: 0,
            direction: 0,
            next: UNKNOWN,
            others: 0,
        }
    }
}

/// The stream prefetcher of a core: a direct-mapped table by page.
#[derive(Clone, Debug, contigua_state::Plain)]
pub(super) struct Streams {
    streams: [Stream; STREAMS],
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            streams: [Stream::new(u64::MAX, 0); STREAMS],
        }
    }

    /// A line missed the first level; the lines to prefetch for it, if any: once three misses make a
    /// sequence, the next two that were not, up to `distance` ahead.
    #[inline]
    pub(super) fn missed(&mut self, line: u64, distance: u8) -> Option<Ahead> {
        let (page, place) = (line / LINES_OF_PAGE, (line % LINES_OF_PAGE).cast_signed());
        let stream = self.of(page);
        if stream.page != page {
            stream.others += 1;
            if stream.direction == 0 || stream.others > OTHERS {
                *stream = Stream::new(page, place);
            }
            return None;
        }
        let step = place - stream.last;
        let is_near = (1..=STREAM_STEP).contains(&step.abs());
        if is_near && step.signum() == stream.direction {
            return self.goes_on(page, place, distance);
        }
        if step != 0 {
            *stream = Stream {
                head: place,
                direction: if is_near { step.signum() } else { 0 },
                ..Stream::new(page, place)
            };
        }
        None
    }

    /// A miss at `place` is part of a sequence.
    fn goes_on(&mut self, page: u64, place: i64, distance: u8) -> Option<Ahead> {
        const LAST: i64 = LINES_OF_PAGE.cast_signed() - 1;
        let stream = self.of(page);
        let direction = stream.direction;
        // Past what was prefetched, unless the program is past that.
        let from = (stream.head * direction).max(place * direction) * direction;
        let wanted = place + direction * i64::from(distance);
        let end = wanted.clamp(0, LAST);
        let count = ((end - from) * direction).clamp(0, STREAM_PREFETCHES);
        stream.last = place;
        stream.others = 0;
        stream.head = from + count * direction;
        let next = stream.next;
        let mut ahead = Ahead {
            first: page * LINES_OF_PAGE,
            from,
            count,
            direction,
            asks: wanted != end && next == UNKNOWN,
            ..Ahead::default()
        };
        if wanted != end && next < NOWHERE {
            self.go_behind(next, (wanted - end).abs(), &mut ahead);
        }
        (ahead.asks || ahead.count + ahead.count_behind > 0).then_some(ahead)
    }

    /// Spends the remaining prefetches of a miss on the page in which the sequence continues,
    /// `behind` lines deep.
    fn go_behind(&mut self, page: u64, behind: i64, ahead: &mut Ahead) {
        let next = self.of(page);
        let before = edge(ahead.direction);
        if next.page != page || next.direction != ahead.direction {
            return;
        }
        let done = (next.head - before) * ahead.direction;
        ahead.first_behind = page * LINES_OF_PAGE;
        ahead.from_behind = next.head;
        ahead.count_behind = (behind - done).clamp(0, STREAM_PREFETCHES - ahead.count);
        next.head += ahead.count_behind * ahead.direction;
    }

    /// The sequence in a page goes on in another one, if there is one.
    pub(super) fn join(&mut self, page: u64, next: Option<u64>) {
        let stream = self.of(page);
        if stream.page != page {
            return;
        }
        stream.next = next.unwrap_or(NOWHERE);
        let direction = stream.direction;
        let Some(next) = next else {
            return;
        };
        let before = edge(direction);
        let following = self.of(next);
        if following.page != next || following.direction != direction {
            *following = Stream {
                head: before,
                direction,
                ..Stream::new(next, before)
            };
        }
    }

    #[inline]
    fn of(&mut self, page: u64) -> &mut Stream {
        &mut self.streams[place_of(page)]
    }
}

/// Index of the stream of a page.
const fn place_of(page: u64) -> usize {
    (page.wrapping_mul(GOLDEN_RATIO) >> 32) as usize % STREAMS
}

/// The place before the first line of a page, in a direction.
const fn edge(direction: i64) -> i64 {
    if direction > 0 {
        -1
    } else {
        LINES_OF_PAGE.cast_signed()
    }
}

/// Lines to prefetch: `count` from behind `from` of a page, and then as many of the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    first: u64,
    from: i64,
    count: i64,
    first_behind: u64,
    from_behind: i64,
    count_behind: i64,
    direction: i64,
    /// The sequence comes to the end of its page, and where it goes on is not known.
    pub(super) asks: bool,
}

impl Ahead {
    /// 1 upwards, -1 downwards.
    pub(super) fn direction(&self) -> i64 {
        self.direction
    }

    pub(super) fn lines(self) -> impl Iterator<Item = u64> {
        let place = move |first: u64, from: i64, nth: i64| {
            first.wrapping_add_signed(from + nth * self.direction)
        };
        let here = (1..=self.count).map(move |nth| place(self.first, self.from, nth));
        let behind = 1..=self.count_behind;
        here.chain(behind.map(move |nth| place(self.first_behind, self.from_behind, nth)))
    }
}

/// Returns true if two lines lie in the same 4 KB page.
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
    fn next_lines_are_worth_it_while_a_quarter_of_them_is_used() {
        // Pairs of lines, whose second one is used, at distances that others are not used at.
        for (pairs, expected) in [(0, false), (14, false), (18, true), (64, true)] {
            let mut next = NextLines::new();
            let mut worth = true;
            for round in 0..3 {
                for n in 0..64 {
                    let line = (round * 64 + n) * 65;
                    next.missed(line);
                    worth = next.want(line + 1);
                    if n < pairs {
                        next.missed(line + 1);
                    }
                }
            }
            assert_eq!(worth, expected, "{pairs}");
        }
    }

    #[test]
    fn a_sequence_of_three_misses_is_followed_two_lines_a_miss_up_to_a_distance() {
        let mut streams = Streams::new();
        let mut missed = |line| lines_for(&mut streams, line, 6);
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

    #[test]
    fn a_sequence_outlives_some_misses_in_other_pages_of_its_place() {
        let others = |count: usize| {
            let same = |page: &u64| place_of(*page) == place_of(0);
            (1..).filter(same).take(count).map(|page| page * 64 + 7)
        };
        for (count, goes_on) in [(OTHERS as usize, true), (OTHERS as usize + 1, false)] {
            let mut streams = Streams::new();
            for line in (0..4).chain(others(count)) {
                streams.missed(line, 6);
            }
            assert_eq!(lines_for(&mut streams, 4, 6) == [7, 8], goes_on);
            assert_eq!(streams.missed(5, 6).is_some(), goes_on);
        }
        // What is no sequence makes way at once.
        let mut streams = Streams::new();
        for line in others(1).chain(0..2) {
            streams.missed(line, 6);
        }
        assert_eq!(lines_for(&mut streams, 2, 6), [3, 4]);
    }

    fn lines_for(streams: &mut Streams, line: u64, distance: u8) -> Vec<u64> {
        let ahead = streams.missed(line, distance).into_iter();
        ahead.flat_map(Ahead::lines).collect()
    }

    #[test]
    fn a_sequence_goes_on_in_the_page_that_it_is_joined_with() {
        let mut streams = Streams::new();
        let mut asked = Vec::new();
        // Up through page 1, which goes on in page 9, and down through that into page 4.
        let mut fetched = Vec::new();
        let up = (64..128).chain(9 * 64..10 * 64);
        for line in up.chain((9 * 64..10 * 64).rev()) {
            let ahead = streams.missed(line, 6).unwrap_or_default();
            if ahead.asks {
                asked.push((line, ahead.direction()));
                let next = if ahead.direction() > 0 {
                    (line < 128).then_some(9)
                } else {
                    Some(4)
                };
                streams.join(line / 64, next);
            }
            fetched.extend(ahead.lines());
        }
        // Within six lines of an edge for the first time.
        assert_eq!(asked, [(122, 1), (9 * 64 + 58, 1), (9 * 64 + 5, -1)]);
        let of = |page: u64| fetched.iter().filter(|&&line| line / 64 == page).count();
        // Of page 1, all behind the first three misses; of page 9, all, and once more on the way down.
        assert_eq!((of(1), of(9), of(4)), (61, 64 + 61, 6));
        assert!(fetched.ends_with(&[4 * 64 + 58]));
        // A page that is joined with none is asked for once.
        let mut streams = Streams::new();
        let asks = (0..64).filter(|&line| {
            let ahead = streams.missed(line, 20).unwrap_or_default();
            if ahead.asks {
                streams.join(0, None);
            }
            ahead.asks
        });
        assert_eq!(asks.count(), 1);
    }

    proptest! {
        #[test]
        fn streams_stay_in_their_page_and_the_one_behind_it_within_the_distance(
            distance in 0..64_u8,
            misses in proptest::collection::vec((0..3_u64, 0..64_u64, 0..6_u64), 1..200)
        ) {
            let mut streams = Streams::new();
            // Page n goes on in page 10 n + 10 in both directions.
            let joined = |page: u64| 10 * page + 10;
            for (page, place, length) in misses {
                for line in (page * 64 + place)..(page * 64 + place + length) {
                    let ahead = streams.missed(line, distance).unwrap_or_default();
                    for wanted in ahead.lines() {
                        let reach = if same_page(line, wanted) {
                            wanted.abs_diff(line)
                        } else {
                            prop_assert_eq!(wanted / 64, joined(line / 64));
                            let (from, to) = (line % 64, wanted % 64);
                            if ahead.direction() > 0 { 64 - from + to } else { from + 64 - to }
                        };
                        prop_assert!((1..=distance.into()).contains(&reach), "{} for {}", wanted, line);
                    }
                    if ahead.asks {
                        streams.join(line / 64, Some(joined(line / 64)));
                    }
                }
            }
        }
    }
}
