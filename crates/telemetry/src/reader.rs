//! Reading the page of another process.

use core::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::string::String;
use std::thread;
use std::time::Duration;
use std::vec::Vec;

use super::{MAGIC, NAME, Page, VERSION};

/// Bytes before the first figure.
const HEAD: usize = 24;
/// Bytes of the page that the kernel gives a process.
const PAGE: usize = 4096;
/// Number of reads of a page that is being written, a millisecond apart. Writing takes a
/// microsecond, unless the process is stopped meanwhile.
const ATTEMPTS: u32 = 200;

/// Why a process's figures could not be read.
#[derive(Debug)]
pub enum Error {
    /// There is no such process (any more).
    NoProcess {
        /// Its number.
        process: u32,
    },
    /// The process shows no page.
    NoPage {
        /// Its number.
        process: u32,
    },
    /// The system does not let us look.
    Denied {
        /// The process's number.
        process: u32,
    },
    /// Something else went wrong in reading a file of `/proc`.
    Io {
        /// The process's number.
        process: u32,
        /// The system's error.
        error: io::Error,
    },
    /// The mapping contains no page of ours.
    Corrupted {
        /// The process's number.
        process: u32,
        /// The word that is wrong.
        what: &'static str,
        /// Value that was found.
        found: u64,
    },
    /// The process's library and this one do not speak the same version.
    Version {
        /// The process's number.
        process: u32,
        /// Its version.
        found: u32,
    },
    /// The page was being written all the time.
    Unfinished {
        /// The process's number.
        process: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess { process } => write!(out, "there is no process {process}"),
            Self::NoPage { process } => write!(
                out,
                "process {process} shows no figures: it does not run under libcontigua_malloc, or \
                 has for less than a second, or with CONTIGUA_MALLOC_TELEMETRY=off"
            ),
            Self::Denied { process } => write!(
                out,
                "process {process} is not ours to look at: run this as its user, or as root (see \
                 ptrace(2), \"ptrace access mode checking\")"
            ),
            Self::Io { process, error } => {
                write!(
                    out,
                    "the figures of process {process} cannot be read: {error}"
                )
            }
            Self::Corrupted {
                process,
                what,
                found,
            } => write!(
                out,
                "the page of process {process} is damaged: its {what} is {found:#x}; something in \
                 the process wrote over it"
            ),
            Self::Version { process, found } => write!(
                out,
                "process {process} shows its figures in version {found}, and we read version \
                 {VERSION}: use the tool that came with its libcontigua_malloc"
            ),
            Self::Unfinished { process } => write!(
                out,
                "process {process} was stopped while it wrote its figures; continue it"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl Error {
    fn of(process: u32, error: io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::NotFound, _) | (_, Some(libc::ESRCH)) => Self::NoProcess { process },
            (io::ErrorKind::PermissionDenied, _) => Self::Denied { process },
            _ => Self::Io { process, error },
        }
    }
}

/// The page of a process, found once and read as often as wanted. The process is not stopped, and
/// does not notice.
#[derive(Debug)]
pub struct Reader {
    process: u32,
    memory: File,
    address: u64,
}

impl Reader {
    /// Find the page of a process.
    ///
    /// # Errors
    /// If there is no such process, if it shows no page, or if we may not look.
    pub fn of_process(process: u32) -> Result<Self, Error> {
        let wrong = |error| Error::of(process, error);
        let maps = std::fs::read(std::format!("/proc/{process}/maps")).map_err(wrong)?;
        let address = find(&maps).ok_or(Error::NoPage { process })?;
        let memory = File::open(std::format!("/proc/{process}/mem")).map_err(wrong)?;
        Ok(Self {
            process,
            memory,
            address,
        })
    }

    /// Read the figures as they were last written, at once and whole: they belong together.
    ///
    /// # Errors
    /// If the process has ended, or if the page is none of this version.
    pub fn read(&self) -> Result<Page, Error> {
        let process = self.process;
        let mut bytes = [0; PAGE];
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let before = self.sequence()?;
            self.bytes(&mut bytes)?;
            let page = decode(process, &bytes)?;
            if before == page.sequence && before.is_multiple_of(2) && self.sequence()? == before {
                return Ok(page);
            }
        }
        Err(Error::Unfinished { process })
    }

    fn sequence(&self) -> Result<u64, Error> {
        let mut head = [0; HEAD];
        self.bytes(&mut head)?;
        Ok(word(&head, 2))
    }

    fn bytes(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let process = self.process;
        self.memory
            .read_exact_at(bytes, self.address)
            .map_err(|error| match (error.kind(), error.raw_os_error()) {
                // The memory of a process that has ended reads as a file that has.
                (io::ErrorKind::UnexpectedEof, _) | (_, Some(libc::EIO)) => {
                    Error::NoProcess { process }
                }
                _ => Error::of(process, error),
            })
    }
}

/// Address of the page, by `/proc/PID/maps`.
fn find(maps: &[u8]) -> Option<u64> {
    let name = std::format!("/memfd:{NAME}");
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let line = String::from_utf8_lossy(line);
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        if *fields.get(5)? != name {
            return None;
        }
        u64::from_str_radix(fields[0].split('-').next()?, 16).ok()
    })
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_ne_bytes(word)
}

/// Check and decode a page. Figures that the process does not have are 0.
fn decode(process: u32, bytes: &[u8; PAGE]) -> Result<Page, Error> {
    let corrupted = |what, found| {
        Err(Error::Corrupted {
            process,
            what,
            found,
        })
    };
    let magic = word(bytes, 0);
    if magic == 0 {
        // Made at the start, and filled when the process is old enough.
        return Err(Error::NoPage { process });
    }
    if magic != MAGIC {
        return corrupted("first word", magic);
    }
    let (version, figures) = (word(bytes, 1) as u32, (word(bytes, 1) >> 32) as u32);
    if version != VERSION {
        return Err(Error::Version {
            process,
            found: version,
        });
    }
    if figures == 0 || figures as usize > (PAGE - HEAD) / 8 {
        return corrupted("number of figures", figures.into());
    }
    let mut page = Page {
        magic,
        version,
        figures,
        sequence: word(bytes, 2),
        ..Page::default()
    };
    let known = Page::NAMES.len().min(figures as usize);
    for (index, value) in page.values_mut().into_iter().take(known).enumerate() {
        *value = word(bytes, HEAD / 8 + index);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn page(version: u32, figures: u32) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&version.to_ne_bytes());
        bytes[12..16].copy_from_slice(&figures.to_ne_bytes());
        for index in 3..PAGE / 8 {
            bytes[index * 8..index * 8 + 8].copy_from_slice(&(index as u64).to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn does_each_figure_come_from_its_place() {
        let all = Page::NAMES.len() as u32;
        let read = decode(1, &page(VERSION, all)).expect("a page");
        for (index, figure) in read.known().enumerate() {
            assert_eq!(figure.value, 3 + index as u64, "{}", figure.name);
            assert!(!figure.help.is_empty());
        }
        assert_eq!((read.nanoseconds, read.metadata), (3, 2 + u64::from(all)));
    }

    #[test]
    fn are_longer_and_shorter_pages_of_the_version_read_as_far_as_both_know_them() {
        let all = Page::NAMES.len();
        let longer = decode(1, &page(VERSION, all as u32 + 5)).expect("a page");
        assert_eq!(longer.known().count(), all);
        let shorter = decode(1, &page(VERSION, 2)).expect("a page");
        assert_eq!(shorter.known().count(), 2);
        assert_eq!((shorter.small_in_use, shorter.large_in_use), (4, 0));
    }

    #[test]
    fn are_damaged_and_foreign_pages_told_apart() {
        let mut foreign = page(VERSION, 10);
        foreign[0] ^= 1;
        assert!(matches!(
            decode(7, &foreign),
            Err(Error::Corrupted { process: 7, .. })
        ));
        for figures in [0, 510, u32::MAX] {
            let error = decode(7, &page(VERSION, figures)).expect_err("no page");
            assert!(error.to_string().contains("number of figures"), "{error}");
        }
        for version in [0, VERSION + 1] {
            let error = decode(7, &page(version, 10)).expect_err("no page");
            assert!(error.to_string().contains("version"), "{error}");
        }
    }

    #[test]
    fn is_the_mapping_found_by_its_whole_name() {
        let maps = b"1000-2000 rw-s 00000000 00:01 9 /memfd:contigua-malloc-other (deleted)\n\
                     7f00-8f00 rw-s 00000000 00:01 9 /memfd:contigua-malloc (deleted)\n";
        assert_eq!(find(maps), Some(0x7f00));
        assert_eq!(find(b"7f00-8f00 rw-p 0 0:0 0\n"), None);
    }
}
