//! Pages that a program touches, whenever it does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use contigua_units::{PAGE_BYTES, VirtAddr};

use crate::Error;
use crate::sources::Source;
use crate::wire::{ACCESS, Access, Event, ProcessId, Record, Records, block_of, is_block};

/// A page that a process touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TouchedPage {
    /// The process.
    pub process: ProcessId,
    /// Address of the page.
    pub page: VirtAddr,
    /// It is written at some time.
    pub written: bool,
    /// It is executed at some time, and not read or written.
    pub executed: bool,
}

const READ: u8 = 1;
const WRITTEN: u8 = 2;
const EXECUTED: u8 = 4;

/// Reads a source to its end, or until `cancel` is set, and returns the pages that it touches, by process
/// and address.
///
/// # Errors
/// Those of [`Source::next_batch`], and [`Error::Malformed`].
pub fn footprint(source: &mut dyn Source, cancel: &AtomicBool) -> Result<Vec<TouchedPage>, Error> {
    let mut pages = Pages::default();
    // By thread: its process.
    let mut processes: Vec<ProcessId> = Vec::new();
    while !cancel.load(Ordering::Relaxed)
        && let Some(batch) = source.next_batch()?
    {
        let thread = batch.thread.0 as usize;
        if thread >= processes.len() {
            processes.resize(thread + 1, ProcessId(0));
        }
        let mut at = 0;
        while let Some(&word) = batch.words.get(at) {
            let process = processes[thread];
            at += 1;
            if word & ACCESS != 0 {
                let access = Access::decode(word);
                let kind = if access.store { WRITTEN } else { READ };
                let size = 1 << access.size_log2;
                pages.touch(process, access.address, size, kind);
            } else if is_block(word) {
                let block = batch.code.block(block_of(word));
                if let Some(code) = block {
                    pages.touch(process, code.address, u64::from(code.size()), EXECUTED);
                }
            } else {
                let (event, used) = Event::decode(&batch.words[at - 1..])?;
                at += used - 1;
                if let Event::ThreadStart { process } = event {
                    processes[thread] = process;
                }
            }
        }
    }
    let mut found: Vec<_> = pages
        .kinds
        .into_iter()
        .map(|((process, number), kinds)| TouchedPage {
            process,
            page: VirtAddr::new(number * PAGE_BYTES),
            written: kinds & WRITTEN != 0,
            executed: kinds == EXECUTED,
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Counts of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Instructions executed.
    pub instructions: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Pages with the first byte of a load or store.
    pub data_pages: u64,
    /// Threads.
    pub threads: u64,
}

/// Reads a source to its end, or until `cancel` is set, and counts what it holds.
///
/// # Errors
/// Those of [`Source::next_batch`], and [`Error::Malformed`].
pub fn census(source: &mut dyn Source, cancel: &AtomicBool) -> Result<Census, Error> {
    let mut found = Census::default();
    let mut pages = Pages::default();
    while !cancel.load(Ordering::Relaxed)
        && let Some(batch) = source.next_batch()?
    {
        found.threads = found.threads.max(u64::from(batch.thread.0) + 1);
        for record in Records::new(batch.words) {
            match record? {
                Record::Block(id) => {
                    let block = batch.code.block(id).ok_or(Error::UnknownBlock(id))?;
                    found.instructions += u64::from(block.instructions());
                }
                Record::Access(access) => {
                    found.stores += u64::from(access.store);
                    found.loads += u64::from(!access.store);
                    pages.touch(ProcessId(0), access.address, 1, READ);
                }
                Record::Event(Event::Forward { instructions }) => {
                    found.instructions += instructions;
                }
                Record::Event(_) => {}
            }
        }
    }
    found.data_pages = pages.kinds.len() as u64;
    Ok(found)
}

/// Pages by process and number.
#[derive(Default)]
struct Pages {
    kinds: HashMap<(ProcessId, u64), u8>,
    /// Those that were touched last, by the lowest bits of their number.
    recent: Box<Recent>,
}

struct Recent([(ProcessId, u64, u8); 256]);

impl Default for Recent {
    fn default() -> Self {
        Self([(ProcessId(0), u64::MAX, 0); 256])
    }
}

impl Pages {
    #[inline]
    fn touch(&mut self, process: ProcessId, address: VirtAddr, size: u64, kind: u8) {
        let first = address.get() / PAGE_BYTES;
        let last = (address.get() + size.max(1) - 1) / PAGE_BYTES;
        for number in first..=last {
            let recent = &mut self.recent.0[number as usize % 256];
            if recent.0 == process && recent.1 == number && recent.2 & kind != 0 {
                continue;
            }
            let kinds = self.kinds.entry((process, number)).or_default();
            *kinds |= kind;
            *recent = (process, number, *kinds);
        }
    }
}
