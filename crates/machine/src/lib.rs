//! The simulated server.
//!
//! [`config`] turns TOML into values, [`Engine`] runs a stream of events on the components that
//! they describe, the kernel module does what the operating system would, and everything ends in
//! one [`Report`]. [`simulate`] does all of it for one design. [`heap`] puts a page heap on such a
//! server.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as contigua_machine;

pub mod ageing;
mod attribution;
mod checkpoint;
pub mod config;
mod digest;
mod engine;
mod error;
pub mod heap;
mod kernel;
mod limits;
mod mover;
mod port;
mod processors;
#[cfg(test)]
mod recorder;
mod recording;
mod report;
pub mod requests;
mod run;
pub mod schema;
pub mod spec;
mod unavailable;

pub use checkpoint::{CheckpointProblem, Saves};
pub use engine::Engine;
pub use error::Error;
pub use report::{
    AdviceReport, CoreReport, DeviceReport, Ended, Estimate, Executed, KernelReport, MemoryReport,
    MigrationReport, ProgramReport, RangerReport, Report, ResidencyReport, RunsReport,
    SampleReport, SyscallReport, TimeReport,
};
pub use run::{Progress, Run, simulate, simulate_from};
pub use unavailable::Unavailable;
