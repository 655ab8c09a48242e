//! Results that Python writes, by the same rules as those of the engine.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use contigua_output::Output as Inner;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A result that is being written; see [`contigua_output::Output`].
#[pyclass]
pub struct Output(Option<Inner>);

#[pymethods]
impl Output {
    /// Begins to write to a path; `-` is standard output. Errors are `OSError`s.
    #[new]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        loop {
            // A FIFO is waited for, and signals are looked at meanwhile.
            match py.detach(|| Inner::create(&path)) {
                Ok(output) => return Ok(Self(Some(output))),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => py.check_signals()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether a result could be written to a path, as far as that is known without writing.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
    fn check(path: PathBuf) -> PyResult<()> {
        Ok(Inner::check(&path)?)
    }

    /// Whether what is written to a path is written through.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
    fn is_through(path: PathBuf) -> bool {
        Inner::is_through(&path)
    }

    /// The descriptor of this process that a path means, if any.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
    fn descriptor(path: PathBuf) -> Option<i32> {
        Inner::descriptor(&path)
    }

    /// The descriptor to write to.
    fn fileno(&self) -> PyResult<i32> {
        let output = self.0.as_ref().ok_or_else(ended)?;
        Ok(output.as_fd().as_raw_fd())
    }

    /// Says that all is written: the file takes its name.
    fn keep(&mut self, py: Python<'_>) -> PyResult<()> {
        let output = self.0.take().ok_or_else(ended)?;
        Ok(py.detach(|| output.keep())?)
    }

    /// Drops what was written, unless it was kept.
    fn discard(&mut self) {
        self.0 = None;
    }
}

fn ended() -> PyErr {
    PyValueError::new_err("the output is kept or discarded already")
}
