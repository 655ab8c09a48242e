//! All tests of the crate in one program, which is linked once.

mod aarch64;
mod advice;
mod ageing;
mod areas;
mod branches;
mod checkpoints;
mod common;
mod cores;
mod engine;
mod files;
mod heap;
mod kernel_work;
mod ladders;
mod page_policies;
mod ranges;
mod shared_memory;
mod strings;
mod transfers;
mod values;
