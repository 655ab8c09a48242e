//! Checkpoints: the whole state of a simulated server in a file, from which a replay goes on.
//!
//! ```text
//! magic | format: 4 | length of the header: 4 | header, JSON | state, compressed by zstd
//! | bytes of the state: 8 | XXH3-64 of all before: 8
//! ```
//!
//! The header says what the state is of: the version of Contigua, the configuration with every
//! default, the recording, and how far it was read. A run goes on from a checkpoint only where
//! all of that is its own. So the server is made from the configuration as always (but memory is
//! not aged again), and what changes while it runs is loaded into it: see [`contigua_state`].

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use contigua_program::sources::{Program, Source};
use contigua_state::{Reader, State, Writer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3Default;

use crate::config::{Age, RunConfig};
use crate::{Engine, Error};

const MAGIC: [u8; 8] = *b"\x89ctgckp\n";
/// To be raised with every change of what a checkpoint holds that the fields of structures do not
/// show.
const FORMAT: u32 = 3;
/// Bytes before the header, and behind the state.
const START: u64 = 16;
const END: u64 = 16;
/// Bytes that a header can have; it is mostly the configuration.
const MOST_HEADER: u32 = 1 << 24;
/// The fastest: state is mostly zeros, or nothing that compresses.
const LEVEL: i32 = 1;

/// Why a run cannot go on from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointProblem {
    /// The file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something else.
    #[error("not a checkpoint of `contigua run --checkpoint`")]
    Other,
    /// Not what was written.
    #[error("damaged or cut short: save the checkpoint again")]
    Damaged,
    /// Another Contigua has written it.
    #[error(
        "saved by Contigua {found}, and this is {}: save the checkpoint again",
        ours()
    )]
    Version {
        /// The version that was found.
        found: String,
    },
    /// Another recording, or none that can be known again.
    #[error("saved in a run of another recording: give that one with --trace")]
    Recording,
    /// Another configuration.
    #[error(
        "saved in a run with {key} {found}, and this one has {wanted}: give the same options, or save \
         a checkpoint with these"
    )]
    Config {
        /// The first key that differs.
        key: String,
        /// Its value there.
        found: String,
        /// And here.
        wanted: String,
    },
    /// State of another server.
    #[error("its state does not fit this server ({0}): save the checkpoint again")]
    State(contigua_state::Error),
    /// The run did not come by.
    #[error("not saved: the run went from instruction {from} to {to}")]
    Missed {
        /// The state's first instruction.
        from: u64,
        /// The state's last instruction.
        to: u64,
    },
}

fn ours() -> String {
    format!("{} (checkpoint format {FORMAT})", env!("CARGO_PKG_VERSION"))
}

impl CheckpointProblem {
    fn at(self, path: &Path) -> Error {
        Error::Checkpoint {
            path: path.to_owned(),
            problem: self,
        }
    }
}

/// Identity of the run that a state belongs to.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    version: String,
    /// [`Source::identity`], in hexadecimal digits.
    recording: String,
    /// Batches of the recording that were read.
    batches: u64,
    instructions: u64,
    config: Value,
}

impl Header {
    fn new(config: &RunConfig, recording: u64, place: (u64, u64)) -> Self {
        // By way of text, as the other one comes: a fraction may change its last digit there.
        let text = serde_json::to_string(config).unwrap_or_default();
        Self {
            version: ours(),
            recording: format!("{recording:016x}"),
            batches: place.0,
            instructions: place.1,
            config: serde_json::from_str(&text).unwrap_or_default(),
        }
    }

    /// Checks that a run like `own` can go on from it.
    fn check(&self, own: &Self) -> Result<(), CheckpointProblem> {
        if self.version != own.version {
            let found = self.version.chars().take(60).collect();
            return Err(CheckpointProblem::Version { found });
        }
        if let Some((key, found, wanted)) = difference(&self.config, &own.config) {
            return Err(CheckpointProblem::Config { key, found, wanted });
        }
        if self.recording != own.recording {
            return Err(CheckpointProblem::Recording);
        }
        Ok(())
    }
}

/// The first key whose value differs, and both values.
fn difference(found: &Value, wanted: &Value) -> Option<(String, String, String)> {
    if found == wanted {
        return None;
    }
    if let (Value::Object(found), Value::Object(wanted)) = (found, wanted) {
        let keys = found.keys().chain(wanted.keys());
        for key in keys {
            let value = |of: &serde_json::Map<String, Value>| of.get(key).cloned();
            let (found, wanted) = (value(found), value(wanted));
            let below = difference(&found.unwrap_or_default(), &wanted.unwrap_or_default());
            if let Some((inner, found, wanted)) = below {
                let dot = if inner.is_empty() { "" } else { "." };
                return Some((format!("{key}{dot}{inner}"), found, wanted));
            }
        }
    }
    let short = |value: &Value| {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        text.chars().take(60).collect()
    };
    Some((String::new(), short(found), short(wanted)))
}

/// Places at which a run saves its state.
#[derive(Clone, Debug, Default)]
pub struct Saves {
    /// After how many instructions since the start of the recording, and the file.
    files: Vec<(u64, PathBuf)>,
}

impl Saves {
    /// Saves into files, each at the first end of a batch with so many instructions before it.
    #[must_use]
    pub fn new(mut files: Vec<(u64, PathBuf)>) -> Self {
        // The next one last.
        files.sort_unstable_by_key(|&(at, _)| std::cmp::Reverse(at));
        Self { files }
    }

    /// Saves what is due after so many batches. What cannot be written does not stop the run.
    pub(crate) fn save(
        &mut self,
        engine: &mut Engine,
        source: &dyn Source,
        batches: u64,
        failures: &mut Vec<Error>,
    ) {
        while let Some((_, path)) = self.files.pop_if(|next| next.0 <= engine.position()) {
            let recording = source.identity().ok_or(contigua_program::Error::CannotSeek);
            let saved = recording
                .map_err(Error::from)
                .and_then(|recording| engine.save(&path, recording, batches));
            failures.extend(saved.err());
        }
    }

    /// Those that a run from one instruction to another did not come by.
    pub(crate) fn missed(&self, from: u64, to: u64) -> impl Iterator<Item = Error> {
        let files = self.files.iter().rev();
        files.map(move |(_, path)| CheckpointProblem::Missed { from, to }.at(path))
    }

    /// Leaves out those that lie before the run's start, as missed.
    pub(crate) fn begin(&mut self, from: u64) -> Vec<Error> {
        let behind = self.files.iter().filter(|(at, _)| *at < from);
        let problem = || CheckpointProblem::Missed { from, to: from };
        let errors = behind.map(|(_, path)| problem().at(path)).collect();
        self.files.retain(|(at, _)| *at >= from);
        errors
    }
}

/// Hashes what is written.
struct Hashed {
    output: contigua_output::Output,
    hash: Xxh3Default,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl Engine {
    /// Saves the state after so many batches of a recording, into a file whose folder is made if it
    /// is not there.
    ///
    /// # Errors
    /// [`Error::Checkpoint`].
    pub fn save(&mut self, path: &Path, recording: u64, batches: u64) -> Result<(), Error> {
        self.catch_up();
        let header = Header::new(&self.config, recording, (batches, self.position));
        self.write_to(path, &header)
            .map_err(|error| CheckpointProblem::Io(error).at(path))
    }

    fn write_to(&self, path: &Path, header: &Header) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut out = Hashed {
            output: contigua_output::Output::create(path)?,
            hash: Xxh3Default::new(),
        };
        let header = serde_json::to_vec(header)?;
        out.write_all(&MAGIC)?;
        out.write_all(&FORMAT.to_le_bytes())?;
        out.write_all(&(header.len() as u32).to_le_bytes())?;
        out.write_all(&header)?;
        let mut compressed = zstd::Encoder::new(out, LEVEL)?;
        let mut writer = Writer::new(&mut compressed);
        State::save(self, &mut writer);
        let bytes = writer.finish()?;
        let mut out = compressed.finish()?;
        out.write_all(&bytes.to_le_bytes())?;
        let checksum = out.hash.digest();
        out.output.write_all(&checksum.to_le_bytes())?;
        out.output.keep()
    }

    /// A server in the state that a file holds, and how many batches of the recording it has had.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when the file is not a checkpoint of such a run; those of
    /// [`Engine::new`].
    pub fn restore(
        config: &RunConfig,
        program: Program,
        path: &Path,
        recording: u64,
    ) -> Result<(Self, u64), Error> {
        let file =
            contigua_input::open(path).map_err(|error| CheckpointProblem::Io(error).at(path))?;
        Self::restore_from(config, program, file, recording).map_err(|failure| match failure {
            Failure::File(problem) => problem.at(path),
            Failure::Server(error) => error,
        })
    }

    fn restore_from(
        config: &RunConfig,
        program: Program,
        mut file: File,
        recording: u64,
    ) -> Result<(Self, u64), Failure> {
        let stored = Stored::open(&mut file)?;
        let own = Header::new(config, recording, (0, 0));
        stored.header.check(&own)?;
        // What the state overwrites has no need of a history.
        let young = RunConfig {
            age: Age::Fresh,
            ..config.clone()
        };
        let mut engine =
            Self::prepare(young, program, &AtomicBool::new(false)).map_err(Failure::Server)?;
        engine.config.age = config.age.clone();
        if stored.bytes > most_bytes(config) {
            return Err(CheckpointProblem::Damaged.into());
        }
        let mut content = zstd::Decoder::new(BufReader::new(file.take(stored.length)))?;
        let mut reader = Reader::new(&mut content, stored.bytes);
        let loaded = State::load(&mut engine, &mut reader).and_then(|()| reader.finish());
        loaded.map_err(CheckpointProblem::State)?;
        if engine.position != stored.header.instructions {
            return Err(CheckpointProblem::Damaged.into());
        }
        Ok((engine, stored.header.batches))
    }
}

/// More bytes than the state of such a server ever has. A record takes 16 bytes for each frame, and
/// a page-table entry 8 for each page.
fn most_bytes(config: &RunConfig) -> u64 {
    (1 << 30) + config.machine.memory.get() / 64
}

enum Failure {
    File(CheckpointProblem),
    Server(Error),
}

impl From<CheckpointProblem> for Failure {
    fn from(problem: CheckpointProblem) -> Self {
        Self::File(problem)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::File(CheckpointProblem::Io(error))
    }
}

/// A file whose checksum is right, read as far as its header.
struct Stored {
    header: Header,
    /// Bytes of the compressed state, and of the state.
    length: u64,
    bytes: u64,
}

impl Stored {
    fn open(file: &mut (impl Read + Seek)) -> Result<Self, CheckpointProblem> {
        let all = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut start = [0; START as usize];
        let present = all.min(START) as usize;
        file.read_exact(&mut start[..present])?;
        let magic = present.min(MAGIC.len());
        if magic == 0 || start[..magic] != MAGIC[..magic] {
            return Err(CheckpointProblem::Other);
        }
        let number = |at: usize| {
            start[at..]
                .first_chunk()
                .map_or(0, |b| u32::from_le_bytes(*b))
        };
        let header_length = number(12);
        let length = all
            .checked_sub(START + END + u64::from(header_length))
            .filter(|_| header_length <= MOST_HEADER)
            .ok_or(CheckpointProblem::Damaged)?;
        if number(8) != FORMAT {
            return Err(CheckpointProblem::Version {
                found: format!("of checkpoint format {}", number(8)),
            });
        }
        let bytes = checked(file, all)?;
        file.seek(SeekFrom::Start(START))?;
        let mut header = vec![0; header_length as usize];
        file.read_exact(&mut header)?;
        let header = serde_json::from_slice(&header).map_err(|_| CheckpointProblem::Damaged)?;
        Ok(Self {
            header,
            length,
            bytes,
        })
    }
}

/// Verifies the checksum, and returns how many bytes the state has.
fn checked(file: &mut (impl Read + Seek), all: u64) -> Result<u64, CheckpointProblem> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Xxh3Default::new();
    let mut buffer = vec![0; 1 << 16];
    let mut left = all - 8;
    while left > 0 {
        let part = &mut buffer[..left.min(1 << 16) as usize];
        file.read_exact(part)?;
        hash.update(part);
        left -= part.len() as u64;
    }
    let mut end = [0; END as usize];
    file.seek(SeekFrom::Start(all - END))?;
    file.read_exact(&mut end)?;
    let number = |at: usize| {
        end[at..]
            .first_chunk()
            .map_or(0, |b| u64::from_le_bytes(*b))
    };
    if number(8) == hash.digest() {
        Ok(number(0))
    } else {
        Err(CheckpointProblem::Damaged)
    }
}
