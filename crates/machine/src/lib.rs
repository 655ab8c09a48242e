//! The simulated server.
//!
//! [`config`] turns TOML into values, [`Engine`] runs a stream of events on the components that
//! they describe, the kernel module does what the operating system would, and everything ends in
//! one [`Report`]. [`simulate`] does all of it for one design. [`heap`] puts a page heap on such a server.

#![forbid(unsafe_code)]

pub mod ageing;
pub mod config;
mod engine;
mod error;
pub mod heap;
mod kernel;
mod limits;
mod port;
mod processors;
mod recording;
mod report;
pub mod requests;
mod run;

pub use engine::Engine;
pub use error::Error;
pub use report::{
    AdviceReport, CoreReport, DeviceReport, Ended, Estimate, Executed, KernelReport, MemoryCourse,
    MemoryReport, MigrationReport, ProgramReport, Report, SampleReport, SyscallReport, TimeReport,
    Unavailable,
};
pub use run::{Progress, Run, simulate};
