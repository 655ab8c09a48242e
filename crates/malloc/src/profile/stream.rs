//! Bytes to a file as a gzip member of stored blocks (RFC 1951, section 3.2.4; RFC 1952): a frame
//! that every reader of compressed profiles takes, made without memory for a compressor.

use crate::files;

/// Bytes in a block; at most 65,535.
const BLOCK: usize = 32 << 10;

/// Memory of a stream.
pub type Buffer = [u8; BLOCK];

/// A file that is being written.
pub struct Stream<'a> {
    file: i32,
    block: &'a mut Buffer,
    length: usize,
    sum: u32,
    total: u32,
    error: Option<i32>,
}

/// CRC-32 (RFC 1952, section 8), four bits at a time.
fn crc(mut sum: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 16] = {
        let mut table = [0; 16];
        let mut index = 0;
        while index < 16 {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 4 {
                value = (value >> 1) ^ (0xedb8_8320 * (value & 1));
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    for &byte in bytes {
        sum ^= u32::from(byte);
        sum = sum >> 4 ^ TABLE[(sum & 15) as usize];
        sum = sum >> 4 ^ TABLE[(sum & 15) as usize];
    }
    sum
}

impl<'a> Stream<'a> {
    /// Begin.
    pub fn new(file: i32, block: &'a mut Buffer) -> Self {
        let mut stream = Self {
            file,
            block,
            length: 0,
            sum: u32::MAX,
            total: 0,
            error: None,
        };
        // Deflate, no flags, no time, no hints, an unknown system.
        stream.raw(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff]);
        stream
    }

    fn raw(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = files::write(self.file, bytes).err();
        }
    }

    fn flush(&mut self, last: bool) {
        let length = self.length as u16;
        let [a, b] = length.to_le_bytes();
        self.raw(&[u8::from(last), a, b, !a, !b]);
        if self.error.is_none() {
            self.error = files::write(self.file, &self.block[..self.length]).err();
        }
        self.length = 0;
    }

    /// Write bytes.
    pub fn write(&mut self, mut bytes: &[u8]) {
        self.sum = crc(self.sum, bytes);
        self.total = self.total.wrapping_add(bytes.len() as u32);
        while !bytes.is_empty() {
            let part = bytes.len().min(BLOCK - self.length);
            self.block[self.length..self.length + part].copy_from_slice(&bytes[..part]);
            self.length += part;
            bytes = &bytes[part..];
            if self.length == BLOCK {
                self.flush(false);
            }
        }
    }

    /// End; the system's error number if something was not written.
    pub fn finish(mut self) -> Result<(), i32> {
        self.flush(true);
        let (sum, total) = (!self.sum, self.total);
        self.raw(&sum.to_le_bytes());
        self.raw(&total.to_le_bytes());
        self.error.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_checksum_the_usual_one() {
        // The check value of CRC-32 in the catalogue of parametrised algorithms.
        assert_eq!(!crc(u32::MAX, b"123456789"), 0xcbf4_3926);
    }
}
