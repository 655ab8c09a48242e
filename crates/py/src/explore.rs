//! Placement policies in Python: ideas that are tried before somebody writes them in Rust.
//!
//! The mechanism is the engine's own; only verdicts come from Python, one call for each. Verdicts
//! cannot fail where the mechanism asks for them, so an exception is kept until the server's life
//! can end with it, and nothing more is asked of a policy that raised one.

use std::sync::{Arc, Mutex, PoisonError};

use contigua_frames::policies::explored::Explored;
use contigua_frames::policies::{Candidate, Verdict, linux};
use contigua_frames::{MigrateType, Placement, PlacementPolicy, Request};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use MigrateType::{Movable, Reclaimable, Unmovable};

/// Answers of a Python object: `contigua.explore` makes a policy of them.
///
/// Types and verdicts are numbers, in the order of [`MigrateType`] and [`VERDICTS`].
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct PolicySpec {
    /// Name of the design in reports.
    pub name: String,
    /// `None` where Linux's rule is meant, which then needs no call for each request.
    home: Option<Py<PyAny>>,
    fallbacks: Py<PyAny>,
    verdict: Py<PyAny>,
}

/// Verdicts by their numbers in Python.
const VERDICTS: [Verdict; 4] = [
    Verdict::Refuse,
    Verdict::Borrow,
    Verdict::BorrowSmallest,
    Verdict::Claim,
];

/// Every order of types that a policy may look through.
const FALLBACKS: [&[MigrateType]; 16] = [
    &[],
    &[Unmovable],
    &[Movable],
    &[Reclaimable],
    &[Unmovable, Movable],
    &[Unmovable, Reclaimable],
    &[Movable, Unmovable],
    &[Movable, Reclaimable],
    &[Reclaimable, Unmovable],
    &[Reclaimable, Movable],
    &[Unmovable, Movable, Reclaimable],
    &[Unmovable, Reclaimable, Movable],
    &[Movable, Unmovable, Reclaimable],
    &[Movable, Reclaimable, Unmovable],
    &[Reclaimable, Unmovable, Movable],
    &[Reclaimable, Movable, Unmovable],
];

/// The first exception that a policy raised.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// Ends in the exception, if there was one.
    pub fn check(&self) -> PyResult<()> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(error) => Err(Python::attach(|py| error.clone_ref(py))),
            None => Ok(()),
        }
    }

    fn is_some(&self) -> bool {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.is_some()
    }

    fn keep(&self, error: PyErr) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert(error);
    }
}

/// A policy whose verdicts Python gives.
struct PythonPolicy {
    spec: PolicySpec,
    failure: Failure,
}

impl PolicySpec {
    /// The placement that asks this policy, and where its exceptions are found.
    pub fn placement(self) -> (Placement, Failure) {
        let failure = Failure::default();
        let name = self.name.clone();
        let policy = PythonPolicy {
            spec: self,
            failure: failure.clone(),
        };
        let explored = Explored::new(name, Arc::new(policy));
        (Placement::Explored(explored), failure)
    }
}

/// A request's attributes, in the order of `contigua.explore.Request`.
fn attributes(request: &Request) -> (u8, &'static str, bool, bool, bool) {
    let class = request.class.name();
    let (reclaimable, atomic) = (request.reclaimable, request.atomic);
    let order = request.order.get();
    (order, class, reclaimable, request.long_lived, atomic)
}

fn listed(number: usize) -> PyResult<MigrateType> {
    let found = [Unmovable, Movable, Reclaimable].get(number).copied();
    found.ok_or_else(|| PyValueError::new_err(format!("no type has the number {number}")))
}

impl PythonPolicy {
    /// Asks Python, or says `otherwise` once it has failed.
    fn ask<T>(&self, otherwise: T, question: impl FnOnce(Python<'_>) -> PyResult<T>) -> T {
        if self.failure.is_some() {
            return otherwise;
        }
        Python::attach(question).unwrap_or_else(|error| {
            self.failure.keep(error);
            otherwise
        })
    }
}

impl PlacementPolicy for PythonPolicy {
    fn home(&self, request: &Request) -> MigrateType {
        let linux = linux::Config::default().home(request);
        let Some(home) = &self.spec.home else {
            return linux;
        };
        self.ask(linux, |py| {
            listed(home.call1(py, attributes(request))?.extract(py)?)
        })
    }

    fn fallbacks(&self, home: MigrateType) -> &'static [MigrateType] {
        self.ask(&[], |py| {
            let numbers = self.spec.fallbacks.call1(py, (home as u8,))?;
            let numbers: Vec<usize> = numbers.extract(py)?;
            let types: Vec<MigrateType> =
                numbers.into_iter().map(listed).collect::<PyResult<_>>()?;
            let found = FALLBACKS.iter().find(|known| ***known == *types);
            found
                .copied()
                .ok_or_else(|| PyValueError::new_err("fallbacks name a type twice"))
        })
    }

    fn verdict(&self, home: MigrateType, request: &Request, candidate: &Candidate) -> Verdict {
        self.ask(Verdict::Refuse, |py| {
            let request = attributes(request).into_pyobject(py)?;
            let candidate = (
                candidate.kind as u8,
                candidate.order.get(),
                candidate.free,
                candidate.movable,
                candidate.unmovable,
            );
            let arguments: (u8, Bound<'_, PyTuple>, _) = (home as u8, request, candidate);
            let number: usize = self.spec.verdict.call1(py, arguments)?.extract(py)?;
            let found = VERDICTS.get(number).copied();
            found.ok_or_else(|| PyValueError::new_err(format!("no verdict is {number}")))
        })
    }
}
