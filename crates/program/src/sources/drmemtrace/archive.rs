//! The bytes of a trace file: the members of a zip archive one after the other, or what a compressed or
//! plain file holds.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::DeflateDecoder;

use super::super::compressed::Input;
use crate::Error;
use crate::error::Failure;

/// First bytes of archives: of a member, and of one without members.
const LOCAL: u32 = 0x0403_4b50;
const END: u32 = 0x0605_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
/// Bytes of the end of an archive without its comment, which has up to 2^16.
const END_BYTES: usize = 22;
const LOCATOR_BYTES: usize = 20;
const CENTRAL_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
/// Members that an archive has at most: chunks of ten million instructions.
const MAX_MEMBERS: u64 = 1 << 20;
const BUFFER: usize = 1 << 16;

/// A member of an archive.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    header: u64,
    stored: u64,
    size: u64,
    checksum: u32,
    deflated: bool,
}

/// An archive's members, in the order of their names.
pub(super) struct Archive {
    file: File,
    pub(super) members: Vec<Member>,
}

/// Returns true if a file begins as an archive.
pub(super) fn is_archive(start: &[u8]) -> bool {
    let magic = start.first_chunk().map(|magic| u32::from_le_bytes(*magic));
    magic == Some(LOCAL) || magic == Some(END)
}

fn damaged(detail: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("no intact zip archive ({detail}); copy or record the file again"),
    )
}

/// Numbers of a structure, little-endian.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&mut self, bytes: usize) -> io::Result<u64> {
        let (number, rest) = self
            .0
            .split_at_checked(bytes)
            .ok_or_else(|| damaged("a field is cut off"))?;
        self.0 = rest;
        let mut whole = [0; 8];
        whole[..bytes].copy_from_slice(number);
        Ok(u64::from_le_bytes(whole))
    }

    fn skip(&mut self, bytes: usize) -> io::Result<()> {
        self.0 = self
            .0
            .get(bytes..)
            .ok_or_else(|| damaged("a field is cut off"))?;
        Ok(())
    }
}

impl Archive {
    /// Reads the directory of an archive.
    pub(super) fn open(mut file: File) -> io::Result<Self> {
        let length = file.seek(SeekFrom::End(0))?;
        let (at, bytes, count) = Self::directory(&mut file, length)?;
        if at.checked_add(bytes).is_none_or(|end| end > length)
            || count > MAX_MEMBERS
            || bytes < count * CENTRAL_BYTES as u64
        {
            return Err(damaged("its directory lies outside"));
        }
        let mut directory = vec![0; bytes as usize];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut directory)?;
        let mut fields = Fields(&directory);
        let mut members = Vec::new();
        for _ in 0..count {
            members.extend(Self::member(&mut fields)?);
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { file, members })
    }

    /// Offset of the directory, its bytes and members.
    fn directory(file: &mut File, length: u64) -> io::Result<(u64, u64, u64)> {
        let tail_bytes = length.min((END_BYTES + LOCATOR_BYTES + 0xffff) as u64);
        let mut tail = vec![0; tail_bytes as usize];
        file.seek(SeekFrom::Start(length - tail_bytes))?;
        file.read_exact(&mut tail)?;
        let end = (0..(tail.len() + 1).saturating_sub(END_BYTES))
            .rev()
            .find(|&at| tail[at..].starts_with(&END.to_le_bytes()))
            .ok_or_else(|| damaged("it has no end"))?;
        let mut fields = Fields(&tail[end + 10..]);
        let found = (fields.number(2)?, fields.number(4)?, fields.number(4)?);
        let locator = end
            .checked_sub(LOCATOR_BYTES)
            .map(|at| &tail[at..])
            .filter(|tail| tail.starts_with(&LOCATOR_64.to_le_bytes()));
        let (count, bytes, at) = found;
        let Some(locator) = locator else {
            return Ok((at, bytes, count));
        };
        let mut fields = Fields(&locator[8..]);
        let mut record = [0; 56];
        file.seek(SeekFrom::Start(fields.number(8)?))?;
        file.read_exact(&mut record)?;
        let mut fields = Fields(&record);
        if fields.number(4)? != u64::from(END_64) {
            return Err(damaged("the end of its 64-bit directory"));
        }
        fields.skip(28)?;
        let (count, bytes, at) = (fields.number(8)?, fields.number(8)?, fields.number(8)?);
        Ok((at, bytes, count))
    }

    /// The next member of a directory, or `None` for a folder.
    fn member(fields: &mut Fields<'_>) -> io::Result<Option<Member>> {
        if fields.number(4)? != u64::from(CENTRAL) {
            return Err(damaged("an entry of its directory"));
        }
        fields.skip(4)?;
        let flags = fields.number(2)?;
        let method = fields.number(2)?;
        fields.skip(4)?;
        let checksum = fields.number(4)? as u32;
        let (mut stored, mut size) = (fields.number(4)?, fields.number(4)?);
        let name_bytes = fields.number(2)? as usize;
        let extra_bytes = fields.number(2)? as usize;
        let comment_bytes = fields.number(2)? as usize;
        fields.skip(8)?;
        let mut header = fields.number(4)?;
        let name = fields
            .0
            .get(..name_bytes)
            .map(|name| String::from_utf8_lossy(name).into_owned());
        fields.skip(name_bytes)?;
        let mut extra = Fields(fields.0.get(..extra_bytes).unwrap_or_default());
        fields.skip(extra_bytes)?;
        fields.skip(comment_bytes)?;
        while extra.0.len() >= 4 {
            let (kind, bytes) = (extra.number(2)?, extra.number(2)? as usize);
            let mut field = Fields(extra.0.get(..bytes).unwrap_or_default());
            extra.skip(bytes)?;
            if kind == 1 {
                for number in [&mut size, &mut stored, &mut header] {
                    if *number == 0xffff_ffff {
                        *number = field.number(8)?;
                    }
                }
            }
        }
        let name = name.unwrap_or_default();
        if name.ends_with('/') {
            return Ok(None);
        }
        if flags & 1 != 0 || !matches!(method, 0 | 8) {
            return Err(damaged(
                "a member is encrypted, or of a method other than deflate",
            ));
        }
        Ok(Some(Member {
            name,
            header,
            stored,
            size,
            checksum,
            deflated: method == 8,
        }))
    }

    /// The content of a member, which is checked when it is read to its end.
    pub(super) fn content(&self, member: &Member) -> io::Result<Content> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(member.header))?;
        let mut local = [0; LOCAL_BYTES];
        file.read_exact(&mut local)?;
        let mut fields = Fields(&local);
        if fields.number(4)? != u64::from(LOCAL) {
            return Err(damaged("the header of a member"));
        }
        fields.skip(22)?;
        let names = fields.number(2)? + fields.number(2)?;
        let at = member.header.saturating_add(LOCAL_BYTES as u64 + names);
        let stored = Window {
            file,
            at,
            left: member.stored,
        };
        let buffered = BufReader::with_capacity(BUFFER, stored);
        Ok(Content {
            reader: if member.deflated {
                Reader::Deflated(Box::new(DeflateDecoder::new(buffered)))
            } else {
                Reader::Stored(buffered)
            },
            checksum: flate2::Crc::new(),
            expected: member.checksum,
            left: member.size,
        })
    }
}

/// A part of a file. Copies of a file share where they are, so that each read says where it is.
struct Window {
    file: File,
    at: u64,
    left: u64,
}

impl Read for Window {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        let wanted = bytes
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut bytes[..wanted], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

enum Reader {
    Stored(BufReader<Window>),
    Deflated(Box<DeflateDecoder<BufReader<Window>>>),
}

/// Contents of a member.
pub(super) struct Content {
    reader: Reader,
    checksum: flate2::Crc,
    expected: u32,
    left: u64,
}

impl Read for Content {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.reader {
            Reader::Stored(reader) => reader.read(bytes),
            Reader::Deflated(reader) => reader.read(bytes),
        }?;
        self.checksum.update(&bytes[..read]);
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or_else(|| damaged("a member is longer than its directory says"))?;
        if read == 0 && !bytes.is_empty() && (self.left > 0 || self.checksum.sum() != self.expected)
        {
            return Err(damaged("the checksum of a member"));
        }
        Ok(read)
    }
}

/// The bytes of a trace file, chunk by chunk where it is an archive.
pub(super) struct Chunks {
    bytes: Bytes,
}

enum Bytes {
    Archive {
        archive: Archive,
        /// The member that comes next.
        next: usize,
        content: Option<Content>,
    },
    Stream(Input),
}

impl Chunks {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let mut file = contigua_input::open(path).map_err(Error::file(path))?;
        let mut start = [0; 4];
        let mut read = 0;
        while read < start.len() {
            match file.read(&mut start[read..]).map_err(Error::file(path))? {
                0 => break,
                more => read += more,
            }
        }
        file.seek(SeekFrom::Start(0)).map_err(Error::file(path))?;
        let bytes = if is_archive(&start[..read]) {
            Bytes::Archive {
                archive: Archive::open(file).map_err(Error::file(path))?,
                next: 0,
                content: None,
            }
        } else {
            Bytes::Stream(Input::new(file).map_err(Error::file(path))?)
        };
        Ok(Self { bytes })
    }

    /// Reads from anything but an archive.
    pub(super) fn of(input: impl Read + Send + 'static) -> io::Result<Self> {
        Ok(Self {
            bytes: Bytes::Stream(Input::new(input)?),
        })
    }

    /// Goes to the beginning of the chunk that comes so many behind the present one; how many it went.
    pub(super) fn skip(&mut self, chunks: u64) -> u64 {
        match &mut self.bytes {
            Bytes::Archive {
                archive,
                next,
                content,
            } => {
                let left = archive.members.len().saturating_sub(*next) as u64;
                let skipped = chunks.min(left);
                if skipped > 0 {
                    *next += skipped as usize - 1;
                    *content = None;
                }
                skipped
            }
            Bytes::Stream(_) => 0,
        }
    }

    /// Fills `bytes` as far as there are any in the present chunk; the next one's when that is at its end.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Failure> {
        let mut filled = 0;
        while filled < bytes.len() {
            let read = match &mut self.bytes {
                Bytes::Stream(input) => input.read(&mut bytes[filled..])?,
                Bytes::Archive {
                    archive,
                    next,
                    content,
                } => {
                    let Some(current) = content else {
                        let Some(member) = archive.members.get(*next) else {
                            break;
                        };
                        *content = Some(archive.content(member)?);
                        *next += 1;
                        continue;
                    };
                    let read = current.read(&mut bytes[filled..])?;
                    if read == 0 {
                        *content = None;
                        if filled > 0 {
                            break;
                        }
                        continue;
                    }
                    read
                }
            };
            if read == 0 {
                break;
            }
            filled += read;
        }
        Ok(filled)
    }
}
