//! The JSON schema of a machine, a design and a profile: what editors check and complete by, and
//! what the reference is written from.

use schemars::{Schema, schema_for};

use crate::Report;
use crate::ageing::{AgeReport, Profile, Sample};
use crate::config::{DesignConfig, MachineConfig};
use crate::spec::Document;

/// Of [`MachineConfig`].
#[must_use]
pub fn machine() -> Schema {
    schema_for!(MachineConfig)
}

/// Of [`DesignConfig`].
#[must_use]
pub fn design() -> Schema {
    schema_for!(DesignConfig)
}

/// Of [`Profile`].
#[must_use]
pub fn profile() -> Schema {
    schema_for!(Profile)
}

/// Of [`Document`]: what `contigua run` and `contigua.RunOptions` are told.
#[must_use]
pub fn run_document() -> Schema {
    schema_for!(Document)
}

/// Of the reports of `contigua run`, an array of [`Report`].
#[must_use]
pub fn run_reports() -> Schema {
    written::<Vec<Report>>()
}

/// Of a profile that `contigua profile --save` keeps.
#[must_use]
pub fn attribution() -> Schema {
    written::<crate::attribution::File<'static>>()
}

/// Of the reports of `contigua age`, an array of a server's report and samples.
#[must_use]
pub fn age_reports() -> Schema {
    #[derive(schemars::JsonSchema)]
    #[schemars(rename = "AgedServer")]
    #[expect(dead_code, reason = "Python writes it")]
    struct Aged {
        /// The version of this JSON.
        schema: u32,
        /// Configuration of the server's life, and its results.
        report: AgeReport<'static>,
        /// The server over time.
        samples: Vec<Sample>,
    }
    written::<Vec<Aged>>()
}

fn written<T: schemars::JsonSchema>() -> Schema {
    let settings = schemars::generate::SchemaSettings::default().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}
