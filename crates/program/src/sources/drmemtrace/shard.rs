//! One file of a trace: the records of a thread, or of a core that threads take turns on.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::archive::Chunks;
use super::record::{BYTES, MAX_ENCODING, Record, file_type, kind, marker};
use crate::TraceProblem;
use crate::error::Failure;

/// Bytes that are read at a time: whole records.
const BUFFER: usize = BYTES << 13;
/// Records before the first instruction that are looked through for what the file says of itself.
const MAX_HEADER: u64 = 1 << 16;

/// Header of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u64,
    pub(super) file_type: u64,
    /// Bytes of a page of the traced system, 0 where that is not said.
    pub(super) page_size: u64,
    /// Instructions of a chunk, 0 where there are none.
    pub(super) chunk: u64,
    pub(super) thread: u64,
    pub(super) process: u64,
    /// Of the first timestamp: the file's place among others.
    pub(super) begins: When,
}

impl Header {
    pub(super) fn has(&self, bits: u64) -> bool {
        self.file_type & bits != 0
    }
}

/// A place in the order of all threads: timestamp, processor, thread, as post-processing of traces sorts
/// (`schedule_file_t` in `DynamoRIO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct When {
    pub(super) timestamp: u64,
    pub(super) processor: u64,
    pub(super) thread: u64,
}

/// The records of a file, one after the other.
pub(super) struct Records {
    path: PathBuf,
    chunks: Chunks,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    /// Records before the buffer.
    before: u64,
    /// The last record was read.
    has_ended: bool,
}

impl Records {
    pub(super) fn open(path: &Path) -> Result<Self, crate::Error> {
        Ok(Self::with(Chunks::open(path)?, path))
    }

    pub(super) fn of(input: impl Read + Send + 'static, path: &Path) -> Result<Self, crate::Error> {
        let chunks = Chunks::of(input).map_err(crate::Error::file(path))?;
        Ok(Self::with(chunks, path))
    }

    fn with(chunks: Chunks, path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            chunks,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            at: 0,
            end: 0,
            before: 0,
            has_ended: false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of the record that was read last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.before + (self.at / BYTES) as u64
    }

    pub(super) fn refusal(&self, detail: impl Into<String>) -> Failure {
        TraceProblem::Record {
            place: format!("record {}", self.number()),
            detail: detail.into(),
        }
        .into()
    }

    /// Refuses a file that ends without a footer.
    pub(super) fn cut_short(&self) -> Failure {
        self.refusal("the file ends without a footer: the recording was cut short")
    }

    /// The next record, or `None` behind the last.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<Record>, Failure> {
        if self.at == self.end && !self.fill()? {
            return Ok(None);
        }
        let record = self.peek();
        self.at += BYTES;
        Ok(record)
    }

    /// The record that comes next, which is not passed.
    fn ahead(&mut self) -> Result<Option<Record>, Failure> {
        if self.at == self.end && !self.fill()? {
            return Ok(None);
        }
        Ok(self.peek())
    }

    /// The record that comes next, if it is in the buffer.
    #[inline]
    pub(super) fn peek(&self) -> Option<Record> {
        self.buffer[..self.end]
            .get(self.at..)
            .and_then(<[u8]>::first_chunk)
            .map(Record::decode)
    }

    #[cold]
    fn fill(&mut self) -> Result<bool, Failure> {
        if self.has_ended {
            return Ok(false);
        }
        self.before += (self.end / BYTES) as u64;
        self.at = 0;
        self.end = self.chunks.read(&mut self.buffer)?;
        if !self.end.is_multiple_of(BYTES) {
            let offset = self.before * BYTES as u64 + self.end as u64;
            self.end = 0;
            self.has_ended = true;
            return Err(TraceProblem::Truncated { offset }.into());
        }
        self.has_ended = self.end == 0;
        Ok(self.end > 0)
    }

    /// Gives up what is left of the present chunk and of some behind it; how many chunks.
    pub(super) fn skip_chunks(&mut self, chunks: u64) -> u64 {
        let skipped = self.chunks.skip(chunks);
        if skipped > 0 {
            self.before += (self.end / BYTES) as u64;
            (self.at, self.end) = (0, 0);
        }
        skipped
    }

    /// Reads a file's header: what comes before its first instruction or timestamp.
    pub(super) fn header(&mut self) -> Result<Header, Failure> {
        let mut header = Header::default();
        let not_a_trace = |detail: String| {
            Failure::from(TraceProblem::NotATrace {
                format: "drmemtrace",
                detail,
            })
        };
        match self.next()? {
            Some(record) if record.kind == kind::HEADER => header.version = record.value,
            Some(record) => {
                let detail = format!("its first record is of type {} instead of 25", record.kind);
                return Err(not_a_trace(detail));
            }
            None => return Err(not_a_trace("it is empty".into())),
        }
        while self.number() < MAX_HEADER
            && let Some(record) = self.ahead()?
        {
            match (record.kind, record.size) {
                (kind::THREAD, _) => header.thread = record.value,
                (kind::PROCESS, _) => header.process = record.value,
                (kind::MARKER, marker::VERSION) => header.version = record.value,
                (kind::MARKER, marker::FILE_TYPE) => header.file_type = record.value,
                (kind::MARKER, marker::PAGE_SIZE) => header.page_size = record.value,
                (kind::MARKER, marker::CHUNK_INSTRUCTIONS) => header.chunk = record.value,
                (kind::MARKER, marker::TIMESTAMP) => {
                    self.at += BYTES;
                    header.begins = self.when(&record, header.thread);
                    break;
                }
                (kind::MARKER | kind::HEADER, _) => {}
                _ => break,
            }
            self.at += BYTES;
        }
        Ok(header)
    }

    /// The place of a timestamp, whose processor comes right behind it.
    pub(super) fn when(&self, timestamp: &Record, thread: u64) -> When {
        let processor = self
            .peek()
            .filter(|next| next.kind == kind::MARKER && next.size == marker::PROCESSOR);
        When {
            timestamp: timestamp.value,
            processor: processor.map_or(u64::MAX, |next| next.value),
            thread,
        }
    }
}

/// Bytes of the instruction that comes next, as far as they have been read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Encoding {
    bytes: [u8; MAX_ENCODING],
    length: usize,
}

impl Encoding {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }

    /// Appends what a record holds; `false` where that is too much.
    pub(super) fn extend(&mut self, record: &Record) -> bool {
        let count = usize::from(record.size);
        let Some(place) = self.bytes.get_mut(self.length..self.length + count.min(64)) else {
            return false;
        };
        let bytes = record.value.to_le_bytes();
        let Some(bytes) = bytes.get(..count) else {
            return false;
        };
        place.copy_from_slice(bytes);
        self.length += count;
        true
    }
}

/// State of a file while its records become events.
pub(super) struct Shard {
    pub(super) records: Records,
    pub(super) header: Header,
    pub(super) encoding: Encoding,
    pub(super) thread: u64,
    pub(super) process: u64,
    /// Of each thread: its process.
    pub(super) processes: HashMap<u64, u64>,
    /// Address of the last instruction, and of what follows it in memory.
    pub(super) last: (u64, u64),
    /// A system call has not returned yet; whether it may have waited.
    pub(super) call: Option<bool>,
    /// The kernel has interrupted the thread.
    pub(super) interrupted: bool,
    /// Instructions and accesses are incomplete until a marker says otherwise.
    pub(super) filtered: bool,
    /// The lower half of the value of the next marker comes with it; this is the upper one.
    pub(super) upper: Option<u64>,
    /// The physical address that the next virtual one has.
    pub(super) physical: Option<u64>,
    pub(super) instructions: u64,
    /// Instructions are passed over until there were so many.
    pub(super) passes_until: u64,
    /// The last instruction was.
    pub(super) passes: bool,
    /// A footer was read.
    pub(super) is_complete: bool,
}

impl Shard {
    pub(super) fn new(mut records: Records) -> Result<Self, Failure> {
        let header = records.header()?;
        let filters =
            file_type::FILTERED | file_type::INSTRUCTIONS_FILTERED | file_type::DATA_FILTERED;
        Ok(Self {
            records,
            header,
            encoding: Encoding::default(),
            thread: header.thread,
            process: header.process,
            processes: HashMap::from([(header.thread, header.process)]),
            last: (0, 0),
            call: None,
            interrupted: false,
            filtered: header.has(filters) && header.has(file_type::FILTERED_AT_FIRST),
            upper: None,
            physical: None,
            instructions: 0,
            passes_until: 0,
            passes: false,
            is_complete: false,
        })
    }

    /// Passes over the first instructions of the file, by chunk as far as it has chunks.
    pub(super) fn pass_over(&mut self, instructions: u64) {
        self.passes_until = instructions;
        self.passes = instructions > 0;
        if let Some(chunks) = instructions.checked_div(self.header.chunk) {
            let skipped = self.records.skip_chunks(chunks);
            self.instructions = skipped * self.header.chunk;
        }
    }
}
