//! One pass over all frames: reads, classifies, and hands runs of equal frames to whoever counts.
//!
//! The kernel's copy-out is what a scan costs (some 45 ns for each frame and file), so several
//! threads read and classify chunks of memory while the caller's thread takes their results in
//! address order. How far the threads may run ahead is limited, and so is memory: a chunk is 32768
//! frames, whatever the machine's size.
//!
//! A chunk's flags are read first. Mappings are then read only of blocks with movable memory, and
//! cgroups only of blocks with kernel memory, because nobody asks about the others.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use contigua_contiguity::FrameKind;

use crate::classify::{Class, bit, classify_block};
use crate::frames::{Area, PageFile, PageSource};
use crate::proc::FrameRange;

/// Frames that are read at a time: 128 MB.
const CHUNK: u64 = 32_768;
/// Frames that are classified together: 2 MB.
const BLOCK: u64 = 512;
/// Results that may wait for their turn, for each thread.
const AHEAD: usize = 4;
/// Problems that are kept in words; the others are counted.
const PROBLEMS: usize = 10;

/// Neighboring frames that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Class of the frames.
    pub class: Class,
    /// The inode number of the cgroup that is charged for them: only of kernel memory, else 0.
    pub cgroup: u64,
    /// The zone, as in [`Area::zone`].
    pub zone: Option<u16>,
    /// Number of frames.
    pub frames: u64,
}

impl Run {
    /// Frames that are no memory.
    #[must_use]
    pub const fn hole(frames: u64) -> Self {
        Self {
            class: Class::Hole,
            cgroup: 0,
            zone: None,
            frames,
        }
    }
}

/// Takes runs in address order, from frame 0 on without gaps.
pub trait Sink {
    /// Takes the next run.
    ///
    /// # Errors
    /// When it cannot be kept, as when a disk is full; the scan then ends.
    fn take(&mut self, run: Run) -> io::Result<()>;
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn take(&mut self, run: Run) -> io::Result<()> {
        (**self).take(run)
    }
}

/// Mappings of movable frames, on which the cost of moving them depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mappings {
    /// Frames without a mapping.
    pub none: u64,
    /// Frames with one.
    pub one: u64,
    /// Frames with several.
    pub several: u64,
    /// The most mappings of a frame.
    pub most: u64,
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// In which file.
    pub file: &'static str,
    /// The first frame.
    pub start: u64,
    /// Number of frames.
    pub frames: u64,
    /// The system's error.
    pub what: String,
}

/// Findings of a scan beside the runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Outcome {
    /// Mappings of movable frames; all 0 without the right to read them.
    pub mappings: Mappings,
    /// Bits that no kernel known here has, of all frames together.
    pub unknown_bits: u64,
    /// Frames with such bits.
    pub unknown_bit_frames: u64,
    /// Number of failed reads.
    pub problem_count: u64,
    /// The first of these times.
    pub problems: Vec<Problem>,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.mappings.none += other.mappings.none;
        self.mappings.one += other.mappings.one;
        self.mappings.several += other.mappings.several;
        self.mappings.most = self.mappings.most.max(other.mappings.most);
        self.unknown_bits |= other.unknown_bits;
        self.unknown_bit_frames += other.unknown_bit_frames;
        self.problem_count += other.problem_count;
        let room = PROBLEMS.saturating_sub(self.problems.len());
        self.problems.extend(other.problems.into_iter().take(room));
    }

    fn complain(&mut self, file: PageFile, frames: FrameRange, result: &io::Result<usize>) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS {
            let what = match result {
                Ok(_) => "the file ends there: the memory has gone".to_owned(),
                Err(error) => error.to_string(),
            };
            self.problems.push(Problem {
                file: file.path(),
                start: frames.start,
                frames: frames.frames(),
                what,
            });
        }
    }
}

/// Threads and pauses of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Threads that read.
    pub threads: usize,
    /// Sleep of a thread after each 128 MB.
    pub pause: Duration,
}

impl Default for Pace {
    /// As fast as this machine can.
    fn default() -> Self {
        Self {
            // More would wait for each other in the kernel, and show in the machine's latencies.
            threads: thread::available_parallelism().map_or(1, |count| count.get().min(8)),
            pause: Duration::ZERO,
        }
    }
}

/// Scans areas, which must be in address order, and hands their frames, and the holes between
/// them, to `sink`.
///
/// # Errors
/// Those of `sink`, and when no thread can be started. Frames that cannot be read are [`Class::Unread`], and in the
/// outcome.
pub fn scan(
    source: &impl PageSource,
    areas: &[Area],
    pace: Pace,
    sink: &mut impl Sink,
) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut joiner = Joiner {
        sink,
        position: 0,
        open: Run::hole(0),
    };
    let threads = pace.threads.max(1);
    let (to_workers, work) = mpsc::channel::<(usize, Area)>();
    let work = Mutex::new(work);
    thread::scope(|scope| {
        // Dropped however this ends: without work, the workers end, and with them the scope.
        let to_workers = to_workers;
        let (from_workers, results) = mpsc::channel();
        for number in 0..threads {
            let from_workers = from_workers.clone();
            let work = &work;
            let started = thread::Builder::new().spawn_scoped(scope, move || {
                let from_workers = Speaker(from_workers);
                let mut reader = Reader::new(source);
                loop {
                    let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, area)) = next else { break };
                    let piece = reader.read(area);
                    if from_workers.0.send(Some((number, piece))).is_err() {
                        break;
                    }
                    if !pace.pause.is_zero() {
                        thread::sleep(pace.pause);
                    }
                }
            });
            match started {
                Ok(_) => {}
                Err(error) if number == 0 => {
                    let what = format!("no thread can be started: {error}");
                    return Err(io::Error::new(error.kind(), what));
                }
                // Those that are there do all of it.
                Err(_) => break,
            }
        }
        drop(from_workers);

        let mut chunks = areas.iter().flat_map(|&area| chunks(area)).enumerate();
        let mut waiting = BTreeMap::new();
        let mut is_sent = 0;
        let mut is_done = 0;
        loop {
            for chunk in chunks.by_ref().take(threads * AHEAD - (is_sent - is_done)) {
                // Never fails: its other end is in this frame.
                let _ = to_workers.send(chunk);
                is_sent += 1;
            }
            if is_done == is_sent {
                break;
            }
            // Nothing comes from a worker that panicked; the scope passes its panic on.
            let Ok(Some((number, piece))) = results.recv() else {
                break;
            };
            waiting.insert(number, piece);
            while let Some(piece) = waiting.remove(&is_done) {
                is_done += 1;
                outcome.add(piece.outcome);
                joiner.jump(piece.start)?;
                for run in piece.runs {
                    joiner.push(run)?;
                }
            }
        }
        joiner.flush()
    })?;
    Ok(outcome)
}

/// A worker's end of the channel, which says when the worker panics: the others hold theirs, so the
/// channel alone would not end.
struct Speaker(mpsc::Sender<Option<(usize, Piece)>>);

impl Drop for Speaker {
    fn drop(&mut self) {
        if thread::panicking() {
            // Fails where nobody listens any more.
            let _ = self.0.send(None);
        }
    }
}

fn chunks(area: Area) -> impl Iterator<Item = Area> {
    let mut start = area.frames.start;
    std::iter::from_fn(move || {
        let end = area.frames.end.min((start / CHUNK + 1) * CHUNK);
        let frames = FrameRange { start, end };
        start = end;
        (frames.frames() > 0).then_some(Area { frames, ..area })
    })
}

/// Joins runs across chunks.
struct Joiner<'a, S> {
    sink: &'a mut S,
    position: u64,
    open: Run,
}

impl<S: Sink> Joiner<'_, S> {
    fn push(&mut self, run: Run) -> io::Result<()> {
        self.position += run.frames;
        if self.open.class == run.class
            && self.open.cgroup == run.cgroup
            && self.open.zone == run.zone
        {
            self.open.frames += run.frames;
            return Ok(());
        }
        let before = std::mem::replace(&mut self.open, run);
        if before.frames > 0 {
            self.sink.take(before)?;
        }
        Ok(())
    }

    fn jump(&mut self, to: u64) -> io::Result<()> {
        match to.saturating_sub(self.position) {
            0 => Ok(()),
            frames => self.push(Run::hole(frames)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push(Run::hole(0))?;
        if self.open.frames > 0 {
            self.sink.take(self.open)?;
        }
        Ok(())
    }
}

/// Runs and outcome of a scanned chunk.
struct Piece {
    start: u64,
    runs: Vec<Run>,
    outcome: Outcome,
}

/// Reads and classifies chunks, in buffers that are used again.
struct Reader<'a, S> {
    source: &'a S,
    flags: Vec<u64>,
    words: Vec<u64>,
    classes: Vec<Class>,
}

impl<'a, S: PageSource> Reader<'a, S> {
    fn new(source: &'a S) -> Self {
        Self {
            source,
            flags: vec![0; CHUNK as usize],
            words: vec![0; CHUNK as usize],
            classes: Vec::with_capacity(CHUNK as usize),
        }
    }

    fn read(&mut self, area: Area) -> Piece {
        let mut outcome = Outcome::default();
        let range = area.frames;
        let count = range.frames() as usize;
        let run = |class, frames| Run {
            class,
            cgroup: 0,
            zone: area.zone,
            frames,
        };
        let mut runs = Vec::new();
        if !area.is_online {
            runs.push(run(Class::Offline, range.frames()));
            return Piece {
                start: range.start,
                runs,
                outcome,
            };
        }
        let result = self
            .source
            .read(PageFile::Flags, range.start, &mut self.flags[..count]);
        let read = result.as_ref().map_or(0, |&read| read.min(count));
        if read < count {
            let missing = FrameRange {
                start: range.start + read as u64,
                end: range.end,
            };
            outcome.complain(PageFile::Flags, missing, &result);
        }
        self.classify(range.start, read, &mut outcome);
        self.count_mappings(range.start, &mut outcome);
        let has_cgroups = self.look_up_cgroups(range.start, &mut outcome);

        for (index, &class) in self.classes.iter().enumerate() {
            let may_have_owner = matches!(class.kind(), FrameKind::Unmovable);
            let cgroup = if has_cgroups && may_have_owner {
                self.words[index]
            } else {
                0
            };
            // What is free on a CPU's list is charged to nobody.
            let class = match class {
                Class::Unexplained if cgroup != 0 => Class::Kernel,
                class => class,
            };
            match runs.last_mut() {
                Some(last) if last.class == class && last.cgroup == cgroup => last.frames += 1,
                _ => runs.push(Run {
                    cgroup,
                    ..run(class, 1)
                }),
            }
        }
        if read < count {
            runs.push(run(Class::Unread, (count - read) as u64));
        }
        Piece {
            start: range.start,
            runs,
            outcome,
        }
    }

    fn classify(&mut self, start: u64, count: usize, outcome: &mut Outcome) {
        self.classes.clear();
        let mut bits = 0;
        for block in blocks(start, count) {
            let flags = &self.flags[block];
            bits |= flags.iter().fold(0, |all, &flags| all | flags);
            classify_block(flags, |class| self.classes.push(class));
        }
        outcome.unknown_bits = bits & !bit::KNOWN;
        if outcome.unknown_bits != 0 {
            let flags = self.flags[..count].iter();
            let unknown = flags.filter(|&&flags| flags & !bit::KNOWN != 0);
            outcome.unknown_bit_frames = unknown.count() as u64;
        }
    }

    fn count_mappings(&mut self, start: u64, outcome: &mut Outcome) {
        let is_movable = |class: Class| class.kind() == FrameKind::Movable;
        for wanted in wanted(start, &self.classes, is_movable) {
            if !fetch(
                self.source,
                PageFile::Counts,
                start,
                wanted.clone(),
                &mut self.words,
                outcome,
            ) {
                return;
            }
            let mappings = &mut outcome.mappings;
            for index in wanted {
                if is_movable(self.classes[index]) {
                    let count = self.words[index];
                    mappings.none += u64::from(count == 0);
                    mappings.one += u64::from(count == 1);
                    mappings.several += u64::from(count > 1);
                    mappings.most = mappings.most.max(count);
                }
            }
        }
    }

    /// Leaves the cgroups of kernel memory in `words`; whether it could.
    fn look_up_cgroups(&mut self, start: u64, outcome: &mut Outcome) -> bool {
        let is_owned = |class: Class| class.kind() == FrameKind::Unmovable;
        for wanted in wanted(start, &self.classes, is_owned) {
            if !fetch(
                self.source,
                PageFile::Cgroups,
                start,
                wanted,
                &mut self.words,
                outcome,
            ) {
                return false;
            }
        }
        true
    }
}

/// Reads words of a part of a chunk to the same place in the buffer; whether all are there.
fn fetch(
    source: &impl PageSource,
    file: PageFile,
    start: u64,
    wanted: Range<usize>,
    words: &mut [u64],
    outcome: &mut Outcome,
) -> bool {
    if !source.has(file) {
        return false;
    }
    let count = wanted.len();
    let first = start + wanted.start as u64;
    let result = source.read(file, first, &mut words[wanted]);
    if matches!(result, Ok(read) if read == count) {
        return true;
    }
    let end = first + count as u64;
    outcome.complain(file, FrameRange { start: first, end }, &result);
    false
}

/// Aligned blocks of 2 MB within `count` frames from `start`, as indices.
fn blocks(start: u64, count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let to_border = (BLOCK - (start + at as u64) % BLOCK) as usize;
        let block = at..count.min(at + to_border);
        at = block.end;
        (!block.is_empty()).then_some(block)
    })
}

/// Blocks with a frame that `is_wanted`, as indices, neighbors joined.
fn wanted(start: u64, classes: &[Class], is_wanted: impl Fn(Class) -> bool) -> Vec<Range<usize>> {
    let mut result: Vec<Range<usize>> = Vec::new();
    for block in blocks(start, classes.len()) {
        if classes[block.clone()].iter().any(|&class| is_wanted(class)) {
            match result.last_mut() {
                Some(last) if last.end == block.start => last.end = block.end,
                _ => result.push(block),
            }
        }
    }
    result
}
