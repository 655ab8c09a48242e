//! Traces of the `ChampSim` simulator, as they are or compressed by xz, gzip or zstd.
//!
//! The format is `input_instr` of `inc/trace_instruction.h` in `ChampSim`: 64 bytes for each
//! executed instruction, with its address, whether it is a branch, the numbers of its registers
//! and the addresses that it loads (four) and stores (two), 0 where there is none. The format has
//! no signature; the two flags, which must be 0 or 1, are all that can tell other data apart. What
//! registers and accesses make of an instruction, [`registers`] says.
//!
//! It says neither how long an instruction is nor how many bytes it accesses. The length is taken
//! from where the trace goes on after the instruction was first met, if that can be the next
//! instruction of a program for x86 (1 to 15 bytes on, and no branch was taken), and is
//! [`ASSUMED_LENGTH`] otherwise. Every access is taken to have [`ASSUMED_SIZE`] bytes.

mod registers;

use std::io::Read;
use std::path::{Path, PathBuf};

use super::compressed::Input;
use super::foreign::{Described, Stream};
use super::{Batch, Program, Source};
use crate::error::Failure;
use crate::layout::Layout;
use crate::plan::Plan;
use crate::syscall::Architecture;
use crate::wire::ThreadId;
use crate::{Error, TraceProblem};
use registers::Registers;

/// Bytes of an instruction whose length cannot be told: about the mean of x86-64 code.
pub const ASSUMED_LENGTH: u8 = 4;
/// Bytes of every access: the width of a general register.
pub const ASSUMED_SIZE: u64 = 8;

/// The longest instruction of x86 (Intel's manual, volume 2, section 2.3.11).
const MAX_LENGTH: u64 = 15;
const RECORD_BYTES: usize = 64;

/// One `input_instr`.
#[derive(Clone, Copy)]
struct Record {
    address: u64,
    is_branch: bool,
    branch_taken: bool,
    /// Numbers of registers: two that it writes, four that it reads, 0 where there is none.
    registers: [u8; 6],
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
        Ok(Self {
            address: word(0),
            is_branch: flag(8, "is_branch")?,
            registers: [10, 11, 12, 13, 14, 15].map(|at| bytes[at]),
            branch_taken: flag(9, "branch_taken")?,
            stores: [16, 24].map(word),
            loads: [32, 40, 48, 56].map(word),
        })
    }

    /// Hash by which it differs from other instructions at its address: registers, whether it is a
    /// branch, and its numbers of loads and stores.
    fn signature(&self) -> u64 {
        let mut signature = [0; 8];
        signature[..6].copy_from_slice(&self.registers);
        let count = |addresses: &[u64]| addresses.iter().filter(|&&a| a != 0).count() as u8;
        let accesses = count(&self.loads) << 4 | count(&self.stores) << 1;
        signature[6] = accesses | u8::from(self.is_branch);
        u64::from_le_bytes(signature)
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
    registers: Registers,
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
                layout: Layout::default(),
            },
            stream: Stream::of_one_thread(),
            registers: Registers::default(),
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

    fn refusal(place: u64, detail: String) -> Failure {
        TraceProblem::Record {
            place: format!("record {place}"),
            detail,
        }
        .into()
    }

    fn read(&mut self) -> Result<Option<Record>, Failure> {
        let mut bytes = [0; RECORD_BYTES];
        if !self.input.record(&mut bytes)? {
            return Ok(None);
        }
        let number = self.input.offset() / RECORD_BYTES as u64;
        let record = Record::decode(&bytes).map_err(|detail| Self::refusal(number, detail))?;
        Ok(Some(record))
    }

    fn fill(&mut self) -> Result<(), Failure> {
        self.stream.clear();
        while !self.stream.is_full()
            && let Some(record) = self.next.take()
        {
            let number = self.input.offset() / RECORD_BYTES as u64;
            self.next = self.read()?;
            self.execute(&record)
                .map_err(|detail| Self::refusal(number, detail))?;
        }
        Ok(())
    }

    fn execute(&mut self, record: &Record) -> Result<(), String> {
        let (next, registers) = (self.next, &mut self.registers);
        let describe = || Described {
            length: record.length(next),
            bytes: &[],
            instruction: Some(registers.instruction(record)),
        };
        self.stream
            .instruction(record.address, record.signature(), describe)?;
        for (addresses, store) in [(&record.loads[..], false), (&record.stores[..], true)] {
            for &address in addresses.iter().filter(|&&address| address != 0) {
                self.stream.access(address, ASSUMED_SIZE, store)?;
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
        Ok(self.stream.batch(ThreadId(0)))
    }

    fn set_address_bits(&mut self, bits: u32) {
        self.stream.set_address_bits(bits);
    }
}
