//! Requests of a real kernel's page allocator, replayed for Python.

use std::io::Cursor;

use contigua_machine::{config, requests};
use pyo3::prelude::*;

use crate::engine_error;

/// Gives a recorded kernel's requests to a design's placement; returns kernel and simulation at
/// each look as a JSON object.
#[pyfunction]
pub fn replay_requests(
    py: Python<'_>,
    record: Vec<u8>,
    design: &str,
    design_name: &str,
) -> PyResult<String> {
    let design = config::parse_design(design, design_name).map_err(engine_error)?;
    let replay = || requests::replay(Cursor::new(record), &design.placement, &design.memory);
    let replayed = py.detach(replay).map_err(engine_error)?;
    Ok(serde_json::to_string(&replayed).expect("numbers and names are JSON"))
}
