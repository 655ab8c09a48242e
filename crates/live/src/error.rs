//! Errors while reading a machine's files.

use std::io;
use std::path::PathBuf;

/// Why something could not be learned about the machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file does not say what it says on the kernels that this reader knows.
    #[error("{}:{line}: expected {expected}, found {found:?}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The expected contents.
        expected: &'static str,
        /// The contents that were found.
        found: String,
    },
    /// The machine's base pages are not of 4 KB.
    #[error("this machine's pages have {bytes} bytes; frames are counted in 4096 bytes here")]
    PageSize {
        /// Their size.
        bytes: u64,
    },
}

impl Error {
    /// Returns true if the right to read is missing, rather than the file.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Read { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Returns true if the kernel has no such file.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Read { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}
