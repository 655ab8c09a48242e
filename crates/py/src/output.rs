//! Results that Python writes, by the same rules as those of the engine.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use contigua_output::Output as Inner;
use pyo3::exceptions::{PyOSError, PyValueError};
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
                Err(error) => return Err(os_error(&error)),
            }
        }
    }

    /// Checks that a result could be written to a path, as far as that is known without writing.
    #[staticmethod]
    #[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
    fn check(path: PathBuf) -> PyResult<()> {
        Inner::check(&path).map_err(|error| os_error(&error))
    }

    /// Returns true if output to a path is written directly.
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
        py.detach(|| output.keep())
            .map_err(|error| os_error(&error))
    }

    /// Drops what was written, unless it was kept.
    fn discard(&mut self) {
        self.0 = None;
    }
}

/// An error as Python's own functions raise it, with number and text apart.
fn os_error(error: &io::Error) -> PyErr {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => {
            let text = text
                .split(" (os error")
                .next()
                .unwrap_or_default()
                .to_owned();
            PyOSError::new_err((number, text))
        }
        None => PyOSError::new_err(text),
    }
}

fn ended() -> PyErr {
    PyValueError::new_err("the output is kept or discarded already")
}
