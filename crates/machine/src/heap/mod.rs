//! A page heap on the simulated server: what it does to TLB misses, and what a fragmented server
//! does to it.
//!
//! [`SimulatedServer`] is the operating system below a [`PageHeap`](contigua_pageheap::PageHeap). What
//! the heap asks of it are the system calls that it makes on Linux, and the simulated kernel does
//! them: a huge-page allocation that fails gives none, and a collapse that fails says so. [`run`] lets
//! a program with a given demand live on it in virtual time, write what it allocates and read what
//! it has, so that page faults and TLB misses follow from what the heap does.
//!
//! The heap's own records are not in simulated memory: 128 bytes for each 2 MB.

mod run;
mod server;

pub use run::{HeapReport, HeapRun, HeapSample, HeapSummary, run};
pub use server::{Mapping, ServerOs, SimulatedServer};
