//! Files of other tools, which usually come compressed.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use crate::error::Failure;
use crate::{Error, TraceProblem};

/// The first bytes of compressed files, from RFC 8878, the .xz file format 1.2.1 and RFC 1952
/// (with deflate, the only method there is).
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const GZIP: &[u8] = &[0x1f, 0x8b, 8];

/// Memory that an .xz file may ask for: several times what `xz -9` needs, far from what a
/// malicious file could want.
const XZ_MEMORY: u64 = 512 << 20;
/// Enough that the virtual call behind a refill is not felt.
const BUFFER: usize = 1 << 16;

/// The content of a file, decompressed on the way, that remembers how far it was read.
pub(super) struct Input {
    content: BufReader<Box<dyn Read + Send>>,
    compressed: bool,
    offset: u64,
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = contigua_input::open_stream(path).map_err(Error::file(path))?;
        Self::new(file).map_err(Error::file(path))
    }

    /// Recognizes the compression by the first bytes.
    pub(super) fn new(mut file: impl Read + Send + 'static) -> io::Result<Self> {
        let mut start = Vec::new();
        file.by_ref()
            .take(XZ.len() as u64)
            .read_to_end(&mut start)?;
        let kind = [ZSTD, XZ, GZIP]
            .into_iter()
            .find(|magic| start.starts_with(magic));
        let whole = Cursor::new(start).chain(file);
        let content: Box<dyn Read + Send> = match kind {
            Some(ZSTD) => Box::new(zstd::Decoder::new(whole)?),
            Some(XZ) => {
                let stream = Stream::new_stream_decoder(XZ_MEMORY, CONCATENATED)?;
                Box::new(XzDecoder::new_stream(whole, stream))
            }
            Some(_) => Box::new(MultiGzDecoder::new(whole)),
            None => Box::new(whole),
        };
        Ok(Self {
            content: BufReader::with_capacity(BUFFER, content),
            compressed: kind.is_some(),
            offset: 0,
        })
    }

    /// Bytes read so far, after decompression.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads some bytes; none where there is nothing left.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Failure> {
        loop {
            match self.content.read(bytes) {
                Ok(count) => {
                    self.offset += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure(error)),
            }
        }
    }

    /// Fills `record`, or says that there is nothing left.
    pub(super) fn record(&mut self, record: &mut [u8]) -> Result<bool, Failure> {
        let mut filled = 0;
        while filled < record.len() {
            match self.content.read(&mut record[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failure(error)),
            }
        }
        self.offset += filled as u64;
        if filled > 0 && filled < record.len() {
            return Err(self.truncated());
        }
        Ok(filled > 0)
    }

    /// Reads a line without its end into `line`, or says that there is none left. A line beyond
    /// `limit` bytes is cut there, and its rest is the next line.
    pub(super) fn line(&mut self, line: &mut Vec<u8>, limit: usize) -> Result<bool, Failure> {
        line.clear();
        let mut part = (&mut self.content).take(limit as u64);
        match part.read_until(b'\n', line) {
            Ok(count) => self.offset += count as u64,
            Err(error) => return Err(self.failure(error)),
        }
        let any = !line.is_empty();
        line.pop_if(|last| *last == b'\n');
        Ok(any)
    }

    fn truncated(&self) -> Failure {
        Failure::Trace(TraceProblem::Truncated {
            offset: self.offset,
        })
    }

    fn failure(&self, error: io::Error) -> Failure {
        if !self.compressed || error.raw_os_error().is_some() {
            Failure::Io(error)
        } else if error.kind() == io::ErrorKind::UnexpectedEof {
            self.truncated()
        } else {
            Failure::Trace(TraceProblem::Corrupted {
                offset: self.offset,
                detail: format!("decompression: {error}"),
            })
        }
    }
}
