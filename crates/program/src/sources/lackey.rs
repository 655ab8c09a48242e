//! Traces of Valgrind's tool `lackey` with `--trace-mem=yes`, as they are or compressed by xz, gzip
//! or zstd.
//!
//! ```text
//! I  04001f90,3      an instruction of 3 bytes
//!  L 1ffeffe7e0,8    it loads 8 bytes
//!  S 1ffeffe7d8,8    it stores 8 bytes
//!  M 0421c7cc,4      it loads 4 bytes and stores them
//! ```
//!
//! Addresses are hexadecimal, sizes decimal (Valgrind's `lackey/lk_main.c`). Valgrind's own
//! messages, which begin with `==`, `--` or `**`, are passed over. Anything else is an error, since
//! it means that the program's output got between; `--log-file` keeps it apart.

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

/// Bytes of a line, beyond which it is cut: only Valgrind's messages are ever longer than 40.
const MAX_LINE: usize = 4096;
/// Bytes that one access can have. The largest are those of `fxsave` and `xsave`.
const MAX_SIZE: u64 = 1 << 14;

/// Contents of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Instruction { address: u64, length: u8 },
    Access { address: u64, size: u64, kind: Kind },
    Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    Modify,
}

impl Line {
    fn parse(line: &[u8]) -> Option<Self> {
        if line.is_empty()
            || [b"==", b"--", b"**"]
                .iter()
                .any(|start| line.starts_with(*start))
        {
            return Some(Self::Message);
        }
        let (head, rest) = line.split_at_checked(3)?;
        let comma = rest.iter().position(|&byte| byte == b',')?;
        let address = number(&rest[..comma], 16)?;
        let size = number(&rest[comma + 1..], 10).filter(|size| (1..=MAX_SIZE).contains(size))?;
        let kind = match head {
            b"I  " => {
                let length = u8::try_from(size).ok()?;
                return Some(Self::Instruction { address, length });
            }
            b" L " => Kind::Load,
            b" S " => Kind::Store,
            b" M " => Kind::Modify,
            _ => return None,
        };
        Some(Self::Access {
            address,
            size,
            kind,
        })
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let digits = str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.starts_with('+'))?;
    u64::from_str_radix(digits, radix).ok()
}

/// Yields the instructions of a lackey trace.
pub struct LackeySource {
    path: PathBuf,
    input: Input,
    program: Program,
    stream: Stream,
    line: Vec<u8>,
    lines: u64,
    ended: bool,
}

impl LackeySource {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self::with_input(Input::open(path)?, path))
    }

    /// Reads a trace from `input`, which error messages call `path`.
    ///
    /// # Errors
    /// Those of [`LackeySource::open`].
    pub fn new(input: impl Read + Send + 'static, path: &Path) -> Result<Self, Error> {
        let input = Input::new(input).map_err(Error::file(path))?;
        Ok(Self::with_input(input, path))
    }

    fn with_input(input: Input, path: &Path) -> Self {
        Self {
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
            line: Vec::new(),
            lines: 0,
            ended: false,
        }
    }

    fn fill(&mut self) -> Result<(), Failure> {
        while !self.stream.is_full() {
            if !self.input.line(&mut self.line, MAX_LINE)? {
                self.ended = true;
                return self.check_end();
            }
            self.lines += 1;
            match Line::parse(&self.line) {
                Some(Line::Message) => {}
                Some(Line::Instruction { address, length }) => {
                    let describe = || Described {
                        length,
                        bytes: &[],
                        instruction: None,
                    };
                    self.stream
                        .instruction(address, length.into(), describe)
                        .map_err(|detail| self.refusal(detail))?;
                }
                Some(Line::Access { .. }) if !self.stream.has_instructions() => {
                    return Err(self.refusal("an access before the first instruction".into()));
                }
                Some(Line::Access {
                    address,
                    size,
                    kind,
                }) => {
                    for (store, other) in [(false, Kind::Store), (true, Kind::Load)] {
                        if kind != other {
                            self.stream
                                .access(address, size, store)
                                .map_err(|detail| self.refusal(detail))?;
                        }
                    }
                }
                None => {
                    let start = &self.line[..self.line.len().min(40)];
                    let line = String::from_utf8_lossy(start).into_owned();
                    return Err(self.refusal(format!("not of lackey's format: {line:?}")));
                }
            }
        }
        Ok(())
    }

    fn check_end(&self) -> Result<(), Failure> {
        if self.stream.has_instructions() {
            return Ok(());
        }
        Err(TraceProblem::NotATrace {
            format: "Valgrind lackey",
            detail: "it has no instructions; lackey needs --trace-mem=yes".into(),
        }
        .into())
    }

    fn refusal(&self, detail: String) -> Failure {
        TraceProblem::Record {
            place: format!("line {}", self.lines),
            detail,
        }
        .into()
    }
}

impl Source for LackeySource {
    fn program(&self) -> &Program {
        &self.program
    }

    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error> {
        if self.ended {
            return Ok(None);
        }
        self.stream.clear();
        if let Err(failure) = self.fill() {
            self.ended = true;
            return Err(failure.at(&self.path));
        }
        Ok(self.stream.batch(ThreadId(0)))
    }

    fn set_address_bits(&mut self, bits: u32) {
        self.stream.set_address_bits(bits);
    }

    fn has_registers(&self) -> bool {
        false
    }
}
