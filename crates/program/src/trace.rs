//! Traces: what a source yielded, in a file, to be yielded again.
//!
//! A trace keeps batches as they came, so that a replay is indistinguishable from the run that was
//! recorded. Three wishes shaped the format. *Nothing damaged is ever replayed*: every byte is
//! under a checksum that is verified before the byte is used, lengths are bounded before memory is
//! taken, and a trace has its name only once it is complete. *Small*: most of what a program does
//! it has done just before, so the file holds only where it departs from what both ends predict,
//! and zstd squeezes what is left. *Fast*: replay must not be slower than a live run, so
//! prediction is a few loads from dense arrays.
//!
//! [`TraceWriter`] and [`TraceReader`] are the two ends; [`crate::sources::trace`] makes a source
//! of the latter.

mod bytes;
mod code;
mod decoder;
mod encoder;
mod layout;
mod predictor;
mod reader;
mod writer;

pub use layout::VERSION;
pub use reader::TraceReader;
pub use writer::TraceWriter;

/// Totals of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Words of the wire format.
    pub words: u64,
    /// Instructions executed, all threads together.
    pub instructions: u64,
    /// Loads and stores.
    pub accesses: u64,
    /// Batches.
    pub batches: u64,
    /// Threads that executed anything.
    pub threads: u64,
}
