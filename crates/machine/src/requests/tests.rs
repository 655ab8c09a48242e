//! Do replays balance, and does bad input end in an error?

use std::io::Cursor;

use contigua_frames::{BLOCK_FRAMES, Config, Placement, policies};
use proptest::prelude::*;

use super::*;

const FRAMES: usize = 8 * BLOCK_FRAMES as usize;
const BUDDY: u64 = 1 << 10;
const ANONYMOUS: u64 = 1 << 12 | 1 << 5;
const SLAB: u64 = 1 << 7;

/// Writes records as the recorder does.
struct Writer {
    bytes: Vec<u8>,
    words: u32,
}

impl Writer {
    fn new() -> Self {
        let bytes = b"ctgreqs1".to_vec();
        Self { bytes, words: 0 }
    }

    fn word(&mut self, op: u64, order: u64, kind: u64, extra: u64, value: u64) {
        let word = op | order << 4 | kind << 8 | extra << 16 | value << 32;
        self.bytes.extend(word.to_le_bytes());
        self.words += 1;
    }

    fn blob(&mut self, what: u64, content: &[u8]) {
        self.word(7, 0, what, 0, content.len() as u64);
        self.bytes.extend(content);
        let padded = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(padded, 0);
    }

    /// A look at memory with these flags, one for each frame.
    fn look(&mut self, name: &str, flags: &[u64], lists: &[u32]) {
        let zones = format!(
            "Node 0, zone    DMA32\n  min 0\n  low 0\n  spanned {0}\n  managed {0}\n  cpu: 0\n  \
             count: 0\n  high: 0\n  batch: 1\n  start_pfn: 0\n",
            flags.len()
        );
        let counts = " 0".repeat(11);
        let types = format!("Node 0, zone DMA32, type Movable{counts}\n");
        let runs: Vec<u8> = flags
            .chunk_by(|a, b| a == b)
            .flat_map(|run| [run[0].to_le_bytes(), (run.len() as u64).to_le_bytes()])
            .flatten()
            .collect();
        let blocks = vec![1; flags.len() / BLOCK_FRAMES as usize];
        let lists: Vec<u8> = lists.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.blob(2, zones.as_bytes());
        self.blob(3, types.as_bytes());
        self.blob(4, &runs);
        self.blob(5, &blocks);
        self.blob(6, &lists);
        self.blob(7, name.as_bytes());
        self.word(8, 0, 0, 0, flags.len() as u64);
    }

    fn finish(mut self) -> Vec<u8> {
        let words = self.words;
        self.word(9, 0, 0, 0, words.into());
        self.bytes
    }
}

/// A kernel that puts blocks anywhere, and what it tells of them.
struct Kernel {
    writer: Writer,
    flags: Vec<u64>,
    held: Vec<(u32, u8)>,
}

impl Kernel {
    /// Some pages are in use already.
    fn new(used: &[(u32, bool)]) -> Self {
        let mut flags = vec![BUDDY; FRAMES];
        let mut held = Vec::new();
        for &(frame, is_movable) in used {
            if flags[frame as usize] == BUDDY {
                flags[frame as usize] = if is_movable { ANONYMOUS } else { SLAB };
                held.push((frame, 0));
            }
        }
        let mut writer = Writer::new();
        writer.look("start", &flags, &[u32::MAX - 1, 0]);
        Self {
            writer,
            flags,
            held,
        }
    }

    fn allocate(&mut self, at: u32, order: u8, kind: u64) {
        let frames = 1 << order;
        let mut at = at as usize % FRAMES / frames * frames;
        // The next place with room; half of memory stays free.
        let used = self.flags.iter().filter(|flags| **flags != BUDDY).count();
        if used + frames > FRAMES / 2 {
            return;
        }
        for _ in 0..FRAMES / frames {
            if self.flags[at..at + frames]
                .iter()
                .all(|flags| *flags == BUDDY)
            {
                let flags = if kind == 1 { ANONYMOUS } else { SLAB };
                self.flags[at..at + frames].fill(flags);
                self.held.push((at as u32, order));
                return self.writer.word(1, order.into(), kind, 0x400, at as u64);
            }
            at = (at + frames) % FRAMES;
        }
    }

    fn free(&mut self, which: u32, in_parts: bool) {
        if self.held.is_empty() {
            return;
        }
        let (at, order) = self.held.swap_remove(which as usize % self.held.len());
        let (begin, frames) = (at as usize, 1 << order);
        self.flags[begin..begin + frames].fill(BUDDY);
        if in_parts {
            // From its end, as nobody said in which order.
            for i in (0..frames).rev() {
                self.writer.word(2, 0, 0, 0, (begin + i) as u64);
            }
        } else {
            self.writer.word(2, order.into(), 0, 0, at.into());
        }
    }

    /// Compaction takes the place of the new page without a word, and gives the old one back.
    fn compact(&mut self, which: u32, to: u32) {
        let to = to % FRAMES as u32;
        let singles: Vec<usize> = (0..self.held.len())
            .filter(|&i| self.held[i].1 == 0)
            .collect();
        if self.flags[to as usize] != BUDDY || singles.is_empty() {
            return;
        }
        let index = singles[which as usize % singles.len()];
        let (from, _) = std::mem::replace(&mut self.held[index], (to, 0));
        self.flags.swap(from as usize, to as usize);
        self.writer.word(4, 0, 0, 0, from.into());
        self.writer.word(5, 0, 0, 0, to.into());
        self.writer.word(2, 0, 0, 0, from.into());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u32, u8, u64),
    Free(u32, bool),
    Compact(u32, u32),
    Time,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<u32>(), 0..4_u8, 0..3_u64).prop_map(|(at, order, kind)| Step::Allocate(at, order, kind)),
        3 => (any::<u32>(), any::<bool>()).prop_map(|(which, parts)| Step::Free(which, parts)),
        1 => (any::<u32>(), any::<u32>()).prop_map(|(which, to)| Step::Compact(which, to)),
        1 => Just(Step::Time),
    ];
    proptest::collection::vec(step, 0..600)
}

fn recorded(used: &[(u32, bool)], steps: &[Step]) -> (Vec<u8>, usize) {
    let mut kernel = Kernel::new(used);
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Allocate(at, order, kind) => kernel.allocate(at, order, kind),
            Step::Free(which, parts) => kernel.free(which, parts),
            Step::Compact(which, to) => kernel.compact(which, to),
            Step::Time => kernel.writer.word(6, 0, 0, 0, number as u64 * 20),
        }
    }
    let free = kernel.flags.iter().filter(|flags| **flags == BUDDY).count();
    kernel.writer.look("end", &kernel.flags, &[]);
    (kernel.writer.finish(), free)
}

fn placements() -> [Placement; 3] {
    [
        Placement::default(),
        Placement::Illuminator(policies::illuminator::Config::default()),
        Placement::Contiguitas(policies::contiguitas::Config {
            unmovable_min: contigua_units::Bytes::new(6 << 20),
            ..policies::contiguitas::Config::default()
        }),
    ]
}

fn replayed(record: &[u8], placement: &Placement) -> Result<Replayed, Error> {
    replay(Cursor::new(record), placement, &Config::default())
}

proptest! {
    #[test]
    fn frames_free_in_the_kernel_are_free_in_the_replay(
        used in proptest::collection::vec((0..FRAMES as u32, any::<bool>()), 0..300),
        steps in steps(),
    ) {
        let (record, free) = recorded(&used, &steps);
        for placement in placements() {
            let replayed = replayed(&record, &placement).unwrap();
            let mark = replayed.marks.last().unwrap();
            let simulated = mark.simulated.contiguity;
            prop_assert_eq!(mark.kernel.contiguity.free_frames, free as u64);
            prop_assert_eq!(mark.unseen, 0);
            prop_assert_eq!(mark.ghosts, 0);
            let listed = mark.simulated.free.iter().flat_map(|list| list.iter().enumerate());
            let listed: u64 = listed.map(|(order, &count)| u64::from(count) << order).sum();
            prop_assert_eq!(listed + mark.simulated.per_cpu, simulated.free_frames);
            if mark.totals.refused == 0 {
                prop_assert_eq!(simulated.free_frames, free as u64);
                let unmovable = mark.kernel.contiguity.unmovable_frames;
                prop_assert_eq!(simulated.unmovable_frames, unmovable);
            } else {
                // What was refused may have been given back since.
                prop_assert!(simulated.free_frames >= free as u64);
            }
        }
    }

    #[test]
    fn a_record_that_is_cut_short_or_damaged_is_no_panic(
        steps in steps(),
        end in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let (mut record, _) = recorded(&[(3, true), (600, false)], &steps);
        let short = &record[..end.index(record.len())];
        prop_assert!(matches!(replayed(short, &Placement::default()), Err(Error::Format(_))));
        let at = at.index(record.len());
        record[at] = with;
        for placement in placements() {
            let _ = replayed(&record, &placement);
        }
    }
}

#[test]
fn replayed_memory_begins_as_the_kernels() {
    let (record, _) = recorded(&[(7, true), (8, false), (600, true)], &[]);
    let replayed = replayed(&record, &Placement::default()).unwrap();
    let start = &replayed.marks[0];
    assert_eq!(start.name, "start");
    assert_eq!(start.kernel.unmovable, start.simulated.unmovable);
    assert_eq!(start.kernel.contiguity, start.simulated.contiguity);
    assert_eq!(start.kernel.contiguity, start.scanned);
}

#[test]
fn a_file_of_another_format_is_no_record() {
    for bytes in [&b""[..], b"ctgreqs", b"ctgreqs2\0\0\0\0\0\0\0\0", &[0; 64]] {
        let error = replayed(bytes, &Placement::default()).unwrap_err();
        assert!(
            error.to_string().contains("not a record of requests"),
            "{error}"
        );
    }
}

#[test]
fn a_record_that_lacks_words_says_so() {
    let mut kernel = Kernel::new(&[]);
    kernel.allocate(0, 0, 0);
    kernel.writer.words -= 1;
    let error = replayed(&kernel.writer.finish(), &Placement::default()).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}
