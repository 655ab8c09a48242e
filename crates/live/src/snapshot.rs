//! A scan as a file: what every frame was, and the report.
//!
//! One zstd frame with a checksum, which holds
//!
//! 1. a line of JSON: format, version, the names of classes in the order of their numbers;
//! 2. runs in address order, holes included, each a number of up to 64 bits in groups of 7, least
//!    significant first: the run's frames times 16, plus the class's number; 0 ends them;
//! 3. a line of JSON: the [`Report`](crate::report::Report).
//!
//! Both ends stream. A reader takes files of any length in constant memory, and believes nothing.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use serde::{Deserialize, Serialize};

use crate::classify::Class;
use crate::report::Report;
use crate::scan::{Run, Sink};

/// The name of the format.
pub const FORMAT: &str = "contigua-live-memory";
/// The version that is written, and read.
pub const VERSION: u32 = 1;

const COMPRESSION_LEVEL: i32 = 3;
/// Bits of a class in a run.
const CLASS_BITS: u32 = 4;
/// No machine has frames beyond this: 52 bits of physical address.
const MOST_FRAMES: u64 = 1 << 40;
/// Longest first line.
const HEADER: u64 = 1 << 16;
/// Longest report. Machines with hundreds of nodes and thousands of cgroups stay far below.
const REPORT: u64 = 1 << 26;

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It is of another version.
    #[error("written by a{} version: format {found}, this one reads {VERSION}",
        if *.found > VERSION { " newer" } else { "n older" })]
    Version {
        /// Its version.
        found: u32,
    },
    /// It is no snapshot, or a damaged one.
    #[error("not a snapshot of a machine's memory, or a damaged one: {0}")]
    Damaged(String),
}

impl SnapshotError {
    #[allow(clippy::needless_pass_by_value, reason = "it stands in map_err")]
    fn damaged(problem: impl ToString) -> Self {
        Self::Damaged(problem.to_string())
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    #[serde(default)]
    classes: Vec<String>,
}

/// Writes a snapshot while a scan goes on.
pub struct SnapshotWriter<'a, W: Write> {
    out: BufWriter<zstd::Encoder<'a, W>>,
    /// Runs that differ only in what is not kept are one.
    open: (Class, u64),
}

impl<W: Write> SnapshotWriter<'_, W> {
    /// Begins a snapshot.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let mut encoder = zstd::Encoder::new(out, COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        let mut out = BufWriter::with_capacity(1 << 16, encoder);
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            classes: Class::ALL.map(|class| class.key().to_owned()).to_vec(),
        };
        serde_json::to_writer(&mut out, &header)?;
        out.write_all(b"\n")?;
        Ok(Self {
            out,
            open: (Class::Hole, 0),
        })
    }

    /// Ends the snapshot.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self, report: &Report) -> io::Result<W> {
        self.flush()?;
        self.out.write_all(&[0])?;
        serde_json::to_writer(&mut self.out, report)?;
        self.out.write_all(b"\n")?;
        let encoder = self
            .out
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        encoder.finish()
    }

    fn flush(&mut self) -> io::Result<()> {
        let (class, frames) = self.open;
        if frames == 0 {
            return Ok(());
        }
        let mut number = (frames << CLASS_BITS) | class as u64;
        while number > 0x7f {
            self.out.write_all(&[number as u8 | 0x80])?;
            number >>= 7;
        }
        self.out.write_all(&[number as u8])
    }
}

impl<W: Write> Sink for SnapshotWriter<'_, W> {
    fn take(&mut self, run: Run) -> io::Result<()> {
        if self.open.0 == run.class {
            self.open.1 += run.frames;
            return Ok(());
        }
        self.flush()?;
        self.open = (run.class, run.frames);
        Ok(())
    }
}

/// Reads a snapshot: runs first, then the report.
pub struct SnapshotReader<'a, R: BufRead> {
    bytes: BufReader<zstd::Decoder<'a, R>>,
    classes: Vec<Class>,
    position: u64,
    has_runs: bool,
}

impl<R: Read> SnapshotReader<'_, BufReader<R>> {
    /// Reads the beginning of a snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn new(bytes: R) -> Result<Self, SnapshotError> {
        let decoder = zstd::Decoder::new(bytes).map_err(SnapshotError::damaged)?;
        let mut bytes = BufReader::with_capacity(1 << 16, decoder);
        let line = line(&mut bytes, HEADER)?;
        let header: Header = serde_json::from_slice(&line).map_err(SnapshotError::damaged)?;
        if header.format != FORMAT {
            return Err(SnapshotError::damaged(format!(
                "its format is {:?}",
                header.format.chars().take(40).collect::<String>()
            )));
        }
        if header.version != VERSION {
            return Err(SnapshotError::Version {
                found: header.version,
            });
        }
        let known = |name: &String| Class::ALL.into_iter().find(|class| class.key() == name);
        let classes: Option<Vec<Class>> = header.classes.iter().map(known).collect();
        let classes = classes.ok_or_else(|| SnapshotError::damaged("it has unknown classes"))?;
        Ok(Self {
            bytes,
            classes,
            position: 0,
            has_runs: true,
        })
    }

    /// The next run; `None` after the last. Zones and cgroups are not kept.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`].
    pub fn next_run(&mut self) -> Result<Option<(Class, u64)>, SnapshotError> {
        if !self.has_runs {
            return Ok(None);
        }
        let number = self.number()?;
        if number == 0 {
            self.has_runs = false;
            return Ok(None);
        }
        let class = self
            .classes
            .get((number & ((1 << CLASS_BITS) - 1)) as usize);
        let class = *class.ok_or_else(|| SnapshotError::damaged("a class has no name"))?;
        let frames = number >> CLASS_BITS;
        if frames == 0 {
            return Err(SnapshotError::damaged("a run is empty"));
        }
        self.position = self.position.saturating_add(frames);
        if self.position > MOST_FRAMES {
            return Err(SnapshotError::damaged(
                "it has more frames than a machine can",
            ));
        }
        Ok(Some((class, frames)))
    }

    fn number(&mut self) -> Result<u64, SnapshotError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.bytes
                .read_exact(&mut byte)
                .map_err(SnapshotError::damaged)?;
            let bits = u64::from(byte[0] & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(SnapshotError::damaged("a number is too long"))
    }

    /// The report, as JSON, and the end of the file; runs that were not asked for are passed over.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`].
    pub fn report(mut self) -> Result<serde_json::Value, SnapshotError> {
        while self.next_run()?.is_some() {}
        let line = line(&mut self.bytes, REPORT)?;
        let report = serde_json::from_slice(&line).map_err(SnapshotError::damaged)?;
        // Only the end says that the checksum was right.
        match self.bytes.read(&mut [0]).map_err(SnapshotError::damaged)? {
            0 => Ok(report),
            _ => Err(SnapshotError::damaged("something follows its end")),
        }
    }
}

fn line(bytes: &mut impl BufRead, longest: u64) -> Result<Vec<u8>, SnapshotError> {
    let mut line = Vec::new();
    bytes
        .take(longest)
        .read_until(b'\n', &mut line)
        .map_err(SnapshotError::damaged)?;
    match line.pop() {
        Some(b'\n') => Ok(line),
        _ => Err(SnapshotError::damaged("it ends within a line")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::System;
    use crate::report::{Nobody, Options, look};
    use crate::scan::Pace;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static REPORT: LazyLock<Report> = LazyLock::new(|| {
        let options = Options {
            pace: Pace::default(),
            frames: false,
            sites: false,
        };
        look(&System::running(), options, &mut Nobody).unwrap()
    });

    fn written(runs: &[(u8, u64)], report: &Report) -> Vec<u8> {
        let mut writer = SnapshotWriter::new(Vec::new()).unwrap();
        for &(class, frames) in runs {
            let class = Class::from_value(class).unwrap();
            let run = Run {
                class,
                cgroup: frames,
                ..Run::hole(frames)
            };
            writer.take(run).unwrap();
        }
        writer.finish(report).unwrap()
    }

    type Runs = Vec<(Class, u64)>;

    fn read(bytes: &[u8]) -> Result<(Runs, serde_json::Value), SnapshotError> {
        let mut reader = SnapshotReader::new(bytes)?;
        let mut runs = Vec::new();
        while let Some(run) = reader.next_run()? {
            runs.push(run);
        }
        Ok((runs, reader.report()?))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(contigua_testing::cases(64)))]
        #[test]
        fn snapshot_round_trips(
            runs in prop::collection::vec((0..14_u8, 1..1_u64 << 34), 0..30)
        ) {
            let (read, json) = read(&written(&runs, &REPORT)).unwrap();
            let mut joined: Runs = Vec::new();
            for (class, frames) in runs {
                let class = Class::from_value(class).unwrap();
                match joined.last_mut() {
                    Some(last) if last.0 == class => last.1 += frames,
                    _ => joined.push((class, frames)),
                }
            }
            prop_assert_eq!(read, joined);
            prop_assert_eq!(json, serde_json::to_value(&*REPORT).unwrap());
        }

        #[test]
        fn damaged_snapshots_are_refused(
            at in any::<prop::sample::Index>(), flip in 1..=255_u8
        ) {
            let runs = [(0, 5), (5, 70), (0, 1 << 20), (12, 9)];
            let mut bytes = written(&runs, &REPORT);
            let whole = read(&bytes).unwrap();
            let at = at.index(bytes.len());
            prop_assert!(read(&bytes[..at]).is_err());
            bytes[at] ^= flip;
            // A byte of the frame's header may say the same in another way.
            if let Ok(other) = read(&bytes) {
                prop_assert_eq!(other, whole);
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
            let mut inner = b"{\"format\":\"contigua-live-memory\",\"version\":1,\"classes\":[\"free\"]}\n".to_vec();
            inner.extend(bytes);
            let _ = read(&zstd::encode_all(&inner[..], 1).unwrap());
        }
    }

    #[test]
    fn other_versions_are_told_apart_from_damage() {
        let with = |version: u32| {
            let header = format!("{{\"format\":\"{FORMAT}\",\"version\":{version}}}\n");
            let bytes = zstd::encode_all(header.as_bytes(), 1).unwrap();
            read(&bytes).unwrap_err().to_string()
        };
        assert!(with(2).starts_with("written by a newer version: format 2"));
        assert!(with(0).starts_with("written by an older version: format 0"));
        assert!(with(1).contains("damaged"));
    }
}
