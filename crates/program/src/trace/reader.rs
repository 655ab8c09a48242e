//! Reading a trace.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zstd::bulk::Decompressor;

use super::Summary;
use super::bytes::Damage;
use super::code::StoredCode;
use super::decoder::Decoder;
use super::layout::{
    Counts, Frame, FrameKind, HEADER_START, Trailer, decode_header, header_length, is_intact,
};
use crate::end::End;
use crate::error::Failure;
use crate::sources::{Batch, Program};
use crate::{Error, TraceProblem};

/// Reads a trace batch by batch, from a file or from anything like one.
///
/// Opening verifies header, index and trailer; each frame is verified before it is used.
pub struct TraceReader<F = File> {
    path: PathBuf,
    input: F,
    program: Program,
    summary: Summary,
    decompressor: Decompressor<'static>,
    stored: Vec<u8>,
    identity: u64,
    /// The index.
    frames: Vec<Frame>,
    frames_offset: u64,
    end: Option<End>,
    /// The next frame, and where it begins.
    next: usize,
    offset: u64,
    code: StoredCode,
    decoder: Decoder,
}

impl TraceReader {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read, [`Error::Trace`] when it is not a complete and
    /// intact trace of this version, as far as this can be told without reading the events.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = contigua_input::open(path).map_err(Error::file(path))?;
        Self::new(file, path)
    }
}

impl<F: Read + Seek> TraceReader<F> {
    /// Reads a trace from `input`, which error messages call `path`.
    ///
    /// # Errors
    /// Those of [`TraceReader::open`].
    pub fn new(mut input: F, path: &Path) -> Result<Self, Error> {
        let (opened, decompressor) = Opened::read(&mut input)
            .and_then(|opened| Ok((opened, Decompressor::new()?)))
            .map_err(|failure| failure.at(path))?;
        let mut reader = Self {
            path: path.to_owned(),
            input,
            program: opened.program,
            summary: opened.summary,
            decompressor,
            stored: Vec::new(),
            identity: opened.identity,
            frames: opened.frames,
            frames_offset: opened.frames_offset,
            end: None,
            next: 0,
            offset: opened.frames_offset,
            code: StoredCode::default(),
            decoder: Decoder::new(),
        };
        reader.read_end().map_err(|failure| failure.at(path))?;
        Ok(reader)
    }

    /// Reads the END frame, which is the last, and takes it out of the index.
    fn read_end(&mut self) -> Result<(), Failure> {
        let is_end = |frame: &Frame| frame.kind == FrameKind::End;
        let last = self.frames.pop_if(|frame| is_end(frame));
        let damaged = Damage("the program's end");
        let offset = self
            .frames
            .iter()
            .map(|frame| u64::from(frame.stored_bytes));
        let offset = self.frames_offset + offset.sum::<u64>();
        if self.frames.iter().any(is_end) {
            return Err(damaged.near(offset));
        }
        let Some(frame) = last else {
            return Ok(());
        };
        let mut raw = Vec::new();
        self.read_frame(frame, offset, &mut raw)?;
        self.end = Some(End::decode(&raw).ok_or(damaged.near(offset))?);
        Ok(())
    }

    /// Description of the recorded program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Totals of the whole trace.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// End of the program, where that is known.
    #[must_use]
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// A hash of the header and of the checksums of all frames: another trace has another one.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Goes to where so many batches of the trace have been read, from wherever it is. Of the frames
    /// before, only those with the program's code are read.
    ///
    /// # Errors
    /// Those of [`TraceReader::next_batch`]; [`Error::Trace`] when the trace has fewer batches.
    pub fn seek(&mut self, batches: u64) -> Result<(), Error> {
        self.code = StoredCode::default();
        self.decoder = Decoder::new();
        self.next = 0;
        self.offset = self.frames_offset;
        self.find(batches).map_err(|failure| {
            self.go_to_end();
            failure.at(&self.path)
        })
    }

    fn find(&mut self, batches: u64) -> Result<(), Failure> {
        let mut left = batches;
        while left > 0 {
            let Some(&frame) = self.frames.get(self.next) else {
                return Err(Failure::Trace(TraceProblem::Record {
                    place: format!("batch {batches}"),
                    detail: format!("the trace has {}", self.summary.batches),
                }));
            };
            if frame.kind == FrameKind::Events && frame.counts.batches <= left {
                left -= frame.counts.batches;
                self.pass(frame);
                continue;
            }
            self.load_frame(frame)?;
            if frame.kind == FrameKind::Events {
                for _ in 0..left {
                    self.find_batch()?;
                }
                left = 0;
            }
        }
        Ok(())
    }

    /// The next batch, or `None` after the last.
    ///
    /// # Errors
    /// [`Error::File`] when reading fails, [`Error::Trace`] when the trace is damaged; the reader
    /// then stays at its end.
    pub fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error> {
        match self.find_batch() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(failure) => {
                self.go_to_end();
                return Err(failure.at(&self.path));
            }
        }
        let (thread, words) = self.decoder.batch();
        Ok(Some(Batch {
            thread,
            words,
            code: &self.code,
        }))
    }

    fn go_to_end(&mut self) {
        self.next = self.frames.len();
        self.decoder.abandon_frame();
    }

    fn pass(&mut self, frame: Frame) {
        self.next += 1;
        self.offset += u64::from(frame.stored_bytes);
    }

    /// Decodes the next batch, if there is one.
    fn find_batch(&mut self) -> Result<bool, Failure> {
        loop {
            let here = self.offset;
            if self
                .decoder
                .next_batch()
                .map_err(|damage| damage.near(here))?
            {
                return Ok(true);
            }
            match self.frames.get(self.next) {
                Some(&frame) => self.load_frame(frame)?,
                None => return Ok(false),
            }
        }
    }

    fn load_frame(&mut self, frame: Frame) -> Result<(), Failure> {
        let offset = self.offset;
        self.pass(frame);
        let mut raw = std::mem::take(self.decoder.buffer());
        let read = self.read_frame(frame, offset, &mut raw);
        *self.decoder.buffer() = raw;
        read?;
        let loaded = match frame.kind {
            FrameKind::Events => self.decoder.start_frame(frame.counts),
            FrameKind::Code => self.decoder.read_code(&mut self.code),
            FrameKind::End => Ok(()),
        };
        loaded.map_err(|damage| damage.near(offset))
    }

    /// Reads what a frame holds.
    fn read_frame(&mut self, frame: Frame, offset: u64, raw: &mut Vec<u8>) -> Result<(), Failure> {
        self.input.seek(SeekFrom::Start(offset))?;
        self.stored.resize(frame.stored_bytes as usize, 0);
        self.input.read_exact(&mut self.stored)?;
        if !is_intact(&self.stored, frame.checksum) {
            return Err(Damage("checksum of a frame").near(offset));
        }
        raw.clear();
        raw.reserve(frame.raw_bytes as usize);
        let length = self.decompressor.decompress_to_buffer(&self.stored, raw);
        if !length.is_ok_and(|length| length == frame.raw_bytes as usize) {
            return Err(Damage("a frame does not decompress to its length").near(offset));
        }
        Ok(())
    }
}

/// A trace's header and totals, without its frames.
struct Opened {
    program: Program,
    identity: u64,
    summary: Summary,
    frames: Vec<Frame>,
    frames_offset: u64,
}

impl Opened {
    fn read(input: &mut (impl Read + Seek)) -> Result<Self, Failure> {
        let file_bytes = input.seek(SeekFrom::End(0))?;
        input.seek(SeekFrom::Start(0))?;
        let header = read_header(input, file_bytes)?;
        let program = decode_header(&header).map_err(|damage| damage.near(0))?;
        let frames_offset = header.len() as u64;
        let trailer_offset = file_bytes
            .checked_sub(Trailer::BYTES as u64)
            .filter(|&offset| offset >= frames_offset)
            .ok_or(TraceProblem::Truncated { offset: file_bytes })?;
        let mut trailer = [0; Trailer::BYTES];
        input.seek(SeekFrom::Start(trailer_offset))?;
        input.read_exact(&mut trailer)?;
        let trailer = Trailer::decode(&trailer, file_bytes)?;
        let frames = read_index(input, &trailer, frames_offset, trailer_offset)?;
        Ok(Self {
            identity: xxh3_64_with_seed(&header, trailer.index_checksum),
            program,
            summary: trailer.summary,
            frames,
            frames_offset,
        })
    }
}

fn read_header(input: &mut impl Read, file_bytes: u64) -> Result<Vec<u8>, Failure> {
    let mut start = [0; HEADER_START];
    let present = file_bytes.min(HEADER_START as u64) as usize;
    input.read_exact(&mut start[..present])?;
    if present < HEADER_START && super::layout::MAGIC.starts_with(&start[..present.min(8)]) {
        return Err(TraceProblem::Truncated { offset: file_bytes }.into());
    }
    let length = header_length(&start)?;
    if length as u64 > file_bytes {
        return Err(TraceProblem::Truncated { offset: file_bytes }.into());
    }
    let mut header = start.to_vec();
    header.resize(length, 0);
    input.read_exact(&mut header[HEADER_START..])?;
    Ok(header)
}

fn read_index(
    input: &mut (impl Read + Seek),
    trailer: &Trailer,
    frames_offset: u64,
    index_end: u64,
) -> Result<Vec<Frame>, Failure> {
    let start = trailer.index_offset;
    let damaged = |detail| Damage(detail).near(start);
    let length = index_end
        .checked_sub(start)
        .filter(|length| length % Frame::BYTES as u64 == 0 && start >= frames_offset)
        .ok_or(damaged("the index is not where the trailer says"))?;
    let mut index = vec![0; length as usize];
    input.seek(SeekFrom::Start(start))?;
    input.read_exact(&mut index)?;
    if !is_intact(&index, trailer.index_checksum) {
        return Err(damaged("checksum of the index"));
    }
    let frames: Option<Vec<Frame>> = index
        .chunks_exact(Frame::BYTES)
        .map(Frame::decode)
        .collect();
    let frames = frames.ok_or(damaged("a line of the index"))?;
    let stored: u64 = frames
        .iter()
        .map(|frame| u64::from(frame.stored_bytes))
        .sum();
    if frames_offset + stored != start {
        return Err(damaged("the frames do not fill the file"));
    }
    let total = frames.iter().try_fold(Counts::default(), |total, frame| {
        Some(Counts {
            words: total.words.checked_add(frame.counts.words)?,
            instructions: total.instructions.checked_add(frame.counts.instructions)?,
            accesses: total.accesses.checked_add(frame.counts.accesses)?,
            batches: total.batches.checked_add(frame.counts.batches)?,
        })
    });
    let summary = trailer.summary;
    let expected = Counts {
        words: summary.words,
        instructions: summary.instructions,
        accesses: summary.accesses,
        batches: summary.batches,
    };
    if total != Some(expected) {
        return Err(damaged("the counts of the frames do not add up"));
    }
    Ok(frames)
}

impl Damage {
    fn near(self, offset: u64) -> Failure {
        Failure::Trace(TraceProblem::Corrupted {
            offset,
            detail: self.0.into(),
        })
    }
}
