//! Source places and texts of instructions, for profiles.

use std::path::PathBuf;

use contigua_program::{listing, places};
use pyo3::prelude::*;

use crate::program_error;

/// Function, source file and line of an instruction.
type PlaceTuple = (Option<String>, Option<(String, u32)>, Option<u64>);

/// Names the instructions at offsets of an ELF file: for each its function, its source file and line, and
/// where a function without name begins, as far as they are known.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
pub fn locate(py: Python<'_>, file: PathBuf, offsets: Vec<u64>) -> PyResult<Vec<PlaceTuple>> {
    let places = py.detach(|| places::locate(&file, &offsets));
    let places = places.map_err(program_error)?.into_iter();
    Ok(places
        .map(|place| (place.function, place.line, place.start))
        .collect())
}

/// The build ID of an ELF file; `None` where it was linked without.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
pub fn build_id(file: PathBuf) -> PyResult<Option<Vec<u8>>> {
    places::build_id(&file).map_err(program_error)
}

/// A function's offset, and its instructions near those that are wanted: offset, address and text, in runs
/// without gaps.
type ListingTuple = (u64, Vec<Vec<(u64, u64, String)>>);

/// Lists the functions of an ELF file in which the instructions at offsets lie: those, and as many before
/// and after each as `context` says.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 hands values over")]
pub fn disassemble(
    py: Python<'_>,
    file: PathBuf,
    offsets: Vec<u64>,
    context: usize,
) -> PyResult<Vec<ListingTuple>> {
    let listings = py.detach(|| listing::functions(&file, &offsets, context));
    let tuple = |line: listing::Line| (line.offset, line.address, line.text);
    let listed = listings.map_err(program_error)?.into_iter().map(|one| {
        let runs = one.runs.into_iter();
        (
            one.start,
            runs.map(|run| run.into_iter().map(tuple).collect())
                .collect(),
        )
    });
    Ok(listed.collect())
}
