//! The files of a trace.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::archive;
use super::record::kind;
use crate::error::Failure;
use crate::{Error, TraceProblem};

/// Endings of the files of threads and cores, before that of their compression.
const NAMES: [&str; 2] = [".trace", ".memtrace"];
const COMPRESSIONS: [&str; 5] = ["", ".zip", ".gz", ".zst", ".xz"];
/// Endings that `DynamoRIO` may have been built to write, and nothing here reads.
const UNREAD: [&str; 3] = [".lz4", ".sz", ".zlib"];

/// The folder with a trace's files, of a folder that a tracer wrote.
fn folder(path: &Path) -> PathBuf {
    let below = path.join("trace");
    if below.is_dir() {
        below
    } else {
        path.to_owned()
    }
}

fn ends(name: &str, compressions: &[&str]) -> bool {
    NAMES
        .iter()
        .flat_map(|kind| {
            compressions
                .iter()
                .map(move |packed| format!("{kind}{packed}"))
        })
        .any(|ending| name.ends_with(&ending))
}

/// The files of threads or cores of the trace at `path`, in the order of their names.
pub(super) fn of_trace(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let folder = folder(path);
    let refuse = |detail: String| {
        Err(Failure::from(TraceProblem::NotATrace {
            format: "drmemtrace",
            detail,
        })
        .at(path))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(Error::file(&folder))? {
        let entry = entry.map_err(Error::file(&folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if ends(&name, &UNREAD) {
            return refuse(format!(
                "{name} is compressed as nothing here reads; trace again with -compress zip or gzip"
            ));
        }
        if ends(&name, &COMPRESSIONS) {
            found.push(entry.path());
        }
    }
    if found.is_empty() {
        return refuse("the folder has no files *.trace.zip or *.trace.gz".into());
    }
    found.sort();
    Ok(found)
}

/// The first file of these names that the trace at `path` comes with: among its files, in `aux` there, or
/// beside the folder of its files.
pub(super) fn beside(path: &Path, names: &[&str]) -> Option<PathBuf> {
    let folder = if path.is_dir() {
        folder(path)
    } else {
        path.parent()?.to_owned()
    };
    let above = folder.parent().unwrap_or(&folder);
    [
        folder.clone(),
        folder.join("aux"),
        above.to_owned(),
        above.join("aux"),
    ]
    .iter()
    .flat_map(|folder| names.iter().map(|name| folder.join(name)))
    .find(|file| file.is_file())
}

/// Returns true if a path looks like a trace of drmemtrace: a folder with such files, or a file
/// that begins as they do.
#[must_use]
pub fn is_drmemtrace(path: &Path) -> bool {
    if path.is_dir() {
        return of_trace(path).is_ok();
    }
    if !path.is_file() {
        return false;
    }
    let Ok(file) = contigua_input::open(path) else {
        return false;
    };
    let mut start = Vec::new();
    let read = file.take(4).read_to_end(&mut start);
    if read.is_err() || archive::is_archive(&start) {
        return read.is_ok();
    }
    let name = path.to_string_lossy();
    let mut record = [0; super::record::BYTES];
    let is_first = archive::Chunks::open(path).is_ok_and(
        |mut chunks| matches!(chunks.read(&mut record), Ok(read) if read == record.len()),
    );
    is_first
        && record[..2] == kind::HEADER.to_le_bytes()
        && (ends(&name, &COMPRESSIONS) || record[2..4] == [0, 0])
}
