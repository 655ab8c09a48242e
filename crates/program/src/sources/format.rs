//! Formats of traces.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Source;
use super::champsim::ChampSimSource;
use super::drmemtrace::{DrmemtraceSource, is_drmemtrace};
use super::lackey::LackeySource;
use super::trace::TraceSource;
use crate::Error;

/// Who wrote a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TraceFormat {
    /// `contigua record`.
    #[default]
    Contigua,
    /// `ChampSim`'s tracers.
    ChampSim,
    /// Valgrind's `lackey --trace-mem=yes`.
    Lackey,
    /// `DynamoRIO`'s drmemtrace.
    Drmemtrace,
}

impl TraceFormat {
    /// Its name, as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contigua => "contigua",
            Self::ChampSim => "champsim",
            Self::Lackey => "lackey",
            Self::Drmemtrace => "drmemtrace",
        }
    }

    /// This format, or drmemtrace where Contigua's is expected and the path looks like that.
    #[must_use]
    pub fn found_at(self, path: &Path) -> Self {
        if self == Self::Contigua && is_drmemtrace(path) {
            Self::Drmemtrace
        } else {
            self
        }
    }

    /// Opens a trace.
    ///
    /// # Errors
    /// When it cannot be read, or is no trace of this format.
    pub fn open(self, path: &Path) -> Result<Box<dyn Source>, Error> {
        Ok(match self {
            Self::Contigua => Box::new(TraceSource::open(path)?),
            Self::ChampSim => Box::new(ChampSimSource::open(path)?),
            Self::Lackey => Box::new(LackeySource::open(path)?),
            Self::Drmemtrace => Box::new(DrmemtraceSource::open(path)?),
        })
    }
}
