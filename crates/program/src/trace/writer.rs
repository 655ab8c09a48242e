//! Writing a trace.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;
use zstd::bulk::Compressor;

use super::Summary;
use super::bytes::Damage;
use super::code::CodeEncoder;
use super::encoder::Encoder;
use super::layout::{
    CODE_FRAME_BYTES, Counts, FRAME_BATCHES, FRAME_WORDS, Frame, FrameKind, MAX_BATCH_WORDS,
    Trailer, encode_header,
};
use crate::end::End;
use crate::sources::{Batch, Program};
use crate::wire::{BlockId, ThreadId};
use crate::{Error, TraceProblem};

/// zstd's own default. Level 1 is hardly faster on these streams, and larger by a half where the
/// program's addresses are random.
const LEVEL: i32 = 3;

/// Writes a trace, under a temporary name until it is finished.
pub struct TraceWriter {
    output: Output,
    encoder: Encoder,
    code: CodeEncoder,
    threads: BTreeSet<ThreadId>,
    last_thread: Option<ThreadId>,
    summary: Summary,
    raw: Vec<u8>,
    /// A batch was refused half-way, so what was collected is not what the program did.
    broken: bool,
}

impl TraceWriter {
    /// Starts a trace that [`TraceWriter::finish`] puts at `path`, over a file of that name.
    ///
    /// # Errors
    /// [`Error::File`] when nothing can be written there.
    pub fn create(path: &Path, program: &Program) -> Result<Self, Error> {
        let output = Output::create(path, program).map_err(Error::file(path))?;
        Ok(Self {
            output,
            encoder: Encoder::new(),
            code: CodeEncoder::default(),
            threads: BTreeSet::new(),
            last_thread: None,
            summary: Summary::default(),
            raw: Vec::new(),
            broken: false,
        })
    }

    /// Adds a batch. A replay yields the same batches in the same order.
    ///
    /// # Errors
    /// [`Error::File`] when writing fails, [`Error::Malformed`] and [`Error::UnknownBlock`] when
    /// the batch is not what a source may yield, [`Error::Trace`] when it is beyond the limits of
    /// the format. The trace can then not be finished.
    pub fn write(&mut self, batch: &Batch<'_>) -> Result<(), Error> {
        let written = self.try_write(batch);
        self.broken |= written.is_err();
        written
    }

    fn try_write(&mut self, batch: &Batch<'_>) -> Result<(), Error> {
        if batch.words.len() as u64 > MAX_BATCH_WORDS {
            return Err(self.output.refusal(
                format!("a batch of thread {}", batch.thread.0),
                format!("{} words, of at most {MAX_BATCH_WORDS}", batch.words.len()),
            ));
        }
        if self.last_thread.replace(batch.thread) != Some(batch.thread) {
            self.threads.insert(batch.thread);
        }
        let (output, code) = (&mut self.output, &mut self.code);
        self.encoder.batch(batch.thread, batch.words, |id| {
            describe(output, code, id, batch)
        })?;
        let counts = self.encoder.counts;
        if counts.words >= FRAME_WORDS || counts.batches >= FRAME_BATCHES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.output.code_frame(&mut self.code)?;
        let counts = self.encoder.take_frame(&mut self.raw);
        if counts.batches > 0 {
            self.summary.words += counts.words;
            self.summary.instructions += counts.instructions;
            self.summary.accesses += counts.accesses;
            self.summary.batches += counts.batches;
            self.output.frame(FrameKind::Events, counts, &self.raw)?;
        }
        Ok(())
    }

    /// Completes the file and gives it its name. `end`: how the program came to its end, where that is
    /// known.
    ///
    /// # Errors
    /// [`Error::File`] when writing fails; [`Error::Trace`] after an error of
    /// [`TraceWriter::write`].
    pub fn finish(mut self, end: Option<&End>) -> Result<Summary, Error> {
        if self.broken {
            return Err(self.output.refusal(
                "the recording".into(),
                "it stopped at an error and is incomplete".into(),
            ));
        }
        self.flush()?;
        if let Some(end) = end {
            let none = Counts::default();
            self.output.frame(FrameKind::End, none, &end.encode())?;
        }
        self.summary.threads = self.threads.len() as u64;
        self.output.finish(self.summary)?;
        Ok(self.summary)
    }
}

/// Puts the description of a block that `batch` executes first into the CODE frame to come.
#[cold]
fn describe(
    output: &mut Output,
    code: &mut CodeEncoder,
    id: BlockId,
    batch: &Batch<'_>,
) -> Result<u16, Error> {
    let block = batch
        .code
        .block(id)
        .filter(|block| block.instructions() > 0)
        .ok_or(Error::UnknownBlock(id))?;
    code.push(id, &block)
        .map_err(|Damage(why)| output.refusal(format!("block {}", id.0), why.into()))?;
    if code.raw.len() >= CODE_FRAME_BYTES {
        output.code_frame(code)?;
    }
    Ok(block.instructions() as u16)
}

/// The file, as frames and what must be remembered of them.
struct Output {
    path: PathBuf,
    file: contigua_output::Output,
    compressor: Compressor<'static>,
    stored: Vec<u8>,
    offset: u64,
    frames: Vec<Frame>,
}

impl Output {
    fn create(path: &Path, program: &Program) -> io::Result<Self> {
        let mut file = contigua_output::Output::create(path)?;
        let header = encode_header(program);
        file.write_all(&header)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            compressor: Compressor::new(LEVEL)?,
            stored: Vec::new(),
            offset: header.len() as u64,
            frames: Vec::new(),
        })
    }

    fn refusal(&self, place: String, detail: String) -> Error {
        Error::Trace {
            path: self.path.clone(),
            problem: TraceProblem::Record { place, detail },
        }
    }

    fn code_frame(&mut self, code: &mut CodeEncoder) -> Result<(), Error> {
        if !code.raw.is_empty() {
            self.frame(FrameKind::Code, Counts::default(), &code.raw)?;
            code.clear();
        }
        Ok(())
    }

    fn frame(&mut self, kind: FrameKind, counts: Counts, raw: &[u8]) -> Result<(), Error> {
        self.try_frame(kind, counts, raw)
            .map_err(Error::file(&self.path))
    }

    fn try_frame(&mut self, kind: FrameKind, counts: Counts, raw: &[u8]) -> io::Result<()> {
        self.stored.clear();
        self.stored
            .reserve(zstd::zstd_safe::compress_bound(raw.len()));
        self.compressor.compress_to_buffer(raw, &mut self.stored)?;
        self.file.write_all(&self.stored)?;
        self.offset += self.stored.len() as u64;
        self.frames.push(Frame {
            kind,
            stored_bytes: self.stored.len() as u32,
            raw_bytes: raw.len() as u32,
            checksum: xxh3_64(&self.stored),
            counts,
        });
        Ok(())
    }

    fn finish(mut self, summary: Summary) -> Result<(), Error> {
        let mut index = Vec::with_capacity(self.frames.len() * Frame::BYTES);
        for frame in &self.frames {
            frame.encode(&mut index);
        }
        let trailer = Trailer {
            index_offset: self.offset,
            index_checksum: xxh3_64(&index),
            summary,
        };
        let written = self
            .file
            .write_all(&index)
            .and_then(|()| self.file.write_all(&trailer.encode()))
            .and_then(|()| self.file.keep());
        written.map_err(Error::file(&self.path))
    }
}
