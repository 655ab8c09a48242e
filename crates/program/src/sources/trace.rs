//! Recorded programs.

use std::path::Path;

use super::{Batch, Program, Source};
use crate::Error;
use crate::end::End;
use crate::trace::{Summary, TraceReader};

/// Yields what a [`TraceWriter`](crate::trace::TraceWriter) was given.
pub struct TraceSource {
    reader: TraceReader,
}

impl TraceSource {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// Those of [`TraceReader::open`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let reader = TraceReader::open(path)?;
        Ok(Self { reader })
    }

    /// Totals of the whole trace.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.reader.summary()
    }
}

impl Source for TraceSource {
    fn program(&self) -> &Program {
        self.reader.program()
    }

    fn next_batch(&mut self) -> Result<Option<Batch<'_>>, Error> {
        self.reader.next_batch()
    }

    fn end(&self) -> Option<&End> {
        self.reader.end()
    }

    fn identity(&self) -> Option<u64> {
        Some(self.reader.identity())
    }

    fn seek(&mut self, batches: u64) -> Result<(), Error> {
        self.reader.seek(batches)
    }
}
