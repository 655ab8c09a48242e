//! Traces of the `ChampSim` simulator, as they are or compressed by xz, gzip or zstd.
//!
//! The format is `input_instr` of `inc/trace_instruction.h` in `ChampSim`: 64 bytes for each
//! executed instruction, with its address, whether it is a branch, the numbers of its registers
//! and the addresses that it loads (four) and stores (two), 0 where there is none. The format has
//! no signature; the two flags, which must be 0 or 1, are all that can tell other data apart.
//!
//! It says neither how long an instruction is nor how many bytes it accesses. The length is taken
//! from where the trace goes on after the instruction was first met, if that can be the next
//! instruction of a program for x86 (1 to 15 bytes on, and no branch was taken), and is
//! [`ASSUMED_LENGTH`] otherwise. Every access is taken to have [`ASSUMED_SIZE`] bytes.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::compressed::Input;
use super::foreign::Stream;
use super::{Batch, Program, Source};
use crate::error::Failure;
use crate::plan::Plan;
use crate::syscall::Architecture;
use crate::{Error, TraceProblem};

/// Bytes of an instruction whose length cannot be told: about the mean of x86-64 code.
pub const ASSUMED_LENGTH: u8 = 4;
/// Bytes of every access: the width of a general register.
pub const ASSUMED_SIZE: u64 = 8;

/// The longest instruction of x86 (Intel's manual, volume 2, section 2.3.11).
const MAX_LENGTH: u64 = 15;
const RECORD_BYTES: usize = 64;

/// One `input_instr`, without its registers.
#[derive(Clone, Copy)]
struct Record {
    address: u64,
    branch_taken: bool,
    stores: [u64; 2],
    loads: [u64; 4],
}

impl Record {
    fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Self, String> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let flag = |at: usize, name| match bytes[at] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("{name} is {other} instead of 0 or 1")),
        };
        flag(8, "is_branch")?;
        Ok(Self {
            address: word(0),
            branch_taken: flag(9, "branch_taken")?,
            stores: [16, 24].map(word),
            loads: [32, 40, 48, 56].map(word),
        })
    }

    /// The length of this instruction when `next` comes after it.
    fn length(&self, next: Option<Self>) -> u8 {
        next.filter(|_| !self.branch_taken)
            .map(|next| next.address.wrapping_sub(self.address))
            .filter(|length| (1..=MAX_LENGTH).contains(length))
            .map_or(ASSUMED_LENGTH, |length| length as u8)
    }
}

/// Yields the instructions of a `ChampSim` trace.
pub struct ChampSimSource {
    path: PathBuf,
    input: Input,
    program: Program,
    stream: Stream,
    /// The record that comes next, read already because it tells the length of the one before.
    next: Option<Record>,
}

impl ChampSimSource {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read, [`Error::Trace`] when it does not begin with an
    /// instruction.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::with_input(Input::open(path)?, path)
    }

    /// Reads a trace from `input`, which error messages call `path`.
    ///
    /// # Errors
    /// Those of [`ChampSimSource::open`].
    pub fn new(input: impl Read + Send + 'static, path: &Path) -> Result<Self, Error> {
        let input = Input::new(input).map_err(Error::file(path))?;
        Self::with_input(input, path)
    }

    fn with_input(input: Input, path: &Path) -> Result<Self, Error> {
        let mut source = Self {
            path: path.to_owned(),
            input,
            program: Program {
                command: vec![path.display().to_string()],
                architecture: Architecture::X86_64,
                reports_mappings: false,
                plan: Plan::default(),
            },
            stream: Stream::default(),
            next: None,
        };
        let first = source.read().map_err(|failure| failure.at(path))?;
        if first.is_none() {
            let problem = TraceProblem::NotATrace {
                format: "ChampSim",
                detail: "it is empty".into(),
            };
            return Err(Failure::from(problem).at(path));
        }
        source.next = first;
        Ok(source)
    }

    fn read(&mut self) -> Result<Option<Record>, Failure> {
        let mut bytes = [0; RECORD_BYTES];
        if !self.input.record(&mut bytes)? {
            return Ok(None);
        }
        let record = Record::decode(&bytes).map_err(|detail| TraceProblem::Record {
            place: format!("record {}", self.input.offset() / RECORD_BYTES as u64),
            detail,
        })?;
        Ok(Some(record))
    }

    fn fill(&mut self) -> Result<(), Failure> {
        self.stream.clear();
        while !self.stream.is_full()
            && let Some(record) = self.next.take()
        {
            self.next = self.read()?;
            self.stream
                .instruction(record.address, || record.length(self.next));
            for address in record.loads.into_iter().filter(|&address| address != 0) {
                self.stream.access(address, ASSUMED_SIZE, false);
            }
            for address in record.stores.into_iter().filter(|&address| address != 0) {
                self.stream.access(address, ASSUMED_SIZE, true);
            }
        }
        Ok(())
    }
}

impl Source for ChampSimSource {
    fn program(&self) -> &Program {
        &self.program
    }

    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error> {
        self.fill().map_err(|failure| failure.at(&self.path))?;
        Ok(self.stream.batch())
    }
}
