//! Readers of `/proc` and `/sys`, one file each.
//!
//! A reader takes what it knows and passes over what it does not, because kernels add fields; it
//! is an error only when something that every kernel since 5.10 prints is not there or not a
//! number.

mod blocks;
mod buddyinfo;
mod iomem;
mod meminfo;
mod pagetypeinfo;
mod pressure;
mod vmstat;
mod zoneinfo;

pub use blocks::{BlockState, MemoryBlock, MemoryBlocks};
pub use buddyinfo::{BuddyZone, free_frames};
pub use iomem::FrameRange;
pub use meminfo::Meminfo;
pub use pagetypeinfo::{PageTypes, TypedBlocks};
pub use pressure::{Pressure, Stall};
pub use vmstat::Counters;
pub use zoneinfo::{Watermarks, Zone};

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// Location of a machine's `/proc` and `/sys`.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self::running()
    }
}

impl System {
    /// The running machine.
    #[must_use]
    pub fn running() -> Self {
        Self::at(Path::new("/"))
    }

    /// The machine whose `proc` and `sys` are directories in `root`: a recorded one, or a
    /// container's host.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The path of a file, given from the root without a leading slash: `proc/zoneinfo`.
    #[must_use]
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// A file's text. Bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn text(&self, relative: &str) -> Result<Text, Error> {
        let path = self.path(relative);
        match fs::read(&path) {
            Ok(bytes) => Ok(Text {
                text: String::from_utf8_lossy(&bytes).into_owned(),
                path,
            }),
            Err(error) => Err(Error::Read { path, error }),
        }
    }

    /// The first word of a file of one line.
    ///
    /// # Errors
    /// [`Error::Read`].
    pub fn word(&self, relative: &str) -> Result<String, Error> {
        let text = self.text(relative)?.text;
        let word = text.split_whitespace().next().unwrap_or_default();
        Ok(word.to_owned())
    }
}

/// The text of a file, which knows where it came from.
#[derive(Clone, Debug)]
pub struct Text {
    path: PathBuf,
    text: String,
}

impl Text {
    /// All of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.text.lines().enumerate().map(|(index, text)| Line {
            path: &self.path,
            number: index + 1,
            text,
        })
    }

    /// The complaint that something is missing at the end.
    fn ends_without(&self, expected: &'static str) -> Error {
        Error::Parse {
            path: self.path.clone(),
            line: self.text.lines().count(),
            expected,
            found: "the end of the file".to_owned(),
        }
    }
}

#[derive(Clone, Copy)]
struct Line<'a> {
    path: &'a Path,
    number: usize,
    text: &'a str,
}

impl Line<'_> {
    fn expected(&self, expected: &'static str) -> Error {
        Error::Parse {
            path: self.path.to_owned(),
            line: self.number,
            expected,
            found: self.text.trim().chars().take(80).collect(),
        }
    }

    fn number(&self, word: Option<&str>) -> Result<u64, Error> {
        word.and_then(|word| word.parse().ok())
            .ok_or_else(|| self.expected("a number"))
    }
}

/// A zone's place in the machine, as `buddyinfo` and `pagetypeinfo` begin their lines:
/// `Node 0, zone   Normal`.
fn node_and_zone<'a>(line: &Line<'a>) -> Option<(u32, &'a str, &'a str)> {
    let rest = line.text.trim_start().strip_prefix("Node")?;
    let (node, rest) = rest.split_once(',')?;
    let rest = rest.trim_start().strip_prefix("zone")?.trim_start();
    let end = rest
        .find(|letter: char| letter == ',' || letter.is_whitespace())
        .unwrap_or(rest.len());
    Some((node.trim().parse().ok()?, &rest[..end], &rest[end..]))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::System;
    use std::path::Path;

    /// A machine that consists of the given files.
    pub(crate) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let system = System::at(folder.path());
        (folder, system)
    }
}
