//! Programs as streams of events.
//!
//! Every way of observing a program (QEMU now, traces of other tools) is a [`sources::Source`]
//! of [`wire`] words: blocks executed, addresses accessed, system calls made. The engine above
//! knows nothing else about programs, so a source can be added without touching it.
//!
//! The QEMU plugin links this crate without its default feature and so gets the wire format and
//! the writing end of the [`ring`] only.

pub mod allocator;
pub mod code;
pub mod cues;
pub mod descriptors;
pub mod end;
pub mod exclusion;
pub mod executable;
pub mod layout;
pub mod lifeline;
pub mod pieces;
pub mod plan;
pub mod ring;
pub mod root;
pub mod syscall;
pub mod wire;

#[cfg(feature = "sources")]
pub mod decode;
#[cfg(feature = "sources")]
pub mod emulator;
#[cfg(feature = "sources")]
pub mod footprint;
#[cfg(feature = "sources")]
pub mod launch;
#[cfg(feature = "sources")]
pub mod listing;
#[cfg(feature = "sources")]
mod path;
#[cfg(feature = "sources")]
pub mod places;
#[cfg(feature = "sources")]
pub mod sources;
#[cfg(feature = "sources")]
pub mod symbols;
#[cfg(feature = "sources")]
pub mod trace;
#[cfg(feature = "sources")]
pub mod vectors;

mod error;
pub use error::{Error, TraceProblem};
