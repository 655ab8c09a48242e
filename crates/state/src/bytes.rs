//! Bytes on their way to a file and back.

use std::io::{self, Read, Write};

use crate::Plain;

/// Bytes that are collected before they are written, or read at once.
const BUFFER: usize = 1 << 16;

/// Why bytes are not the state of a component.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Bytes are missing.
    #[error("it ends early")]
    End,
    /// There are bytes behind the state.
    #[error("it goes on behind its end")]
    Rest,
    /// A value that cannot be.
    #[error("a value that cannot be")]
    Value,
    /// A part of another size than the configuration gives it.
    #[error("a part of another size than this configuration gives it")]
    Length,
    /// Other fields than this build has.
    #[error("parts that this build of Contigua does not have")]
    Layout,
}

/// Destination of state. An error of the file is kept until [`Writer::finish`].
pub struct Writer<'a> {
    out: &'a mut dyn Write,
    buffer: Vec<u8>,
    written: u64,
    error: Option<io::Error>,
}

impl<'a> Writer<'a> {
    /// Writes to `out`.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            buffer: Vec::with_capacity(BUFFER + 64),
            written: 0,
            error: None,
        }
    }

    /// Appends bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Appends a byte.
    #[inline]
    pub fn byte(&mut self, byte: u8) {
        self.bytes(&[byte]);
    }

    #[cold]
    fn flush(&mut self) {
        self.written += self.buffer.len() as u64;
        if self.error.is_none() {
            self.error = self.out.write_all(&self.buffer).err();
        }
        self.buffer.clear();
    }

    /// Flushes, and returns the number of bytes written.
    ///
    /// # Errors
    /// The first one of the file.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush();
        self.error.map_or(Ok(self.written), Err)
    }
}

/// Source of state.
pub struct Reader<'a> {
    input: &'a mut dyn Read,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes that there may still be, beyond the buffer.
    left: u64,
}

impl<'a> Reader<'a> {
    /// Reads from `input`, and no more than `most` bytes.
    pub fn new(input: &'a mut dyn Read, most: u64) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            at: 0,
            left: most,
        }
    }

    /// Reads so many bytes.
    ///
    /// # Errors
    /// [`Error::End`] when they are not there.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        if self.buffer.len() - self.at < N {
            self.fill(N)?;
        }
        let (bytes, _) = self.buffer[self.at..]
            .split_first_chunk()
            .ok_or(Error::End)?;
        self.at += N;
        Ok(*bytes)
    }

    #[cold]
    fn fill(&mut self, wanted: usize) -> Result<(), Error> {
        self.buffer.drain(..self.at);
        self.at = 0;
        while self.buffer.len() < wanted {
            let most = self.left.min(BUFFER as u64);
            let read = (&mut *self.input)
                .take(most)
                .read_to_end(&mut self.buffer)?;
            if read == 0 {
                return Err(Error::End);
            }
            self.left -= read as u64;
        }
        Ok(())
    }

    /// Reads how many elements follow, each of which takes at least one byte. So the number is
    /// bounded by what is there.
    ///
    /// # Errors
    /// [`Error::End`] when there cannot be as many.
    pub fn count(&mut self) -> Result<usize, Error> {
        let count = u64::read(self)?;
        let there = self.left + (self.buffer.len() - self.at) as u64;
        if count > there {
            return Err(Error::End);
        }
        usize::try_from(count).map_err(|_| Error::End)
    }

    /// Reads the checksum of a component's fields.
    ///
    /// # Errors
    /// [`Error::Layout`] when it is another one.
    pub fn expect(&mut self, layout: u32) -> Result<(), Error> {
        if u32::read(self)? == layout {
            Ok(())
        } else {
            Err(Error::Layout)
        }
    }

    /// Sees that all was read.
    ///
    /// # Errors
    /// [`Error::Rest`] when there is more.
    pub fn finish(mut self) -> Result<(), Error> {
        match self.array::<1>() {
            Err(Error::End) => Ok(()),
            Ok(_) => Err(Error::Rest),
            Err(error) => Err(error),
        }
    }
}
