//! Counts of what a file holds.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use contigua_units::PAGE_BYTES;

use super::files;
use super::record::{kind, marker};
use super::shard::Records;
use crate::Error;

/// Counts of a file of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The file.
    pub file: PathBuf,
    /// Version of the format.
    pub version: u64,
    /// Bits that say what kind of file it is (`offline_file_type_t`).
    pub file_type: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Further iterations of string instructions.
    pub not_fetched: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Prefetches that the program asked for.
    pub prefetches: u64,
    /// Pages of 4 KB with the first byte of a load or store.
    pub data_pages: u64,
    /// System calls.
    pub system_calls: u64,
    /// Times that the kernel interrupted the thread: signals, aborted restartable sequences.
    pub kernel_events: u64,
    /// Threads.
    pub threads: Vec<u64>,
}

/// Counts what each file of the trace at `path` holds.
///
/// # Errors
/// [`Error::File`], [`Error::Trace`].
pub fn count(path: &Path) -> Result<Vec<Counts>, Error> {
    let files = files::of_trace(path)?;
    files.iter().map(|file| count_file(file)).collect()
}

fn count_file(path: &Path) -> Result<Counts, Error> {
    let mut counts = Counts {
        file: path.to_owned(),
        ..Counts::default()
    };
    let mut records = Records::open(path)?;
    let at = |failure: crate::error::Failure| failure.at(path);
    let header = records.header().map_err(at)?;
    counts.version = header.version;
    counts.file_type = header.file_type;
    let mut pages = HashSet::new();
    let mut recent = u64::MAX;
    let mut last = u64::MAX;
    let mut threads = vec![header.thread];
    let mut is_complete = false;
    while let Some(record) = records.next().map_err(at)? {
        match record.kind {
            kind::READ | kind::WRITE => {
                let load = record.kind == kind::READ;
                counts.loads += u64::from(load);
                counts.stores += u64::from(!load);
                let page = record.value / PAGE_BYTES;
                if page != recent {
                    recent = page;
                    pages.insert(page);
                }
            }
            kind::INSTRUCTION..=kind::RETURN
            | kind::NOT_FETCHED
            | kind::MAYBE_FETCHED
            | kind::SYSENTER
            | kind::TAKEN
            | kind::UNTAKEN
                if record.size > 0 =>
            {
                let iterates = record.kind == kind::NOT_FETCHED
                    || record.kind == kind::MAYBE_FETCHED && last == record.value;
                counts.not_fetched += u64::from(iterates);
                counts.instructions += u64::from(!iterates);
                last = record.value;
            }
            kind::BUNDLE => counts.instructions += u64::from(record.size),
            kind::FIRST_PREFETCH..=kind::LAST_PREFETCH | kind::FIRST_HINT..=kind::LAST_HINT => {
                counts.prefetches += 1;
            }
            kind::THREAD => threads.push(record.value),
            kind::FOOTER => is_complete = true,
            kind::MARKER => match record.size {
                marker::SYSTEM_CALL => counts.system_calls += 1,
                marker::KERNEL_EVENT => counts.kernel_events += 1,
                _ => {}
            },
            kind::INSTRUCTION..=kind::UNTAKEN => {}
            other => {
                let detail = format!("its type is {other}, which is none of drmemtrace");
                return Err(at(records.refusal(detail)));
            }
        }
    }
    if !is_complete {
        return Err(at(records.cut_short()));
    }
    threads.sort_unstable();
    threads.dedup();
    counts.threads = threads;
    counts.data_pages = pages.len() as u64;
    Ok(counts)
}
