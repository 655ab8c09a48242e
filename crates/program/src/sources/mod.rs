//! Sources of events: one file each.
//!
//! A source yields batches of [`wire`](crate::wire) words in one total order over all threads.
//! Batches are borrowed from the source, so that a live ring is read in place; the code log comes
//! along with each batch because a consumer needs both at once.

mod compressed;
mod foreign;

pub mod champsim;
pub mod drmemtrace;
pub mod lackey;
pub mod live;
pub mod trace;

use crate::Error;
use crate::code::CodeLog;
use crate::end::End;
use crate::plan::Plan;
use crate::syscall::Architecture;
use crate::wire::ThreadId;

/// Consecutive words of one thread.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// The thread that executed them.
    pub thread: ThreadId,
    /// Whole records, in program order.
    pub words: &'a [u64],
    /// What the block numbers in `words` stand for.
    pub code: &'a dyn CodeLog,
}

/// What a source knows about its program before the first event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The command line, as given.
    pub command: Vec<String>,
    /// The program's architecture, which gives system calls their meaning.
    pub architecture: Architecture,
    /// Whether the source reports the program's mappings. Foreign traces do not: every address
    /// that they access is then taken to lie in anonymous memory.
    pub reports_mappings: bool,
    /// What is told of it: all, unless it was recorded or is run under another plan.
    pub plan: Plan,
}

/// Where events come from.
pub trait Source: Send {
    /// What is known about the program.
    fn program(&self) -> &Program;

    /// The next batch, or `None` at the end of the program. Blocks until there is one.
    ///
    /// # Errors
    /// Whatever keeps the stream from going on; the source then stays at its end.
    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error>;

    /// How the program came to its end, as far as is known: after the last batch.
    fn end(&self) -> Option<&End> {
        None
    }

    /// A hash of all that the source yields, where it is stored so that it can seek.
    fn identity(&self) -> Option<u64> {
        None
    }

    /// Goes to where so many batches have been read.
    ///
    /// # Errors
    /// [`Error::CannotSeek`] where there is no [`Source::identity`]; what keeps the stream from going
    /// on.
    fn seek(&mut self, _batches: u64) -> Result<(), Error> {
        Err(Error::CannotSeek)
    }

    /// Page tables of the machine that runs it hold addresses of so many bits, 48 or 57; called before
    /// anything is read. Traces of other tools refuse addresses that do not fit.
    fn set_address_bits(&mut self, _bits: u32) {}

    /// Passes over the first instructions without what they do, before anything is read, as far as it can
    /// without reading them; returns how many.
    ///
    /// # Errors
    /// Those of [`Source::next_batch`].
    fn skip(&mut self, _instructions: u64) -> Result<u64, Error> {
        Ok(0)
    }

    /// Whether it is known which registers the instructions use: by their bytes, or because the source
    /// says so ([`CodeLog::instructions`]).
    fn has_registers(&self) -> bool {
        true
    }

    /// Whether a program is running that waits for its readers.
    fn is_live(&self) -> bool {
        false
    }

    /// How far the program has run ahead of this reader, in batches. 0 for stored traces.
    fn behind(&self) -> u64 {
        0
    }
}
