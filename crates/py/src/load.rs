//! A client that loads a server: the region of interest begins and ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use contigua_program::wire::Cue;
use pyo3::prelude::*;

/// Requests of a client's driver; the run passes them on to the program.
#[pyclass(frozen, from_py_object)]
#[derive(Clone, Default)]
pub struct Load {
    asked: Arc<AtomicU32>,
}

const NOTHING: u32 = 0;
const BEGIN: u32 = 1;
const END: u32 = 2;

impl Load {
    /// Passes on what was asked for since the last time.
    pub fn pass_on(&self, ask: impl Fn(Cue)) {
        let asked = self.asked.load(Ordering::Acquire);
        match asked {
            BEGIN => ask(Cue::Begin),
            END => ask(Cue::End),
            _ => return,
        }
        let kept = Ordering::Relaxed;
        let _ = self
            .asked
            .compare_exchange(asked, NOTHING, Ordering::Release, kept);
    }
}

#[pymethods]
impl Load {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Begins the region of interest with the next system call that returns in the program.
    fn begin(&self) {
        self.asked.store(BEGIN, Ordering::Release);
    }

    /// Ends it with the next system call that returns.
    fn end(&self) {
        self.asked.store(END, Ordering::Release);
    }

    /// Says if the run has yet to pass on what was asked for.
    fn is_pending(&self) -> bool {
        self.asked.load(Ordering::Acquire) != NOTHING
    }
}
