//! Traces of `DynamoRIO`'s drmemtrace, the format of Google's public workload traces.
//!
//! A trace is a folder with a file for each thread, or for each core that threads take turns on. A file is
//! records of 12 bytes (`trace_entry_t` in `clients/drcachesim/common/trace_entry.h`), in a zip archive with
//! a member for each chunk, or compressed otherwise. Files are read in the traced order: at each timestamp,
//! the one goes on that is behind. That is the order of `serial_schedule.bin`, which is made of the same
//! timestamps.
//!
//! An instruction becomes a block with its encoding, which comes with its first execution in a chunk; one of
//! REGDEPS (Google's) becomes what it says of itself. A further iteration of a string instruction is an
//! execution of its block. System calls return before the thread's next instruction, and wait where they may
//! have: the format has no arguments. Prefetches and flushes are passed over.

mod archive;
mod convert;
mod counts;
mod files;
mod record;
mod schedule;
mod shard;
mod v2p;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Batch, Program, Source};
use crate::error::Failure;
use crate::layout::Layout;
use crate::plan::Plan;
use crate::syscall::Architecture;
use crate::{Error, TraceProblem};
use convert::{Converter, Stop};
use record::file_type;
use shard::{Header, Records, Shard, When};

pub use counts::{Counts, count};
pub use files::is_drmemtrace;
pub use v2p::{Mapping, Placement};

/// A file of the trace.
enum File {
    Closed(PathBuf),
    Open(Box<Shard>),
    Ended,
}

/// Yields what a trace's threads did, in the traced order.
pub struct DrmemtraceSource {
    program: Program,
    has_registers: bool,
    /// File or folder of the trace.
    path: PathBuf,
    headers: Vec<Header>,
    files: Vec<File>,
    /// Files that are not at their end, by where they are.
    waiting: BinaryHeap<Reverse<(When, usize)>>,
    /// The file that is read.
    current: Option<usize>,
    converter: Converter,
}

impl DrmemtraceSource {
    /// Opens the trace at `path`, a file or a folder of files.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read, [`Error::Trace`] when it is not a trace that can be replayed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let paths = files::of_trace(path)?;
        let mut source = Self::empty(path);
        for file in paths {
            let header = Records::open(&file)?
                .header()
                .map_err(|failure| failure.at(&file))?;
            source.add(&header, File::Closed(file.clone()), &file)?;
        }
        Ok(source)
    }

    /// Reads a file of one thread or core from `input`, which error messages call `path`.
    ///
    /// # Errors
    /// Those of [`DrmemtraceSource::open`].
    pub fn new(input: impl Read + Send + 'static, path: &Path) -> Result<Self, Error> {
        let records = Records::of(input, path)?;
        let shard = Shard::new(records).map_err(|failure| failure.at(path))?;
        let mut source = Self::empty(path);
        source.add(&{ shard.header }, File::Open(Box::new(shard)), path)?;
        Ok(source)
    }

    fn empty(path: &Path) -> Self {
        Self {
            program: Program {
                command: vec![path.display().to_string()],
                architecture: Architecture::X86_64,
                reports_mappings: false,
                plan: Plan::default(),
                layout: Layout::default(),
            },
            has_registers: true,
            path: path.to_owned(),
            headers: Vec::new(),
            files: Vec::new(),
            waiting: BinaryHeap::new(),
            current: None,
            converter: Converter::default(),
        }
    }

    fn add(&mut self, header: &Header, file: File, path: &Path) -> Result<(), Error> {
        let refuse = |detail: &str| {
            Err(Failure::from(TraceProblem::NotATrace {
                format: "drmemtrace that can be replayed",
                detail: detail.into(),
            })
            .at(path))
        };
        if header.has(file_type::X86_32 | file_type::ARM_32) {
            return refuse("it is of a program of 32 bits");
        }
        let filters =
            file_type::FILTERED | file_type::INSTRUCTIONS_FILTERED | file_type::DATA_FILTERED;
        if header.has(filters) && !header.has(file_type::FILTERED_AT_FIRST) {
            return refuse(
                "it was filtered by a cache while it was traced, so that instructions or accesses are \
                 missing; trace again without -L0_filter",
            );
        }
        if header.has(file_type::AARCH64) {
            self.program.architecture = Architecture::Aarch64;
        }
        self.has_registers &= header.has(file_type::ENCODINGS);
        self.waiting
            .push(Reverse((header.begins, self.files.len())));
        self.headers.push(*header);
        self.files.push(file);
        Ok(())
    }

    /// Maps pages where the traced machine had them: by markers in the trace, and by these.
    pub fn place_as_traced(&mut self, mappings: Vec<Mapping>) {
        self.converter.placement = Placement::Traced;
        self.converter.mappings = mappings;
    }

    /// The mappings that the trace at `path` comes with, as `v2p.textproto` beside its files.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Trace`].
    pub fn mappings(path: &Path) -> Result<Option<Vec<Mapping>>, Error> {
        files::beside(path, &[v2p::NAME])
            .map(|file| v2p::read(&file))
            .transpose()
    }

    fn fill(&mut self) -> Result<(), Error> {
        loop {
            let index = match self.current {
                Some(index) => index,
                None => match self.waiting.pop() {
                    Some(Reverse((_, index))) => index,
                    None => return Ok(()),
                },
            };
            self.current = Some(index);
            if let File::Closed(path) = &self.files[index] {
                let records = Records::open(path)?;
                let shard = Shard::new(records).map_err(|failure| failure.at(path))?;
                self.files[index] = File::Open(Box::new(shard));
            }
            let File::Open(shard) = &mut self.files[index] else {
                self.current = None;
                continue;
            };
            let next = self.waiting.peek().map(|Reverse(next)| *next);
            let read = self
                .converter
                .read(shard, self.program.architecture, |when| {
                    next.is_some_and(|next| next < (when, index))
                });
            match read.map_err(|failure| failure.at(shard.records.path()))? {
                Stop::Batch => {}
                Stop::Later(when) => {
                    self.current = None;
                    self.waiting.push(Reverse((when, index)));
                }
                Stop::End => {
                    self.current = None;
                    self.files[index] = File::Ended;
                }
            }
            if !self.converter.stream.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Source for DrmemtraceSource {
    fn program(&self) -> &Program {
        &self.program
    }

    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error> {
        self.converter.stream.clear();
        if let Err(error) = self.fill() {
            self.waiting.clear();
            self.current = None;
            self.files.clear();
            self.converter.stream.clear();
            return Err(error);
        }
        let thread = self.converter.thread;
        Ok(self.converter.stream.batch(thread))
    }

    fn set_address_bits(&mut self, bits: u32) {
        self.converter.stream.set_address_bits(bits);
    }

    fn has_registers(&self) -> bool {
        self.has_registers
    }

    /// Goes by chunks in one file, and in files of threads with a schedule.
    fn skip(&mut self, instructions: u64) -> Result<u64, Error> {
        let places = if let [File::Closed(_)] = &self.files[..] {
            vec![(0, instructions, When::default())]
        } else {
            let Some(entries) = schedule::read(&self.path)? else {
                return Ok(0);
            };
            let threads = self.headers.iter().map(|header| header.thread);
            schedule::places(&entries, &threads.collect::<Vec<_>>(), instructions)
        };
        for &(index, count, when) in &places {
            let File::Closed(path) = &self.files[index] else {
                continue;
            };
            let records = Records::open(path)?;
            let mut shard = Shard::new(records).map_err(|failure| failure.at(path))?;
            shard.pass_over(count);
            self.files[index] = File::Open(Box::new(shard));
            let mut waiting = std::mem::take(&mut self.waiting).into_vec();
            for Reverse((at, of)) in &mut waiting {
                if *of == index {
                    *at = when;
                }
            }
            self.waiting = waiting.into();
        }
        let passed = places.iter().map(|&(_, count, _)| count).sum();
        self.converter.passed = passed;
        Ok(passed)
    }
}
