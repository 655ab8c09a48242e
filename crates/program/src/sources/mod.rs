//! Sources of events: one file each.
//!
//! A source yields batches of [`wire`](crate::wire) words in one total order over all threads.
//! Batches are borrowed from the source, so that a live ring is read in place; the code log comes
//! along with each batch because a consumer needs both at once.

mod compressed;
mod foreign;
mod format;

pub mod champsim;
pub mod drmemtrace;
pub mod lackey;
pub mod live;
pub mod trace;

use crate::Error;
use crate::code::CodeLog;
use crate::end::End;
use crate::layout::Layout;
use crate::plan::Plan;
use crate::syscall::Architecture;
use crate::wire::ThreadId;

pub use format::TraceFormat;

/// Consecutive words of one thread.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// The thread that executed them.
    pub thread: ThreadId,
    /// Whole records, in program order.
    pub words: &'a [u64],
    /// Code of the block numbers in `words`.
    pub code: &'a dyn CodeLog,
}

/// Description of a program before its first event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The command line, as given.
    pub command: Vec<String>,
    /// The program's architecture, which gives system calls their meaning.
    pub architecture: Architecture,
    /// True if the source reports the program's mappings. Foreign traces do not: every address that
    /// they access is then taken to lie in anonymous memory.
    pub reports_mappings: bool,
    /// Plan under which it was traced: all, unless it was recorded or is run under another one.
    pub plan: Plan,
    /// Choice of its addresses, as far as the source knows it.
    pub layout: Layout,
}

/// Source of events.
pub trait Source: Send {
    /// Description of the program.
    fn program(&self) -> &Program;

    /// The next batch, or `None` at the end of the program. Blocks until there is one.
    ///
    /// # Errors
    /// Whatever keeps the stream from going on; the source then stays at its end.
    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error>;

    /// End of the program, as far as is known: after the last batch.
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

    /// Returns true if the registers of instructions are known: by their bytes, or because the
    /// source has them ([`CodeLog::instructions`]).
    fn has_registers(&self) -> bool {
        true
    }

    /// Returns true if a running program waits for its readers.
    fn is_live(&self) -> bool {
        false
    }

    /// Number of batches that the program has run ahead of this reader. 0 for stored traces.
    fn behind(&self) -> u64 {
        0
    }
}
